"""What measured runs say of themselves that a profile fitted to their steps would not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specsim.core.errors import ProfileError
from specsim.core.settings import load_mapping
from specsim.reality.validation.table_replay import is_same_gpu, is_same_model

_CHANGE_STEPS = ("quantization", "enable_lora")


def doubts_of(sources: Sequence[Path], model: str | None, gpu: str | None) -> list[str]:
    """Return where the runs in some folders are not of a model, plain, on a GPU; by their names."""
    found = []
    for source in sources:
        folder = source if source.is_dir() else source.parent
        path = folder / "meta.json"
        if path.is_file() and (folder / "steps.jsonl").is_file():
            doubts = _doubts_of(load_mapping(path, ProfileError), model or "", gpu or "")
            found += [f"{path}: {doubt}" for doubt in doubts]
    return found


def _doubts_of(meta: Mapping[str, Any], model: str, gpu: str) -> list[str]:
    options, hardware = (_mapping(meta.get(name)) for name in ("engine_kwargs", "hardware"))
    named = options.get("model") or meta.get("model")
    device = hardware.get("device_name") or meta.get("gpu")
    own = "" if model.endswith(".json") else model  # a path need not name it
    found = []
    if named and own and not is_same_model(str(named), own):
        found.append(f"is of model '{named}', the profile of '{own}'")
    if device and gpu and not is_same_gpu(str(device), gpu):
        found.append(f"was measured on '{device}', the profile is of '{gpu}'")
    said = [f"{name} = {options[name]!r}" for name in _CHANGE_STEPS if options.get(name)]
    return found + [f"{each}: the profile is of such steps, and does not say so" for each in said]


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
