"""Acceptance that was fitted to data and ships with specsim."""

from collections.abc import Sequence
from typing import Annotated, Literal, final

from pydantic import PrivateAttr

from specsim.acceptance import ACCEPTANCE
from specsim.acceptance.base import Acceptance
from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.core.resources import find_resource, resource_names
from specsim.core.rng import Luck
from specsim.core.settings import Settings, load_mapping, nearest, validated


class FitProvenance(Settings):
    """Where the parameters come from."""

    source: str
    """Of the data."""
    fitted_to: str
    """Which part of the data."""
    command: str
    """What makes them again."""


class FitValidation(Settings):
    """How the same kind of model does on one half of the requests, fitted to the other."""

    acceptance: Annotated[Acceptance, ACCEPTANCE]
    """The model fitted to one half."""
    split_seed: int
    num_fitted: int
    num_held_out: int
    held_out: dict[str, float]
    """Distances between that model and the other half."""
    halves: dict[str, float]
    """The same distances between the two halves of the data."""


class AcceptanceFile(Settings):
    """A file below profiles/acceptance: a model, where it comes from, and how well it fits."""

    acceptance: Annotated[Acceptance, ACCEPTANCE]
    provenance: FitProvenance
    validation: FitValidation


@final
class Preset(Acceptance):
    """A model with the parameters in ``profiles/acceptance/<name>.yaml``.

    The shipped ones are named ``<target model>/<proposer>/<dataset>``, such as
    ``llama-3.1-8b/eagle/gsm8k``; each file says what it was fitted to and how well it fits.
    """

    kind: Literal["preset"] = "preset"
    examples = ({"name": "llama-3.1-8b/eagle/gsm8k"},)
    name: str
    _model: Acceptance = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        """Load the file, so that a wrong name is found when the configuration is read."""
        self._model = load_preset(self.name).acceptance

    def position_rates(self, num_positions: int) -> list[float] | None:
        """Ask the model in the file."""
        return self._model.position_rates(num_positions)

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Ask the model in the file."""
        return self._model.survival_lens(requests, luck, max_draft_len)


def preset_names() -> list[str]:
    """Return the names of all shipped presets, sorted."""
    found = resource_names("profiles", "acceptance/*/*/*.yaml")
    return [name.removeprefix("acceptance/") for name in found]


def load_preset(name: str) -> AcceptanceFile:
    """Return the content of a shipped file, such as ``llama-3.1-8b/eagle/gsm8k``.

    Raises:
        ConfigError: There is none of that name, or it is malformed.
    """
    path = find_resource("profiles", f"acceptance/{name}.yaml")
    if path is None:
        hint = nearest(name, preset_names())
        raise ConfigError(f"no preset '{name}' in profiles/acceptance/; {hint}")
    with validated(str(path), ConfigError):
        preset = AcceptanceFile.model_validate(load_mapping(path, ConfigError))
    if preset.acceptance.kind == "preset":
        raise ConfigError(f"{path}: acceptance.kind = 'preset': a preset must hold a model itself")
    return preset
