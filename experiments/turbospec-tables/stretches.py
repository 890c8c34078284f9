"""What acceptance is like along a text, measured on recorded tokens, none of them TurboSpec's.

    SPECSIM_DATA=... python experiments/turbospec-tables/stretches.py

Prints `LUCK`, `HITS` and `ACCEPTED`, and how well that luck repeats what it was fitted to.
"""

import gzip
import json
import os
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import numpy as np

from specsim.acceptance.base import Acceptance
from specsim.acceptance.layered import Layered
from specsim.core.request import Request
from specsim.core.rng import Luck
from specsim.reality.acceptance_fit.fits import decode, fit_layered

DATA = Path(os.environ.get("SPECSIM_DATA", ".")) / "tokens"
LUCK = {
    "request_spread": 0.345,
    "regimes": [{"spread": 0.9104, "mean_len": 1.944}, {"spread": 0.3127, "mean_len": 57.15}],
}
"""How much easier and harder to draft requests and stretches of text are: of whether the first
token of EAGLE's draft is right, at every position of 149 answers to ShareGPT's prompts."""
HITS = {1: 0.486, 3: 0.409, 5: 0.383, 7: 0.37}
"""Share of steps in which the last two tokens have occurred before, by length of the draft, in 150
summaries (CNN/DailyMail): a longer draft leaves less of what can be copied to the steps after."""
ACCEPTED = {1: 0.56, 3: 1.13, 5: 1.37, 7: 1.51}
"""Accepted tokens of such a draft, by its length."""
LONGEST_RUN, LONGEST_OUTPUT, NUM_TOKENS = 60, 1500, 2
DRAFTS = (1, 3, 5, 7)
"""Tokens; the published rates do not say of which they are the mean."""


def draft_rate(table: bytes, length: int) -> tuple[int, int]:
    """Return the right tokens and all tokens of one request's drafts, as vLLM V0 counts them.

    It counts every place of a draft, those behind the first wrong one as well; they are taken
    to be as easy or hard as the place in the text that they stand at.
    """
    right = [survives > 0 for survives in table]
    position = hits = drafted = 0
    while position + length <= len(table):
        hits, drafted = hits + sum(right[position : position + length]), drafted + length
        position += min(table[position], length) + 1
    return hits, drafted


def published_rate(model: Acceptance) -> float:
    """Return the mean of vLLM V0's acceptance rate over `DRAFTS`."""
    requests = [Request(index=index, prompt_len=1, output_len=250) for index in range(400)]
    tables = model.survival_lens(requests, Luck(0, 0), max(DRAFTS))
    sums = [np.sum([draft_rate(table, length) for table in tables], axis=0) for length in DRAFTS]
    return float(np.mean([hits / drafted for hits, drafted in sums]))


@cache
def acceptance(rate: float) -> Layered:
    """Return the model of which vLLM V0 would count this acceptance rate."""
    low, high = rate, 1 - (1 - rate) / 2
    for _ in range(10):
        middle = (low + high) / 2
        if published_rate(_of_text(middle)) < rate:
            low = middle
        else:
            high = middle
    return _of_text(round((low + high) / 2, 3))


def _of_text(rate: float) -> Layered:
    """Return the model in which each place of the text is right with a mean chance of `rate`."""
    return Layered.model_validate({"rates": [rate], **LUCK})


def _recorded(name: str) -> Iterator[dict]:
    with gzip.open(DATA / f"llama31_8b_{name}.jsonl.gz", "rt") as stream:
        for line in stream:
            record = json.loads(line)
            if 2 <= len(record["generated_token_ids"]) <= LONGEST_OUTPUT:
                yield record


def runs(lens: list[int]) -> bytes:
    """Return how many first tokens in a row are right from each position on.

    That is how long a draft of a draft model survives, whose j-th token, if those before it are
    right, is the first one of a draft made there. `lens` has the bonus token.
    """
    found = [0]
    for length in reversed(lens):
        found.append(min(found[-1] + 1, LONGEST_RUN) if length > 1 else 0)
    return bytes(reversed(found[1:]))


def lookups(prompt: list[int], answer: list[int], length: int) -> Iterator[tuple[bool, int]]:
    """Yield of each step whether the last tokens have occurred before, and the accepted tokens.

    As vLLM V0 looks them up: where they occurred first, and so many tokens from there, or none.
    """
    tokens, position = prompt + answer, len(prompt) + 1
    first: dict[tuple[int, ...], int] = {}
    indexed = NUM_TOKENS
    while position < len(tokens):
        for end in range(indexed, position):
            first.setdefault(tuple(tokens[end - NUM_TOKENS : end]), end)
        indexed, accepted = position, 0
        start = first.get(tuple(tokens[position - NUM_TOKENS : position]))
        if start is not None:
            draft = tokens[start : min(start + length, position)]
            pairs = zip(draft, tokens[position:], strict=False)
            accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        yield start is not None, accepted
        position += accepted + 1


def hits(records: list[dict], length: int) -> tuple[float, float]:
    """Return the share of steps with a draft, and the accepted tokens of one."""
    steps = [
        step
        for record in records
        for step in lookups(record["prompt_token_ids"], record["generated_token_ids"], length)
    ]
    drafts = sum(is_found for is_found, _ in steps)
    return drafts / len(steps), sum(accepted for _, accepted in steps) / drafts


def main() -> None:
    tables = [runs(record["acc_eagle"]["acc_len"]) for record in _recorded("sharegpt")]
    fit = fit_layered(decode(tables, max(DRAFTS)))
    print("luck:", {"request_spread": fit.request_spread, "regimes": fit.regimes})
    records = list(_recorded("cnn"))
    for length in DRAFTS:
        share, accepted = hits(records, length)
        print(f"lookups, k = {length}: in {share:.3f} of the steps, {accepted:.3f} accepted")
    rate = float(np.mean([survives > 0 for table in tables for survives in table]))
    requests = [
        Request(index=index, prompt_len=1, output_len=len(table))
        for index, table in enumerate(tables)
    ]
    drawn = _of_text(rate).survival_lens(requests, Luck(0, 0), max(DRAFTS))
    for name, group in (("recorded", tables), ("drawn", drawn)):
        for length in DRAFTS:
            tokens = 1 / decode(group, length).steps_per_token
            sums = np.sum([draft_rate(table, length) for table in group], axis=0)
            print(f"{name}, k = {length}: {tokens:.3f} tokens a step, rate {sums[0] / sums[1]:.3f}")


if __name__ == "__main__":
    main()
