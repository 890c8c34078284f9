"""Pools that are scaled, each by itself: nothing is lost, and what they cost is what they were."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from conftest import tiny_config
from test_worlds import KINDS, SESSIONS, UNIFORM, check_counts, check_requests, incident

from specsim.autoscaling import Autoscaler, PoolView
from specsim.core.errors import CapacityError, ConfigError
from specsim.results.folder import ResultsFolder
from specsim.results.timeline import over_time
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

Tiny = Callable[..., Experiment]


def pool(rng: random.Random, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a pool that may be scaled, and what happens to its slots."""
    most = rng.randint(1, 4)
    least = rng.randint(0, min(2, most))
    made: dict[str, Any] = {"replicas": max(1, least)}
    if rng.random() < 0.8:
        made["autoscaling"] = {
            **rng.choice(KINDS),
            "min_replicas": least,
            "max_replicas": most,
            "interval_s": rng.choice([0.1, 0.37]),
            "start_up_s": rng.choice([0.0, 0.3]),
            "scale_in_delay_s": rng.choice([0.0, 0.5]),
        }
    slots = most if "autoscaling" in made else made["replicas"]
    happens = [{**incident(rng, slot), "pool": name} for slot in range(slots) if rng.random() < 0.6]
    return made, happens


def world(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    prefill, first = pool(rng, "prefill")
    if rng.random() < 0.5:
        tiers = {"blocks": rng.choice([5, 60]), "bandwidth_gb_s": rng.choice([0.1, 10.0])}
        prefill["engine"] = {"kv_offload": tiers}
    decode, second = pool(rng, "decode")
    transfer = {
        "bandwidth_gb_s": rng.choice([0.05, 1.0, 1e6]),
        "link": rng.choice(["decode", "prefill", "all"]),
        "overlap": rng.choice(["none", "layers"]),
        "max_transfers": rng.randint(1, 3),
    }
    arrivals: dict[str, Any] = {"kind": "poisson", "rate": rng.choice([20.0, 60.0])}
    if rng.random() < 0.3:
        arrivals = {"kind": "closed_loop", "concurrency": rng.randint(1, 12), "think_time": 0.02}
    return {
        "workload": {
            "arrivals": arrivals,
            "lengths": rng.choice([SESSIONS, UNIFORM]),
            "num_requests": 40,
        },
        "pools": {"prefill": prefill, "decode": decode, "transfer": transfer},
        "routing": rng.choice(["round_robin", "least_outstanding_tokens", "scored"]),
        "incidents": first + second,
        "slo": {"ttft_ms": 200, "tpot_ms": 20},
        "seed": number,
    }


@pytest.mark.parametrize("number", range(30))
def test_nothing_is_lost(number: int, tiny: Tiny) -> None:
    """Requests, tokens and, of every replica that goes or stays, blocks (the check of the run)."""
    engine = {"num_gpu_blocks": 200, "max_model_len": 1024, "max_num_seqs": 4}
    run = simulate(tiny(**world(number), engine=engine, acceptance=None), check=True)
    check_requests(run)
    summary = Summary(run)
    assert summary.pools is not None
    assert (summary.pools.prefills["output_len"] == 1).all()
    end = float(summary.tables.requests["ended_at"].max())
    for name, scaling in run.scalings.items():
        assert name is not None
        check_counts(scaling, run.experiment.scalers[name], end)


def test_a_pool_that_cannot_change_is_a_fixed_one(tiny: Tiny) -> None:
    def of(**pools: Any) -> Run:
        sizes = {"prefill": {"replicas": 2}, "decode": {"replicas": 3}}
        made = {name: {**fields, **pools.get(name, {})} for name, fields in sizes.items()}
        return simulate(tiny(pools=made, slo={"ttft_ms": 300}), check=True)

    fixed = of()
    scaled = of(
        prefill={"autoscaling": scaler(min_replicas=2, max_replicas=2)},
        decode={
            "replicas": 1,
            "autoscaling": scaler("target_slo", target=0.9, min_replicas=3, max_replicas=3),
        },
    )
    for one, other in zip(fixed.replicas, scaled.replicas, strict=True):
        assert one.requests.tobytes() == other.requests.tobytes()
        assert one.steps.tobytes() == other.steps.tobytes()
    tables = [Summary(run).pools for run in (fixed, scaled)]
    assert tables[0].transfers.tobytes() == tables[1].transfers.tobytes()


def scaler(kind: str = "target_concurrency", **fields: Any) -> dict[str, Any]:
    usual = {"interval_s": 1.0, "start_up_s": 0.0, "scale_in_delay_s": 0.0, "max_replicas": 4}
    window = {"window_s": 0.0} if kind == "target_concurrency" else {}
    return {"kind": kind, "target": 4.0, **usual, **window, **fields}


class Square(Autoscaler):
    """Three replicas in the first half of each 20 s and one in the second."""

    kind: Literal["square"] = "square"

    def enough(self, pool: PoolView, memory: Any) -> float:
        return 3.0 if pool.now % 20 < 10 else 1.0


def ran(tiny: Tiny, pools: dict[str, Any], **changes: Any) -> Summary:
    workload = {
        "arrivals": changes.pop("arrivals", {"kind": "constant", "rate": 10.0}),
        "lengths": {"kind": "constant", "prompt": 20, "output": changes.pop("output", 20)},
        "num_requests": changes.pop("num_requests", 400),
    }
    engine = {"num_gpu_blocks": 600, "max_model_len": 1024, "max_num_seqs": 8}
    check = changes.pop("check", True)
    fields = {"workload": workload, "engine": engine, "acceptance": None, **changes}
    return Summary(simulate(tiny(**fields, pools=pools), check=check))


def test_a_square_wave_costs_what_the_closed_form_says(tiny: Tiny) -> None:
    """Mean of 3 and 1 over whole periods, with the start-up paid for; the other pool is fixed."""
    start_up = 2.0
    scaled = {
        "kind": f"{__name__}:Square", "interval_s": 1.0, "start_up_s": start_up,
        "scale_in_delay_s": 0.0, "max_replicas": 3, "price_per_gpu_hour": 7.2,
    }  # fmt: skip
    pools = {"prefill": {"replicas": 2}, "decode": {"autoscaling": scaled}}
    summary = ran(tiny, pools, num_requests=600, check=False)
    end = float(summary.tables.requests["ended_at"].max())
    found = summary.data["specsim"]["pools"]["autoscaling"]
    # Looks at 1, 10, 20, ... s; one that goes at a look has answered what it has 0.3 s later.
    periods = [(1, 10), (20, 30), (40, 50)]
    busy = sum(min(end, b) - a for a, b in periods)
    extra = found["decode"]["replica_seconds"] - (end + 2 * busy)
    assert 0 <= extra <= 2 * 3 * 0.5
    assert found["decode"]["cost"] == pytest.approx(found["decode"]["replica_seconds"] * 2e-3)
    assert found["prefill"]["replica_seconds"] == pytest.approx(2 * end, rel=1e-12)
    assert found["prefill"]["cost"] is None
    counts = found["decode"]["timeline"]
    ups = [at for at, up in zip(counts["at"], counts["up"], strict=True) if up == 3]
    assert ups == [a + start_up for a, _ in periods]


def test_each_pool_follows_its_own_load(tiny: Tiny) -> None:
    """Requests that answer for long need decode replicas; prompts are short."""
    pools = {
        "prefill": {"autoscaling": scaler(target=8)},
        "decode": {"autoscaling": scaler(target=4)},
    }
    step = {"kind": "piecewise", "segments": [[10, 2], [20, 25], [20, 2]]}
    summary = ran(tiny, pools, arrivals=step, num_requests=None, output=60, check=False)
    found = summary.data["specsim"]["pools"]["autoscaling"]
    assert found["decode"]["peak_replicas"] == 4
    assert found["prefill"]["peak_replicas"] < 4
    assert found["decode"]["timeline"]["up"][-1] == 1


def test_a_prefill_replica_that_drains_ends_its_transfers(tiny: Tiny) -> None:
    """What it holds is read from it, late as that may be, and only then it is gone."""
    size = 20 * 131072.0  # bytes of a prompt
    pools = {
        "prefill": {"replicas": 3, "autoscaling": scaler(target=50, min_replicas=1)},
        "decode": {},
        "transfer": {"bandwidth_gb_s": size / 1e9 / 2.0, "max_transfers": 1},
    }
    summary = ran(tiny, pools, num_requests=9)
    assert summary.pools is not None
    transfers, replicas = summary.pools.transfers, summary.pools.prefill_replicas
    assert (transfers["transfers"] == 1).all()  # none was lost
    assert set(replicas.tolist()) == {0, 1, 2}
    spans = sorted(summary.run.scalings["prefill"].spans, key=lambda span: span[1])
    last_read = sorted(transfers["transfer_ended_at"][replicas == n].max() for n in (1, 2))
    assert [until for _, until in spans[:2]] == pytest.approx(last_read)


def test_a_decode_replica_that_drains_ends_its_requests_and_gets_no_more(tiny: Tiny) -> None:
    drains = scaler(target=50, min_replicas=1)
    pools = {"prefill": {}, "decode": {"replicas": 3, "autoscaling": drains}}
    summary = ran(tiny, pools, output=200, num_requests=30)
    rows = summary.tables.requests
    assert summary.pools is not None
    late = summary.pools.transfers["prefilled_at"] > 1.0
    assert late.any()
    assert set(rows["replica"][late].tolist()) == {0}
    assert (rows["requeues"] == 0).all()
    assert max(summary.data["specsim"]["pools"]["autoscaling"]["decode"]["timeline"]["draining"])


def test_what_waits_for_a_pool_that_is_gone_is_an_error_and_no_endless_loop(tiny: Tiny) -> None:
    both = {"autoscaling": scaler(min_replicas=0, max_replicas=1)}
    failure = {"kind": "failure", "pool": "decode", "replica": 0, "at": 1.05}
    with pytest.raises(CapacityError, match="every replica has failed for good"):
        ran(tiny, {"prefill": both, "decode": both}, incidents=[failure])


def test_a_pool_of_none_comes_when_it_is_needed(tiny: Tiny) -> None:
    gap = {"kind": "piecewise", "segments": [[5, 4], [60, 0], [5, 4]]}
    both = {"autoscaling": scaler(min_replicas=0, start_up_s=3.0)}
    summary = ran(tiny, {"prefill": both, "decode": both}, arrivals=gap, num_requests=None)
    rows = summary.tables.requests
    back = rows[rows["arrived_at"] > 60]
    wait = float((back["first_token_at"] - back["arrived_at"]).max())
    assert 6.0 <= wait <= 2 * 4.0 + 1.0  # a look and a start-up in each pool


def test_the_page_has_a_series_for_each_pool(tiny: Tiny, tmp_path: Path) -> None:
    pools = {"prefill": {"replicas": 2}, "decode": {"autoscaling": scaler(target=2)}}
    summary = ran(tiny, pools, output=60, check=False)
    summary.save(tmp_path / "out")
    folder = ResultsFolder(tmp_path / "out")
    found = over_time(folder.steps, folder.own, folder.requests)["timeline"]
    assert set(found["prefill_replicas"]) == {2}
    assert max(found["decode_replicas"]) > 1
    shares = np.array(found["kv_usage"], dtype=float)
    assert (shares[np.isfinite(shares)] <= 1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"autoscaling": scaler()}, "use pools.prefill.autoscaling"),
        (
            {"pools": {"decode": {"replicas": 5, "autoscaling": scaler()}}},
            "pools.decode.replicas = 5 is more than pools.decode.autoscaling.max_replicas = 4",
        ),
        (
            {
                "pools": {"prefill": {"autoscaling": scaler("target_slo", target=0.9)}},
                "slo": {"tpot_ms": 20},
            },
            "pools.prefill.autoscaling 'target_slo' needs",
        ),
        (
            {
                "pools": {"decode": {"autoscaling": scaler()}},
                "incidents": [{"kind": "failure", "pool": "decode", "replica": 4, "at": 1}],
            },
            "numbers are 0 to 3",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    config = {**tiny_config(), "pools": {}, **changes}
    with pytest.raises(ConfigError) as found:
        Experiment.parse(config, "pools")
    assert message in str(found.value)
    assert "\n" not in str(found.value)
