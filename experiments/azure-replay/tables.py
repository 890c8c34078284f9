from collections.abc import Iterator

from readme import read

SHOWN = {
    "mean_ttft_ms": ("TTFT mean, ms", ".1f"),
    "mean_tpot_ms": ("TPOT mean, ms", ".2f"),
    "mean_e2el_ms": ("end-to-end latency mean, ms", ",.0f"),
    "p99_e2el_ms": ("end-to-end latency p99, ms", ",.0f"),
    "speed_up": ("speed-up", ".3f"),
}


def policies() -> Iterator[list[str]]:
    rows = read("azure-replay/results.csv")
    yield ["", "off", "k = 1", "k = 3"]
    for name, (label, form) in SHOWN.items():
        yield [label, *(format(float(row[name]), form) for row in rows)]
