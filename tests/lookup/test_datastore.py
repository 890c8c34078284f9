"""The datastore proposer against a plain search through all texts."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.core.errors import ConfigError, TraceError
from specsim.core.request import Text
from specsim.core.settings import validated
from specsim.lookup import Draft, Lookup
from specsim.lookup.datastore import DatastoreLookup, build_corpus, longest_match, occurrences
from specsim.proposers import PROPOSERS, Proposer

TOKENS = st.integers(0, 3)
TEXT = st.lists(TOKENS, min_size=1, max_size=12)
TEXTS = st.lists(TEXT, min_size=1, max_size=6)
QUICK = settings(max_examples=150)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def lookup_over(texts: list[list[int]], **changes: object) -> DatastoreLookup:
    options = {"max_prefix_len": 4, "branch_len": 3, "max_continuations": 5000, "use_tree": False}
    corpus = build_corpus([array(text) for text in texts], 7)
    return DatastoreLookup(corpus=corpus, **{**options, **changes})


def draft_after(lookup: Lookup, known: list[int], max_len: int) -> Draft:
    lookup.start(0, Text(array(known), len(known)))
    draft = lookup.draft(0, max_len)
    lookup.end(0)
    return draft


def continuations(texts: list[list[int]], pattern: list[int]) -> list[list[int]]:
    """Return what follows a pattern, sorted; the end of an earlier text sorts last."""
    n = len(pattern)
    found = [
        [*text[at + n :], -1 - number]
        for number, text in enumerate(texts)
        for at in range(len(text) - n)
        if text[at : at + n] == pattern
    ]
    return [tokens[:-1] for tokens in sorted(found)]


def matched(texts: list[list[int]], known: list[int], max_prefix_len: int) -> list[int]:
    """Return the longest suffix of the known text that something follows in the corpus."""
    lens = range(min(max_prefix_len, len(known)), 0, -1)
    return next((known[-n:] for n in lens if continuations(texts, known[-n:])), [])


def path_counts(branches: list[list[int]], branch_len: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(branch[:n]) for branch in branches for n in range(1, min(branch_len, len(branch)) + 1)
    )


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Return the tokens from the root to each node."""
    parents = draft.parents or range(-1, len(draft.token_ids) - 1)
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token_ids, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@QUICK
@given(TEXTS, st.integers(1, 9))
def test_suffixes_are_sorted_as_deep_as_asked(texts: list[list[int]], depth: int) -> None:
    corpus = build_corpus([array(text) for text in texts], depth)
    tokens = corpus.token_ids.tolist()
    keys = [tokens[start : start + depth] for start in corpus.suffixes]
    assert keys == sorted(keys)
    assert sorted(corpus.suffixes.tolist()) == [at for at, token in enumerate(tokens) if token >= 0]
    assert corpus.nbytes == 8 * sum(map(len, texts)) + 4 * len(texts)


@QUICK
@given(TEXTS, st.lists(TOKENS, max_size=6))
def test_a_match_is_the_longest_that_goes_on(texts: list[list[int]], known: list[int]) -> None:
    corpus = build_corpus([array(text) for text in texts], 8)
    pattern = matched(texts, known, 5)
    assert longest_match(corpus, array(known), len(known), 5) == len(pattern)
    if pattern:
        low, high = occurrences(corpus, array(known), len(known), len(pattern))
        assert high - low == len(continuations(texts, pattern))


@QUICK
@given(TEXTS, st.lists(TOKENS, max_size=6), st.integers(1, 6), st.sampled_from([1, 2, 5000]))
def test_a_chain_takes_the_most_frequent_token_each_time(
    texts: list[list[int]], known: list[int], max_len: int, max_continuations: int
) -> None:
    draft = draft_after(lookup_over(texts, max_continuations=max_continuations), known, max_len)
    pattern = matched(texts, known, 4)
    branches = continuations(texts, pattern)[:max_continuations] if pattern else []
    total, expected, probs = len(branches), [], []
    while branches and len(expected) < min(max_len, 3):
        depth = len(expected)
        counts = Counter(branch[depth] for branch in branches if len(branch) > depth)
        if not counts:
            break
        token = min(counts, key=lambda token: (-counts[token], token))
        branches = [b for b in branches if len(b) > depth and b[depth] == token]
        expected.append(token)
        probs.append(len(branches) / total)
    assert list(draft.token_ids) == expected
    assert list(draft.probs) == probs
    assert draft.score == sum(probs)
    assert draft.match_len == (len(pattern) if expected else 0)
    assert draft.parents is None


@QUICK
@given(TEXTS, st.lists(TOKENS, max_size=6), st.integers(1, 9), st.sampled_from([1, 3, 5000]))
def test_a_tree_holds_the_most_frequent_paths(
    texts: list[list[int]], known: list[int], max_nodes: int, max_continuations: int
) -> None:
    lookup = lookup_over(texts, use_tree=True, max_continuations=max_continuations)
    draft = draft_after(lookup, known, max_nodes)
    pattern = matched(texts, known, 4)
    branches = continuations(texts, pattern)[:max_continuations] if pattern else []
    counts = path_counts(branches, 3)
    best = sorted(counts.values(), reverse=True)[:max_nodes]
    assert list(draft.probs) == [count / len(branches) for count in best]
    assert [counts[path] / len(branches) for path in paths(draft)] == list(draft.probs)
    assert len(set(paths(draft))) == len(draft.token_ids)
    assert all(parent < place for place, parent in enumerate(draft.parents or ()))


def test_nothing_crosses_the_border_of_two_texts() -> None:
    lookup = lookup_over([[1, 2], [3, 4]])
    assert draft_after(lookup, [1, 2], 3).token_ids == ()
    assert draft_after(lookup, [2, 3], 3) == Draft([4], None, [1.0], 1.0, 1)
    assert draft_after(lookup, [1], 3).token_ids == [2]


def test_only_the_known_text_is_looked_at() -> None:
    lookup = lookup_over([[1, 2, 3, 1, 3, 2]])
    drafts = []
    for future in (2, 3):
        lookup.start(0, Text(array([0, 1, future]), 2))
        drafts.append(lookup.draft(0, 3))
        lookup.end(0)
    assert drafts[0] == drafts[1]
    assert drafts[0].token_ids


def test_there_may_be_nothing_to_draft_from() -> None:
    lookup = lookup_over([[1, 2]], max_prefix_len=16)
    assert draft_after(lookup, [], 3).token_ids == ()
    assert draft_after(lookup, [3], 3).token_ids == ()
    assert draft_after(lookup, [3, 3, 3, 3, 3, 1], 3).token_ids == [2]
    assert draft_after(lookup, [1], 0).token_ids == ()


def test_requests_add_no_memory() -> None:
    lookup = lookup_over([[1, 2, 3]])
    before = lookup.memory_bytes
    lookup.start(0, Text(array([1, 2, 3]), 1))
    lookup.reveal(0, 2)
    assert lookup.draft(0, 2).token_ids == [3]
    assert lookup.memory_bytes == before == 8 * 3 + 4


def write_trace(path: Path, rows: list[tuple[list[int], list[int]]]) -> Path:
    lines = (
        json.dumps({"prompt_token_ids": prompt, "generated_token_ids": answer})
        for prompt, answer in rows
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def proposer(corpus: Path, **options: object) -> Proposer:
    return PROPOSERS.parse(
        {"method": "datastore", "num_speculative_tokens": 4, "corpus": str(corpus), **options}
    )


@pytest.mark.parametrize(
    ("includes_prompts", "known", "expected"),
    [(False, [5], []), (True, [5], [6, 7]), (False, [6], [7]), (True, [7], [])],
)
def test_prompts_belong_to_the_corpus_on_request(
    tmp_path: Path, includes_prompts: bool, known: list[int], expected: list[int]
) -> None:
    path = write_trace(tmp_path / "corpus.jsonl", [([4, 5], [6, 7]), ([], [1])])
    lookup = proposer(path, corpus_includes_prompts=includes_prompts).make_lookup()
    assert lookup is not None
    assert list(draft_after(lookup, known, 4).token_ids) == expected


def test_a_corpus_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "corpus.jsonl", [([], [1, 2])])
    first = proposer(path).make_lookup()
    write_trace(path, [([], [1, 3, 4])])
    second = proposer(path).make_lookup()
    assert first is not None
    assert second is not None
    assert draft_after(first, [1], 1).token_ids == [2]
    assert draft_after(second, [1], 1).token_ids == [3]


@pytest.mark.parametrize("method", ["datastore", "sssd"])
def test_a_bad_corpus_is_a_clear_error(tmp_path: Path, method: str) -> None:
    no_tokens = tmp_path / "lens.jsonl"
    no_tokens.write_text(json.dumps({"prompt_len": 3, "output_len": 4}) + "\n")
    bad = [
        (tmp_path / "missing.jsonl", "cannot be read"),
        (no_tokens, "carries no token ids to draft from"),
        (write_trace(tmp_path / "empty.jsonl", [([1], [])]), "empty.jsonl"),
    ]
    for path, message in bad:
        parsed = PROPOSERS.parse(
            {"method": method, "num_speculative_tokens": 4, "corpus": str(path)}
        )
        with pytest.raises(TraceError, match=message):
            parsed.make_lookup()


@pytest.mark.parametrize(
    "fields", [{}, {"corpus": "x", "max_prefix_len": 0}, {"corpus": "x", "branch_len": 0}]
)
def test_bad_fields_are_refused(fields: dict[str, object]) -> None:
    with (
        pytest.raises(ConfigError, match=r"corpus|max_prefix_len|branch_len"),
        validated("here", ConfigError),
    ):
        PROPOSERS.parse({"method": "datastore", "num_speculative_tokens": 4, **fields})
