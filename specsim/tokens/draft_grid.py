"""Draft grid: the best options of a drafter, found by replaying a trace with each of them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import yaml

from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.core.settings import parse_yaml
from specsim.tokens.draft_eval import Drafter, evaluate_drafts

_MAX_COMBINATIONS = 10_000  # each one replays the whole trace


class Combination(NamedTuple):
    """One combination of options, and what it was worth."""

    options: dict[str, Any]
    """Those of the grid."""
    totals: dict[str, Any]
    """From `specsim.tokens.draft_eval.DraftEval.totals_as_json`."""
    step_us: float
    """Host time per step, microseconds."""

    def as_json(self) -> dict[str, Any]:
        """Return everything that is the same on every machine."""
        return {"options": self.options, **self.totals}


def grid_options(grid: Iterable[str]) -> list[dict[str, Any]]:
    """Return every combination of the values of some options; the last option changes fastest.

    Args:
        grid: ``NAME=V1,V2,...`` for each option, the values in YAML.

    Raises:
        ConfigError: An option has no values, or it or a value of it comes twice; or there are too
            many combinations.
    """
    values: dict[str, list[Any]] = {}
    for text in grid:
        name, found = _grid_values(text)
        if name in values:
            raise ConfigError(f"--grid {text}: {name} is there twice; list all values in one")
        values[name] = found
    num = prod(map(len, values.values()))
    if num > _MAX_COMBINATIONS:
        raise ConfigError(
            f"--grid: {num:,} combinations, but at most {_MAX_COMBINATIONS:,} are evaluated; give "
            "fewer values, or search a few options at a time"
        )
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def _grid_values(text: str) -> tuple[str, list[Any]]:
    name, equals, listed = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--grid {text}: expected NAME=V1,V2,...")
    try:
        values = parse_yaml(f"[{listed}]") if listed.strip() else []
    except yaml.YAMLError as error:
        raise ConfigError(f"--grid {text}: the values are not YAML, separated by commas") from error
    if not isinstance(values, list) or not values:
        raise ConfigError(f"--grid {text}: no values; list at least one after '='")
    seen: list[tuple[type, Any]] = []  # 1 and true are equal, but not the same value
    for value in values:
        if (type(value), value) in seen:
            raise ConfigError(f"--grid {text}: {value} is there twice; list each value once")
        seen.append((type(value), value))
    return name, values


def evaluate_grid(
    drafters: Sequence[tuple[dict[str, Any], Drafter]],
    requests: list[Request],
    on_progress: Callable[[int], None] | None = None,
) -> list[Combination]:
    """Replay requests with token ids with each combination, and rank these by tokens per step.

    Args:
        drafters: Options of the grid, and the drafter that has them.
        on_progress: Told how many combinations are done.

    Raises:
        TraceError: A model is to draft whose acceptance was not recorded; or a corpus cannot be
            read, or has no token ids.
    """
    found: list[Combination] = []
    for options, drafter in drafters:
        result = evaluate_drafts(drafter, requests)
        # Only the totals: the counts of ten thousand combinations would fill the memory.
        found.append(Combination(options, result.totals_as_json(), result.step_us))
        if on_progress is not None:
            on_progress(len(found))
    return sorted(found, key=lambda combination: -combination.totals["tokens_per_step"])
