"""Cells: runs that differ in nothing but the replication, and what they have in common."""

from dataclasses import replace

from specsim.core.errors import ConfigError
from specsim.core.settings import nearest
from specsim.show.report.study import MEASURES, OTHER, Axis, Measure, Point, Study, measured
from specsim.study.paired import SpeedUp, speed_up

Cell = list[Point]
Cells = dict[tuple[int, int, int], Cell]
"""By the index of hardware, policy and load."""


def group(study: Study) -> Cells:
    """Return the finished runs of a `restricted` study by hardware, policy and load."""
    cells: Cells = {}
    for point in study.finished:
        hardware, policy, load = point.places[:3]
        cells.setdefault((hardware, policy, load), []).append(point)
    return cells


def restricted(study: Study, choices: list[str]) -> tuple[Study, list[str]]:
    """Return the part of a study in which some axes have a given value.

    Args:
        choices: Such as ``profile=h100``: field and label of an axis. An axis that is neither
            hardware, policy nor load is held at its first value unless it is named.

    Returns:
        study
        held: What was held without being asked for, in the same form.

    Raises:
        ConfigError: There is no such axis or no such value on it.
    """
    wanted = dict(_parsed(study, choice) for choice in choices)
    held = [
        number
        for number, axis in enumerate(study.axes)
        if axis.role == OTHER and len(axis.labels) > 1 and number not in wanted
    ]
    places = {**dict.fromkeys(held, 0), **wanted}
    axes = [_cut(axis, places.get(number)) for number, axis in enumerate(study.axes)]
    points = [
        replace(point, places=tuple(0 if n in places else p for n, p in enumerate(point.places)))
        for point in study.points
        if all(point.places[number] == place for number, place in places.items())
    ]
    policy = places.get(1)
    lens = study.draft_lens if policy is None else [study.draft_lens[policy]]
    names = [f"{study.axes[number].field}={study.axes[number].labels[0]}" for number in held]
    profiles = study.profiles if 0 not in places else [study.profiles[places[0]]]
    part = replace(study, axes=axes, points=points, draft_lens=lens, profiles=profiles)
    return part, names


def _parsed(study: Study, choice: str) -> tuple[int, int]:
    field, equals, label = choice.partition("=")
    if not equals:
        axis = study.axes[0]
        example = f"{axis.field}={axis.labels[0]}"
        raise ConfigError(f"--where {choice}: expected FIELD=VALUE, such as {example}")
    fields = [axis.field for axis in study.axes]
    if field not in fields:
        raise ConfigError(f"--where {choice}: no axis '{field}'; {nearest(field, fields)}")
    number = fields.index(field)
    labels = study.axes[number].labels
    if label not in labels:
        raise ConfigError(f"--where {choice}: '{field}' is never that; {nearest(label, labels)}")
    return number, labels.index(label)


def _cut(axis: Axis, place: int | None) -> Axis:
    if place is None:
        return axis
    numbers = None if axis.numbers is None else [axis.numbers[place]]
    return replace(axis, labels=[axis.labels[place]], numbers=numbers)


def find_measure(study: Study, name: str) -> Measure:
    """Return a measure that the runs of a study have; a ConfigError if none of them has it."""
    if not study.finished:
        raise ConfigError("none of these runs has come to an end, so there is nothing to draw")
    known = {name for point in study.finished for name in measured(study, point)}
    for measure in MEASURES:
        if measure.name == name and name in known:
            return measure
    raise ConfigError(f"--metric {name}: no run has it; {nearest(name, sorted(known))}")


def values_of(study: Study, cell: Cell, measure: Measure) -> dict[int, float]:
    """Return a measure of the runs of a cell, by replication."""
    found = ((point.replication, measured(study, point).get(measure.name)) for point in cell)
    return {replication: value for replication, value in found if value is not None}


def gain(study: Study, candidate: Cell, reference: Cell, measure: Measure) -> SpeedUp | None:
    """Return how many times better a cell is than another; None without common replications."""
    mine, theirs = (values_of(study, cell, measure) for cell in (candidate, reference))
    shared = [n for n in sorted(mine.keys() & theirs.keys()) if mine[n] > 0 and theirs[n] > 0]
    if not shared:
        return None
    above, below = [theirs[n] for n in shared], [mine[n] for n in shared]
    return speed_up(above, below) if measure.is_low_better else speed_up(below, above)


def best_policy(
    study: Study, cells: Cells, hardware: int, load: int, measure: Measure
) -> int | None:
    """Return the best policy of some hardware at some load; those that keep up come first.

    By its mean over the replications that all policies have, if there are any; None without runs.
    """
    found = {
        policy: values_of(study, cell, measure)
        for (own_hardware, policy, own_load), cell in cells.items()
        if (own_hardware, own_load) == (hardware, load)
    }
    found = {policy: values for policy, values in found.items() if values}
    if not found:
        return None
    shared = set.intersection(*map(set, found.values()))
    sign = 1 if measure.is_low_better else -1

    def rank(policy: int) -> tuple[bool, float, int]:
        values = {n: v for n, v in found[policy].items() if n in shared} or found[policy]
        cell = cells[hardware, policy, load]
        return is_unstable(cell), sign * sum(values.values()) / len(values), policy

    return min(found, key=rank)


def is_unstable(cell: Cell) -> bool:
    """Return whether the queue kept growing in some run of a cell."""
    return any(point.metrics.get("unstable") for point in cell)
