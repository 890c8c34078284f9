"""Summary: the numbers of a run under vLLM's names, and its results folder."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from specsim.atomic import new_folder
from specsim.results.export import structured_columns, write_parquet, write_summary
from specsim.results.metrics import (
    PERCENTILES,
    latencies,
    latency_statistics,
    speculation_metrics,
    throughput_metrics,
    time_shares,
)
from specsim.results.stability import is_unstable
from specsim.results.tables import RunTables, assemble
from specsim.simulate import Run
from specsim.version import __version__

__all__ = ["Summary"]

_EPOCH = "19700101-000000"
"""Stands in vLLM's field ``date``: the same run gives the same bytes on every day."""


@dataclass(frozen=True)
class Summary:
    """What a run comes to."""

    run: Run

    @cached_property
    def tables(self) -> RunTables:
        """The tables of all replicas, put together."""
        return assemble(self.run.replicas, self.run.deployment.max_draft_len)

    @cached_property
    def statistics(self) -> dict[str, dict[str, float]]:
        """Statistics of each latency, milliseconds: ``statistics["ttft"]["p99"]``."""
        samples = latencies(self.tables)
        return {name: latency_statistics(values) for name, values in samples.items()}

    @cached_property
    def is_unstable(self) -> bool:
        """Whether the queue kept growing as long as requests arrived."""
        requests = self.tables.requests
        return is_unstable(requests["arrived_at"], requests["ended_at"])

    @cached_property
    def warnings(self) -> list[str]:
        """What a user should know before believing the numbers."""
        found = []
        if self.is_unstable:
            found.append("UNSTABLE: arrivals were faster than service, the queue kept growing")
        steps, valid = self.tables.steps, self.run.deployment.profile.valid_range
        for name in ("context_tokens", "batched_tokens"):
            largest, limit = int(steps[name].max()), getattr(valid, name)
            if largest > limit:
                share = float((steps[name] > limit).mean())
                found.append(
                    f"{share:.1%} of the steps lie outside the profile's valid range: up to "
                    f"{largest:,} {name.replace('_', ' ')}, fitted up to {limit:,}"
                )
        return found + self._late_incidents()

    def _late_incidents(self) -> list[str]:
        """Say which incidents came too late to matter."""
        end = float(self.tables.requests["ended_at"].max())
        return [
            f"incidents.{number}: the {incident.kind} at {incident.at:g} s came after the run had "
            f"ended, at {end:.6g} s"
            for number, incident in enumerate(self.run.experiment.incidents or ())
            if incident.at >= end
        ]

    @cached_property
    def data(self) -> dict[str, Any]:
        """The summary as ``summary.json`` holds it, without the details per request."""
        slo = self.run.experiment.slo
        return {
            **self._header(),
            **throughput_metrics(self.tables, slo),
            **self._latency_fields(),
            **speculation_metrics(self.tables),
            "specsim": self._own_block(),
        }

    @property
    def provenance(self) -> dict[str, object]:
        """What every row of every result carries."""
        experiment = self.run.experiment
        return {
            "config_hash": experiment.hash,
            "seed": experiment.seed,
            "specsim_version": __version__,
        }

    def save(self, folder: Path) -> None:
        """Write ``summary.json``, ``requests.parquet``, ``steps.parquet`` and ``config.yaml``.

        Parameters
        ----------
        folder : Path
            All four files appear in it, or none.

        Raises
        ------
        ConfigError
            The folder cannot be written to.
        """
        tables = self.tables
        requests = structured_columns(tables.requests, tables.requests.dtype.names or ())
        steps = structured_columns(tables.steps, tables.steps.dtype.names or ())
        with new_folder(folder) as unfinished:
            write_summary(self.data, tables, unfinished / "summary.json")
            write_parquet(
                self._with_latencies(requests), self.provenance, unfinished / "requests.parquet"
            )
            write_parquet(
                {"replica": tables.step_replicas, **steps},
                self.provenance,
                unfinished / "steps.parquet",
            )
            self.run.experiment.save(unfinished / "config.yaml")

    def _with_latencies(self, columns: dict[str, Any]) -> dict[str, Any]:
        ids = [request.id for request in self.run.requests]
        decode_time = columns["ended_at"] - columns["first_token_at"]
        several = columns["output_len"] > 1
        later_tokens = np.where(several, columns["output_len"] - 1, 1)
        return {
            **({"id": np.array(ids)} if any(ids) else {}),
            **columns,
            "ttft": columns["first_token_at"] - columns["arrived_at"],
            "tpot": np.where(several, decode_time / later_tokens, np.nan),
            "e2el": columns["ended_at"] - columns["arrived_at"],
        }

    def _header(self) -> dict[str, Any]:
        experiment, engine = self.run.experiment, self.run.deployment.engine
        arrivals = experiment.workload.arrivals
        rate = getattr(arrivals, "rate", None)
        return {
            "date": _EPOCH,
            "endpoint_type": "specsim",
            "backend": "specsim",
            "label": experiment.effective_policy.kind,
            "model_id": engine.model,
            "tokenizer_id": engine.model,
            "num_prompts": len(self.run.requests),
            "request_rate": self._measured_rate() if rate is None else rate,
            "burstiness": getattr(arrivals, "burstiness", 1.0),
            "max_concurrency": getattr(arrivals, "concurrency", None),
        }

    def _measured_rate(self) -> float | str:
        arrived_at = self.tables.requests["arrived_at"]
        span = float(np.ptp(arrived_at))
        return (len(arrived_at) - 1) / span if span > 0 else "inf"

    def _latency_fields(self) -> dict[str, float]:
        names = ["mean", "median", "std", *(f"p{percentile}" for percentile in PERCENTILES)]
        return {
            f"{name}_{kind}_ms": self.statistics[kind][name]
            for kind in ("ttft", "tpot", "itl", "e2el")
            for name in names
        }

    def _own_block(self) -> dict[str, Any]:
        run, tables = self.run, self.tables
        requests, steps = tables.requests, tables.steps
        profile = run.deployment.profile
        deliveries = int(steps["deliveries"].sum())
        return {
            **self.provenance,
            "profile": run.experiment.profile,
            "profile_source": profile.provenance.source,
            "policy": run.experiment.effective_policy.model_dump(
                mode="json", exclude_none=True, warnings=False
            ),
            "replicas": run.experiment.replicas,
            "is_async": run.deployment.is_async,
            "num_gpu_blocks": run.deployment.engine.num_gpu_blocks,
            "unstable": self.is_unstable,
            "warnings": self.warnings,
            "num_steps": len(steps),
            "num_preemptions": int(requests["preemptions"].sum()),
            "num_requeues": int(requests["requeues"].sum()),
            "prefix_hit_tokens": int(requests["cached_len"].sum()),
            "tokens_per_step": int(steps["output_tokens"].sum()) / deliveries,
            "mean_batch_size": float(steps["num_requests"].mean()),
            "time_shares": time_shares(tables),
            "queue_ms": self.statistics["queue"],
            "amortised_itl_ms": self.statistics["amortised_itl"],
        }
