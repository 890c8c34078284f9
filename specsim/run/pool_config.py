"""PoolsConfig: which replicas prefill, which decode, and what lies between them."""

from typing import Annotated, Literal

from pydantic import Field

from specsim.autoscaling import AUTOSCALING, Autoscaler
from specsim.core.settings import Settings
from specsim.engine.config import EngineConfig
from specsim.engine.transfer import TransferConfig
from specsim.routing import ROUTING, Router

POOLS: tuple[Literal["prefill"], Literal["decode"]] = ("prefill", "decode")


class PoolConfig(Settings):
    """The replicas of one pool; what is left out is that of the experiment."""

    replicas: int = Field(default=1, ge=1, le=1_000_000)
    profile: str | None = None
    """Name in ``profiles/``, or path of a YAML file; of the same model."""
    engine: EngineConfig | None = None
    """Settings that differ from those of the experiment."""
    routing: Annotated[Router, ROUTING] | None = None
    autoscaling: Annotated[Autoscaler, AUTOSCALING] | None = None
    """How many replicas there are as the load changes; `replicas`, or `min_replicas` if that is
    more, are there from the beginning."""

    @property
    def slots(self) -> int:
        """Replicas, or slots for them."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas

    @property
    def num_started(self) -> int:
        """Replicas that are there from the beginning."""
        scaler = self.autoscaling
        return self.replicas if scaler is None else scaler.num_started(self.replicas)


class PoolsConfig(Settings):
    """Prompts are computed by one pool of replicas and answered by another."""

    prefill: PoolConfig = PoolConfig()
    decode: PoolConfig = PoolConfig()
    transfer: TransferConfig = TransferConfig()

    @property
    def slots(self) -> int:
        """Of both pools."""
        return self.prefill.slots + self.decode.slots
