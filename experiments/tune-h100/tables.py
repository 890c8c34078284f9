import json
from collections.abc import Iterator
from typing import Any

from readme import HERE

SHOWN = (1, 8, 16, 32, 64, 128, 256, 512, 900)


def _found() -> Any:
    return json.loads((HERE / "tune-h100" / "tune.json").read_text(encoding="utf-8"))


def batch_sizes() -> Iterator[list[str]]:
    yield ["batch size", "best k", "output throughput over k = 0"]
    for row in _found()["batch_sizes"]:
        if row["batch_size"] in SHOWN:
            best, fastest = row["best_k"], row["fastest_k"]
            tied = f" (tied with {fastest})" if fastest != best else ""
            gain = row["gain_over_0"][best]["mean"]
            yield [str(row["batch_size"]), f"{best}{tied}", f"{gain:.2f}"]


def crossovers() -> Iterator[list[str]]:
    yield ["k", "requests/s", "95 % interval"]
    always = []
    for row in reversed(_found()["crossovers"]):
        if row["pays"] == "below":
            ends = f"{row['low']:.1f} - {row['high']:.1f}"
            yield [str(row["k"]), f"{row['load']:.1f}", ends]
        else:
            assert row["pays"] == "always"
            always.append(row)
    most = f"{always[0]['highest_load']:.0f}"
    ks = ", ".join(str(row["k"]) for row in always)
    yield [ks, f"always, up to {most} (95 % of the highest throughput)", ""]
