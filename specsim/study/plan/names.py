"""Names: the shape, or config.json, of a model's name, and the nearest acceptance preset.

A config.json is that of a folder, or one in aiconfigurator-core, if that is installed. A preset of
another kind of drafter is not used if there is one of the same kind: text determines what lookups
find, and a drafter that proposes a block at once differs from one that goes token by token. Of the
same kind, a preset of the model's family and drafter comes first, on any data; without one, the
data set counts more than drafter or family.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from specsim.acceptance.nested import preset_names
from specsim.core.errors import ConfigError, ProfileError
from specsim.core.resources import find_resource, resource_names
from specsim.core.settings import load_mapping, nearest
from specsim.hardware import load_model
from specsim.hardware.config_parts import INSTEAD, OTHER
from specsim.hardware.model_shape import ModelShape
from specsim.hardware.specs import key_of, known_model, model_names, of_longest
from specsim.profile.kernel_tables import published_configs

NAMES = load_mapping(Path(__file__).with_name("names.yaml"), ConfigError)
_SAME_VOCABULARY = 0.01  # tokens that a fine-tune adds change no step time visibly
_NO_SHAPE = {"name", "max_position_embeddings", "vocab_size", "quantization", "kv_cache_dtype"}
_NO_SHAPE |= {"source", "num_nextn_predict_layers", "has_usual_mtp_layers"}  # shapes here lack them
HOW_STORED = re.compile(
    r"(?<![a-z\d])(bf16|fp8|awq|gptq|int4|int8|w4a16|w8a16|w4a8|w8a8|nvfp4|nvfp4a16|mxfp4|mxfp8|fp4|gguf|bnb|"
    r"exl2|exl3|hqq|[2-8]bits?)(?![a-z\d])"
)
"""Words in a name for the storage of weights."""
_OF_A_TUNE = re.compile(r"instruct|thinking|base|chat|it|hf|bf16|exp|preview|dynamic|block|\d{4}")
"""Words in a name that do not change the shape: how and when a model was trained."""


def model_of(name: str) -> str:
    """Return the shape of a model in ``profiles/``, or the path of its config.json.

    Raises a ConfigError with the nearest name if there is none, or if it is a head, which serves
    nothing.
    """
    words = set() if _own_config(name) else {*key_of(name).split("-")}
    if kinds := words & {*NAMES["no_text"]}:
        raise ConfigError(
            f"model {name}: '{min(kinds)}' says that it embeds, ranks or rates text and writes "
            "none, which is not planned; name a model that generates, or a folder with its "
            "config.json"
        )
    config = config_of(name)
    shape = known_model(name) if config is None else _known_shape(config) or config
    if shape is not None and load_model(shape).is_head:
        raise ConfigError(
            f"model {name}: is a head, which drafts for a target; name that, and the head in "
            "--speculative-config"
        )
    if shape is not None:
        return shape
    if Path(name).is_file():
        raise ConfigError(f"model {name}: is a file; name the folder with the model's config.json")
    if name.startswith((".", "/", "~")) or Path(name).is_dir():
        raise ConfigError(
            f"model {name}: no config.json is there; name a folder with its config.json "
            "(./my-model)"
        )
    known = [n for n in model_names() if not load_model(n).is_head]
    if (last := of_longest(NAMES["until"], key_of(name))) is not None:
        raise ConfigError(
            f"model {name}: no shape of it is known, and the last vLLM that serves it is {last}; "
            "name a model that vLLM has"
        )
    if (what := of_longest(NAMES["not_modelled"], key_of(name))) is not None:
        raise ConfigError(f"model {name}: has {what}, {INSTEAD}")
    others = "" if published_configs() else "; 'llm-specsim[tables]' brings those of some 50 more"
    hint = nearest(key_of(name), known)
    hint = "specsim list names those that are" if hint.startswith("choose") else hint
    raise ConfigError(
        f"model {name}: no shape of it is known{others}; {hint}; for another model name a folder "
        "with its config.json (./my-model)"
    )


def weights_of(name: str, named: str | None) -> str | None:
    """Return how a model's weights are stored, if not as in its shape; else None.

    Args:
        named: The storage in the command, or the model's name.
    """
    if named and _is_stored_otherwise(name):
        return named
    known = None if _own_config(name) else known_model(name)
    if named and known and (load_model(known).quantization or "").startswith(named):
        return None  # its shape says more about it
    if (found := _fine_tune(name)) is not None:
        own, known = (load_model(each).quantization for each in found)
        return named if own == known else own or named
    config = _published(name)
    return None if config and load_model(config).quantization else named


def context_of(name: str) -> dict[str, Any]:
    """Return the engine's length limit of a fine-tune; empty for other models."""
    if (found := _fine_tune(name)) is not None:
        return {"max_model_len": load_model(found[0]).max_position_embeddings}
    longest = of_longest(NAMES["contexts"], key_of(name))
    return {} if longest is None else {"max_model_len": longest}


def own_drafter(name: str) -> tuple[int, str | None]:
    """Return the number of a model's own draft layers, and why they cannot be planned if so.

    (1, None) for a shape in ``profiles/``, whose drafters are there, too.
    """
    if (config := config_of(name)) is None:
        return 1, None
    shape = load_model(config)
    count = shape.num_nextn_predict_layers
    why = None if count and _known_shape(config) else shape.mtp_problem
    return count, why and f"mtp: {config if _own_config(name) else name} {why}"


def shape_note(name: str) -> str | None:
    """Return the assumption on a fine-tune, or on a config.json from elsewhere."""
    if (found := _fine_tune(name)) is not None:
        return f"step times and drafters of {found[1]}, whose shape {name} has"
    config = _published(name)
    return config and f"{name} has the shape of {Path(config).name} in aiconfigurator-core"


def config_of(name: str) -> str | None:
    """Return the config.json of a folder, or of a model without a shape in profiles/.

    This includes names whose config.json is known here.
    """
    named = known_model(name)
    is_named = named is not None and find_resource("profiles", f"{named}.json") is None
    return _own_config(name) or _published(name) or (named if is_named else None)


def _own_config(name: str) -> str | None:
    config = Path(name) / "config.json"
    return str(config.resolve()) if config.is_file() else None


def _published(name: str) -> str | None:
    """Return the config.json in aiconfigurator-core of a name without a shape here, if any.

    This includes known models, if the name says how parts of their weights are stored.
    """
    if _own_config(name) or name.startswith((".", "/", "~")):
        return None
    configs = {_untuned(key): path for key, path in published_configs().items()}
    key, known = _untuned(key_of(name)), known_model(name)
    stored = _without_storage(key)
    if known and (stored == key or find_resource("profiles", f"{known}.json")):
        return None
    found = configs.get(key) or (None if known else configs.get(stored))
    if found is None and not known and HOW_STORED.search(key_of(name)):  # stored otherwise
        found = {_without_storage(each): path for each, path in configs.items()}.get(stored)
    return None if found is None else str(found)


def _is_stored_otherwise(name: str) -> bool:
    """Whether the config.json of a name, if any, is of the model in another storage."""
    if _own_config(name) or _published(name) is None:
        return False
    own = {_untuned(key) for key in published_configs()}
    return _untuned(key_of(name)) not in own or "bf16" in key_of(name)


def _without_storage(key: str) -> str:
    return "-".join(word for word in key.split("-") if not HOW_STORED.search(word))


def _untuned(key: str) -> str:
    return "-".join(word for word in key.split("-") if not _OF_A_TUNE.fullmatch(word))


def _fine_tune(name: str) -> tuple[str, str] | None:
    """Return config.json and known shape of a fine-tune in a folder; None for other folders."""
    config = config_of(name)
    known = config and _known_shape(config)
    return (config, known) if config and known else None


@cache
def _known_shape(config: str) -> str | None:
    """Return the name in ``profiles/`` of a fine-tune's base model, by its shape."""
    own = load_model(config)
    names = [n for n in resource_names("profiles", "*.json") if _is_like(own, load_model(n))]
    return names[0] if names else None


def _is_like(own: ModelShape, known: ModelShape) -> bool:
    if own.quantization in (None, OTHER) and own.quantization != known.quantization:
        return False
    if abs(own.vocab_size / known.vocab_size - 1) > _SAME_VOCABULARY:
        return False
    return own.model_dump(exclude=_NO_SHAPE) == known.model_dump(exclude=_NO_SHAPE)


_KINDS: dict[str, list[str]] = NAMES["drafters"]
_ALIKE: dict[str, str] = NAMES["alike"]
_SAME, _VERSION, _FAMILY, _OTHER = range(4)  # distance between models


class Wanted(NamedTuple):
    """What a preset is needed for."""

    method: str
    model: str
    family: str  # prefix of a name: family and version
    dataset: str  # data set of the requests, or the nearest one
    is_own: bool  # whether the requests are of it

    @classmethod
    def of(cls, method: str, model: str, dataset: str, is_own: bool) -> "Wanted":
        """Return the wanted preset for a shape in ``profiles/``, or a folder's config.json.

        The family of a folder is taken from its config, since its name may be anything.
        """
        method = "ngram" if method == "ngram_gpu" else method  # its drafts are almost the same
        if not model.endswith(".json"):
            return cls(method, model, model, dataset, is_own)
        kind = str(load_mapping(Path(model), ProfileError).get("model_type"))
        kind = re.sub(r"(?<=\d)_(?=\d)", ".", kind).replace("_", "-")
        return cls(method, Path(model).parent.name.lower(), kind, dataset, is_own)

    def nearest(self) -> tuple[str, str]:
        """Return the name of a preset, and text on what else it was fitted to."""
        name = min(preset_names(), key=self._distance)
        model, method, dataset = name.split("/")
        other = [f"drafts of {method}"] if method != self.method else []
        nearness = self._from_model(model)
        if nearness != _SAME:
            family = "another" if nearness == _OTHER else "the same"
            other.append(f"model {model} of {family} family")
        is_own = self.is_own and dataset == self.dataset
        other += [] if is_own else [f"data set {dataset}"]
        return name, f"preset {name}" + (f", fitted to {' and '.join(other)}" if other else "")

    def _distance(self, name: str) -> tuple[int, ...]:
        model, method, dataset = name.split("/")
        kind = _kind_of(method) != _kind_of(self.method)
        drafter = (method != self.method) + (_line_of(method) != _line_of(self.method))
        is_alike = _ALIKE.get(dataset) in (self.dataset, "all")
        family, data = self._from_model(model), 0 if dataset == self.dataset else 2 - is_alike
        # Otherwise equal: first what was measured with the model's default serving.
        last = (len(dataset), -len(model))
        if family != _OTHER and _line_of(method) == _line_of(self.method):
            return (kind, 0, family, drafter, data, *last)
        return (kind, 1, data, drafter, family, *last)

    def _from_model(self, fitted: str) -> int:
        if f"{self.model}-".startswith(f"{fitted}-"):
            return _SAME
        (own, version), (family, other) = _family_of(self.family), _family_of(fitted)
        if own != family:
            return _OTHER
        return _VERSION if version == other else _FAMILY


def _family_of(name: str) -> tuple[str, str]:
    """Return the letters at the beginning of a name, and the number after them."""
    found = re.match(r"([a-z]+)[^\d]*([\d.]*)", name)
    return (found[1], found[2]) if found else (name, "")


def _kind_of(method: str) -> str:
    return next((kind for kind, own in _KINDS.items() if _line_of(method) in own), "")


def _line_of(method: str) -> str:
    """Return the base of a drafter and its successors: EAGLE for EAGLE-3."""
    return "eagle" if method.startswith("eagle") else method
