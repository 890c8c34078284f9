"""Data-parallel ranks of a mixture of experts: every pass is made by all, and waits for all."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import tiny_config

from specsim.core.errors import ConfigError, PluginError, ProfileError, SpecsimError
from specsim.core.request import Request
from specsim.core.step import BatchView, StepLoad
from specsim.engine.cluster import Cluster
from specsim.latency import LatencyModel
from specsim.latency.composed import Composed
from specsim.policies import Policy
from specsim.profile import load_profile
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

MOE = {"model": "qwen3-30b-a3b", "gpu": "h200"}
COLUMNS = ("arrived_at", "scheduled_at", "first_token_at", "ended_at", "deliveries")


@pytest.fixture
def run(constant_step: Callable[..., str]) -> Callable[..., Run]:
    """Run requests (arrival, prompt, output), in turn on ranks; 10 ms a step and 1 ms a token."""

    def start(
        rows: list[tuple[float, int, int]],
        *,
        of: dict[str, Any] = MOE,
        policy: Any = None,
        **engine: Any,
    ) -> Run:
        experiment = tiny_config(
            engine={
                "num_gpu_blocks": 1000, "max_model_len": 1024, "max_num_batched_tokens": 256,
                "max_num_seqs": 8, "async_scheduling": False, "enable_prefix_caching": False,
                "data_parallel_size": 2, **engine,
            },
            profile=constant_step(delta_ms=10, gamma_us=1000, **of),
            routing={"kind": "round_robin"}, policy=policy,
        )  # fmt: skip
        requests = [
            Request(index=index, arrived_at=at, prompt_len=prompt, output_len=output)
            for index, (at, prompt, output) in enumerate(rows)
        ]
        return simulate(Experiment.parse(experiment, "ranks"), requests=requests, check=True)

    return start


def ends(run: Run) -> list[float]:
    found: list[float] = Summary(run).tables.requests["ended_at"].tolist()
    return found


def test_a_long_prefill_delays_the_other_rank(run: Callable[..., Run]) -> None:
    """By hand: a pass of 4 and 40 tokens, one of 1 and 1, one of 1 and a dummy."""
    rows = [(0.0, 4, 3), (0.0, 40, 2)]
    first = Summary(run(rows)).tables.requests
    assert first["first_token_at"].tolist() == pytest.approx([0.050, 0.050])
    assert first["ended_at"].tolist() == pytest.approx([0.072, 0.061])
    assert ends(run(rows, of={})) == pytest.approx([0.036, 0.061])  # a dense model: uncoupled


def test_who_comes_to_an_idle_rank_waits_for_its_dummy_pass(run: Callable[..., Run]) -> None:
    """By hand: at 5 ms the rank has gone into the pass that begins at 20 ms, so it joins at 31."""
    found = Summary(run([(0.0, 10, 5), (0.005, 40, 1)])).tables.requests
    assert found["scheduled_at"].tolist() == pytest.approx([0.0, 0.020])
    assert found["ended_at"].tolist() == pytest.approx([0.103, 0.081])


def test_all_ranks_wait_together_when_there_is_nothing_to_do(run: Callable[..., Run]) -> None:
    """By hand: the second request meets a server at rest, on the other rank."""
    assert ends(run([(0.0, 10, 1), (1.0, 10, 1)])) == pytest.approx([0.020, 1.020])


def test_a_server_that_never_drafts_makes_dummy_passes_of_one_token(
    run: Callable[..., Run],
) -> None:
    """Whatever it is told of a drafter that nobody starts: policy off."""
    rows = [(0.0, 4, 8)]
    drafter = {"method": "eagle3", "num_speculative_tokens": 5}
    assert ends(run(rows, speculative_config=drafter, policy="off")) == ends(run(rows))


def test_two_steps_in_flight_begin_and_end_together(run: Callable[..., Run]) -> None:
    """No two different passes of the GPUs overlap, whoever takes part in them."""
    rng = np.random.default_rng(3)
    at = np.sort(rng.uniform(0, 3, 60))
    rows = [(float(t), int(rng.integers(1, 300)), int(rng.integers(1, 30))) for t in at]
    done = run(rows, async_scheduling=True, data_parallel_size=3)
    steps = Summary(done).tables.steps
    real = steps["batched_tokens"] > 0
    passes = sorted(set(zip(steps["started_at"][real], steps["ended_at"][real], strict=True)))
    assert len(passes) < int(real.sum())
    assert all(one[1] <= other[0] + 1e-12 for one, other in pairwise(passes))
    tables = Summary(done).tables.requests
    assert tables["output_len"].tolist() == [row[2] for row in rows]
    assert set(tables["replica"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("version", ["0.28", "0.33"])
def test_ranks_read_prompts_in_the_same_passes(run: Callable[..., Run], version: str) -> None:
    """By hand: both decode from 20 ms on, in passes of 11 ms; the fifth pass reads what came."""
    rows = [(0.0, 10, 10), (0.0, 10, 10), (0.025, 20, 1), (0.026, 30, 1)]
    done = run(rows, prefill_schedule_interval=4, vllm_version=version)
    found = Summary(done).tables.requests
    assert found["scheduled_at"].tolist() == pytest.approx([0.0, 0.0, 0.053, 0.053])
    assert found["ended_at"].tolist()[2:] == pytest.approx([0.094, 0.094])
    each_step = Summary(run(rows)).tables.requests["scheduled_at"].tolist()
    assert each_step == pytest.approx([0.0, 0.0, 0.031, 0.031])


def test_a_rank_where_nobody_decodes_reads_prompts_at_once(run: Callable[..., Run]) -> None:
    rows = [(0.0, 10, 10), (0.025, 20, 1)]
    found = Summary(run(rows, prefill_schedule_interval=9)).tables.requests
    assert found["scheduled_at"].tolist() == pytest.approx([0.0, 0.031])


def test_passes_are_counted_anew_behind_a_rest(run: Callable[..., Run]) -> None:
    """By hand: four passes, then a rest; of those behind it the first and the fourth read."""
    rows = [(0.0, 10, 4), (0.0, 10, 4)]
    again = [(1.0 + at, prompt, output) for at, prompt, output in [*rows, (0.025, 20, 1)]]
    found = Summary(run([*rows, *again], prefill_schedule_interval=3)).tables.requests
    assert found["scheduled_at"].tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0, 1.042])


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("arrivals", [{"kind": "poisson", "rate": 40.0}, {"kind": "closed_loop"}])
def test_nothing_is_lost_with_drafts_or_clients_who_wait(
    constant_step: Callable[..., str], arrivals: dict[str, Any], *, is_async: bool
) -> None:
    if arrivals["kind"] == "closed_loop":
        arrivals = {**arrivals, "concurrency": 5}
    config = tiny_config(
        profile=constant_step(delta_ms=10, gamma_us=100, drafts={"eagle3": {"step_ms": 1}}, **MOE)
    )
    config["workload"]["arrivals"] = arrivals
    config["engine"] |= {"data_parallel_size": 2, "async_scheduling": is_async}
    experiment = Experiment.parse(config, "ranks")
    assert experiment.routing.kind == "vllm_ranks"
    found = [Summary(simulate(experiment, check=True)).tables.requests for _ in range(2)]
    assert (found[0]["ended_at"] > found[0]["arrived_at"]).all()
    assert len(found[0]["ended_at"]) == config["workload"]["num_requests"]
    assert all((found[0][name] == found[1][name]).all() for name in COLUMNS)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("think_time", [0.0, 0.05, 3.0])
def test_ranks_that_run_ahead_do_what_they_do_event_by_event(
    constant_step: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    think_time: float,
    *,
    is_async: bool,
) -> None:
    drafts = {"eagle3": {"step_ms": 1}}
    config = tiny_config(profile=constant_step(delta_ms=10, gamma_us=100, drafts=drafts, **MOE))
    arrivals = {"kind": "closed_loop", "concurrency": 7, "think_time": think_time}
    config["workload"] |= {"arrivals": arrivals, "num_requests": 60}
    config["engine"] |= {"data_parallel_size": 3, "async_scheduling": is_async}
    experiment = Experiment.parse(config, "ranks")
    ahead = Summary(simulate(experiment)).tables
    monkeypatch.setattr(Cluster, "is_alone", False)
    in_turn = Summary(simulate(experiment)).tables
    for name in COLUMNS:
        assert ahead.requests[name].tobytes() == in_turn.requests[name].tobytes()
    for name in ("started_at", "ended_at", "target_time", "batched_tokens"):
        assert ahead.steps[name].tobytes() == in_turn.steps[name].tobytes()


@pytest.mark.parametrize("is_async", [False, True])
def test_one_rank_is_a_replica_to_the_byte(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, *, is_async: bool
) -> None:
    rows = [(0.01 * n, 5 + 7 * n % 90, 1 + 5 * n % 23) for n in range(40)]
    fields = {"data_parallel_size": 1, "async_scheduling": is_async}
    plain = Summary(run(rows, **fields)).tables
    monkeypatch.setattr(Deployment, "is_lock_step", property(lambda _: True))
    alone = Summary(run(rows, **fields)).tables
    for name in COLUMNS:
        assert plain.requests[name].tobytes() == alone.requests[name].tobytes()
    for name in ("started_at", "ended_at", "target_time", "batched_tokens"):
        assert plain.steps[name].tobytes() == alone.steps[name].tobytes()


@pytest.mark.parametrize("drafts", [None, {"method": "ngram", "num_speculative_tokens": 3}])
def test_each_rank_charges_for_itself_what_all_would_be_charged_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, drafts: dict[str, Any] | None
) -> None:
    fields = load_profile("h100/qwen3-30b-a3b").model_dump(mode="json", exclude_none=True)
    shared = {"at": [1, 1000], "times_us": [10.0, 5000.0]}
    fields["target"] |= {"data_parallel_size": 3, "shared": shared}
    fields["target"] |= {"capture_sizes": [8, 16], "eager_at_least_us": 0.0}
    (tmp_path / "ranks.yaml").write_text(yaml.safe_dump(fields))
    config = tiny_config(profile=str(tmp_path / "ranks.yaml"))
    config["engine"] |= {"data_parallel_size": 3, "max_model_len": 8192, "num_gpu_blocks": None}
    config["engine"]["speculative_config"] = drafts
    config["policy"] = {"kind": "static", "k": 3} if drafts else {"kind": "off"}
    experiment = Experiment.parse(config, "ranks")
    alone = Summary(simulate(experiment)).tables.steps
    monkeypatch.setattr(LatencyModel, "waits_for_slowest", False)
    together = Summary(simulate(experiment)).tables.steps
    for name in ("started_at", "ended_at", "target_time", "overhead_time"):
        assert alone[name].tobytes() == together[name].tobytes()
    monkeypatch.setattr(Composed, "time_of_ranks", LatencyModel.time_of_ranks)
    padded = Summary(simulate(experiment)).tables.steps  # some passes are beyond CUDA graphs
    assert padded["target_time"].tobytes() != alone["target_time"].tobytes()


@pytest.mark.parametrize("name", ["read_factor", "expert_factor", "compute_factor", "none"])
@pytest.mark.parametrize("tokens", [(300, 20), (300, 300), (1, 200, 999)])
def test_factors_change_what_ranks_share_as_they_change_a_pass(
    name: str, tokens: tuple[int, ...]
) -> None:
    """Where all that depends on tokens is shared, ranks take what each would with the mean."""
    axis, read, compute = np.array([1, 100, 1000]), [50.0, 800.0, 1400.0], [5.0, 60.0, 700.0]
    rises = {"at": axis, "times_us": np.array(read) - read[0] + compute}
    nothing = {"at": [1, 9], "times_us": [0, 0]}
    attention = {"num_layers": 1, "context_tokens": [1, 9], "sequences": [1, 9], "prompt": nothing}
    model = Composed.model_validate(
        {"batched_tokens": axis.tolist(), "read_us": read, "compute_us": compute, "head": nothing}
        | {"attention": [attention | {"decode_us": [[0, 0]] * 2}], "capture_sizes": []}
        | {"shared": {key: values.tolist() for key, values in rises.items()}}
        | ({} if name == "none" else {name: 1.7})
    )
    times = [pass_time(model, each) for each in tokens]
    assert model.time_of_ranks(times, tokens) == pytest.approx(
        pass_time(model, sum(tokens) / len(tokens)), rel=1e-9
    )


def pass_time(model: Composed, tokens: float) -> float:
    """Return what a pass without attention takes, also with a part of a token."""
    whole = int(tokens)
    ends = [model.forward_time(StepLoad(0, each, each)) for each in (whole, whole + 1)]
    return float(np.interp(tokens, [whole, whole + 1], ends))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"replicas": 2}, ConfigError, "several servers of several ranks"),
        ({"incidents": [{"kind": "slowdown", "replica": 0, "at": 1.0, "factor": 2.0}]},
         ConfigError, "without one of its ranks"),
        ({"engine": {"data_parallel_size": 2, "scheduler": "prefill_first"}},
         ConfigError, "prefill_first .vLLM V0. has no ranks"),
        ({"engine": {"data_parallel_size": 0}}, ConfigError, "data_parallel_size"),
        ({"engine": {"data_parallel_size": 2, "prefill_schedule_interval": 4,
                     "vllm_version": "0.32"}, "of": {}},
         ConfigError, "vLLM 0.32 has it for ranks that share experts alone"),
        ({"engine": {"enable_expert_parallel": True}}, ProfileError, "latency model 'linear'"),
        ({"engine": {"enable_expert_parallel": True}, "of": {}}, ProfileError, "has no experts"),
    ],
)  # fmt: skip
def test_what_is_not_simulated_is_refused_in_one_line(
    constant_step: Callable[..., str],
    changes: dict[str, Any],
    error: type[SpecsimError],
    message: str,
) -> None:
    changes = {"engine": {"data_parallel_size": 2}, **changes}
    profile = constant_step(delta_ms=10, **changes.pop("of", MOE))
    config = tiny_config(**{**changes, "profile": profile, "acceptance": None})
    with pytest.raises(error, match=message) as caught:
        Deployment.of(Experiment.parse(config, "bad"))
    assert len(str(caught.value).splitlines()) == 1


class Raises(Policy):
    """Ends the run after a while."""

    kind: str = "raises"

    def draft_lens(self, batch: BatchView, memory: Any) -> int:
        if batch.now > 0.05:
            raise ValueError("no more")
        return 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_policy_raises_is_heard_from_within_the_loops_of_ranks(
    ranks: int, constant_step: Callable[..., str]
) -> None:
    config = tiny_config(
        engine={"data_parallel_size": ranks, "async_scheduling": False,
                "speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}},
        acceptance={"kind": "bernoulli", "alpha": 0.5}, routing={"kind": "round_robin"},
        profile=constant_step(delta_ms=10, drafts={"draft_model": {"step_ms": 0.5}}, **MOE),
    )  # fmt: skip
    experiment = Experiment.parse(config, "ranks").model_copy(update={"policy": Raises()})
    with pytest.raises(PluginError, match=r"Raises 'raises': ValueError: no more \(.*draft_lens"):
        simulate(experiment)
