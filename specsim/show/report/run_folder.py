"""The folders of ``specsim run`` and ``specsim compare``, as studies."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.core.version import __version__
from specsim.results.digest import over_time, quantiles_ms
from specsim.results.steps import load_steps
from specsim.show.report.axes import axis_of, draft_len, single_axes
from specsim.show.report.study import HARDWARE, LOAD, POLICY, Point, Study
from specsim.study.compare import folder_name
from specsim.study.sweep import flat_metrics

__all__ = ["load_comparison", "load_run"]

_LATENCIES = ("ttft", "tpot", "e2el")


def load_run(folder: Path) -> Study:
    """Return a run.

    Args:
        folder: As ``specsim run --out`` wrote it.

    Raises:
        ConfigError: It is none, of another version, or damaged.
    """
    summary = load_mapping(folder / "summary.json", ConfigError)
    config = load_mapping(folder / "config.yaml", ConfigError)
    own = _own_block(folder / "summary.json", summary)
    axes = single_axes(config)
    return Study(
        kind="run",
        title=folder.resolve().name,
        axes=[axes[role] for role in (HARDWARE, POLICY, LOAD)],
        points=[_point(folder, 0, (0, 0, 0), 0, summary)],
        num_expected=1,
        draft_lens=[draft_len(config)],
        profiles=[str(config.get("profile"))],
        config=_yaml(config),
        version=own["specsim_version"],
        warnings=[str(text) for text in own.get("warnings", [])],
    )


def load_comparison(folder: Path) -> Study:
    """Return a comparison of policies.

    Args:
        folder: As ``specsim compare --out`` wrote it. Distributions and what happened over time are
            there of the first replication.

    Raises:
        ConfigError: It is none, of another version, or damaged.
    """
    path = folder / "comparison.json"
    comparison = load_mapping(path, ConfigError)
    points: list[Point] = []
    configs: list[dict[str, Any]] = []
    warnings: dict[str, None] = {}
    for place, (label, result) in enumerate(comparison.items()):
        summaries = result.get("summaries") if isinstance(result, dict) else None
        if not isinstance(summaries, list) or not summaries:
            raise ConfigError(f"{path}: '{label}' has no summaries; {_REMEDY}")
        own = folder / folder_name(label)
        configs.append(load_mapping(own / "config.yaml", ConfigError))
        warnings.update(dict.fromkeys(map(str, result.get("warnings", []))))
        for replication, summary in enumerate(summaries):
            _own_block(path, summary)
            number = len(points)
            source = own if replication == 0 else None
            points.append(_point(source, number, (0, place, 0), replication, summary))
    if not points:
        raise ConfigError(f"{path}: compares no policies; {_REMEDY}")
    axes = single_axes(configs[0])
    policy = axis_of(POLICY, "policy", list(comparison), [""] * len(comparison))
    return Study(
        kind="comparison",
        title=folder.resolve().name,
        axes=[axes[HARDWARE], policy, axes[LOAD]],
        points=points,
        num_expected=len(points),
        draft_lens=[draft_len(config) for config in configs],
        profiles=[str(configs[0].get("profile"))],
        config=_yaml({name: value for name, value in configs[0].items() if name != "policy"}),
        version=__version__,
        warnings=list(warnings),
    )


_REMEDY = "give a folder that `specsim compare --out` wrote"


def _yaml(config: dict[str, Any]) -> str:
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def _own_block(path: Path, summary: object) -> dict[str, Any]:
    """Return what only specsim writes into a summary, once its version is known to be ours."""
    own = summary.get("specsim") if isinstance(summary, dict) else None
    if not isinstance(own, dict) or "specsim_version" not in own:
        raise ConfigError(
            f"{path}: is no summary of specsim's; give a folder that `specsim run --out` wrote"
        )
    if own["specsim_version"] != __version__:
        raise ConfigError(
            f"{path}: was written by specsim {own['specsim_version']}, and this is {__version__}; "
            "use that version or run the experiment again"
        )
    return own


def _point(
    folder: Path | None,
    number: int,
    places: tuple[int, ...],
    replication: int,
    summary: dict[str, Any],
) -> Point:
    own = summary["specsim"]
    details: dict[str, Any] = {}
    if folder is not None:
        steps = load_steps(folder)
        details = over_time(steps, own["num_gpu_blocks"] - 1, own["replicas"])
        details["distributions"] = _distributions(folder / "requests.parquet")
    return Point(
        number=number,
        places=places,
        replication=replication,
        seed=own["seed"],
        config_hash=own["config_hash"],
        metrics=flat_metrics(summary),
        **details,
    )


def _distributions(path: Path) -> dict[str, list[float]]:
    try:
        table = pq.read_table(path, columns=list(_LATENCIES))
        samples = {name: table[name].to_numpy().astype(float) for name in _LATENCIES}
    except (OSError, ValueError, KeyError) as error:  # ArrowInvalid is a ValueError
        why = re.split(r"\n", str(error))[0]
        raise ConfigError(
            f"{path}: cannot be read as the requests of a run ({why}); run the experiment again"
        ) from error
    return {
        f"{name}_ms": quantiles_ms(values[~np.isnan(values)]) for name, values in samples.items()
    }
