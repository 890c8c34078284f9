"""The results folder of a run, read back whole."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.results.requests import RequestsTable, load_requests
from specsim.results.steps import StepsTable, load_steps
from specsim.run.experiment import Experiment

__all__ = ["ResultsFolder", "load_folder"]

_PROVENANCE = ("config_hash", "seed", "specsim_version")
_OWN_FIELDS = {*_PROVENANCE, "num_gpu_blocks"}
_AGAIN = "not the same run, or another version of specsim; run the experiment again"


@dataclass(frozen=True)
class ResultsFolder:
    """What ``specsim run --out`` wrote."""

    path: Path
    experiment: Experiment
    summary: dict[str, Any]
    """``summary.json``."""

    @cached_property
    def requests(self) -> RequestsTable:
        """The requests of all replicas, in order of their number."""
        table = load_requests(self.path)
        self._check_origin(table.provenance)
        return table

    @cached_property
    def steps(self) -> StepsTable:
        """The steps of all replicas."""
        table = load_steps(self.path)
        self._check_origin(table.provenance)
        return table

    @property
    def own(self) -> dict[str, Any]:
        """The block ``specsim`` of the summary."""
        block: dict[str, Any] = self.summary["specsim"]
        return block

    @property
    def provenance(self) -> dict[str, object]:
        """Hash of the configuration, seed, and version of specsim."""
        return {name: self.own[name] for name in _PROVENANCE}

    def _check_origin(self, provenance: dict[str, object]) -> None:
        if provenance != self.provenance:
            raise ConfigError(f"{self.path}: its tables and summary.json differ: {_AGAIN}")


def load_folder(path: Path) -> ResultsFolder:
    """Return the results folder of a run.

    Raises:
        SpecsimError: Something in it is missing, cut short or not ours, or not of the same run.
    """
    if not path.is_dir():
        raise ConfigError(f"{path}: is not a folder; give one that `specsim run --out` wrote")
    if not (path / "config.yaml").is_file():
        raise ConfigError(
            f"{path}: holds no config.yaml, so it is not of one run; give a folder that `specsim "
            "run --out` wrote, or one of the folders that `specsim compare --out` made"
        )
    experiment = Experiment.load(path / "config.yaml")
    summary = load_mapping(path / "summary.json", ConfigError)
    own = summary.get("specsim")
    if not isinstance(own, dict) or not own.keys() >= _OWN_FIELDS:
        raise ConfigError(
            f"{path / 'summary.json'}: has no block 'specsim' of ours; give a folder that "
            "`specsim run --out` wrote"
        )
    if own["config_hash"] != experiment.hash:
        raise ConfigError(f"{path}: config.yaml and summary.json differ: {_AGAIN}")
    return ResultsFolder(path, experiment, summary)
