"""``capacity.json``: written and read again by one model."""

from typing import Any, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer, model_validator

from specsim.core.settings import Settings
from specsim.results.stability import Stability
from specsim.study.capacity.choices import Prices
from specsim.study.capacity.limits import LatencyLimits


class _WithLatencies(BaseModel):
    """What has a field `latencies_ms`, whose entries stand beside the others in the file."""

    model_config = Settings.model_config

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "latencies_ms" in data:
            return data
        latencies = {name: value for name, value in data.items() if name.endswith("_ms")}
        others = {name: value for name, value in data.items() if name not in latencies}
        return {**others, "latencies_ms": latencies}

    @model_serializer(mode="wrap")
    def _spread(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in dump(self).items():
            found |= value if name == "latencies_ms" else {name: value}
        return found


class TriedLoad(_WithLatencies):
    """A load that was tried on one hardware under one policy."""

    hardware: str
    policy: str
    load: float  # requests/s or clients
    requests_per_second: float
    is_sustained: bool
    keeps_limits: bool  # enough of the requests
    stability: Stability
    num_requests: int
    replications: int
    attainment: float
    mean_output_len: float
    beyond_valid_range: float  # share of the steps
    latencies_ms: dict[str, float]
    """Of each limit the percentile that is held against it, and others: ``p90_ttft_ms``."""
    gpu_hours_per_million_tokens: float
    """Of output tokens, as costs are."""
    cost_per_million_tokens: float | None
    """None where no price is known."""
    cost_per_million_tokens_at_target: float | None
    """The same of whole replicas, each with this load at most, that serve the target rate; None
    without one."""

    @property
    def mean_e2el_ms(self) -> float:
        return self.latencies_ms["mean_e2el_ms"]

    @property
    def compared_cost(self) -> float | None:
        """The cost by which loads are compared: at the target rate where there is one."""
        at_target = self.cost_per_million_tokens_at_target
        return self.cost_per_million_tokens if at_target is None else at_target


class Sustained(_WithLatencies):
    """What one hardware sustains under one policy; where nothing, without what was seen there."""

    hardware: str
    gpu: str
    gpus_per_replica: int
    is_measured: bool
    step_times: str
    policy: str
    sustained: float | None
    exceeded: float | None
    requests_per_second: float | None
    requests_per_second_interval: tuple[float, float] | None
    requests_per_second_model_interval: tuple[float, float] | None
    is_settled: bool
    longest_runs: int
    binds: str | None
    resource: str | None
    margins: dict[str, float]
    attainment: float | None = None
    mean_output_len: float | None = None
    beyond_valid_range: float | None = None
    latencies_ms: dict[str, float]
    gpu_hours_per_million_tokens: float | None = None
    cost_per_million_tokens: float | None = None
    cost_per_million_tokens_at_target: float | None = None
    replicas: int | None
    replicas_interval: tuple[int, int] | None
    cost_per_hour: float | None
    cost_per_hour_interval: tuple[float, float] | None
    probes: list[TriedLoad]


class BestLoad(Settings):
    """A load of the Pareto front."""

    hardware: str
    policy: str
    load: float
    requests_per_second: float
    mean_e2el_ms: float
    gpu_hours_per_million_tokens: float
    cost_per_million_tokens: float | None
    cost_per_million_tokens_at_target: float | None


class Leader(Settings):
    """One of those that are best."""

    hardware: str
    policy: str
    value: float


class Leaders(Settings):
    """What is best, as far as intervals show."""

    is_shown: bool  # one alone
    leaders: list[Leader]


class CapacityDocument(Settings):
    """The whole file."""

    config_hash: str
    seed: int
    specsim_version: str
    slo: dict[str, float]
    limit_shares: dict[str, float]
    drive: Literal["rate", "concurrency"]
    attainment: float
    tolerance: float
    target_rate: float | None
    replications: int
    num_requests: int
    max_requests: int | None
    spare_replicas: int = 0
    prices: Prices
    experiment: dict[str, Any]
    results: list[Sustained]
    pareto_front: list[BestLoad]
    most: Leaders
    cheapest: Leaders
    notes: list[str]

    @property
    def limits(self) -> LatencyLimits:
        return LatencyLimits(self.slo, self.attainment, self.limit_shares)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)
