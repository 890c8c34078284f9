from collections.abc import Iterable, Iterator
from statistics import median

from readme import Rows, read

METRICS = {
    "output_tok_s": "tok/s",
    "tpot_mean_ms": "TPOT mean",
    "e2e_mean_ms": "E2E mean",
    "ttft_p50_ms": "TTFT p50",
}
DRAFTS = {"none": "none", "eagle3": "EAGLE-3", "draft_model": "draft model"}
BOTH = ("specsim", "aisimulate")


def of_servers() -> Rows:
    """Return the errors of all servers whose runs are answered by both."""
    return [
        row
        for row in read("aisimulate/results.csv")
        if row["aisimulate"] and not row["set"].startswith(("vllm ", "sglang "))
    ]


def errors() -> Iterator[list[str]]:
    """Median sizes of errors, and the worst, by server and drafts."""
    yield ["server", "drafts", "runs", *METRICS.values(), "worst tok/s or TPOT"]
    rows = of_servers()
    for name in dict.fromkeys(row["set"] for row in rows):
        for method, drafts in DRAFTS.items():
            mine = [row for row in rows if row["set"] == name and row["method"] == method]
            if not mine:
                continue
            cells = [_pair([r for r in mine if r["metric"] == metric]) for metric in METRICS]
            speed = [row for row in mine if row["metric"] in ("output_tok_s", "tpot_mean_ms")]
            runs = len({row["id"] for row in mine})
            yield [name, drafts, str(runs), *cells, _pair(speed, max)]


def decisions() -> Iterator[list[str]]:
    """How far speed-ups are off, how often their sign is right, what the best k costs."""
    yield ["server", "speed-ups", "off, median", "off, worst", "right sign", "best k slower by"]
    rows = read("aisimulate/decisions.csv")
    for name in dict.fromkeys(row["set"] for row in rows):
        sides = [[row for row in rows if row["set"] == name and row["of"] == who] for who in BOTH]
        ups = [[row for row in side if row["what"] != "best k"] for side in sides]
        best = [[row for row in side if row["what"] == "best k"] for side in sides]
        sizes = [[abs(float(row["off"])) for row in side] for side in ups]
        yield [
            name,
            str(len(ups[0])),
            *(_said(how(side) for side in sizes) for how in (median, max)),
            " / ".join(str(sum(row["right"] == "1" for row in side)) for side in ups),
            _said(max(float(row["off"]) for row in side) for side in best) if best[0] else "",
        ]


def silicon() -> Iterator[list[str]]:
    """Median sizes of errors of each line of silicon."""
    yield ["engine", "model", "GPU", "loads", "TPOT mean", "TTFT mean"]
    for name, rows in _lines():
        engine, model, gpu = name.split(" ")
        cells = [
            _pair([r for r in rows if r["metric"] == m]) for m in ("tpot_mean_ms", "ttft_mean_ms")
        ]
        yield [engine, model, gpu.removesuffix("_sxm"), str(len(rows) // 2), *cells]


def tally() -> Iterator[list[str]]:
    """On how many lines each is nearer."""
    yield ["", "engine", "lines", "specsim nearer", "median of the lines' errors"]
    for metric in ("tpot_mean_ms", "ttft_mean_ms"):
        for engine in ("vllm", "sglang"):
            found = [
                [_off([r for r in rows if r["metric"] == metric], who) for who in BOTH]
                for name, rows in _lines()
                if name.startswith(f"{engine} ")
            ]
            nearer = sum(ours < theirs for ours, theirs in found)
            middle = _said(median(side) for side in zip(*found, strict=True))
            yield [metric.split("_")[0].upper(), engine, str(len(found)), str(nearer), middle]


def _lines() -> Iterator[tuple[str, Rows]]:
    rows = [row for row in read("aisimulate/results.csv") if row["aisimulate"]]
    names = dict.fromkeys(row["set"] for row in rows)
    for name in names:
        if name.startswith(("vllm ", "sglang ")):
            yield name, [row for row in rows if row["set"] == name]


def _off(rows: Rows, who: str) -> float:
    return median(abs(float(row[who])) for row in rows)


def _pair(rows: Rows, how=median) -> str:
    if not rows:
        return "–"
    return _said(how(abs(float(row[who])) for row in rows) for who in BOTH)


def _said(values: Iterable[float]) -> str:
    return " / ".join(f"{100 * value:.1f}" for value in values)
