"""Configurations as results folders have them.

Nobody's class is loaded to read one: a folder may come from elsewhere.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from specsim.core.settings import from_short_form
from specsim.show.study import FleetKind, gpu_first


class PaidEngines(NamedTuple):
    """The engines of a configuration."""

    kind: FleetKind
    engines: dict[str, float]  # how many there are of each profile


class WrittenConfig:
    """A configuration as it was written, also in short forms such as ``poisson:rate=4``."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        workload, engine = (fields.get(name) or {} for name in ("workload", "engine"))
        self.arrivals, self.lengths = (_in_full(workload, name) for name in ("arrivals", "lengths"))
        self.proposer = _in_full(engine, "speculative_config", "method")
        self.pools: dict[str, Any] = fields.get("pools") or {}
        self.profile = str(fields.get("profile", "?"))
        limits = slo.items() if isinstance(slo := fields.get("slo"), dict) else ()
        self.slo = {name: float(ms) for name, ms in limits if isinstance(ms, int | float)}
        """Limits, ms."""
        policy = fields.get("policy")
        kind = policy.get("kind") if isinstance(policy, dict) else policy
        self.policy = "off" if kind is False else policy  # as YAML reads an unquoted off

    @property
    def _policy_fields(self) -> dict[str, Any]:
        """Without those of a short form that belongs to somebody's class."""
        if isinstance(self.policy, dict):
            return self.policy
        kind, _, options = str(self.policy).partition(":")
        fields = dict(option.partition("=")[::2] for option in options.split(","))
        k = fields.get("k", "").strip()
        return {"kind": kind, "k": int(k) if k.isdecimal() else None}

    @property
    def draft_len(self) -> int | None:
        """The draft length that it always asks for; None if a policy decides."""
        limit: int | None = self.proposer.get("num_speculative_tokens")
        if self.policy is None:
            is_decided = "num_speculative_tokens_per_batch_size" in self.proposer
            return (None if is_decided else limit) if self.proposer else 0
        kind, k = (self._policy_fields.get(name) for name in ("kind", "k"))
        if kind != "static":
            return 0 if kind == "off" else None
        return k if isinstance(k, int) else limit

    @property
    def drafter(self) -> str | None:
        """The profile of a drafter on GPUs of its own, where it drafts; else None."""
        apart = self.proposer.get("own_gpus")
        if apart is None or self._policy_fields.get("kind") == "off":
            return None
        return str(apart.get("profile") or self.profile)

    def fleet(self, metrics: Mapping[str, float]) -> PaidEngines:
        """Return what engines a run had; where they are scaled, those paid for in the mean.

        Args:
            metrics: Of its summary, flat.
        """
        found: defaultdict[str, float] = defaultdict(float)
        if self.pools:
            for name in ("prefill", "decode"):
                pool = self.pools.get(name) or {}
                mean = metrics.get(f"pools.autoscaling.{name}.mean_replicas")
                replicas = int(pool.get("replicas") or 1) if mean is None else mean
                found[str(pool.get("profile") or self.profile)] += replicas
            return PaidEngines("pools", dict(found))
        mean = metrics.get("autoscaling.mean_replicas")
        replicas = metrics.get("replicas", 1) if mean is None else mean
        found[self.profile] += replicas
        if (drafter := self.drafter) is not None:
            found[drafter] += replicas
            return PaidEngines("drafter", dict(found))
        return PaidEngines("replicas" if mean is None else "scaled", dict(found))

    def title(self, hardware: list[str], model_id: object = None) -> str:
        """Return what was simulated, in a few words, from it and its hardware's labels.

        The summary's `model_id` names the model where the profile is a file of one's own.
        """
        model = self.profile.partition("/")[2]
        if self.profile.endswith((".yaml", ".yml")):
            model = PurePath(str(model_id or "")).name
        gpus = list(dict.fromkeys(gpu_first(_gpu_of(name)) for name in hardware))
        where = ", ".join(gpus) if len(gpus) < 4 else f"{len(gpus)} GPUs"
        method = self.proposer.get("method", "")
        parts = (self.lengths, self.arrivals)
        traffic = [str(part[name]) for part in parts for name in ("name", "path") if part.get(name)]
        drafting = f"with {method}" if method else ""
        said = (f"{model} on {where}" if model else where, drafting, *traffic[:1])
        return ", ".join(filter(None, said))


def _in_full(block: Mapping[str, Any], name: str, tag: str = "kind") -> dict[str, Any]:
    """Return a member of a family, also where it was written in short form."""
    own = block.get(name)
    return from_short_form(own, tag) if isinstance(own, str) else own or {}


def _gpu_of(label: str) -> str:
    is_file = label.endswith(("yaml", "yml"))
    return PurePath(label).stem if is_file else label.partition("/")[0]
