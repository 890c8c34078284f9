from collections.abc import Iterator

from readme import one, read

RUNS = ("RTX4090-llama-3.1-8b", "RTXPRO6000-llama-3.1-8b")
NAMES = {
    "kernel tables": "kernel tables (`specsim validate`, no real run used)",
    "": "LLMServingSim, its own statement for these runs",
    "two_regime, fitted to the tables": "`two_regime`, fitted to the tables (no real run used)",
    "linear, fitted to the tables": "`linear`, fitted to the tables (no real run used)",
    "two_regime and a constant (requests after 60)": (
        "`two_regime` and one constant from the first 60 requests; error on the other 240"
    ),
    "linear and a constant (requests after 60)": "`linear` and one constant, likewise",
}
STATED = ("0.46 %", "2.10 %")
"""By LLMServingSim."""


def errors() -> Iterator[list[str]]:
    yield ["step times from", "RTX 4090", "RTX PRO 6000"]
    rows = read("real-runs/errors.csv")
    for variant, name in NAMES.items():
        mine = [one(rows, run=run, variant=variant) for run in RUNS] if variant else []
        cells = [f"{_percent(row['mean_error'])} ({_percent(row['worst_error'])})" for row in mine]
        yield [name, *(cells or STATED)]


def effects() -> Iterator[list[str]]:
    yield ["effect", "RTX 4090", "RTX PRO 6000"]
    rows = {
        (row["run"], row["variant"]): _percent(row["mean_error"])
        for row in read("real-runs/errors.csv")
    }
    first, second = ({v: text for (r, v), text in rows.items() if r == run} for run in RUNS)
    yield ["as above", first["kernel tables"], second["kernel tables"]]
    skews = (
        f"on: {first['kernel tables, skew.csv on']}",
        f"off: {second['kernel tables, skew.csv off']}",
    )
    yield ["KV lengths that differ in a batch (skew.csv) the other way", *skews]
    for name, text in (
        ("kernel tables, no padding", "no padding to CUDA-graph sizes"),
        ("kernel tables, no prefix hits", "no prefix hits (token ids left out)"),
    ):
        yield [text, first[name], second[name]]


def _percent(text: str) -> str:
    return text.replace("%", " %")


VARIANTS = {
    "two servers by themselves, all experts on each": (
        "two servers by themselves, all experts on each (what specsim did before)"
    ),
    "+ experts of both ranks shared out, as if both had the same step": (
        "experts of both ranks shared out, as if both had the same step"
    ),
    "+ zeros for the other GPU's experts (vLLM before 0.32): all": (
        "+ zeros for the other GPU's experts: all"
    ),
}


def experts() -> Iterator[list[str]]:
    yield ["simulated", "error", "mean TTFT", "mean TPOT"]
    for row in read("real-runs/moe.csv"):
        error = f"{100 * float(row['mean_abs_error']):.1f} %"
        is_whole = row["variant"].endswith(": all")
        signed = (f"{100 * float(row[name]):+.1f} %" for name in ("ttft_mean", "tpot_mean"))
        yield [
            VARIANTS.get(row["variant"], row["variant"]),
            f"**{error}**" if is_whole else error,
            *signed,
        ]
        if is_whole:
            yield ["LLMServingSim, its own statement", "4.85 %", "-14 %", "-1.7 %"]
