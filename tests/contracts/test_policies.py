"""What every policy and proposer promises."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from by_hand import step_of
from conftest import server_view, tiny_config
from driving import Driven, batch, outcome, plain
from numpy.typing import NDArray

from specsim.acceptance import Oracle
from specsim.core.compiled import as_records
from specsim.core.errors import ConfigError, TraceError
from specsim.core.step import BatchView, DraftView, StepLoad, StepOutcome
from specsim.core.trees import Tree
from specsim.engine.asking import trim
from specsim.engine.speculation import Speculation
from specsim.policies import POLICIES, DraftsTrees, ModelView, OraclePolicy, Policy, check_proposer
from specsim.proposers import PROPOSERS
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

NAMED = [
    pytest.param({"kind": name, **example}, id=f"{name}-{number}")
    for name, member in POLICIES.members.items()
    for number, example in enumerate(member.examples)
]


@pytest.mark.parametrize("policy", NAMED)
@pytest.mark.parametrize("method", ["eagle3", "ngram", "medusa"])
def test_runs_keep_every_invariant_and_leave_nothing_behind(
    policy: dict[str, Any], method: str, tiny: Callable[..., Experiment]
) -> None:
    spec = {"method": method, "num_speculative_tokens": 4}
    engine = {**tiny_config()["engine"], "speculative_config": spec}
    parsed = POLICIES.parse(policy)
    try:
        check_proposer(parsed, PROPOSERS.parse(spec))
    except ValueError as refusal:
        with pytest.raises(ConfigError, match=re.escape(str(refusal)[:40])):
            tiny(policy=policy, engine=engine)
        return
    profile = "a100/llama-7b" if method == "medusa" else "h100/llama-3.1-8b"
    experiment = tiny(policy=policy, engine=engine, profile=profile)
    if parsed.uses_tokens:
        with pytest.raises(TraceError, match="needs token ids"):
            simulate(experiment)
        return
    # Where the second is the same, its invariants hold as well; to check them takes ten runs' time.
    first, second = (Summary(simulate(experiment, check=check)).data for check in (True, False))
    assert first == second


@pytest.mark.parametrize("policy", NAMED)
def test_draft_lens_stay_within_the_limit(policy: dict[str, Any]) -> None:
    parsed = POLICIES.parse(policy)
    limit = parsed.max_draft_len(4)
    assert isinstance(parsed, DraftsTrees) or 0 <= limit <= 4
    oracle = Oracle.of([b"\1\4\2\0" * 10] * 8) if isinstance(parsed, OraclePolicy) else None
    model = ModelView(lambda indices, at: (np.full((len(indices), limit), 0.7),) * 2)
    server = server_view(
        limit,
        lambda load, lens: 1e-3 * load.batched_tokens,
        oracle=oracle,
        model=model,
        max_depth=4,
        pass_times=(1e-3,),
        verify_time=1e-2,
    )
    memory = parsed.start(server)
    for size in (1, 3, 8):
        num_candidates = parsed.num_candidates if isinstance(parsed, DraftsTrees) else 0
        lens = plain(parsed.draft_lens(view(size, num_candidates), memory))
        if isinstance(parsed, DraftsTrees):
            trees = [lens] if isinstance(lens, Tree) else lens
            assert max(tree.num_nodes for tree in trees) <= limit
            assert max(tree.depth for tree in trees) <= 4
            assert len(trees) in {1, size}
            continue
        for length in [lens] if isinstance(lens, int) else lens:
            assert 0 <= length <= limit
        assert isinstance(lens, int) or len(lens) == size


class Unsure:
    """A drafter to which all candidates seem alike."""

    def __init__(self, num_candidates: int) -> None:
        self.num_candidates = num_candidates

    def after(self, rows: NDArray[np.int64], paths: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.full((len(rows), self.num_candidates), 0.1, dtype=np.float32)


def view(size: int, num_candidates: int = 0) -> BatchView:
    asked = Unsure(num_candidates) if num_candidates else None
    return batch(*((index, 5, 1) for index in range(size)), candidates=asked)


@pytest.mark.parametrize(
    ("size", "k"), [(1, 5), (3, 5), (4, 3), (6, 3), (7, 3), (8, 3), (9, 0), (16, 0), (99, 0)]
)
def test_schedule_carries_k_through_gaps_and_beyond_the_end(size: int, k: int) -> None:
    policy = POLICIES.parse("schedule:ranges=[[4, 6, 3], [1, 3, 7], [9, 16, 0]]")
    memory = policy.start(server_view(5, lambda load, lens: 1.0))  # 7 is capped at 5
    assert policy.draft_lens(view(size), memory) == k


def test_oracle_drafts_what_survives_while_it_pays() -> None:
    policy = Driven(POLICIES.parse("oracle"))
    oracle = Oracle.of([bytes([0, fate, 0, 0, 0, 0]) for fate in (3, 1, 0)])

    def drafting(cost_of_a_pass: float) -> list[int]:
        def step_time(load: StepLoad, lens: Any) -> float:
            return 1.0 + cost_of_a_pass * max(lens)

        return policy.draft_lens(view(3), policy.start(server_view(8, step_time, oracle=oracle)))

    assert drafting(0.0) == [3, 1, 0]
    assert drafting(0.4) == [1, 1, 0]  # 5 tokens in 1.4 beat 7 in 2.2 and 3 in 1.0
    assert drafting(9.0) == [0, 0, 0]


def test_views_show_what_a_server_could_see_and_nothing_else() -> None:
    visible = {name for name in dir(view(1)) if not name.startswith("_")}
    assert visible == {
        *("in_prefill", "prompt_lens", "known_lens", "output_lens", "requests", "size"),
        "draft_lens",
        *(
            "load",
            "candidates",
            "decodes",
            "decode_load",
            "now",
            "free_slots",
            "drafts",
            "is_admitted",
            "is_undrafted",
            "num_running",
        ),
    }


@pytest.mark.parametrize(
    ("method", "lookahead", "slots", "drops"),
    [
        ("dflash", 5, 4, True),
        ("dspark", 4, 3, True),
        ("draft_model:parallel_drafting=true", 4, 4, False),
        ("eagle3:parallel_drafting=true", 4, 3, True),
        ("draft_model", 4, 1, False),
        ("eagle", 4, 0, True),
        ("eagle3", 4, 0, True),
        ("medusa", 0, 0, False),
        ("mtp", 4, 0, True),
        ("ngram", 0, 0, False),
        ("suffix", 0, 0, False),
    ],
)
def test_proposers_take_what_they_take_in_vllm(
    method: str, lookahead: int, slots: int, drops: bool
) -> None:
    name, _, field = method.partition(":")
    fields = {"parallel_drafting": True} if field else {}
    proposer = PROPOSERS.parse({"method": name, "num_speculative_tokens": 4, **fields})
    assert (proposer.lookahead_len(4), proposer.draft_slots(4), proposer.drops_last_hit) == (
        lookahead,
        slots,
        drops,
    )


class VerifiesOne(Policy):
    """Drops a draft of every sequence that has more than one, and all others."""

    kind: str = "verifies_one"

    def draft_lens(self, batch: BatchView, memory: Any) -> int:
        return 0

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: Any) -> list[int]:
        return [int(length > 1) for length in drafts.draft_lens.tolist()]


def test_trimmed_drafts_read_no_context_under_batch_expansion() -> None:
    rows = [{"draft_len": 3, "read_anew": 100}, {"draft_len": 1, "read_anew": 200}]
    load = {"own_context_tokens": 300, "context_tokens": 800, "batched_tokens": 6}
    table, step = step_of(*rows, **load)
    assert step.own_load == StepLoad(300, 6, 2)
    asking = Speculation(VerifiesOne(), None, 3).asking(lambda: step)
    assert trim(as_records(table._replace(asking=asking)))
    assert step["verified_len"].tolist() == [1, 0]
    assert step.load == StepLoad(300 + 100, 3, 2)


def of_one(draft_len: int, accepted_len: int, tokens: list[int]) -> StepOutcome:
    return outcome([draft_len], [accepted_len], token_ids=[tokens])


def test_cached_step_controller_counts_accepted_tokens_only() -> None:
    policy = POLICIES.parse("cached_step_controller")
    server = server_view(4, lambda load, lens: 1.0, prompt_token_ids=lambda request: [1, 2])
    memory = policy.start(server)

    def after(*step: Any) -> int:
        policy.observe(of_one(*step), memory)
        [length] = policy.draft_lens(view(1), memory)
        return length

    assert after(4, 0, [1]) == 3  # the bonus token is in the prompt, but was not speculated
    assert after(3, 1, [7, 2]) == 2  # accepted, and never seen before
    assert after(2, 1, [7, 8]) == 3  # seen
    assert after(3, 3, [9, 10, 11, 2]) == 3  # none seen, all accepted
    assert after(3, 3, [9, 10, 11, 2]) == 4  # both, and no further than the limit
    for left in (3, 2, 1, 0, 0):
        assert after(left + 1, 0, [12]) == left
    assert after(0, 0, [13]) == 0
    assert after(0, 0, [13]) == 1


@pytest.mark.parametrize("k_max", [4, 8])
def test_q_learning_settles_on_the_length_of_the_highest_share(k_max: int) -> None:
    policy = POLICIES.parse("q_learning:exploration=0")
    rng = np.random.default_rng(1)
    memory = policy.start(server_view(k_max, lambda load, lens: 1.0, rng=rng))
    chosen = []
    for _ in range(12_000):
        [length] = policy.draft_lens(view(1), memory)
        accepted_len = int((rng.random(length) < 0.7).cumprod().sum())
        policy.observe(of_one(length, accepted_len, []), memory)
        chosen.append(length)
    assert np.mean(chosen[:1000]) > k_max / 2.5  # warm-up
    assert np.mean(chosen[10_000:]) < 1.2
