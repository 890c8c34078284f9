"""Rows of a table of measured runs, simulated under a profile."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError, ProfileError, SpecsimError
from specsim.core.processes import LocalProcesses
from specsim.core.request import PrefixIds
from specsim.core.runner import Runner
from specsim.profile import Profile, load_profile
from specsim.reality.validation.measured_run import LATENCIES, STATISTICS, MeasuredRun
from specsim.reality.validation.spread import DEFAULT_SPREAD, fates
from specsim.results.tables import RunTables
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.workload.trace import Trace

_RECORD = "table"
_COUNTERS = frozenset(
    {"engine_steps", "preemptions", "num_drafts", "num_draft_tokens", "num_accepted_tokens"}
)


@dataclass(frozen=True)
class Prediction:
    """A measured run and what the simulation says of it."""

    run: MeasuredRun
    values: dict[str, float]  # by name in `specsim.reality.validation.measured_run.METRICS`

    def error(self, metric: str) -> float | None:
        """Return predicted against measured as a share of the measured; None if that is 0."""
        measured = self.run.measured[metric]
        return (self.values[metric] - measured) / measured if measured else None


@dataclass(frozen=True)
class ReplayedRow:
    """A row as it can be simulated, whatever the profile."""

    place: str
    experiment: Experiment
    requests: Trace
    warmups: Trace | None
    """What ran before and counts only in the server's counters; None if it need not be known."""
    key: tuple[object, ...]
    """The same for rows that are one and the same simulation, such as repetitions."""
    kv_tokens: int | None = None
    """See `MeasuredRun`; how many blocks they are depends on the profile's layers."""


def compose_row(run: MeasuredRun, *, seed: int = 0, spread: float = DEFAULT_SPREAD) -> ReplayedRow:
    """Return a row as it can be simulated.

    Args:
        spread: Concentration of acceptance between requests, unless the row has its own; see
            `specsim.reality.validation.spread.fates`.

    Raises:
        SpecsimError: The row lacks something, or an option of the engine is out of range.
    """
    if run.missing:
        raise ConfigError(f"{run.place}: {run.missing[0]}; or leave it out (--skip-incomplete)")
    engine, k = dict(run.engine), run.num_speculative_tokens
    if k:
        engine["speculative_config"] = {"method": run.method, "num_speculative_tokens": k}
    arrivals: dict[str, Any] = {"kind": "closed_loop", "concurrency": run.concurrency}
    if run.request_rate is not None:
        arrivals = {"kind": "gamma", "rate": run.request_rate, "burstiness": run.burstiness}
    lens = _lens(run)
    experiment = Experiment.parse(
        {
            "workload": {
                "arrivals": arrivals,
                "lengths": {"kind": "constant", "prompt": 1, "output": 1},
                "num_requests": len(lens),
            },
            "engine": engine,
            "profile": "given",
            "seed": seed,
            **({"acceptance": {"kind": "recorded", "proposer": _RECORD}} if k else {}),
        },
        run.place,
    )
    arrived_at = experiment.workload.build(seed).arrived_at
    counts_warmups = run.counts_warmups and bool(_COUNTERS & run.measured.keys())
    warmups = lens[:1].repeat(run.num_warmups if counts_warmups else 0, axis=0)
    concentration = run.acceptance_spread or spread
    shared = run.prompt.shared if run.prompt is not None else 0
    return ReplayedRow(
        run.place,
        experiment,
        _requests(run, lens, concentration, seed, arrived_at),
        _requests(run, warmups, concentration, seed + 1) if len(warmups) else None,
        key=(
            experiment.hash,
            lens.tobytes(),
            len(warmups),
            run.rates,
            concentration,
            shared,
            run.max_tokens,
        ),
        kv_tokens=run.kv_tokens,
    )


def _lens(run: MeasuredRun) -> NDArray[np.int64]:
    if run.lens is not None:
        return run.lens
    assert run.prompt is not None
    assert run.output is not None
    rng = np.random.RandomState(run.lengths_seed)  # as load generators draw: prompts first
    return np.stack([each.draw(rng, run.num_prompts) for each in (run.prompt, run.output)], axis=1)


def _requests(
    run: MeasuredRun,
    lens: NDArray[np.int64],
    concentration: float,
    seed: int,
    arrived_at: NDArray[np.float64] | None = None,
) -> Trace:
    shared = run.prompt.shared if run.prompt is not None else 0
    block_size = run.engine.get("block_size", 16)
    prefix = PrefixIds(tuple(range(shared // block_size)), block_size)
    records = {}
    if run.rates:
        records[_RECORD] = fates(run.rates, lens[:, 1].tolist(), concentration, seed)
    return Trace(
        *(lens[:, 0], lens[:, 1], arrived_at),
        prefix_ids=[prefix] * len(lens) if shared else None,
        recorded_lens=records,
        max_tokens=None if run.max_tokens is None else max(run.max_tokens, int(lens[:, 1].max())),
    )


class Replayer(AbstractContextManager["Replayer"]):
    """Simulates rows again and again, each time under another profile.

    All that does not depend on the profile is done once; processes stay for the next time.

    Args:
        runs: From `specsim.reality.validation.table.read_table`.
        seed: Of arrivals and acceptance. The same for all rows, so that rows that differ in k
            meet the same luck.
        spread: See `compose_row`.
        processes: Results do not depend on it.

    Raises:
        SpecsimError: A row lacks something (`MeasuredRun.missing`).
    """

    def __init__(
        self,
        runs: Sequence[MeasuredRun],
        *,
        seed: int = 0,
        spread: float = DEFAULT_SPREAD,
        processes: int = 1,
    ) -> None:
        self.runs = list(runs)
        rows = [compose_row(run, seed=seed, spread=spread) for run in runs]
        self.keys = [row.key for row in rows]
        """The same for rows that are one and the same simulation, such as repetitions."""
        self._rows = {row.key: row for row in reversed(rows)}
        self._processes = LocalProcesses(processes)

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        self._processes.__exit__(*error)

    def predict(
        self, profile: Profile | str | Path, on_progress: Callable[[int], None] | None = None
    ) -> list[Prediction]:
        """Simulate all rows under a profile.

        Args:
            profile: Itself, its name, or its path.
            on_progress: Told the number of simulations that have ended; rows that are alike, such
                as repetitions, share one.

        Returns:
            In the order of the rows.

        Raises:
            SpecsimError: A row is of another model, GPU or number of GPUs, or needs what the
                profile does not have.
        """
        if not isinstance(profile, Profile):
            profile = load_profile(str(profile))
        check_same(self.runs, profile)
        runner = Runner(self._processes, on_progress)
        keys = list(dict.fromkeys(self.keys))
        tasks = [self._rows[key] for key in keys]
        (found,) = runner.run(partial(simulate_row, profile), [tasks])
        values = dict(zip(keys, found, strict=True))
        return [Prediction(run, values[key]) for run, key in zip(self.runs, self.keys, strict=True)]


def predict(
    runs: Sequence[MeasuredRun],
    profile: Profile | str | Path,
    *,
    seed: int = 0,
    spread: float = DEFAULT_SPREAD,
    processes: int = 1,
) -> list[Prediction]:
    """Simulate measured runs under a profile, once; see `Replayer`."""
    with Replayer(runs, seed=seed, spread=spread, processes=processes) as replayer:
        return replayer.predict(profile)


def simulate_row(profile: Profile, row: ReplayedRow) -> dict[str, float]:
    """Return what a simulation of a row measures, under the names of the table.

    Raises:
        SpecsimError: It cannot be simulated under this profile; the message names the row.
    """
    traces = [trace for trace in (row.requests, row.warmups) if trace is not None]
    try:
        experiment = _in_blocks(row, profile)
        summaries = [_simulated(experiment, trace, profile) for trace in traces]
    except SpecsimError as error:
        raise type(error)(f"{row.place}: {error}") from error
    return _client_metrics(summaries[0]) | _counters([each.tables for each in summaries])


def _in_blocks(row: ReplayedRow, profile: Profile) -> Experiment:
    """Return the experiment with the blocks that hold the tokens, of layers in several groups."""
    if row.kv_tokens is None:
        return row.experiment

    def with_blocks(count: int) -> Experiment:
        engine = row.experiment.engine.model_copy(update={"num_gpu_blocks": count})
        return row.experiment.model_copy(update={"engine": engine})

    deployed = Deployment.of(with_blocks(row.kv_tokens), profile)  # no block holds less than one
    if not deployed.setup.kv.is_hybrid:
        return row.experiment
    return with_blocks(deployed.blocks_of(row.kv_tokens))


def _simulated(experiment: Experiment, trace: Trace, profile: Profile) -> Summary:
    requests = list(trace.requests())
    return Summary(simulate(experiment, requests=requests, profile=profile, keeps_steps=False))


def _client_metrics(summary: Summary) -> dict[str, float]:
    requests = summary.tables.requests
    duration = float(requests["ended_at"].max() - requests["arrived_at"].min())
    names = {latency: "e2el" if latency == "e2e" else latency for latency in LATENCIES}
    return {
        "output_tok_s": float(requests["output_len"].sum()) / duration,
        "request_throughput": len(requests) / duration,
        "duration_s": duration,
        "queue_time_mean_ms": summary.statistics["queue"]["mean"],
        **{
            f"{latency}_{name}_ms": summary.statistics[ours][name]
            for latency, ours in names.items()
            for name in STATISTICS
        },
    }


def _counters(tables: Sequence[RunTables]) -> dict[str, float]:
    def total(column: str) -> float:
        return float(sum(each.requests[column].sum() for each in tables))

    drafts, drafted, accepted = map(total, ("drafts", "draft_tokens", "accepted_tokens"))
    return {
        "engine_steps": float(sum(each.totals["steps"] for each in tables)),
        "preemptions": total("preemptions"),
        "num_drafts": drafts,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        "acceptance_rate": accepted / drafted if drafted else 0.0,
    }


def check_same(runs: Sequence[MeasuredRun], profile: Profile) -> None:
    """Raise unless all runs are of the profile's model, GPU and number of GPUs.

    Raises:
        ProfileError: It names the first row that differs, and how to choose those that do not.
    """
    model = "" if profile.model.endswith(".json") else profile.model  # a path need not name it
    own = (("model", model, _is_same_model), ("gpu", profile.gpu, _is_same_gpu))
    for run in runs:
        for column, name, is_same in own:
            cell = run.cells.get(column, "")
            if cell and name and not is_same(cell, name):
                cells = [each.cells.get(column, "") for each in runs]
                fitting = [each for each in cells if each and is_same(each, name)]
                keep = f"keep its rows only (--rows '{column}={fitting[0]}')" if fitting else ""
                raise ProfileError(
                    f"{run.place}: {column} = {cell!r}, but the profile is of '{name}'; "
                    f"{keep or 'the table has no row of it'}, or name another profile"
                )
        size = profile.tensor_parallel_size
        if run.tensor_parallel_size != size:
            raise ProfileError(
                f"{run.place}: tp = {run.tensor_parallel_size}, but the profile was made with "
                f"{size}; keep its rows only (--rows tp={size}), or name another profile"
            )


def _is_same_model(cell: str, name: str) -> bool:
    """Return whether one name spells the other within itself: 'org/Llama-3.1-8B-Instruct'."""
    words = [re.findall(r"[a-z0-9]+", each.rsplit("/", 1)[-1].lower()) for each in (cell, name)]
    one, other = (f"-{'-'.join(each)}-" for each in words)
    return one in other or other in one


def _is_same_gpu(cell: str, name: str) -> bool:
    """Return whether one name has all words of the other: 'A100-SXM4-80GB' and 'a100-80gb'."""
    one, other = (set(re.findall(r"[a-z]+|\d+", each.lower())) for each in (cell, name))
    return one <= other or other <= one
