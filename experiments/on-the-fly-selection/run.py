"""On-the-fly adaptation, tables 2 and 3: which drafter a prompt gets, predicted from the prompt.

    SPECSIM_DATA=... python experiments/run.py on-the-fly-selection

Writes windows.csv, selection.csv and predictions.csv beside this file. It needs the recorded token
traces, which are never shipped.
"""

import csv
import os
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.api import Request, read_trace

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "tokens"
DATASETS = ("gsm8k", "cnn", "instructcoder", "sharegpt")
MIXED = "all four"
DRAFTERS = ("eagle", "ngram")
LONGEST = 2000  # tokens; four longer answers are loops that end at the limit of 8,192
PROBES = 25  # prompts that the weights are fitted on (section 6.1)
WINDOW = 5  # draft tokens of the probes, from which alpha is estimated
MAX_WINDOW = 8
ALPHA_MAX = 0.98  # as in the policy draft_selection
# Seconds per EAGLE token over those of a step without drafts; 0.23: a100/opt-13b (on-the-fly-fig3).
# Looking up an n-gram takes 0.006 of a step, whatever its length (h100/llama-3.1-8b).
RATIOS = (0.1, 0.23, 0.4)
NGRAM_SHARE = 0.006
SHUFFLES = 10
COMPONENTS = 3  # of the TF-IDF vectors
VOCABULARY = 128_256

Row = dict[str, Any]
Floats = NDArray[np.float64]


class Answer(NamedTuple):
    """What is known of one request, by drafter and window; decoding alone, in steps."""

    request: Request
    steps: NDArray[np.int64]
    """Shape (drafters, MAX_WINDOW + 1)."""
    alphas: Floats
    """Share of the draft tokens accepted until the first one is not, by drafter."""

    @property
    def prompt(self) -> NDArray[np.int64]:
        assert self.request.prompt_token_ids is not None
        return self.request.prompt_token_ids

    @property
    def tokens(self) -> int:
        """Those that are decoded: the first one comes from prefill."""
        return self.request.output_len - 1


def replay(record: bytes, output_len: int, window: int) -> tuple[int, int, int]:
    """Return the steps, accepted tokens and rejected drafts of an answer, exactly as recorded."""
    known, steps, accepted, cut = 1, 0, 0, 0
    while known < output_len:
        drafted = min(window, output_len - known - 1)
        length = min(record[known] if known < len(record) else 0, drafted)
        steps, accepted, cut = steps + 1, accepted + length, cut + (length < drafted)
        known += length + 1
    return steps, accepted, cut


def answer(request: Request) -> Answer:
    steps = np.zeros((len(DRAFTERS), MAX_WINDOW + 1), dtype=np.int64)
    alphas = np.zeros(len(DRAFTERS))
    for row, drafter in enumerate(DRAFTERS):
        record = request.recorded_lens[drafter]
        for window in range(MAX_WINDOW + 1):
            taken, accepted, cut = replay(record, request.output_len, window)
            steps[row, window] = taken
            if window == WINDOW:
                alphas[row] = accepted / max(1, accepted + cut)
    return Answer(request, steps, alphas)


@cache
def answers(dataset: str) -> tuple[Answer, ...]:
    if dataset == MIXED:
        return tuple(each for name in DATASETS for each in answers(name))
    found = read_trace(DATA / f"llama31_8b_{dataset}.jsonl.gz").requests()
    return tuple(answer(each) for each in found if 2 <= each.output_len <= LONGEST)


def step_times(ratio: float) -> Floats:
    """Return the time of a step by drafter and window, in steps without drafts."""
    windows = np.arange(MAX_WINDOW + 1)
    return np.stack([1.0 + ratio * windows, 1.0 + NGRAM_SHARE * (windows > 0)])


# Features of a prompt


class Split(NamedTuple):
    """Some prompts that weights are fitted on, and the others."""

    probes: list[Answer]
    asked: list[Answer]


@cache
def split(dataset: str, seed: int) -> Split:
    found = answers(dataset)
    order = np.random.default_rng([seed, 17]).permutation(len(found))
    shuffled = [found[place] for place in order]
    return Split(shuffled[:PROBES], shuffled[PROBES:])


def lengths(of: Split) -> Floats:
    """Length / 1000 and its logarithm."""
    sizes = np.array([each.request.prompt_len for part in of for each in part], dtype=float)
    return np.stack([sizes / 1000, np.log2(sizes)], axis=1)


def bits_per_token(known: Sequence[Answer], asked: Sequence[Answer]) -> list[float]:
    """Return those of each prompt under a bigram model of the known prompts.

    Bigrams are backed off to unigrams, those to all tokens of the vocabulary, each by one count.
    """
    bigrams = [np.stack([each.prompt[:-1], each.prompt[1:]]) for each in known]
    pairs = np.concatenate(bigrams, axis=1)
    twos, counts = np.unique(pairs[0] * VOCABULARY + pairs[1], return_counts=True)
    before = np.bincount(pairs[0], minlength=VOCABULARY)
    after = np.bincount(pairs[1], minlength=VOCABULARY)

    def bits(token_ids: NDArray[np.int64]) -> float:
        keys = token_ids[:-1] * VOCABULARY + token_ids[1:]
        places = np.minimum(np.searchsorted(twos, keys), len(twos) - 1)
        seen = np.where(twos[places] == keys, counts[places], 0)
        alone = (after[token_ids[1:]] + 1 / VOCABULARY) / (after.sum() + 1)
        follows = (seen + alone) / (before[token_ids[:-1]] + 1)
        return float(-np.log2(follows).mean())

    return [bits(each.prompt) for each in asked]


def perplexity(of: Split) -> Floats:
    """log2 of eq. 9's perplexity, of a bigram model of the probes' prompts; of a probe, the others.

    The paper's is that of a language model, which is not at hand.
    """
    found: list[float] = []
    for place, probe in enumerate(of.probes):
        found += bits_per_token(of.probes[:place] + of.probes[place + 1 :], [probe])
    return np.array([*found, *bits_per_token(of.probes, of.asked)])[:, np.newaxis]


def tf_idf(of: Split) -> Floats:
    """First principal components of TF-IDF vectors, fitted on the probes."""
    vocabulary = np.unique(np.concatenate([each.prompt for each in of.probes]))

    def shares(token_ids: NDArray[np.int64]) -> Floats:
        places = np.minimum(np.searchsorted(vocabulary, token_ids), len(vocabulary) - 1)
        known = places[vocabulary[places] == token_ids]
        return np.bincount(known, minlength=len(vocabulary)) / len(token_ids)

    table = np.array([shares(each.prompt) for part in of for each in part])
    known = table[: len(of.probes)]
    weights = np.log((1 + len(known)) / (1 + (known > 0).sum(axis=0))) + 1
    mean = (known * weights).mean(axis=0)
    _, _, axes = np.linalg.svd(known * weights - mean, full_matrices=False)
    projected: Floats = (table * weights - mean) @ axes[:COMPONENTS].T
    return projected


FEATURES: dict[str, tuple[Callable[[Split], Floats], ...]] = {
    "none": (),
    "length": (lengths,),
    "perplexity": (perplexity,),
    "TF-IDF": (tf_idf,),
    "length, perplexity, TF-IDF": (lengths, perplexity, tf_idf),
}


@cache
def predicted(dataset: str, seed: int, name: str) -> Floats:
    """Return the alphas of eq. 8 by ordinary least squares on the probes, shape (n, drafters)."""
    of = split(dataset, seed)
    num_probes = len(of.probes)
    columns = [np.ones((num_probes + len(of.asked), 1)), *(each(of) for each in FEATURES[name])]
    table = np.concatenate(columns, axis=1)
    seen = np.array([each.alphas for each in of.probes])
    weights = np.linalg.lstsq(table[:num_probes], seen, rcond=None)[0]
    alphas: Floats = np.clip(table[num_probes:] @ weights, 0.0, ALPHA_MAX)
    return alphas


# Choices, and what came of them


def choices(alphas: Floats, ratio: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return drafter and window of each prompt, by eq. 1 with these alphas."""
    windows = np.arange(MAX_WINDOW + 1)
    emitted = (1 - alphas[..., np.newaxis] ** (windows + 1)) / (1 - alphas[..., np.newaxis])
    rate = (emitted / step_times(ratio)).reshape(len(alphas), -1)
    best = rate.argmax(axis=1)
    return best // (MAX_WINDOW + 1), best % (MAX_WINDOW + 1)


def times(asked: Sequence[Answer], ratio: float) -> Floats:
    """Return what each prompt takes, shape (n, drafters, windows)."""
    found: Floats = np.array([each.steps for each in asked]) * step_times(ratio)
    return found


def select(dataset: str, ratio: float, seed: int) -> dict[str, float]:
    """Return the speed-up over no speculation by way to choose, on all but the probes."""
    probes, asked = split(dataset, seed)
    spent, base = times(asked, ratio), sum(each.tokens for each in asked)
    rows = np.arange(len(asked))
    gains: dict[str, float] = {}
    for place, name in enumerate(DRAFTERS):
        alphas = np.zeros((1, len(DRAFTERS)))
        alphas[0, place] = min(ALPHA_MAX, float(np.mean([each.alphas[place] for each in probes])))
        _, window = choices(alphas, ratio)
        gains[f"{name} for all"] = base / spent[:, place, window[0]].sum()
    for name in FEATURES:
        drafter, windows = choices(predicted(dataset, seed, name), ratio)
        gains[f"selection by: {name}"] = base / spent[rows, drafter, windows].sum()
    true = np.minimum(ALPHA_MAX, np.array([each.alphas for each in asked]))
    drafter, windows = choices(true, ratio)
    gains["selection, alpha known"] = base / spent[rows, drafter, windows].sum()
    gains["hindsight"] = base / spent.reshape(len(asked), -1).min(axis=1).sum()
    return gains


def selections() -> list[Row]:
    rows = []
    for dataset, ratio in product((*DATASETS, MIXED), RATIOS):
        found = [select(dataset, ratio, seed) for seed in range(SHUFFLES)]
        for name in found[0]:
            gains = np.array([each[name] for each in found])
            fixed = np.array([max(each[f"{d} for all"] for d in DRAFTERS) for each in found])
            over = gains / fixed - 1
            rows.append(
                {
                    "dataset": dataset,
                    "ratio": ratio,
                    "choice": name,
                    "speed_up": round(float(gains.mean()), 4),
                    "over_better_fixed_percent": round(100 * float(over.mean()), 2),
                    "half_width_percent": round(
                        196 * float(over.std(ddof=1)) / len(over) ** 0.5, 2
                    ),
                }
            )
    return rows


def predictions() -> list[Row]:
    """Return how well alpha is predicted: median R2 on the prompts that are not probes."""
    rows = []
    for dataset, name in product((*DATASETS, MIXED), list(FEATURES)[1:]):
        shares = []
        for seed in range(SHUFFLES):
            true = np.array([each.alphas for each in split(dataset, seed).asked])
            missed = ((predicted(dataset, seed, name) - true) ** 2).sum(axis=0)
            shares.append(1 - missed / ((true - true.mean(axis=0)) ** 2).sum(axis=0))
        found = np.median(np.array(shares), axis=0).round(3).tolist()
        named = {f"r2_{drafter}": r2 for drafter, r2 in zip(DRAFTERS, found, strict=True)}
        rows.append({"dataset": dataset, "features": name, **named})
    return rows


def windows() -> list[Row]:
    """Return tokens per step and speed-up of each static window (EAGLE's depth)."""
    rows = []
    for dataset, (place, drafter) in product(DATASETS, enumerate(DRAFTERS)):
        found = answers(dataset)
        tokens = sum(each.tokens for each in found)
        for window in range(1, MAX_WINDOW + 1):
            steps = sum(int(each.steps[place, window]) for each in found)
            row: Row = {"dataset": dataset, "drafter": drafter, "window": window}
            row["tokens_per_step"] = round(tokens / steps, 4)
            for ratio in RATIOS:
                spent = steps * step_times(ratio)[place, window]
                row[f"speed_up_at_{ratio}"] = round(tokens / spent, 4)
            rows.append(row)
    return rows


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(folder: Path = HERE) -> None:
    for name, table in {
        "windows": windows, "selection": selections, "predictions": predictions
    }.items():  # fmt: skip
        rows = table()
        write(folder / f"{name}.csv", rows)
        print(f"{name}: {len(rows)} rows", flush=True)


if __name__ == "__main__":
    main()
