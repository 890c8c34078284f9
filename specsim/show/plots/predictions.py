"""Measured runs against their predictions."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from specsim.reality.validation.prediction_errors import HEADLINES, OF_TOKENS, value_of
from specsim.reality.validation.table_replay import Prediction
from specsim.show.plots import make_log, save

_LABELS = {
    "output_tok_s": "output tokens/s",
    f"{OF_TOKENS}_mean_ms": "mean TPOT (ITL where missing), ms",
    "ttft_p50_ms": "median TTFT, ms",
    "e2e_mean_ms": "mean latency, ms",
}


def plot_predictions(predictions: Sequence[Prediction], path: Path, title: str) -> None:
    """Draw predicted against measured, a point per run, a colour per draft length."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 9), constrained_layout=True)
    figure.suptitle(title)
    for axis, metric in zip(axes.flat, HEADLINES, strict=True):
        _draw(axis, predictions, metric)
        axis.set_xlabel(f"measured {_LABELS[metric]}")
        axis.set_ylabel("predicted")
        axis.grid(alpha=0.3)
    save(figure, path)


def _draw(axis: Axes, predictions: Sequence[Prediction], metric: str) -> None:
    points: dict[int, list[tuple[float, float]]] = {}
    for each in predictions:
        measured, predicted = value_of(each, metric)
        if measured and predicted:
            points.setdefault(each.run.num_speculative_tokens, []).append((measured, predicted))
    for k, pairs in sorted(points.items()):
        axis.plot(*zip(*pairs, strict=True), "o", ms=4, alpha=0.6, label=f"k = {k}")
    ends = [value for pairs in points.values() for pair in pairs for value in pair]
    if ends:
        axis.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", lw=0.8)
        make_log(axis.xaxis)
        make_log(axis.yaxis)
        axis.legend(fontsize="small")
