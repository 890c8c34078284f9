"""`specsim calibrate` on an engine whose costs are known, because it is a simulation itself."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Run
from made_up import TRUTH, Host, request_rows, step_rows

from specsim.core.errors import CapacityError, ProfileError
from specsim.core.request import Request
from specsim.profile import Profile, StepCosts, load_profile
from specsim.reality.calibration import (
    Calibration,
    CaseResult,
    Load,
    calibrate,
    judged,
    swaps,
    tells,
)
from specsim.reality.calibration.torch_subject import (
    QUICK,
    Served,
    TorchPlan,
    TorchSubject,
    acceptance_rates,
)
from specsim.reality.profile_fit import read_points
from specsim.reality.profile_fit.grid import GridPoint, Sample, fit_costs, medians
from specsim.reality.validation import load_run
from specsim.results.metrics import Requests
from specsim.run.experiment import Experiment
from specsim.show.charts.reality_plots import plot_calibration
from specsim.show.render.reality_tables import calibration_tables, calibration_verdict

pytestmark = pytest.mark.slow

PLAN = replace(
    QUICK,
    grid=replace(QUICK.grid, rounds=3),
    loads=(Load("low", 0.3, 2.0), Load("saturated", 2.0, 1.0)),
    policies=("off", "static:k=1", "static:k=3", "goodput"),
    real_loads=("low",),
)


@dataclass
class MadeUpEngine:
    """Takes as long as `TRUTH` says, on a machine of its own for each run."""

    hosts: tuple[Host, ...] = (Host(),)
    """Of one serve after the other, the profiling runs first; then the last goes on."""
    grid_level: float = 1.0
    """What a step of the grid costs, beside the same step in a run."""
    fails_at: int = 10**9
    num_served: int = 0
    drafter_kv_bytes = 1024.0

    @property
    def description(self) -> dict[str, Any]:
        hardware = {"device_name": "nothing", "threads": 1}
        return {"engine": "made up", "dtype": "none", "hardware": hardware}

    def measure(self, points: Iterable[GridPoint]) -> Iterator[Sample]:
        costs = StepCosts(TRUTH.target, (TRUTH.drafts["draft_model"],), TRUTH.overhead)
        for point in points:
            # What the engine pays per sequence is paid within its forward pass.
            target = costs.target_time(point.load) + 30e-6 * point.load.num_requests
            draft = costs.draft_time(point.load, point.draft_len, target)
            level = self.grid_level
            yield Sample(point, level * target, level * draft, probed_at=0.0, probe_seconds=0.004)

    def serve(
        self,
        experiment: Experiment,
        profile: Profile,
        requests: list[Request],
        *,
        is_synthetic: bool,
    ) -> Served:
        if self.num_served == self.fails_at:
            raise CapacityError("out of memory")
        host = self.hosts[min(self.num_served, len(self.hosts) - 1)]
        self.num_served += 1
        run = host.run(experiment, requests)
        [records] = run.replicas
        served = Served(probes=host.probes(float(records.steps["ended_at"].max())))
        served.requests += request_rows(run)
        served.steps += step_rows(run)
        for row, step in zip(served.steps, records.steps, strict=True):
            # 30 of the 50 microseconds per sequence were seen as part of the forward pass.
            within = 30e-6 * row["num_requests"] * host.factor(row["started_at"])
            served.target_seconds.append(float(step["target_time"]) + within)
            row["draft_seconds"] = float(step["draft_time"])
        return served


def calibrated(
    folder: Path, engine: MadeUpEngine, plan: TorchPlan = PLAN, stated_error: float = 0.03
) -> Calibration:
    return calibrate(
        TorchSubject(engine, plan, "llama-7m", "cpu", stated_error), folder, lambda line: None
    )


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Calibration, Path]:
    folder = tmp_path_factory.mktemp("calibration") / "out"
    return calibrated(folder, MadeUpEngine()), folder


def test_a_known_engine_is_found_again(exact: tuple[Calibration, Path]) -> None:
    found, folder = exact
    assert len(found.results) == 4 * 3
    for each in found.results:
        if each.case.is_synthetic:
            assert each.mean_error < 0.01
    assert found.findings["in_situ"] == pytest.approx({"target": 1, "draft": 1}, abs=0.01)
    assert not found.failed
    assert not found.swaps
    assert found.parts[0].profile.provenance.status == "validated"
    assert load_profile(str(folder / "profile.yaml")) == found.parts[0].profile
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["complete"] is True


def test_runs_settle_the_level_of_costs(tmp_path: Path) -> None:
    found = calibrated(tmp_path / "out", MadeUpEngine(grid_level=0.8))
    assert found.findings["in_situ"] == pytest.approx({"target": 1.25, "draft": 1.25}, abs=0.01)
    for each in found.results:
        if each.case.is_synthetic:
            assert each.mean_error < 0.01


def test_costs_are_the_true_ones(exact: tuple[Calibration, Path]) -> None:
    profile = exact[0].parts[0].profile
    assert profile.overhead.request_us == pytest.approx(50, rel=0.1)
    for point in PLAN.grid.points:
        mine, true = (
            StepCosts(each.target, (each.drafts["draft_model"],), each.overhead)
            for each in (profile, TRUTH)
        )
        for draft_len in (0, 2, 5):
            assert float(mine.step_time(point.load, draft_len)) == pytest.approx(
                true.step_time(point.load, draft_len), rel=0.02
            )


def test_the_folder_holds_what_other_commands_read(exact: tuple[Calibration, Path]) -> None:
    found, folder = exact
    assert len(read_points(folder / "grid.csv")) == len(PLAN.grid.points)
    for each in found.results:
        run = load_run(folder / "runs" / each.case.name)
        assert len(run.runs) == PLAN.repetitions
        assert run.meta["complete"] is True
    assert not list(folder.glob(".repetition*"))


def test_it_is_drawn_and_told(exact: tuple[Calibration, Path], tmp_path: Path) -> None:
    found, _ = exact
    plot_calibration(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    cases, statistics = calibration_tables(found)
    assert cases.row_count == len(found.results)
    assert all(
        column.header for column in cases.columns
    )  # nothing is beyond, and no column says so
    assert statistics.row_count == 15
    assert calibration_verdict(found)[-1] == "order of k: the same, wherever the real runs have one"


def test_an_engine_that_gets_slower_leaves_a_candidate(tmp_path: Path) -> None:
    slow = Host((1.25,), tells=False)
    found = calibrated(tmp_path / "out", MadeUpEngine((Host(), Host(), Host(), slow)))
    assert found.parts[0].profile.provenance.status == "candidate"
    assert len(found.failed) == len(found.results)
    assert all(each.statistic("latency", "mean").error < -0.1 for each in found.results)
    written = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert written["status"] == "candidate"
    assert len(written["failed"]) == len(found.results)


def test_what_probes_say_of_the_machine_is_taken_into_account(tmp_path: Path) -> None:
    profiling = [Host((1.25, 0.75))] * 3
    first, second = Host((0.5, 1.0)), Host((1.0, 1.8))
    engine = MadeUpEngine((*profiling, *([first] * 12), *([second] * 12)))
    found = calibrated(tmp_path / "out", engine, replace(PLAN, repetitions=2))
    assert found.parts[0].profile.overhead.request_us == pytest.approx(50, rel=0.1)
    for each in found.results:
        faster, slower = each.slowness  # than the mean of all runs
        assert slower / faster == pytest.approx(1.4 / 0.75, rel=0.1)
        assert faster < 0.9
        assert slower > 1.1
        assert (each.statistic("tpot", "mean").spread or 0.0) > 0.2
        if each.case.is_synthetic:
            assert each.mean_error_at_speed < 0.04
            assert tells(each, 0.04)
    [low] = {each.case.load.num_requests(found.rates["low"]) for each in found.results[:4]}
    assert low == 20


def test_what_was_measured_before_an_error_stays(tmp_path: Path) -> None:
    with pytest.raises(CapacityError):
        calibrated(tmp_path / "out", MadeUpEngine(fails_at=5))
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert meta["complete"] is False
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2
    assert load_profile(str(tmp_path / "out" / "profile.yaml")).provenance.status == "candidate"


def result(
    policy: str,
    measured: list[float],
    simulated: float,
    found: Calibration,
    told: list[float] | None = None,
) -> CaseResult:
    case = replace(found.results[0].case, policy=policy)

    def run(seconds: float) -> Requests:
        times = {"arrived_at": 0.0, "first_token_at": 0.1, "ended_at": seconds, "output_len": 11}
        return {name: np.array([value]) for name, value in times.items()}

    untold = [run(simulated)] * len(measured)
    at_speed = untold if told is None else [run(seconds) for seconds in told]
    slowness = [] if told is None else [1.0] * len(told)
    return CaseResult.of(case, [run(s) for s in measured], untold, slowness, at_speed)


def test_what_is_beyond_the_stated_error(exact: tuple[Calibration, Path]) -> None:
    found, _ = exact
    assert judged(result("off", [1.0, 1.0], 1.04, found), 0.05)
    assert not judged(result("off", [1.0, 1.0], 1.2, found), 0.05)
    noisy = result("off", [0.9, 1.1], 1.19, found)
    assert judged(noisy, 0.05)  # it does not repeat better
    assert not tells(noisy, 0.05)
    assert tells(result("off", [0.9, 1.1], 1.19, found, told=[0.92, 1.06]), 0.05)
    assert not tells(result("off", [0.9, 1.1], 1.19, found, told=[0.99, 1.19]), 0.05)
    assert Calibration(0.05, [noisy]).is_kept
    assert not Calibration(0.05, [noisy]).is_validated
    assert Calibration(0.05, [result("off", [1.0, 1.0], 1.04, found)]).is_validated


def test_an_order_that_is_none_cannot_be_wrong(exact: tuple[Calibration, Path]) -> None:
    found, _ = exact
    fast = result("off", [1.0, 1.02], 1.3, found)
    slow = result("static:k=1", [1.2, 1.22], 1.25, found)
    [swap] = swaps([slow, fast])
    assert (swap.faster, swap.slower) == ("off", "static:k=1")
    assert not swaps([fast, result("static:k=1", [1.0, 1.05], 1.25, found)])
    assert not swaps([fast, replace(slow, case=replace(slow.case, acceptance="real"))])


def test_a_step_that_was_disturbed_does_not_count() -> None:
    points = PLAN.grid.points
    rounds = [list(MadeUpEngine().measure(points)) for _ in range(5)]
    clean = fit_costs(medians(rounds))
    rounds[2][7:12] = [sample._replace(target_seconds=9.0) for sample in rounds[2][7:12]]
    rounds[3] = [
        Sample(each.point, 9 * each.target_seconds, 9 * each.draft_seconds, 0.0, 0.004)
        for each in rounds[3]
    ]
    disturbed = fit_costs(medians(rounds))
    for point in points:
        expected = clean.target.forward_time(point.load)
        assert disturbed.target.forward_time(point.load) == pytest.approx(expected, rel=1e-3)


def test_slow_steps_that_come_again_and_again_count_in_the_mean() -> None:
    points = PLAN.grid.points
    rounds = [list(MadeUpEngine().measure(points)) for _ in range(10)]
    clean = medians(rounds)
    for number, each in enumerate(rounds):  # every fifth step of a round is slow
        each[number % 5 :: 5] = [
            sample._replace(target_seconds=1.5 * sample.target_seconds)
            for sample in each[number % 5 :: 5]
        ]
    found = medians(rounds)
    assert found.target_seconds.sum() == pytest.approx(1.1 * clean.target_seconds.sum())
    assert found.draft_seconds == pytest.approx(clean.draft_seconds)


def test_what_probes_explain_is_taken_out_of_the_grid() -> None:
    points = PLAN.grid.points
    rounds = [list(MadeUpEngine().measure(points)) for _ in range(4)]
    clean = medians(rounds)
    slowed = [
        [
            each._replace(
                target_seconds=factor * each.target_seconds,
                draft_seconds=factor * each.draft_seconds,
                probed_at=number + place / 1000,
                probe_seconds=factor * each.probe_seconds,
            )
            for place, each in enumerate(some)
        ]
        for number, (some, factor) in enumerate(zip(rounds, (0.6, 1.4, 1.4, 0.6), strict=True))
    ]
    found = medians(slowed)
    assert found.levels == pytest.approx(np.ones(4))
    assert found.target_seconds == pytest.approx(clean.target_seconds)
    assert found.draft_seconds == pytest.approx(clean.draft_seconds)


def test_drift_is_found() -> None:
    points = PLAN.grid.points
    rounds = [list(MadeUpEngine().measure(points)) for _ in range(4)]
    slower = [
        [
            sample._replace(
                target_seconds=1.2 * sample.target_seconds, draft_seconds=1.2 * sample.draft_seconds
            )
            for sample in each
        ]
        for each in rounds[2:]
    ]
    assert medians(rounds).drift == pytest.approx(0)
    assert medians(rounds[:2] + slower).drift == pytest.approx(0.2)
    with pytest.raises(ProfileError, match="no step was measured"):
        medians([])


def test_rates_are_conditional() -> None:
    rows: list[Any] = [{"accepted": [(0, 3, 3)] * 200 + [(9, 3, 1)] * 100 + [(4, 3, 0)] * 100}]
    rates = acceptance_rates(rows, 4)
    assert rates == pytest.approx([0.75, 2 / 3, 1.0, 0.5], abs=0.01)


def test_a_grid_holds_what_fits(exact: tuple[Calibration, Path]) -> None:
    points = PLAN.grid.points
    assert len(points) == len(set(points)) > 50
    assert all(point.load.batched_tokens <= 256 for point in points)
    first, second = islice(PLAN.grid.schedule(0), 2)
    assert sorted(first) == sorted(second) == sorted(points)
    assert first != second


def test_without_torch_it_says_what_to_install(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == "torch" or name.startswith("specsim.reality.torch_engine"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, error = cli("calibrate", "--engine", "torch", "--quick", "--out", "out")
    assert code == 2
    assert "error: --engine torch: PyTorch is not installed here" in error
    assert not Path("out").exists()


def test_what_is_published_of_a_cpu() -> None:
    folder = ROOT / "experiments" / "calibration-cpu"
    kept = json.loads((folder / "calibration.json").read_text())
    profile = load_profile(str(folder / "profile.yaml"))
    assert profile.provenance.status == kept["status"]
    assert profile.provenance.stated_error == kept["stated_error"]
    means = [
        (case["case"], row | {"error": case["error_at_speed"][row["metric"]]})
        for case in kept["cases"]
        for row in case["statistics"]
        if row["statistic"] == "mean" and row["metric"] != "ttft"
    ]
    stated = kept["stated_error"]
    beyond = [name for name, row in means if abs(row["error"]) > max(stated, 2 * row["spread"])]
    assert sorted(set(beyond)) == sorted(kept["failed"])
    noisy = {name for name, row in means if row["spread"] > stated}
    shown = all(
        case["case"] not in noisy or max(map(abs, case["error_at_speed"].values())) <= stated
        for case in kept["cases"]
    )
    assert (kept["status"] == "validated") == (not beyond and not kept["swaps"] and shown)
    assert {case["policy"] for case in kept["cases"]} == set(QUICK.policies)
    assert {case["num_runs"] for case in kept["cases"]} == {QUICK.repetitions}
