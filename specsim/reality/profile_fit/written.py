"""What was measured, and the profile that comes of a fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specsim.core.columns import read_columns
from specsim.core.errors import ProfileError
from specsim.core.settings import load_mapping, validated
from specsim.hardware import GIB, find_gpu, find_model, load_gpu, load_model, num_kv_blocks
from specsim.latency.kernels import Kernels
from specsim.profile import Profile
from specsim.reality.host_speed import HostSpeed
from specsim.reality.profile_fit.points import Limits, Points, kernel_points, read_points
from specsim.reality.profile_fit.study import Study

__all__ = ["Subject", "fitted_profile", "kernel_folder", "kernels_of", "measured_steps"]

_BLOCK = 16  # tokens
_STEPS = "steps.jsonl"


@dataclass(frozen=True)
class Subject:
    """Which model was measured on which GPUs, in the names of ``profiles/``."""

    model: str
    gpu: str
    tensor_parallel_size: int = 1
    speculation: tuple[str, int] | None = None
    """Method and longest draft of measured runs; None if they did not speculate."""
    reserved_gib: float = 1.15
    gpu_memory_utilization: float = 0.9

    def limits(self, max_num_seqs: int, max_num_batched_tokens: int) -> Limits:
        """Return which steps a server of this model on this GPU can run.

        Args:
            max_num_seqs, max_num_batched_tokens: Of the engine.

        Raises:
            SpecsimError: Model or GPU is not known, or the model does not fit.
        """
        shape, gpu = load_model(self.model), load_gpu(self.gpu)
        size = self.tensor_parallel_size
        blocks = num_kv_blocks(
            memory_bytes=gpu.memory_gib * GIB * self.gpu_memory_utilization,
            taken_bytes=shape.weight_bytes / size + self.reserved_gib * GIB,
            block_bytes=_BLOCK * shape.kv_bytes_per_token / size,
        )
        return Limits(max_num_seqs, max_num_batched_tokens, blocks * _BLOCK)


def kernel_folder(path: Path) -> Path:
    """Return the folder of kernel tables that a path leads to: itself, or its ``profile``."""
    return path / "profile" if (path / "profile").is_dir() else path


def kernels_of(
    folder: Path, model: str | None, gpu: str | None, tensor_parallel_size: int
) -> tuple[Kernels, Subject]:
    """Return the kernels in a folder, and what they were measured on.

    Args:
        folder: With ``dense.csv`` and ``attention.csv``.
        model, gpu: By default what ``meta.yaml`` says.

    Returns:
        Kernels
        Subject

    Raises:
        ProfileError: A table is missing or malformed, or model or GPU are not known.
    """
    meta_path = folder / "meta.yaml"
    meta = load_mapping(meta_path, ProfileError) if meta_path.exists() else {}
    if model is None:
        model = find_model([str(meta["model"])] if meta.get("model") else [], str(folder))
    if gpu is None:
        names = [str(meta[name]) for name in ("hardware", "gpu") if meta.get(name)]
        gpu = find_gpu(names, str(folder))
    shape = load_model(model)
    with validated(str(folder), ProfileError):
        kernels = Kernels(
            path=folder,
            num_layers=shape.num_hidden_layers,
            tensor_parallel_size=tensor_parallel_size,
            hidden_size=shape.hidden_size,
            num_experts=shape.num_experts or None,
            experts_per_token=shape.num_experts_per_tok or None,
        )
    return kernels, Subject(model, gpu, tensor_parallel_size)


def measured_steps(
    sources: Sequence[Path],
    model: str | None,
    gpu: str | None,
    tensor_parallel_size: int,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> tuple[Points, Subject]:
    """Return the steps of tables or of measured runs, or composed from a folder of kernel tables.

    Args:
        sources: Tables and folders of measured runs (with ``steps.jsonl``), or one folder of kernel
            tables. Where ``host_speed.jsonl`` says how fast the machine was during a run, each step
            is taken for as long as it would have been at the mean speed of all of them.
        model, gpu: By default what a folder's ``meta.yaml`` says; of tables and runs "".
        max_num_seqs, max_num_batched_tokens: Of a folder of kernel tables, larger steps are left
            out.

    Returns:
        Points
        Subject

    Raises:
        ProfileError: A table is missing or malformed, runs speculated differently, or model or GPU
            of a folder of kernel tables are not known.
    """
    tables = [source / _STEPS if (source / _STEPS).exists() else source for source in sources]
    if not any(table.is_dir() for table in tables):
        points = Points.joined(_points_at_usual_speed(tables))
        speculation = _speculation(tables)
        return points, Subject(model or "", gpu or "", tensor_parallel_size, speculation)
    if len(sources) > 1:
        names = ", ".join(str(table) for table in tables if table.is_dir())
        raise ProfileError(
            f"{names}: has no {_STEPS}; of several sources each must be a table of steps or a "
            "measured run"
        )
    kernels, subject = kernels_of(kernel_folder(sources[0]), model, gpu, tensor_parallel_size)
    return kernel_points(kernels, subject.limits(max_num_seqs, max_num_batched_tokens)), subject


def _points_at_usual_speed(tables: Sequence[Path]) -> list[Points]:
    points = [read_points(table) for table in tables]
    speeds = [HostSpeed.of_run(table.parent) if table.name == _STEPS else None for table in tables]
    known = [speed for speed in speeds if speed is not None]
    if not known:
        return points
    usual = HostSpeed.usual(known)
    return [
        mine if speed is None else _at_usual_speed(mine, table, speed, usual)
        for mine, table, speed in zip(points, tables, speeds, strict=True)
    ]


def _at_usual_speed(points: Points, table: Path, speed: HostSpeed, usual: float) -> Points:
    columns, _ = read_columns(table, ("started_at", "batched_tokens"))
    started_at = columns["started_at"][columns["batched_tokens"] > 0]  # as in `points`
    slowness = speed.slowness(started_at + points.seconds / 2, usual)
    return replace(points, seconds=points.seconds / slowness)


def _speculation(tables: Sequence[Path]) -> tuple[str, int] | None:
    """Return how measured runs speculated, all of them alike."""
    found: dict[tuple[str, int] | None, Path] = {}
    for table in tables:
        path = table.with_name("meta.json")
        meta = load_mapping(path, ProfileError) if table.name == _STEPS and path.exists() else {}
        kwargs = meta.get("engine_kwargs")
        config = kwargs.get("speculative_config") if isinstance(kwargs, dict) else None
        given = config if isinstance(config, dict) else {}
        if given.get("num_speculative_tokens_per_batch_size"):
            raise ProfileError(
                f"{path}: its draft length changed with the batch, so no step says what a draft "
                "costs; measure runs with one num_speculative_tokens"
            )
        method, longest = given.get("method"), given.get("num_speculative_tokens")
        if not method or not longest:
            found[None] = path
        elif isinstance(method, str) and isinstance(longest, int) and longest > 0:
            found[method, longest] = path
        else:
            raise ProfileError(
                f"{path}: speculative_config: method = {method!r} and num_speculative_tokens = "
                f"{longest!r} must be a name and a whole number of at least 1; correct them"
            )
    if len(found) > 1:
        names = " and ".join(f"{key or 'none'} ({path})" for key, path in found.items())
        raise ProfileError(
            f"the runs speculated differently: {names}; what drafting costs is part of a step, so "
            "fit each kind by itself"
        )
    return next(iter(found))


def fitted_profile(study: Study, points: Points, subject: Subject, source: str) -> Profile:
    """Return the profile of a fit.

    Args:
        points: That were fitted.
        source: Where they come from.

    Returns:
        Its overhead is 0: it is hidden under asynchronous scheduling, and part of the measured
        times otherwise. So is drafting, if the steps are those of runs with speculation: its cost
        is 0, and the target's coefficients are those of a step with drafts of that one length. A
        run of one length cannot tell the two apart.
    """
    error = study.held_out["all"]
    drafts: dict[str, dict[str, Any]] = {}
    notes = ""
    if subject.speculation is not None:
        method, longest = subject.speculation
        drafts = {method: {}}
        notes = (
            f"; a step with {method}, {longest} draft tokens, drafting included: of other draft "
            "lengths it says nothing"
        )
    return Profile.model_validate(
        {
            "model": subject.model,
            "gpu": subject.gpu,
            "tensor_parallel_size": subject.tensor_parallel_size,
            "provenance": {
                "engine": "as in the source",
                "source": source,
                "date": "as in the source",
                "notes": f"{study.kind} fitted by `specsim profile fit` to {study.num_points} "
                f"steps ({study.num_mixed} with prefill); error of a held-out step: median "
                f"{error.median:.2%}, 90th percentile {error.p90:.2%}{notes}",
            },
            "target": study.model,
            "drafts": drafts,
            "valid_range": {
                "context_tokens": max(1, int(points.context_tokens.max())),
                "batched_tokens": int(points.batched_tokens.max()),
            },
            "reserved_gib": subject.reserved_gib,
        }
    )
