"""Model names: which shape a name on a command line means, or the config.json of a folder."""

from functools import cache
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError, ProfileError
from specsim.core.resources import resource_names
from specsim.core.settings import load_mapping, nearest
from specsim.hardware import load_model
from specsim.hardware.config_parts import OTHER
from specsim.hardware.model_shape import ModelShape
from specsim.hardware.specs import find_model

NAMES = load_mapping(Path(__file__).with_name("names.yaml"), ConfigError)
_SAME_VOCABULARY = 0.01  # tokens that a fine-tune adds change no step time that is seen
_NO_SHAPE = {"name", "max_position_embeddings", "vocab_size", "quantization", "source"}
_NO_SHAPE |= {"num_nextn_predict_layers", "has_usual_mtp_layers"}  # which no shape here tells


def model_of(name: str) -> str:
    """Return the shape of a model in ``profiles/``, or the config.json of a folder of another one.

    If there is none, a ConfigError with the nearest.
    """
    if (config := _config_of(name)) is not None:
        return _known_shape(config) or config
    key = key_of(name)
    if (shape := of_longest(NAMES["aliases"], key)) is not None:
        return shape
    try:
        return find_model([key], "the command")
    except ProfileError as error:
        if name.startswith((".", "/", "~")):
            raise ConfigError(
                f"model {name}: no config.json is there; name a folder with its config.json "
                "(./my-model)"
            ) from error
        known = [n for n in resource_names("profiles", "*.json") if not load_model(n).is_head]
        raise ConfigError(
            f"model {name}: no shape of it in profiles/; {nearest(key, known)}; for another "
            "model name a folder with its config.json (./my-model)"
        ) from error


def weights_of(name: str) -> str | None:
    """Return how a fine-tune's weights are stored, if not as in the known shape; else None."""
    if (found := _fine_tune(name)) is None:
        return None
    own, known = (load_model(each).quantization for each in found)
    return None if own == known else own


def context_of(name: str) -> dict[str, Any]:
    """Return the engine's limit of a fine-tune; nothing of other models."""
    found = _fine_tune(name)
    return {"max_model_len": load_model(found[0]).max_position_embeddings} if found else {}


def own_drafter(name: str) -> tuple[int, str | None]:
    """Return how many layers a folder's model has to draft with, and why they cannot be planned.

    One and nothing of a name: what drafts for that is in the profiles.
    """
    if (config := _config_of(name)) is None:
        return 1, None
    shape = load_model(config)
    count = shape.num_nextn_predict_layers
    why = None if count and _known_shape(config) else shape.mtp_problem
    return count, why and f"mtp: {config} {why}"


def shape_note(name: str) -> str | None:
    """Return what is assumed of a fine-tune; else None."""
    found = _fine_tune(name)
    return found and f"step times and drafters of {found[1]}, whose shape {name} has"


def _config_of(name: str) -> str | None:
    """Return the config.json of a model that is a folder; None of a name."""
    config = Path(name) / "config.json"
    return str(config.resolve()) if config.is_file() else None


def _fine_tune(name: str) -> tuple[str, str] | None:
    """Return config.json and the known shape of a folder that has one; else None."""
    config = _config_of(name)
    known = config and _known_shape(config)
    return (config, known) if config and known else None


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
    if own.quantization in (None, OTHER) and own.quantization != known.quantization:
        return False
    if abs(own.vocab_size / known.vocab_size - 1) > _SAME_VOCABULARY:
        return False
    return own.model_dump(exclude=_NO_SHAPE) == known.model_dump(exclude=_NO_SHAPE)
