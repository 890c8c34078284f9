"""Presets: which of the shipped acceptance models is nearest to a model, a drafter and a data set.

A preset of another kind of drafter is never taken where there is one of the same: text finds what
lookups do, and a drafter that proposes a block at once is not one that goes token by token. Of the
same kind, one of the model's family and drafter comes first, on whatever data; without one, the
data set says more than the drafter or the family.
"""

import re
from pathlib import Path
from typing import NamedTuple

from specsim.acceptance.nested import preset_names
from specsim.core.errors import ProfileError
from specsim.core.settings import load_mapping
from specsim.study.plan.model_names import NAMES

_KINDS: dict[str, list[str]] = NAMES["drafters"]
_ALIKE: dict[str, str] = NAMES["alike"]
_SAME, _VERSION, _FAMILY, _OTHER = range(4)  # how near models are


class Wanted(NamedTuple):
    """What a preset is sought for."""

    method: str
    model: str
    family: str  # a name that begins with that of the family, and its version
    dataset: str  # the one that the requests are of, or the nearest to them
    is_own: bool  # whether they are of it

    @classmethod
    def of(cls, method: str, model: str, dataset: str, is_own: bool) -> "Wanted":
        """Return it for a shape in ``profiles/``, or the config.json of a folder.

        Folders have whatever name; which family it is, the config says.
        """
        method = "ngram" if method == "ngram_gpu" else method  # whose drafts are nearly the same
        if not model.endswith(".json"):
            return cls(method, model, model, dataset, is_own)
        kind = str(load_mapping(Path(model), ProfileError).get("model_type"))
        kind = re.sub(r"(?<=\d)_(?=\d)", ".", kind).replace("_", "-")
        return cls(method, Path(model).parent.name.lower(), kind, dataset, is_own)

    def nearest(self) -> tuple[str, str]:
        """Return the name of a preset, and in words what it was fitted to instead."""
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
        # Of what differs in nothing else: what was measured as the model is served by default.
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
    """Return the letters that a name begins with and the number after them."""
    found = re.match(r"([a-z]+)[^\d]*([\d.]*)", name)
    return (found[1], found[2]) if found else (name, "")


def _kind_of(method: str) -> str:
    return next((kind for kind, own in _KINDS.items() if _line_of(method) in own), "")


def _line_of(method: str) -> str:
    """Return a drafter with all that were made of it: EAGLE-3 is EAGLE."""
    return "eagle" if method.startswith("eagle") else method
