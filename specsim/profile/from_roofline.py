"""Profiles of hardware that nobody has measured: from a model's shape and a GPU's data sheet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Self

from specsim.core.errors import ConfigError, ProfileError
from specsim.core.settings import validated
from specsim.hardware import GIB, GpuSpec, MemoryPlan, ModelShape, load_gpu, load_model
from specsim.hardware.specs import model_file, models_in, reserved_gib
from specsim.latency.roofline import Roofline
from specsim.profile.profile import GPU_MEMORY_UTILIZATION, Profile, default_layout, memory_plan

# Of vLLM's max_num_batched_tokens, the largest default: a roofline was not fitted on any range.
_MAX_BATCHED_TOKENS = 16384


@dataclass(frozen=True)
class RooflineOptions:
    """What to make a profile of."""

    model: str  # name in ``profiles/``, or the path of a HuggingFace config.json
    gpu: str
    drafts: dict[str, str]  # model of each proposer that the profile will have costs for
    tensor_parallel_size: int = 1
    compute_efficiency: float = 0.7
    memory_efficiency: float = 0.8
    reserved_gib: float | None = None
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION


@dataclass(frozen=True)
class MadeProfile:
    """A profile that was made, not measured as a whole, and what follows from it."""

    fields: dict[str, Any]  # of the profile, as they go into a YAML file
    profile: Profile
    memory: MemoryPlan  # of each GPU
    num_blocks: int  # KV blocks that fit, vLLM's null block included
    sources: tuple[str, ...] = ()  # tables and kernels that it was composed from

    @classmethod
    def completed(
        cls,
        fields: dict[str, Any],
        source: str,
        num_drafters: int,
        gpu_memory_utilization: float,
        sources: Sequence[str] = (),
    ) -> Self:
        """Return it with as much context as fits beside the first so many drafters.

        A CapacityError if the model does not fit.
        """
        with validated(source, ProfileError):
            draft = Profile.model_validate(fields)
        model, drafts = load_model(fields["model"]), tuple(draft.drafts.values())[:num_drafters]
        gpu, share = load_gpu(fields["gpu"]), gpu_memory_utilization
        memory = memory_plan(draft, model, gpu, drafts, gpu_memory_utilization=share)
        num_blocks, layout = memory.num_blocks(), default_layout(draft, model, drafts)
        context = layout.capacity(num_blocks, model.max_position_embeddings, 0)
        fields["valid_range"]["context_tokens"] = context
        profile = Profile.model_validate(fields)
        return cls(fields, profile, memory, num_blocks, tuple(sources))


class RooflineProfile(MadeProfile):
    """Made from data sheets."""

    @classmethod
    def of(cls, options: RooflineOptions) -> Self:
        """Make a profile of a model on a GPU.

        A ProfileError if a model or GPU is unknown, or lacks a number. A CapacityError if the model
        does not fit into the GPU's memory.
        """
        fields = _fields(options, load_model(options.model), load_gpu(options.gpu))
        share = options.gpu_memory_utilization
        return cls.completed(fields, "profile roofline", len(options.drafts), share)

    @property
    def roofline(self) -> Roofline:
        """Of the target."""
        assert isinstance(self.profile.target, Roofline)
        return self.profile.target


def parse_pairs(option: str, form: str, values: list[str]) -> dict[str, str]:
    """Return what an option says that is given several times, ``NAME=VALUE``.

    A ConfigError if one is not of that form, or a name comes twice.
    """
    pairs: dict[str, str] = {}
    for value in values:
        name, equals, said = value.partition("=")
        if not (name and equals and said):
            raise ConfigError(f"{option} {value}: is not {form}")
        if name in pairs:
            raise ConfigError(f"{option} {value}: '{name}' was given before; give it once")
        pairs[name] = said
    return pairs


def _fields(options: RooflineOptions, model: ModelShape, gpu: GpuSpec) -> dict[str, Any]:
    size = options.tensor_parallel_size
    drafts = {method: _draft(method, name, model, size) for method, name in options.drafts.items()}
    return {
        "model": lasting(options.model),
        "gpu": options.gpu,
        "tensor_parallel_size": size,
        "provenance": {
            "engine": "none; a roofline, not measured",
            "source": f"shape of the model: {model.source}; data sheet of the GPU: {gpu.source}",
            "date": date.today().isoformat(),
            "notes": (
                "Efficiencies are assumptions until a measured step confirms them. No overhead of "
                "the engine is included: measure it, or take that of a measured profile. "
                "reserved_gib, activations and CUDA graphs, is an assumption too. valid_range is "
                "what fits, not what was fitted on."
            ),
        },
        "target": {
            "kind": "roofline",
            "compute_efficiency": options.compute_efficiency,
            "memory_efficiency": options.memory_efficiency,
        },
        **({"drafts": drafts} if drafts else {}),
        "valid_range": {"context_tokens": 1, "batched_tokens": _MAX_BATCHED_TOKENS},
        "reserved_gib": reserved_gib(options.reserved_gib, size),
    }


BLOCK_METHODS = ("dflash", "dspark")
_HEADS = ("eagle", "eagle3", "mtp", *BLOCK_METHODS)


def load_drafter(method: str, name: str, target: ModelShape) -> ModelShape:
    """Return the shape of a drafter; a ProfileError if it cannot draft so for the target."""
    shape, is_head = load_model(name), method in _HEADS
    if is_own_mtp(method, shape):
        try:
            shape = shape.mtp_layer
        except ValueError as error:
            raise ProfileError(f"--draft mtp={name}: {error}, and name that") from error
    if is_head != (shape.num_fused_inputs > 0) and (is_head or method == "draft_model"):
        are = "takes a head on the target's vectors" if is_head else "takes a model of its own"
        ours = "a head of another model" if shape.num_fused_inputs else "a whole model"
        raise ProfileError(
            f"--draft {method}={name}: {method} {are}, and this is {ours}; name another of them"
        )
    width = shape.backbone_hidden_size or shape.hidden_size
    if is_head and width != target.hidden_size:
        raise ProfileError(
            f"--draft {method}={name}: is a head on vectors of {width} numbers, and those of "
            f"'{target.name}' have {target.hidden_size}; name a head that was made for it"
        )
    return shape


def doubt_of_head(method: str, name: str, model: str) -> str | None:
    """Return a warning if a head, by its name, was made for another model than the target."""
    meant, targets = models_in(name), models_in(model)
    if method not in _HEADS or not meant or not targets or meant & targets:
        return None
    made_for = " or ".join(sorted(meant))
    return (
        f"--draft {method}={name}: by its name this head was made for {made_for}, and the target "
        f"is {model}, which would accept few of its drafts; the step times hold"
    )


def is_own_mtp(method: str, shape: ModelShape) -> bool:
    """Whether a drafter is named by the model whose own layers it is."""
    return method == "mtp" and shape.num_nextn_predict_layers > 0


def _draft(method: str, name: str, target: ModelShape, tensor_parallel_size: int) -> dict[str, Any]:
    shape = load_drafter(method, name, target)
    return {
        "basis": "pass",
        "latency": {
            "kind": "roofline",
            "model": lasting(name),
            **({"is_mtp": True} if is_own_mtp(method, load_model(name)) else {}),
        },
        "weights_gib": round(shape.weight_bytes / tensor_parallel_size / GIB, 3),
        "kv_bytes_per_token": shape.kv_bytes_per_token_and_gpu(tensor_parallel_size),
    }


def lasting(model: str) -> str:
    """Return a name that means the same in whatever folder the profile is used."""
    path = model_file(model)
    return model if path is None else str(path.resolve())
