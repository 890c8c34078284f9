"""Invariants and limits, over random small engines and workloads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import tiny_config
from deliveries import every_delivery, of_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import engines, workloads

from specsim.core.errors import InvariantError
from specsim.core.request import Request
from specsim.engine.cluster import Cluster
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

PROFILE = {
    "drafts": {
        method: {"latency": {"kind": "linear", "alpha_ns": 1, "gamma_us": 1, "delta_ms": 1}}
        for method in ("eagle3", "ngram", "draft_model", "mtp", "suffix")
    }
}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("profiles") / "all-methods.yaml"
    target = {"kind": "linear", "alpha_ns": 40, "gamma_us": 20, "delta_ms": 5}
    provenance = {"engine": "none", "source": "a test", "date": "2026-01-01"}
    limits = {"context_tokens": 10**6, "batched_tokens": 10**6}
    head = {"model": "llama-3.1-8b", "gpu": "h100", "provenance": provenance}
    path.write_text(yaml.safe_dump({**head, "target": target, "valid_range": limits, **PROFILE}))
    return str(path)


@settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    engine=engines(), workload=workloads(), alpha=st.sampled_from([0.0, 0.5, 1.0]), data=st.data()
)
def test_every_run_keeps_every_invariant(
    profile: str,
    engine: dict[str, Any],
    workload: dict[str, Any],
    alpha: float,
    data: st.DataObject,
) -> None:
    config = tiny_config(engine=engine, workload=workload, profile=profile)
    config["acceptance"] = {"kind": "bernoulli", "alpha": alpha}
    if "speculative_config" in engine:
        policies = ["static", "schedule:ranges=[[1,3,4],[4,99,1]]", "oracle", "off"]
        config["policy"] = data.draw(st.sampled_from(policies))
    config["replicas"] = data.draw(st.integers(1, 2))
    experiment = Experiment.parse(config, "random")
    # raises on any contradiction, Little's law included
    run = simulate(experiment, check=True, keeps_deliveries=True)
    tables = Summary(run).tables
    rows = tables.requests
    assert rows["output_len"].tolist() == [
        min(r.output_len, engine["max_model_len"] - r.prompt_len) for r in run.requests
    ]
    assert (rows["arrived_at"] <= rows["scheduled_at"]).all()
    assert (rows["scheduled_at"] < rows["first_token_at"]).all()
    assert (rows["first_token_at"] <= rows["ended_at"]).all()
    assert tables.steps["output_tokens"].sum() == rows["output_len"].sum()
    assert_gaps_are_those_between_deliveries(run)
    totals = tables.totals
    for name in ("deliveries", "output_tokens", "num_requests"):
        assert totals[name] == tables.steps[name].sum()
    assert totals["steps"] == len(tables.steps)
    assert totals["deliveries"] == rows["deliveries"].sum()
    for name in ("target_time", "draft_time", "overhead_time"):
        assert totals[name] == pytest.approx(tables.steps[name].sum())
    seconds = np.floor(tables.steps["ended_at"] - rows["arrived_at"].min()).astype(int)
    counts = np.bincount(seconds, weights=tables.steps["output_tokens"])
    found = np.zeros(len(counts))
    np.add.at(found, tables.seconds["second"], tables.seconds["tokens"])
    assert np.array_equal(found, counts)


def assert_gaps_are_those_between_deliveries(run: Run) -> None:
    tables, packed = Summary(run).tables, every_delivery(run)
    assert (tables.gaps["value"] >= 0).all()
    spelt_out = np.repeat(tables.gaps, tables.gaps["count"])[["value", "tokens"]]
    is_later = np.ones(len(packed.at), dtype=bool)
    is_later[packed.starts[:-1]] = False
    expected = np.empty(is_later.sum(), dtype=spelt_out.dtype)
    expected["value"] = np.diff(packed.at, prepend=0.0)[is_later]
    expected["tokens"] = packed.lens[is_later]
    assert sorted(spelt_out.tolist()) == sorted(expected.tolist())
    sums = [int(lens.sum()) for lens in np.split(packed.lens.astype(int), packed.starts[1:-1])]
    assert sums == tables.requests["output_len"].tolist()
    drafts = np.bincount(packed.drafted[packed.drafted > 0], minlength=len(tables.outcomes))
    assert tables.outcomes.sum(axis=1).tolist() == drafts.tolist()


def run_once(tiny: Callable[..., Experiment], **changes: Any) -> Summary:
    return Summary(simulate(tiny(**changes)))


def test_same_seed_same_numbers_other_seed_others(tiny: Callable[..., Experiment]) -> None:
    first, second, other = (run_once(tiny, seed=seed) for seed in (1, 1, 2))
    assert first.data == second.data
    assert first.data["mean_e2el_ms"] != other.data["mean_e2el_ms"]


def test_luck_does_not_depend_on_the_policy(tiny: Callable[..., Experiment]) -> None:
    # With drafts of length 1 and 3 the first draft token at a position meets the same luck.
    one, three = (
        of_request(simulate(tiny(policy={"kind": "static", "k": k}), keeps_deliveries=True), 3)
        for k in (1, 3)
    )
    assert (one.accepted[one.drafted == 1] <= 1).all()
    assert one.accepted[1] == min(1, three.accepted[1])  # both made when one token was known


def test_alpha_0_with_free_drafts_and_free_verification_equals_no_speculation(
    constant_step: Callable[..., str], tiny: Callable[..., Experiment]
) -> None:
    profile = constant_step(delta_ms=8, drafts={"eagle3": {"target_share": 0.0}})
    acceptance = {"kind": "bernoulli", "alpha": 0.0}
    # A budget that never binds: rejected drafts would otherwise crowd out prefills.
    engine = {**tiny_config()["engine"], "max_num_batched_tokens": 4096, "num_gpu_blocks": 4000}
    common = {"profile": profile, "acceptance": acceptance, "engine": engine}
    off = run_once(tiny, policy={"kind": "off"}, **common).tables.requests
    static = run_once(tiny, policy={"kind": "static", "k": 3}, **common).tables.requests
    assert np.array_equal(off["ended_at"], static["ended_at"])


@pytest.mark.parametrize("k", [1, 3, 5])
def test_alpha_1_emits_n_decode_tokens_in_the_fewest_steps(
    k: int, constant_step: Callable[..., str], tiny: Callable[..., Experiment]
) -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": k}
    experiment = tiny(
        profile=constant_step(delta_ms=8, drafts={"eagle3": {}}),
        acceptance={"kind": "bernoulli", "alpha": 1.0},
        engine={**tiny_config()["engine"], "speculative_config": spec, "async_scheduling": False},
    )
    requests = [Request(index=0, prompt_len=10, output_len=41)]
    steps = simulate(experiment, requests=requests).replicas[0].steps
    assert len(steps) == 1 + -(-40 // (k + 1))


def test_all_times_doubled_double_every_latency(
    constant_step: Callable[..., str], tiny: Callable[..., Experiment]
) -> None:
    def run(scale: float) -> np.ndarray:
        profile = constant_step(
            delta_ms=8 * scale,
            gamma_us=16 * scale,
            drafts={
                "eagle3": {
                    "latency": {
                        "kind": "linear",
                        "alpha_ns": 0,
                        "gamma_us": 4 * scale,
                        "delta_ms": scale,
                    }
                }
            },
        )
        requests = [
            Request(index=i, arrived_at=i * 0.0625 * scale, prompt_len=50 + i, output_len=20)
            for i in range(20)
        ]
        rows = Summary(simulate(tiny(profile=profile), requests=requests)).tables.requests
        return rows["ended_at"] - rows["arrived_at"]

    assert np.array_equal(run(2.0), 2.0 * run(1.0))


def test_with_one_slot_a_faster_gpu_delays_no_request(
    constant_step: Callable[..., str], tiny: Callable[..., Experiment]
) -> None:
    engine = {**tiny_config()["engine"], "max_num_seqs": 1}
    ends = [
        run_once(
            tiny, profile=constant_step(delta_ms=delta), engine=engine, policy={"kind": "off"}
        ).tables.requests["ended_at"]
        for delta in (8.0, 6.0)
    ]
    assert (ends[1] <= ends[0]).all()


def test_replicas_share_the_load_and_lose_nothing(tiny: Callable[..., Experiment]) -> None:
    rows = run_once(tiny, replicas=3).tables.requests
    assert np.bincount(rows["replica"]).tolist() == [10, 10, 10]


def test_an_engine_that_stands_still_while_work_waits_is_noticed(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(cluster: Cluster, request: Request) -> None:
        for replica in cluster.up:
            if replica.next_at == float("inf"):
                replica.now = cluster.clock.now + 0.01
        submit(cluster, request)

    experiment, submit = tiny(replicas=2, routing="least_outstanding"), Cluster.submit
    monkeypatch.setattr(Cluster, "submit", late)
    simulate(experiment)
    with pytest.raises(InvariantError, match="the engine stood still from"):
        simulate(experiment, check=True)
