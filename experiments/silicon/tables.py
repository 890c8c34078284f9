from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from statistics import median

from readme import Rows, read

from specsim.core.figures import percent

METRICS = ("tpot", "ttft")
BAR = 0.1


def lines() -> Iterator[tuple[list[str], Rows]]:
    """Yield engine, model and GPU, and their loads."""
    rows = read("silicon/results.csv")
    names = ("engine", "model", "gpu")
    for line in dict.fromkeys(tuple(row[name] for name in names) for row in rows):
        yield list(line), [row for row in rows if tuple(row[name] for name in names) == line]


def off(rows: Rows, who: str, metric: str) -> float:
    """Return the median of the absolute errors."""
    return median(abs(float(row[f"{who}_{metric}"])) for row in rows)


def compared(rows: Rows) -> Rows:
    return [row for row in rows if row["aiconfigurator_tpot"]]


def errors() -> Iterator[list[str]]:
    """Of all loads of a line, and of those that both answered, ours / AIConfigurator's."""
    yield [
        *("engine", "model", "GPU", "loads", "TPOT", "TTFT", "of these with both"),
        *("TPOT, ours / theirs", "TTFT, ours / theirs"),
    ]
    for (engine, model, gpu), rows in lines():
        both = compared(rows)
        cells = [percent(off(rows, "error", metric)) for metric in METRICS]
        pairs = [
            " / ".join(percent(off(both, who, metric)) for who in ("error", "aiconfigurator"))
            if both
            else "refused"
            for metric in METRICS
        ]
        name, system = model.partition("/")[2], gpu.removesuffix("_sxm")
        yield [engine, name, system, str(len(rows)), *cells, str(len(both)), *pairs]


def tally() -> Iterator[list[str]]:
    """How many lines meet what was asked for."""
    yield ["", "lines", "at most 10 %", "better than AIConfigurator, of lines with both"]
    found = list(lines())
    for metric in METRICS:
        kept = [rows for _, rows in found]
        pairs = [both for rows in kept if (both := compared(rows))]
        yield [
            metric.upper(),
            str(len(kept)),
            str(_count(off(rows, "error", metric) <= BAR for rows in kept)),
            f"{_count(_is_better(both, metric) for both in pairs)} of {len(pairs)}",
        ]


def repeats() -> Iterator[list[str]]:
    """How far measurements of the same load of the same server lie apart."""
    yield ["engine", "model", "GPU", "pairs", "TPOT apart", "TTFT apart"]
    rows = read("silicon/repeats.csv")
    line = itemgetter("engine", "model", "gpu")
    for (engine, model, gpu), group in groupby(rows, line):
        pairs = list(group)
        apart = [percent(median(float(row[metric]) for row in pairs)) for metric in METRICS]
        name, system = model.partition("/")[2], gpu.removesuffix("_sxm")
        yield [engine, name, system, str(len(pairs)), *apart]


def drafted() -> Iterator[list[str]]:
    """Of servers that drafted: the rows that take no part in choosing alpha."""
    yield ["model", "GPU", "drafts", "alpha", "loads", "TPOT", "TTFT", "TPOT, worst"]
    rows = read("silicon/drafted.csv", takes_part=0)
    for (model, gpu, k, alpha), group in groupby(rows, itemgetter("model", "gpu", "k", "alpha")):
        loads = list(group)
        cells = [percent(off(loads, "error", metric)) for metric in METRICS]
        worst = percent(max(abs(float(row["error_tpot"])) for row in loads))
        name, system = model.partition("/")[2], gpu.removesuffix("_sxm")
        yield [name, system, k, f"{float(alpha):.2f}", str(len(loads)), *cells, worst]


def _is_better(both: Rows, metric: str) -> bool:
    return off(both, "error", metric) < off(both, "aiconfigurator", metric)


def _count(flags: Iterable[bool]) -> int:
    return sum(map(bool, flags))
