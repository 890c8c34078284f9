"""Hardware: the profile of an experiment's model on each GPU that is to be compared."""

from dataclasses import dataclass

from specsim.core.errors import ConfigError, ProfileError
from specsim.core.resources import find_resource
from specsim.core.settings import validated
from specsim.profile import Profile, load_profile
from specsim.profile.from_roofline import RooflineOptions, RooflineProfile
from specsim.run.experiment import Experiment

__all__ = ["Hardware", "find_hardware"]


@dataclass(frozen=True)
class Hardware:
    """A GPU, or several that hold a model together, and what steps cost on it."""

    label: str
    profile: Profile
    is_measured: bool
    """Whether the profile rests on measured steps, at least in part."""

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        return self.profile.tensor_parallel_size


def find_hardware(experiment: Experiment, names: list[str]) -> list[Hardware]:
    """Return hardware by name.

    Args:
        experiment: Its profile says which model.
        names: Each a GPU, such as ``l40s``, or a profile, such as ``h100/llama-3.1-8b`` or
            ``my.yaml``. On a GPU for which there is no profile of the model, steps cost what the
            roofline says, with the engine's overhead as in the experiment's profile. None at all:
            that profile.

    Raises:
        SpecsimError: There is no such GPU or profile, or it is of another model, or the model does
            not fit.
    """
    base = load_profile(experiment.profile)
    if not names:
        return [_known(base.gpu, base)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--gpus: '{name}' is given twice; leave it out once")
    return [_found(name, base, experiment) for name in names]


def _found(name: str, base: Profile, experiment: Experiment) -> Hardware:
    if "/" in name or name.endswith((".yaml", ".yml")):
        profile = load_profile(name)
        if profile.model.lower() != base.model.lower():
            raise ProfileError(
                f"--gpus {name}: is of model '{profile.model}', the experiment's profile of "
                f"'{base.model}'; compare profiles of one model"
            )
        return _known(name, profile)
    if name == base.gpu:
        return _known(name, base)
    suffix = "" if base.tensor_parallel_size == 1 else f"-tp{base.tensor_parallel_size}"
    shipped = f"{name}/{base.model}{suffix}"
    if find_resource("profiles", f"{shipped}.yaml") is not None:
        return _known(name, load_profile(shipped))
    return Hardware(name, _roofline(name, base, experiment), is_measured=False)


def _known(label: str, profile: Profile) -> Hardware:
    return Hardware(label, profile, is_measured=profile.target.kind != "roofline")


def _roofline(gpu: str, base: Profile, experiment: Experiment) -> Profile:
    proposer = experiment.engine.speculative_config
    keys = [key for key in (proposer.cost_keys if proposer else ()) if key in base.drafts]
    models = {key: _drafter(gpu, base, key) for key in keys if base.drafts[key].latency is not None}
    options = RooflineOptions(base.model, gpu, models, base.tensor_parallel_size)
    fields = RooflineProfile.of(options).fields
    # Time of the host, which is the same beside any GPU.
    on_host = {key: base.drafts[key].model_dump() for key in keys if key not in models}
    fields["drafts"] = {**fields.get("drafts", {}), **on_host}
    fields["overhead"] = base.overhead.model_dump()
    with validated(f"--gpus {gpu}", ProfileError):
        return Profile.model_validate(fields)


def _drafter(gpu: str, base: Profile, method: str) -> str:
    """Return the name of a drafter's shape, for its roofline."""
    own = getattr(base.drafts[method].latency, "model", None)
    name = own or f"{method}-{base.model}"
    if own is None and find_resource("profiles", f"{name}.json") is None:
        raise ProfileError(
            f"--gpus {gpu}: no profile of {base.model}, and no shape profiles/{name}.json for a "
            f"roofline of its drafter; make one with specsim profile roofline --draft {method}=... "
            "and name that file in --gpus"
        )
    return str(name)
