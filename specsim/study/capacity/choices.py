"""Choices of a capacity plan: hardware, policies and prices to choose from, and the goal."""

import datetime
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Self

from pydantic import Field, field_validator

from specsim.core.errors import CapacityError, ConfigError, ProfileError
from specsim.core.resources import find_resource
from specsim.core.settings import Settings, load_mapping, validated
from specsim.hardware import GIB, gpu_as_typed, load_model
from specsim.policies import Policy
from specsim.policies.static import Off
from specsim.profile import Profile, load_profile, shipped_to_the_limits
from specsim.profile.from_roofline import RooflineOptions, RooflineProfile
from specsim.results.metrics import Slo
from specsim.run.deployment import drafter_profile, gpus_of
from specsim.run.experiment import Experiment
from specsim.run.validity import BASES, step_times
from specsim.study.capacity.limits import LatencyLimits

_SAME_WEIGHTS = 0.1  # share by which the memory of equal weights may differ between profiles
_PRICE = re.compile(r"([\w.-]+):([\d.]+)(?:,|$)")
_EXAMPLES = Path(__file__).with_name("prices.yaml")


class Prices(Settings):
    """Prices of GPUs."""

    date: str = ""
    """Date of the prices; unknown for prices given by hand."""
    source: str = "as given"
    currency: str = Field(default="USD", min_length=1)
    per_gpu_hour: dict[str, Annotated[float, Field(gt=0)]]
    """By GPU, named as in ``profiles/<gpu>.yaml``."""

    @field_validator("date", mode="before")
    @classmethod
    def _as_text(cls, date: Any) -> Any:
        # YAML reads an unquoted 2026-11-21 as a date
        return date.isoformat() if isinstance(date, datetime.date) else date

    @field_validator("per_gpu_hour")
    @classmethod
    def _by_name(cls, typed: dict[str, float]) -> dict[str, float]:
        prices = {gpu_as_typed(gpu): price for gpu, price in typed.items()}
        if any(prices[gpu_as_typed(gpu)] != price for gpu, price in typed.items()):
            raise ValueError(f"{', '.join(typed)}: two names of one GPU, with two prices")
        return prices

    @classmethod
    def load(cls, path: Path | str | None) -> Self:
        """Return prices from ``h100:2.1,...``, a YAML file or examples; a ConfigError if wrong."""
        typed = re.sub(r"\s*,\s*", ",", str(path or "").strip())
        given = dict(_PRICE.findall(typed))
        if given and ",".join(f"{gpu}:{price}" for gpu, price in given.items()) == typed:
            with validated(f"--prices {path}", ConfigError):
                return cls.model_validate({"per_gpu_hour": given})
        if path is not None and not Path(path).exists():
            raise ConfigError(
                f"--prices {path!s:.80}: is no file, and not GPU:PRICE, per GPU and hour, such "
                "as h100:2.1,l40s:0.95"
            )
        path = Path(path or _EXAMPLES)
        with validated(str(path), ConfigError):
            return cls.model_validate(load_mapping(path, ConfigError))

    def per_hour(self, gpus: Mapping[str, float]) -> float | None:
        """Return the price per hour of a number of GPUs of each kind; None if one has no price."""
        if not gpus.keys() <= self.per_gpu_hour.keys():
            return None
        return sum(self.per_gpu_hour[gpu] * number for gpu, number in gpus.items())

    def per_gpu_of(self, gpus: Counter[str]) -> float | None:
        """Return the mean price per GPU and hour of some GPUs; None if one has no price."""
        if not gpus.keys() <= self.per_gpu_hour.keys():
            return None
        prices = [self.per_gpu_hour[gpu] for gpu in gpus.elements()]
        return prices[0] if len(set(prices)) == 1 else fmean(prices)  # a mean of equals may round


@dataclass(frozen=True)
class Goal:
    """The question that a capacity search answers."""

    slo: Slo
    attainment: float
    """Share of the requests that must keep all limits; limits in `limit_shares` have their own."""
    tolerance: float  # the search ends when the loads around the capacity differ by this ratio - 1
    is_closed: bool  # whether the load is a number of clients instead of a rate
    target_rate: float | None
    """Rate to serve with as many replicas as it needs, requests/s; None to count none."""
    replications: int
    """Runs per load; run i has the seed of the experiment plus i, so that all loads, policies and
    hardware meet the same requests."""
    num_requests: int  # of each run; of the first runs if they may grow
    max_requests: int | None
    """Runs grow up to this many requests until the answer stops moving; None keeps
    `num_requests`."""
    is_rough: bool = False
    """Whether short runs, which just show if a backlog grows, are enough. Then longer runs are
    fewer, so that all loads have about as many requests in all."""
    shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Shares of the capacity at which latency and cost are simulated, too."""
    in_whole_replicas: bool = False
    """Whether to replace these by the nearest lower loads of whole replicas at the target rate."""
    spare_replicas: int = 0  # replicas more than the target rate needs, which may fail

    limit_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the requests that must keep a limit, by its name, such as ``ttft_ms``."""
    prices: Prices = field(default_factory=lambda: Prices.load(None))

    def num_runs(self, num_requests: int) -> int:
        """Return the number of runs per load if each has `num_requests` requests."""
        if not self.is_rough:
            return self.replications
        return max(1, self.replications * self.num_requests // num_requests)

    @property
    def limits(self) -> LatencyLimits:
        return LatencyLimits(
            self.slo.model_dump(exclude_none=True), self.attainment, self.limit_shares
        )

    def replicas_for(self, capacity: float) -> int | None:
        """Return the replicas for the target rate, spare ones included; None without a rate."""
        if self.target_rate is None:
            return None
        # Rounding of rate / count must not add a replica.
        return math.ceil(self.target_rate / capacity * (1 - 1e-12)) + self.spare_replicas

    def replicas_between(self, low: float, high: float) -> tuple[int, int] | None:
        """Return the fewest and most replicas, given an interval of the capacity, requests/s."""
        fewest, most = self.replicas_for(high), self.replicas_for(low)
        return None if fewest is None or most is None else (fewest, most)

    def looked_at(self, capacity: float) -> list[float]:
        """Return the loads at or below a capacity at which latency and cost are simulated."""
        loads = [share * capacity for share in self.shares]
        if self.in_whole_replicas and self.target_rate is not None:
            loads = [self.target_rate / (self.replicas_for(load) or 1) for load in loads]
        if self.is_closed:
            loads = [float(max(1, round(load))) for load in loads]
        return list(dict.fromkeys(loads))


def check_ranges(attainment: float, tolerance: float, qps: float | None) -> None:
    """Raise a ConfigError if the value of an option is out of its range."""
    for option, value, rule, holds in (
        ("--attainment", attainment, "above 0 and at most 1", 0 < attainment <= 1),
        ("--tolerance", tolerance, "from 0.001 to 0.5", 0.001 <= tolerance <= 0.5),
        ("--qps", qps, "above 0 and at most 1,000,000", qps is None or 0 < qps <= 1e6),
    ):
        if not holds:
            raise ConfigError(f"{option} {value}: must be {rule}")


def spare_of(redundancy: str) -> int:
    """Return the spare servers in ``n``, ``n+1``, ...; a ConfigError for any other text."""
    found = re.fullmatch(r"n(?:\+(\d{1,3}))?", redundancy.strip().lower())
    if found is None:
        raise ConfigError(f"--redundancy {redundancy:.80}: should be n, n+1, n+2, ... up to n+999")
    return int(found[1] or 0)


@dataclass(frozen=True)
class Hardware:
    """A GPU, or several that hold one model, with the profile of step times on it."""

    label: str
    profile: Profile
    pools: tuple[tuple[Profile, int], ...] = ()
    """Of a unit of pools: profile and number of replicas of each; `profile` is the decode
    pool's."""
    drafter: Profile | None = None  # of a drafter on GPUs of its own, one per rank
    ranks: int = 1  # data-parallel ranks, each with the GPUs of the profile

    def under(self, policy: Policy, experiment: Experiment) -> Self:
        """Return the hardware with the GPUs of all ranks, and those of a drafter if one is used."""
        own = replace(self, ranks=experiment.engine.data_parallel_size or 1)
        proposer = experiment.engine.speculative_config
        if isinstance(policy, Off):
            return own
        return replace(own, drafter=drafter_profile(proposer, self.profile))

    @property
    def is_measured(self) -> bool:
        """Whether its profiles rest on measured steps, at least in part."""
        return self.step_times != "roofline"

    @property
    def step_times(self) -> str:
        """The least trusted source of step times among its profiles, the drafter's included."""
        drafters = [] if self.drafter is None else [self.drafter]
        return max(map(step_times, [*self.profiles, *drafters]), key=BASES.index)

    @property
    def profiles(self) -> list[Profile]:
        """The profile of each pool; without pools, that of the replica."""
        return [profile for profile, _ in self.pools] or [self.profile]

    @property
    def gpus(self) -> Counter[str]:
        """Number of GPUs of each kind in one replica or unit."""
        engines = self.pools or ((self.profile, self.ranks),)
        return gpus_of(engines + (((self.drafter, self.ranks),) if self.drafter else ()))

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica; with pools, of the whole unit."""
        return self.gpus.total()


def find_hardware(experiment: Experiment, names: Sequence[str]) -> list[Hardware]:
    """Return hardware for the model of an experiment's profile, by name.

    Raises a SpecsimError if no hardware has that name, it is of another model, or the model does
    not fit.

    Args:
        names: GPUs such as ``l40s`` or profiles such as ``h100/llama-3.1-8b`` or ``my.yaml``. A GPU
            without a profile of the model gets step times from the roofline, with the engine's
            overhead as in the experiment's profile. Without names: that profile, or the unit of
            both pools.
    """
    base = load_profile(experiment.serving.profile)
    if experiment.pools is not None:
        if names:
            raise ConfigError(
                "--gpus: the profiles of the pools say which GPUs they have; leave it out, or set "
                "pools.prefill.profile and pools.decode.profile"
            )
        first = load_profile(experiment.of_pool("prefill").profile)
        pools = experiment.pools.prefill.replicas, experiment.pools.decode.replicas
        label = f"{pools[0]}p {first.gpu} + {pools[1]}d {base.gpu}"
        return [Hardware(label, base, ((first, pools[0]), (base, pools[1])))]
    if not names:
        return [Hardware(base.gpu, base)]
    return [_found(name, base, experiment) for name in names]


def gpu_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names in ``h100, l40s``; a ConfigError if one is given twice."""
    typed = given.split(",") if isinstance(given, str) else given
    names = tuple(gpu_as_typed(name.strip()) for name in typed)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--gpus: '{name}' is given twice; leave it out once")
    return names


def _found(name: str, base: Profile, experiment: Experiment) -> Hardware:
    if "/" in name or name.endswith((".yaml", ".yml")):
        profile = load_profile(name)
        if profile.model.lower() != base.model.lower():
            raise ProfileError(
                f"--gpus {name}: is of model '{profile.model}', the experiment's profile of "
                f"'{base.model}'; compare profiles of one model"
            )
        return Hardware(name, profile)
    if name == base.gpu:
        return Hardware(name, base)
    profile = _profile_on(name, base, experiment)
    ours, theirs = (_weights_gib(each) for each in (profile, base))
    if not math.isclose(ours, theirs, rel_tol=_SAME_WEIGHTS):
        raise ProfileError(
            f"--gpus {name}: its profile of {base.model} has {ours:.1f} GiB of weights, the "
            f"experiment's {theirs:.1f}, of another data type; name in --gpus a profile whose "
            "weights have the same, shipped or made by specsim profile build --dtype"
        )
    return Hardware(name, profile)


def _profile_on(name: str, base: Profile, experiment: Experiment) -> Profile:
    """Return the shipped profile of a model on another GPU, or else its roofline."""
    stages, shares = len(base.stage_shares), base.decode_context_parallel_size
    ranks = getattr(base.target, "data_parallel_size", 1)
    if ranks > 1:  # they share the model's experts
        raise _unbuilt(name, f"{base.model} on {ranks} data-parallel ranks", f"--dp {ranks}")
    of_same_name = str(experiment.serving.profile).partition("/")[2]  # which includes the data type
    for own in (of_same_name, f"{base.model}{base.suffix}"):
        if (shipped := shipped_to_the_limits(f"{name}/{own}")) is not None:
            return load_profile(shipped)
    if stages > 1:
        raise _unbuilt(name, f"{base.model} in {stages} stages", f"--pp {stages}")
    if shares > 1:
        what = f"{base.model} with KV blocks shared out over {shares} GPUs"
        raise _unbuilt(name, what, f"--dcp {shares}")
    try:
        return _roofline(name, base, experiment)
    except (CapacityError, ProfileError) as error:
        if str(error).startswith("--gpus"):
            raise
        raise type(error)(f"--gpus {name}: {error}") from error


def _unbuilt(gpu: str, what: str, option: str) -> ProfileError:
    return ProfileError(
        f"--gpus {gpu}: there is no profile of {what} on it; build one (specsim profile build "
        f"{option}) and name its file in --gpus"
    )


def _weights_gib(profile: Profile) -> float:
    if profile.weights_gib is not None:
        return profile.weights_gib
    return load_model(profile.model).weight_bytes / profile.tensor_parallel_size / GIB


def _roofline(gpu: str, base: Profile, experiment: Experiment) -> Profile:
    proposer = experiment.engine.speculative_config
    keys = [key for key in (proposer.cost_keys if proposer else ()) if key in base.drafts]
    models = {key: _drafter(gpu, base, key) for key in keys if base.drafts[key].latency is not None}
    share = experiment.engine.gpu_memory_utilization
    size = base.tensor_parallel_size
    options = RooflineOptions(base.model, gpu, models, size, gpu_memory_utilization=share)
    # The host's time is the same beside any GPU.
    on_host = {key: base.drafts[key].model_dump() for key in keys if key not in models}
    return roofline_with(options, on_host, base.overhead.model_dump())


def roofline_with(
    options: RooflineOptions, drafts: dict[str, Any], overhead: dict[str, Any]
) -> Profile:
    """Return a roofline with additional drafters and the host's overhead."""
    fields = RooflineProfile.of(options).fields
    fields = {**fields, "drafts": {**fields.get("drafts", {}), **drafts}, "overhead": overhead}
    with validated(f"--gpus {options.gpu}", ProfileError):
        return Profile.model_validate(fields)


def _drafter(gpu: str, base: Profile, method: str) -> str:
    own = getattr(base.drafts[method].latency, "model", None)
    name = own or f"{method}-{base.model}"
    if own is None and find_resource("profiles", f"{name}.json") is None:
        raise ProfileError(
            f"--gpus {gpu}: no profile of {base.model}, and no shape profiles/{name}.json for a "
            f"roofline of its drafter; make one with specsim profile roofline --draft {method}=... "
            "and name that file in --gpus"
        )
    return str(name)
