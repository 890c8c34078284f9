"""What a draft from text costs: every lookup, call by call, and the memory of the suffix tree.

    python benchmarks/lookups.py     # five minutes; writes lookups.csv

CPU time per call of `draft` and `reveal` and per prompt token of `start`, microseconds; the least
disturbed of three repeats. The text is made here: phrases that recur, as words do, among single
tokens, all with frequencies that fall like 1/rank. Where SPECSIM_DATA has the token traces, those
too. Memory is what one global tree takes per cached token, by its own account and by the operating
system's.
"""

import csv
import os
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from specsim.core.request import Text
from specsim.lookup import Lookup
from specsim.lookup.ngram import NgramLookup
from specsim.lookup.suffix import SuffixLookup
from specsim.tokens.draft_eval import load_texts

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from suffix_reference import SuffixReference

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[1] / "shared" / "data"))
CHAIN = {"max_depth": 24, "max_spec_factor": 1.0, "min_token_prob": 0.1, "max_cached_requests": -1}
TREE = {**CHAIN, "max_depth": 64, "max_spec_factor": 2.0, "use_tree": True}
LOOKUPS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "ngram 2-4, k = 4": (NgramLookup, {"shortest": 2, "longest": 4}, 4),
    "suffix, depth 24": (SuffixLookup, CHAIN, 24),
    "suffix, depth 64, trees": (SuffixLookup, TREE, 64),
    "suffix reference, depth 24": (SuffixReference, CHAIN, 24),
}
VOCABULARY = 30_000
REQUESTS, PROMPT, ANSWER = 100, 500, 300
REPEATS = 3
REFERENCE_REQUESTS = 5  # it is slow, and takes memory
CACHED = (1_000_000, 10_000_000)


def zipf(rng: np.random.Generator, n: int, size: int) -> NDArray[np.int64]:
    """Ranks below n, with frequencies about 1/rank."""
    return np.minimum(n ** rng.random(size), n - 1).astype(np.int64)


def written(seed: int) -> Iterator[NDArray[np.int32]]:
    """Endless pieces of text, a third of it single tokens and the rest phrases of 2 to 12."""
    rng = np.random.default_rng(seed)
    phrases = [
        zipf(rng, VOCABULARY, length).astype(np.int32) for length in rng.integers(2, 13, 20_000)
    ]
    while True:
        for is_phrase, rank in zip(rng.random(1000) < 0.2, zipf(rng, 20_000, 1000), strict=True):
            yield phrases[rank] if is_phrase else zipf(rng, VOCABULARY, 1).astype(np.int32)


def texts(num_requests: int, prompt_len: int, answer_len: int) -> Iterator[Text]:
    pieces, left = written(1), np.zeros(0, dtype=np.int32)
    for _ in range(num_requests):
        parts, length = [left], len(left)
        while length < prompt_len + answer_len:
            parts.append(next(pieces))
            length += len(parts[-1])
        text = np.concatenate(parts)
        left = text[prompt_len + answer_len :]
        yield Text(text[: prompt_len + answer_len].copy(), prompt_len)


def replay(lookup: Lookup, corpus: list[Text], max_len: int) -> dict[str, float]:
    spent = {"start": 0, "draft": 0, "reveal": 0}
    steps = 0
    for request, text in enumerate(corpus):
        began = thread_time_ns()
        lookup.start(request, text)
        spent["start"] += thread_time_ns() - began
        known_len, end_len = text.prompt_len + 1, len(text.token_ids)
        lookup.reveal(request, known_len)
        while known_len < end_len:
            began = thread_time_ns()
            draft = lookup.draft(request, max_len)
            drafted = thread_time_ns()
            known_len += draft.accepted_len(text.token_ids[known_len:]) + 1
            known_len = min(known_len, end_len)
            resumed = thread_time_ns()
            lookup.reveal(request, known_len)
            spent["reveal"] += thread_time_ns() - resumed
            spent["draft"] += drafted - began
            steps += 1
        lookup.end(request)
    prompt_tokens = max(1, sum(text.prompt_len for text in corpus))
    return {
        "draft_us": 1e-3 * spent["draft"] / steps,
        "reveal_us": 1e-3 * spent["reveal"] / steps,
        "prompt_token_us": 1e-3 * spent["start"] / prompt_tokens,
    }


def calls() -> Iterator[dict[str, Any]]:
    corpora = {"synthetic": list(texts(REQUESTS, PROMPT, ANSWER))}
    for name in ("gsm8k", "instructcoder", "cnn", "sharegpt"):
        path = DATA / "tokens" / f"llama31_8b_{name}.jsonl.gz"
        if path.exists():
            corpora[name] = [request.text for request in load_texts(path)]
    for corpus_name, corpus in corpora.items():
        for name, (lookup, options, max_len) in LOOKUPS.items():
            is_reference = lookup is SuffixReference
            kept = corpus[:REFERENCE_REQUESTS] if is_reference else corpus
            repeats = 1 if is_reference else REPEATS
            taken = [replay(lookup(**options), kept, max_len) for _ in range(repeats)]
            best = min(taken, key=lambda times: times["draft_us"] + times["reveal_us"])
            yield {"lookup": name, "text": corpus_name, **best}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def memory() -> Iterator[dict[str, Any]]:
    lookup = SuffixLookup(**CHAIN, use_local_tree=False)
    before, cached, spent = resident_bytes(), 0, 0
    goals = list(CACHED)
    for request, text in enumerate(texts(CACHED[-1] // 1000 + 1, 0, 1000)):
        began = thread_time_ns()
        lookup.start(request, text)
        lookup.reveal(request, 1000)
        lookup.end(request)
        spent += thread_time_ns() - began
        cached += 1000
        if cached == goals[0]:
            yield {
                "lookup": "suffix, depth 24",
                "text": f"{goals.pop(0):,} tokens cached",
                "tree_bytes_per_token": lookup.memory_bytes / cached,
                "resident_bytes_per_token": (resident_bytes() - before) / cached,
                "append_us": 1e-3 * spent / cached,
            }
        if not goals:
            break


def main() -> None:
    columns = ["lookup", "text", "draft_us", "reveal_us", "prompt_token_us"]
    columns += ["append_us", "tree_bytes_per_token", "resident_bytes_per_token"]
    parts = {"memory": memory, "calls": calls}
    rows = []
    for part in sys.argv[1:] or parts:
        for row in parts[part]():
            rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}
            rows.append(rounded)
            print(*(f"{key}={value}" for key, value in rounded.items()), flush=True)
    if len(sys.argv) < 2:
        with (HERE / "lookups.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(f"{platform.machine()}, Python {platform.python_version()}, numba {numba.__version__}")


if __name__ == "__main__":
    main()
