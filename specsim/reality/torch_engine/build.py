"""Making a torch engine from the names that a user gives."""

import os
from time import perf_counter

import torch
from torch.nn import functional

from specsim.core.errors import CapacityError, ConfigError
from specsim.hardware import GIB, ModelShape
from specsim.reality.calibration.onednn import keep_kernels
from specsim.reality.calibration.plan import Plan
from specsim.reality.torch_engine.engine import Limits, TorchEngine
from specsim.reality.torch_engine.weights import Recipe, check_shape

__all__ = ["build_engine"]

_REPEATS = 20


def build_engine(
    shape: ModelShape, device_name: str, plan: Plan, *, threads: int, seed: int
) -> TorchEngine:
    """Return an engine with random weights.

    A quarter of the layers make the draft model.

    Args:
        device_name: ``cpu`` or ``cuda``.
        plan: What it has to have room for.
        threads: Of a CPU.
        seed: Of weights and prompts.

    Raises:
        ConfigError: There is no such device, or the engine does not know a part of the model.
        CapacityError: The model does not fit.
    """
    check_shape(shape)
    if device_name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: PyTorch sees no GPU here; install a CUDA build of it on a machine with "
            "one, or use --device cpu"
        )
    keep_kernels()
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    dtype = torch.bfloat16 if device_name == "cuda" else _faster_dtype(shape)
    limits = Limits(plan.max_num_seqs, plan.max_model_len, plan.max_draft_len)
    recipe = Recipe(num_draft_layers=max(1, shape.num_hidden_layers // 4), seed=seed)
    if device_name == "cpu":
        _check_memory(shape, dtype)
    engine = TorchEngine(shape, device, dtype, limits, recipe)
    if device_name == "cpu":
        engine.warm_up(plan.grid.max_batched_tokens)
    return engine


def _check_memory(shape: ModelShape, dtype: torch.dtype) -> None:
    """Refuse what Linux would promise to hold and then end the process for."""
    needed = shape.num_parameters * dtype.itemsize
    left = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > left:
        raise CapacityError(
            f"--model {shape.name}: its weights take {needed / GIB:.1f} GiB and this machine has "
            f"{left / GIB:.1f} GiB left; choose a smaller model"
        )


def _faster_dtype(shape: ModelShape) -> torch.dtype:
    """Return what this CPU multiplies the weights by 16 tokens faster in; some have no bfloat16."""
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        weights = torch.ones(shape.intermediate_size, shape.hidden_size, dtype=dtype)
        tokens = torch.ones(16, shape.hidden_size, dtype=dtype)
        for repeat in range(_REPEATS):
            if repeat == _REPEATS // 4:
                started_at = perf_counter()
            functional.linear(tokens, weights)
        times[dtype] = perf_counter() - started_at
    return min(times, key=lambda dtype: times[dtype])
