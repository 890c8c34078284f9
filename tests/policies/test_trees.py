"""Trees: what they emit, what they cost, and that a chain is one of width 1."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from conftest import tiny_config
from scipy.stats import norm

from specsim.acceptance import ACCEPTANCE
from specsim.core.candidate_luck import CandidateLuck, RankTables, drawn_ranks
from specsim.core.errors import PluginError
from specsim.core.rng import Luck, normals
from specsim.core.step import StepLoad
from specsim.core.trees import Tree, rank_rates
from specsim.decisions.policy import DraftsTrees, ServerView
from specsim.latency import LATENCY
from specsim.profile.profile import DraftCost, Overhead, StepCosts
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate

Serve = Callable[..., Run]
Steps = Callable[..., list[Any]]


def random_tree(rng: np.random.Generator, num_nodes: int) -> Tree:
    return Tree(tuple(int(rng.integers(-1, node)) for node in range(num_nodes)))


def random_rates(rng: np.random.Generator) -> list[float]:
    return rng.uniform(0.05, 0.9, size=rng.integers(1, 7)).tolist()


@pytest.mark.parametrize("seed", range(30))
def test_random_trees_emit_what_their_closed_form_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, *rest = random_rates(rng)
    tree = random_tree(rng, int(rng.integers(1, 40)))
    num = 4000
    own = normals(Luck(seed, 1).uniforms([0], [num * tree.depth]))
    scores = np.array([[norm.ppf(first)]])
    tables = [RankTables(drawn_ranks(own, scores, rest), np.zeros((0, 2, len(own)), np.uint8))]
    luck = CandidateLuck(tables, np.array([0, len(own)]))
    ranks = (luck.ranks(0, draft * tree.depth, tree.depth) for draft in range(num))
    lens = 1.0 + np.array([len(tree.accepted_path(found, tree.num_nodes)) for found in ranks])
    theory = tree.expected_len(rank_rates([first, *rest]))
    half_width = norm.ppf(0.9995) * lens.std(ddof=1) / num**0.5
    assert abs(lens.mean() - theory) <= half_width


ACCEPTANCES = [
    {"kind": kind, **ACCEPTANCE.members[kind].examples[0]}
    for kind in ("bernoulli", "beta", "beta_position", "layered", "markov", "per_position", "shift")
]


@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=lambda given: str(given["kind"]))
@pytest.mark.parametrize("scheduler", ["v1", "prefill_first"])
@pytest.mark.parametrize("basis", ["pass", "draft"])
def test_a_chain_is_a_tree_of_width_1(
    acceptance: dict[str, Any], scheduler: str, basis: str, constant_step: Callable[..., str]
) -> None:
    latency = {"kind": "linear", "alpha_ns": 100, "gamma_us": 30, "delta_ms": 1}
    drafts = {"eagle3": {"basis": basis, "latency": latency, "token_us": 3}}
    profile = constant_step(alpha_ns=300, gamma_us=70, delta_ms=8, drafts=drafts)
    engine = {**tiny_config()["engine"], "scheduler": scheduler}
    if scheduler == "v1":
        engine["async_scheduling"] = False
    else:
        engine["max_num_batched_tokens"] = engine["max_model_len"]
    engine["speculative_config"] = {"method": "eagle3", "num_speculative_tokens": 3}
    chain, tree = (
        simulate(
            Experiment.parse(
                tiny_config(policy=policy, acceptance=acceptance, engine=engine, profile=profile),
                "chains",
            ),
            check=True,
        ).replicas[0]
        for policy in ("static:k=3", "static_tree:widths=[1,1,1]")
    )
    assert chain.steps["accepted_tokens"].sum()
    assert chain.steps.tobytes() == tree.steps.tobytes()
    assert chain.requests.tobytes() == tree.requests.tobytes()


def test_shapes_said_in_two_ways_are_equal() -> None:
    assert Tree.of_widths((2, 2)) == Tree.of_paths([(1, 2), (2, 2)])
    assert Tree.of_paths([(2,), (1,), (1, 1)]).parents == (-1, -1, 0)
    assert Tree.chain(3) == Tree.of_widths((1, 1, 1))
    assert Tree.of_paths([(1, 1), (2, 2)]).paths == ((1,), (2,), (1, 1), (2, 1), (2, 2))


def test_what_is_no_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="each must be -1 or an earlier node"):
        Tree((-1, 1))


def test_a_cut_tree_is_accepted_as_far_as_it_goes() -> None:
    tree = Tree.of_widths((2, 2))  # nodes 2 and 3 follow 0, 4 and 5 follow 1
    assert tree.accepted_path([2, 1], 6) == (2, 1)
    assert tree.accepted_path([2, 1], 4) == (2,)
    assert tree.accepted_path([3, 1], 6) == ()
    assert tree.accepted_path([1, 0], 6) == (1,)
    assert tree.tried_widths((2, 1), 6) == [2, 2, 0]
    assert tree.tried_widths((2,), 5) == [2, 1]


def test_a_drafter_reads_the_nodes_that_have_children_depth_by_depth() -> None:
    tree = Tree.of_widths((3, 2, 1))
    assert (tree.num_nodes, tree.depth, tree.reads) == (15, 3, (3, 6))
    assert Tree.chain(4).reads == (1, 1, 1)
    assert Tree((-1, -1)).reads == ()
    assert Tree((-1, 0), passes=(7,)).reads == (7,)


def test_passes_of_trees_are_priced_by_what_they_read() -> None:
    latency = LATENCY.parse({"kind": "linear", "alpha_ns": 0, "gamma_us": 1000, "delta_ms": 100})
    drafts = (DraftCost(latency=latency),)
    costs = StepCosts(latency, drafts, Overhead())
    load = StepLoad(0, 10, 2)
    # Two sequences: a pass over their 10 tokens, one over 3 nodes of each, one over 6.
    tree = Tree.of_widths((3, 2, 1))
    assert costs.draft_time(load, [tree, tree], 0.0) == pytest.approx(0.110 + 0.106 + 0.112)
    mixed = [tree, Tree.chain(2)]
    assert costs.draft_time(load, mixed, 0.0) == pytest.approx(0.110 + 0.104 + 0.106)
    assert costs.draft_time(load, [Tree(()), Tree(())], 0.0) == pytest.approx(0.110)
    target = costs.target_time(load)
    assert costs.step_time(load, tree) == costs.draft_time(load, [tree, tree], target) + target


class Alternating(DraftsTrees[ServerView]):
    """A wide tree for even requests, none for the others."""

    kind: Literal["alternating"] = "alternating"
    wrong: ClassVar[Any] = None

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        return 6

    def draft_lens(self, batch: Any, memory: ServerView) -> Any:
        shapes = Tree(()), Tree.of_widths((2, 2))
        return self.wrong or [shapes[request % 2 == 0] for request in batch.requests.tolist()]


def test_every_sequence_may_have_a_tree_of_its_own(tiny: Callable[..., Experiment]) -> None:
    run = simulate(tiny(policy=Alternating()), check=True)
    rows = run.replicas[0].requests
    even = rows["request"] % 2 == 0
    assert (rows["draft_tokens"][even] > 0).any()
    assert (rows["draft_tokens"][~even] == 0).all()


@pytest.mark.parametrize("wrong", [3, [Tree(())] * 99, [2], Tree.of_widths((7,)), Tree.chain(6)])
def test_what_a_policy_asks_for_must_be_trees(
    wrong: Any, tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Alternating, "wrong", wrong)
    with pytest.raises(PluginError, match=r"Alternating.*draft_lens returned .*; it must be"):
        simulate(tiny(policy=Alternating()))


def test_rank_rates_lower_what_wide_trees_bring(tiny: Callable[..., Experiment]) -> None:
    emitted = {}
    for rates in (None, (0.0,), (1.0,)):
        acceptance = {"kind": "bernoulli", "alpha": 0.5, "rank_rates": rates}
        run = simulate(tiny(policy="static_tree:widths=[2]", acceptance=acceptance), check=True)
        steps = run.replicas[0].steps
        emitted[rates] = steps["accepted_tokens"].sum() / steps["drafts"].sum()
    assert emitted[(0.0,)] < emitted[None] < emitted[(1.0,)] == 1.0
