"""Kernel tables of a GPU: measured times of single kernels, in the layout of AIConfigurator's data.

``data/<gpu>/<family>/<engine>/<version>/<table>_perf.parquet`` below a folder that also holds
``<gpu>.yaml``. The package ``aiconfigurator-core`` (extra ``tables``) is one place where such a
folder lies; its latencies are milliseconds.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specsim.core.columns import parquet_table
from specsim.core.errors import NotMeasuredError, ProfileError
from specsim.core.settings import load_mapping, nearest
from specsim.hardware import load_gpu
from specsim.profile.profile import GPU_MEMORY_UTILIZATION

Values = NDArray[np.float64]


class Dtype(NamedTuple):
    """How weights are stored."""

    bytes_per_weight: float
    matrices: str | None  # as gemm tables call it
    experts: str  # as moe tables call it
    peak: str = "bfloat16"


_ROWS = load_mapping(Path(__file__).with_name("dtypes.yaml"), ProfileError)
DTYPES: Mapping[str, Dtype] = {name: Dtype(*row) for name, row in _ROWS.items()}


class Precision(NamedTuple):
    """How the weights of each part of a model are stored: names in `DTYPES`."""

    experts: str
    attention: str
    mlp: str

    @classmethod
    def of(cls, text: str) -> "Precision":
        """Return what ``--dtype`` says, such as ``nvfp4,attention=bfloat16``; a ProfileError."""
        first, *others = text.split(",")
        words = dict.fromkeys(cls._fields, first)
        for other in others:
            part, _, words[part] = other.partition("=")
            if part not in cls._fields:
                raise ProfileError(f"--dtype {text}: {nearest(part, [*cls._fields])}")
        for word in words.values():
            if word not in DTYPES:
                raise ProfileError(f"--dtype {word}: {nearest(word, [*DTYPES])}")
        return cls(**words)

    def stored(self, part: str) -> Dtype:
        return DTYPES[getattr(self, part)]

    def matrix_bytes(self, part: str) -> float:
        """Return what a weight of a part's dense matrices takes."""
        dtype = self.stored(part)
        return DTYPES[dtype.matrices].bytes_per_weight if dtype.matrices else dtype.bytes_per_weight


@dataclass(frozen=True)
class TableOptions:
    """What to compose a profile of."""

    model: str  # name in ``profiles/``, or the path of a HuggingFace config.json
    gpu: str
    drafts: Mapping[str, str] = field(default_factory=dict)
    """Model of each proposer that the profile will have costs for."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Ranks that share the experts, each with as many tokens as the profile is asked about."""
    decode_context_parallel_size: int = 1
    """GPUs that share KV entries out; see `specsim.profile.parallel`."""
    enable_expert_parallel: bool = False
    dtype: str = "bfloat16"
    """``auto``: as the model's config.json says; of parts on their own, see `Precision`."""
    kv_dtype: str = "auto"  # as vLLM would by itself
    engine: str = "vllm"
    tables: Path | None = None  # folder of kernel tables; by default that of the installed package
    versions: Mapping[str, str] = field(default_factory=dict)
    """By table, such as ``allreduce``, the ENGINE/VERSION to take in place of the newest."""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """By family, a part of the name of the kernel that the server logged."""
    reserved_gib: float | None = None
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    tables_of: str | None = None
    """Another GPU, as in ``profiles/``, whose tables are carried over by the data sheets."""


class Scales(NamedTuple):
    """What times become on another GPU than the one that they were measured on."""

    read: float = 1.0  # of what reads memory: attention of decodes, reading weights, small kernels
    compute: float = 1.0  # of all else: growth with the tokens, attention of prompts

    @classmethod
    def of(cls, options: TableOptions) -> "Scales":
        """Return what the data sheets of both GPUs say; a ProfileError if one does not."""
        if options.tables_of is None:
            return cls()
        sizes = options.tensor_parallel_size, options.pipeline_parallel_size
        if max(*sizes, options.data_parallel_size) > 1:
            raise ProfileError(
                f"--tables-of {options.tables_of}: what GPUs send each other is not carried over; "
                "leave --tp, --pp and --dp out, or use `specsim profile roofline`"
            )
        name = Precision.of(options.dtype).stored("experts").peak
        read, compute = [], []
        for gpu in (options.tables_of, options.gpu):
            spec = load_gpu(gpu)
            if spec.memory_gb_per_s is None or name not in spec.peak_tflops:
                raise ProfileError(
                    f"--tables-of {options.tables_of}: GPU '{gpu}' lacks memory_gb_per_s or "
                    f"peak_tflops of {name}; add them to its file"
                )
            read.append(spec.memory_gb_per_s)
            compute.append(spec.peak_tflops[name])
        return cls(read[0] / read[1], compute[0] / compute[1])


def tables_folder() -> Path:
    """Return the folder of the installed package; a ProfileError if it is not installed."""
    if not (folders := _packages()):
        raise ProfileError(
            "kernel tables: the package aiconfigurator-core is not installed; install "
            "'llm-specsim[tables]', or name a folder of that layout (--tables)"
        )
    return folders[0] / "systems"


def _packages() -> list[Path]:
    """Return where aiconfigurator-core is installed, and AISimulate, which came after it."""
    found = map(find_spec, ("aiconfigurator_core", "aisimulate_core"))
    places = (each.submodule_search_locations for each in found if each is not None)
    return [Path(each[0]) for each in places if each]


@cache
def published_configs() -> dict[str, Path]:
    """Return the config.json of models that lie in the package, by name in lower case; or none.

    The name is what follows the organisation.
    """
    folders = _packages()[:1]
    files = [file for each in folders for file in (each / "model_configs").glob("*--*_config.json")]
    return {
        path.name.removesuffix("_config.json").partition("--")[2].lower(): path
        for path in sorted(files)
        if "_hf_quant" not in path.name
    }


Found = TypeVar("Found")

BEYOND_CACHE = 2**28  # bytes; the largest cache of these GPUs has 2**27


def us_per_byte(moved: Values, times: Values) -> float:
    """Return what memory takes for a byte, where smaller reads of a table came from the cache.

    Else 0. Who measures a kernel runs it over and over, and finds what it reads in the GPU's cache
    if it fits: on L40S and RTX PRO 6000 weights and keys of less than 128 MB, up to five times as
    fast as memory. A server has gone through all other layers in between. By the fastest of the
    reads that fit into no cache: no smaller one is faster, unless it came from there.

    Args:
        moved: What each row reads, bytes.
        times: Microseconds.
    """
    is_large = moved >= BEYOND_CACHE
    each = times / moved
    if not is_large.any() or each.min() >= (fastest := each[is_large].min()):
        return 0.0
    return float(fastest)


class MeasuredTable(NamedTuple):
    """A table, or some of its rows, and where it lies."""

    rows: pa.Table
    source: str  # GPU, engine, version and file

    def values(self, column: str) -> list[Any]:
        found: list[Any] = self.rows[column].to_pylist()
        return found

    def columns(self, *names: str) -> list[Values]:
        """Return columns as floats, then ``latency`` in microseconds; shape (rows,) each."""
        found = [self.rows[name].to_numpy().astype(np.float64) for name in (*names, "latency")]
        unit = 1.0 if "transmit_us" in self.rows.column_names else 1e3  # all-to-all; else ms
        return [*found[:-1], found[-1] * unit]

    def with_times(self, times: Values) -> "MeasuredTable":
        """Return the rows with other times, microseconds."""
        place = self.rows.column_names.index("latency")
        return self._replace(rows=self.rows.set_column(place, "latency", pa.array(1e-3 * times)))

    def of_phase(self, phase: str) -> "MeasuredTable":
        """Return the rows of a phase under usual names, if one column tells of it and of sizes."""
        if "geometry" not in self.rows.column_names:
            return self
        told = [json.loads(each) for each in self.values("geometry")]
        is_context = phase == "context"
        kept = np.array([each["is_context"] == is_context for each in told])
        x, prefix = self.rows["x"].to_numpy(), self.rows["prefix"].to_numpy()
        names = "num_heads", "kv_cache_dtype"
        columns: dict[str, Any] = {name: [each[name] for each in told] for name in names}
        columns |= {"isl": x, "step": prefix} if is_context else {"isl": x * 0 + 1, "step": x - 1}
        rows = self.rows.drop_columns(["x", "prefix"])
        for name, values in columns.items():
            rows = rows.append_column(name, pa.array(values))
        return self._replace(rows=rows.filter(pa.array(kept)))

    def where(self, what: str, **wanted: object) -> "MeasuredTable":
        """Return the rows in which columns have given values; columns it lacks are ignored.

        A ProfileError if none is left; the message says which value there is none of, and what is
        near.
        """
        rows = self.rows
        for column, value in wanted.items():
            if column not in rows.column_names:
                continue
            kept = rows.filter(pc.equal(rows[column], pa.scalar(value, rows[column].type)))
            if not kept.num_rows:
                there: list[Any] = sorted(pc.unique(rows[column]).to_pylist())
                raise NotMeasuredError(
                    f"{self.source}: no {what} with {column} = {value} (measured: {_short(there)})"
                    + _hint(value, there),
                    column,
                )
            rows = kept
        return self._replace(rows=rows)

    def of_kernel(self, wanted: str | None) -> tuple["MeasuredTable", str]:
        """Return rows of which no two are of the same shape, and the kernel of most of them.

        Where an engine takes another kernel for other shapes, so does the table. Where several were
        measured for the same shape, it is the one that is asked for, or the one with most rows.
        """
        names = self.values("kernel_source")
        counts = {name: names.count(name) for name in sorted(set(names))}
        fitting = {name: count for name, count in counts.items() if (wanted or "") in name}
        if not fitting:
            raise ProfileError(
                f"{self.source}: no kernel '{wanted}'; choose one of those that were measured: "
                f"{', '.join(counts)}"
            )
        name = max(fitting, key=lambda name: fitting[name])
        shapes = self.rows.drop_columns(["latency", "kernel_source"])
        num_shapes = shapes.group_by(shapes.column_names).aggregate([]).num_rows
        if wanted is None and num_shapes == len(names):
            return self, name
        return self.where("kernel", kernel_source=name), name


def rows_with(what: str, **wanted: object) -> Callable[[MeasuredTable], MeasuredTable]:
    """Return what takes such rows of a table (`MeasuredTable.where`), for `GpuTables.newest`."""
    return lambda table: table.where(what, **wanted)


_OF_AISIMULATE = {"glm53_attention"}  # which AIConfigurator lacks
# What tables are called in ``--table``, if not by their family, which several share.
_KEYS = {"custom_allreduce_perf": "allreduce", "nccl_perf": "nccl", "moe_a2a_perf": "a2a"}
TABLE_KEYS = ["attention", "gemm", "kda", "linear_attention", "mla", "moe", "msa", "quantize"]
TABLE_KEYS += ["sparse_attention", *_KEYS.values()]


class GpuTables:
    """The tables of one GPU and one engine.

    A ProfileError if the folder has another layout, or has no such GPU.

    Args:
        folder: With ``data/<gpu>/`` and ``<gpu>.yaml``.
        gpu: As in ``profiles/``; found under its name there or a longer one (``h100_sxm``).
        engine: Whose kernels: ``vllm``, ``sglang`` or ``trtllm``.
        versions: See `TableOptions`.
    """

    def __init__(
        self,
        folder: Path,
        gpu: str,
        engine: str = "vllm",
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.engine = engine
        self.versions = versions or {}
        self.keys: set[str] = set()  # of the tables that were read
        data = folder / "data"
        if not data.is_dir():
            raise ProfileError(
                f"{folder}: has no folder data/ with a folder per GPU; name the folder "
                "'systems' of aiconfigurator-core or one of its layout"
            )
        known = sorted(each.name for each in data.iterdir() if each.is_dir())
        self.gpu = _gpu_folder(gpu, known, folder)
        self._tables: dict[Path, MeasuredTable] = {}

    def table(self, family: str, name: str, known: str | None = None) -> MeasuredTable:
        """Return a table, such as ``gemm``, ``gemm_perf``: the one named, or the family's newest.

        A ProfileError if there is none for this GPU and engine, or it cannot be read.

        Args:
            known: ENGINE/VERSION to take in place of the newest, if it is there.
        """
        return self._table_in(self._file(family, name, known))

    def newest(
        self,
        family: str,
        name: str,
        use: Callable[[MeasuredTable], Found],
        known: str | None = None,
    ) -> Found:
        """Return what comes of the newest table that has what is used of it.

        A new version may have been measured for some operations, sizes or formats only. If `table`
        has it, that one counts; if none has it, its ProfileError is raised.
        """
        first = self._file(family, name, known)
        table = self._table_in(first)
        try:
            return use(table)
        except ProfileError:
            for file in reversed(self._files(family, name)):
                if file != first:
                    with suppress(ProfileError):
                        return use(self._table_in(file))
            raise

    def of_engine(self, engine: str | None) -> "GpuTables":
        """Return the tables of another engine, or these."""
        if engine is None:
            return self
        other = GpuTables(self.folder, self.gpu, engine, self.versions)
        other.keys = self.keys
        return other

    def has(self, family: str, name: str) -> bool:
        return bool(self._files(family, name))

    def _files(self, family: str, name: str) -> list[Path]:
        version = self.versions.get(_KEYS.get(name, family), f"{self.engine}/*")
        folders = [self.folder]
        if family in _OF_AISIMULATE:
            installed = [each / "systems" for each in _packages()]
            folders += installed if self.folder in installed else []
        for folder in folders:
            files = (folder / "data" / self.gpu / family).glob(f"{version}/{name}.parquet")
            if found := sorted(files, key=lambda file: _version(file.parent.name)):
                return found
        return []

    def _file(self, family: str, name: str, known: str | None) -> Path:
        key, files = _KEYS.get(name, family), self._files(family, name)
        if key not in self.versions:
            files = [each for each in files if known == _version_of(each)] or files
        if not files:
            others = sorted((self.folder / "data" / self.gpu / family).glob(f"*/*/{name}.parquet"))
            if key in self.versions:
                there = [_version_of(file) for file in others]
                raise ProfileError(
                    f"--table {key}={self.versions[key]}: {nearest(self.versions[key], there)}"
                )
            engines = ", ".join(sorted({file.parent.parent.name for file in others}))
            remedy = f"choose an engine that has one (--engine: {engines}) or " if engines else ""
            if family in _OF_AISIMULATE and not others:
                remedy = "install the package aisimulate, which has those of some GPUs, or "
            raise ProfileError(
                f"{self.folder}: {self.gpu} has no table {family}/{name} of {self.engine}; {remedy}"
                "use `specsim profile roofline`"
            )
        self.keys.add(key)
        return files[-1]

    def _table_in(self, path: Path) -> MeasuredTable:
        if path in self._tables:
            return self._tables[path]
        rows = parquet_table(path, ProfileError)
        if "latency" not in rows.column_names:
            raise ProfileError(
                f"{path}: has no column 'latency' (found: {', '.join(rows.column_names)}); it is "
                "no kernel table of this layout"
            )
        engine, version = path.parts[-3:-1]
        source = f"{self.gpu} {engine} {version} {path.stem}"
        return self._tables.setdefault(path, MeasuredTable(rows, source))

    @property
    def system(self) -> Mapping[str, Any]:
        """``<gpu>.yaml``: bandwidths, memory, peaks."""
        return load_mapping(self.folder / f"{self.gpu}.yaml", ProfileError)


def _hint(value: object, there: Sequence[Any]) -> str:
    if isinstance(value, str):
        return f"; {nearest(value, [str(each) for each in there])}"
    return f"; the nearest is {min(there, key=lambda each: abs(each - value))}"


def _short(values: Sequence[Any]) -> str:
    texts = [str(value) for value in values]
    return ", ".join(texts if len(texts) <= 12 else [*texts[:10], "...", texts[-1]])


def _version_of(file: Path) -> str:
    return f"{file.parent.parent.name}/{file.parent.name}"


def _version(name: str) -> list[tuple[int, str]]:
    parts = re.findall(r"\d+|[a-z]+", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _gpu_folder(gpu: str, known: Sequence[str], folder: Path) -> str:
    wanted = gpu.lower().replace("-", "_")
    without_memory = re.sub(r"_\d+gb$", "", wanted)
    for name in (wanted, without_memory):
        for suffix in ("", "_sxm", "_server"):
            if name + suffix in known:
                return name + suffix
    raise ProfileError(
        f"{folder}: no tables of GPU '{gpu}' (there are: {', '.join(known)}); choose one of those "
        "or use `specsim profile roofline`"
    )
