"""Errors of predictions of measured runs: by metric, by group, of speed-ups and of the best k."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specsim.core.errors import ConfigError
from specsim.reality.validation.measured_run import METRICS, STATISTICS, MeasuredRun
from specsim.reality.validation.table_replay import Prediction

OF_TOKENS = "tpot_or_itl"  # stands for TPOT, or for ITL in rows without TPOT
HEADLINES = ("output_tok_s", f"{OF_TOKENS}_mean_ms", "ttft_p50_ms", "e2e_mean_ms")
"""Metrics whose errors are reported by k, by load and by set."""
SPEEDS = {"output_tok_s": 1, "tpot_mean_ms": -1, "e2e_mean_ms": -1}  # 1: more is faster

_SAME = (
    *("model", "quantisation", "gpu", "num_gpus", "tp", "engine", "engine_version", "dataset"),
    *("range_ratio", "temperature", "ignore_eos", "max_num_batched_tokens", "max_num_seqs"),
    *("max_model_len", "prefix_caching", "enforce_eager", "block_size", "burstiness"),
    *("max_tokens", "concurrency", "request_rate", "num_prompts"),
)
"""Columns in which runs that differ only in speculation agree; their mean lengths agree within 10
%."""
_UNNAMED = ("concurrency", "request_rate", "num_prompts", "temperature", "ignore_eos")


@dataclass(frozen=True)
class ErrorSummary:
    """Errors of one metric over some runs: (predicted - measured) / measured."""

    metric: str
    count: int
    median_abs: float
    worst_abs: float
    median: float  # with its sign
    worst_run: str


@dataclass(frozen=True)
class MeasuredSpeedUp:
    """Speed of one choice of drafting relative to no speculation, with all else equal."""

    runs: str  # what the runs have in common
    choice: str
    metric: str
    measured: float
    predicted: float

    @property
    def agrees(self) -> bool:
        """Whether measured and predicted agree on whether it is faster."""
        return (self.measured > 1) == (self.predicted > 1)


@dataclass(frozen=True)
class BestChoice:
    """The fastest choice of drafting, measured and predicted, with all else equal."""

    runs: str
    metric: str
    measured: str
    predicted: str
    loss: float  # how much slower the predicted best was measured, as a share of the fastest


def errors_of(predictions: Sequence[Prediction], metrics: Iterable[str]) -> list[ErrorSummary]:
    """Return the errors of some metrics (`OF_TOKENS` may be one) over the runs that have them."""
    return [found for name in metrics if (found := _summary(predictions, name)) is not None]


def errors_by_group(
    predictions: Sequence[Prediction], group_of: Callable[[MeasuredRun], str]
) -> dict[str, list[ErrorSummary]]:
    """Return the errors of `HEADLINES` by the group that `group_of` gives each run, in order."""
    groups: dict[str, list[Prediction]] = {}
    for each in predictions:
        groups.setdefault(group_of(each.run), []).append(each)
    return {
        group: errors_of(members, HEADLINES)
        for group, members in sorted(groups.items(), key=lambda item: _natural(item[0]))
    }


GROUPS: dict[str, Callable[[MeasuredRun], str]] = {
    "k": lambda run: f"k = {run.num_speculative_tokens}",
    "load": lambda run: run.load,
    "dataset": lambda run: run.cells.get("dataset", "") or "-",
    "file": lambda run: run.path.name,
}
"""Ways to group runs, by name."""


def _natural(text: str) -> list[tuple[float, str]]:
    words = text.split()
    return [(float(word), "") if word.isdigit() else (-1.0, word) for word in words]


def value_of(prediction: Prediction, metric: str) -> tuple[float | None, float]:
    """Return a metric, measured and predicted; for `OF_TOKENS` that is TPOT or else ITL."""
    name = _name_in(prediction.run, metric)
    return prediction.run.measured.get(name), prediction.values[name]


def measured_of(run: MeasuredRun, metric: str) -> float | None:
    """Return a metric as measured; for `OF_TOKENS` that is TPOT or else ITL."""
    return run.measured.get(_name_in(run, metric))


def _name_in(run: MeasuredRun, metric: str) -> str:
    if not metric.startswith(OF_TOKENS):
        return metric
    rest = metric.removeprefix(OF_TOKENS)
    return f"tpot{rest}" if f"tpot{rest}" in run.measured else f"itl{rest}"


def _summary(predictions: Sequence[Prediction], metric: str) -> ErrorSummary | None:
    found = []
    for each in predictions:
        measured, predicted = value_of(each, metric)
        if measured:
            found.append((predicted / measured - 1, each.run.run_id))
    if not found:
        return None
    errors = np.array([error for error, _ in found])
    sizes = np.abs(errors)
    worst = int(sizes.argmax())
    middle, largest = float(np.median(sizes)), float(sizes[worst])
    median, worst_run = float(np.median(errors)), found[worst][1]
    return ErrorSummary(metric, len(found), middle, largest, median, worst_run)


def speed_ups(
    predictions: Sequence[Prediction], speed: str | None = None
) -> tuple[list[MeasuredSpeedUp], list[BestChoice]]:
    """Return the speed-ups of speculation, and the fastest choice for each load.

    Repetitions count as their mean. `speed` is a name in `SPEEDS`, else a ConfigError is raised; by
    default output tokens per second, in an open loop the mean latency.
    """
    if speed is not None and speed not in SPEEDS:
        raise ConfigError(f"--speed {speed}: must be one of {', '.join(SPEEDS)}")
    ups: list[MeasuredSpeedUp] = []
    bests: list[BestChoice] = []
    groups = _alike(predictions)
    for name, members in zip(_names(groups), groups, strict=True):
        metric = speed or _speed_of(members)
        speeds = _speeds(members, metric)
        if len(speeds) < 2:
            continue
        if "none" in speeds:
            real, ours = speeds["none"]
            ups += [
                MeasuredSpeedUp(name, choice, metric, each[0] / real, each[1] / ours)
                for choice, each in speeds.items()
                if choice != "none"
            ]
        measured, predicted = (
            max(speeds, key=lambda choice: speeds[choice][place]) for place in (0, 1)
        )
        loss = 1 - speeds[predicted][0] / speeds[measured][0]
        bests.append(BestChoice(name, metric, measured, predicted, loss))
    return ups, bests


def _alike(predictions: Iterable[Prediction]) -> list[list[Prediction]]:
    """Return groups of runs that differ only in speculation."""
    groups: list[list[Prediction]] = []
    for each in predictions:
        known = next((group for group in groups if _belongs(each.run, group)), None)
        if known is None:
            groups.append([each])
        else:
            known.append(each)
    return groups


def _belongs(run: MeasuredRun, group: Sequence[Prediction]) -> bool:
    """Return whether a run fits a group; runs of one drafter must be scheduled alike.

    Runs of different drafters need not: vLLM has no asynchronous scheduling for some.
    """
    drafter, own = _drafter(run), run.cells.get("async_scheduling", "")
    others = (each.run for each in group if _drafter(each.run) == drafter)
    is_one = all(other.cells.get("async_scheduling", "") == own for other in others)
    return is_one and _is_alike(group[0].run, run)


def _is_alike(one: MeasuredRun, other: MeasuredRun) -> bool:
    if _key(one) != _key(other):
        return False
    pairs = ((one.prompt, other.prompt), (one.output, other.output))
    return all(
        a is None or b is None or abs(a.mean - b.mean) <= 0.1 * max(a.mean, b.mean)
        for a, b in pairs
    )


def _key(run: MeasuredRun) -> tuple[str, ...]:
    return tuple(run.cells.get(column, "") for column in _SAME)


def _names(groups: Sequence[Sequence[Prediction]]) -> list[str]:
    """Return names of groups: their load, and the columns in which they differ."""
    runs = [group[0].run for group in groups]
    keys = [_key(run) for run in runs]
    differing = [
        place
        for place, column in enumerate(_SAME)
        if column not in _UNNAMED and len({key[place] for key in keys}) > 1
    ]
    return [
        ", ".join([*(_said(_SAME[n], key[n]) for n in differing if key[n]), run.load])
        + (f", {run.prompt.mean:.0f} tokens" if run.prompt is not None else "")
        for run, key in zip(runs, keys, strict=True)
    ]


def _said(column: str, cell: str) -> str:
    """Return the text of a cell, with its column if a flag or number needs it."""
    return f"{column} {cell}" if re.fullmatch(r"on|off|true|false|[\d.]+", cell) else cell


def _speed_of(members: Sequence[Prediction]) -> str:
    is_open = members[0].run.request_rate is not None
    order: tuple[str, ...] = ("e2e_mean_ms", *SPEEDS) if is_open else tuple(SPEEDS)
    measured = (name for name in order if all(name in each.run.measured for each in members))
    return next(measured, "output_tok_s")


def _speeds(members: Sequence[Prediction], metric: str) -> dict[str, tuple[float, float]]:
    """Return the mean speed of each choice: (measured, predicted)."""
    found: dict[str, list[tuple[float, float]]] = {}
    drafters = {_drafter(each.run) for each in members if each.run.method}
    for each in members:
        measured, predicted = each.run.measured.get(metric), each.values[metric]
        if not measured or not predicted:
            continue
        run, power = each.run, SPEEDS[metric]
        choice = f"k = {run.num_speculative_tokens}" if run.method else "none"
        if choice != "none" and len(drafters) > 1:
            choice += f" ({_drafter(run)})"
        found.setdefault(choice, []).append((measured**power, predicted**power))
    return {choice: tuple(np.mean(pairs, axis=0).tolist()) for choice, pairs in found.items()}


def _drafter(run: MeasuredRun) -> str:
    return " ".join(filter(None, (run.method, run.cells.get("draft_model", ""))))


@dataclass(frozen=True)
class TableErrors:
    """All errors of a table of measured runs."""

    by_metric: list[ErrorSummary]
    by_group: dict[str, dict[str, list[ErrorSummary]]]  # by name in `GROUPS`, then by group
    speed_ups: list[MeasuredSpeedUp]
    best: list[BestChoice]

    @classmethod
    def of(cls, predictions: Sequence[Prediction], speed: str | None = None) -> "TableErrors":
        groups = {name: errors_by_group(predictions, of) for name, of in GROUPS.items()}
        names = (*METRICS, *(f"{OF_TOKENS}_{name}_ms" for name in STATISTICS[:2]))
        return cls(errors_of(predictions, names), groups, *speed_ups(predictions, speed))

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "speed_ups": [asdict(each) | {"agrees": each.agrees} for each in self.speed_ups],
        }
