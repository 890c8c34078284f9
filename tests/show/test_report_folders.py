"""Which folders a report reads, what it finds in them, and which it refuses."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import pytest
import yaml
from conftest import Run, tiny_config
from reporting import POLICIES, RATES, Tags, copied, sweep_folder

from specsim.core.errors import ConfigError
from specsim.core.version import __version__
from specsim.profile import load_profile
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.run.validity import BASES, step_times
from specsim.show.report import load_study, page_data
from specsim.show.report.axes import WrittenConfig, single_axes
from specsim.show.study import (
    MEASURES,
    Point,
    Study,
    gain,
    gpu_first,
    measured,
    restricted,
    with_prices,
)
from specsim.study.capacity import Prices
from specsim.study.sweep import LocalProcesses, Sweep, SweepFolder, run_sweep
from specsim.study.tune import tune


def test_a_sweep_has_its_axes_in_their_parts(study: Study) -> None:
    hardware, policy, load = study.axes
    assert hardware.labels == ["h100/llama-3.1-8b", "slow"]
    assert (policy.labels, policy.numbers) == (POLICIES, None)
    assert (load.labels, load.numbers, load.unit) == (
        ["5", "20", "60"],
        [5.0, 20.0, 60.0],
        "requests/s",
    )
    assert study.draft_lens == [0, 1, 3, None]
    assert len(study.finished) == study.num_expected == 2 * len(POLICIES) * len(RATES) * 2


def test_points_stand_where_their_records_say(study: Study, folder: Path) -> None:
    for point in study.points[::7]:
        record = json.loads((folder / "points" / f"{point.number:05}.json").read_text())
        found = [axis.labels[place] for axis, place in zip(study.axes, point.places, strict=True)]
        assert found == list(record["labels"].values())
        assert point.metrics == record["metrics"]


def test_profiles_of_one_model_are_called_by_their_gpu(tmp_path: Path) -> None:
    axes = [{"profile": ["h100/llama-3.1-8b", "a100/llama-7b"]}, {"policy": ["off"]}]
    study = load_study(sweep_folder(tmp_path / "two", axes, 1))
    assert study.axes[0].labels == ["h100/llama-3.1-8b", "a100/llama-7b"]
    for path in (tmp_path / "two" / "sweep.yaml", tmp_path / "two" / "points" / "00001.json"):
        path.write_text(path.read_text().replace("a100/llama-7b", "a100/llama-3.1-8b"))
    assert load_study(tmp_path / "two").axes[0].labels == ["h100", "a100"]


def test_any_number_serves_as_load_and_the_rest_is_held(tmp_path: Path) -> None:
    axes = [
        {"acceptance.alpha": [0.5, 0.8]},
        {"policy.kind": ["static"], "policy.k": [2]},
        {"engine.max_num_seqs": [4, 8]},
    ]
    study = load_study(sweep_folder(tmp_path / "alpha", axes, 1))
    assert [axis.field for axis in study.axes] == [
        *("profile", "policy.kind", "acceptance.alpha", "engine.max_num_seqs")
    ]
    assert study.draft_lens == [2]
    part, held = restricted(study, [])
    assert held == ["engine.max_num_seqs=4"]
    assert [point.number for point in part.points] == [0, 2]
    part, held = restricted(study, ["engine.max_num_seqs=8", "acceptance.alpha=0.5"])
    assert (held, [point.number for point in part.points]) == ([], [1])


def test_loads_rise_in_whatever_order_they_were_swept(tmp_path: Path) -> None:
    """What a page says "up to" and "from" a load goes by their order."""
    axes: list[dict[str, list[Any]]] = [
        {"workload.arrivals.rate": [60, 5, 20]},
        {"policy": ["off"]},
    ]
    found = load_study(sweep_folder(tmp_path / "sweep", axes, 1))
    assert found.axes[2].labels == ["5", "20", "60"]
    assert found.axes[2].numbers == [5.0, 20.0, 60.0]
    assert {point.places[2]: point.metrics["request_rate"] for point in found.points} == {
        0: 5.0, 1: 20.0, 2: 60.0,
    }  # fmt: skip


def test_drafters_that_ask_for_the_same_k_have_a_row_each(tmp_path: Path) -> None:
    axes: list[dict[str, list[Any]]] = [
        {"policy": ["off", "static:k=3"]},
        {"engine.speculative_config.method": ["eagle3", "ngram"]},
    ]
    found = load_study(sweep_folder(tmp_path / "sweep", axes, 1))
    chart = json.dumps(page_data(found)["charts"]["speed-up"])
    assert "static:k=3, eagle3" in chart
    assert "k = 3" not in chart


def test_what_a_sweep_says_in_short_is_read(tmp_path: Path) -> None:
    base = tiny_config()
    base["workload"]["arrivals"] = "poisson:rate=20"
    base["engine"]["speculative_config"] = "eagle3:num_speculative_tokens=3"
    sweep = Sweep.model_validate({"base": base, "axes": [{"policy": ["off", "static"]}]})
    run_sweep(SweepFolder.create(tmp_path / "a", sweep, resume=False), LocalProcesses(1))
    found = load_study(tmp_path / "a")
    assert (found.axes[2].labels, found.axes[2].unit) == (["20"], "requests/s")
    assert (found.draft_lens, found.baseline) == ([0, 3], 0)
    assert "with eagle3" in found.title
    arrivals = ["poisson:rate=20", "poisson:rate=5"]
    sweep = Sweep.model_validate({"base": base, "axes": [{"workload.arrivals": arrivals}]})
    run_sweep(SweepFolder.create(tmp_path / "b", sweep, resume=False), LocalProcesses(1))
    assert load_study(tmp_path / "b").axes[2].numbers == [5.0, 20.0]


def test_a_rate_of_sessions_is_called_so(tmp_path: Path) -> None:
    spread = {"mean": 5.0, "sigma": 0.1}
    names = ("turns", "first_prompt", "new_input", "output")
    lengths = {"kind": "sessions", **dict.fromkeys(names, spread)}
    experiment = Experiment.parse(tiny_config(), "tiny")
    sessions = experiment.replace(workload={**tiny_config()["workload"], "lengths": lengths})
    for name, each in (("requests", experiment), ("sessions", sessions)):
        Summary(simulate(each)).save(tmp_path / name)
        assert load_study(tmp_path / name).axes[2].unit == f"{name}/s"


def test_answers_of_one_token_have_no_time_between_tokens(study: Study) -> None:
    point = study.finished[0]
    one = {name: 0.0 for name in point.metrics if name.endswith(("tpot_ms", "itl_ms"))}
    found = measured(study, replace(point, metrics=point.metrics | one))
    assert measured(study, point).keys() - found.keys() == {
        each.name for each in MEASURES if each.name in one and each.name in measured(study, point)
    }
    assert not found.keys() & one.keys()


def test_what_is_0_in_one_replication_is_not_as_good_as_in_the_others() -> None:
    """A goodput of 0 in half of the runs is no match for one that is never 0."""
    goodput = next(each for each in MEASURES if each.name == "request_goodput")

    def cell(*values: float) -> list[Point]:
        return [
            Point(0, (0, 0, 0), number, number, "", metrics={"request_goodput": value})
            for number, value in enumerate(values)
        ]

    assert gain(cell(0.0, 5.0), cell(5.0, 5.0), goodput) is None
    found = gain(cell(5.0, 5.0), cell(5.0, 5.0), goodput)
    assert found is not None
    assert found.mean == 1.0


def test_arrivals_are_told_apart_by_their_number(tmp_path: Path) -> None:
    clients = [{"kind": "closed_loop", "concurrency": n} for n in (2, 4)]
    study = load_study(sweep_folder(tmp_path / "closed", [{"workload.arrivals": clients}], 1))
    load = study.axes[2]
    assert (load.title, load.labels, load.numbers) == ("Concurrency", ["2", "4"], [2.0, 4.0])
    mixed = [{"kind": "poisson", "rate": 5.0}, clients[0]]
    study = load_study(sweep_folder(tmp_path / "mixed", [{"workload.arrivals": mixed}], 1))
    load = study.axes[2]
    assert (load.title, load.labels[1], load.numbers) == (
        *("Arrivals", "closed_loop:concurrency=2", None),
    )


@pytest.mark.parametrize(
    ("choice", "why"),
    [("policy", "expected FIELD=VALUE"), ("policy.k=1", "did you mean 'policy'"),
     ("policy=of", "did you mean 'off'")],
)  # fmt: skip
def test_a_choice_that_is_not_there_is_refused(study: Study, choice: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        restricted(study, [choice])


@pytest.mark.parametrize(
    ("policy", "proposer", "expected"),
    [
        ("off", {"num_speculative_tokens": 5}, 0),
        (False, None, 0),
        ({"kind": False}, None, 0),
        (None, None, 0),
        (None, {"num_speculative_tokens": 5}, 5),
        (None, {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": []}, None),
        ("static", {"num_speculative_tokens": 5}, 5),
        ("static:k=3", {"num_speculative_tokens": 5}, 3),
        ({"kind": "static", "k": 2}, {"num_speculative_tokens": 5}, 2),
        ("goodput:k=3", {"num_speculative_tokens": 5}, None),
        ("os:system:k=3", {"num_speculative_tokens": 5}, None),
    ],
)
def test_the_draft_length_is_read_off_the_configuration(
    policy: object, proposer: object, expected: int | None
) -> None:
    config = {"policy": policy, "engine": {"speculative_config": proposer}}
    assert WrittenConfig(config).draft_len == expected


def test_failed_points_are_listed_with_their_error(cli: Run, tmp_path: Path) -> None:
    # k = 5 exceeds num_speculative_tokens = 3 of the tiny experiment, and runs with 9 only.
    axes = [
        {"policy": ["off", "static:k=5"]},
        {"engine.speculative_config.num_speculative_tokens": [3, 9]},
    ]
    path = sweep_folder(tmp_path / "some", axes, 1)
    study = load_study(path)
    assert [(point.number, point.places[1]) for point in study.failed] == [(2, 2)]
    code, output, _ = cli("report", path, "--out", "some.html")
    assert (code, "1 failed" in output) == (0, True)
    (failed,) = json.loads(Tags(Path("some.html").read_text()).data)["failed"]
    assert "policy.k = 5 exceeds" in failed["error"]


def test_a_run_and_a_comparison_are_reported_too(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_config()))
    assert cli("run", path, "--out", "one")[0] == 0
    assert (
        cli("compare", path, "--policies", "static:k=2", "--replications", 2, "--out", "cmp")[0]
        == 0
    )
    assert cli("report", "one", "--out", "one.html")[0] == 0
    one = load_study(Path("one"))
    assert (one.kind, len(one.points), one.axes[1].labels) == ("run", 1, ["static:k=3"])
    compared = load_study(Path("cmp"))
    assert (compared.axes[1].labels, compared.draft_lens) == (["off", "static:k=2"], [0, 2])
    assert [bool(point.timeline) for point in compared.points] == [True, False, True, False]
    summary = json.loads(Path("cmp/static-k=2/summary.json").read_text())
    first = compared.points[2]
    assert first.metrics["mean_ttft_ms"] == summary["mean_ttft_ms"]
    quantiles = first.distributions["ttft_ms"]
    assert quantiles[50] == pytest.approx(summary["p50_ttft_ms"], rel=1e-5)
    assert max(v or 0 for v in first.timeline["kv_usage"]) <= 1


def test_a_run_and_a_point_of_a_sweep_show_the_same(cli: Run, folder: Path) -> None:
    record = json.loads((folder / "points" / "00014.json").read_text())
    plan = yaml.safe_load((folder / "sweep.yaml").read_text())["base"]
    Path("base.yaml").write_text(yaml.safe_dump(plan))
    settings = [f"--set={field}={value}" for field, value in record["axes"].items()]
    assert cli("run", "base.yaml", *settings, "--seed", record["seed"], "--out", "one")[0] == 0
    (point,) = load_study(Path("one")).points
    assert point.metrics == record["metrics"]
    assert point.timeline == record["timeline"]
    assert point.distributions == record["distributions"]
    assert point.breakdown == pytest.approx(record["breakdown"])


def test_a_capacity_is_compared_by_its_cost_at_the_asked_rate(tmp_path: Path) -> None:
    plan = capacity_plan()
    for result in plan["results"]:
        result["step_times"] = "kernels"
        for probe in result["probes"]:
            probe["cost_per_million_tokens_at_target"] = 2 * probe["cost_per_million_tokens"]
    (tmp_path / "capacity.json").write_text(json.dumps(plan))
    study = load_study(tmp_path)
    assert study.points[3].metrics["cost_per_mtok"] == 0.25  # at full load it would be half
    assert (study.slo, study.gpus) == ({"ttft_ms": 500.0}, {"h100": 1})
    assert study.step_times == {"h100": "kernels"}
    units = {each["name"]: each["unit"] for each in page_data(study)["metrics"]}
    assert units["cost_per_mtok"] == "EUR per million output tokens at 20 requests/s"


def test_a_page_is_called_by_its_experiment_not_by_its_folder(study: Study, cli: Run) -> None:
    assert study.title == "llama-3.1-8b on H100, slow, with eagle3"
    assert study.slo == {"ttft_ms": 200.0, "tpot_ms": 30.0}
    lengths = {"kind": "dataset", "name": "sharegpt"}
    config = {"profile": "l40s/llama-3.1-8b", "workload": {"lengths": lengths}}
    assert WrittenConfig(config).title(["l40s/llama-3.1-8b"]) == "llama-3.1-8b on L40S, sharegpt"
    assert (
        WrittenConfig(config)
        .title(["h100", "l40s", "a100", "b200"])
        .startswith("llama-3.1-8b on 4 GPUs")
    )
    assert WrittenConfig({"workload": None, "engine": None}).title(["my/fast.yaml"]) == "fast"
    own = {"profile": "my/fast.yaml"}
    assert (
        WrittenConfig(own).title(["my/fast.yaml"], "meta-llama/Llama-3.1-8B")
        == "Llama-3.1-8B on fast"
    )


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("h100", "H100"), ("h100/llama-3.1-8b", "H100/llama-3.1-8b"), ("l40s-tp2", "L40S-tp2"),
        ("h100-nvl-tp2", "H100-NVL-tp2"), ("h100.yaml", "h100.yaml"), ("my/h100.yaml",) * 2,
        ("mine", "mine"),
    ],
)  # fmt: skip
def test_gpus_are_written_as_a_plan_writes_them(label: str, shown: str) -> None:
    assert gpu_first(label) == shown


def test_hardware_says_what_its_step_times_rest_on(folder: Path, cli: Run) -> None:
    assert cli("report", folder, "--out", "page.html")[0] == 0
    data = json.loads(Tags(Path("page.html").read_text()).data)
    assert data["step_times"] == {"H100/llama-3.1-8b": "fitted", "slow": "fitted"}
    assert data["gpus"] == {"H100/llama-3.1-8b": 1, "slow": 1}
    assert step_times(load_profile("b200/llama-3.1-8b")) == "kernels"
    assert (
        cli("profile", "roofline", "--model", "llama-3.1-8b", "--gpu", "l4", "--out", "l4.yaml")[0]
        == 0
    )
    assert step_times(load_profile("l4.yaml")) == "roofline"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"specsim_version": "9.9"}, "written by specsim 9.9"),
        ({"metrics": {"mean_e2el_ms": "fast"}}, "metrics.mean_e2el_ms"),
        ({"timeline": {"time_s": [1.0], "running": []}}, "not equally long"),
        ({"distributions": [1]}, "distributions"),
        ({"point": 3}, "not the record of point 1"),
    ],
)
def test_a_damaged_record_is_one_line(
    folder: Path, cli: Run, change: dict[str, object], why: str
) -> None:
    copy = copied(folder, Path("copy"))
    path = copy / "points" / "00001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    code, _, error = cli("report", copy)
    assert (code, error.count("\n")) == (2, 1)
    assert why in error
    assert not (copy / "report.html").exists()


def test_folders_that_cannot_be_shown_are_one_line(folder: Path, cli: Run) -> None:
    Path("empty").mkdir()
    Path("foreign").mkdir()
    Path("foreign/summary.json").write_text('{"duration": 3.0}')
    Path("foreign/config.yaml").write_text("{}")
    other = copied(folder, Path("other"))
    text = (other / "sweep.yaml").read_text()
    (other / "sweep.yaml").write_text(
        re.sub(r"specsim_version: .*", "specsim_version: '9.9'", text)
    )
    nothing = copied(folder, Path("nothing"))
    for path in (nothing / "points").iterdir():
        path.unlink()
    for name, why in {
        "empty": "holds none of sweep.yaml",
        "missing": "does not exist",
        "foreign": "is no summary of specsim's",
        "other": "was written by specsim 9.9",
        "nothing": "none of its 48 points has ended yet",
        "other/sweep.yaml": "is a file",
    }.items():
        code, _, error = cli("report", name)
        assert (code, error.count("\n"), why in error) == (2, 1, True), (name, error)


def capacity_plan() -> dict[str, Any]:
    """What `specsim capacity` writes, cut down to two policies and two loads each."""

    def result(policy: str, price: float, sustained: float | None) -> dict[str, Any]:
        loads = {8.0: 1.0, 16.0: 0.5}
        probes = [
            {
                "hardware": "h100",
                "policy": policy,
                "load": load,
                "requests_per_second": load,
                "is_sustained": load == sustained,
                "keeps_limits": load == sustained,
                "stability": "stable",
                "num_requests": 4000,
                "replications": 5,
                "attainment": share,
                "mean_output_len": 250.0,
                "beyond_valid_range": 0.0,
                "mean_e2el_ms": 100.0 * load * price,
                "gpu_hours_per_million_tokens": 0.1,
                "cost_per_million_tokens": price / load,
                "cost_per_million_tokens_at_target": None,
            }
            for load, share in loads.items()
        ]
        return {
            **{"hardware": "h100", "gpu": "h100", "gpus_per_replica": 1, "is_measured": True},
            **{"policy": policy, "sustained": sustained, "exceeded": 16.0},
            **{"requests_per_second": sustained, "replicas": 3, "cost_per_hour": 9.0},
            **{"is_settled": True, "longest_runs": 4000, "binds": "ttft_ms", "resource": None},
            **dict.fromkeys(("requests_per_second_interval", "replicas_interval")),
            **dict.fromkeys(("requests_per_second_model_interval", "cost_per_hour_interval")),
            **{"margins": {}, "step_times": "fitted"},
            **{"cost_per_million_tokens_at_target": 0.5, "probes": probes},
        }

    return {
        **{"config_hash": "0", "seed": 0, "specsim_version": __version__},
        **{"slo": {"ttft_ms": 500.0}, "attainment": 0.99, "drive": "rate", "tolerance": 0.02},
        **{"target_rate": 20.0, "replications": 5, "num_requests": 4000, "max_requests": None},
        "prices": {"date": "2026-01-01", "currency": "EUR", "source": "", "per_gpu_hour": {}},
        **{"limit_shares": {}, "experiment": {}, "notes": ["as told"], "pareto_front": []},
        **{name: {"is_shown": False, "leaders": []} for name in ("most", "cheapest")},
        "results": [result("off", 4.0, 8.0), result("static:k=3", 2.0, 8.0)],
    }


def test_a_capacity_plan_is_a_point_per_load_that_was_tried(cli: Run) -> None:
    Path("plan").mkdir()
    Path("plan/capacity.json").write_text(json.dumps(capacity_plan()))
    study = load_study(Path("plan"))
    assert [axis.labels for axis in study.axes] == [["h100"], ["off", "static:k=3"], ["8", "16"]]
    assert (study.draft_lens, study.currency) == ([0, 3], "EUR")
    assert study.points[3].metrics["cost_per_mtok"] == 0.125
    told = replace(study, warnings=["h100 off: so", "h100: no", "no h100-nvl", "profile=h100"])
    shown = page_data(told)
    assert shown["warnings"] == ["H100 off: so", "H100: no", "no h100-nvl", "profile=h100"]
    assert shown["capacity"]["results"][0]["what_binds"] == "TTFT (steps)"
    assert cli("report", "plan")[0] == 0
    code, output, _ = cli("plot", "plan")
    assert (code, "speed-up: not drawn: each was tried at loads" in output) == (0, True)
    assert Path("plan/plots/cost.svg").exists()
    assert cli("report", "plan", "--prices", "mine.yaml")[0] == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"specsim_version": "9.9"}, "written by specsim 9.9"),
        ({"results": []}, "holds no load that was tried"),
        ({"results": [{"hardware": "h100"}]}, "'results.0.policy' is missing"),
        ({"repliactions": 5}, "unknown field 'repliactions'; did you mean 'replications'?"),
    ],
)
def test_a_damaged_plan_is_told_by_the_line(cli: Run, change: dict[str, Any], why: str) -> None:
    Path("plan").mkdir()
    Path("plan/capacity.json").write_text(json.dumps({**capacity_plan(), **change}))
    code, _, error = cli("report", "plan")
    assert (code, why in error) == (2, True), error
    assert all(line.startswith("error: plan/capacity.json") for line in error.splitlines())


def test_a_capacity_plan_has_the_percentile_of_its_limits_and_round_ticks(cli: Run) -> None:
    given = {**capacity_plan(), "attainment": 0.85}
    for result in given["results"]:
        for probe in result["probes"]:
            probe |= {"p85_ttft_ms": 400.0, "p99_ttft_ms": 900.0}
    Path("plan").mkdir()
    Path("plan/capacity.json").write_text(json.dumps(given))
    study = load_study(Path("plan"))
    assert measured(study, study.points[0])["p85_ttft_ms"] == 400.0
    data = page_data(study)
    assert "p85 TTFT" in [metric["title"] for metric in data["metrics"]]
    layers = data["charts"]["over-load"]["spec"]["layer"]
    axis = next(layer["encoding"]["x"]["axis"] for layer in layers if "x" in layer["encoding"])
    assert ("values" in axis, axis["tickCount"]) == (False, 8)


def priced(per_gpu_hour: dict[str, float]) -> Prices:
    return Prices(date="2026-01-01", source="", currency="EUR", per_gpu_hour=per_gpu_hour)


def test_of_pools_each_replica_has_the_gpus_and_the_price_of_its_own_pool(
    cli: Run, tmp_path: Path
) -> None:
    decode = {"replicas": 2, "profile": "h100/llama-3.1-8b-tp2"}
    prefill = {"profile": "l40s/llama-3.1-8b"}
    experiment = tmp_path / "e.yaml"
    experiment.write_text(
        yaml.safe_dump(tiny_config(pools={"prefill": prefill, "decode": decode}, policy="off"))
    )
    assert cli("run", experiment, "--out", "run")[0] == 0
    prices = priced({"h100": 3.0, "l40s": 1.0})
    study = with_prices(load_study(Path("run")), prices)
    [point] = study.points
    assert (point.gpus, point.cost) == (5, 13.0)
    a_million = 1e6 / point.metrics["output_throughput"] / 3600
    assert measured(study, point)["cost_per_mtok"] == pytest.approx(13.0 * a_million)
    assert study.prices == {"h100/llama-3.1-8b": pytest.approx(13.0 / 3)}
    least = max((step_times(load_profile(name)) for name in point.fleet), key=BASES.index)
    assert study.step_times == {"h100/llama-3.1-8b": least}
    assert least != step_times(load_profile("h100/llama-3.1-8b"))
    [shown] = page_data(study)["cells"]
    assert (shown["gpus"], shown["hour"]) == (5, 13.0)
    unpriced = with_prices(load_study(Path("run")), priced({"h100": 3.0}))
    assert "cost_per_mtok" not in measured(unpriced, unpriced.points[0])


def test_a_drafter_on_gpus_of_its_own_is_paid_for_where_it_drafts(cli: Run, tmp_path: Path) -> None:
    drafts: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": 3}
    drafts["own_gpus"] = {"profile": "l40s/llama-3.1-8b"}
    config = tiny_config(replicas=2, policy="static", engine={"speculative_config": drafts})
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(config))
    prices = priced({"h100": 3.0, "l40s": 1.0})
    for policy, gpus, cost in (("static", 4, 8.0), ("off", 2, 6.0)):
        options = ("--set", f"policy={policy}", "--out", policy)
        assert cli("run", tmp_path / "e.yaml", *options)[0] == 0
        study = with_prices(load_study(Path(policy)), prices)
        [point] = study.points
        assert point.gpus == gpus
        a_million = 1e6 / point.metrics["output_throughput"] / 3600
        assert measured(study, point)["cost_per_mtok"] == pytest.approx(cost * a_million)
        assert study.prices == {"h100/llama-3.1-8b": 3.0}
        basis = "kernels" if policy == "static" else "fitted"  # the drafter's own
        assert study.step_times == {"h100/llama-3.1-8b": basis}


def test_an_off_that_yaml_reads_as_false_has_no_drafter_to_pay_for(tmp_path: Path) -> None:
    drafts: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": 3}
    drafts["own_gpus"] = {"profile": "l40s/llama-3.1-8b"}
    axes = [{"policy": [{"kind": False}], "engine.speculative_config": [drafts]}]
    study = load_study(sweep_folder(tmp_path / "off", axes, 1))
    assert (study.axes[1].labels, study.draft_lens) == (["off"], [0])
    [point] = with_prices(study, priced({"h100": 3.0, "l40s": 1.0})).points
    assert (point.gpus, point.cost, point.fleet_kind) == (1, 3.0, "replicas")
    config = WrittenConfig({"policy": False, "engine": {"speculative_config": drafts}})
    assert single_axes(config)["policy"].labels == ["off"]
    assert config.drafter is None


def test_of_replications_that_are_scaled_the_mean_is_shown(tmp_path: Path) -> None:
    scaler = {"kind": "target_concurrency", "target": 1, "max_replicas": 8, "interval_s": 0.1}
    scaler |= {"start_up_s": 0.1, "window_s": 0.1}
    path = sweep_folder(tmp_path / "scaled", [{"policy": ["off"], "autoscaling": [scaler]}], 3)
    study = with_prices(load_study(path), priced({"h100": 3.0}))
    means = [point.metrics["autoscaling.mean_replicas"] for point in study.points]
    assert len({*means}) == 3
    [shown] = [each for each in page_data(study)["cells"] if each["luck"] is None]
    assert shown["gpus"] == pytest.approx(fmean(means), rel=1e-3)
    assert shown["hour"] == pytest.approx(3.0 * fmean(means))


def test_all_replicas_are_counted_and_paid_for(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(tiny_config(replicas=3, policy="off")))
    assert cli("run", tmp_path / "e.yaml", "--out", "run")[0] == 0
    study = with_prices(load_study(Path("run")), priced({"h100": 3.0}))
    [shown] = page_data(study)["cells"]
    assert (shown["gpus"], shown["hour"], shown["fleet"]) == (3, 9.0, "replicas")


def test_replicas_that_are_scaled_cost_what_was_paid_for_them(cli: Run, tmp_path: Path) -> None:
    scaler = {"kind": "target_concurrency", "target": 1, "max_replicas": 8, "interval_s": 0.1}
    scaler |= {"start_up_s": 0.1, "window_s": 0.1, "price_per_gpu_hour": 3.0}
    config = tiny_config(autoscaling=scaler, policy="off")
    nobody_first = {"kind": "piecewise", "segments": [[20, 0], [2, 20.0]]}
    config["workload"] |= {"arrivals": nobody_first, "num_requests": None}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(config))
    assert cli("run", tmp_path / "e.yaml", "--out", "run")[0] == 0
    study = with_prices(load_study(Path("run")), priced({"h100": 3.0}))
    [point], summary = study.points, json.loads(Path("run/summary.json").read_text())
    paid = summary["specsim"]["autoscaling"]
    assert 1 < paid["mean_replicas"] < 8
    a_million = 1e6 / summary["total_output_tokens"]
    assert measured(study, point)["cost_per_mtok"] == pytest.approx(paid["cost"] * a_million)
    [shown] = page_data(study)["cells"]
    assert shown["gpus"] == pytest.approx(paid["mean_replicas"], rel=1e-3)
    assert shown["hour"] == pytest.approx(3.0 * paid["mean_replicas"])
    assert shown["fleet"] == "scaled"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    engine = {**tiny_config()["engine"], "max_num_seqs": 2}
    small = Experiment.parse(tiny_config(engine=engine), "tiny")
    tune(small, max_k=1, replications=2).save(folder)
    return folder


def test_a_tuning_has_every_k_at_the_loads_where_all_were_run(tuned: Path) -> None:
    document, study = json.loads((tuned / "tune.json").read_text()), load_study(tuned)
    _, policy, load = study.axes
    assert policy.labels == ["off", "static:k=1", "schedule"]
    assert (study.baseline, study.draft_lens, study.kind) == (0, [0, 1, None], "tuning")
    assert (load.field, load.unit) == ("workload.arrivals.rate", "requests/s")
    assert load.numbers is not None
    page = page_data(study)
    gains = {(each["p"], each["l"]): each for each in page["cells"]}
    for check in document["check"]["loads"]:
        place = load.numbers.index(check["load"])
        for p, name in ((1, "1"), (2, "schedule")):
            wanted = check["speed_up_over_off"][name]["mean"]
            by_hand = [
                geometric_mean(
                    each.metrics["mean_e2el_ms"] for each in study.points if each.places == at
                )
                for at in ((0, 0, place), (0, p, place))
            ]
            assert by_hand[0] / by_hand[1] == pytest.approx(wanted, rel=1e-9)
            assert (p, place) in gains
    assert {(0, place) for place in range(len(load.numbers))} <= gains.keys()
    assert study.title == "llama-3.1-8b on H100, with eagle3: use k = 1"
    assert [point.number for point in study.points] == [*range(study.num_expected)]


def test_of_a_tuning_all_ranks_are_counted_and_a_drafter_where_it_drafts(
    tuned: Path, tmp_path: Path
) -> None:
    document = json.loads((tuned / "tune.json").read_text())
    document["config"]["engine"]["data_parallel_size"] = 2
    document["config"]["engine"]["speculative_config"]["own_gpus"] = {
        "profile": "l40s/llama-3.1-8b"
    }
    (tmp_path / "tune.json").write_text(json.dumps(document))
    study = with_prices(load_study(tmp_path), priced({"h100": 3.0, "l40s": 1.0}))
    counted = {study.axes[1].labels[each.places[1]]: each.gpus for each in study.points}
    assert counted == {"off": 2, "static:k=1": 4, "schedule": 4}


@pytest.mark.parametrize(
    ("best", "words"),
    [
        (None, "use no speculation"),
        (
            {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 0]]},
            "use k = 3 in batches of 1 to 8, 0 in batches of 9 to 64",
        ),
    ],
)
def test_the_title_of_a_tuning_says_what_to_use(
    tuned: Path, tmp_path: Path, best: dict[str, Any] | None, words: str
) -> None:
    document = json.loads((tuned / "tune.json").read_text())
    (tmp_path / "tune.json").write_text(json.dumps({**document, "recommended": best}))
    assert load_study(tmp_path).title.endswith(words)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"specsim_version": "0"}, "was written by specsim 0"),
        ({"runs": [{"policy": "off"}]}, "run specsim tune again"),
        ({"load_unit": "miles"}, "run specsim tune again"),
    ],
)
def test_a_damaged_tuning_is_told_by_the_line(
    tuned: Path, tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    document = json.loads((tuned / "tune.json").read_text())
    (tmp_path / "tune.json").write_text(json.dumps(document | change))
    with pytest.raises(ConfigError, match=why):
        load_study(tmp_path)
