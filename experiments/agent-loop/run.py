"""SuffixDecoding in an agent's closed loop: turns that share their prefix, and tools between them.

    SPECSIM_DATA=... python experiments/run.py agent-loop

Writes sql.csv, sessions.csv, loops.csv and plot.png beside this file. It needs the recorded token
traces, which are never shipped.
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from specsim.api import Experiment, Profile, Request, Summary, load_profile, read_trace, simulate
from specsim.profile.from_roofline import RooflineOptions, RooflineProfile
from specsim.results.metrics import session_spans

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "tokens"
LOOP = 1000  # tokens; longer SQL answers repeat themselves up to a limit
# Sessions at once (the paper's workers were up to 16, appendix A.1), and seconds that a tool takes
# between two turns, which the trace does not have.
SETTINGS = ((1, 0.0), (1, 5.0), (16, 0.0))
TOKEN_US = {
    "ngram": 6.0,
    "suffix": 6.0,
}  # what specsim's own lookups take (real-tokens, drafters.csv)
STEP_MS = 1.2  # overhead of the engine per step, as in profiles/h100/llama-3.1-8b.yaml
DEEP = {"suffix_decoding_max_tree_depth": 64, "suffix_decoding_max_spec_factor": 4.0}
IN_CROWDS = ("off", "n-gram", "suffix", "suffix, trees, factor 4")
DRAFTERS: dict[str, Any] = {
    "off": None,
    "n-gram": {"method": "ngram", "num_speculative_tokens": 5},
    "n-gram 1..6, k = 24": {
        "method": "ngram", "num_speculative_tokens": 24, "prompt_lookup_min": 1,
        "prompt_lookup_max": 6,
    },
    "suffix, own text only": {"method": "suffix", "use_global_tree": False},
    "suffix": {"method": "suffix"},
    "suffix, trees, factor 4": {"method": "suffix", "use_tree": True, **DEEP},
}  # fmt: skip

Row = dict[str, Any]


def with_lookups(fields: Row) -> Profile:
    drafts = {name: {"token_us": token_us} for name, token_us in TOKEN_US.items()}
    return Profile.model_validate({**fields, "drafts": drafts, "overhead": {"step_ms": STEP_MS}})


@cache
def profile(workload: str) -> Profile:
    """SQL: Llama-3.1-8B on an H100. Agents: the shape that is nearest to the paper's 32B, TP 4."""
    if workload == "sql":
        found = load_profile("h100/llama-3.1-8b")
        return with_lookups(found.model_dump(mode="json", exclude_none=True))
    options = RooflineOptions(model="qwen3-32b", gpu="h100", drafts={}, tensor_parallel_size=4)
    return with_lookups(RooflineProfile.of(options).fields)


def run(workload: str, drafter: str, requests: list[Request], clients: int, wait: float) -> Any:
    """Return the summary of one run."""
    base = Experiment.load(HERE / "experiment.yaml")
    engine = base.engine.model_dump(mode="json", exclude_none=True)
    given = DRAFTERS[drafter] or {"method": "suffix"}
    shape = base.workload.model_dump(mode="json")
    shape["arrivals"] = {"kind": "closed_loop", "concurrency": clients, "think_time": wait}
    experiment = base.replace(
        engine={**engine, "speculative_config": given},
        policy="off" if drafter == "off" else "static",
        workload=shape,
    )
    return Summary(simulate(experiment, requests=requests, profile=profile(workload)))


def numbered(requests: Sequence[Request]) -> list[Request]:
    return [replace(request, index=index) for index, request in enumerate(requests)]


# One step of an agent after the other: SQL


def sql(limit: int | None = None) -> list[Row]:
    """One client at batch 1, as in the paper's figure 4; file order, database by database."""
    found = read_trace(DATA / "bird_sql.jsonl.gz").requests()
    requests = numbered([each for each in found if each.output_len <= LOOP][:limit])
    rows: list[Row] = []
    for drafter in DRAFTERS:
        data = run("sql", drafter, requests, 1, 0.0).data
        tpot = data["duration"] / data["total_output_tokens"]
        rows.append(
            {
                "drafter": drafter,
                "requests": len(requests),
                "tokens_per_step": round(data["specsim"]["tokens_per_step"], 3),
                "ms_per_token": round(1e3 * tpot, 3),
                "speed_up": round(rows[0]["ms_per_token"] / (1e3 * tpot), 3) if rows else 1.0,
            }
        )
    return rows


# Sessions


@cache
def sessions() -> list[list[Request]]:
    """The turns of each session, in order."""
    found: dict[int | None, list[Request]] = {}
    for request in read_trace(DATA / "swe_agent.jsonl.gz").requests():
        found.setdefault(request.session, []).append(request)
    return list(found.values())


def shared_share(turns: Sequence[Sequence[Request]]) -> float:
    """Return which share of the prompts of all but first turns begins with the prompt before."""
    pairs = [pair for turn in turns for pair in pairwise(turn)]
    grown = [
        np.array_equal(b.prompt_token_ids[: a.prompt_len], a.prompt_token_ids)
        for a, b in pairs
        if a.prompt_token_ids is not None and b.prompt_token_ids is not None
    ]
    return float(np.mean(grown))


def closed(
    drafter: str, workers: int, tool_time: float, turns: Sequence[Sequence[Request]]
) -> tuple[list[float], Any]:
    """Return how long each session takes, and the summary.

    A worker has one session at a time, and takes the next one when it is done.
    """
    requests = numbered(
        [replace(turn, think_time=tool_time) for session in turns for turn in session]
    )
    summary = run("agents", drafter, requests, workers, 0.0)
    return session_times(summary), summary


def session_times(summary: Any) -> list[float]:
    starts, ends = session_spans(summary.request_columns)
    times: list[float] = (ends - starts).tolist()
    return times


def loops(
    turns: Sequence[Sequence[Request]], settings: Sequence[tuple[int, float]]
) -> tuple[list[Row], list[Row]]:
    """Return a row per setting, and one per session of each."""
    rows, each_session = [], []
    for count, tool_time in settings:
        base: list[float] = []
        for drafter in DRAFTERS if count == 1 else IN_CROWDS:
            times, summary = closed(drafter, count, tool_time, turns)
            base = base or times
            gains = np.divide(base, times)
            data = summary.data
            head = {"workers": count, "tool_s": tool_time, "drafter": drafter}
            rows.append(
                {
                    **head,
                    "tokens_per_step": round(data["specsim"]["tokens_per_step"], 3),
                    "mean_tpot_ms": round(data["mean_tpot_ms"], 3),
                    "prefix_hits": round(cached_share(summary), 3),
                    "mean_session_s": round(float(np.mean(times)), 2),
                    "speed_up": round(sum(base) / sum(times), 3),
                    "least": round(float(gains.min()), 3),
                    "most": round(float(gains.max()), 3),
                }
            )
            print(rows[-1], flush=True)
            each_session += [
                {**head, "session": s, "turns": len(turns[s]), "seconds": round(time, 3),
                 "speed_up": round(float(gain), 3)}
                for s, (time, gain) in enumerate(zip(times, gains, strict=True))
            ]  # fmt: skip
    return rows, each_session


def cached_share(summary: Any) -> float:
    rows = summary.tables.requests
    return float(rows["cached_len"].sum() / rows["prompt_len"].sum())


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(
    folder: Path = HERE, settings: Sequence[tuple[int, float]] = SETTINGS, limit: int | None = None
) -> None:
    turns = sessions()[:limit]
    print(f"{len(turns)} sessions, {sum(map(len, turns))} turns; "
          f"{shared_share(turns):.0%} of the later prompts begin with the one before")  # fmt: skip
    write(folder / "sql.csv", sql(None if limit is None else 20 * limit))
    rows, each_session = loops(turns, settings)
    write(folder / "loops.csv", rows)
    write(folder / "sessions.csv", each_session)
    draw(each_session, folder)


def draw(rows: list[Row], folder: Path) -> None:
    """Speed-up of every session, sorted, by setting."""
    mpl.use("Agg")
    settings = list(dict.fromkeys((row["workers"], row["tool_s"]) for row in rows))
    figure, axes = plt.subplots(
        1, len(settings), figsize=(4 * len(settings), 4), squeeze=False, sharey=True,
        constrained_layout=True,
    )  # fmt: skip
    for axis, (workers, tool_time) in zip(axes[0], settings, strict=True):
        for number, drafter in enumerate(DRAFTERS):
            gains = sorted(
                row["speed_up"]
                for row in rows
                if (row["workers"], row["tool_s"], row["drafter"]) == (workers, tool_time, drafter)
            )
            if drafter == "off" or not gains:
                continue
            axis.plot(range(1, len(gains) + 1), gains, f"C{number}o-", markersize=3, label=drafter)
        axis.axhline(1.0, color="gray", linewidth=0.8)
        axis.set_title(f"{workers} at once, tools take {tool_time:.0f} s", fontsize=10)
        axis.set_xlabel("session, by speed-up")
    axes[0, 0].set_ylabel("speed-up of the whole session")
    axes[0, 0].legend(fontsize=8)
    figure.savefig(folder / "plot.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
