"""Tuning: what it finds is what can be calculated, and what it prints can be used."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import tiny_config
from rich.console import Console

from specsim.core.errors import ConfigError
from specsim.policies.static import Off, Schedule
from specsim.run.experiment import Experiment
from specsim.show.charts.run_plots import plot_tuning
from specsim.show.render.study_tables import tuning_tables, tuning_verdict
from specsim.study.loads import Loads, fixed_policy
from specsim.study.tune import Tuning, tune
from specsim.study.tune.batch import BatchTuning, Trials, best_k, non_increasing, tune_batches
from specsim.study.tune.crossover import Crossover, LoadSeries, find_crossovers
from specsim.workload.arrivals.patterns import ClosedLoop

ALPHA, MAX_K, LARGEST, OUTPUT = 0.7, 3, 32, 40
DELTA, GAMMA, DRAFT = 4e-3, 300e-6, 0.5e-3  # seconds: per step, per token, per draft


def calculated_time(batch_size: int, k: int) -> float:
    """Seconds per output token of one sequence in a batch of so many that only decode.

    A step emits (1 - alpha^(k+1)) / (1 - alpha) tokens on average; how many steps a request takes
    is the renewal equation of that, which also knows the drafts that its end cuts off.
    """
    emits = [ALPHA**j * (1 - ALPHA) for j in range(k)] + [ALPHA**k]  # P(j accepted)
    steps = [0.0]
    for left in range(1, OUTPUT):
        after = sum(p * steps[max(0, left - j - 1)] for j, p in enumerate(emits))
        steps.append(1 + after)
    draft_time = DRAFT if k else 0.0
    return (DELTA + GAMMA * batch_size * (k + 1) + draft_time) * (1 + steps[-1]) / OUTPUT


@pytest.fixture(scope="module")
def decoding(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Return an experiment without prefill to speak of, whose step times can be calculated."""
    path = tmp_path_factory.mktemp("profile") / "decoding.yaml"
    draft = {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": DRAFT * 1e3}
    profile = {
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
        "target": {**draft, "gamma_us": GAMMA * 1e6, "delta_ms": DELTA * 1e3},
        "drafts": {"eagle3": {"basis": "draft", "latency": draft}},
        "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
    }
    path.write_text(yaml.safe_dump(profile))
    config = tiny_config(
        workload={
            "arrivals": {"kind": "poisson", "rate": 10.0},
            "lengths": {"kind": "constant", "prompt": 1, "output": OUTPUT},
            "num_requests": 100,
        },
        acceptance={"kind": "bernoulli", "alpha": ALPHA},
        profile=str(path),
    )
    # Asynchronously every answer would cost a step more, scheduled before its end was known.
    experiment = Experiment.parse(config, "decoding")
    return with_engine(experiment, max_num_seqs=LARGEST, async_scheduling=False)


def with_engine(experiment: Experiment, **changes: Any) -> Experiment:
    engine = experiment.engine
    fields = engine.model_dump(mode="json", exclude_unset=True)
    fields["speculative_config"] = engine.speculative_config
    return experiment.replace(engine={**fields, **changes})


def tuned_batches(experiment: Experiment, replications: int) -> BatchTuning:
    with Trials(workers=1) as trials:
        return tune_batches(Loads(experiment, replications), trials)


@pytest.fixture(scope="module")
def batches(decoding: Experiment) -> BatchTuning:
    return tuned_batches(decoding, replications=3)


def test_best_k_of_every_batch_size_is_the_calculated_one(batches: BatchTuning) -> None:
    found = {size: k for first, last, k in batches.ranges for size in range(first, last + 1)}
    assert list(found) == list(range(1, LARGEST + 1))
    assert set(found.values()) == {0, 1, 2, 3}
    for size, k in found.items():
        times = [calculated_time(size, j) for j in range(MAX_K + 1)]
        best, second = sorted(times)[:2]
        assert times[k] < 1.02 * best, f"batch size {size}"
        assert k == times.index(best) or second < 1.02 * best


def test_k_never_rises_with_the_batch_size(batches: BatchTuning) -> None:
    ks = [k for _, _, k in batches.ranges]
    assert ks == sorted(ks, reverse=True)


def test_gains_over_k_0_are_the_calculated_ones(batches: BatchTuning) -> None:
    assert batches.points
    for point in batches.points:
        assert len(point.gains) == MAX_K + 1
        for k, gain in enumerate(point.gains):
            ratio = calculated_time(point.batch_size, 0) / calculated_time(point.batch_size, k)
            # Prefill steps are cheaper than calculated, and a client's next request misses a step.
            assert gain.mean == pytest.approx(ratio, rel=0.04)
        assert point.mean_batch_size == pytest.approx(point.batch_size, rel=0.02)


def test_ks_that_cannot_be_told_apart_are_a_tie_that_the_smallest_wins() -> None:
    clear = np.array([[1.0, 1.1, 1.05], [0.9, 1.0, 0.95], [0.5, 0.6, 0.55]])
    assert best_k(clear) == 2
    noisy = np.array([[1.0, 1.1, 1.05], [0.51, 0.59, 0.56], [0.5, 0.6, 0.55]])
    assert best_k(noisy) == 1
    assert best_k(np.zeros((3, 2))) == 0


def test_noise_is_smoothed_to_the_best_non_increasing_schedule() -> None:
    gains = np.random.default_rng(1).normal(size=(5, 3))
    weights = 1 / np.arange(1, 6)

    def total(ks: tuple[int, ...]) -> float:
        return float((gains[range(5), list(ks)] * weights).sum())

    schedules = itertools.combinations_with_replacement((2, 1, 0), 5)
    assert tuple(non_increasing(gains)) == max(schedules, key=total)


def test_batches_larger_than_the_kv_cache_holds_are_not_tried(decoding: Experiment) -> None:
    # A request of 1 + 40 tokens holds 21 on average, room for a draft, and half a block.
    small_cache = with_engine(decoding, num_gpu_blocks=13, max_model_len=64)
    batches = tuned_batches(small_cache, replications=2)
    assert batches.points[-1].batch_size == 12 * 16 // (1 + 20 + MAX_K + 8)
    assert batches.ranges[-1][1] == LARGEST


def test_a_fixed_k_pays_below_its_crossover_load_and_not_above(
    decoding: Experiment, batches: BatchTuning
) -> None:
    loads = Loads(decoding, 2)
    with Trials(workers=1) as trials:
        crossovers, _ = find_crossovers(LoadSeries.of(loads, batches), trials)
        crossover = crossovers[MAX_K - 1]
        assert crossover.pays == "below"
        assert crossover.load is not None
        for share, pays in ((0.8, True), (1.2, False)):
            load = share * crossover.load
            ks = (0, MAX_K)
            found = trials.measure({k: loads.trials(fixed_policy(k), load, 600) for k in ks})
            assert (found[MAX_K][0].e2e_latency < found[0][0].e2e_latency) == pays


def test_drafts_that_never_survive_never_pay(decoding: Experiment) -> None:
    proposer = {"method": "eagle3", "num_speculative_tokens": 1}
    hopeless = with_engine(decoding, speculative_config=proposer, max_num_seqs=4).replace(
        acceptance={"kind": "bernoulli", "alpha": 0.0}
    )
    loads = Loads(hopeless, 2)
    with Trials(workers=1) as trials:
        batches = tune_batches(loads, trials)
        crossovers, _ = find_crossovers(LoadSeries.of(loads, batches), trials)
    assert batches.ranges == ((1, 4, 0),)
    assert [crossover.pays for crossover in crossovers] == ["never"]


@pytest.fixture(scope="module")
def small() -> Experiment:
    return with_engine(Experiment.parse(tiny_config(), "small"), max_num_seqs=4)


@pytest.fixture(scope="module")
def tuning(small: Experiment) -> Tuning:
    return tune(small, max_k=1, replications=2)


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing(
    tuning: Tuning, small: Experiment, tmp_path: Path
) -> None:
    several = tune(small, max_k=1, replications=2, workers=2)
    for name, found in (("one", tuning), ("two", several)):
        found.save(tmp_path / name)
        for suffix in ("png", "svg", "pdf"):
            plot_tuning(found, tmp_path / name / f"plot.{suffix}", "small")
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two")
    )
    assert one == two


def test_the_emitted_json_is_an_experiments_speculative_config(
    tuning: Tuning, small: Experiment
) -> None:
    emitted = json.loads(json.dumps(tuning.speculative_config))
    engine = {**small.engine.model_dump(exclude_none=True), "speculative_config": emitted}
    policy = small.replace(engine=engine).effective_policy
    assert isinstance(policy, Schedule)
    assert policy.ranges == tuning.batches.ranges
    assert emitted["method"] == "eagle3"
    assert emitted["num_speculative_tokens"] == max(k for _, _, k in policy.ranges)
    assert (policy.ranges[0][0], policy.ranges[-1][1]) == (1, small.engine.max_num_seqs)


def test_fields_of_the_method_are_passed_on(tuning: Tuning) -> None:
    ngram = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    tuned = {"num_speculative_tokens": 8, "num_speculative_tokens_per_batch_size": [[1, 4, 8]]}
    given = with_engine(tuning.experiment, speculative_config={**ngram, **tuned})
    emitted = replace(tuning, experiment=given).speculative_config
    assert emitted == {**tuning.speculative_config, **ngram}


def test_switches_that_are_off_are_not_passed_on(tuning: Tuning) -> None:
    written = Experiment.parse(tuning.experiment.to_dict(), "experiment.yaml")
    found = replace(tuning, experiment=written)
    assert found.speculative_config == tuning.speculative_config
    assert False not in (found.recommended or {}).values()


@pytest.mark.parametrize(
    ("known", "own"),
    [
        ({"method": "eagle3", "model": "a/head"}, {"disable_mqa_scorer": False}),
        (
            {"method": "ngram", "prompt_lookup_max": 6, "prompt_lookup_min": 6},
            {"match_probability": 0.5},
        ),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": 2.0}, {"mean_match_len": 3.0}),
    ],
)
def test_fields_that_vllm_does_not_know_are_not_passed_on(
    known: dict[str, Any], own: dict[str, Any], tuning: Tuning
) -> None:
    fields = {**known, **own, "num_speculative_tokens": 3}
    found = replace(tuning, experiment=with_engine(tuning.experiment, speculative_config=fields))
    assert found.speculative_config == {**tuning.speculative_config, **known}
    assert found.recommended == {**(tuning.recommended or {}), **known}


def test_where_no_batch_gains_the_server_should_not_speculate(tuning: Tuning) -> None:
    nothing = replace(tuning, batches=replace(tuning.batches, ranges=((1, 4, 0),)))
    assert nothing.recommended is None
    assert "start the server without it" in tuning_verdict(nothing)[0]
    # Still a configuration that vLLM starts with.
    assert nothing.speculative_config["num_speculative_tokens"] == 1


def test_everything_is_kept_with_its_provenance(tuning: Tuning, small: Experiment) -> None:
    data = tuning.to_dict()
    assert (data["config_hash"], data["seeds"], data["max_k"]) == (small.hash, [0, 1], 1)
    assert "own" in {load["name"] for load in data["check"]["loads"]}
    assert [crossover["k"] for crossover in data["crossovers"]] == [1]
    json.dumps(data, allow_nan=False)


def text_of(tuning: Tuning) -> str:
    console = Console(width=200, file=StringIO(), record=True)
    console.print(*tuning_tables(tuning, "small"))
    return console.export_text()


def test_stages_of_a_pipeline_are_tuned_without_the_oracle(
    small: Experiment, constant_step: Callable[..., str], tuning: Tuning
) -> None:
    drafts = {"eagle3": {"token_us": 500}}
    profile = constant_step(delta_ms=4.0, stage_shares=[0.5, 0.5], drafts=drafts)
    found = tune(small.replace("a test", profile=profile), max_k=1, replications=2)
    assert found.check.oracle_over_best_fixed is None
    assert found.check.share_of_oracle is None
    data = found.to_dict()["check"]
    assert not any(data["synchronous"].values())
    assert all(load["synchronous_mean_e2el_ms"] == {} for load in data["loads"])
    assert all(load["speed_up_over_off"]["1"]["mean"] > 1 for load in data["loads"])
    assert "oracle" not in text_of(found)
    assert "oracle*" in text_of(tuning)


def test_a_pool_of_pipelines_is_tuned_without_the_oracle(
    small: Experiment, constant_step: Callable[..., str]
) -> None:
    staged = constant_step(
        delta_ms=4.0, stage_shares=[0.5, 0.5], drafts={"eagle3": {"token_us": 9}}
    )
    pools = small.replace("a test", pools={"prefill": {"profile": staged}, "decode": {}})
    assert tune(pools, max_k=1, replications=2).check.oracle_over_best_fixed is None


@pytest.mark.parametrize(
    ("load", "text"), [(0.01234, "0.0123"), (3.456, "3.46"), (345.6, "346"), (3456.0, "3,456")]
)
def test_loads_are_printed_with_three_significant_digits(
    load: float, text: str, tuning: Tuning
) -> None:
    own = next(each for each in tuning.check.loads if each.name == "own")
    crossover = Crossover(1, "below", load, load, None, 4000.0)
    found = replace(
        tuning, crossovers=[crossover], check=replace(tuning.check, loads=[replace(own, load=load)])
    )
    words = text_of(found).split()
    assert words.count(text) == 3  # the crossover, its lower end, and the load of the check
    assert "4,000" in words
    assert f"own load of {text} " in "\n".join(tuning_verdict(found))


def test_the_verdict_says_what_to_use(tuning: Tuning) -> None:
    text = "\n".join(tuning_verdict(tuning))
    assert f"schedule:  {json.dumps(tuning.speculative_config)}" in text
    assert f"use:       {json.dumps(tuning.recommended)}" in text
    beaten = tuning.recommended == tuning.speculative_config
    assert ("does not beat" in text) == (not beaten)


@pytest.mark.parametrize(
    ("low", "mean", "high", "is_recommended"),
    [(0.99, 1.02, 1.05, False), (1.0005, 1.001, 1.0015, False), (1.01, 1.02, 1.03, True)],
)
def test_a_schedule_must_gain_what_one_would_notice(
    low: float, mean: float, high: float, is_recommended: bool, tuning: Tuning
) -> None:
    gain = replace(tuning.check.over_best_fixed, low=low, mean=mean, high=high)
    check = replace(tuning.check, best_fixed=1, over_best_fixed=gain)
    batches = replace(tuning.batches, ranges=((1, 1, 1), (2, 2, 0)))
    found = replace(tuning, check=check, batches=batches)
    given = {name for name in found.recommended or {} if name.endswith("per_batch_size")}
    assert bool(given) == is_recommended
    assert any("by 0.5 % beyond" in line for line in tuning_verdict(found)) != is_recommended


def replay(**changes: Any) -> Loads:
    arrivals = {"kind": "trace", "path": "traces/chat.parquet", **changes}
    return Loads(Experiment.parse(tiny_config(workload={"arrivals": arrivals}), "replay"), 2)


def test_a_trace_is_replayed_in_slices_at_any_rate() -> None:
    loads = replay(time_scale=0.5)
    assert loads.own == pytest.approx(2 * 19_939 / 3600, rel=0.01)
    first, second = (trial.requests() for trial in loads.trials(Off(), 4.0, 200))
    assert first is not None
    assert second is not None
    assert [r.prompt_len for r in first] != [r.prompt_len for r in second]
    for requests in (first, second):
        assert [r.index for r in requests] == list(range(200))
        assert requests[-1].arrived_at == pytest.approx(199 / 4.0)


def test_recorded_rows_begin_again_after_the_last() -> None:
    loads = replay(window=(0, 60))
    rows = len(loads.sample)
    requests = loads.closed_trials(Off(), 8, rows + 3)[0].requests()
    assert requests is not None
    assert [r.prompt_len for r in requests[rows:]] == [r.prompt_len for r in requests[:3]]


def test_the_load_of_a_closed_loop_is_its_clients(tiny: Callable[..., Experiment]) -> None:
    arrivals = {"kind": "closed_loop", "concurrency": 4, "think_time": 0.1}
    loads = Loads(tiny(workload={**tiny().workload.model_dump(), "arrivals": arrivals}), 1)
    assert (loads.own, loads.unit, loads.possible(2.6)) == (4.0, "clients", 3.0)
    (trial,) = loads.trials(Off(), 3.0, 50)
    assert trial.experiment.workload.arrivals == ClosedLoop(concurrency=3, think_time=0.1)


def test_more_clients_than_fit_are_no_overload(
    tiny: Callable[..., Experiment], batches: BatchTuning
) -> None:
    arrivals = {"kind": "closed_loop", "concurrency": 2 * LARGEST}
    loads = Loads(tiny(workload={**tiny().workload.model_dump(), "arrivals": arrivals}), 1)
    series = LoadSeries.of(loads, batches)
    assert series.capacity == loads.own
    assert series.count(loads.own) > 2 * loads.own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {}}, "engine.speculative_config is missing"),
        ({"acceptance": None}, "acceptance"),
        ({"workload": {**tiny_config()["workload"], "arrivals": {"kind": "burst"}}},
         "'burst' has no rate"),
        ({"workload": {**tiny_config()["workload"],
                       "arrivals": {"kind": "piecewise", "segments": [[10, 1]]}}},
         "'piecewise' has no rate"),
    ],
)  # fmt: skip
def test_what_cannot_be_tuned_is_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(Experiment.parse({**tiny_config(), "policy": {"kind": "off"}, **changes}, "bad"))


def test_one_replication_has_no_intervals(small: Experiment) -> None:
    with pytest.raises(ConfigError, match="replications = 1 must be at least 2"):
        tune(small, replications=1)


@pytest.mark.parametrize("field", ["acceptance", "workload.lengths"])
def test_a_load_is_not_looked_for_while_requests_change(field: str) -> None:
    config = tiny_config()
    one = config["acceptance"] if field == "acceptance" else config["workload"]["lengths"]
    at = {"at_request": 9} if field == "acceptance" else {"at": 0.5}
    shift = {"kind": "shift", "before": one, "after": one, **at}
    if field == "acceptance":
        config["acceptance"] = {"kind": "per_drafter", "models": {"eagle3": shift}}
    else:
        config["workload"]["lengths"] = shift
    with pytest.raises(ConfigError, match=f"{field}: a load cannot be looked for while req"):
        Loads(Experiment.parse(config, "changing"), 1)


def test_a_load_is_not_looked_for_while_replicas_fail() -> None:
    incidents = [{"kind": "failure", "replica": 1, "at": 1.0, "until": 2.0}]
    with pytest.raises(ConfigError, match="incidents: a load cannot be looked for"):
        Loads(Experiment.parse(tiny_config(replicas=2, incidents=incidents), "failing"), 1)


_THREE = {"prefill": {"replicas": 2}, "decode": {"replicas": 3}}


@pytest.mark.parametrize("kind", ["ranks", "pools"])
def test_a_batch_is_that_of_one_scheduler_and_a_load_that_of_all(
    decoding: Experiment, kind: str
) -> None:
    alone = with_engine(decoding, max_num_seqs=4)
    shared = alone.replace(pools=_THREE) if kind == "pools" else None
    shared = shared or with_engine(alone, data_parallel_size=3)
    one, many = tuned_batches(alone, 2), tuned_batches(shared, 2)
    for its, ours in zip(one.points, many.points, strict=True):
        assert ours.mean_batch_size == pytest.approx(its.mean_batch_size, rel=0.1)
        assert ours.requests_per_second(1) == pytest.approx(3 * its.requests_per_second(1), rel=0.1)
    capacities = [
        LoadSeries.of(Loads(experiment, 2), found).capacity
        for experiment, found in ((alone, one), (shared, many))
    ]
    assert capacities[1] == pytest.approx(3 * capacities[0], rel=0.1)


def test_a_batch_of_a_pipeline_is_that_of_one_stage(
    decoding: Experiment, constant_step: Callable[..., str]
) -> None:
    latency = {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": 0.5}
    drafts = {"eagle3": {"basis": "draft", "latency": latency}}
    profile = constant_step(delta_ms=4.0, stage_shares=[0.5, 0.5], drafts=drafts)
    staged = with_engine(decoding, max_num_seqs=12, async_scheduling=None)
    # Answers of one length end together, and so would be in one step together.
    lengths = {"kind": "uniform", "prompt": [1, 1], "output": [10, 70]}
    workload = {**staged.to_dict()["workload"], "lengths": lengths}
    batches = tuned_batches(staged.replace(profile=profile, workload=workload), 2)
    assert [point.batch_size for point in batches.points] == [1, 2, 4, 6]
    assert batches.ranges[-1][1] == 12
    for point in batches.points:
        assert point.mean_batch_size == pytest.approx(point.batch_size, rel=0.15)


def test_a_size_that_more_clients_do_not_bring_about_is_not_tuned_for() -> None:
    long_prompts = {"kind": "constant", "prompt": 900, "output": 12}
    experiment = Experiment.parse(
        tiny_config(
            workload={**tiny_config()["workload"], "lengths": long_prompts},
            pools={"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
        ),
        "full prefill pool",
    )
    batches = tuned_batches(experiment, 2)
    assert batches.beyond
    largest = batches.points[-1].batch_size
    assert all(first <= largest for first, _, _ in batches.ranges)
    assert batches.ranges[-1][1] == batches.max_num_seqs


@pytest.mark.slow
def test_a_load_that_a_full_prefill_pool_keeps_every_k_from_is_not_counted() -> None:
    engine = {**tiny_config()["engine"]}
    engine["speculative_config"] = {"method": "eagle3", "num_speculative_tokens": 1}
    pools = {"prefill": {"replicas": 1}, "decode": {"replicas": 1},
             "transfer": {"bandwidth_gb_s": 50, "latency_ms": 1}}  # fmt: skip
    workload = {
        "arrivals": {"kind": "poisson", "rate": 80.0},
        "lengths": {"kind": "constant", "prompt": 900, "output": 12},
        "num_requests": 60,
    }
    config = tiny_config(workload=workload, engine=engine, pools=pools)
    check = tune(Experiment.parse(config, "pools"), max_k=1, replications=2).check
    overloaded = [load for load in check.loads if {*load.stabilities} == {"overloaded"}]
    assert [load.is_saturated for load in overloaded] == [True]
    kept = [load for load in check.loads if not load.is_saturated]
    means = [np.mean([[m.e2e_latency for m in g] for g in load.fixed], axis=1) for load in kept]
    assert check.best_fixed == int(np.log(means).mean(axis=0).argmin())
