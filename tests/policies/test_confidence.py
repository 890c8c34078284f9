"""Policies that look at how sure the drafter was, and the confidences that they look at."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from driving import batch, started, sure_drafts
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from specsim.acceptance import ACCEPTANCE
from specsim.acceptance.bernoulli import Bernoulli
from specsim.core.draft_luck import CONFIDENCES, Confidences, DraftLuck, known_share
from specsim.core.request import Request
from specsim.core.rng import Luck, stream_id
from specsim.core.step import StepLoad
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run
from specsim.serve.live_drafting import LiveDrafting

SHAREGPT = "llama-3.1-8b/eagle/sharegpt"
Serve = Callable[..., Run]
Steps = Callable[..., list[Any]]


def alike(*tables: bytes, num: int) -> Confidences:
    """Return the same tables for so many requests."""
    levels = np.stack([np.frombuffer(table * num, dtype=np.uint8) for table in tables])
    return Confidences(levels, np.arange(num + 1) * len(tables[0]))


def of_each(confidences: Confidences) -> list[tuple[bytes, ...]]:
    """Return the tables of each request."""
    return [
        tuple(row[start:end].tobytes() for row in confidences.levels)
        for start, end in pairwise(confidences.starts.tolist())
    ]


@pytest.fixture
def sure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the confidences of all requests by output position, in fifths, accepted or not."""

    def make(*fifths: int) -> None:
        table = bytes(51 * each for each in fifths) + bytes(40)
        monkeypatch.setattr(
            DraftLuck,
            "confidence_tables",
            staticmethod(lambda requests, *rest: alike(*[table] * 2, num=len(requests))),
        )

    return make


def test_drafting_stops_after_the_first_token_that_is_not_sure_enough(
    serve: Serve, steps: Steps, sure: Callable[..., None]
) -> None:
    # Passes of 1/16 s. From position 1: 5/5, 5/5, 1/5, which is exactly the threshold: three
    # passes. From 5: 0, one pass, and nothing gained by verifying it. From 6: four are sure enough,
    # all that may be drafted.
    sure(5, 5, 5, 1, 5, 0, 5, 2, 2, 2, 2)
    run = serve("confidence:threshold=0.2", [(0.0, 4, 12)], [[0, 4, 0, 0, 0, 1, 4] + [0] * 5],
                speculative=("draft_model", 4))  # fmt: skip
    names = ("asked_draft_len", "draft_time", "draft_tokens", "output_tokens")
    assert steps(run, *names) == [
        (3, 0.1875, 0, 1),
        (1, 0.0625, 3, 4),
        (4, 0.25, 0, 1),
        (1, 0.0625, 4, 5),
        (1, 0.0625, 0, 1),
    ]


def test_what_is_verified_pays_and_the_step_is_shorter_by_the_rest(
    serve: Serve, steps: Steps, sure: Callable[..., None]
) -> None:
    # A step of n tokens takes (2 + n) / 8 s and has been preceded by three passes of 1/16 s:
    # 2 / 11/16, 3 / 13/16 and 3.2 / 15/16 tokens per second; two drafts are best.
    sure(5, 5, 5, 1)
    run = serve("confidence:threshold=0.2", [(0.0, 4, 4)], [[0, 4, 4, 4]],
                speculative=("draft_model", 4), costs={"gamma_us": 125_000})  # fmt: skip
    names = ("batched_tokens", "draft_tokens", "accepted_tokens", "target_time")
    assert steps(run, *names) == [(4, 0, 0, 0.75), (3, 2, 2, 0.625)]


def test_passes_are_charged_for_those_who_still_draft(
    serve: Serve, steps: Steps, sure: Callable[..., None]
) -> None:
    # Only a second pass of two requests differs from one of one: 1/16 s per token and pass.
    sure(5, 5, 0, 5, 5, 5, 5)
    costs = {"drafts": {"draft_model": {"basis": "pass", "latency": {
        "kind": "linear", "alpha_ns": 0, "gamma_us": 62_500, "delta_ms": 0}}}}  # fmt: skip
    run = serve("confidence", [(0.0, 1, 6), (0.25, 1, 6)], [[4] * 6] * 2,
                speculative=("draft_model", 4), costs=costs)  # fmt: skip
    # The first drafts two tokens, one of which is worth verifying, then four from 3 on; the second
    # drafts two.
    assert steps(run, "num_requests", "asked_draft_len", "draft_time")[0] == (1, 2, 2 / 16)
    requests, asked, time = steps(run, "num_requests", "asked_draft_len", "draft_time")[1]
    assert (requests, asked) == (2, 3)
    # The first pass reads the whole step: a token, a draft and the second's prompt.
    assert time == (3 + 2 + 1 + 1) / 16


def sure_rows(max_len: int = 4) -> st.SearchStrategy[list[list[float]]]:
    level = st.integers(0, 255).map(lambda n: n / 255)
    return st.lists(st.lists(level, min_size=0, max_size=max_len), min_size=1, max_size=4).filter(
        any
    )


@settings(max_examples=100)
@given(sure_rows(), st.floats(0.01, 2.0), st.integers(0, 2))
def test_confidence_verifies_the_length_of_highest_goodput(
    rows: list[list[float]], slope: float, num_chunks: int
) -> None:
    policy, memory = started(
        "confidence", 4, lambda load, lens: 1.0 + slope * load.batched_tokens + 0.25 * lens
    )
    num = len(rows)
    rows = rows + [[]] * num_chunks
    view = batch(*range(len(rows)), drafts=sum(map(len, rows)), chunks=tuple(range(num, 9)))
    longest = max(map(len, rows))

    def goodput(v: int) -> float:
        emitted = num + sum(float(np.prod(row[:j])) for row in rows
                            for j in range(1, min(v, len(row)) + 1))  # fmt: skip
        tokens = len(rows) + sum(min(v, len(row)) for row in rows)
        return emitted / (1.0 + slope * tokens + 0.25 * longest)

    chosen = policy.verify_lens(view, sure_drafts(*rows), memory)
    v = max(chosen)
    assert chosen == [min(v, len(row)) for row in rows]
    assert goodput(v) == pytest.approx(max(map(goodput, range(longest + 1))), rel=1e-5)


def slope(load: StepLoad, lens: Any) -> float:
    return 1.0 + 0.25 * load.batched_tokens


def test_adaptive_verification_sizes_by_the_last_draft_and_allots_by_this_one() -> None:
    policy, memory = started("adaptive_verification", 2, slope)

    def verified(requests: tuple[int, ...], rows: list[list[float]]) -> list[int]:
        drafts = sure_drafts(*rows)
        view = batch(*requests, drafts=int(drafts.draft_lens.sum()))
        return policy.verify_lens(view, drafts, memory)

    # New requests count as sure: 2 / 6, 3 / 7, 4 / 8, 5 / 9, 6 / 10: all four drafts.
    assert verified((0, 1), [[0.9, 0.9], [0.1, 0.1]]) == [2, 2]
    # Survivals then: 0.9, 0.81, 0.1, 0.01. 2.9 / 7 < 3.71 / 8 > 3.81 / 9: two drafts, for the
    # two surest of now.
    assert verified((0, 1), [[0.2, 0.2], [0.8, 0.7]]) == [0, 2]
    # A new request is sure, 1 and 1, request 0 was not, 0.2 and 0.04: two again.
    assert verified((0, 2), [[0.9, 0.5], [0.5, 0.9]]) == [1, 1]
    # Request 1 was sure last time, whatever it is now.
    assert verified((1,), [[0.0, 0.0]]) == [2]
    assert verified((1,), [[1.0, 1.0]]) == [0]


def test_adaptive_verification_counts_drafts_without_any_confidence() -> None:
    # Up to three tokens fit into a step of 1 s. Request 0 has no confidence at all.
    def step_time(load: StepLoad, lens: Any) -> float:
        return 1.0 if load.batched_tokens <= 3 else 10.0

    policy, memory = started("adaptive_verification", 2, step_time)
    drafts = sure_drafts([0.0, 0.0], [0.9, 0.9])
    policy.verify_lens(batch(0, 1, drafts=4), drafts, memory)
    assert policy.verify_lens(batch(0, 1, drafts=4), drafts, memory) == [0, 1]


def test_adaptive_verification_keeps_what_a_cut_draft_did_not_show() -> None:
    policy, memory = started("adaptive_verification", 2, slope)
    # The draft of request 0 is cut to one token by the budget; its second stays at 1.
    policy.verify_lens(batch(0, 1, drafts=3), sure_drafts([1.0], [1.0, 1.0]), memory)
    assert policy.verify_lens(batch(0, drafts=2), sure_drafts([1.0, 1.0]), memory) == [2]


@settings(max_examples=100)
@given(sure_rows(), st.floats(0.02, 2.0))
def test_adaptive_verification_allots_to_the_surest(rows: list[list[float]], gamma: float) -> None:
    policy, memory = started(
        "adaptive_verification", 4, lambda load, lens: 1.0 + gamma * load.batched_tokens
    )
    drafts = sure_drafts(*rows)
    view = batch(*range(len(rows)), drafts=int(drafts.draft_lens.sum()))
    policy.verify_lens(view, drafts, memory)
    chosen = policy.verify_lens(view, drafts, memory)  # stale and fresh are now the same
    gains = sorted((float(np.prod(np.float32(row[: j + 1]))) for row in rows
                    for j in range(len(row))), reverse=True)  # fmt: skip

    def goodput(budget: int) -> float:
        return (len(rows) + sum(gains[:budget])) / (1.0 + gamma * (len(rows) + budget))

    assert all(0 <= k <= len(row) for k, row in zip(chosen, rows, strict=True))
    emitted = sum(
        float(np.prod(np.float32(row[: j + 1])))
        for row, k in zip(rows, chosen, strict=True)
        for j in range(k)
    )
    rate = (len(rows) + emitted) / (1.0 + gamma * (len(rows) + sum(chosen)))
    assert rate == pytest.approx(max(map(goodput, range(len(gains) + 1))), rel=1e-5)


def test_adaptive_verification_in_the_engine_trims_one_step_late(
    serve: Serve, steps: Steps, sure: Callable[..., None]
) -> None:
    sure(0, 0, 0, 0, 5, 5, 5, 5)
    run = serve("adaptive_verification", [(0.0, 4, 8)], [[0, 0, 0, 0, 2, 2, 2, 2]],
                speculative=("eagle3", 2), costs={"gamma_us": 125_000})  # fmt: skip
    # Unsure drafts from 1, 2 and 3 are all verified (a new request is sure), then none; the sure
    # one from 4 is judged by that from 3.
    assert steps(run, "asked_draft_len", "draft_tokens")[:6] == [
        (2, 0),
        (2, 2),
        (2, 0),
        (2, 0),
        (2, 0),
        (2, 2),
    ]


def requests(num: int = 60, output: int = 200) -> list[Request]:
    return [Request(index=i, prompt_len=3, output_len=output + i) for i in range(num)]


def recorded(num: int, longest: int) -> list[Request]:
    """Requests whose records differ widely in how much of them is accepted."""
    rng = np.random.default_rng(8)
    made = []
    for request in requests(num):
        lens = rng.geometric(1 - rng.random(), request.output_len) - 1
        record = {"x": np.minimum(lens, longest).astype(np.uint8).tobytes()}
        made.append(
            Request(
                index=request.index,
                prompt_len=3,
                output_len=request.output_len,
                recorded_lens=record,
            )
        )
    return made


def tables(
    acceptance: Any, served: list[Request], longest: int, concentration: float = 1.0
) -> tuple[list[bytes], Confidences]:
    luck = Luck(3, stream_id("acceptance", "eagle3"))
    survival = acceptance.survival_lens(served, luck, longest)
    tokens = acceptance.token_lucks(luck, longest, survival)(served, survival)
    luck = Luck(3, stream_id("confidence", "eagle3"))
    share = known_share(concentration, tokens.state_share)
    return survival, DraftLuck.confidence_tables(
        served, tokens.own, tokens.scores, luck, share, longest
    )


MODELS: dict[str, dict[str, Any]] = {
    "bernoulli": {"kind": "bernoulli", "alpha": 0.5},
    "beta": {"kind": "beta", "a": 2.0, "b": 2.0},
    "beta_position": {"kind": "beta_position", "a": 6.0, "b": 2.0, "factors": [1.0, 0.8]},
    "per_position": {"kind": "per_position", "conditional_rates": [0.8, 0.4]},
    "markov": {
        "kind": "markov",
        "regimes": [{"weight": 0.6, "alpha": 0.3}, {"weight": 0.4, "alpha": 0.7}],
        "regime_len": 12.0,
    },
    "preset": {"kind": "preset", "name": SHAREGPT},
    "ngram": {"kind": "preset", "name": "llama-3.1-8b/ngram/instructcoder"},
    "shift": {
        "kind": "shift",
        "at_request": 200,
        "before": {"kind": "bernoulli", "alpha": 0.9},
        "after": {"kind": "preset", "name": SHAREGPT},
    },
    "recorded": {"kind": "recorded", "proposer": "x"},
}


@pytest.mark.parametrize("concentration", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("name", MODELS)
def test_a_token_of_confidence_c_is_accepted_with_probability_c_whatever_else_is_known(
    name: str, concentration: float
) -> None:
    longest, model = 4, ACCEPTANCE.parse(MODELS[name])
    served = recorded(400, longest) if name == "recorded" else requests(400)
    survival, confidences = tables(model, served, longest, concentration)
    luck = Luck(3, stream_id("acceptance", "eagle3"))
    tokens = model.token_lucks(luck, longest, survival)(served, survival)
    fates = np.frombuffer(b"".join(survival), dtype=np.uint8)
    positions = np.concatenate([np.arange(len(table)) for table in survival])
    begins = np.repeat(confidences.starts[:-1], [len(table) for table in survival]) + positions
    is_right = np.roll(fates, 1) > 0  # a draft begins where another ended, mostly at its rejection
    for place in range(longest):
        reached, at = fates >= place, begins + place
        own, scores = tokens.at(place)
        scores = np.broadcast_to(scores, own.shape)
        assert np.array_equal((own < scores)[at[reached]], fates[reached] > place)
        stated = CONFIDENCES[confidences.levels[min(2 * place, len(confidences.levels) - 2)]]
        is_hard = (scores < np.median(scores))[at]
        for known in (is_right, ~is_right, is_hard, ~is_hard):
            here = reached & known & (positions > 0)
            close(stated[at[here]].astype(float), fates[here] > place)


def close(stated: np.ndarray, is_accepted: np.ndarray) -> None:
    """Check that in each tenth of confidence as many are accepted as was stated."""
    places = np.minimum((stated * 10).astype(int), 9)
    for place in np.unique(places):
        here = places == place
        expected, seen = stated[here].mean(), is_accepted[here].mean()
        error = norm.ppf(0.999995) * np.sqrt(max(expected * (1 - expected), 1e-3) / here.sum())
        assert abs(seen - expected) < 0.01 + error


@pytest.mark.parametrize("concentration", [0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("name", ["bernoulli", "markov", "preset"])
def test_confidences_explain_the_share_that_the_concentration_says(
    name: str, concentration: float
) -> None:
    model = ACCEPTANCE.parse(MODELS[name])
    survival, confidences = tables(model, requests(400), 1, concentration)
    accepted = np.frombuffer(b"".join(survival), dtype=np.uint8) > 0
    starts = confidences.starts.tolist()
    rows = [confidences.levels[0, a : b - 1] for a, b in pairwise(starts)]
    stated = CONFIDENCES[np.concatenate(rows)]
    explained = np.var(stated) / np.var(accepted)
    expected = max(1 / (1 + concentration), model.state_share)
    assert explained == pytest.approx(expected, abs=0.02 if name != "preset" else 0.05)


def test_confidences_are_the_same_however_requests_are_chunked() -> None:
    served, model = requests(20), ACCEPTANCE.parse({"kind": "preset", "name": SHAREGPT})
    whole = tables(model, served, 4)
    for cut in (1, 7, 19):
        parts = [tables(model, part, 4) for part in (served[:cut], served[cut:])]
        assert parts[0][0] + parts[1][0] == whole[0]
        joined = Confidences.joined([part for _, part in parts])
        for column, expected in zip(joined, whole[1], strict=True):
            assert np.array_equal(column, expected)


def test_confidences_do_not_depend_on_the_longest_draft() -> None:
    served = requests(10)
    short, long = (tables(Bernoulli(alpha=0.6), served, longest) for longest in (2, 8))
    assert len(of_each(short[1])) == len(served)
    for few, many in zip(of_each(short[1]), of_each(long[1]), strict=True):
        for a, b in zip(few, many, strict=True):
            assert b.startswith(a)
            assert len(b) - len(a) == 6


def test_confidences_do_not_depend_on_the_policy(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    make = DraftLuck.confidence_tables

    def spy(*args: Any) -> Any:
        made.append(make(*args))
        return made[-1]

    monkeypatch.setattr(DraftLuck, "confidence_tables", staticmethod(spy))
    lens = np.random.default_rng(5).integers(0, 3, (3, 30)).tolist()
    for policy in ("confidence", "confidence:threshold=0.9", "adaptive_verification"):
        serve(policy, [(0.0, 3, 30)] * 3, lens)
    assert of_each(made[0]) == of_each(made[1]) == of_each(made[2])
    assert len(set(of_each(made[0]))) == 3  # requests differ


def test_requests_that_come_one_by_one_meet_the_same_confidences(
    tiny: Callable[..., Experiment],
) -> None:
    experiment = tiny(policy="joint", acceptance={"kind": "preset", "name": SHAREGPT})
    deployment, served = Deployment.of(experiment), requests(5, 30)
    whole, live = Drafting(experiment, deployment, served), LiveDrafting(experiment, deployment, 8)
    taken = [live.take(request).index for request in served]
    positions, lens = np.arange(5) * 6, np.full(5, deployment.max_draft_len)
    sources = [drafting.start(0).source for drafting in (whole, live)]
    first, second = (
        source.confidences(np.array(indices), positions, lens)
        for source, indices in zip(sources, (range(5), taken), strict=True)
        if source is not None
    )
    assert np.array_equal(first, second)
    assert len(np.unique(first)) > 5


def test_confidences_beyond_a_draft_are_zero() -> None:
    levels = (bytes([level] * 9) for level in (51, 153, 102, 204))
    luck = DraftLuck(confidences=alike(*levels, num=2))

    def confidences(*columns: list[int]) -> np.ndarray:
        return luck.confidences(*(np.array(column, dtype=np.int64) for column in columns))

    rows = confidences([0, 0, 0], [0, 2, 8], [4, 2, 4], [1, 4, 0])
    expected = [[0.2, 0.4, 0.8, 0.8], [0.2, 0.4, 0, 0], [0.2, 0, 0, 0]]
    assert rows == pytest.approx(np.array(expected), rel=1e-6)
    assert confidences([], [], [], []).shape == (0, 0)


def test_what_follows_a_rejected_token_tells_nothing_of_it() -> None:
    served = requests(200)
    survival, confidences = tables(Bernoulli(alpha=0.6), served, 2)
    luck = DraftLuck(confidences=confidences)
    first, second = [], []
    for request, table in zip(served, survival, strict=True):
        places = np.array([p for p, fate in enumerate(table) if fate == 0])
        ones = np.ones_like(places)
        rows = luck.confidences(request.index * ones, places, 2 * ones, 0 * ones)
        first.append(rows[:, 0])
        second.append(rows[:, 1])
    # Rejected tokens of a calibrated drafter average less than alpha; those after them average it.
    assert np.concatenate(first).mean() < 0.4
    assert np.concatenate(second).mean() == pytest.approx(0.6, abs=0.03)
