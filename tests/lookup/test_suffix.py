"""The suffix tree drafts what its plain reference drafts, whatever befalls it."""

from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import Play, plays
from suffix_reference import SuffixReference

from specsim.core.errors import CapacityError
from specsim.core.request import Request, Text
from specsim.lookup import Draft, Lookup, suffix
from specsim.lookup.suffix import SuffixLookup
from specsim.proposers import PROPOSERS
from specsim.tokens.draft_eval import Drafter, evaluate_drafts

ALWAYS = {"max_depth": 8, "max_spec_factor": 4.0, "min_token_prob": 0.0, "max_cached_requests": -1}
LOOKUPS = pytest.mark.parametrize("lookup", [SuffixLookup, SuffixReference])


def text(token_ids: list[int], prompt_len: int) -> Text:
    return Text(np.array(token_ids, dtype=np.int32), prompt_len)


def drafts(lookup: Lookup, play: Play) -> Iterator[Draft]:
    """Yield every draft; the requests end when all of their text is known."""
    turns, waiting = cycle(play.turns), list(enumerate(play.texts))
    active: list[tuple[int, int, int]] = []
    while waiting or active:
        while waiting and len(active) < play.concurrency:
            request, (token_ids, prompt_len) = waiting.pop(0)
            lookup.start(request, text(token_ids, prompt_len))
            active.append((request, prompt_len, len(token_ids)))
        which, max_len, revealed = next(turns)
        request, known_len, end_len = active.pop(which % len(active))
        yield lookup.draft(request, max_len)
        if known_len == end_len:
            lookup.end(request)
            continue
        known_len = min(end_len, known_len + revealed)
        lookup.reveal(request, known_len)
        active.append((request, known_len, end_len))


@given(plays())
@settings(max_examples=150)
def test_drafts_what_the_reference_drafts(play: Play) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "FIRST_TOKENS", 2)  # so that text and nodes grow and move
        lookup = SuffixLookup(**play.options)
    assert list(drafts(lookup, play)) == list(drafts(SuffixReference(**play.options), play))


@given(plays())
@settings(max_examples=60)
def test_text_moves_when_places_run_out(play: Play) -> None:
    """As many tokens as can be alive at once are room enough, however many pass through."""
    play.options |= {"max_cached_requests": 2, "use_global_tree": True}
    play.texts *= 3
    longest = max(len(ids) - prompt_len for ids, prompt_len in play.texts)
    most = max(len(ids) for ids, _ in play.texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "FIRST_TOKENS", 2)
        patch.setattr(suffix, "MAX_TOKENS", max(6, 2 * (longest + 1), most + 1))
        got = list(drafts(SuffixLookup(**play.options), play))
    assert got == list(drafts(SuffixReference(**play.options), play))


def test_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "FIRST_TOKENS", 2)
    monkeypatch.setattr(suffix, "MAX_TOKENS", 40)
    lookup = SuffixLookup(**ALWAYS)
    lookup.start(0, text([1] * 30, 10))
    with pytest.raises(CapacityError, match="max_cached_requests"):
        lookup.start(1, text([1] * 30, 10))


@LOOKUPS
def test_drafts_what_followed(lookup: type[Lookup]) -> None:
    """1 2 occurred twice, the last time with nothing after it yet: a half."""
    own = lookup(**ALWAYS)
    own.start(0, text([1, 2, 3, 4, 1, 2], 6))
    assert own.draft(0, 3) == Draft([3, 4, 1], None, [0.5, 0.5, 0.5], 1.5, 2)


@LOOKUPS
def test_the_latest_of_equals_goes_first_once_it_draws_level(lookup: type[Lookup]) -> None:
    """After 7 came 1, 2, 2 and 1: at the second 2 it overtook, at the second 1 it was overtaken."""
    own = lookup(**{**ALWAYS, "max_spec_factor": 1.0, "max_depth": 2})
    own.start(0, text([7, 1, 7, 2, 7, 2, 7], 7))
    assert own.draft(0, 1).token_ids == [2]
    own.start(1, text([7, 1, 7, 2, 7, 2, 7, 1, 7], 9))
    assert own.draft(1, 1).token_ids == [1]


@LOOKUPS
def test_trees_branch_by_probability(lookup: type[Lookup]) -> None:
    """After 7 came 1 twice, 2 once, and nothing once."""
    own = lookup(**{**ALWAYS, "use_tree": True, "max_depth": 2, "max_spec_factor": 2.0})
    own.start(0, text([7, 1, 7, 2, 7, 1, 7], 7))
    assert own.draft(0, 9) == Draft([1, 2], [-1, -1], [0.5, 0.25], 0.75, 1)


@LOOKUPS
def test_answers_serve_other_requests_until_they_are_evicted(lookup: type[Lookup]) -> None:
    own = lookup(**{**ALWAYS, "max_cached_requests": 2})
    own.start(0, text([5, 6, 7, 8], 0))
    own.reveal(0, 4)
    own.end(0)
    own.start(1, text([5, 6, 9], 2))
    assert own.draft(1, 8) == Draft([7, 8], None, [1.0, 1.0], 2.0, 1)
    own.start(2, text([5, 6], 2))
    assert not own.draft(1, 8).token_ids


@LOOKUPS
def test_an_answer_evicted_while_it_grows_stays_out(lookup: type[Lookup]) -> None:
    own = lookup(**{**ALWAYS, "max_cached_requests": 1})
    own.start(0, text([1, 2, 3, 4], 0))
    own.reveal(0, 2)
    own.start(1, text([9, 1, 2, 3], 3))
    own.reveal(0, 4)
    assert not own.draft(1, 8).token_ids
    own.end(0)


@pytest.mark.parametrize("min_token_prob", [0.0, 0.001])
def test_trees_are_drafted_from_more_branches_than_expected(min_token_prob: float) -> None:
    token_ids = [token for branch in range(1, 300) for token in (0, branch)] + [0]
    options = {**ALWAYS, "use_tree": True, "max_depth": 3, "min_token_prob": min_token_prob}
    options["max_spec_factor"] = 1e12
    got = []
    for lookup in (SuffixLookup(**options), SuffixReference(**options)):
        lookup.start(0, text(token_ids, len(token_ids)))
        got.append(lookup.draft(0, 500))
    assert got[0] == got[1]
    assert len(got[0].token_ids) > 290


def test_repetition_takes_no_nodes() -> None:
    lookup = SuffixLookup(**{**ALWAYS, "max_depth": 64})
    lookup.start(0, text([3] * 8192, 1))
    for known_len in range(2, 8193):
        lookup.reveal(0, known_len)
    assert set(lookup.draft(0, 200).token_ids) == {3}
    assert lookup.answers.spare[0] <= 2 * 64


def test_memory_is_that_of_the_arrays() -> None:
    lookup = SuffixLookup(**ALWAYS)
    empty = lookup.memory_bytes
    rng = np.random.default_rng(0)
    for request in range(3):
        lookup.start(request, Text(rng.integers(0, 9, 5000, dtype=np.int32), 2500))
        lookup.reveal(request, 5000)
    trees = [active.tree for active in lookup.active.values()] + [lookup.answers]
    assert lookup.memory_bytes == sum(tree.memory_bytes for tree in trees)
    for request in range(3):
        lookup.end(request)
    assert empty < lookup.memory_bytes == lookup.answers.memory_bytes


def test_read_only_text_of_another_type_is_taken() -> None:
    token_ids = np.array([1, 2, 3, 1, 2], dtype=np.int64)
    token_ids.setflags(write=False)
    lookup = SuffixLookup(**ALWAYS)
    lookup.start(0, Text(token_ids, 5))
    assert lookup.draft(0, 1).token_ids == [3]


def test_compiling_is_not_measured_as_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def looks_at_the_clock() -> float:
        calls.append("looks at the clock")
        return 0.0

    for module in ("specsim.core.compiled", "specsim.lookup.suffix"):
        monkeypatch.setattr(f"{module}.address_of", lambda _: calls.append("compiles"))
    monkeypatch.setattr("specsim.tokens.draft_eval.perf_counter", looks_at_the_clock)
    prompt, output = np.array([1, 2, 3, 1]), np.array([2, 3, 1, 2])
    requests = [Request(0, 4, 4, prompt_token_ids=prompt, output_token_ids=output)]
    evaluate_drafts(Drafter(PROPOSERS.parse({"method": "suffix"})), requests)
    assert calls.index("compiles") < calls.index("looks at the clock")
