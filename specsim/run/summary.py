"""Summary: a run's numbers under vLLM's names, how far to trust them, and its results folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.atomic import new_folder
from specsim.core.figures import figures
from specsim.core.request import Columns
from specsim.engine.fleet import Count, Scaling
from specsim.profile import Profile
from specsim.profile.model_error import TimeError, UsualStep, time_error
from specsim.results.folder import (
    RESULT_FILES,
    ROWS_PER_GROUP,
    structured_columns,
    write_groups,
    write_steps,
    write_summary,
)
from specsim.results.metrics import (
    PERCENTILES,
    latencies,
    latency_statistics,
    session_metrics,
    speculation_metrics,
    throughput_metrics,
    time_shares,
    token_latencies,
)
from specsim.results.records import PoolTables
from specsim.results.stability import KEEPS_UP, Balance, Demand, Stability, balance
from specsim.results.tables import RunTables, assemble, totals_of
from specsim.run.deployment import gpus_of
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.validity import ROOFLINE, Beyond, context_len, step_times, usual_step
from specsim.workload.arrivals import OpenArrivals
from specsim.workload.arrivals.patterns import Burst, ClosedLoop, Piecewise, TraceReplay
from specsim.workload.trace import TraceRequests, mean_rate

_ANOTHER_RATE = 0.05  # of the configured rate

_EPOCH = "19700101-000000"
"""Value of vLLM's field ``date``, constant so that equal runs give equal bytes on every day."""


@dataclass(frozen=True)
class Summary:
    """The results of a run: its metrics under vLLM's names, its warnings, its files."""

    run: Run

    @property
    def tables(self) -> RunTables:
        return self._all_tables[0]

    @property
    def pools(self) -> PoolTables | None:
        """Each request's prefill and transfer before its decode; None without pools."""
        return self._all_tables[1]

    @cached_property
    def _all_tables(self) -> tuple[RunTables, PoolTables | None]:
        tables, pools = assemble(self.run.replicas, self.run.deliveries), self.run.pools
        if pools is None:
            return tables, None
        return tables, PoolTables.of(pools.records, pools.pools.transfers, tables.requests)

    @cached_property
    def statistics(self) -> dict[str, dict[str, float]]:
        """Statistics of each latency, milliseconds: ``statistics["ttft"]["p99"]``."""
        found = {k: latency_statistics(v) for k, v in latencies(self.tables.requests).items()}
        # After the others: both kinds of samples need much memory.
        return found | {k: latency_statistics(v) for k, v in token_latencies(self.tables).items()}

    @property
    def stability(self) -> Stability:
        """Whether the server kept up with what arrived: stable, overloaded or undecided."""
        return self.balance.stability

    @property
    def is_overloaded(self) -> bool:
        return self.stability == "overloaded"

    @cached_property
    def balance(self) -> Balance:
        """The work that arrived, compared with the work that the server could do."""
        if isinstance(self.run.experiment.workload.arrivals, ClosedLoop | Burst):
            return KEEPS_UP
        requests, comes_and_goes = self.tables.requests, self.run.scalings or self.pools
        return balance(self.demand, None if comes_and_goes else requests["replica"])

    @property
    def demand(self) -> Demand:
        arrivals, pools = self.run.experiment.workload.arrivals, self.pools
        is_drawn = isinstance(arrivals, OpenArrivals)
        turns = self._owners.get("turn")
        waits = None
        if pools is not None:
            waits = (pools.transfers["prefilled_at"], pools.decode_scheduled_at)
        return Demand(
            requests=self.tables.requests,
            rate=getattr(arrivals, "rate", None) if is_drawn else None,
            is_outside=None if turns is None else turns == 1,
            decode_waits=waits,
        )

    @property
    def usual_step(self) -> UsualStep:
        """The mean step of the run."""
        run = self.run
        return usual_step(self.tables, run.deployment, run.experiment.workload.arrivals)

    @cached_property
    def time_error(self) -> TimeError | None:
        """Estimated error of the run's times, from servers that were measured; None if not known.

        It is not known for pools, nor for an overloaded server, whose latencies are those of a
        growing queue.
        """
        if self.pools is not None or self.is_overloaded:
            return None
        return time_error(self.run.deployment.profile, self.usual_step)

    @cached_property
    def beyond(self) -> Beyond:
        context, run = context_len(self.tables.requests), self.run
        first = 0 if run.pools is None else len(run.replicas) - len(run.pools.records)
        pools = (run.replicas[first:], run.replicas[:first]) if first else ()
        return Beyond.of(
            self.tables.totals,
            context,
            tuple(Beyond.of(totals_of(each), context) for each in pools),
        )

    @cached_property
    def warnings(self) -> list[str]:
        found = []
        if self.is_overloaded:
            times = figures(self.balance.offered, 3)
            found.append(
                f"OVERLOADED: the queue kept growing, for work arrived {times} times as fast as it "
                "was done when most requests were there"
                f"{', incidents included' if self.run.experiment.incidents else ''}"
            )
        profiles = [self.run.deployment.profile]
        experiment, pools = self.run.experiment, self.run.pools
        # Compared by name: profiles carry caches that have no equality.
        if pools and experiment.of_pool("prefill").profile != experiment.serving.profile:
            profiles.insert(0, pools.prefill_profile)
        drafter = self.run.deployment.drafter
        rooflines = [
            f"{profile.model} on {profile.gpu}: {ROOFLINE}"
            for profile in (*profiles, *([drafter] if drafter else []))
            if step_times(profile) == "roofline"
        ]
        found += dict.fromkeys(rooflines)
        requests = self.run.requests
        if isinstance(requests, TraceRequests):  # requests from a program have no trace
            found += experiment.workload.notes
        found += self._few_requests() + self._another_rate() + self._idle_priorities()
        if num_cut := self._num_cut():
            longest = self.run.deployment.engine.max_model_len
            found.append(f"{num_cut:,} answers are cut off at engine.max_model_len = {longest}")
        let_go = int(self.tables.totals["let_go"])
        if let_go and experiment.engine.scheduler != "prefill_first":
            found.append(
                f"the drafter let go of {let_go:,} requests, which vLLM's V1 cannot do; "
                "engine.drafter_serves_all: true simulates a drafter that reads every request"
            )
        found += self._host_lookups()
        if experiment.acceptance is not None:
            longest = int(np.flatnonzero(self.tables.outcomes.any(axis=1)).max(initial=0))
            longest = min(longest, experiment.num_speculative_tokens)  # for a tree, along one path
            found += experiment.acceptance.doubts(self.run.requests, longest)
        return [*found, *self.beyond.warnings(profiles), *self._late_incidents()]

    def _few_requests(self) -> list[str]:
        """Return a warning if fewer requests arrived than were configured."""
        workload, found = self.run.experiment.workload, len(self.run.requests)
        asked, arrivals = workload.num_requests or 0, workload.arrivals
        if found >= asked or workload.duration:
            return []
        if isinstance(arrivals, Piecewise):
            return [
                f"workload.num_requests = {asked:,}, but {found:,} requests came until the last of "
                "the segments ended"
            ]
        if not isinstance(arrivals, TraceReplay):
            return []
        window = " in its window" if arrivals.window else ""
        return [
            f"workload.num_requests = {asked:,}, but {arrivals.path} has {found:,} requests"
            f"{window}, each of which was replayed once"
        ]

    def _another_rate(self) -> list[str]:
        """Return a warning if the requests of a trace came at another rate than configured."""
        arrivals = self.run.experiment.workload.arrivals
        rate = arrivals.rate if isinstance(arrivals, TraceReplay) else None
        found = mean_rate(self.tables.requests["arrived_at"])
        if rate is None or found is None or abs(found / rate - 1) <= _ANOTHER_RATE:
            return []
        why = "the rows that were replayed come at another rate than all of them"
        if "session" in self._owners:
            why = "turns waited for answers"
        return [
            f"workload.arrivals.rate = {rate:g}, but requests came at {figures(found, 3)}/s: {why}"
        ]

    def _idle_priorities(self) -> list[str]:
        """Return a warning if priorities, or a priority scheduler, have no effect."""
        differ = np.ptp(Columns.of(self.run.requests).priorities) > 0
        engines, experiment = [self.run.deployment.engine], self.run.experiment
        if experiment.pools is not None:
            engines.append(experiment.of_pool("prefill").engine)
        policies = {engine.scheduling_policy for engine in engines}
        if differ == ("priority" in policies):
            return []
        if differ:
            return [
                "the priorities of the requests count for nothing: engine.scheduling_policy is "
                "fcfs; set it to priority"
            ]
        return ["engine.scheduling_policy is priority, and all requests have the same"]

    def _host_lookups(self) -> list[str]:
        """Return a warning if drafts are looked up on the host, but by vLLM on the GPU."""
        deployment = self.run.deployment
        engine, proposer = deployment.engine, deployment.proposer
        if proposer is None or proposer.on_gpu is None or not engine.rules.looks_up_on_gpu:
            return []
        if deployment.profile.gpu == "cpu":
            return []
        return [
            f"vLLM {engine.vllm_version} looks n-grams up on the GPU, and verifies as many tokens "
            f"of every request: method {proposer.on_gpu}; {proposer.own_name} is the host's lookup"
        ]

    def _num_cut(self) -> int:
        """Return the number of answers that are cut at ``max_model_len``."""
        requests, longest = self.tables.requests, self.run.deployment.engine.max_model_len
        assert longest is not None
        if not (requests["prompt_len"] + requests["output_len"] == longest).any():
            return 0
        wanted = Columns.of(self.run.requests)
        return int((wanted.prompt_lens + wanted.output_lens > longest).sum())

    def _late_incidents(self) -> list[str]:
        end = float(self.tables.requests["ended_at"].max())
        return [
            f"incidents.{number}: the {incident.kind} at {figures(incident.at, 6)} s came after "
            f"the run had ended, at {figures(end, 6)} s"
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
            **speculation_metrics(self.tables, self.run.experiment.num_speculative_tokens),
            "specsim": self._own_block(),
        }

    @property
    def provenance(self) -> dict[str, object]:
        return self.run.experiment.provenance

    def save(self, folder: Path | str) -> None:
        """Write ``summary.json``, ``requests.parquet``, ``steps.parquet`` and ``config.yaml``.

        Either all of them appear or none, and no file of an earlier run stays beside them. What the
        run did not keep is left out: ``steps.parquet`` without steps, and without deliveries vLLM's
        lists per request in ``summary.json``. Raises a ConfigError if the folder cannot be written
        to.
        """
        tables = self.tables
        with new_folder(Path(folder), RESULT_FILES) as unfinished:
            write_summary(self.data, tables, unfinished / "summary.json")
            write_groups(self._request_groups(), self.provenance, unfinished / "requests.parquet")
            if tables.step_log is not None:
                write_steps(tables.step_log, self.provenance, unfinished / "steps.parquet")
            self.run.experiment.save(unfinished / "config.yaml")

    @property
    def request_columns(self) -> dict[str, NDArray[Any]]:
        """The columns of the requests table, with those of sessions if the run has any."""
        rows = self.tables.requests
        return {**structured_columns(rows), **self._owners}

    @cached_property
    def _owners(self) -> dict[str, NDArray[np.int64]]:
        """``priority``, ``adapter``, ``session`` and ``turn`` of each request, if any has one.

        A request without a session gets a session number of its own if others have sessions.
        """
        requests = self.run.requests
        told = Columns.of(requests)
        both = {"priority": told.priorities, "adapter": told.adapters}
        owners = {name: column for name, column in both.items() if column.any()}
        if not told.has_sessions:
            return owners
        own = count(max(each.session for each in requests if each.session is not None) + 1)
        sessions = [next(own) if each.session is None else each.session for each in requests]
        turns = np.array([each.turn for each in requests])
        return {**owners, "session": np.array(sessions), "turn": turns}

    def _request_groups(self) -> Iterator[dict[str, NDArray[Any]]]:
        rows = self.tables.requests
        ids = Columns.of(self.run.requests).ids
        owners = self._owners
        for start in range(0, len(rows), ROWS_PER_GROUP):
            mine = slice(start, start + ROWS_PER_GROUP)
            columns = structured_columns(rows[mine])
            found = latencies(columns)
            columns |= {name: found[name] for name in ("ttft", "tpot", "e2el")}
            columns |= {name: column[mine] for name, column in owners.items()}
            if self.pools is not None:
                columns |= {name: each[mine] for name, each in self.pools.columns.items()}
            if self.run.offload is not None:
                loads = self.run.offload.loads[mine]
                columns |= structured_columns(loads)
            yield columns if ids is None else {"id": np.array(ids[mine]), **columns}

    def _header(self) -> dict[str, Any]:
        experiment, engine = self.run.experiment, self.run.deployment.engine
        arrivals = experiment.workload.arrivals
        return {
            "date": _EPOCH,
            "endpoint_type": "specsim",
            "backend": "specsim",
            "label": experiment.effective_policy.kind,
            "model_id": engine.model,
            "tokenizer_id": engine.model,
            "num_prompts": len(self.run.requests),
            "request_rate": self._request_rate(),
            "burstiness": getattr(arrivals, "burstiness", 1.0),
            "max_concurrency": getattr(arrivals, "concurrency", None),
        }

    def _request_rate(self) -> float | str:
        """Return the rate as vLLM's client reports it: ``inf`` in a closed loop.

        For sessions and traces it is the measured rate, since their configured rate is that of
        first turns, or of all rows of the trace.
        """
        arrivals = self.run.experiment.workload.arrivals
        if isinstance(arrivals, ClosedLoop):
            return "inf"
        is_said = isinstance(arrivals, OpenArrivals) and "session" not in self._owners
        rate = getattr(arrivals, "rate", None) if is_said else None
        return rate or mean_rate(self.tables.requests["arrived_at"]) or "inf"

    def _latency_fields(self) -> dict[str, float]:
        names = ["mean", "median", "std", *(f"p{percentile}" for percentile in PERCENTILES)]
        return {
            f"{name}_{kind}_ms": self.statistics[kind][name]
            for kind in ("ttft", "tpot", "itl", "e2el")
            for name in names
        }

    @cached_property
    def scalings(self) -> dict[str | None, dict[str, Any]]:
        """Replicas over time by scaled pool; without pools the key is None."""
        run, pools = self.run, self.run.experiment.pools
        if not run.scalings or pools is None or run.pools is None:
            profile = run.deployment.profile
            return {name: self._scaling(name, each, profile) for name, each in run.scalings.items()}
        return {
            name: self._scaling(name, run.scalings.get(name, Scaling.fixed(replicas)), profile)
            for name, replicas, profile in (
                ("prefill", pools.prefill.replicas, run.pools.prefill_profile),
                ("decode", pools.decode.replicas, run.deployment.profile),
            )
        }

    def _scaling(self, pool: str | None, scaling: Scaling, profile: Profile) -> dict[str, Any]:
        """Return the replicas of an autoscaler over time; seconds of the run, up to its end."""
        end = float(self.tables.requests["ended_at"].max())
        counts = [count for count in scaling.counts if count.at < end]
        seconds = scaling.replica_seconds(end)
        drafter = self.run.deployment.drafter
        gpus = gpus_of((each, 1) for each in (profile, drafter) if each is not None)
        gpu_hours = seconds * gpus.total() / 3600.0
        scaler = self.run.experiment.scalers.get(pool)
        price = None if scaler is None else scaler.price_per_gpu_hour
        return {
            "replica_seconds": seconds,
            "gpu_hours": gpu_hours,
            "cost": None if price is None else gpu_hours * price,
            "mean_replicas": seconds / end,
            "peak_replicas": max(count.up for count in counts),
            "changes": len(counts) - 1,
            "timeline": dict(zip(Count._fields, map(list, zip(*counts, strict=True)), strict=True)),
        }

    def _hits(self, loads: NDArray[np.void]) -> dict[str, float]:
        requests = self.tables.requests
        found = {
            "gpu": int(requests["cached_len"].sum()),
            "host": int(loads["host_len"].sum()),
            "disk": int(loads["disk_len"].sum()),
        }
        had_loads = loads["load_time"] > 0
        times = loads["load_time"][had_loads]
        return {
            **{f"{tier}_tokens": tokens for tier, tokens in found.items()},
            "hit_rate": sum(found.values()) / int(requests["prompt_len"].sum()),
            "requests_that_loaded": int(had_loads.sum()),
            "mean_load_ms": float(times.mean() * 1e3) if len(times) else 0.0,
        }

    def _drafter(self, profile: Profile) -> dict[str, float]:
        """Return the use of a drafter that has GPUs of its own, per replica.

        ``busy_share`` is the share of the time that replicas exist, from the first arrival on, idle
        or not; transfers to and from the drafter count as busy.
        """
        totals, requests = self.tables.totals, self.tables.requests
        start, end = float(requests["arrived_at"].min()), float(requests["ended_at"].max())
        replicas = self.run.scalings.get(None, Scaling.fixed(self.run.experiment.num_engines))
        seconds = replicas.replica_seconds(end) - replicas.replica_seconds(start)
        return {
            "gpus": profile.num_gpus,
            "target_gpus": self.run.deployment.profile.num_gpus,
            "busy_share": float(totals["drafter_time"]) / seconds,
            "drafted_tokens": int(totals["asked_tokens"]),
        }

    def _own_block(self) -> dict[str, Any]:
        run, tables = self.run, self.tables
        acceptance = run.experiment.acceptance
        requests, totals = tables.requests, tables.totals
        profile = run.deployment.profile
        num_steps = int(totals["steps"])
        return {
            **self.provenance,
            "profile": run.experiment.profile,
            "profile_source": profile.provenance.source,
            "policy": run.experiment.effective_policy.model_dump(
                mode="json", exclude_none=True, warnings=False
            ),
            "replicas": run.experiment.num_engines,
            "is_async": run.deployment.is_async,
            "is_lossless": acceptance is None or acceptance.is_lossless,
            "num_gpu_blocks": run.deployment.engine.num_gpu_blocks,
            "max_num_seqs": run.deployment.engine.max_num_seqs,
            "stability": self.stability,
            "beyond_valid_range": self.beyond.share,
            "warnings": self.warnings,
            "num_steps": num_steps,
            "num_preemptions": int(requests["preemptions"].sum()),
            "num_requeues": int(requests["requeues"].sum()),
            "prefix_hit_tokens": int(requests["cached_len"].sum()),
            "tokens_per_step": int(totals["output_tokens"]) / int(totals["deliveries"]),
            "mean_batch_size": int(totals["num_requests"]) / num_steps,
            "time_shares": time_shares(tables),
            "queue_ms": self.statistics["queue"],
            "amortised_itl_ms": self.statistics["amortised_itl"],
            **self._of_some_runs(),
        }

    def _of_some_runs(self) -> dict[str, Any]:
        """Return the fields that only some runs have: think time, incidents, pools and so on."""
        own: dict[str, Any] = {}
        arrivals = self.run.experiment.workload.arrivals
        if isinstance(arrivals, ClosedLoop):
            own["think_time"] = arrivals.think_time
        if incidents := self.run.experiment.incidents:
            own["incidents"] = len(incidents)
        if "session" in self._owners:
            own["sessions"] = session_metrics(self.request_columns)
        found = self.scalings.get(None) if self.pools is None else self.scalings
        scaled = {"autoscaling": found} if found else {}
        if self.run.pools is None or self.pools is None:
            own |= scaled
        else:
            own["pools"] = {**self.run.pools.sizes, **self.pools.totals, **scaled}
            own["pools"] |= _stages(self.run.pools.prefill_profile)
        own |= _stages(self.run.deployment.profile)
        if self.run.deployment.drafter is not None:
            own["drafter"] = self._drafter(self.run.deployment.drafter)
        if self.run.offload is not None:
            own["hits"] = self._hits(self.run.offload.loads)
        return own


def _stages(profile: Profile) -> dict[str, list[float]]:
    shares = profile.stage_shares
    return {"stage_shares": list(shares)} if len(shares) > 1 else {}


def summarized(experiment: Experiment, **options: Any) -> Summary:
    """Run an experiment without keeping its steps, and return its summary; see `simulate`."""
    return Summary(simulate(experiment, keeps_steps=False, **options))
