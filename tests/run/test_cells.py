"""Replicas that have nothing to do with each other, run apart: nobody can tell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import yaml
from conftest import Run as Cli

from specsim.core.errors import PluginError
from specsim.core.processes import LocalProcesses
from specsim.core.request import Request
from specsim.routing.simple import RandomRouter, RoundRobin
from specsim.run.cells import why_whole
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

BASE = {
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 90.0},
        "lengths": {"kind": "uniform", "prompt": [20, 400], "output": [1, 60]},
        "num_requests": 400,
    },
    "engine": {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "num_gpu_blocks": 400,
        "max_model_len": 1024,
        "speculative_config": {"method": "eagle3", "num_speculative_tokens": 4},
    },
    "acceptance": {"kind": "beta", "a": 4.0, "b": 2.0},
    "policy": {"kind": "static", "k": 3},
    "profile": "h100/llama-3.1-8b",
    "replicas": 3,
}


class InTurnLooking(RoundRobin):
    """As the other, but it might look at replicas, so that all are kept on one clock."""

    kind: Literal["in_turn_looking"] = "in_turn_looking"
    looks_at_replicas = True


class AnyLooking(RandomRouter):
    """Likewise."""

    kind: Literal["any_looking"] = "any_looking"
    looks_at_replicas = True


class Liar(RoundRobin):
    """Looks at replicas, and says that it does not."""

    kind: Literal["liar"] = "liar"

    def choose(self, prompt, replicas, memory):
        return replicas[0].num_running


def experiment(**changes: object) -> Experiment:
    return Experiment.parse({**BASE, **changes}, "test")


def assert_same(one: Run, two: Run) -> None:
    first, second = Summary(one), Summary(two)
    # By bytes, for a statistic may be no number.
    for name in ("requests", "seconds", "outcomes", "steps", "step_replicas", "gaps"):
        left, right = getattr(first.tables, name), getattr(second.tables, name)
        assert left.tobytes() == right.tobytes(), name
    assert first.tables.totals.tobytes() == second.tables.totals.tobytes()
    if one.deliveries is None:
        assert two.deliveries is None
        return
    counts = first.tables.requests["deliveries"]
    for name in ("at", "lens", "drafted", "accepted"):
        columns = (each.deliveries.column(name, counts) for each in (one, two))
        np.testing.assert_array_equal(*columns)


@pytest.mark.parametrize("policy", ["off", "static", "goodput", "draft_goodput"])
@pytest.mark.parametrize(
    ("apart", "together"), [(RoundRobin, InTurnLooking), (RandomRouter, AnyLooking)]
)
def test_as_on_one_clock(policy: str, apart, together) -> None:
    kind = {"kind": "static", "k": 3} if policy == "static" else {"kind": policy}
    runs = [
        simulate(experiment(policy=kind).replace(routing=router()), keeps_deliveries=True)
        for router in (apart, together)
    ]
    assert_same(*runs)
    assert Summary(runs[0]).tables.requests["replica"].max() == 2


def test_requests_that_are_given_and_requests_that_are_drawn_are_the_same() -> None:
    drawn = simulate(experiment())
    given = simulate(experiment(), requests=list(drawn.requests))
    assert_same(drawn, given)
    assert isinstance(drawn.requests[5], Request)
    assert [each.index for each in drawn.requests[5:7]] == [5, 6]


@pytest.mark.slow
def test_cells_and_processes_do_not_show() -> None:
    lengths = {"kind": "constant", "prompt": 16, "output": 3}
    arrivals = {"kind": "poisson", "rate": 3000.0}
    workload = {"arrivals": arrivals, "lengths": lengths, "num_requests": 45_000}
    many = experiment(workload=workload, replicas=7)
    told: list[int] = []
    whole = simulate(many.replace(routing=InTurnLooking()), keeps_deliveries=True)
    assert_same(whole, simulate(many, keeps_deliveries=True))
    spread = simulate(
        many, keeps_deliveries=True, backend=LocalProcesses(2), on_progress=told.append
    )
    assert_same(whole, spread)
    assert told == sorted(told)
    assert told[-1] == 45_000
    assert len(told) == 7  # cells


FLY = {"kind": "fly", "alpha": 0.7, "unsure": 0.5, "window": 1}


@pytest.mark.slow
def test_confidences_that_are_counted_in_a_run_are_not_counted_in_its_cells() -> None:
    """They were, so that an incident without effect changed nearly all of 10,400 latencies."""
    lengths = {"kind": "constant", "prompt": 3, "output": 2}
    workload = {"arrivals": "burst", "lengths": lengths, "num_requests": 10_400}
    engine = {**BASE["engine"], "max_num_seqs": 256, "async_scheduling": False}
    config = {"workload": workload, "engine": engine, "acceptance": FLY, "policy": "confidence"}
    no_effect = {"kind": "slowdown", "factor": 1.0, "replica": 0, "at": 1e6, "until": 2e6}
    many = experiment(**config, replicas=2)
    assert_same(simulate(many), simulate(many.replace(incidents=[no_effect])))


@pytest.mark.parametrize(
    ("acceptance", "is_one_clock"),
    [
        (FLY, True),
        ({"kind": "shift", "at_request": 9, "before": BASE["acceptance"], "after": FLY}, True),
        ({**BASE["acceptance"]}, False),
        (
            {
                "kind": "shift",
                "at_request": 9,
                **dict.fromkeys(("before", "after"), BASE["acceptance"]),
            },
            False,
        ),
    ],
)
def test_who_is_told_counted_confidences_is_on_one_clock(
    acceptance: dict[str, object], is_one_clock: bool
) -> None:
    for policy in ("confidence", "static_tree:widths=[2]", "static"):
        many = experiment(acceptance=acceptance, policy=policy)
        requests = [Request(index=0, prompt_len=3, output_len=2)]
        why = why_whole(many, Deployment.of(many), requests)
        assert (why is not None) == (is_one_clock and policy != "static")


def test_what_cannot_be_shared_out_says_so(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump({**BASE, "routing": {"kind": "least_outstanding"}}))
    code, out, error = cli("run", path, "--workers", 2)
    assert code == 0
    said = " ".join((out + error).split())
    assert "simulated in one process: router 'least_outstanding' looks at the replicas" in said
    assert "simulated in one process" not in "".join(cli("run", path)[1:])


def test_a_router_that_looks_all_the_same() -> None:
    with pytest.raises(PluginError, match="looks_at_replicas"):
        simulate(experiment().replace(routing=Liar()))


@pytest.mark.extras
def test_a_ray_cluster_runs_the_same(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    lengths = {"kind": "constant", "prompt": 16, "output": 3}
    workload = {**BASE["workload"], "lengths": lengths, "num_requests": 45_000}
    path = tmp_path / "many.yaml"
    path.write_text(yaml.safe_dump({**BASE, "workload": workload, "replicas": 7}))
    for place in ("local", "ray"):
        code, _, error = cli(
            "run", path, "--backend", place, "--workers", 2, "--out", tmp_path / place
        )
        assert code == 0, error
    for name in ("requests.parquet", "summary.json", "steps.parquet"):
        files = [tmp_path / place / name for place in ("local", "ray")]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    "changes",
    [{}, {"replicas": 2}, {"replicas": 2, "routing": "least_outstanding"}],
    ids=["one replica", "cells", "whole"],
)
def test_requests_of_a_program_come_in_any_order(
    changes: dict[str, Any], tiny: Callable[..., Experiment]
) -> None:
    experiment = tiny(acceptance={"kind": "bernoulli", "alpha": 0.0}, **changes)
    sent = [(0.02 * place, 20 + 7 * place % 90, 1 + place % 40) for place in range(60)]
    shuffled = [sent[17 * place % 60] for place in range(60)]

    def outcome(rows: list[tuple[float, int, int]]) -> list[tuple[float, ...]]:
        requests = [
            Request(index=index, arrived_at=at, prompt_len=prompt_len, output_len=output_len)
            for index, (at, prompt_len, output_len) in enumerate(rows)
        ]
        table = Summary(simulate(experiment, requests=requests)).tables.requests
        assert table["arrived_at"][table["request"].argsort()].tolist() == [at for at, *_ in rows]
        names = ["arrived_at", "first_token_at", "ended_at", "prompt_len", "output_len"]
        return sorted(tuple(float(row[name]) for name in names) for row in table)

    assert outcome(shuffled) == outcome(sent)
