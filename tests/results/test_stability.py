"""Stability: servers that are overloaded and such that are not, told apart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tiny_config
from numpy.typing import NDArray

from specsim.results.stability import Demand, Stability, balance, stability_of, together
from specsim.run.experiment import Experiment
from specsim.run.summary import Summary, summarized

Table = dict[str, NDArray[Any]]
FIG1 = Path("experiments/smartspec-fig1/experiment.yaml")


def table(arrived: NDArray[np.float64], scheduled: NDArray[np.float64], ended: Any) -> Table:
    """Return requests of ten output tokens each, which begin when they are scheduled."""
    lens = np.full(len(arrived), 10)
    return {
        "arrived_at": arrived,
        "scheduled_at": scheduled,
        "first_token_at": scheduled,
        "ended_at": ended,
        "prompt_len": lens,
        "output_len": lens,
    }


def queue(load: float, count: int, seed: int = 1) -> Table:
    """Return requests of a single server with constant service of one second."""
    arrived = np.cumsum(np.random.default_rng(seed).exponential(1 / load, count))
    done = np.arange(1.0, count + 1)
    ended = done + np.maximum.accumulate(arrived - (done - 1.0))
    return table(arrived, ended - 1.0, ended)


def answer(requests: Table, **more: Any) -> Stability:
    return balance(Demand(requests, **more)).stability


@pytest.mark.parametrize("knows_rate", [False, True])
@pytest.mark.parametrize(
    ("load", "expected"),
    [(0.5, "stable"), (0.8, "stable"), (1.3, "overloaded"), (3.0, "overloaded")],
)
def test_overload_is_told_from_load(load: float, expected: str, *, knows_rate: bool) -> None:
    rate = load if knows_rate else None
    assert answer(queue(load, 1000), rate=rate) == expected


@pytest.mark.parametrize(("load", "wrong"), [(0.9, "overloaded"), (1.1, "stable")])
def test_wrong_answers_are_rare_close_to_the_capacity(load: float, wrong: str) -> None:
    found = [answer(queue(load, 1000, seed), rate=load) for seed in range(200)]
    assert found.count(wrong) <= 2
    assert found.count("undecided") <= 60


def test_what_is_offered_is_the_load_of_a_queue() -> None:
    found = [balance(Demand(queue(1.2, 1000, seed), rate=1.2)) for seed in range(50)]
    assert np.mean([each.offered for each in found]) == pytest.approx(1.2, rel=0.01)


def test_longer_runs_decide_what_short_ones_do_not() -> None:
    assert answer(queue(1.05, 20_000), rate=1.05) == "overloaded"
    assert answer(queue(0.95, 20_000), rate=0.95) == "stable"


def test_a_server_that_fills_up_is_not_called_overloaded() -> None:
    """Of 1,000 requests that take 10 times as long as all arrivals, none waits."""
    arrived = np.cumsum(np.random.default_rng(2).exponential(1.0, 1000))
    assert answer(table(arrived, arrived, arrived + 10_000.0)) == "undecided"


def test_a_server_with_room_for_all_is_stable() -> None:
    arrived = np.cumsum(np.random.default_rng(2).exponential(1.0, 1000))
    assert answer(table(arrived, arrived, arrived + 20.0)) == "stable"


@pytest.mark.parametrize("count", [1, 39, 100])
def test_requests_at_once_or_a_few_prove_nothing(count: int) -> None:
    ended = np.arange(1.0, count + 1)
    assert answer(table(np.zeros(count), ended - 1, ended)) == "undecided"


@pytest.mark.parametrize("outage_at", [0.0, 4.0])
def test_an_outage_until_the_last_arrival_proves_nothing(outage_at: float) -> None:
    """How fast the server works is not to be seen, and no number is divided by it."""
    config = tiny_config(
        incidents=[{"kind": "failure", "replica": 0, "at": outage_at, "until": 500}]
    )
    config["workload"] |= {"arrivals": {"kind": "poisson", "rate": 5}, "num_requests": 100}
    for seed in range(2, 4):
        summary = summarized(Experiment.parse({**config, "seed": seed}, "outage"))
        assert summary.stability == "undecided"
        assert not any("inf" in warning for warning in summary.warnings)


def test_a_decode_pool_that_has_not_begun_proves_nothing() -> None:
    """All requests arrive in 3 ms, before the first prefill ends."""
    config = tiny_config(pools={}, policy="off")
    del config["engine"]["speculative_config"]
    lens = {"kind": "constant", "prompt": 900, "output": 20}
    arrivals = {"kind": "poisson", "rate": 20_000}
    config["workload"] = {"arrivals": arrivals, "lengths": lens, "num_requests": 60}
    found = summarized(Experiment.parse(config, "pools")).balance
    assert np.isfinite([found.offered, found.error]).all()


def test_one_overloaded_replica_of_eight_is_enough() -> None:
    parts = [queue(0.9 if seed else 1.3, 1000, seed) for seed in range(8)]
    end = min(part["arrived_at"][-1] for part in parts)
    kept = [{name: each[part["arrived_at"] < end] for name, each in part.items()} for part in parts]
    requests = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}
    replicas = np.repeat(np.arange(8, dtype=np.int32), [len(part["ended_at"]) for part in kept])
    assert balance(Demand(requests)).stability != "overloaded"
    assert balance(Demand(requests), replicas).stability == "overloaded"


def test_a_peak_that_is_worked_off_is_no_overload() -> None:
    rng = np.random.default_rng(5)
    gaps = np.concatenate([rng.exponential(1 / rate, 300) for rate in (0.5, 1.8, 0.5, 0.3)])
    arrived, done = np.cumsum(gaps), np.arange(1.0, 1201)
    ended = done + np.maximum.accumulate(arrived - (done - 1.0))
    assert answer(table(arrived, ended - 1.0, ended)) == "stable"


def test_turns_that_answers_bring_about_do_not_come_from_outside() -> None:
    """A session of four turns comes from outside once: 0.1 of them per second are few, 10 many."""
    requests = Experiment.parse(
        {
            "workload": {
                "arrivals": {"kind": "poisson", "rate": 0.1},
                "lengths": {"kind": "sessions", "turns": 4, "first_prompt": 64, "new_input": 32,
                            "output": 64, "think_time": 1},
                "num_requests": 800,
            },
            "engine": {"max_num_seqs": 1},
            "profile": "h100/llama-3.1-8b",
        },
        "sessions",
    )  # fmt: skip
    assert summarized(requests).stability == "stable"
    arrivals = requests.workload.arrivals.model_copy(update={"rate": 10.0})
    more = requests.workload.model_copy(update={"arrivals": arrivals})
    assert summarized(requests.replace(workload=more)).stability == "overloaded"


def test_an_outage_is_not_what_the_server_can_do() -> None:
    config = tiny_config(incidents=[{"kind": "failure", "replica": 0, "at": 0.3, "until": 19.5}])
    config["workload"] |= {"arrivals": {"kind": "poisson", "rate": 5}, "num_requests": 100}
    [warning] = summarized(Experiment.parse({**config, "seed": 2}, "outage")).warnings
    assert "times as fast as it was done when most requests were there" in warning
    assert warning.endswith(", incidents included")


def test_runs_together_are_surer_than_one_and_no_more_often_wrong() -> None:
    every = [answer(queue(1.05, 600, seed), rate=1.05) for seed in range(150)]
    fives = [together(every[first : first + 5]) for first in range(0, 150, 5)]
    assert every.count("undecided") > 15
    assert fives.count("undecided") <= 1
    assert fives.count("stable") == 0


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["stable", "undecided"], "stable"),
        (["overloaded", "undecided", "overloaded"], "overloaded"),
        (["overloaded", "stable", "stable"], "undecided"),
        (["undecided"], "undecided"),
        ([], "undecided"),
    ],
)
def test_replications_say_what_some_say_and_none_denies(
    answers: list[Stability], expected: str
) -> None:
    assert together(answers) == expected


@pytest.mark.parametrize("odd", ["steady", None, 1, ["stable"]])
def test_an_answer_that_nobody_gives_is_refused(odd: object) -> None:
    with pytest.raises(ValueError, match="is none of stable, overloaded, undecided"):
        stability_of({"stability": odd})


def _fig1(rate: float, **changes: Any) -> Summary:
    base = Experiment.load(FIG1)
    workload = base.workload.model_dump(mode="json")
    workload["arrivals"] = {"kind": "poisson", "rate": rate}
    return summarized(base.replace(workload={**workload, **changes}, policy="off"))


@pytest.mark.parametrize(("rate", "expected"), [(20, "stable"), (32, "overloaded")])
def test_a_thousand_requests_tell_overload(rate: float, expected: str) -> None:
    """SmartSpec's fig. 1 without speculation, where latency grows with the length of the run."""
    assert _fig1(rate).stability == expected


@pytest.mark.parametrize("count", [1000, 12_000])
def test_an_overload_of_two_percent_is_not_called_stable(count: int) -> None:
    """At 30 requests/s latency is 8.6 s of 1,000 requests, 16.6 s of 12,000."""
    assert _fig1(30, num_requests=count).stability == "overloaded"


def test_clients_that_wait_for_answers_overload_nothing() -> None:
    config = tiny_config()
    config["workload"]["arrivals"] = {"kind": "closed_loop", "concurrency": 64}
    config["workload"]["num_requests"] = 400
    config["engine"]["max_num_seqs"] = 4
    assert summarized(Experiment.parse(config, "closed")).stability == "stable"
