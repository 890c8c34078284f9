from collections.abc import Iterator
from statistics import median

from readme import one, read

Row = list[str]

ERRORS, DECODES = "vllm-h200/errors.csv", "vllm-h200/decodes.csv"
ENGINES = {
    "off": "no speculation",
    "eagle3-1": "EAGLE-3, k = 1",
    "eagle3-3": "EAGLE-3, k = 3",
    "eagle3-5": "EAGLE-3, k = 5",
    "draft-3": "Llama-3.2-1B, k = 3",
}
METRICS = {
    "output_tok_s": "tok/s",
    "tpot_mean_ms": "TPOT mean",
    "itl_p50_ms": "ITL p50",
    "ttft_p50_ms": "TTFT p50",
    "e2e_mean_ms": "E2E mean",
}
FITTED = ("clients-8", "clients-128", "long-prompts")
LOADS = {
    "clients-8": "8 clients",
    "clients-32": "32 clients",
    "clients-128": "128 clients",
    "clients-256": "256 clients",
    "long-prompts": "16 clients, long prompts",
}


def errors() -> Iterator[Row]:
    """Of all loads, of the profile as built."""
    return _errors("built", held_out=False)


def held_out() -> Iterator[Row]:
    """Of the loads that made no profile, under the one of steps and under the one as built."""
    yield ["engine", "profile", *METRICS.values()]
    for profile, name in (("built", "as built"), ("of steps", "of steps")):
        for row in list(_errors(profile, held_out=True))[1:]:
            yield [row[0], name, *row[2:]]


def _errors(profile: str, *, held_out: bool) -> Iterator[Row]:
    yield ["engine", "loads", *METRICS.values()]
    rows = [
        row for row in read(ERRORS, profile=profile) if not held_out or row["load"] not in FITTED
    ]
    for engine, name in ENGINES.items():
        mine = [row for row in rows if row["engine"] == engine]
        if held_out and engine == "draft-3":
            continue
        cells = []
        for metric in METRICS:
            sizes = [abs(_error(row)) for row in mine if row["metric"] == metric]
            cells.append(f"{100 * median(sizes):.1f} / {100 * max(sizes):.1f}")
        yield [name, str(len({row["load"] for row in mine})), *cells]


def _error(row: dict[str, str]) -> float:
    return float(row["predicted"]) / float(row["measured"]) - 1


def speed_ups() -> Iterator[Row]:
    """Of output tokens/s against no speculation, measured and predicted as built."""
    engines = [engine for engine in ENGINES if engine != "off"]
    yield ["load", *(ENGINES[engine] for engine in engines)]
    rows = read(ERRORS, profile="built", metric="output_tok_s")
    for load, name in LOADS.items():
        mine = {row["engine"]: row for row in rows if row["load"] == load}
        cells = []
        for engine in engines:
            pair = [
                float(mine[engine][of]) / float(mine["off"][of]) if engine in mine else None
                for of in ("measured", "predicted")
            ]
            cells.append(" / ".join("-" if each is None else f"{each:.2f}" for each in pair))
        yield [name, *cells]


def replays() -> Iterator[Row]:
    """Of one load, draft by draft: mean size of the errors of 15 statistics, and two of them."""
    yield ["engine", "as built", "mean TPOT", "profile of steps", "mean TPOT"]
    rows = read("vllm-h200/replays.csv")
    for engine, name in ENGINES.items():
        cells = []
        for profile in ("built", "of steps"):
            mine = [row for row in rows if (row["engine"], row["profile"]) == (engine, profile)]
            shares = [(float(row["mean_error"]), float(row["tpot mean"])) for row in mine]
            cells += [
                f"{100 * each:{sign}.1f} %"
                for pair in shares
                for each, sign in zip(pair, ("", "+"), strict=True)
            ]
        yield [name, *cells, *["-"] * (4 - len(cells))]


def decodes() -> Iterator[Row]:
    """What a step without prompts took, median, and what is predicted, milliseconds."""
    sizes = ("1", "8", "32", "128", "256")
    yield ["engine", *(f"up to {size}" for size in sizes)]
    rows = read(DECODES, contexts="short")
    for engine, name in ENGINES.items():
        cells = []
        for size in sizes:
            row = one(rows, engine=engine, sequences_up_to=size)
            cells.append(f"{float(row['p50_ms']):.1f} / {float(row['predicted_ms']):.1f}")
        yield [name, *cells]
