from collections.abc import Iterator
from statistics import median

from readme import Rows, read

from specsim.core.figures import percent

METRICS = {"tok_s": "tok/s", "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E p50"}
GPUS = {"b200": "B200", "b300": "B300", "gb300": "GB300"}


def servers() -> Iterator[list[str]]:
    """Median and worst error of each server."""
    yield ["engine", "model", "GPUs", "clients", *METRICS.values()]
    rows = read("large-models/results.csv")
    names = ("engine", "model", "gpu", "gpus")
    for line in dict.fromkeys(tuple(row[name] for name in names) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in names) == line]
        engine, model, gpu, gpus = line
        clients = f"{own[0]['clients']} to {own[-1]['clients']}"
        told = [_told(own, f"error_{metric}") for metric in METRICS]
        yield [engine, model, f"{gpus} {GPUS[gpu]}", clients, *told]


def _told(rows: Rows, column: str) -> str:
    errors = [float(row[column]) for row in rows if row[column]]
    if not errors:
        return "–"
    worst = max(errors, key=abs)
    return f"{percent(median(map(abs, errors)))} / {100 * worst:+.1f} %"


def ranks() -> Iterator[list[str]]:
    """TPOT of Kimi-K2.5, beside what AISimulate says of it."""
    yield ["GPUs", "clients", "measured, ms", "specsim", "AISimulate"]
    measured = read("large-models/measured.csv", model="kimi-k2.5")
    ours = read("large-models/results.csv", model="kimi-k2.5")
    for row, found in zip(measured, ours, strict=True):
        theirs = float(row["aisimulate_tpot_mean_ms"]) / float(row["tpot_mean_ms"]) - 1
        yield [
            f"{row['ranks']} {GPUS[row['gpu']]}",
            row["clients"],
            f"{float(row['tpot_mean_ms']):.1f}",
            f"{100 * float(found['error_tpot']):+.1f} %",
            f"{100 * theirs:+.1f} %",
        ]
