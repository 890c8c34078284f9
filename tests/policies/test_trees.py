"""Trees: what they emit, what they cost, and that a chain is one of width 1."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from conftest import tiny_config
from driving import batch, outcome, started
from scipy.stats import norm

from specsim.acceptance import ACCEPTANCE
from specsim.core.draft_luck import CandidateLuck, RankTables, drawn_ranks, scores_by_rank
from specsim.core.errors import PluginError
from specsim.core.rng import Luck, normals
from specsim.core.step import StepLoad
from specsim.core.trees import Tree, rank_rates
from specsim.decisions.policy import DraftsTrees, ServerView
from specsim.latency import LATENCY
from specsim.policies import quick_step_time
from specsim.policies.sequoia_tree import best_nodes
from specsim.profile import load_profile
from specsim.profile.costs import DraftCost, Overhead, StepCosts
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

Serve = Callable[..., Run]
Steps = Callable[..., list[Any]]


def random_tree(rng: np.random.Generator, num_nodes: int) -> Tree:
    return Tree(tuple(int(rng.integers(-1, node)) for node in range(num_nodes)))


def random_factors(rng: np.random.Generator) -> list[float]:
    return rng.uniform(0.0, 1.0, size=rng.integers(0, 7)).tolist()


@pytest.mark.parametrize("seed", range(30))
def test_random_trees_emit_what_their_closed_form_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alpha, factors = rng.uniform(0.05, 0.95), random_factors(rng)
    tree = random_tree(rng, int(rng.integers(1, 40)))
    num = 4000
    own = normals(Luck(seed, 1).uniforms([0], [num * tree.depth]))
    scores = np.array([[norm.ppf(alpha)]])
    tables = [RankTables(drawn_ranks(own, scores, factors), np.zeros((0, 2, len(own)), np.uint8))]
    luck = CandidateLuck(tables, np.array([0, len(own)]), tree.depth)
    ranks = luck.ranks(np.zeros(num, dtype=np.int64), np.arange(num) * tree.depth).tolist()
    lens = 1.0 + np.array([len(tree.accepted_path(found, tree.num_nodes)) for found in ranks])
    theory = tree.expected_len(rank_rates([alpha, *(alpha * factor for factor in factors)]))
    half_width = norm.ppf(0.9995) * lens.std(ddof=1) / num**0.5
    assert abs(lens.mean() - theory) <= half_width


ACCEPTANCES = [
    {"kind": kind, **ACCEPTANCE.members[kind].examples[0]}
    for kind in ("bernoulli", "beta", "beta_position", "layered", "markov", "per_position", "shift")
] + [{"kind": "recorded", "proposer": "eagle"}]


@pytest.fixture
def recorded(tmp_path: Path) -> dict[str, Any]:
    """Make a workload whose requests carry what was accepted of a drafter's chains."""
    rng = np.random.default_rng(5)
    rows = [
        {
            "prompt_token_ids": [1] * 9,
            "generated_token_ids": [2] * 60,
            "acc_eagle": {"acc_len": rng.integers(1, 6, 60).tolist()},
        }
        for _ in range(12)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    arrivals = {"kind": "poisson", "rate": 20.0}
    return {"arrivals": arrivals, "lengths": {"kind": "trace", "path": str(path)}}


@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=lambda given: str(given["kind"]))
@pytest.mark.parametrize(("scheduler", "basis"), [("v1", "pass"), ("prefill_first", "draft")])
def test_a_chain_is_a_tree_of_width_1(
    acceptance: dict[str, Any],
    scheduler: str,
    basis: str,
    constant_step: Callable[..., str],
    recorded: dict[str, Any],
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
    config = tiny_config(acceptance=acceptance, engine=engine, profile=profile)
    if acceptance["kind"] == "recorded":
        config["workload"] = recorded
    chain, tree = (
        simulate(Experiment.parse({**config, "policy": policy}, "chains"), check=True).replicas[0]
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


@pytest.mark.parametrize(("widths", "nodes"), [("[1,1,1]", 3), ("[4,4]", 20)])
def test_a_state_is_kept_after_each_node(widths: str, nodes: int) -> None:
    """One of the whole sequence, which is all without prefix caching, and one per draft token."""
    layers = [{"kind": "full_attention", "layers": 4}, {"kind": "state", "layers": 4}]
    engine = {**tiny_config()["engine"], "async_scheduling": False, "kv_groups": layers}
    engine["enable_prefix_caching"] = False
    config = tiny_config(engine=engine, policy=f"static_tree:widths={widths}")
    run = simulate(Experiment.parse(config, "states"), check=True)
    states = next(each for each in run.deployment.setup.kv.groups if each.kind == "state")
    assert states.most_blocks(1024, 256) == 1 + nodes
    assert run.replicas[0].requests["draft_tokens"].sum()


def test_records_are_as_long_as_the_paths_of_a_tree(recorded: dict[str, Any]) -> None:
    """Drafts of 12 nodes bring 2 tokens at most, and records of up to 5 say all of them."""
    engine = {**tiny_config()["engine"], "async_scheduling": False}
    acceptance = {"kind": "recorded", "proposer": "eagle"}
    config = tiny_config(workload=recorded, engine=engine, acceptance=acceptance)
    run = simulate(Experiment.parse({**config, "policy": "static_tree:widths=[3,3]"}, "records"))
    summary = Summary(run)
    assert not any("recorded to survive" in line for line in summary.warnings)
    assert len(summary.data["spec_decode_per_position_acceptance_rates"]) == 3


def test_what_is_no_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="each must be -1 or an earlier node"):
        Tree((-1, 1))
    with pytest.raises(ValueError, match="each must be at least 0"):
        Tree((-1,), passes=(-1,))
    with pytest.raises(ValueError, match="each must be at least 0"):
        Tree.of_widths((2, -1))
    for node in (float("nan"), 0.5, "a"):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            Tree((-1, node))  # type: ignore[arg-type]
    for paths in ([(0,)], [(1,), (1, 0)], [(2, 0, 1)], [(1,), (-1,)]):  # as Medusa counts them
        with pytest.raises(ValueError, match="ranks count from 1"):
            Tree.of_paths(paths)


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


@pytest.mark.parametrize("name", ["h100/llama-3.1-8b", "a100/llama-7b", "b200/llama-3.1-8b"])
def test_policies_are_told_what_trees_cost(name: str) -> None:
    profile = load_profile(name)
    draft = next(draft for draft in profile.drafts.values() if draft.latency is not None)
    told = quick_step_time(StepCosts(profile.target, (draft,), profile.overhead))
    load = StepLoad(4000, 40, 10)
    for k in range(5):
        chain = Tree.chain(k)
        assert told(load, chain) == told(load, [chain] * 10) == pytest.approx(told(load, k))
    assert told(load, Tree.of_widths((3, 3))) >= told(load, 2)


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


def test_rank_factors_lower_what_wide_trees_bring(tiny: Callable[..., Experiment]) -> None:
    emitted = {}
    for factors in (None, (0.0,), (0.5,)):
        acceptance = {"kind": "bernoulli", "alpha": 0.5, "rank_factors": factors}
        run = simulate(tiny(policy="static_tree:widths=[2]", acceptance=acceptance), check=True)
        steps = run.replicas[0].steps
        emitted[factors] = steps["accepted_tokens"].sum() / steps["drafts"].sum()
    assert emitted[(0.0,)] < emitted[(0.5,)] < emitted[None]


def best_len(chances: list[float], num_nodes: int, depth: int) -> float:
    """Return the most tokens that a tree can emit, by the dynamic program of Sequoia, section 3.1.

    A tree of n nodes below one token: its best candidate takes some of them, its next some, ...
    """

    @cache
    def below(nodes: int, depth: int, rank: int) -> float:
        if not nodes or not depth or rank == len(chances):
            return 0.0
        return max(
            chances[rank] * (1.0 + below(size - 1, depth - 1, 0))
            + below(nodes - size, depth, rank + 1)
            for size in range(1, nodes + 1)
        )

    return 1.0 + below(num_nodes, depth, 0)


@pytest.mark.parametrize("seed", range(12))
def test_the_likeliest_nodes_are_the_tree_of_the_dynamic_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alpha, factors = rng.uniform(0.2, 0.95), sorted(random_factors(rng), reverse=True)
    chances = rank_rates([alpha, *(alpha * factor for factor in factors)])
    depth = int(rng.integers(1, 6))
    chances = np.minimum.accumulate(chances).tolist()
    parents, values = best_nodes(chances, depth, 14)
    for num_nodes in range(len(parents) + 1):
        tree = Tree(parents[:num_nodes])
        assert tree.depth <= depth
        found = tree.expected_len(chances)
        assert found == pytest.approx(1.0 + sum(values[:num_nodes]))
        assert found == pytest.approx(best_len(chances, num_nodes, depth))


def emitted(tiny: Callable[..., Experiment], policy: Any, **changes: Any) -> float:
    """Tokens per draft and step of a long run."""
    run = simulate(
        tiny(
            policy=policy,
            workload={
                "arrivals": {"kind": "burst"},
                "lengths": {"kind": "constant", "prompt": 8, "output": 500},
                "num_requests": 12,
            },
            **changes,
        ),
        check=True,
    )
    steps = run.replicas[0].steps
    return float(1.0 + steps["accepted_tokens"].sum() / steps["drafts"].sum())


def roomy(depth: int) -> dict[str, Any]:
    room = {"num_gpu_blocks": 9000, "max_num_batched_tokens": 4096}
    spec = {"method": "eagle3", "num_speculative_tokens": depth}
    return {"engine": {**tiny_config()["engine"], **room, "speculative_config": spec}}


def test_confidences_tell_where_a_tree_should_grow(tiny: Callable[..., Experiment]) -> None:
    # Of 12 nodes each: chains, the tree that is best on average, and one for every position.
    lens = {}
    for concentration in (0.25, 100.0):
        acceptance = {
            "kind": "bernoulli", "alpha": 0.6, "rank_factors": [0.5, 0.33, 0.25],
            "confidence_concentration": concentration,
        }  # fmt: skip
        given = {**roomy(6), "acceptance": acceptance}
        fixed = emitted(tiny, {"kind": "sequoia_tree", "num_nodes": 12}, **given)
        grown = emitted(tiny, {"kind": "eagle2_tree", "top_k": 4, "total_tokens": 12}, **given)
        lens[concentration] = fixed, grown
    assert lens[0.25][1] > 1.1 * lens[0.25][0]
    assert lens[100.0][1] == pytest.approx(lens[100.0][0], rel=0.05)


class Watching(DraftsTrees[dict[tuple[int, int], list[float]]]):
    """Asks for a wide tree, and notes what the drafter said of each candidate and what it was."""

    kind: Literal["watching"] = "watching"
    seen: ClassVar[list[tuple[float, bool]]] = []

    @property
    def num_candidates(self) -> int:
        return 3

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        return 12

    def start(self, server: ServerView) -> dict[tuple[int, int], list[float]]:
        return {}

    def draft_lens(self, batch: Any, memory: Any) -> Tree:
        rows = np.arange(batch.size)
        for first in range(4):  # after the last known token, and after each candidate for the next
            paths = np.full((batch.size, int(first > 0)), first)
            said = batch.candidates.after(rows, paths).tolist()
            memory.update(
                {(request, first): each for request, each in zip(batch.requests, said, strict=True)}
            )
        return Tree.of_widths((3, 3))

    def observe(self, outcome: Any, memory: Any) -> None:
        rows = zip(outcome.requests, outcome.draft_lens, outcome.paths, strict=True)
        for request, (first, second) in (
            (request, (*path, 0, 0)[:2]) for request, n, path in rows if n == 12
        ):
            self.seen.extend(
                (said, first == rank) for rank, said in enumerate(memory[request, 0], 1)
            )
            after = memory[request, first] if first else []
            self.seen.extend((said, second == rank) for rank, said in enumerate(after, 1))


def test_candidates_are_right_as_often_as_the_drafter_says(tiny: Callable[..., Experiment]) -> None:
    Watching.seen.clear()
    acceptance = {"kind": "beta", "a": 5, "b": 3, "rank_factors": [0.5, 0.33]}
    emitted(tiny, Watching(), acceptance=acceptance, **roomy(2))
    said, was = np.array(Watching.seen).T
    assert len(said) > 10_000
    for low in np.arange(0.0, 1.0, 0.1):
        inside = (said >= low) & (said < low + 0.1)
        half_width = 3.3 * (0.25 / max(inside.sum(), 1)) ** 0.5
        assert was[inside].mean() == pytest.approx(said[inside].mean(), abs=half_width)


@pytest.mark.parametrize("factors", [None, (0.5, 0.25), (0.0, 1.0)])
def test_one_candidate_more_is_no_less_often_right(factors: tuple[float, ...] | None) -> None:
    """Where a token is next to impossible, too: EAGLE-2 grew nodes whose parents it left out."""
    scores = np.array([[-40.0, -8.3, -3.0, 0.0, 3.0, 8.3, 40.0]])
    found = np.array(scores_by_rank(scores, factors, 4))
    assert not np.isnan(found).any()
    assert (found[1:] >= found[:-1]).all()


def test_a_budget_of_the_batch_goes_to_the_sure(tiny: Callable[..., Experiment]) -> None:
    policy = {"kind": "eagle2_tree", "top_k": 3, "total_tokens": 12, "batch_tokens": 30}
    acceptance = {"kind": "beta", "a": 1, "b": 1}
    run = simulate(tiny(policy=policy, acceptance=acceptance, **roomy(4)), check=True)
    steps = run.replicas[0].steps
    assert steps["draft_tokens"].max() == 30
    emitted(tiny, policy, acceptance=acceptance, **roomy(4))


class Sure:
    """A drafter that gives its first candidate 0.9 for even rows of a batch, 0.3 for the others."""

    def after(self, rows: Any, paths: Any) -> Any:
        first = np.where(rows % 2 == 0, 0.9, 0.3)[:, np.newaxis]
        return (first * [1.0, 0.1, 0.05]).astype(np.float32)


@pytest.mark.parametrize("token_time", [0.001, 0.05, 0.2, 2.0])
def test_as_many_nodes_are_verified_as_bring_most_tokens_per_second(token_time: float) -> None:
    def step_time(load: StepLoad, lens: Any) -> float:
        return 1.0 + token_time * load.batched_tokens

    policy, memory = started(
        "eagle2_tree:top_k=3,total_tokens=9,batch_tokens=goodput", 9, step_time, max_depth=3
    )
    trees = policy.draft_lens(batch(*range(4), candidates=Sure()), memory)
    nodes = sum(tree.num_nodes for tree in trees)
    paths = Tree.of_widths((3, 3, 3)).paths
    each = [
        sorted(np.prod([first * [1.0, 0.1, 0.05][r - 1] for r in path]) for path in paths)[-9:]
        for first in (0.9, 0.3)
    ]
    worth = sorted(2 * (each[0] + each[1]), reverse=True)
    rates = [(4 + sum(worth[:n])) / (1.0 + token_time * (4 + n)) for n in range(4 * 9 + 1)]
    assert rates[nodes] == pytest.approx(max(rates))
    assert trees[0].num_nodes >= trees[1].num_nodes


def test_goodput_makes_trees_small_under_load() -> None:
    def step_time(load: StepLoad, lens: Any) -> float:
        return 1.0 + 0.02 * load.batched_tokens + 0.05 * lens

    policy, memory = started("sequoia_tree", 64, step_time, max_depth=6)
    nodes = [policy.draft_lens(batch(*range(n)), memory).num_nodes for n in (1, 4, 16, 64, 256)]
    assert nodes == sorted(nodes, reverse=True)
    assert nodes[0] > 5 > nodes[-1]


def test_rates_of_ranks_are_learned(tiny: Callable[..., Experiment]) -> None:
    policy, memory = started("sequoia_tree:num_nodes=9,max_width=3,window=2000", 9, max_depth=3)
    tree = Tree.of_widths((3, 2))
    rng = np.random.default_rng(3)
    for _ in range(3000):
        path = []
        for width in (3, 2):
            rank = int(rng.choice(4, p=[0.2, 0.4, 0.3, 0.1]))  # 0 is none
            if not 0 < rank <= width:
                break
            path.append(rank)
        policy.observe(outcome([9], [len(path)], trees=[tree], paths=[tuple(path)]), memory)
    assert memory.hits / memory.trials == pytest.approx([0.4, 0.5, 1 / 3], abs=0.05)


class Trimming(DraftsTrees[ServerView]):
    """Asks for six nodes, and verifies the first three, of nobody whose request is odd."""

    kind: Literal["trimming"] = "trimming"

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        return 6

    def draft_lens(self, batch: Any, memory: ServerView) -> Tree:
        return Tree.of_widths((2, 2))

    def verify_lens(self, batch: Any, drafts: Any, memory: ServerView) -> Any:
        return np.minimum(drafts.draft_lens, 3)

    def drops(self, batch: Any, memory: ServerView) -> Any:
        return batch.requests % 2 == 1


@pytest.mark.parametrize("basis", ["pass", "heads"])
def test_trees_are_trimmed_and_left_out(
    basis: str, tiny: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    latency = {"kind": "linear", "alpha_ns": 0, "gamma_us": 1000, "delta_ms": 10}
    profile = constant_step(delta_ms=8, drafts={"eagle3": {"basis": basis, "latency": latency}})
    run = simulate(
        tiny(policy=Trimming(), profile=profile, acceptance="bernoulli:alpha=1"), check=True
    ).replicas[0]
    odd = run.requests["request"] % 2 == 1
    assert not run.requests["draft_tokens"][odd].any()
    steps = run.steps[run.steps["drafts"] > 0]
    # Of alpha 1 all three nodes that are left hold the first rank twice: two of them are accepted.
    assert (steps["draft_tokens"] == 3 * steps["drafts"]).all()
    assert (steps["accepted_tokens"] == 2 * steps["drafts"]).all()
