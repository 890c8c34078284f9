"""TurboSpec: what is proposed, what is verified, and whose draft prefill is left out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from by_hand import step_of
from driving import batch, drafts_of, outcome, started
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.core.step import StepLoad
from specsim.engine.speculation import Speculation
from specsim.policies import POLICIES, Policy
from specsim.proposers import PROPOSERS
from specsim.run.draft_sources import TableDrafts
from specsim.run.simulate import Run

Serve = Callable[..., Run]
Steps = Callable[..., list[Any]]

TWO_ABREAST: dict[str, Any] = {
    "delta_ms": 250,
    "gamma_us": 250_000,
    "drafts": {"draft_model": {"basis": "pass", "latency": {
        "kind": "linear", "alpha_ns": 0, "gamma_us": 1, "delta_ms": 0}}},
}  # fmt: skip
"""With gains of 0.7 per draft, one draft pays for one or two requests, but not for three."""


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_models_draft_is_verified_whole(
    method: str, is_async: bool, serve: Serve, steps: Steps
) -> None:
    table = [(5 * p) % 4 for p in range(60)]
    costs = {"delta_ms": 250, "gamma_us": 31250}
    run = serve("turbospec", [(0.0, 4, 60)], [table], speculative=(method, 4), costs=costs,
                async_scheduling=is_async)  # fmt: skip
    asked, verified = steps(run, "asked_draft_len"), steps(run, "draft_tokens")
    assert verified[1:] == asked[:-1]
    assert len(set(asked)) > 1


def test_lookup_verifies_by_goodput_what_was_proposed_at_a_fixed_length(
    serve: Serve, steps: Steps
) -> None:
    # A step of n tokens takes (2 + n) / 8 s, the prior of 0.5 counts for five trials.
    # alpha 1/2:   1 / 3/8 < 1.5 / 4/8 > 1.75 / 5/8, so one of four drafts is verified;
    # alpha 3.5/6: still one, 1.583 / 4/8 > 1.924 / 5/8;
    # alpha 4.5/7: two, 2.056 / 5/8 > 1.643 / 4/8, and > 2.322 / 6/8.
    run = serve(
        {"kind": "turbospec", "prior": 0.5},
        [(0.0, 2, 8)],
        [[4] * 8],
        speculative=("ngram", 4),
        costs={"gamma_us": 125_000},
    )
    names = ("asked_draft_len", "batched_tokens", "draft_tokens", "output_tokens", "target_time")
    assert steps(run, *names) == [
        (4, 2, 0, 1, 0.5),
        (4, 2, 1, 2, 0.5),
        (4, 2, 1, 2, 0.5),
        (4, 3, 2, 3, 0.625),
    ]
    assert steps(run, "ended_at") == [0.5, 1.0, 1.5, 2.125]


def test_lookup_shrinks_the_very_step_under_prefill_first(serve: Serve, steps: Steps) -> None:
    run = serve({"kind": "turbospec", "prior": 0.5}, [(0.0, 2, 3)], [[4] * 3],
                speculative=("ngram", 4), costs={"gamma_us": 125_000},
                scheduler="prefill_first")  # fmt: skip
    assert steps(run, "batched_tokens", "draft_tokens", "target_time") == [(2, 0, 0.5), (2, 1, 0.5)]


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.floats(0.05, 0.95),
    st.floats(0.01, 1.0),
    st.integers(0, 2),
)
def test_verification_length_maximises_goodput(
    found: list[int], alpha: float, slope: float, num_chunks: int
) -> None:
    # Drafting is paid by the time it is decided what to verify, also for verifying nothing.
    def step_time(load: StepLoad, longest: int) -> float:
        return 1.0 + slope * load.batched_tokens + 0.5 * (longest > 0)

    config = {"kind": "turbospec", "prior": alpha}
    policy, memory = started(config, 5, step_time, drafts_by_model=False)
    indices = range(len(found) + num_chunks)
    chunks = tuple(indices[len(found) :])
    found = found + [0] * num_chunks
    seen = batch(*indices, drafts=sum(found), chunks=chunks)

    def goodput(k: int) -> float:
        lens = [min(k, each) for each in found]
        emitted = len(found) - num_chunks + sum(alpha**j for n in lens for j in range(1, n + 1))
        return emitted / (1.5 + slope * (len(found) + sum(lens)))

    drafts = drafts_of(found, np.zeros((len(found), 0), dtype=np.float32))
    chosen = policy.verify_lens(seen, drafts, memory)
    v = max(chosen)
    assert chosen == [min(v, each) for each in found]
    assert goodput(v) == pytest.approx(max(map(goodput, range(6))))


# A token takes 10 s to verify, so speculation never pays; a pass of the drafter takes 1 s and
# 1/16 s per token.
PASS = {"kind": "linear", "alpha_ns": 0, "gamma_us": 62_500, "delta_ms": 1000}
DEAR = {"gamma_us": 10_000_000, "drafts": {"draft_model": {"basis": "pass", "latency": PASS}}}
ROWS = [(0.0, 8, 6), (1.0, 8, 6), (180.0, 8, 6)]
TABLES = [[0] * 6] * 3


def test_prefills_in_larger_batches_leave_out_the_drafters(serve: Serve, steps: Steps) -> None:
    run = serve("turbospec", ROWS, TABLES, speculative=("draft_model", 2), costs=DEAR)
    names = ("num_requests", "prefill_tokens", "asked_draft_len", "draft_time")
    assert steps(run, *names)[:5] == [
        (1, 8, 0, 1.5),  # eight tokens of its prompt; k = 0, so the threshold is one request
        (2, 8, 0, 1.0625),  # the second prompt is left out: one token of the first request
        (2, 0, 0, 1.0625),
        (3, 8, 0, 1.0625),  # the third as well
        (3, 0, 0, 1.0625),
    ]
    # Without the rule, every prompt and every token goes through the drafter.
    run = serve("goodput", ROWS, TABLES, speculative=("draft_model", 2), costs=DEAR)
    assert steps(run, *names)[:2] == [(1, 8, 0, 1.5), (2, 8, 0, 1.5625)]


def test_lookup_has_no_prefill_to_leave_out(serve: Serve, steps: Steps) -> None:
    costs = {"gamma_us": 10_000_000, "drafts": {"ngram": {"target_share": 0.5}}}
    run = serve("turbospec", ROWS, [[2] * 6] * 3, speculative=("ngram", 2), costs=costs)
    shares = [draft / target for draft, target in steps(run, "draft_time", "target_time")]
    assert shares == pytest.approx([0.5] * len(shares))


def test_whoever_was_left_out_is_never_drafted_for(serve: Serve, steps: Steps) -> None:
    rows = [*[(0.0, 2, 3)] * 3, (0.5, 2, 7)]
    tables = [[1] * 3] * 3 + [[1] * 7]

    def drafted(policy: str) -> list[tuple[float, ...]]:
        run = serve(policy, rows, tables, speculative=("draft_model", 1), costs=TWO_ABREAST)
        return steps(run, "num_requests", "draft_tokens")

    # The fourth arrives in a batch of four, above the threshold of three, and stays alone.
    assert drafted("turbospec") == [(3, 0), (4, 0), (4, 0), *[(1, 0)] * 5]
    assert drafted("goodput") == [(3, 0), (4, 0), (4, 0), (1, 0), (1, 1), (1, 1)]


def test_a_drafter_that_serves_nobody_takes_no_time(serve: Serve, steps: Steps) -> None:
    rows = [(0.0, 8, 3), (1.0, 8, 6)]
    run = serve("turbospec", rows, TABLES[:2], speculative=("draft_model", 2),
                costs=DEAR)  # fmt: skip
    alone = [row[1] for row in steps(run, "num_requests", "draft_time")[3:]]
    assert alone == [0.0] * len(alone)
    assert len(alone) == 4


def skips(policy: Any, memory: Any, num: int) -> bool:
    """Return whether the drafter leaves out new requests in a batch of so many."""
    new = batch(*range(num), is_admitted=np.ones(num, dtype=bool))
    return policy.drops(new, memory) is not None


def test_the_threshold_is_forgotten_after_so_many_skips() -> None:
    def step_time(load: StepLoad, lens: Any) -> float:
        return 1.0 + 9.0 * load.batched_tokens

    policy, memory = started("turbospec:reset_steps=3", 4, step_time)
    assert not skips(policy, memory, 9)  # nothing is known yet
    assert policy.draft_lens(batch(0, 1), memory) == [0, 0]
    assert not skips(policy, memory, 2)  # not above two
    assert [skips(policy, memory, 3) for _ in range(5)] == [
        *[True] * 3,  # the third still skips, and resets
        *[False] * 2,
    ]
    assert policy.draft_lens(batch(0, 1, 2), memory) == [0, 0, 0]
    assert not skips(policy, memory, 3)
    assert skips(policy, memory, 4)


def test_a_batch_in_mid_prefill_sets_no_threshold() -> None:
    policy, memory = started("turbospec", 4)
    assert policy.draft_lens(batch(0, chunks=(0,)), memory) == [0]
    assert not skips(policy, memory, 2)


def test_the_drafter_reads_no_drafts_that_come_on_top() -> None:
    # vLLM V0 drafts and verifies within a step: its drafter reads the last token of each request
    # that it serves, not what it is about to draft.
    rows = [
        {"start": 5 + index, "scheduled_len": 1 + drafts, "draft_len": drafts,
         "verified_len": drafts, "asked_len": drafts, "is_undrafted": index == 1}
        for index, drafts in enumerate((3, 0, 3))
    ]  # fmt: skip
    _, step = step_of(*rows, drafts_on_top=1)
    policy, memory = started("turbospec", 3)
    proposer = PROPOSERS.parse({"method": "draft_model", "num_speculative_tokens": 3})
    nothing = np.zeros(1, dtype=np.uint8)
    speculation = Speculation(
        policy, memory, 3, TableDrafts(nothing, np.zeros(4, dtype=np.int64)), proposer=proposer
    )
    [(drafter, load, lens)] = speculation.drafter_loads(step)
    assert (drafter, load, lens.tolist()) == (0, StepLoad(5 + 7, 2, 2), [3, 3])


def test_alpha_is_what_was_accepted_of_what_was_verified() -> None:
    policy, memory = started("turbospec:prior=0.5,window=2", 4)
    policy.observe(outcome([2, 1], [1, 1]), memory)
    policy.draft_lens(batch(0, 1), memory)
    assert policy.alpha_estimate(memory) == (2 + 2.5) / (3 + 5)
    for _ in range(5):
        policy.observe(outcome([0], [0]), memory)  # tries nothing, so nothing is forgotten
    policy.observe(outcome([1], [0]), memory)
    policy.observe(outcome([2], [2]), memory)
    policy.draft_lens(batch(0, 1), memory)
    assert policy.alpha_estimate(memory) == (2 + 2.5) / (3 + 5)  # of the last two that tried


def test_who_gives_the_drafter_up_disables_prefills() -> None:
    names = [name for name in POLICIES.members if POLICIES.members[name].model_fields]
    examples = {name: POLICIES.members[name].examples[0] for name in names}
    disabling = {
        name
        for name, fields in examples.items()
        if POLICIES.parse({"kind": name, **fields}).overrides(Policy.drops)
    }
    assert disabling == {
        "acceptance_gate", "acceptance_rate_gate", "adaptive_k", "goodput", "goodput_exact",
        "joint", "slo_aware", "turbospec",
    }  # fmt: skip


def test_prefills_are_disabled_also_where_they_have_steps_of_their_own(
    serve: Serve, steps: Steps
) -> None:
    # k = 0 pays best for three or more. Whoever then comes is prefilled alone: a batch of one.
    rows = [*[(0.0, 2, 9)] * 3, (4.5, 2, 20)]
    run = serve("turbospec", rows, [[1] * 20] * 4, speculative=("draft_model", 1),
                costs=TWO_ABREAST, scheduler="prefill_first")  # fmt: skip
    drafted = steps(run, "num_requests", "prefill_tokens", "draft_tokens")
    alone = drafted[[row[1] for row in drafted].index(2) + 1 :]
    assert {row[0] for row in alone} == {4, 1}
    assert {row[2] for row in alone} == {0}


def test_what_nobody_drafted_for_is_read_once_by_the_drafter_of_who_finds_it(
    serve: Serve, steps: Steps
) -> None:
    # The second prompt is left out; the third and the fourth find its two blocks of 16 tokens.
    tokens = [([100 + i] * 8, [i] * 6) if i == 0 else ([7] * 40, [i] * 6) for i in range(4)]
    rows = [(at, len(prompt), 6) for at, (prompt, _) in zip((0, 1, 3e3, 6e3), tokens, strict=True)]
    run = serve("turbospec", rows, [[0] * 6] * 4, speculative=("draft_model", 2), costs=DEAR,
                enable_prefix_caching=True, block_size=16, tokens=tokens)  # fmt: skip
    names = ("num_requests", "prefill_tokens", "draft_time")
    prompts = [row for row in steps(run, *names) if row[1]]
    assert prompts == [
        (1, 8, 1.5),
        (2, 40, 1.0625),  # one token of the first request
        (1, 8, 1 + 40 / 16),  # all of the prompt, though the target reads eight tokens of it
        (1, 8, 1.5),  # by now its own entries are there
    ]
