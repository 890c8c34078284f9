"""Models and GPUs as far as memory goes: how many KV blocks fit.

Source of the rule: vLLM 0.32.0 ``v1/worker/gpu_worker.py determine_available_memory`` and
``v1/core/kv_cache_utils.py``: what gpu_memory_utilization leaves after weights and the peak of a
profiling run is divided into blocks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from specsim.core.errors import CapacityError, ProfileError
from specsim.core.resources import find_resource, resource_names
from specsim.core.settings import Settings, load_mapping, nearest, validated
from specsim.hardware.model_config import HuggingFaceConfig
from specsim.hardware.model_shape import ModelShape

Operation = Literal["all_reduce", "all_gather", "reduce_scatter"]


class Collective(Settings):
    """Measured times of one operation between some GPUs."""

    operation: Operation
    gpus: int = Field(ge=2)
    measured: str = Field(min_length=1)
    """Engine, version and kernel, or where else the times come from."""
    message_bytes: Annotated[tuple[PositiveFloat, ...], Field(min_length=2)]
    """What is summed up, or what each GPU has after an all-gather or before a reduce-scatter."""
    us: tuple[PositiveFloat, ...]

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        if len(self.us) != len(self.message_bytes):
            raise ValueError(f"us has {len(self.us)} numbers, message_bytes "
                             f"{len(self.message_bytes)}; give one time per size")  # fmt: skip
        if any(np.diff(self.message_bytes) <= 0):
            raise ValueError("message_bytes must rise; sort the rows")
        return self

    @property
    def version(self) -> str:
        """ENGINE/VERSION of the measurement, if `measured` names a kernel table."""
        return "/".join(self.measured.split()[1:3])

    def time(self, message_bytes: float, gpus: int) -> float:
        """Return the time for a message, microseconds.

        Straight between measured sizes; beyond the largest as from the last to it. Among another
        number of GPUs than measured, as for the message of which each of those sends as much in
        NCCL's rings (nccl-tests ``doc/PERFORMANCE.md``).
        """
        share = (gpus - 1) / gpus * self.gpus / (self.gpus - 1)
        size, (last, largest), us = message_bytes * share, self.message_bytes[-2:], self.us
        if size > largest:
            rise = max(us[-1] - us[-2], 0.0)  # a larger message never takes less
            return us[-1] + (size - largest) * rise / (largest - last)
        return float(np.interp(size, self.message_bytes, us))


def of_operation(
    collectives: Sequence[Collective], operation: Operation, gpus: int
) -> Collective | None:
    """Return the table of an operation among so many GPUs, or the nearest number; None without."""
    found = [each for each in collectives if each.operation == operation]
    return min(found, key=lambda each: abs(each.gpus - gpus), default=None)


GIB = 1 << 30
RESERVED_GIB = 1.15
"""Of a GPU's memory, what is neither weights nor KV cache: measured with vLLM 0.19 and Llama-3.1-8B
at max_num_batched_tokens 2048 on an RTX 4090 (23.52 GiB x 0.9 - 14.96 GiB of weights - 2,588 blocks
of 2 MiB)."""


def reserved_gib(given: float | None, gpus: int) -> float:
    """Return what is set aside on each of so many GPUs that exchange, GiB.

    Where it is not given, one more than on one alone (docs/explanation/fidelity.md, Memory).
    """
    return RESERVED_GIB + (gpus > 1) if given is None else given


class GpuSpec(Settings):
    """One GPU, from ``profiles/<gpu>.yaml``."""

    name: str
    memory_gib: float = Field(gt=0)
    """Total memory as the CUDA runtime reports it, GiB."""
    peak_tflops: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """By data type, of the matrix units, without sparsity; 10^12 operations per second."""
    memory_gb_per_s: float | None = Field(default=None, gt=0)
    """Bandwidth of its memory, 10^9 bytes per second; None where it is not known."""
    multiprocessors: int | None = Field(default=None, gt=0)
    """None where not known: then no kernel is taken to compute in waves of tiles."""
    interconnect_gb_per_s: float | None = Field(default=None, gt=0)
    """To all other GPUs of the server together, one direction, 10^9 bytes per second."""
    collectives: tuple[Collective, ...] = ()
    """What GPUs of one server take to exchange tensors, by operation."""
    source: str

    @property
    def is_sm100(self) -> bool:
        """Whether it is a Blackwell of data centers, of compute capability 10."""
        return re.search("B[23]00", self.name) is not None

    def kv_dtype(self, model: ModelShape) -> str:
        """Return how vLLM stores keys and values of a model on it, where it is not told."""
        is_small = model.kv_cache_dtype == "fp8" or (model.kv_cache_dtype and self.is_sm100)
        return "fp8" if is_small else "bfloat16"


@dataclass(frozen=True)
class MemoryPlan:
    """What the memory of one GPU is for, bytes."""

    total_bytes: float  # total memory of the GPU
    usable_bytes: float  # what vLLM may use of it: times gpu_memory_utilization
    weight_bytes: float  # weights of the target
    draft_weight_bytes: float  # weights of the drafter
    reserved_bytes: float  # activations, CUDA graphs, context
    block_bytes: float  # one KV block of the target
    draft_block_bytes: float  # the drafter's share of one KV block
    block_size: int  # tokens of one, of the first kind of layers

    @property
    def taken_bytes(self) -> float:
        return self.weight_bytes + self.draft_weight_bytes + self.reserved_bytes

    def num_blocks(self) -> int:
        return num_kv_blocks(
            memory_bytes=self.usable_bytes,
            taken_bytes=self.taken_bytes,
            block_bytes=self.block_bytes + self.draft_block_bytes,
        )


def gpu_file(name: str) -> Path | None:
    """Return the file of a GPU, which may be named by its path; None if there is none."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    return find_resource("profiles", f"{name}.yaml")


def load_gpu(name: str) -> GpuSpec:
    """Return the GPU in ``profiles/<name>.yaml``, or in a file; a ProfileError if there is none."""
    path = gpu_file(name)
    if path is None:
        known = resource_names("profiles", "*.yaml")
        raise ProfileError(f"no GPU '{name}' in profiles/; {nearest(name, known)}")
    with validated(str(path), ProfileError):
        return GpuSpec.model_validate(load_mapping(path, ProfileError, is_shared=True))


def gpus_alike(name: str) -> list[str]:
    """Return the names of other GPUs that begin with this one, such as a100-80gb with a100."""
    return [each for each in resource_names("profiles", "*.yaml") if each.startswith(f"{name}-")]


Known = TypeVar("Known")
_CHANGED_BY = re.compile("^(?:huihui|josiefied)-")  # before the name of the model they changed
_NAMED = Path(__file__).with_name("models.yaml")
_ALIASES = Path(__file__).with_name("model_aliases.yaml")


@cache
def _of_package(path: Path) -> dict[str, Any]:
    """Return what a file of the package holds, which stays as it is."""
    return load_mapping(path, ProfileError, is_shared=True)


def model_names() -> list[str]:
    """Return the models whose shape is known by name, sorted."""
    named = _of_package(_NAMED)
    return sorted({*resource_names("profiles", "*.json"), *named})


def model_file(name: str) -> Path | None:
    """Return the file that a model is named by, of a folder its config.json; None if by name."""
    if name.endswith(".json"):
        return Path(name)
    is_known = name in _of_package(_NAMED) or find_resource("profiles", f"{name}.json") is not None
    path = Path(name) / "config.json"
    return path if not is_known and path.is_file() else None


def load_model(name: str) -> ModelShape:
    """Return the shape of a model.

    A ProfileError if there is none, or it lacks a field, or has a part that is not modelled.

    Args:
        name: As in ``profiles/<name>.json`` or ``models.yaml``, or the path of such a file, of a
            model's HuggingFace ``config.json``, or of a folder with one.
    """
    path = model_file(name) or find_resource("profiles", f"{name}.json")
    if path is None:
        return _named_model(name)
    fields = load_mapping(path, ProfileError)
    if "source" not in fields:  # which every shape names
        beside = path.with_name(path.name.replace("config.json", "hf_quant_config.json"))
        if not fields.get("quantization_config") and beside != path and beside.is_file():
            said = load_mapping(beside, ProfileError).get("quantization")
            fields["quantization_config"] = {"quant_method": "modelopt", **(said or {})}
        fields = HuggingFaceConfig(fields, str(path)).fields()
    with validated(str(path), ProfileError):
        return ModelShape.model_validate(fields)


@lru_cache(maxsize=64)  # the file is part of the package
def _named_model(name: str) -> ModelShape:
    config = _of_package(_NAMED).get(name)
    if config is None:
        hint = nearest(known_model(name) or key_of(name), model_names())
        if hint.startswith("choose"):
            hint = "give its config.json; specsim list names those that are known"
        raise ProfileError(f"no model '{name}' is known by name; {hint}")
    whole = {"torch_dtype": "bfloat16", "_name_or_path": config["name"], **config}
    source = f"https://huggingface.co/{config['name']}/blob/main/config.json"
    return ModelShape.model_validate(HuggingFaceConfig(whole, source).fields())


def key_of(name: str) -> str:
    """Return the part of a name that tells models apart, in lower case."""
    return _CHANGED_BY.sub("", name.rstrip("/").rsplit("/", 1)[-1].lower())


def of_longest(known: Mapping[str, Known], key: str) -> Known | None:
    """Return what is known by the longest name that a key begins with, up to its end or a dash."""
    fitting = [name for name in known if key == name or key.startswith(f"{name}-")]
    return known[max(fitting, key=len)] if fitting else None


def known_model(name: str) -> str | None:
    """Return the model that a name means, such as ``Qwen/Qwen3-8B``; None if none is known."""
    aliases = _of_package(_ALIASES)
    return of_longest({**{each: each for each in model_names()}, **aliases}, key_of(name))


def find_model(names: list[str], source: str) -> str:
    """Return the first model that is known of those which somebody else names.

    A ProfileError if there is none.

    Args:
        source: Who names them, for the error message.
    """
    for name in names:
        if (model := known_model(name)) is not None:
            return model
    given = " or ".join(dict.fromkeys(names)) or "no model"
    raise ProfileError(
        f"{source}: names {given}, which is none of those known by name "
        f"({', '.join(model_names())}); put the model's config.json into the folder, or name one "
        "(--model)"
    )


def _runs_of_words(name: str) -> set[str]:
    """Return what any consecutive words of a name spell, so that "RTX 4090" holds "rtx4090"."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    ends = range(1, len(words) + 1)
    return {"".join(words[start:end]) for end in ends for start in range(end)}


def models_in(name: str) -> set[str]:
    """Return the models that a name or the path of a config.json speaks of; heads are none.

    The longest alone of those that fit: ``EAGLE3-Qwen3-8B`` speaks of ``qwen3-8b``.
    """
    path = Path(name)
    label = path.parent.name if path.name == "config.json" else name.removesuffix(".json")
    called = _runs_of_words(key_of(label))
    fitting = {each for each in model_names() if _plain(each) in called} | {known_model(label)}
    found = {each for each in fitting if each is not None and not load_model(each).is_head}
    longest = max(map(len, found), default=0)
    return {each for each in found if len(each) == longest or each == known_model(label)}


def find_gpu(names: list[str], source: str) -> str:
    """Return the name in ``profiles/`` of a GPU, given what somebody else calls it.

    A ProfileError if there is none.

    Args:
        names: Such as ``RTX4090`` or ``NVIDIA GeForce RTX 4090``; letters and digits count.
        source: Who calls it that, for the error message.
    """
    known = resource_names("profiles", "*.yaml")
    for name in names:
        called = _runs_of_words(name)
        fitting = [
            gpu for gpu in known if _plain(gpu) in called or set(gpu.lower().split("-")) <= called
        ]
        if fitting:
            return max(fitting, key=len)
    given = " or ".join(dict.fromkeys(names)) or "no GPU"
    raise ProfileError(
        f"{source}: names {given}, which is none of profiles/*.yaml ({', '.join(known)}); add "
        "profiles/<gpu>.yaml with name, memory_gib and source"
    )


_SAYS_NOTHING = re.compile(r"nvidia|amd|geforce|instinct|tesla|gpu|sxm\d?|hbm\d?e?")
_MEMORY = re.compile(r"(\d+)(?:gi?b?)")
_NEAR_GB = 4  # of one GPU's memory, as data sheets, drivers and people round it


def gpu_as_typed(text: str) -> str:
    """Return the name in ``profiles/`` of a GPU that somebody typed, ``H100 SXM`` or ``RTX 4090``.

    What names no GPU that is there is returned as it is, but for capitals and spaces: ``H100 PCIe``
    is another than ``h100``, and so is ``A100 40GB`` than ``a100``.
    """
    if gpu_file(text) is not None:
        return text
    name = text.lower().replace(" ", "-")
    if gpu_file(name) is not None:
        return name
    try:
        found = find_gpu([text], "")
    except ProfileError:
        return name
    memory = load_gpu(found).memory_gib
    for word in re.findall(r"[a-z0-9]+", name):
        said = _MEMORY.fullmatch(word)
        if said is not None and abs(int(said[1]) - memory) <= _NEAR_GB:
            continue
        if _SAYS_NOTHING.fullmatch(word) is None and word not in _plain(found):
            return name
    return found


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def num_kv_blocks(*, memory_bytes: float, taken_bytes: float, block_bytes: float) -> int:
    """Return how many KV blocks fit into one GPU, vLLM's null block included.

    A CapacityError if not even two blocks fit.

    Args:
        memory_bytes: What vLLM may use of the GPU: total memory times gpu_memory_utilization.
        taken_bytes: Weights of target and draft, activations, CUDA graphs.
        block_bytes: One KV block, of target and draft together.
    """
    left = memory_bytes - taken_bytes
    blocks = int(left // block_bytes)
    if blocks < 2:
        raise CapacityError(
            f"weights and activations take {taken_bytes / GIB:.1f} GiB of the usable "
            f"{memory_bytes / GIB:.1f} GiB: no KV block fits; use more or larger GPUs, or raise "
            "gpu_memory_utilization"
        )
    return blocks
