"""A measured run and its simulation, on the same axes."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from specsim.reality.validation import METRICS, Measured, Validation
from specsim.show.plots.save import save

__all__ = ["plot_validation"]

_LABELS = {"ttft": "TTFT, s", "tpot": "TPOT, s", "latency": "Latency, s"}
_REAL: dict[str, Any] = {"color": "black", "lw": 2.5, "alpha": 0.5}
_OURS: dict[str, Any] = {"lw": 1}


def plot_validation(simulations: dict[str, Validation], path: Path, title: str) -> None:
    """Draw the latency distributions and the throughput of a run, measured and simulated.

    Args:
        simulations: Of the same run, by label.
        path: ``.png``, ``.svg`` or ``.pdf``.
    """
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    figure.suptitle(title)
    first = next(iter(simulations.values()))
    runs: dict[str, Measured] = {"measured": first.measured}
    runs |= {label: found.simulated for label, found in simulations.items()}
    for axis, metric in zip(axes.flat, METRICS, strict=False):
        for label, run in runs.items():
            values = run.latencies()[metric]
            values = np.sort(values[np.isfinite(values)])
            shares = np.arange(1, len(values) + 1) / max(len(values), 1)
            axis.plot(values, shares, label=label, **(_REAL if label == "measured" else _OURS))
        axis.set_xlabel(_LABELS[metric])
        axis.set_ylabel("share of requests")
        axis.set_ylim(0, 1)
    last = axes[1, 1]
    rows = first.throughput()
    ends = [row["end"] for row in rows]
    last.plot(ends, [row["measured"] for row in rows], **_REAL)
    for found in simulations.values():
        rows = found.throughput()
        last.plot([row["end"] for row in rows], [row["simulated"] for row in rows], **_OURS)
    last.set_xlabel("time, s")
    last.set_ylabel("output tokens/s")
    axes[0, 0].legend()
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    save(figure, path)
