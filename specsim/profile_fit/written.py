"""What was measured, and the profile that comes of a fit."""

from dataclasses import dataclass
from pathlib import Path

from specsim.errors import ProfileError
from specsim.hardware import GIB, find_gpu, find_model, load_gpu, load_model, num_kv_blocks
from specsim.latency.kernels import Kernels
from specsim.profile import Profile
from specsim.profile_fit.points import Limits, Points, kernel_points, read_points
from specsim.profile_fit.study import Study
from specsim.settings import load_mapping, validated

__all__ = ["Subject", "fitted_profile", "kernel_folder", "kernels_of", "measured_steps"]

_BLOCK = 16  # tokens


@dataclass(frozen=True)
class Subject:
    """Which model was measured on which GPUs, in the names of ``profiles/``."""

    model: str
    gpu: str
    tensor_parallel_size: int = 1
    reserved_gib: float = 1.15
    gpu_memory_utilization: float = 0.9

    def limits(self, max_num_seqs: int, max_num_batched_tokens: int) -> Limits:
        """Return which steps a server of this model on this GPU can run.

        Parameters
        ----------
        max_num_seqs, max_num_batched_tokens : int
            Of the engine.

        Returns
        -------
        Limits

        Raises
        ------
        SpecsimError
            Model or GPU is not known, or the model does not fit.
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
    """Return the folder of kernel tables that a path leads to: itself, or its ``profile``.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Path
    """
    return path / "profile" if (path / "profile").is_dir() else path


def kernels_of(
    folder: Path, model: str | None, gpu: str | None, tensor_parallel_size: int
) -> tuple[Kernels, Subject]:
    """Return the kernels in a folder, and what they were measured on.

    Parameters
    ----------
    folder : Path
        With ``dense.csv`` and ``attention.csv``.
    model, gpu : str or None
        By default what ``meta.yaml`` says.
    tensor_parallel_size : int

    Returns
    -------
    Kernels
    Subject

    Raises
    ------
    ProfileError
        A table is missing or malformed, or model or GPU are not known.
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
    source: Path,
    model: str | None,
    gpu: str | None,
    tensor_parallel_size: int,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> tuple[Points, Subject]:
    """Return the steps of a table, or composed from a folder of kernel tables.

    Parameters
    ----------
    source : Path
    model, gpu : str or None
        By default what a folder's ``meta.yaml`` says; of a table "".
    tensor_parallel_size : int
    max_num_seqs, max_num_batched_tokens : int
        Of a folder, larger steps are left out.

    Returns
    -------
    Points
    Subject

    Raises
    ------
    ProfileError
        A table is missing or malformed, or model or GPU of a folder are not known.
    """
    if not source.is_dir():
        return read_points(source), Subject(model or "", gpu or "", tensor_parallel_size)
    kernels, subject = kernels_of(kernel_folder(source), model, gpu, tensor_parallel_size)
    return kernel_points(kernels, subject.limits(max_num_seqs, max_num_batched_tokens)), subject


def fitted_profile(study: Study, points: Points, subject: Subject, source: str) -> Profile:
    """Return the profile of a fit.

    Parameters
    ----------
    study : Study
    points : Points
        That were fitted.
    subject : Subject
    source : str
        Where they come from.

    Returns
    -------
    Profile
        Its overhead is 0: it is hidden under asynchronous scheduling, and part of the measured
        times otherwise.
    """
    error = study.held_out["all"]
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
                f"{error.median:.2%}, 90th percentile {error.p90:.2%}",
            },
            "target": study.model,
            "valid_range": {
                "context_tokens": max(1, int(points.context_tokens.max())),
                "batched_tokens": int(points.batched_tokens.max()),
            },
            "reserved_gib": subject.reserved_gib,
        }
    )
