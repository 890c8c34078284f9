"""Models: what a command line calls one, and which shape in ``profiles/`` it has."""

from functools import cache
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError, ProfileError
from specsim.core.resources import resource_names
from specsim.core.settings import nearest
from specsim.hardware import load_model
from specsim.hardware.model_shape import ModelShape
from specsim.hardware.specs import find_model
from specsim.study.plan.traffic import NAMES

_SAME_VOCABULARY = 0.01  # tokens that a fine-tune adds change no step time that is seen
_NO_SHAPE = {"name", "max_position_embeddings", "vocab_size", "quantization", "source"}


def model_of(name: str) -> str:
    """Return the shape of a model in ``profiles/``, or the config.json of a folder of another one.

    If there is none, a ConfigError with the nearest.
    """
    if (config := config_of(name)) is not None:
        return _known_shape(config) or config
    key = key_of(name)
    if (shape := of_longest(NAMES["aliases"], key)) is not None:
        return shape
    try:
        return find_model([key], "the command")
    except ProfileError as error:
        known = [n for n in resource_names("profiles", "*.json") if not n.startswith("eagle")]
        raise ConfigError(
            f"model {name}: no shape of it in profiles/; {nearest(key, known)} For another model "
            "name a folder with its config.json (./my-model)"
        ) from error


def config_of(name: str) -> str | None:
    """Return the config.json of a model that is a folder; None of a name."""
    config = Path(name) / "config.json"
    return str(config.resolve()) if config.is_file() else None


def weights_of(name: str) -> str | None:
    """Return ``fp8`` if a folder has a known shape in 8 bits; else None: as in the shape."""
    config = config_of(name)
    if config is None or _known_shape(config) is None:
        return None
    own, known = load_model(config), load_model(model_of(name))
    return None if own.quantization == known.quantization else own.quantization


def context_of(name: str) -> dict[str, Any]:
    """Return the engine's limit of a folder that has a known shape; nothing of other models."""
    config = config_of(name)
    if config is None or _known_shape(config) is None:
        return {}
    return {"max_model_len": load_model(config).max_position_embeddings}


def shape_note(name: str) -> str | None:
    """Return what is assumed of a folder that has a known shape; else None."""
    config = config_of(name)
    known = None if config is None else _known_shape(config)
    return known and f"step times and drafters of {known}, whose shape {name} has"


def key_of(name: str) -> str:
    """Return the part of a name that tells models apart, in lower case."""
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def of_longest(known: dict[str, str | None], key: str) -> str | None:
    """Return what is known by the longest name that a key begins with, up to its end or a dash."""
    fitting = [name for name in known if key == name or key.startswith(f"{name}-")]
    return known[max(fitting, key=len)] if fitting else None


@cache
def _known_shape(config: str) -> str | None:
    """Return the name in ``profiles/`` of the model that a fine-tune was made of, by its shape."""
    own = load_model(config)
    names = [n for n in resource_names("profiles", "*.json") if _is_like(own, load_model(n))]
    return names[0] if names else None


def _is_like(own: ModelShape, known: ModelShape) -> bool:
    if own.quantization not in (known.quantization, "fp8"):
        return False
    if abs(own.vocab_size / known.vocab_size - 1) > _SAME_VOCABULARY:
        return False
    return own.model_dump(exclude=_NO_SHAPE) == known.model_dump(exclude=_NO_SHAPE)
