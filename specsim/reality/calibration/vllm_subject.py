"""What is calibrated on a local vLLM: model folders, looked at before vLLM is started."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.hardware import GIB, ModelShape, find_gpu, load_model
from specsim.reality.calibration.vllm_plan import Speculation, VllmPlan

__all__ = ["VllmSubject", "check_draft", "check_model", "has_weights"]

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
_DRAFT_LENS = (1, 3, 5)
_NGRAM_LEN = 3
_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"  # GiB


@dataclass(frozen=True)
class VllmSubject:
    """What is calibrated, and what it has to keep to."""

    model: Path
    """Folder with ``config.json``."""
    plan: VllmPlan
    speculations: tuple[Speculation, ...]
    device: str
    """``cpu`` or ``cuda``."""
    stated_error: float
    """Of mean TPOT and mean latency, as a share."""
    seed: int = 0
    is_dummy: bool = False
    """Whether vLLM makes up the weights."""

    @classmethod
    def of(
        cls,
        model: Path,
        draft: Path | None,
        plan: VllmPlan,
        device: str,
        **others: Any,
    ) -> "VllmSubject":
        """Return what a model is calibrated with: no speculation and, if given, a draft model.

        Without one, prompt lookup, which needs none.

        Args:
            draft: Folders, both with ``config.json``; weights are made up if one of them has none.
            **others: ``stated_error`` and ``seed``.

        Raises:
            SpecsimError: A folder is not that of a model, or the models do not go together.
        """
        check_model(model, "--model", plan)
        kinds = [Speculation("off")]
        if draft is None:
            kinds.append(Speculation.ngram(_NGRAM_LEN))
        else:
            check_draft(draft, model, plan)
            kinds += [Speculation.draft_model(draft, length) for length in _DRAFT_LENS]
        is_dummy = not all(has_weights(each) for each in (model, draft or model))
        return cls(model, plan, tuple(kinds), device, is_dummy=is_dummy, **others)

    @property
    def shape(self) -> ModelShape:
        """Of the model."""
        return load_model(str(self.model / "config.json"))

    def engine_kwargs(self, speculation: Speculation) -> dict[str, Any]:
        """Return the options of ``vllm.LLM``."""
        kwargs = {"model": str(self.model.resolve()), "seed": self.seed, **self.plan.engine}
        if self.is_dummy:
            kwargs["load_format"] = "dummy"
        if speculation.config is not None:
            kwargs["speculative_config"] = dict(speculation.config)
        return kwargs

    def environment(self, speculation: Speculation) -> dict[str, str]:
        """Return further environment variables: on a CPU, memory for just the blocks."""
        variables = dict(self.plan.environment)
        engine = self.plan.engine
        if self.device == "cpu" and _CACHE_VARIABLE not in variables:
            shapes = [self.shape]
            if speculation.config is not None and "model" in speculation.config:
                shapes.append(load_model(str(Path(speculation.config["model"]) / "config.json")))
            tokens = engine["num_gpu_blocks_override"] * engine["block_size"]
            taken = tokens * sum(shape.kv_bytes_per_token for shape in shapes)
            variables[_CACHE_VARIABLE] = str(ceil(taken / GIB))
        return variables

    def gpu(self, hardware: Mapping[str, Any]) -> str:
        """Return what a profile calls the device that vLLM ran on.

        Args:
            hardware: As in ``meta.json`` of a run.

        Raises:
            SpecsimError: It is another kind of device than was asked for, or one that is not known.
        """
        found = str(hardware.get("device_name"))
        if (found == "cpu") != (self.device == "cpu"):
            other = "cpu" if found == "cpu" else "cuda"
            raise ConfigError(f"--device {self.device}: vLLM runs on {found}; say --device {other}")
        return "cpu" if found == "cpu" else find_gpu([found], "--device cuda")


def has_weights(folder: Path) -> bool:
    """Return whether a folder holds weights."""
    return any(any(folder.glob(pattern)) for pattern in _WEIGHTS)


def check_model(folder: Path, option: str, plan: VllmPlan) -> ModelShape:
    """Return the shape of a model in a folder.

    Args:
        option: Who names it, for the error message.
        plan: Its longest request has to fit.

    Raises:
        SpecsimError: It is none, or its context is too short.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{option} {folder}: has no config.json; give the folder of a model (weights may be "
            "missing, then vLLM makes them up)"
        )
    shape = load_model(str(path))
    longest = int(plan.engine["max_model_len"])
    if shape.max_position_embeddings < longest:
        raise ConfigError(
            f"{path}: max_position_embeddings = {shape.max_position_embeddings} is less than the "
            f"{longest} tokens of the longest request; calibrate a model with more"
        )
    return shape


def check_draft(folder: Path, model: Path, plan: VllmPlan) -> None:
    """Refuse a draft model that cannot draft for a model.

    Raises:
        SpecsimError: It is none, or has other tokens.
    """
    draft = check_model(folder, "--draft-model", plan)
    size = load_model(str(model / "config.json")).vocab_size
    if draft.vocab_size != size:
        raise ConfigError(
            f"--draft-model {folder}: vocab_size = {draft.vocab_size}, but {model} has {size}; "
            "give a draft model with the same tokens"
        )
