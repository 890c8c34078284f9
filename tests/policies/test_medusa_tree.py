"""Trees: their expected length against the engine, their widths, and the fit of alpha."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from driving import batch, outcome, started

from specsim.core.step import StepLoad
from specsim.core.trees import Tree, rank_rates
from specsim.policies.medusa_tree import TreeLens
from specsim.run.simulate import Run

Serve = Callable[..., Run]
Steps = Callable[..., list[Any]]


def observe_trees(policy: Any, memory: Any, trees: list[Tree], accepted: list[int]) -> None:
    nodes = [tree.num_nodes for tree in trees]
    paths = [(1,) * length for length in accepted]
    policy.observe(outcome(nodes, accepted, trees=trees, paths=paths), memory)


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8])
def test_the_fit_recovers_alpha_from_batches_of_any_size(alpha: float, size: int) -> None:
    policy, memory = started("medusa_tree:window=2000,widths=[3,2,1]", 15)
    rng = np.random.default_rng(1)
    widths = np.array([3, 2, 1])
    for _ in range(3000):
        hits = rng.random((size, 3)) < 1 - (1 - alpha) ** widths
        accepted = np.cumprod(hits, axis=1).sum(axis=1).tolist()
        observe_trees(policy, memory, [Tree.of_widths((3, 2, 1))] * size, accepted)
    assert policy.alpha_estimate(memory) == pytest.approx(alpha, abs=0.03 if size == 1 else 0.015)


def test_one_unlucky_tree_does_not_end_speculation() -> None:
    policy, memory = started("medusa_tree", 39, lambda load, lens: 1.0 + 1e-3 * load.batched_tokens)
    first = policy.draft_lens(batch(0), memory)
    observe_trees(policy, memory, [first], [0])
    assert policy.draft_lens(batch(0), memory).num_nodes > 0


def test_steps_without_trees_forget() -> None:
    policy, memory = started("medusa_tree:window=20", 39)
    for _ in range(100):
        observe_trees(policy, memory, [Tree.of_widths((3, 3, 3))], [0])
    assert policy.alpha_estimate(memory) < 0.2
    for _ in range(200):
        policy.observe(outcome([0], [0], trees=[None], paths=[()]), memory)
    assert policy.alpha_estimate(memory) == pytest.approx(0.7, abs=0.01)


def test_a_tree_cut_by_the_budget_counts_what_was_tried() -> None:
    policy, memory = started("medusa_tree:widths=[2,2],prior=0.5", 6)
    tree = Tree.of_widths((2, 2))
    policy.observe(outcome([2], [1], trees=[tree], paths=[(2,)]), memory)  # none of the last 4
    # One trial of width 2, hit: alpha 1, beside five trials at 0.5.
    assert policy.alpha_estimate(memory) == (1 + 2.5) / 6


@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.7, 0.95])
@pytest.mark.parametrize("num", [1, 8, 64])
def test_goodput_picks_the_best_of_all_trees(alpha: float, num: int) -> None:
    def step_time(load: StepLoad, lens: Any) -> float:
        return 1.0 + 0.02 * load.batched_tokens + 0.1 * (lens > 0)

    def rate(tree: Tree) -> float:
        emitted = tree.expected_len(rank_rates([alpha] * 3))
        load = StepLoad(num, num * (1 + tree.num_nodes), num)
        return emitted / step_time(load, tree.num_nodes)

    policy, memory = started({"kind": "medusa_tree", "prior": alpha, "max_width": 3}, 39, step_time)
    chosen = policy.draft_lens(batch(*range(num)), memory)
    trees = [Tree.of_widths(w) for depth in range(4) for w in product((1, 2, 3), repeat=depth)]
    assert rate(chosen) == pytest.approx(max(map(rate, trees)))


def test_goodput_narrows_the_tree_under_load() -> None:
    def step_time(load: StepLoad, lens: Any) -> float:
        return 1.0 + 0.02 * load.batched_tokens

    policy, memory = started("medusa_tree", 39, step_time)
    nodes = [policy.draft_lens(batch(*range(n)), memory).num_nodes for n in (1, 4, 16, 64, 256)]
    assert nodes == sorted(nodes, reverse=True)
    assert nodes[0] > nodes[-1]


def test_many_narrow_heads_are_possible() -> None:
    policy, memory = started("medusa_tree:max_width=1", 120)
    assert policy.draft_lens(batch(0), memory).num_nodes > 99


@pytest.mark.parametrize(("widths", "nodes"), [((), 0), ((3,), 3), ((3, 2, 2), 21), ((1, 1), 2)])
def test_a_tree_batches_every_node(widths: tuple[int, ...], nodes: int) -> None:
    assert Tree.of_widths(widths).num_nodes == nodes


@pytest.mark.parametrize("is_v0", [False, True])
def test_trees_are_batched_whole_and_accepted_along_a_path(
    is_v0: bool, serve: Serve, steps: Steps
) -> None:
    # alpha is 1 here: each path is accepted whole.
    scheduler = "prefill_first" if is_v0 else "v1"
    run = serve("medusa_tree:widths=[3,2]", [(0.0, 2, 7)], speculative=("medusa", 2),
                scheduler=scheduler)  # fmt: skip
    names = ("batched_tokens", "draft_tokens", "accepted_tokens", "output_tokens", "draft_time")
    heads = 0.03125
    assert steps(run, *names) == [
        (2, 0, 0, 1, 0.0 if is_v0 else heads),
        (10, 9, 2, 3, heads),
        (10, 9, 2, 3, heads),
    ]


def test_expected_tree_len_of_chains_is_eq_8() -> None:
    for k in range(1, 6):
        chain = TreeLens(np.ones((1, k), dtype=np.int64))(0.6)
        assert chain == pytest.approx((1 - 0.6 ** (k + 1)) / (1 - 0.6))
