"""Who would have paid on real answers: lookups, EAGLE as recorded, and hybrids of both.

    SPECSIM_DATA=... python experiments/run.py real-tokens

Writes the CSV files and plots beside this file. It needs the recorded token traces, which are never
shipped, and reads nothing else.
"""

import csv
import gzip
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from specsim.core.request import Request
from specsim.lookup import Lookup
from specsim.tokens.draft_eval import DraftCounts, evaluate_drafts, load_texts, parse_drafter

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "tokens"
FILES = {
    "bird_sql": "bird_sql",
    "swe_agent": "swe_agent",
    "instructcoder": "llama31_8b_instructcoder",
    "sharegpt": "llama31_8b_sharegpt",
    "gsm8k": "llama31_8b_gsm8k",
    "cnn": "llama31_8b_cnn",
}
RECORDED = ("instructcoder", "sharegpt", "gsm8k", "cnn")  # with EAGLE's accepted lengths
LONG = 1000  # tokens; longer answers are loops, except in sharegpt

Row = dict[str, Any]
Task = tuple[Callable[..., list[Row]], tuple[Any, ...]]


@cache
def texts(dataset: str) -> list[Request]:
    return load_texts(DATA / f"{FILES[dataset]}.jsonl.gz")


class Total(NamedTuple):
    """Counts of some requests; the first token of each comes from prefill."""

    requests: int
    steps: int
    accepted: int
    drafted: int
    output_tokens: int

    @classmethod
    def of(cls, counts: Sequence[DraftCounts]) -> "Total":
        return cls(len(counts), *map(sum, zip(*counts, strict=True)))

    @property
    def tokens_per_step(self) -> float:
        return (self.output_tokens - self.requests) / max(1, self.steps)

    def as_row(self) -> Row:
        return {
            "tokens_per_step": round(self.tokens_per_step, 4),
            "acceptance": round(self.accepted / max(1, self.drafted), 4),
            "drafted_per_step": round(self.drafted / max(1, self.steps), 3),
        }


# Who would have paid


def ngrams() -> dict[str, Row]:
    """Return the grid of n-gram bounds, each for vLLM's usual k and for that of suffix decoding."""
    grid = product((1, 2, 3), (3, 4, 6), (5, 24))
    return {
        f"n-gram {low}..{high} k={k}": {
            "prompt_lookup_min": low,
            "prompt_lookup_max": high,
            "num_speculative_tokens": k,
        }
        for low, high, k in grid
    }


def drafters(dataset: str) -> dict[str, tuple[str, Row]]:
    """Return method and options by name."""
    ngram_5 = {"num_speculative_tokens": 5, "prompt_lookup_max": 5}
    deep = {"use_tree": True, "max_tree_depth": 64, "max_spec_factor": 2.0}
    found = {
        "n-gram 5..5 k=5": ("ngram", ngram_5),
        **{name: ("ngram", options) for name, options in ngrams().items()},
        "suffix": ("suffix", {}),
        "suffix, own text only": ("suffix", {"use_global_tree": False}),
        "suffix, tree drafts": ("suffix", {"use_tree": True}),
        "suffix, tree drafts, 64 deep, factor 2": ("suffix", deep),
        "sssd, input only, k=8": ("sssd", {"num_speculative_tokens": 8}),
    }
    if dataset not in RECORDED:
        return found
    for k in (3, 5, 8):
        found[f"EAGLE k={k}"] = ("eagle", {"num_speculative_tokens": k})
    for k, tau in product((3, 5), (0, 0.5, 1, 1.5, 2, 3, 5, None)):
        options = {"lookup": "suffix", "fallback": f"eagle:num_speculative_tokens={k}"}
        name = "adaptive" if tau is None else f"tau={tau}"
        found[f"hybrid k={k} {name}"] = ("hybrid", {**options, "tau": tau})
    return found


def who_pays(dataset: str, name: str, method: str, options: Row) -> list[Row]:
    drafter, requests = parse_drafter(method, options, name), texts(dataset)
    result = evaluate_drafts(drafter, requests, drafts_first_token=False)
    published = result
    if drafter.proposer.drafts_first_token:
        published = evaluate_drafts(drafter, requests)
    total = Total.of(result.per_request)
    shorter = [counts for counts in result.per_request if counts.output_tokens <= LONG]
    return [
        {
            "dataset": dataset,
            "drafter": name,
            **total.as_row(),
            "tokens_per_step_up_to_1000": round(Total.of(shorter).tokens_per_step, 4),
            "tokens_per_step_as_published": round(published.tokens_per_step, 4),
            "host_us_per_step": round(result.step_us, 1),
            "host_us_per_draft_token": round(1e6 * result.step_time / max(1, total.drafted), 1),
        }
    ]


# Which tree


def which_tree(dataset: str, trees: str) -> list[Row]:
    requests, rows = texts(dataset), []
    for use_tree in (False, True):
        options = {
            "use_global_tree": trees != "local",
            "use_local_tree": trees != "global",
            "use_tree": use_tree,
        }
        drafter = parse_drafter("suffix", options, trees)
        counts = evaluate_drafts(drafter, requests, drafts_first_token=False).per_request
        drafts = "tree" if use_tree else "chain"
        rows.append(
            {"dataset": dataset, "trees": trees, "drafts": drafts, **Total.of(counts).as_row()}
        )
    return rows


# Trees that have learnt before, and do not learn from what they are asked


def teach(lookup: Lookup, requests: Iterable[Request]) -> None:
    """Let a lookup take in answers without drafting for them."""
    for request in requests:
        text = request.text
        lookup.start(request.index, text)
        lookup.reveal(request.index, len(text.token_ids))
        lookup.end(request.index)


class Token(NamedTuple):
    """A draft token."""

    stated: float
    """Probability, by the tree, that it is reached and accepted."""
    draft_len: int
    """Of its draft."""
    depth: int
    """Place in it, from 1."""
    is_accepted: bool


def replay(
    lookup: Lookup, request: Request, max_len: int, seen: list[Token] | None = None
) -> DraftCounts:
    """Return the counts of one request, and note every draft token."""
    text, (steps, accepted, drafted) = request.text, (0, 0, 0)
    known_len, end_len = text.prompt_len + 1, len(text.token_ids)
    lookup.start(request.index, text)
    lookup.reveal(request.index, known_len)
    while known_len < end_len:
        draft = lookup.draft(request.index, max_len)
        accepted_len = draft.accepted_len(text.token_ids[known_len:])
        if seen is not None and known_len + len(draft.token_ids) <= end_len:
            seen += [
                Token(prob, len(draft.probs), place, place <= accepted_len)
                for place, prob in enumerate(draft.probs, start=1)
            ]
        steps, accepted, drafted = steps + 1, accepted + accepted_len, drafted + len(draft.probs)
        known_len = min(known_len + accepted_len + 1, end_len)
        lookup.reveal(request.index, known_len)
    lookup.end(request.index)
    return DraftCounts(steps, accepted, drafted, text.output_len)


def suffix_lookup(**options: Any) -> Lookup:
    lookup = parse_drafter("suffix", options, "suffix").proposer.make_lookup()
    assert lookup is not None
    return lookup


def frozen(lookup: Lookup, requests: Sequence[Request]) -> list[DraftCounts]:
    """Return the counts of requests that each meet the lookup as it is."""
    return [replay(deepcopy(lookup), request, 24) for request in requests]


def shuffled(requests: Sequence[Request], seed: int = 0) -> list[Request]:
    order = np.random.default_rng(seed).permutation(len(requests))
    return [requests[place] for place in order]


def renumbered(requests: Iterable[Request], start: int) -> list[Request]:
    """Return copies that share no index with those of another file."""
    return [
        Request(
            index=start + number,
            prompt_len=request.prompt_len,
            output_len=request.output_len,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids,
        )
        for number, request in enumerate(requests)
    ]


CACHE_SIZES = (0, 10, 25, 50, 100, 200, 400, 800, 1200)
SLICES = {"bird_sql": 200, "swe_agent": 60, "instructcoder": 60, "sharegpt": 40}


def cache_growth(dataset: str, order: str) -> list[Row]:
    """The last requests, drafted for from so many answers before them."""
    requests = texts(dataset) if order == "file" else shuffled(texts(dataset))
    before, asked = requests[: -SLICES[dataset]], requests[-SLICES[dataset] :]
    asked = [request for request in asked if request.output_len <= LONG or dataset == "sharegpt"]
    rows = []
    for size in [size for size in CACHE_SIZES if size < len(before)] + [len(before)]:
        lookup = suffix_lookup()
        teach(lookup, before[len(before) - size :])
        row = Total.of(frozen(lookup, asked)).as_row()
        rows.append({"dataset": dataset, "order": order, "cached_answers": size, **row})
    return rows


NUM_SHIFTED = 500  # SQL requests, as in the paper
WINDOW = 50


def distribution_shift() -> list[Row]:
    """Trees that know chat, when SQL comes."""
    chat = texts("sharegpt")
    sql = [request for request in shuffled(texts("bird_sql")) if request.output_len <= LONG]
    sql = renumbered(sql[: 2 * NUM_SHIFTED], len(chat))
    asked, others = sql[:NUM_SHIFTED], sql[NUM_SHIFTED:]
    learns, stays, offline = suffix_lookup(), suffix_lookup(), suffix_lookup()
    teach(learns, chat)
    teach(stays, chat)
    teach(offline, others)
    curves = {
        "chat, then learns SQL online": [replay(learns, request, 24) for request in asked],
        "chat only": frozen(stays, asked),
        "500 other SQL answers only": frozen(offline, asked),
    }
    return [
        {"trees": name, "sql_seen": begin + WINDOW, **Total.of(part).as_row()}
        for name, counts in curves.items()
        for begin in range(0, NUM_SHIFTED, WINDOW)
        for part in [counts[begin : begin + WINDOW]]
    ]


# Sources of SSSD


def halves(dataset: str, split: str) -> tuple[list[Request], list[Request]]:
    requests = texts(dataset)
    if split == "alternate":
        return requests[::2], requests[1::2]
    return requests[: len(requests) // 2], requests[len(requests) // 2 :]


def write_trace(path: Path, requests: Iterable[Request]) -> None:
    with gzip.open(path, "wt", compresslevel=1) as stream:
        for request in requests:
            assert request.output_token_ids is not None
            row = {"prompt_token_ids": [], "generated_token_ids": request.output_token_ids.tolist()}
            stream.write(json.dumps(row) + "\n")


def sssd_sources(dataset: str, split: str) -> list[Row]:
    """Each half of a dataset, with the answers of the other as the datastore."""
    counts: dict[tuple[str, str], list[DraftCounts]] = {}
    parts = halves(dataset, split)
    with TemporaryDirectory() as folder:
        for number, asked in enumerate(parts):
            path = Path(folder) / f"{number}.jsonl.gz"
            write_trace(path, parts[1 - number])
            sources: dict[str, Row] = {
                "input": {},
                "datastore": {"corpus": path, "use_input": False},
                "both": {"corpus": path},
            }
            for (name, options), drafts in product(sources.items(), ("chain", "tree")):
                shape = {"use_tree": drafts == "tree"}
                length = {"num_speculative_tokens": 16 if drafts == "tree" else 8}
                drafter = parse_drafter("sssd", {**options, **shape, **length}, name)
                found = evaluate_drafts(drafter, asked).per_request
                counts.setdefault((drafts, name), []).extend(found)
            drafter = parse_drafter("datastore", {"corpus": path, "num_speculative_tokens": 8}, "-")
            found = evaluate_drafts(drafter, asked).per_request
            counts.setdefault(("chain", "REST"), []).extend(found)
    return [
        {"dataset": dataset, "split": split, "drafts": drafts, "source": name,
         **Total.of(found).as_row()}
        for (drafts, name), found in counts.items()
    ]  # fmt: skip


# Calibration


def drafted(dataset: str, trees: str) -> list[Token]:
    """Return all draft tokens that do not reach beyond the end of an answer; no loops."""
    lookup, seen = suffix_lookup(use_global_tree=trees == "both"), list[Token]()
    for request in texts(dataset):
        if request.output_len <= LONG or dataset == "sharegpt":
            replay(lookup, request, 24, seen)
        else:
            teach(lookup, [request])
    return seen


def calibration(dataset: str, trees: str) -> list[Row]:
    """What became of draft tokens, by the probability that the tree stated."""
    stated, _, _, accepted = np.array(drafted(dataset, trees), dtype=float).T
    rows = []
    for decile in range(10):
        is_in = np.minimum((stated * 10).astype(int), 9) == decile
        if is_in.any():
            rows.append(
                {
                    "dataset": dataset,
                    "trees": trees,
                    "decile": decile,
                    "draft_tokens": int(is_in.sum()),
                    "stated": round(float(stated[is_in].mean()), 4),
                    "accepted": round(float(accepted[is_in].mean()), 4),
                }
            )
    return rows


def one_in_two(dataset: str) -> list[Row]:
    """What became of draft tokens of which the tree stated 1/2, by length of draft and depth."""
    seen = [token for token in drafted(dataset, "both") if 0.49 < token.stated < 0.51]
    rows = []
    for sort, edges in (("draft_len", (1, 2, 3, 5, 9, 17)), ("depth", (1, 2, 3, 5, 9))):
        for least, end in pairwise((*edges, 25)):
            fates = [t.is_accepted for t in seen if least <= getattr(t, sort) < end]
            if fates:
                row = {"dataset": dataset, "by": sort, "from": least, "to": end - 1}
                share = round(sum(fates) / len(fates), 4)
                rows.append({**row, "draft_tokens": len(fates), "accepted": share})
    return rows


# All of it


def tasks(datasets: Sequence[str]) -> dict[str, list[Task]]:
    """Return what fills each file."""
    return {
        "drafters": [
            (who_pays, (dataset, name, *drafter))
            for dataset in datasets
            for name, drafter in drafters(dataset).items()
        ],
        "trees": [(which_tree, pair) for pair in product(datasets, ("both", "global", "local"))],
        "cache": [
            (cache_growth, pair)
            for pair in product([d for d in SLICES if d in datasets], ("file", "shuffled"))
        ],
        "shift": [(distribution_shift, ())] if {"sharegpt", "bird_sql"} <= {*datasets} else [],
        "sssd": [(sssd_sources, pair) for pair in product(datasets, ("halves", "alternate"))],
        "calibration": [(calibration, pair) for pair in product(datasets, ("both", "local"))],
        "one_in_two": [(one_in_two, (dataset,)) for dataset in datasets],
    }


def call(task: Task) -> list[Row]:
    function, arguments = task
    return function(*arguments)


def main(folder: Path = HERE, datasets: Sequence[str] = tuple(FILES), workers: int = 2) -> None:
    tables: dict[str, list[Row]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for name, found in tasks(datasets).items():
            tables[name] = [row for rows in pool.map(call, found) for row in rows]
            if tables[name]:
                write(folder / f"{name}.csv", tables[name])
            print(f"{name}: {len(tables[name])} rows", flush=True)
    draw_drafters(tables["drafters"], folder)
    if tables["cache"] and tables["shift"]:
        draw_learning(tables["cache"], tables["shift"], folder)
    draw_calibration(tables["calibration"], folder)


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def best(rows: list[Row], dataset: str, start: str, end: str = "") -> Row:
    """Return the row of most tokens per step among drafters of such a name."""
    mine = [
        row
        for row in rows
        if row["dataset"] == dataset
        and row["drafter"].startswith(start)
        and row["drafter"].endswith(end)
    ]
    return max(mine, key=lambda row: row["tokens_per_step"], default={"tokens_per_step": np.nan})


BARS = {
    "n-gram 5..5 k=5": ("n-gram 5..5 k=5", ""),
    "n-gram, best of the grid": ("n-gram", "k=24"),
    "sssd, input only": ("sssd", ""),
    "suffix, own text only": ("suffix, own", ""),
    "suffix": ("suffix", "suffix"),
    "suffix, tree drafts, 64 deep": ("suffix, tree drafts, 64", ""),
    "EAGLE k=5": ("EAGLE k=5", ""),
    "hybrid k=5, best tau": ("hybrid k=5 tau", ""),
    "hybrid k=5, adaptive": ("hybrid k=5 adaptive", ""),
}


def draw_drafters(rows: list[Row], folder: Path) -> None:
    mpl.use("Agg")
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    figure, axis = plt.subplots(figsize=(11, 4.5), constrained_layout=True)
    width = 0.85 / len(BARS)
    for number, (label, ends) in enumerate(BARS.items()):
        heights = [best(rows, dataset, *ends)["tokens_per_step"] for dataset in datasets]
        places = np.arange(len(datasets)) + (number - len(BARS) / 2 + 0.5) * width
        axis.bar(places, heights, width, label=label)
    axis.set_xticks(range(len(datasets)), datasets)
    axis.set_ylabel("tokens per step")
    axis.set_ylim(bottom=1)
    axis.legend(fontsize=8, ncols=2)
    save(figure, folder / "drafters.png")


def draw_learning(growth: list[Row], shift: list[Row], folder: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), constrained_layout=True)
    for dataset, order in product(SLICES, ("file", "shuffled")):
        mine = [row for row in growth if (row["dataset"], row["order"]) == (dataset, order)]
        if mine:
            style = f"C{list(SLICES).index(dataset)}{'-o' if order == 'file' else '--'}"
            sizes = [row["cached_answers"] for row in mine]
            heights = [row["tokens_per_step"] for row in mine]
            left.plot(sizes, heights, style, markersize=4, label=f"{dataset}, {order} order")
    left.set_xscale("symlog", linthresh=10)
    left.set_xlabel("answers in the global tree")
    left.set_ylabel("tokens per step")
    left.legend(fontsize=8)
    for name in dict.fromkeys(row["trees"] for row in shift):
        mine = [row for row in shift if row["trees"] == name]
        seen = [row["sql_seen"] - WINDOW / 2 for row in mine]
        right.plot(seen, [row["tokens_per_step"] for row in mine], "-o", markersize=4, label=name)
    right.set_xlabel(f"SQL requests seen (windows of {WINDOW})")
    right.set_ylabel("tokens per step")
    right.legend(fontsize=8)
    save(figure, folder / "learning.png")


def draw_calibration(rows: list[Row], folder: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), sharey=True, constrained_layout=True)
    for axis, trees in zip(axes, ("both", "local"), strict=True):
        for dataset in dict.fromkeys(row["dataset"] for row in rows):
            mine = [r for r in rows if (r["dataset"], r["trees"]) == (dataset, trees)]
            stated, accepted = ([row[name] for row in mine] for name in ("stated", "accepted"))
            axis.plot(stated, accepted, "-o", markersize=4, label=dataset)
        axis.plot([0, 1], [0, 1], color="gray", linewidth=0.8)
        axis.set_title("with the global tree" if trees == "both" else "own text only")
        axis.set_xlabel("probability that the tree states")
    axes[0].set_ylabel("share accepted")
    axes[0].legend(fontsize=8)
    save(figure, folder / "calibration.png")


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
