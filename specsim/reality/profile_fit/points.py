"""Measured steps from tables, measured runs or kernels; and their robust regression."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from specsim.core.columns import Columns, find_table, first_line, read_columns, table_header
from specsim.core.errors import ProfileError
from specsim.core.settings import load_mapping, validated
from specsim.core.step import StepLoad
from specsim.hardware import GIB, find_gpu, find_model, load_gpu, load_model, num_kv_blocks
from specsim.hardware.specs import RESERVED_GIB
from specsim.latency.kernels import Kernels
from specsim.reality.host_speed import HostSpeed

UNITS = np.array([1e-9, 1e-6, 1e-3])  # of alpha_ns, gamma_us and delta_ms, seconds
_HUBER = 1.345  # standard deviations; 95 % efficient for normal errors (Huber 1981)
_ROUNDS = 20
_MOST_COLLINEAR = 1e6  # largest over smallest singular value
_LEAST_LEFT = 0.1  # least share of a measured step that is the target's
_SHORTEST = 1e-9  # seconds of a step
_NAMES = {
    "context_tokens": ("context_tokens",),
    "batched_tokens": ("batched_tokens",),
    "num_requests": ("num_requests", "requests"),
    "prefill_tokens": ("prefill_tokens", "mixed"),
    "seconds": ("seconds", "target_time"),
}
"""Columns of a table of steps, with their alternative names."""
_PASS_SECONDS = "wall_time"
_PASS = tuple(
    f"scheduled_requests.{kind}"
    for kind in (
        *("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens"),
        *("num_decode_requests", "sum_decode_kv_tokens"),
    )
)
"""Columns of forward-pass metrics, which vLLM, SGLang and TensorRT-LLM record for NVIDIA's Dynamo
(ai-dynamo/dynamo: components/src/dynamo/common/forward_pass_metrics.py)."""
_GRID = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_SKEW = ("pc", "kp", "n", "kv_mean", "t_mean_us", "t_skew_us")
_BLOCK = 16  # tokens
_UTILIZATION = 0.9  # gpu_memory_utilization, vLLM's default until 0.19
_STEPS = "steps.jsonl"
_REQUESTS = "requests.jsonl"


def are_collinear(columns: NDArray[np.float64]) -> bool:
    """Return whether columns, shape (n, m), are too similar to separate."""
    scaled = columns / np.maximum(columns.max(axis=0), 1e-300)
    return bool(np.linalg.cond(scaled) > _MOST_COLLINEAR)


def robust_fit(columns: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the non-negative coefficients (m,) of least Huber loss, for columns (n, m)."""
    rows = np.column_stack([columns, seconds])
    weights = np.ones(len(seconds))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        # Least squares depends on the rows only through the triangle of their QR decomposition.
        triangle: Any = np.linalg.qr(np.sqrt(weights)[:, None] * rows, mode="r")
        found = nnls(triangle[:, :-1], triangle[:, -1])[0]
        errors = np.abs(columns @ found - seconds)
        # Errors of an exact fit are rounding, and no reason to weight points differently.
        limit = max(_HUBER * 1.4826 * float(np.median(errors)), 1e-9 * float(seconds.max()))
        before, weights = weights, limit / np.maximum(errors, limit)
        if np.array_equal(before, weights):
            break  # all later rounds would be equal
    return np.asarray(found)


@dataclass(frozen=True)
class DraftingOfRuns:
    """How measured runs drafted, and the cost of drafting from their differences."""

    method: str
    draft_lens: tuple[int, ...]  # of the runs, ascending; 0 is no speculation
    step_seconds: float = 0.0
    pass_seconds: float = 0.0

    @property
    def only_lens(self) -> tuple[int, ...] | None:
        """Return the draft lengths that the runs determine; None for all."""
        # Two lengths and runs without drafts determine the cost of a step and of a pass.
        return None if len(self.draft_lens) > 2 and not self.draft_lens[0] else self.draft_lens

    @property
    def cost(self) -> dict[str, Any]:
        """Fields of a `specsim.profile.DraftCost`."""
        pass_ms = self.pass_seconds * 1e3
        of_pass = {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": pass_ms}
        return {
            "step_ms": self.step_seconds * 1e3,
            **({"latency": of_pass} if self.pass_seconds else {}),
        }

    @property
    def notes(self) -> str:
        lens = ", ".join(map(str, self.draft_lens))
        if len(self.draft_lens) == 1:
            return (
                f"; a step with {self.method}, {lens} draft tokens, drafting included: of other "
                "draft lengths it says nothing"
            )
        known = f" (of no others: {self.only_lens})" if self.only_lens else ""
        return (
            f"; runs with {self.method}, {lens} draft tokens{known}: what drafting takes is told "
            "from their differences"
        )


@dataclass(frozen=True)
class Points:
    """Steps and their times; arrays of shape (n,)."""

    context_tokens: NDArray[np.float64]
    batched_tokens: NDArray[np.float64]
    num_requests: NDArray[np.float64]
    mixed: NDArray[np.bool_]  # whether the step has prefill
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Points":
        """Return some of the points, by their numbers or by a mask."""
        return Points(*(getattr(self, each.name)[rows] for each in fields(self)))

    @classmethod
    def joined(cls, parts: "Sequence[Points]") -> "Points":
        columns = ([getattr(part, each.name) for part in parts] for each in fields(cls))
        return cls(*map(np.concatenate, columns))

    @property
    def load(self) -> StepLoad:
        """All points in the form that a latency model takes.

        A step with prefill has one chunk, and one token for every other sequence.
        """
        chunk = np.maximum(self.batched_tokens - self.num_requests + 1, 1) * self.mixed
        counts: Any = (self.context_tokens, self.batched_tokens, self.num_requests, chunk)
        return StepLoad(*counts)


@dataclass(frozen=True)
class Origin:
    """The measured model and its GPUs, by the names in ``profiles/``."""

    model: str
    gpu: str
    tensor_parallel_size: int = 1
    drafting: DraftingOfRuns | None = None  # of measured runs; None without speculation

    @property
    def kv_tokens(self) -> int:
        """KV cache of a server of this model on this GPU, tokens.

        Raises a SpecsimError if model or GPU is not known, or the model does not fit.
        """
        shape, gpu = load_model(self.model), load_gpu(self.gpu)
        size = self.tensor_parallel_size
        blocks = num_kv_blocks(
            memory_bytes=gpu.memory_gib * GIB * _UTILIZATION,
            taken_bytes=shape.weight_bytes / size + RESERVED_GIB * GIB,
            block_bytes=_BLOCK * shape.kv_bytes_per_token / size,
        )
        return blocks * _BLOCK


def measured_steps(
    sources: Sequence[Path],
    model: str | None,
    gpu: str | None,
    tensor_parallel_size: int,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> tuple[Points, Origin]:
    """Return the steps of tables or measured runs, or steps composed from kernel tables.

    Raises a ProfileError if a table is missing or malformed, runs drafted by several methods, or
    model or GPU of a folder of kernel tables are not known.

    Args:
        sources: Tables and folders of measured runs (with ``steps.jsonl``), or one folder of kernel
            tables, whose larger steps are left out. For runs that differ in draft length, drafting
            is removed from the steps. With ``host_speed.jsonl``, step times are scaled to the mean
            speed of the machine.
        model, gpu: By default those in a folder's ``meta.yaml``; for tables and runs "".
    """
    tables = [source / _STEPS if (source / _STEPS).exists() else source for source in sources]
    if not any(table.is_dir() for table in tables):
        for table in tables:
            _check_split(table, tensor_parallel_size)
        parts, drafting = _points_at_usual_speed(tables), None
        method, lens = _speculation(tables)
        if method:
            source = ", ".join(map(str, sources))
            parts, drafting = _without_drafting(parts, lens, method, source)
        origin = Origin(model or "", gpu or "", tensor_parallel_size, drafting)
        return Points.joined(parts), origin
    if len(sources) > 1:
        names = ", ".join(str(table) for table in tables if table.is_dir())
        raise ProfileError(
            f"{names}: has no {_STEPS}; of several sources each must be a table of steps or a "
            "measured run"
        )
    if (sources[0] / _REQUESTS).exists() and not (sources[0] / "profile").is_dir():
        raise ProfileError(
            f"{sources[0]}: has no {_STEPS}, for a run that was observed from outside tells no "
            "steps; record one inside vLLM"
        )
    kernels, origin = kernels_of(sources[0], model, gpu, tensor_parallel_size)
    limits = (origin.kv_tokens, max_num_seqs, max_num_batched_tokens)
    return kernel_points(kernels, *limits), origin


def read_points(path: Path) -> Points:
    """Return the steps in a table without those that have no tokens.

    Raises a ProfileError if a column is missing, or a value is not a number of at least 0.

    Args:
        path: CSV, Parquet or JSON lines with columns context_tokens, batched_tokens, num_requests
            (or requests), mixed (or prefill_tokens: mixed if not 0) and seconds (or target_time),
            such as the ``steps.parquet`` of a simulated run or the ``steps.jsonl`` of a measured
            one; or JSON lines of forward-pass metrics (`_PASS`).
    """
    header = table_header(path)
    if _PASS[0] in header:
        values, called = _passes(path), _PASS_SECONDS
    else:
        values, called = _steps(path, header)
    not_empty = values["batched_tokens"] > 0
    zero = np.flatnonzero(not_empty & (values["seconds"] < _SHORTEST))
    if len(zero):
        seconds = values["seconds"][zero[0]]
        raise ProfileError(
            f"{path}, line {int(zero[0]) + first_line(path)}: {called} = {seconds:g}: a "
            "step takes time; correct or remove the row"
        )
    context, batched, requests, prefill, seconds = (values[name] for name in _NAMES)
    return Points(context, batched, requests, prefill > 0, seconds).take(not_empty)


def _passes(path: Path) -> Columns:
    """Return forward-pass metrics as columns of steps; a decode's context counts its own token."""
    found, _ = read_columns(path, (*_PASS, _PASS_SECONDS))
    prompts, chunks, cached, decodes, contexts = (found[name] for name in _PASS)
    return {
        "context_tokens": cached + np.maximum(contexts - decodes, 0),
        "batched_tokens": chunks + decodes,
        "num_requests": prompts + decodes,
        "prefill_tokens": chunks,
        "seconds": found[_PASS_SECONDS],
    }


def _steps(path: Path, header: Sequence[str]) -> tuple[Columns, str]:
    """Return a table's columns, and its name for the seconds."""
    found = {}
    for name, called in _NAMES.items():
        present = [each for each in called if each in header]
        if not present and "output_tok_s" in header:
            raise ProfileError(
                f"{path}: has runs of a load generator, not steps; name the composed profile that "
                "is to be fitted to them (--start)"
            )
        if not present:
            raise ProfileError(
                f"{path}: has no column '{called[-1] if name == 'prefill_tokens' else called[0]}' "
                f"(found: {', '.join(header) or 'nothing'}); name it as `specsim profile fit "
                "--help` says"
            )
        found[name] = present[0]
    columns, _ = read_columns(path, found.values())
    return {name: columns[called] for name, called in found.items()}, found["seconds"]


def _points_at_usual_speed(tables: Sequence[Path]) -> list[Points]:
    points = [read_points(table) for table in tables]
    speeds = [HostSpeed.of_run(table.parent) if table.name == _STEPS else None for table in tables]
    usual = HostSpeed.usual(speeds)
    for place, speed in enumerate(speeds):
        if speed is not None and usual is not None:
            columns, _ = read_columns(tables[place], ("started_at", "batched_tokens"))
            started_at = columns["started_at"][columns["batched_tokens"] > 0]  # as in `points`
            seconds = points[place].seconds
            slowness = speed.slowness(started_at + seconds / 2, usual)
            points[place] = replace(points[place], seconds=seconds / slowness)
    return points


def _speculation(tables: Sequence[Path]) -> tuple[str, list[int]]:
    """Return the method of measured runs, empty without one, and the draft length of each."""
    found = [_speculation_of(table) for table in tables]
    methods = {method: table for (method, k), table in zip(found, tables, strict=True) if k}
    if len(methods) > 1:
        names = " and ".join(f"{method} ({table})" for method, table in methods.items())
        raise ProfileError(
            f"the runs drafted by several methods: {names}; what drafting costs differs, so fit "
            "each method by itself, with the runs that do not speculate"
        )
    return next(iter(methods), ""), [k for _, k in found]


def _check_split(table: Path, tensor_parallel_size: int) -> None:
    """Raise a ProfileError if a run's server divided the model in another way than the fit."""
    path, options = _options_of(table)
    if (stages := options.get("pipeline_parallel_size") or 1) != 1:
        raise ProfileError(
            f"{path}: pipeline_parallel_size = {stages!r}: steps of a pipeline overlap, and what "
            "each stage takes is not in them; build a profile (specsim profile build --pp) and fit "
            "it to runs of a load generator (--start)"
        )
    size = options.get("tensor_parallel_size") or tensor_parallel_size
    if size != tensor_parallel_size:
        raise ProfileError(
            f"{path}: tensor_parallel_size = {size!r}, but --tp is {tensor_parallel_size}; give "
            f"--tp {size}"
        )


def _options_of(table: Path) -> tuple[Path, dict[str, Any]]:
    """Return the engine's options beside the steps of a measured run, and their file."""
    path = table.with_name("meta.json")
    meta = load_mapping(path, ProfileError) if table.name == _STEPS and path.exists() else {}
    options = meta.get("engine_kwargs")
    return path, options if isinstance(options, dict) else {}


def _speculation_of(table: Path) -> tuple[str, int]:
    path, options = _options_of(table)
    config = options.get("speculative_config")
    given = config if isinstance(config, dict) else {}
    if given.get("num_speculative_tokens_per_batch_size"):
        raise ProfileError(
            f"{path}: its draft length changed with the batch, so no step says what a draft costs; "
            "measure runs with one num_speculative_tokens"
        )
    method, longest = given.get("method"), given.get("num_speculative_tokens")
    if not method or not longest:
        _check_nothing_drafted(table)
        return "", 0
    if not isinstance(method, str) or not isinstance(longest, int) or longest < 1:
        raise ProfileError(
            f"{path}: speculative_config: method = {method!r} and num_speculative_tokens = "
            f"{longest!r} must be a name and a whole number of at least 1; correct them"
        )
    return method, longest


def kernels_of(
    folder: Path, model: str | None, gpu: str | None, tensor_parallel_size: int
) -> tuple[Kernels, Origin]:
    """Return the kernels in a folder with ``dense.csv`` and ``attention.csv``, and their origin.

    The tables may be in its subfolder ``profile``, as in a measured run. Model and GPU are by
    default those of ``meta.yaml``. Raises a ProfileError if a table is missing or malformed, or
    model or GPU are not known.
    """
    folder = folder / "profile" if (folder / "profile").is_dir() else folder
    meta_path = folder / "meta.yaml"
    meta = load_mapping(meta_path, ProfileError) if meta_path.exists() else {}
    if model is None:
        model = find_model([str(meta["model"])] if meta.get("model") else [], str(folder))
    if gpu is None:
        names = [str(meta[name]) for name in ("hardware", "gpu") if meta.get(name)]
        gpu = find_gpu(names, str(folder))
    shape, spec = load_model(model), load_gpu(gpu)
    is_mixed = not shape.is_uniform
    shared = shape.n_shared_experts or shape.shared_expert_intermediate_size
    if is_mixed or shape.kv_lora_rank or shape.index_topk or shared:
        raise ProfileError(
            f"{folder}: '{model}' has latent or sparse attention, shared experts or layers of "
            "several shapes, which such tables do not tell apart; use `specsim profile build`"
        )
    with validated(str(folder), ProfileError):
        kernels = Kernels(
            path=folder,
            num_layers=shape.num_hidden_layers,
            tensor_parallel_size=tensor_parallel_size,
            hidden_size=shape.hidden_size,
            collectives=spec.collectives,
            num_experts=shape.num_experts or None,
            experts_per_token=shape.num_experts_per_tok or None,
        )
    return kernels, Origin(model, gpu, tensor_parallel_size)


def kernel_points(
    kernels: Kernels, kv_tokens: int, max_num_seqs: int, max_num_batched_tokens: int
) -> Points:
    """Return a step for every measured point of the attention kernel that a server can run.

    Skewed lengths are included; other kernels are taken at as many tokens and sequences.
    """
    grid = _columns(kernels.folder, "attention", _GRID)
    tables = [np.array([*grid, np.ones(len(grid[0]))])]
    if find_table(kernels.folder, "skew") is not None:  # points whose lengths differ
        *skew, mean, skewed = _columns(kernels.folder, "skew", _SKEW)
        tables.append(np.array([*skew, skewed / mean]))
    columns = np.concatenate(tables, axis=1)
    chunk, kv_prefill, decodes, kv_decode, _ = columns
    # A decode's own token is the last of its KV entries, so before the step it has one fewer.
    context = kv_prefill + decodes * np.maximum(kv_decode - 1, 0)
    requests = decodes + (chunk > 0)
    batched = chunk + decodes
    fits = context + batched <= kv_tokens
    fits &= (requests <= max_num_seqs) & (batched <= max_num_batched_tokens)
    seconds = [kernels.measured_time(*step) for step in columns[:, fits].T.tolist()]
    return Points(context[fits], batched[fits], requests[fits], chunk[fits] > 0, np.array(seconds))


def _columns(folder: Path, table: str, names: Sequence[str]) -> list[NDArray[np.float64]]:
    path = find_table(folder, table)
    assert path is not None
    columns, _ = read_columns(path, names)
    return [columns[name] for name in names]


def _check_nothing_drafted(table: Path) -> None:
    """Raise a ProfileError if steps drafted, since drafting would count as the target's time."""
    header = table_header(table)
    if "draft_tokens" not in header or "seconds" not in header:
        return
    columns, _ = read_columns(table, ("draft_tokens",))
    if len(drafted := np.flatnonzero(columns["draft_tokens"])):
        raise ProfileError(
            f"{table}, line {int(drafted[0]) + first_line(table)}: draft_tokens = "
            f"{columns['draft_tokens'][drafted[0]]:g}, but no meta.json beside it says by which "
            "method: name the folder of the run, or leave steps with drafts out"
        )


def _without_drafting(
    parts: Sequence[Points], lens: Sequence[int], method: str, source: str
) -> tuple[list[Points], DraftingOfRuns]:
    """Return the steps without the time of drafting, and that time.

    One robust regression of all steps: coefficients of the target, with and without prefill, the
    cost of a step that drafts, and of each pass. Without a run that does not draft, the cost per
    step is part of the target; with only one draft length, so are the passes. `lens` are the draft
    lengths of the parts. Raises a ProfileError, naming `source`, if draft lengths and batches are
    collinear.
    """
    drafting = DraftingOfRuns(method, tuple(sorted(set(lens))))
    if len(drafting.draft_lens) == 1:
        return list(parts), drafting
    columns, seconds = _regressors(parts, lens), np.concatenate([part.seconds for part in parts])
    is_fitted = columns.max(axis=0) > 0
    is_fitted[-2:] &= [0 in lens, 0 not in lens or len(drafting.draft_lens) > 2]
    if are_collinear(columns[:, is_fitted]):
        raise ProfileError(
            f"{source}: draft length and batch are collinear, so drafting cannot be told from the "
            "target; measure each length at two loads, or fit each length by itself"
        )
    found = np.zeros(columns.shape[1])
    found[is_fitted] = robust_fit(columns[:, is_fitted], seconds)
    drafting = replace(drafting, step_seconds=float(found[-2]), pass_seconds=float(found[-1]))
    left = []
    for part, k in zip(parts, lens, strict=True):
        taken = drafting.step_seconds * (k > 0) + drafting.pass_seconds * k
        kept = np.maximum(part.seconds - taken, _LEAST_LEFT * part.seconds)
        left.append(replace(part, seconds=kept))
    return left, drafting


def _regressors(parts: Sequence[Points], lens: Sequence[int]) -> NDArray[np.float64]:
    rows = []
    for part, k in zip(parts, lens, strict=True):
        plain = np.column_stack([part.context_tokens, part.batched_tokens, np.ones(len(part))])
        mixed = part.mixed[:, None]
        drafts = np.tile([float(k > 0), float(k)], (len(part), 1))
        rows.append(np.hstack([plain * UNITS * ~mixed, plain * UNITS * mixed, drafts]))
    return np.vstack(rows)
