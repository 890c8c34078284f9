"""Tuning: which k to set at which batch size and load, and what that gains.

`batch` finds the k that serves each batch size fastest, which is vLLM's
``num_speculative_tokens_per_batch_size``; `crossover` the load up to which a fixed k pays, and what
the schedule gains. Both simulate the experiment's own profile, workload and acceptance.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specsim.core.atomic import new_folder
from specsim.core.errors import ConfigError
from specsim.core.figures import figures
from specsim.core.version import __version__
from specsim.profile import load_profile
from specsim.proposers import Proposer
from specsim.results.folder import write_json
from specsim.run.experiment import Experiment
from specsim.run.validity import Beyond
from specsim.study.loads import Loads
from specsim.study.tune.batch import BatchPoint, BatchTuning, Measurement, Trials, tune_batches
from specsim.study.tune.crossover import (
    Check,
    Crossover,
    LoadCheck,
    LoadCurve,
    LoadSeries,
    check_schedule,
    find_crossovers,
)

__all__ = ["Tuning", "tune"]


@dataclass(frozen=True)
class Tuning:
    """The results of a tuning."""

    experiment: Experiment  # as it was given
    max_k: int  # largest k that was simulated, tokens
    replications: int
    load_unit: str
    capacity: float  # highest load that any k sustains
    batches: BatchTuning
    crossovers: list[Crossover]
    curves: list[LoadCurve]
    check: Check

    @property
    def longest(self) -> int:
        """The largest k of the schedule, tokens; 0 if speculation pays at no batch size."""
        return max(k for _, _, k in self.batches.ranges)

    @property
    def speculative_config(self) -> dict[str, Any]:
        """The schedule as vLLM's ``--speculative-config``, with the experiment's other fields."""
        return {
            **self._given,
            "num_speculative_tokens": max(1, self.longest),  # vLLM does not allow 0 here
            "num_speculative_tokens_per_batch_size": [list(r) for r in self.batches.ranges],
        }

    @property
    def recommended(self) -> dict[str, Any] | None:
        """The best ``--speculative-config``, scheduled or with fixed k; None for none."""
        if self.longest and self.check.schedule_pays:
            return self.speculative_config
        best = self.check.best_fixed if self.longest else 0
        return {**self._given, "num_speculative_tokens": best} if best else None

    @property
    def _given(self) -> dict[str, Any]:
        """The fields of the proposer that vLLM knows, without those that were tuned."""
        proposer = _proposer(self.experiment)
        tuned = {"num_speculative_tokens", "num_speculative_tokens_per_batch_size"}
        fields = proposer.model_dump(
            mode="json",
            exclude_unset=True,
            exclude_none=True,
            exclude=tuned | proposer.own_fields(),
            warnings=False,
        )
        # A file written by specsim has all switches, also those that a vLLM version lacks.
        on = {name: value for name, value in fields.items() if value is not False}
        return {"method": proposer.method, **on}

    @property
    def runs(self) -> dict[tuple[str, float], list[Measurement]]:
        """The runs by (policy, load); policies are ``off``, ``static:k=1`` ... and ``schedule``.

        Loads at which some k was not simulated are left out, so that the best of these is the best
        of all.
        """
        found: dict[tuple[int, float], list[Measurement]] = {}
        for curve in self.curves:
            for point in curve.points:
                found[0, point.load], found[curve.k, point.load] = point.off, point.own
        for check in self.check.loads:
            found |= {(k, check.load): group for k, group in enumerate(check.fixed)}
        ks = range(self.max_k + 1)
        loads = sorted({load for _, load in found if all((k, load) in found for k in ks)})
        names = ["off", *(f"static:k={k}" for k in ks[1:])]
        fixed = {(names[k], load): found[k, load] for k in ks for load in loads}
        return fixed | {("schedule", each.load): each.schedule for each in self.check.loads}

    @property
    def warnings(self) -> list[str]:
        found = self.experiment.workload.notes
        profile = load_profile(self.experiment.serving.profile)
        for point in self.batches.points:
            beyond = Beyond.over([m.beyond for group in point.measurements for m in group])
            if lines := beyond.warnings([profile]):
                found += [f"from batch size {point.batch_size} on: {line}" for line in lines]
                break
        last = self.batches.points[-1].batch_size
        if last < self.batches.max_num_seqs:
            why = f"the KV cache holds about {last:,} requests of this workload"
            if self.batches.beyond:
                why = f"of more clients than {last:,} many are in no batch, as they wait before it"
            elif len(profile.stage_shares) > 1:
                why = f"requests are shared out among the stages, about {last:,} to each"
            found.append(
                f"{why}; larger batches, up to max_num_seqs = {self.batches.max_num_seqs}, carry "
                "the last k"
            )
        if self.batches.is_smoothed:
            found.append(
                "the best k rose with the batch size somewhere; the schedule is the non-increasing "
                "one of greatest gain"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        seed = self.experiment.seed
        same = self.check.synchronous_over_best_fixed
        oracle = self.check.oracle_over_best_fixed
        return {
            "speculative_config": self.speculative_config,
            "recommended": self.recommended,
            "batch_sizes": [_point(point) for point in self.batches.points],
            "load_unit": self.load_unit,
            "capacity": self.capacity,
            "crossovers": [asdict(crossover) for crossover in self.crossovers],
            "speed_up_by_load": [_curve(curve) for curve in self.curves],
            "runs": [_runs(*run) for run in self.runs.items()],
            "check": {
                "best_fixed_k": self.check.best_fixed,
                "schedule_over_best_fixed": asdict(self.check.over_best_fixed),
                "synchronous": {
                    "schedule_over_best_fixed": same and asdict(same),
                    "oracle_over_best_fixed": oracle and asdict(oracle),
                    "share_of_oracle": self.check.share_of_oracle,
                },
                "loads": [_load(load) for load in self.check.loads],
            },
            "warnings": self.warnings,
            "config": self.experiment.to_dict(),
            "max_k": self.max_k,
            "config_hash": self.experiment.hash,
            "seeds": list(range(seed, seed + self.replications)),
            "specsim_version": __version__,
        }

    def save(self, folder: Path | str) -> None:
        """Write ``tune.json``; a ConfigError if the folder cannot be written to."""
        with new_folder(Path(folder), ["tune.json"]) as unfinished:
            write_json(self.to_dict(), unfinished / "tune.json")


def _point(point: BatchPoint) -> dict[str, Any]:
    return {
        "batch_size": point.batch_size,
        "mean_batch_size": point.mean_batch_size,
        "best_k": point.best_k,
        "fastest_k": point.fastest_k,
        "output_throughput": (1 / point.times).tolist(),
        "gain_over_0": [asdict(gain) for gain in point.gains],
    }


def _curve(curve: LoadCurve) -> dict[str, Any]:
    points = [{"load": each.load, "speed_up": asdict(each.speed_up)} for each in curve.points]
    return {"k": curve.k, "points": points}


def _runs(where: tuple[str, float], group: list[Measurement]) -> dict[str, Any]:
    return {
        "policy": where[0],
        "load": where[1],
        "mean_e2el_ms": [each.e2e_latency * 1e3 for each in group],
        "output_throughput": [1 / each.time_per_token for each in group],
        "stability": [each.stability for each in group],
    }


def _load(load: LoadCheck) -> dict[str, Any]:
    return {
        "name": load.name,
        "load": load.load,
        "is_saturated": load.is_saturated,
        "overloaded_k": load.that_are("overloaded"),
        "undecided_k": load.that_are("undecided"),
        "best_fixed_k": load.best_fixed,
        "schedule_over_best_fixed": asdict(load.over_best_fixed),
        "speed_up_over_off": {
            **{str(k): asdict(load.speed_up(group)) for k, group in enumerate(load.fixed)},
            "schedule": asdict(load.speed_up(load.schedule)),
        },
        "synchronous_mean_e2el_ms": {
            name: [m.e2e_latency * 1e3 for m in group] for name, group in load.synchronous.items()
        },
    }


def tune(
    experiment: Experiment,
    *,
    max_k: int | None = None,
    replications: int = 5,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> Tuning:
    """Find the best k per batch size and the crossover load per k, and check what they gain.

    Raises a SpecsimError if the experiment has nothing to tune, cannot be run, or its load cannot
    be varied.

    Args:
        experiment: Its policy is replaced; replication i runs with seed ``experiment.seed + i``.
        max_k: Largest k to simulate, tokens; by default ``num_speculative_tokens``.
        replications: At least 2, for intervals.
        on_stage: Called with a text at the beginning of each stage.
    """
    if replications < 2:
        raise ConfigError(
            f"replications = {replications} must be at least 2: one says nothing about spread"
        )
    tunable = _tunable(experiment, max_k)
    loads, tell = Loads(tunable, replications), on_stage or (lambda text: None)
    with Trials(workers, on_progress) as trials:
        tell(f"every k up to {tunable.max_draft_len} at each batch size")
        batches = tune_batches(loads, trials)
        series = LoadSeries.of(loads, batches)
        tell(f"loads up to {figures(series.capacity, 3)} {loads.unit}, at which each k pays")
        crossovers, curves = find_crossovers(series, trials)
        with_oracle = not loads.has_stages  # the oracle needs synchronous scheduling
        tell(f"the schedule against every k{' and the oracle' if with_oracle else ''}")
        check = check_schedule(series, batches, trials, with_oracle=with_oracle)
    return Tuning(
        experiment=experiment,
        max_k=tunable.max_draft_len,
        replications=replications,
        load_unit=loads.unit,
        capacity=series.capacity,
        batches=batches,
        crossovers=crossovers,
        curves=curves,
        check=check,
    )


def _proposer(experiment: Experiment) -> Proposer:
    proposer = experiment.engine.speculative_config
    if proposer is None:
        raise ConfigError(
            "engine.speculative_config is missing: there is no k to tune; give one, such as "
            "{method: eagle3, num_speculative_tokens: 5}"
        )
    if experiment.acceptance is None:
        raise ConfigError(
            "acceptance is missing: what a k gains depends on it; give one, such as "
            "{kind: bernoulli, alpha: 0.7}"
        )
    return proposer


def _tunable(experiment: Experiment, max_k: int | None) -> Experiment:
    """Return the experiment with room for every k, without its own policy and schedule."""
    fields = _proposer(experiment).model_dump(mode="json", exclude_none=True, warnings=False)
    fields.pop("num_speculative_tokens_per_batch_size", None)
    if max_k is not None:
        fields["num_speculative_tokens"] = max_k
    engine = experiment.engine.model_dump(mode="json", exclude_none=True, warnings=False)
    engine["speculative_config"] = fields
    source = "experiment" if max_k is None else f"--max-k {max_k}"
    return experiment.replace(source, engine=engine, policy=None)
