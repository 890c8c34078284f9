"""Rows of a table of measured runs, simulated under a profile."""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.base import runs_below, split_rows
from specsim.core.errors import ConfigError, ProfileError, SpecsimError
from specsim.core.processes import LocalProcesses
from specsim.core.reading import number_in
from specsim.core.request import PrefixIds
from specsim.core.rng import Luck, generator, stream_id
from specsim.core.runner import Runner
from specsim.hardware import GIB, load_model
from specsim.latency.composed import Composed
from specsim.profile import Profile, load_profile
from specsim.reality.validation.measured_run import LATENCIES, STATISTICS, MeasuredRun, say_lookup
from specsim.results.metrics import latencies, latency_statistics, token_latencies
from specsim.results.tables import RunTables
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.summary import Summary, summarized
from specsim.workload.trace import Trace

DEFAULT_SPREAD = 30.0
"""Concentration of the Beta distribution of alpha over requests, which no table contains. The seven
fits in ``profiles/acceptance`` that have one (recorded drafts of EAGLE and n-gram), converted to
the same spread between requests, have 21 to 169, with a median of 27."""
DRAWS = 3
"""Simulations of a row with drafts, each with other luck; a prediction is their median. With 64
requests, half of which may need one more step, a single run could be at either value."""
_NODES = 400
_BITS = re.compile(
    r"(?<!kv )(?<!kv cache )(?<![a-z0-9])"
    r"(?:(bf16|bfloat16|fp16|float16)|(fp8|w8a8|w8a16|(?:gptq[-_ ])?int8)"
    r"|(w4a16|int4|awq|gptq|mxfp4|nvfp4|fp4))(?![a-z0-9]| kv)",
    re.IGNORECASE,
)
"""How a cell describes stored weights, the first of all matches; the KV cache's type is skipped."""
_GROUPS = {16: 1, 8: 2, 4: 3}  # of `_BITS`, by bits
_RECORD = "table"
_ANY_SIZE = 1 << 20  # larger than any batch
_COUNTERS = frozenset(
    {"engine_steps", "preemptions", "num_drafts", "num_draft_tokens", "num_accepted_tokens"}
)


@dataclass(frozen=True)
class Prediction:
    """A measured run and its prediction."""

    run: MeasuredRun
    values: dict[str, float]  # by name in `specsim.reality.validation.measured_run.METRICS`

    def error(self, metric: str) -> float | None:
        """Return (predicted - measured) / measured; None if measured is 0."""
        measured = self.run.measured[metric]
        return (self.values[metric] - measured) / measured if measured else None


@dataclass(frozen=True)
class ReplayedRow:
    """A row in the form of a simulation, without a profile."""

    place: str
    experiment: Experiment
    requests: Trace
    warmups: Trace | None  # earlier requests, if the server's counters include them
    first: Trace | None  # requests that filled the prefix cache before the first request
    key: tuple[object, ...]  # equal for rows with the same simulation, such as repetitions
    kv_tokens: int | None = None  # number of blocks depends on the profile's layers
    graph_tokens: int | None = None


def compose_row(run: MeasuredRun, *, seed: int = 0, spread: float = DEFAULT_SPREAD) -> ReplayedRow:
    """Return the simulation of a row.

    The spread of acceptance between requests is the row's own if it has one, else `spread`. Raises
    a SpecsimError if the row lacks something, or an option of the engine is out of range.
    """
    if run.missing:
        gap = run.missing[0]
        fill = " (--set COLUMN=VALUE fills empty cells)" if " empty" in gap else ""
        raise ConfigError(f"{run.place}: {gap}{fill}; or leave it out (--skip-incomplete)")
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
            "engine": _engine(run),
            "profile": "given",
            "seed": seed,
            **({"acceptance": {"kind": "recorded", "proposer": _RECORD}} if run.method else {}),
        },
        run.place,
    )
    arrived_at = _arrivals(run, experiment)
    counts_warmups = run.counts_warmups and bool(_COUNTERS & run.measured.keys())
    warmups = lens[:1].repeat(run.num_warmups if counts_warmups else 0, axis=0)
    concentration = run.acceptance_spread or spread
    shared = run.prompt.shared if run.prompt is not None else 0
    first = None
    if run.is_warm:
        waiting = 1 if run.concurrency is None else min(run.concurrency, len(lens))
        first = _requests(run, np.tile((lens[0, 0], 1), (waiting, 1)), concentration, seed + 1)
    what = (experiment.hash, lens.tobytes(), len(warmups), first is None)
    how = (run.rates, concentration, shared, run.max_tokens, run.graph_tokens, run.begins_at_once)
    return ReplayedRow(
        run.place,
        experiment,
        _requests(run, lens, concentration, seed, arrived_at),
        _requests(run, warmups, concentration, seed + 1) if len(warmups) else None,
        first,
        key=(*what, *how),
        kv_tokens=run.kv_tokens,
        graph_tokens=run.graph_tokens,
    )


def _arrivals(run: MeasuredRun, experiment: Experiment) -> NDArray[np.float64] | None:
    """Return arrival times at a rate, stretched so that the run has exactly that mean rate.

    vLLM's benchmark does so (0.33.0 ``benchmarks/serve.py get_request``): otherwise chance in the
    few gaps of 64 requests would make the run an eighth longer or shorter, an error of throughput.
    """
    arrived_at = experiment.workload.build(experiment.seed).arrived_at
    if run.request_rate is None or arrived_at is None or not arrived_at[-1]:
        return arrived_at
    seconds = len(arrived_at) / run.request_rate
    stretched: NDArray[np.float64] = arrived_at * (seconds / float(arrived_at[-1]))
    return stretched - stretched[0] if run.begins_at_once else stretched


def _engine(run: MeasuredRun) -> dict[str, Any]:
    engine, k = dict(run.engine), run.num_speculative_tokens
    if run.method:
        config: dict[str, Any] = {"method": run.method, "num_speculative_tokens": max(k, 1)}
        config |= run.lookup
        on_cpu = "cpu" in run.cells.get("gpu", "").lower()
        say_lookup(engine, config, is_told="vllm_version" in engine, on_cpu=on_cpu)
        if not k:  # the drafter processes all tokens of the target even so
            config["num_speculative_tokens_per_batch_size"] = [[1, _ANY_SIZE, 0]]
        engine["speculative_config"] = config
    return engine


def _lens(run: MeasuredRun) -> NDArray[np.int64]:
    if run.lens is not None:
        return run.lens
    assert run.prompt is not None
    assert run.output is not None
    rng = np.random.RandomState(run.lengths_seed)  # prompts first, as load generators draw
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
    prefixes = [prefix] * len(lens) if shared or run.is_warm else None
    if prefixes and run.is_warm:  # with copies of the first request
        prefixes[0] = PrefixIds(tuple(range(int(lens[0, 0]) // block_size)), block_size)
    records = {}
    if run.rates:
        records[_RECORD] = fates(run.rates, lens[:, 1].tolist(), concentration, seed)
    elif run.method:  # and never drafts
        records[_RECORD] = [bytes(length) for length in lens[:, 1].tolist()]
    return Trace(
        *(lens[:, 0], lens[:, 1], arrived_at),
        prefix_ids=prefixes,
        recorded_lens=records,
        max_tokens=None if run.max_tokens is None else max(run.max_tokens, int(lens[:, 1].max())),
    )


class Replayer(AbstractContextManager["Replayer"]):
    """Simulates rows repeatedly, each time under another profile.

    What does not depend on the profile is done once, and processes are kept. The seeds are the same
    for all rows, so that rows that differ in k meet the same luck. Raises a SpecsimError if a row
    lacks something (`MeasuredRun.missing`).
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
        rows = [
            [
                compose_row(run, seed=seed + draw, spread=spread)
                for draw in range(DRAWS if run.num_speculative_tokens else 1)
            ]
            for run in runs
        ]
        self.keys = [draws[0].key for draws in rows]  # see `ReplayedRow`
        self._rows = {draws[0].key: draws for draws in reversed(rows)}
        self._processes = LocalProcesses(processes)

    @property
    def num_simulations(self) -> int:
        """Number of simulations per prediction."""
        return sum(len(draws) for draws in self._rows.values())

    def __exit__(self, *error: object) -> None:
        self._processes.__exit__(*error)

    def predict(
        self, profile: Profile | str | Path, on_progress: Callable[[int], None] | None = None
    ) -> list[Prediction]:
        """Simulate all rows under a profile, given as an object, a name or a path.

        `on_progress` is called with the number of finished simulations; rows that are alike, such
        as repetitions, share one. Raises a SpecsimError if a row is of another model, GPU or number
        of GPUs, or needs what the profile does not have.
        """
        if not isinstance(profile, Profile):
            profile = load_profile(str(profile))
        check_same(self.runs, profile)
        runner = Runner(self._processes, on_progress)
        keys = list(dict.fromkeys(self.keys))
        tasks = [row for key in keys for row in self._rows[key]]
        (found,) = runner.run(partial(simulate_row, profile), [tasks])
        draws = iter(found)
        values = {}
        for key in keys:
            own = [next(draws) for _ in self._rows[key]]
            values[key] = {name: median(each[name] for each in own) for name in own[0]}
        return [Prediction(run, values[key]) for run, key in zip(self.runs, self.keys, strict=True)]


def predict(
    runs: Sequence[MeasuredRun], profile: Profile | str | Path, **options: Any
) -> list[Prediction]:
    """Simulate measured runs under a profile, once; `options` are those of `Replayer`."""
    with Replayer(runs, **options) as replayer:
        return replayer.predict(profile)


def simulate_row(profile: Profile, row: ReplayedRow) -> dict[str, float]:
    """Return the metrics of one simulation of a row, by the names of the table."""

    def tables_of(trace: Trace) -> RunTables:
        return simulated(profile, row, trace).tables

    start = 0.0
    try:
        if row.first is None:
            found = [tables_of(row.requests)]
        else:
            before = tables_of(row.first)
            start = float(before.requests["ended_at"].max())
            found = [_without(before, tables_of(_after(before, row)))]
        if row.warmups is not None:
            found.append(tables_of(row.warmups))
    except SpecsimError as error:
        raise type(error)(f"{row.place}: {error}") from error
    if row.requests.arrived_at is None:
        start = float(found[0].requests["arrived_at"].min())
    return _client_metrics(found[0], start) | _counters(found)


def simulated(profile: Profile, row: ReplayedRow, requests: Trace) -> Summary:
    """Simulate `requests` on the server of a row."""
    experiment = _with_graphs(in_blocks(row, profile), row.graph_tokens, profile)
    return summarized(experiment, requests=list(requests.requests()), profile=profile)


def _with_graphs(experiment: Experiment, tokens: int | None, profile: Profile) -> Experiment:
    """Return an experiment with CUDA graphs up to a size, if the profile leaves it open."""
    latency = profile.target
    if tokens is None or not (isinstance(latency, Composed) and latency.leaves_graphs):
        return experiment
    engine = experiment.engine.model_copy(update={"max_cudagraph_capture_size": tokens})
    return experiment.model_copy(update={"engine": engine})


def _after(before: RunTables, row: ReplayedRow) -> Trace:
    """Return a row's requests after those that fill the cache, once all of these have ended.

    In a closed loop each client is a session of two turns: it waits for that with its first
    request.
    """
    assert row.first is not None
    count, start = len(row.first), float(before.requests["ended_at"].max())
    times = (
        np.zeros(len(row.requests)) if row.requests.arrived_at is None else row.requests.arrived_at
    )
    trace = replace(row.first.followed_by(row.requests), max_tokens=row.requests.max_tokens)
    trace = trace.at_times(np.concatenate([np.zeros(count), start + times]))
    if row.requests.arrived_at is not None:
        return trace
    numbers = np.arange(len(row.requests))
    return replace(trace, sessions=np.concatenate([numbers[:count], numbers]))


def _without(before: RunTables, tables: RunTables) -> RunTables:
    """Return the tables without the requests that filled the cache, which left no gaps."""
    totals = tables.totals.copy()
    totals["steps"] -= before.totals["steps"]
    return replace(tables, requests=tables.requests[len(before.requests) :], totals=totals)


def in_blocks(row: ReplayedRow, profile: Profile) -> Experiment:
    """Return the experiment with as many blocks as hold its KV tokens, over all KV groups."""
    if row.kv_tokens is None:
        return row.experiment

    def with_blocks(count: int) -> Experiment:
        engine = row.experiment.engine.model_copy(update={"num_gpu_blocks": count})
        return row.experiment.model_copy(update={"engine": engine})

    deployed = Deployment.of(with_blocks(row.kv_tokens), profile)  # a block holds a token at least
    if not deployed.setup.kv.is_hybrid:
        return row.experiment
    return with_blocks(deployed.blocks_of(row.kv_tokens))


def _client_metrics(tables: RunTables, start: float) -> dict[str, float]:
    """Return the metrics of a client that begins at `start`, at a rate a gap before its requests.

    vLLM's benchmark does so (0.33.0 ``benchmarks/serve.py benchmark``).
    """
    requests = tables.requests
    samples = latencies(requests) | token_latencies(tables)
    statistics = {name: latency_statistics(each) for name, each in samples.items()}
    duration = float(requests["ended_at"].max()) - start
    names = {latency: "e2el" if latency == "e2e" else latency for latency in LATENCIES}
    return {
        "output_tok_s": float(requests["output_len"].sum()) / duration,
        "request_throughput": len(requests) / duration,
        "duration_s": duration,
        "queue_time_mean_ms": statistics["queue"]["mean"],
        **{
            f"{latency}_{name}_ms": statistics[ours][name]
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
    """Raise a ProfileError unless all runs are of the profile's model, GPU and number of GPUs."""
    model = "" if profile.model.endswith(".json") else profile.model  # a path may have any name
    own = (("model", model, is_same_model), ("gpu", profile.gpu, is_same_gpu))
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
        gpus, stages = run.cells.get("num_gpus", ""), len(profile.stage_shares)
        may_be_empty = stages == 1 and not gpus.strip()
        if not may_be_empty and number_in(gpus) != profile.num_gpus:
            how = f", in {stages} stages" if stages > 1 else ""
            raise ProfileError(
                f"{run.place}: num_gpus = {gpus!r}, but the profile is of {profile.num_gpus}{how}; "
                "say on how many one server was, and its load (in an empty cell: --set num_gpus="
                f"{profile.num_gpus}), or name another profile"
            )
    _check_numbers(runs, profile)


def _check_numbers(runs: Sequence[MeasuredRun], profile: Profile) -> None:
    """Raise a ProfileError for a run whose weights have other bits, or that has no CUDA graphs."""
    has_graphs = not getattr(profile.target, "decodes_at_least_us", 0.0)
    bits = _weight_bits(profile)
    for run in runs:
        cells = ((name, run.cells.get(name, "")) for name in ("quantisation", "model"))
        found = ((*cell, match) for cell in cells if (match := _BITS.search(cell[1])))
        column, cell, said = next(found, ("", "", None))
        if bits and said and said.lastindex != _GROUPS.get(bits):
            raise ProfileError(
                f"{run.place}: {column} = {cell!r}, but the profile's "
                f"weights have {bits} bits; name a profile with such weights (profile build "
                "--dtype), or keep its rows only (--rows quantisation=...)"
            )
        if run.is_eager is False and not has_graphs:
            raise ProfileError(
                f"{run.place}: enforce_eager is off, but the profile is without CUDA graphs; "
                "build one with (leave out --kernel graphs=none), or leave such rows out"
            )


def _weight_bits(profile: Profile) -> int | None:
    """Return the bits of the profile's weights; None if their memory is not known.

    The nearest of 16, 8 and 4 to the memory, without embeddings, which keep 16 bits.
    """
    try:
        shape = load_model(profile.model)
    except SpecsimError:
        return None
    if profile.weights_gib is None:  # memory is then planned from the model's number type
        return None if shape.quantization else 8 * shape.bytes_per_weight
    embedding, is_tied = shape.vocab_size * shape.hidden_size, shape.tie_word_embeddings
    total = profile.weights_gib * GIB * profile.tensor_parallel_size
    rest = shape.num_parameters - embedding * (1 if is_tied else 2)
    # In a pipeline the first stage has the embedding, the last the head.
    beside = embedding * (1 if is_tied or len(profile.stage_shares) > 1 else 2)
    each = (total - 2 * beside) / (rest * profile.fullest_share(shape))
    return min(_GROUPS, key=lambda bits: abs(math.log2(max(each, 0.1) * 8 / bits)))


def is_same_model(cell: str, name: str) -> bool:
    """Return whether one name contains the other: 'org/Llama-3.1-8B' and 'llama-3.1-8b'."""
    words = [re.findall(r"[a-z0-9]+", each.rsplit("/", 1)[-1].lower()) for each in (cell, name)]
    one, other = (f"-{'-'.join(each)}-" for each in words)
    return one in other or other in one


def is_same_gpu(cell: str, name: str) -> bool:
    """Return whether one name has all words of the other: 'A100-SXM4-80GB' and 'a100-80gb'.

    An H100 or H200 with NVL or PCIe is not one without, and an L40S is no L40.
    """
    words = r"[a-z]+|\d+(?:[a-z](?![a-z\d]))?"
    one, other = (set(re.findall(words, each.lower())) for each in (cell, name))
    if "h" in one and (one ^ other) & {"nvl", "pcie"}:
        return False
    return one <= other or other <= one


def fates(
    rates: Sequence[float], output_lens: Sequence[int], concentration: float, seed: int
) -> list[bytes]:
    """Return the accepted length of the longest draft by output position, for each request.

    A draft's j-th token is accepted with the request's alpha times a factor of the position, as in
    acceptance ``beta_position``; but each of n requests has another n-th part of the distribution
    of alpha, in random order, so that even few requests have the rates of the run on average.

    Args:
        rates: Share of all drafts of the run whose position j was accepted. A request with lower
            acceptance makes more drafts, and so counts more.
        concentration: a + b of the Beta distribution of alpha; infinite if all requests are alike.
    """
    k, count = len(rates), len(output_lens)
    mean, factors = position_factors(rates, concentration)
    order = generator(seed, "acceptance_spread").permutation(count)
    alphas = _quantiles(mean, concentration, count)[order]
    counts = [length + k for length in output_lens]
    luck = Luck(seed, stream_id("acceptance", "table")).uniforms(range(count), counts)
    lens = runs_below(luck / np.repeat(np.maximum(alphas, 1e-300), counts), factors)
    rows = split_rows(lens.tobytes(), counts)
    return [row[:length] for row, length in zip(rows, output_lens, strict=True)]


def position_factors(rates: Sequence[float], concentration: float) -> tuple[float, list[float]]:
    """Return the least mean of alpha, and factors of positions in [0, 1], that give these rates."""
    before = (1.0, *rates)
    chances = [now / last if last else 0.0 for last, now in zip(before, rates, strict=False)]
    mean = max(chances)
    if math.isinf(concentration) or not mean:
        return 1.0, chances
    while True:
        mean = min(mean, 1 - 1e-6)
        factors = _factors(rates, _quantiles(mean, concentration, _NODES))
        largest = max(factors)
        if largest <= 1 + 1e-4 or mean == 1 - 1e-6:
            return mean, [min(factor, 1.0) for factor in factors]
        mean *= largest


def _factors(rates: Sequence[float], alphas: NDArray[np.float64]) -> list[float]:
    """Return the factors with which requests of these alphas together have the rates."""
    wanted = np.array(rates)
    powers = alphas[:, None] ** np.arange(1, len(rates) + 1)
    products = wanted / powers.mean(axis=0)
    for _ in range(60):  # a request makes more drafts if each yields fewer tokens
        drafts = 1 / (1 + powers @ products)
        products = wanted * drafts.sum() / (drafts @ powers)
    before = np.append(1.0, products[:-1])
    factors: list[float] = np.divide(
        products, before, out=np.zeros_like(products), where=before > 0
    ).tolist()
    return factors


def _quantiles(mean: float, concentration: float, count: int) -> NDArray[np.float64]:
    """Return the midpoints of `count` equally likely parts of the distribution, ascending."""
    if math.isinf(concentration):
        return np.full(count, mean)
    from scipy.special import betaincinv

    shares = (np.arange(count) + 0.5) / count
    found: NDArray[np.float64] = betaincinv(
        mean * concentration, (1 - mean) * concentration, shares
    )
    return found
