"""The SSSD proposer against a plain count of everything that followed."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import data_folder, needs
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.core.errors import ConfigError
from specsim.core.request import Text
from specsim.core.settings import validated
from specsim.lookup import Draft
from specsim.lookup.datastore import build_corpus
from specsim.lookup.sssd import SssdLookup, discounts
from specsim.proposers import PROPOSERS
from specsim.tokens.draft_eval import Drafter, evaluate_drafts, load_texts

TOKENS = st.integers(0, 3)
TEXTS = st.lists(st.lists(TOKENS, min_size=1, max_size=12), max_size=5)
KNOWN = st.lists(TOKENS, max_size=20)
FACTORS = st.sampled_from([1.0, 0.7, 0.5])
QUICK = settings(max_examples=150)

INPUT_LEN, PREFIX_LEN, BRANCH_LEN = 3, 4, 3
Path_ = tuple[int, ...]
Tree = tuple[
    float, float, Counter[Path_]
]  # factor, factor per depth, counts (root: the empty path)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def table(factors: tuple[float, float, float], longest: int) -> np.ndarray:
    return discounts(*factors, longest=longest, branch_len=BRANCH_LEN)


def lookup_over(
    texts: list[list[int]],
    *,
    for_input: tuple[float, float, float] = (1.0, 1.0, 1.0),
    for_corpus: tuple[float, float, float] = (1.0, 1.0, 1.0),
    input_len: int = INPUT_LEN,
    max_continuations: int = 100,
    use_tree: bool = False,
) -> SssdLookup:
    return SssdLookup(
        corpus=build_corpus([array(text) for text in texts], 7) if texts else None,
        input_discounts=table(for_input, input_len),
        corpus_discounts=table(for_corpus, PREFIX_LEN),
        max_continuations=max_continuations,
        use_tree=use_tree,
    )


def draft_after(lookup: SssdLookup, known: list[int], max_len: int) -> Draft:
    lookup.start(0, Text(array(known), len(known)))
    draft = lookup.draft(0, max_len)
    lookup.end(0)
    return draft


def counted(branches: list[list[int]]) -> Counter[Path_]:
    return Counter(
        tuple(branch[:n]) for branch in branches for n in range(min(BRANCH_LEN, len(branch)) + 1)
    )


def input_branches(known: list[int], n: int, most: int) -> list[list[int]]:
    ends = [end for end in range(n, len(known)) if known[end - n : end] == known[-n:]]
    return [known[end:] for end in ends[::-1][:most]]


def corpus_branches(texts: list[list[int]], known: list[int], most: int) -> tuple[int, list]:
    """Return the longest match, and continuations of it and of shorter ones until there are
    enough."""
    longest, branches = 0, []
    for n in range(min(PREFIX_LEN, len(known)), 0, -1):
        found = sorted(
            [*text[at + n :], -1 - number]
            for number, text in enumerate(texts)
            for at in range(len(text) - n)
            if text[at : at + n] == known[-n:]
        )
        longest = max(longest, n if found else 0)
        taken = min(len(found), most - len(branches))
        branches += [found[i * len(found) // taken][:-1] for i in range(taken)]
    return longest, branches


def trees_after(
    texts: list[list[int]],
    known: list[int],
    for_input: tuple[float, float, float],
    for_corpus: tuple[float, float, float],
    most: int,
) -> list[Tree]:
    trees = []
    for n in range(1, min(INPUT_LEN, len(known)) + 1):
        factor = for_input[0] * for_input[1] ** (INPUT_LEN - n)
        trees.append((factor, for_input[2], counted(input_branches(known, n, most))))
    longest, branches = corpus_branches(texts, known, most)
    factor = for_corpus[0] * for_corpus[1] ** (PREFIX_LEN - longest)
    return [*trees, (factor, for_corpus[2], counted(branches))]


def values_of(trees: list[Tree]) -> dict[Path_, float]:
    """Return the highest dampened pseudo-probability of each path."""
    values: dict[Path_, float] = {}
    for factor, by_depth, counts in trees:
        for path, count in counts.items():
            if path:
                prob = count / counts[()] * factor * by_depth ** (len(path) - 1)
                values[path] = max(prob, values.get(path, 0.0))
    return values


def paths(draft: Draft) -> list[Path_]:
    parents = draft.parents or range(-1, len(draft.token_ids) - 1)
    found: list[Path_] = []
    for token, parent in zip(draft.token_ids, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


CASE = (TEXTS, KNOWN, st.tuples(FACTORS, FACTORS, FACTORS), st.tuples(FACTORS, FACTORS, FACTORS))


@QUICK
@given(*CASE, st.integers(1, 12), st.sampled_from([1, 2, 100]))
def test_a_tree_holds_the_most_probable_candidates(
    texts: list[list[int]],
    known: list[int],
    for_input: tuple[float, float, float],
    for_corpus: tuple[float, float, float],
    max_nodes: int,
    most: int,
) -> None:
    lookup = lookup_over(
        texts, for_input=for_input, for_corpus=for_corpus, max_continuations=most, use_tree=True
    )
    draft = draft_after(lookup, known, max_nodes)
    values = values_of(trees_after(texts, known, for_input, for_corpus, most))
    best = sorted(values.values(), reverse=True)[:max_nodes]
    assert list(draft.probs) == pytest.approx(best)
    assert [values[path] for path in paths(draft)] == pytest.approx(list(draft.probs))
    assert len(set(paths(draft))) == len(draft.token_ids)
    assert all(parent < place for place, parent in enumerate(draft.parents or ()))
    assert draft.score == sum(draft.probs)


@QUICK
@given(*CASE, st.integers(1, 5), st.sampled_from([1, 2, 100]))
def test_a_chain_takes_the_most_probable_candidate_of_each_depth(
    texts: list[list[int]],
    known: list[int],
    for_input: tuple[float, float, float],
    for_corpus: tuple[float, float, float],
    max_len: int,
    most: int,
) -> None:
    lookup = lookup_over(texts, for_input=for_input, for_corpus=for_corpus, max_continuations=most)
    draft = draft_after(lookup, known, max_len)
    values = values_of(trees_after(texts, known, for_input, for_corpus, most))
    assert draft.parents is None
    for path, prob in zip(paths(draft), draft.probs, strict=True):
        rivals = [v for p, v in values.items() if p[:-1] == path[:-1] and len(p) == len(path)]
        assert prob == pytest.approx(values[path])
        assert prob == pytest.approx(max(rivals))
    end = tuple(draft.token_ids)
    goes_on = any(path[:-1] == end and len(path) == len(end) + 1 for path in values)
    assert len(end) == max_len or not goes_on
    assert list(draft.probs) == sorted(draft.probs, reverse=True)


@QUICK
@given(KNOWN, st.lists(st.integers(0, 5), max_size=6), TEXTS)
def test_text_may_come_in_pieces(
    known: list[int], pieces: list[int], texts: list[list[int]]
) -> None:
    lookup = lookup_over(texts, use_tree=True)
    expected = draft_after(lookup, known, 8)
    text = array([*known, 0, 1, 2, 3])  # what follows is nobody's business
    lookup.start(1, Text(text, 0))
    lookup.start(2, Text(array([1, 1, 2]), 2))  # nor what others say
    known_len = 0
    for piece in pieces:
        known_len = min(known_len + piece, len(known))
        lookup.reveal(1, known_len)
        lookup.draft(1, 8)
    lookup.reveal(1, len(known))
    assert lookup.draft(1, 8) == expected == lookup.draft(1, 8)


def test_a_long_text_is_indexed_without_mistakes() -> None:
    rng = np.random.default_rng(1)
    known = rng.integers(0, 300, 5_000).tolist()
    lookup = lookup_over([], use_tree=True, input_len=INPUT_LEN)
    for known_len in (4_990, 5_000):
        draft = draft_after(lookup, known[:known_len], 6)
        values = values_of(
            trees_after([], known[:known_len], (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), 100)
        )
        assert list(draft.probs) == pytest.approx(sorted(values.values(), reverse=True)[:6])


def test_sources_can_be_switched_off() -> None:
    known = [1, 2, 9, 1]
    assert draft_after(lookup_over([[1, 3]], input_len=0), known, 1).token_ids == [3]
    assert draft_after(lookup_over([]), known, 1).token_ids == [2]
    assert draft_after(lookup_over([[1, 3]], for_input=(0.5, 1.0, 1.0)), known, 1) == (
        Draft([3], None, [1.0], 1.0, 1)
    )
    assert draft_after(lookup_over([[1, 3]], for_corpus=(0.5, 1.0, 1.0)), known, 1) == (
        Draft([2], None, [1.0], 1.0, 1)
    )


def test_there_may_be_nothing_to_draft_from() -> None:
    for texts in ([], [[1]], [[1, 2]]):
        lookup = lookup_over(texts)
        assert draft_after(lookup, [], 3).token_ids == ()
        assert draft_after(lookup, [3], 3).token_ids == ()
        assert draft_after(lookup, [1, 1], 0).token_ids == ()


def test_memory_is_given_back() -> None:
    lookup = lookup_over([[1, 2, 3]])
    before = lookup.memory_bytes
    lookup.start(0, Text(array(list(range(1000))), 500))
    assert lookup.memory_bytes >= before + 2 * 4 * 1000 * INPUT_LEN
    lookup.end(0)
    assert lookup.memory_bytes == before


def test_one_source_is_needed() -> None:
    with (
        pytest.raises(ConfigError, match="use_input = False leaves nothing"),
        validated("here", ConfigError),
    ):
        PROPOSERS.parse({"method": "sssd", "num_speculative_tokens": 3, "use_input": False})


@pytest.mark.parametrize("field", ["input_discount", "corpus_depth_discount"])
@pytest.mark.parametrize("value", [0.0, 1.1])
def test_discounts_dampen(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field), validated("here", ConfigError):
        PROPOSERS.parse({"method": "sssd", "num_speculative_tokens": 3, field: value})


GSM8K = data_folder() / "tokens" / "llama31_8b_gsm8k.jsonl.gz"


@needs(GSM8K)
def test_two_sources_draft_better_than_one(tmp_path: Path) -> None:
    requests = load_texts(GSM8K)
    corpus = tmp_path / "corpus.jsonl"
    rows = (
        {
            "prompt_token_ids": [],
            "generated_token_ids": request.text.token_ids[request.prompt_len :].tolist(),
        }
        for request in requests[:75]
    )
    corpus.write_text("\n".join(json.dumps(row) for row in rows))
    options = {"method": "sssd", "num_speculative_tokens": 8}
    found = {
        name: evaluate_drafts(
            Drafter(PROPOSERS.parse({**options, **changes})), requests[75:]
        ).tokens_per_step
        for name, changes in {
            "input": {},
            "datastore": {"corpus": str(corpus), "use_input": False},
            "both": {"corpus": str(corpus)},
        }.items()
    }
    assert found["both"] > 1.05 * max(found["input"], found["datastore"])
    assert min(found.values()) > 1.3
