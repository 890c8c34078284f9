"""GateResults: what the scenarios of a suite came to, in a file that can be kept as a baseline."""

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError
from specsim.core.settings import Settings, load_mapping, validated
from specsim.run.experiment import Experiment
from specsim.study.gate.suite import Name, Tolerances, check_metrics
from specsim.study.inputs import Input

_FORMAT = "specsim gate 1"
_REMEDY = "write one with `specsim gate --update`"


class ScenarioResults(Settings):
    """What one scenario came to, seed by seed."""

    config_hash: str
    """Identity of the experiment without its seed."""
    config: dict[str, Any]
    """The resolved experiment, without its seed."""
    inputs: dict[str, Input] | None = None
    """What its runs read, by the field that names it; None in older baselines."""
    seeds: list[int] = Field(min_length=1)
    metrics: dict[str, list[float]]
    """By name, one value per seed."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds: one of them is there twice")
        for name, values in self.metrics.items():
            if len(values) != len(self.seeds):
                raise ValueError(
                    f"metrics.{name}: {len(values)} values for {len(self.seeds)} seeds"
                )
        return self


class GateResults(Settings):
    """A suite's results, with their provenance."""

    format: Literal["specsim gate 1"] = "specsim gate 1"
    specsim_version: str
    date: str | None = None
    """As the user gave it; the same revision gives the same bytes on every day."""
    tolerances: Tolerances
    scenarios: dict[Name, ScenarioResults] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        check_metrics(self.tolerances)
        for name, scenario in self.scenarios.items():
            for metric in self.tolerances:
                if metric not in scenario.metrics:
                    raise ValueError(f"scenarios.{name}: lacks the metric '{metric}'")
        return self

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the results in a JSON file.

        Raises:
            ConfigError: It cannot be read, or is not what ``specsim gate --update`` writes.
        """
        data = load_mapping(path, ConfigError)
        if data.get("format") != _FORMAT:
            raise ConfigError(f"{path}: is not a baseline of this version of specsim; {_REMEDY}")
        with validated(str(path), ConfigError):
            return cls.model_validate(data)

    def to_json(self) -> str:
        """Return the results as the text of a JSON file."""
        return json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"


def without_seed(experiment: Experiment) -> dict[str, Any]:
    """Return a resolved experiment without its seed."""
    return {name: value for name, value in experiment.to_dict().items() if name != "seed"}


@contextmanager
def baseline_file(path: Path) -> Iterator[Path]:
    """Give a temporary file that becomes the baseline if the block succeeds.

    Raises:
        ConfigError: The path holds something else than a baseline, or cannot be written.
    """
    if path.is_file():
        try:
            is_ours = load_mapping(path, ConfigError).get("format") == _FORMAT
        except ConfigError:
            is_ours = False
        if not is_ours:
            raise ConfigError(f"{path}: holds no baseline, so it is left alone; name another file")
    with new_file(path) as temporary:
        yield temporary


def checked_date(text: str) -> str:
    """Return an ISO date."""
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise ConfigError(f"--date {text}: must be a day, such as 2026-11-21") from error
