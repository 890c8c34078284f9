"""Models that hold others: fitted to data, one per drafter, and a change during the run."""

from collections.abc import Sequence
from typing import Annotated, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from specsim.acceptance import ACCEPTANCE, NestedAcceptance
from specsim.acceptance.base import Acceptance, Rates, TokenLuck, TokenLucks, chosen
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
    validation: FitValidation | None = None
    """None where no requests were recorded."""
    accepted_lens: tuple[float, ...] | None = None
    """What it was fitted to then: the mean tokens of a step, the bonus token included, that were
    measured with drafts of 1, 2, ... tokens."""


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

    @property
    def state_share(self) -> float:
        return self._model.state_share

    @property
    def inner(self) -> tuple[Acceptance, ...]:
        return (self._model,)

    def known_rates(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> Rates:
        return self._model.known_rates(requests, luck, max_draft_len)

    def shifted(self, change: float) -> Acceptance | None:
        return self._model.shifted(change)

    def token_lucks(
        self, luck: Luck, max_draft_len: int, survival_tables: Sequence[bytes]
    ) -> TokenLucks:
        return self._model.token_lucks(luck, max_draft_len, survival_tables)

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        return self._model.survival_lens(requests, luck, max_draft_len)


def preset_names() -> list[str]:
    """Return the names of all shipped presets, sorted."""
    found = resource_names("profiles", "acceptance/*/*/*.yaml")
    return [name.removeprefix("acceptance/") for name in found]


def load_preset(name: str) -> AcceptanceFile:
    """Return a shipped file, such as ``llama-3.1-8b/eagle/gsm8k``; a ConfigError if it is none."""
    path = find_resource("profiles", f"acceptance/{name}.yaml")
    if path is None:
        hint = nearest(name, preset_names())
        if name.endswith((".yaml", ".yml")):
            hint = "of a file of yours, copy what stands under 'acceptance' into the experiment"
        raise ConfigError(f"no preset '{name}' in profiles/acceptance/; {hint}")
    with validated(str(path), ConfigError):
        preset = AcceptanceFile.model_validate(load_mapping(path, ConfigError))
    if preset.acceptance.kind == "preset":
        raise ConfigError(f"{path}: acceptance.kind = 'preset': a preset must hold a model itself")
    return preset


@final
class PerDrafter(Acceptance):
    """Which drafts survive depends on who made them: one acceptance model per draft model."""

    kind: Literal["per_drafter"] = "per_drafter"
    examples = ({"models": {"small": {"kind": "bernoulli", "alpha": 0.6}}},)
    models: dict[str, NestedAcceptance] = Field(min_length=1)
    """By name of the drafter, as in ``speculative_config.models``."""

    @property
    def inner(self) -> tuple[Acceptance, ...]:
        return tuple(self.models.values())

    def of_drafter(self, name: str) -> Acceptance:
        """Return the acceptance model of a drafter; a ConfigError if it has none."""
        if name not in self.models:
            raise ConfigError(
                f"acceptance.models has no '{name}' (it has: {', '.join(self.models)}); give each "
                "of engine.speculative_config.models an acceptance model"
            )
        return self.models[name]

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Return the tables of the only drafter; a ConfigError if there are several."""
        if len(self.models) > 1:
            raise ConfigError(
                f"acceptance 'per_drafter' has models for {', '.join(self.models)}, but the method "
                "of engine.speculative_config has one drafter; use method draft_models"
            )
        [model] = self.models.values()
        return model.survival_lens(requests, luck, max_draft_len)

    def shifted(self, change: float) -> "PerDrafter | None":
        models = {name: model.shifted(change) for name, model in self.models.items()}
        return None if None in models.values() else self.model_copy(update={"models": models})


@final
class Shift(Acceptance):
    """Requests from a certain one on follow another model, such as when the traffic changes."""

    kind: Literal["shift"] = "shift"
    examples = (
        {
            "at_request": 500,
            "before": {"kind": "bernoulli", "alpha": 0.8},
            "after": {"kind": "bernoulli", "alpha": 0.4},
        },
    )
    at_request: int = Field(ge=0)
    """Number of the first request that follows `after`, as results number them: of drawn sessions,
    all turns of one come before those of the next."""
    before: NestedAcceptance
    after: NestedAcceptance

    @property
    def state_share(self) -> float:
        return (self.before.state_share + self.after.state_share) / 2.0

    @property
    def inner(self) -> tuple[Acceptance, ...]:
        return (self.before, self.after)

    def of_drafter(self, name: str) -> "Shift":
        """Return the shift between what both models say of a drafter."""
        models = {"before": self.before.of_drafter(name), "after": self.after.of_drafter(name)}
        return self.model_copy(update=models)

    def shifted(self, change: float) -> "Shift | None":
        models = {"before": self.before.shifted(change), "after": self.after.shifted(change)}
        return None if None in models.values() else self.model_copy(update=models)

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        early = [request for request in requests if request.index < self.at_request]
        late = [request for request in requests if request.index >= self.at_request]
        asked = ((self.before, early), (self.after, late))
        tables = {
            request.index: table
            for model, own in asked
            if own
            for request, table in zip(
                own, model.survival_lens(own, luck, max_draft_len), strict=True
            )
        }
        return [tables[request.index] for request in requests]

    def known_rates(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> Rates:
        early, late = (
            model.known_rates(requests, luck, max_draft_len) for model in (self.before, self.after)
        )

        def rates(
            indices: NDArray[np.int64], positions: NDArray[np.int64]
        ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            is_late = (indices >= self.at_request)[:, np.newaxis]
            pairs = zip(early(indices, positions), late(indices, positions), strict=True)
            rates, squares = (np.where(is_late, second, first) for first, second in pairs)
            return rates, squares

        return rates

    def token_lucks(
        self, luck: Luck, max_draft_len: int, survival_tables: Sequence[bytes]
    ) -> TokenLucks:
        early, late = (
            model.token_lucks(luck, max_draft_len, survival_tables)
            for model in (self.before, self.after)
        )

        def tokens(requests: Sequence[Request], tables: Sequence[bytes]) -> TokenLuck:
            is_late = [request.index >= self.at_request for request in requests]
            counts = [len(table) + max_draft_len for table in tables]
            first, second = early(requests, tables), late(requests, tables)
            return chosen(np.repeat(is_late, counts), first, second)

        return tokens
