"""The gate: unchanged revisions pass, worse ones do not, and machines are told."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import yaml
from conftest import ROOT, Run, tiny_config
from scipy.stats import ttest_ind

from specsim.api import gate
from specsim.core.errors import ConfigError
from specsim.show.render.study_tables import gate_table, gate_verdict
from specsim.study.gate import DEFAULT_TOLERANCES, GateResults, ScenarioResults, Suite, run_suite
from specsim.study.gate.verdict import GateVerdict, MetricChange, github_annotations, judge

OWN_POLICIES = '''
from typing import Any, Literal

from specsim.api import BatchView, Policy


class Careful(Policy):
    """Draft three tokens."""

    kind: Literal["careful"] = "careful"

    def start(self, server: Any) -> dict[str, int]:
        return {"steps": 0}

    def draft_lens(self, batch: BatchView, memory: dict[str, int]) -> int:
        return 3


class Wasteful(Careful):
    """The same, but every fifth step drafts nothing."""

    kind: Literal["wasteful"] = "wasteful"

    def draft_lens(self, batch: BatchView, memory: dict[str, int]) -> int:
        memory["steps"] += 1
        return 3 if memory["steps"] % 5 else 0
'''


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., Path]:
    """Write a suite of two scenarios, and return its path."""
    (tmp_path / "own_policies.py").write_text(OWN_POLICIES)

    def write(**changes: Any) -> Path:
        base = tiny_config(policy="own_policies:Careful")
        data = {
            "base": base,
            "scenarios": {"calm": {}, "busy, 4": {"workload.arrivals.rate": 60.0}},
            "replications": 4,
        }
        path = tmp_path / "suite.yaml"
        path.write_text(yaml.safe_dump({**data, **changes}))
        return path

    return write


@pytest.fixture(autouse=True)
def fresh_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "own_policies", raising=False)
    monkeypatch.setattr(sys, "path", sys.path.copy())


def test_unchanged_runs_pass(cli: Run, suite: Callable[..., Path], tmp_path: Path) -> None:
    path = suite(replications=2)
    assert cli("gate", "--update", "base.json", path, "--workers", 1)[0] == 0
    for workers in (1, 1, 2):
        code, out, err = cli("gate", "base.json", path, "--workers", workers)
        assert (code, err) == (0, "")
        assert "all 14 comparisons are the same, seed by seed" in out


def test_scenarios_run_with_the_seeds_of_the_baseline(
    cli: Run, suite: Callable[..., Path], tmp_path: Path
) -> None:
    path = suite(replications=2)
    assert cli("gate", "--update", "b.json", path, "--set", "seed=17", "--workers", 1)[0] == 0
    for args in ([path], [path, "--set", "seed=17"]):
        code, out, err = cli("gate", "b.json", *args, "--workers", 1)
        assert (code, err) == (0, "")
        assert "all 14 comparisons are the same, seed by seed" in out
    assert gate(tmp_path / "b.json", path).is_paired
    given = gate(tmp_path / "b.json", path, overrides=["seed=17"], tolerances={"mean_e2el_ms": 9.0})
    assert {each.tolerance for each in given.comparisons if each.metric == "mean_e2el_ms"} == {9.0}
    assert gate(tmp_path / "b.json", tmp_path / "b.json").is_passed  # results, compared as they are
    wrong: dict[str, Any]
    for wrong, words in (
        ({"overrides": ["seed=17"]}, "overrides: cannot be used with results"),
        ({"tolerances": {"nope": 0.1}}, "tolerances nope=0.1: no metric 'nope'"),
        ({"tolerances": {"mean_e2el_ms": -1}}, "tolerances mean_e2el_ms=-1: expected METRIC"),
    ):
        with pytest.raises(ConfigError, match=words):
            gate(tmp_path / "b.json", tmp_path / "b.json", **wrong)


def test_replications_that_are_not_used_are_told(cli: Run, suite: Callable[..., Path]) -> None:
    assert cli("gate", "--update", "b.json", suite(replications=2), "--workers", 1)[0] == 0
    path = suite(replications=3)
    code, out, err = cli("gate", "b.json", path, "--workers", 1)
    assert code == 0
    assert "all 14 comparisons are the same, seed by seed" in out
    assert err.startswith("warning: replications: 2 as in the baseline, not 3; ")
    assert err.count("\n") == 1
    [note] = gate("b.json", path).notes
    assert note in err


def test_two_seeds_that_let_nearly_everything_pass_are_told(
    cli: Run, suite: Callable[..., Path]
) -> None:
    path, words = suite(replications=2), "with 2 seeds a change is uncertain, and passes, unless"
    code, _, err = cli("gate", "--update", "b.json", path, "--workers", 1)
    assert (code, err.count(words)) == (0, 1)
    worse = ("--set", "policy=static:k=1", "--workers", 1)
    code, out, err = cli("gate", "b.json", path, *worse)
    assert ("uncertain: " in out, err.count(words)) == (True, 1)
    path = suite(replications=3)
    assert cli("gate", "--update", "b.json", path, "--workers", 1)[2] == ""
    assert words not in cli("gate", "b.json", path, *worse)[2]


def test_what_is_gated_no_longer_or_more_loosely_is_told(suite: Callable[..., Path]) -> None:
    tolerances = {"mean_e2el_ms": 0.02, "mean_tpot_ms": 0.02, "p99_e2el_ms": 0.05}
    before = run_suite(Suite.load(suite()), tolerances)
    loose = suite(tolerances={"mean_tpot_ms": 0.5, "p99_e2el_ms": 0.05})
    said = ["tolerances.mean_e2el_ms: 0.02 -> not gated", "tolerances.mean_tpot_ms: 0.02 -> 0.5"]
    assert gate(before, loose).notes == said
    assert gate(before, loose, tolerances={"mean_tpot_ms": 0.01}).notes == said[:1]
    assert gate(before, suite()).notes == []  # names none, so those of the baseline hold


@pytest.mark.slow
def test_unchanged_revisions_pass_with_other_seeds_too(suite: Callable[..., Path]) -> None:
    path = suite()
    with_seeds = []
    for seed in range(0, 84, 4):
        chosen = Suite.load(path, [f"seed={seed}", "policy=static:k=3"])
        with_seeds.append(run_suite(chosen, DEFAULT_TOLERANCES))
    baseline, *others = with_seeds
    for other in others:
        judgement = judge(baseline, other, DEFAULT_TOLERANCES)
        assert not judgement.is_paired
        assert judgement.is_passed
        assert not judgement.of_verdict("same")


def test_a_policy_made_5_percent_worse_is_caught(
    cli: Run, suite: Callable[..., Path], tmp_path: Path
) -> None:
    base = tiny_config(policy="own_policies:Careful")
    base["workload"]["num_requests"] = 60
    path = suite(base=base, replications=8)
    assert cli("gate", "--update", "base.json", path, "--workers", 1)[0] == 0
    args = (
        "--workers",
        1,
        "--set",
        "policy=own_policies:Wasteful",
        "--json",
        "v.json",
        "--junit",
        "v.xml",
    )
    code, out, err = cli("gate", "base.json", path, *args, "--github")
    assert code == 1
    assert "FAILED" in out
    assert err == "warning: policy.kind: own_policies:Careful -> own_policies:Wasteful\n"
    found = json.loads((tmp_path / "v.json").read_text())
    assert found["passed"] is False
    assert found["paired"] is True
    tpot = [c for c in found["comparisons"] if c["metric"] == "mean_tpot_ms"]
    for comparison in tpot:
        assert 0.03 < comparison["worsening"] < 0.08
        assert comparison["verdict"] == "worse"
        assert 0 < comparison["interval"][0] < comparison["worsening"] < comparison["interval"][1]
    cases = list(Xml.parse(tmp_path / "v.xml").getroot().iter("testcase"))
    assert len(cases) == 14
    worse = sum(c["verdict"] == "worse" for c in found["comparisons"])
    assert sum(case.find("failure") is not None for case in cases) == worse >= 2
    assert out.count("::error title=specsim gate%3A suite.yaml against base.json%3A ") == worse
    # several gates in a workflow, whose scenarios may be called alike, are told apart
    assert {case.get("classname") for case in cases} == {
        f"suite.yaml against base.json: {each['scenario']}" for each in found["comparisons"]
    }
    assert "busy%2C 4::mean_tpot_ms" in out


def test_of_another_policy_only_its_fields_go_unsaid(suite: Callable[..., Path]) -> None:
    found = run_suite(Suite.load(suite(replications=1), ["policy=goodput"]), DEFAULT_TOLERANCES)
    changes = ["policy=static:k=1", "engine.max_num_seqs=7"]
    before = found.scenarios["calm"].config["engine"]["max_num_seqs"]
    other = run_suite(Suite.load(suite(replications=1), changes), DEFAULT_TOLERANCES)
    assert judge(found, other, DEFAULT_TOLERANCES).notes == [
        f"engine.max_num_seqs: {before} -> 7",
        "policy.kind: goodput -> static",
    ]


def test_a_better_policy_passes(cli: Run, suite: Callable[..., Path]) -> None:
    path = suite(tolerances={"mean_tpot_ms": 0.02})
    args = ("--set", "policy=own_policies:Wasteful", "--workers", 1)
    code, _, _ = cli("gate", "--update", "b.json", path, *args)
    assert code == 0
    code, out, _ = cli("gate", "b.json", path, "--workers", 1)
    assert code == 0
    assert "better" in out
    assert "passed: none of 2 comparisons is worse" in out


@pytest.mark.slow
def test_a_baseline_has_the_same_bytes_in_every_process(
    suite: Callable[..., Path], tmp_path: Path
) -> None:
    path = suite(replications=2)
    texts = []
    for number in (1, 2):
        command = [sys.executable, "-m", "specsim", "gate", "--update", f"{number}.json", path.name,
                   "--workers", str(number), "--date", "2026-11-21"]  # fmt: skip
        env = {**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, cwd=tmp_path, env=env, capture_output=True)
        texts.append((tmp_path / f"{number}.json").read_bytes())
    assert texts[0] == texts[1]
    data = json.loads(texts[0])
    assert data["date"] == "2026-11-21"
    assert data["scenarios"]["calm"]["seeds"] == [0, 1]
    assert data["scenarios"]["busy, 4"]["config"]["workload"]["arrivals"]["rate"] == 60.0
    assert len(data["scenarios"]["calm"]["config_hash"]) == 12


def test_an_experiment_is_a_suite_of_one_scenario(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(tiny_config()))
    args = ("b.json", "exp.yaml", "--workers", 1)
    assert cli("gate", "--update", *args, "--tolerance", "p99_itl_ms=0")[0] == 0
    code, out, _ = cli("gate", *args)
    assert code == 0
    assert "p99_itl" in out
    code, out, _ = cli("gate", "b.json", "b.json")
    assert code == 0


def results(values: list[float], seeds: list[int] | None = None, **config: Any) -> GateResults:
    seeds = list(range(len(values))) if seeds is None else seeds
    scenario = ScenarioResults(
        config_hash="0" * 12, config={"slo": 1, **config}, seeds=seeds,
        metrics={"mean_tpot_ms": values, "output_throughput": values},
    )  # fmt: skip
    return GateResults(
        specsim_version="1", tolerances={"mean_tpot_ms": 0.02}, scenarios={"s": scenario}
    )


def verdict_of(before: list[float], after: list[float], **options: Any) -> tuple[str, GateVerdict]:
    metric = options.pop("metric", "mean_tpot_ms")
    judgement = judge(results(before), results(after, **options), {metric: 0.02})
    return judgement.comparisons[0].verdict, judgement


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ([100.0, 110.0, 120.0, 130.0], "same"),
        ([101.0, 111.0, 121.0, 131.0], "within"),  # every seed is worse, but by less than 2 %
        ([105.0, 115.1, 125.0, 135.1], "worse"),
        ([95.0, 105.1, 115.0, 125.1], "better"),
        ([90.0, 130.0, 110.0, 150.0], "uncertain"),  # 4 % worse on average, in all directions
    ],
)
def test_verdicts(after: list[float], verdict: str) -> None:
    before = [100.0, 110.0, 120.0, 130.0]
    assert verdict_of(before, after)[0] == verdict
    mirrored = {"worse": "better", "better": "worse"}
    found = verdict_of(before, after, metric="output_throughput")[0]
    assert found == mirrored.get(verdict, verdict)


def test_an_interval_wider_than_the_tolerance_does_not_pass_unsaid() -> None:
    """A gate that could not have seen a regression is not to look like one that saw none."""
    before = [100.0, 110.0, 120.0, 130.0]
    lines = gate_verdict(verdict_of(before, [90.0, 125.0, 105.0, 145.0])[1])
    assert lines[0].startswith("not shown: 1 of 1 may be worse than tolerated all the same; s: ")
    assert "more requests or replications" in lines[0]
    assert lines[-1].startswith("passed: ")
    for narrow in ([101.0, 111.0, 121.0, 131.0], before):
        assert len(gate_verdict(verdict_of(before, narrow)[1])) == 1


def test_of_what_could_not_be_seen_the_worst_that_may_be_is_named() -> None:
    """Not what is known least of: that one is faster, as far as it is known."""
    faster, slower = (
        MetricChange(name, "mean_tpot_ms", 100.0, 100.0, worsening, half_width, 0.03, "within")
        for name, worsening, half_width in (("faster", -0.05, 0.09), ("slower", 0.02, 0.08))
    )
    (line, _) = gate_verdict(GateVerdict([faster, slower], True, []))
    assert "not shown: 2 of 2 may be worse than tolerated all the same; slower: " in line


def test_a_tolerance_may_be_written_in_percent(suite: Callable[..., Path]) -> None:
    found = Suite.load(suite(tolerances={"p99_tpot_ms": "3 %", "mean_tpot_ms": 0.02}))
    assert found.tolerances == {"p99_tpot_ms": 0.03, "mean_tpot_ms": 0.02}


def test_the_paired_interval_is_students() -> None:
    judgement = verdict_of([100.0, 100.0, 100.0], [104.0, 105.0, 106.0])[1]
    # Mean 5, standard deviation 1, t(0.975, 2) = 4.3027.
    half_width = 4.302653 / 3**0.5 / 100
    assert judgement.comparisons[0].interval == pytest.approx(
        (0.05 - half_width, 0.05 + half_width)
    )


def test_intervals_hold_for_all_comparisons_together() -> None:
    tolerances = {"mean_tpot_ms": 0.02, "output_throughput": 0.02}
    before, after = results([100.0, 100.0, 100.0]), results([104.0, 105.0, 106.0])
    comparison = judge(before, after, tolerances).comparisons[0]
    assert comparison.half_width == pytest.approx(6.205347 / 3**0.5 / 100)  # t(0.9875, 2)


def test_the_unpaired_interval_is_welchs() -> None:
    before, after = [27.5, 21.0, 19.0, 23.6, 17.0], [27.1, 22.0, 20.8, 23.4, 23.4, 23.5]
    comparison = verdict_of(before, after, seeds=[7, 8, 9, 10, 11, 12])[1].comparisons[0]
    reference = ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    assert comparison.interval is not None
    low, high = (each * fmean(before) for each in comparison.interval)
    assert (low, high) == pytest.approx((reference.low, reference.high))


def test_a_single_seed_goes_by_the_tolerance_alone() -> None:
    assert verdict_of([100.0], [103.0])[0] == "worse"
    assert verdict_of([100.0], [101.0])[0] == "within"


def test_what_is_worse_is_not_shown_as_just_as_much_as_it_may_be() -> None:
    _, judgement = verdict_of([100.0], [102.03])
    assert judgement.comparisons[0].text.endswith("2.03 % worse, tolerance 2.00 %")
    shown = [list(column.cells) for column in gate_table(judgement, "gate").columns]
    assert shown[1] == ["2.0 %", "[bold red]+2.03 WORSE[/]"]


def test_from_nothing_to_something_is_infinitely_worse() -> None:
    verdict, judgement = verdict_of([0.0, 0.0], [1.0, 1.0])
    assert verdict == "worse"
    assert "0 before" in judgement.comparisons[0].text
    assert judgement.to_dict()["comparisons"][0]["worsening"] is None
    assert verdict_of([0.0, 0.0], [1.0, 1.0], metric="output_throughput")[0] == "better"


def test_a_doubt_is_a_warning_and_a_regression_an_error() -> None:
    doubt = verdict_of([100.0, 110.0, 120.0], [90.0, 140.0, 112.0])[1]
    assert doubt.is_passed
    (line,) = github_annotations(doubt, "a.yaml")
    assert line.startswith("::warning title=specsim gate%3A a.yaml%3A s::mean_tpot_ms ")
    assert "%25" in line
    hope = verdict_of([100.0, 110.0, 120.0], [80.0, 140.0, 90.0])[1]
    assert github_annotations(hope, "a.yaml") == []


def test_what_is_tested_may_differ_and_the_scenario_may_not() -> None:
    before, after = results([1.0], policy={"k": 3}), results([1.0], policy={"k": 5})
    assert judge(before, after, before.tolerances).notes == ["policy.k: 3 -> 5"]
    with pytest.raises(ConfigError, match="workload was 'nothing' and is 8, so it is another"):
        judge(before, results([1.0], policy={"k": 3}, workload=8), before.tolerances)


def test_a_field_with_a_default_that_is_new_changes_no_scenario(suite: Callable[..., Path]) -> None:
    chosen = Suite.load(suite(replications=1), ["policy=static:k=3"])
    new = run_suite(chosen, DEFAULT_TOLERANCES)
    data = new.model_dump(mode="json")
    for scenario in data["scenarios"].values():
        del scenario["config"]["replicas"], scenario["config"]["routing"]
    old = GateResults.model_validate(data)
    assert judge(old, new, DEFAULT_TOLERANCES).is_passed


def own_profile(folder: Path, delta_ms: float) -> str:
    """Write a profile whose steps take so long, and return its name."""
    profile = {
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
        "target": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": delta_ms},
        "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
    }
    (folder / "own.yaml").write_text(yaml.safe_dump(profile))
    return "own.yaml"


def test_an_edited_profile_is_another_scenario_and_no_regression(
    cli: Run, suite: Callable[..., Path], tmp_path: Path
) -> None:
    profile = own_profile(tmp_path, 8.0)
    path = suite(base=tiny_config(profile=profile, policy="off"), replications=2)
    assert cli("gate", "--update", "b.json", path, "--workers", 1)[0] == 0
    text = (tmp_path / "own.yaml").read_text()
    (tmp_path / "own.yaml").write_text(f"# the same in other words\n{text}")
    assert cli("gate", "b.json", path, "--workers", 1)[0] == 0
    own_profile(tmp_path, 16.0)
    assert cli("gate", "--update", "new.json", path, "--workers", 1)[0] == 0
    for current in (path, "new.json"):
        code, out, err = cli("gate", "b.json", current, "--workers", 1)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "': profile own.yaml has changed since the baseline, so it is" in err


def test_a_baseline_that_knows_no_inputs_is_compared_as_before(
    cli: Run, suite: Callable[..., Path], tmp_path: Path
) -> None:
    profile = own_profile(tmp_path, 8.0)
    path = suite(base=tiny_config(profile=profile, policy="off"), replications=2)
    assert cli("gate", "--update", "b.json", path, "--workers", 1)[0] == 0
    data = json.loads((tmp_path / "b.json").read_text())
    for scenario in data["scenarios"].values():
        del scenario["inputs"]
    (tmp_path / "b.json").write_text(json.dumps(data))
    assert cli("gate", "b.json", path, "--workers", 1)[0] == 0
    own_profile(tmp_path, 16.0)
    code, out, _ = cli("gate", "b.json", path, "--workers", 1)
    assert (code, "FAILED" in out) == (1, True)


def test_the_same_files_elsewhere_are_the_same_scenario(
    cli: Run, suite: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_profile(tmp_path, 8.0)
    path = suite(base=tiny_config(profile="own.yaml", policy="off"), replications=2)
    assert cli("gate", "--update", "b.json", path, "--workers", 1)[0] == 0
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    code, out, _ = cli("gate", "../b.json", path, "--workers", 1)
    assert (code, "are the same, seed by seed" in out) == (0, True)


BAD_SUITES: dict[str, tuple[dict[str, Any], str]] = {
    "no scenario": ({"scenarios": {}}, "at least 1 item"),
    "unknown field": ({"scenarios": {"a": {"workload.arivals.rate": 1}}}, "'a': workload: unknown"),
    "bad value": ({"scenarios": {"a": {"replicas": 0}}}, "scenario 'a': replicas = 0"),
    "through a value": ({"scenarios": {"a": {"profile.b": 0}}}, "'profile' is not a mapping"),
    "bad name": ({"scenarios": {"<b>": {}}}, "'<b>' is no name of a scenario; at most"),
    "unknown metric": ({"tolerances": {"mean_tpott_ms": 0.1}}, "did you mean 'mean_tpot_ms'?"),
    "no metric": ({"tolerances": {}}, "gates nothing"),
    "negative tolerance": ({"tolerances": {"mean_tpot_ms": -0.1}}, "greater than or equal to 0"),
    "no replication": ({"replications": 0}, "greater than or equal to 1"),
    "other field": ({"scenario": {}}, "did you mean 'scenarios'"),
    "no limits": ({"tolerances": {"request_goodput": 0.1}}, "has no request_goodput without"),
    "no room": ({"scenarios": {"a": {"engine.max_model_len": 100}}}, "scenario 'a': request"),
}


@pytest.mark.parametrize("case", BAD_SUITES)
def test_bad_suites_are_explained(case: str, cli: Run, suite: Callable[..., Path]) -> None:
    changes, message = BAD_SUITES[case]
    path = suite(**changes)
    code, out, err = cli("gate", "--update", "b.json", path, "--workers", 1)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not Path("b.json").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("none.json", "suite.yaml"), "does not exist; write one with `specsim gate --update`"),
        (("empty.json", "suite.yaml"), "empty.json: is empty"),
        (("other.json", "suite.yaml"), "is not a baseline of this version"),
        (("cut.json", "suite.yaml"), "'scenarios' is missing"),
        (("b.json", "other.json"), "is not a baseline of this version"),
        (("b.json", "none.yaml"), "none.yaml: cannot be read"),
        (("b.json", "suite.yaml", "--set", "replicas=2"), "replicas was 1 and is 2"),
        (("b.json", "suite.yaml", "--set", "seed=5"), "--set seed=5: is not used, for the"),
        (("b.json", "suite.yaml", "--tolerance", "mean_itl_ms=1%"), "'mean_itl_ms' was not kept"),
        (("b.json", "suite.yaml", "--tolerance", "mean_itl=1%"), "did you mean 'mean_itl_ms'"),
        (("b.json", "suite.yaml", "--tolerance", "mean_itl_ms"), "expected METRIC=SHARE"),
        (("b.json", "suite.yaml", "--tolerance", "mean_itl_ms=nan"), "expected METRIC=SHARE"),
        (("b.json", "suite.yaml", "--date", "2026-11-21"), "--date: cannot be used without"),
        (("b.json", "b.json", "--set", "replicas=2"), "--set: cannot be used with results"),
        (("b.json", "suite.yaml", "--junit", "./b.json"), "--junit: cannot be used on its own"),
        (("b.json", "suite.yaml", "--junit", "./v.json"), "--junit: cannot be used with the file"),
        (("b.json", "suite.yaml", "--set", "policy.k=2"), "every scenario sets 'policy'"),
        (("--update", "c.json", "b.json"), "CURRENT: cannot be used with --update"),
        (("--update", "c.json", "suite.yaml", "--github"), "--github: cannot be used with"),
        (("--update", "c.json", "suite.yaml", "--date", "today"), "must be a day, such as"),
        (("--update", "other.json", "suite.yaml"), "holds no baseline, so it is left alone"),
    ],
)  # fmt: skip
def test_bad_calls_are_explained(
    args: tuple[str, ...], message: str, cli: Run, suite: Callable[..., Path], tmp_path: Path
) -> None:
    path = suite(replications=1, scenarios={"one": {"policy": "off"}})
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "cut.json").write_text(
        '{"format": "specsim gate 1", "specsim_version": "1", "tolerances": {"mean_e2el_ms": 1}}'
    )
    assert cli("gate", "--update", "b.json", path.name, "--workers", 1)[0] == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    code, out, err = cli("gate", *args, "--workers", 1, *([] if "--update" in args else
                                                          ["--json", "v.json"]))  # fmt: skip
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    if (verdict := tmp_path / "v.json").exists():
        told = json.loads(verdict.read_text())
        assert (told["passed"], told["is_crash"]) == (False, False)
        assert told["error"] in err
        verdict.unlink()
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    assert after == before


def test_a_run_that_crashes_is_told_in_every_file(
    cli: Run, suite: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "gate_crash.py").write_text(
        "from specsim.decisions.policy import Policy\n\n\nclass Crash(Policy):\n"
        "    kind: str = 'crash'\n\n    def draft_lens(self, batch, memory):\n"
        "        return 1 // 0\n"
    )
    path = suite(replications=1, scenarios={"one": {"policy": "static:k=1"}})
    assert cli("gate", "--update", "b.json", path.name, "--workers", 1)[0] == 0
    path = suite(replications=1, scenarios={"one": {"policy": "gate_crash:Crash"}})
    files = ("--json", "v.json", "--junit", "v.xml", "--workers", 1)
    assert cli("gate", "b.json", "b.json", *files)[0] == 0
    code, out, err = cli("gate", "b.json", path.name, *files, "--github")
    assert code == 3
    [annotation] = out.splitlines()
    assert annotation.startswith(f"::error title=specsim gate%3A {path.name} against b.json::")
    assert "ZeroDivisionError" in annotation
    assert "ZeroDivisionError" in err
    assert "gate_crash.py, line 8" in err
    assert json.loads((tmp_path / "v.json").read_text())["is_crash"]
    assert 'type="crash"' in (tmp_path / "v.xml").read_text()
    assert cli("gate", "b.json", path.name, *files, "--tolerance", "mean_e2el=2%")[0] == 2
    assert "no metric 'mean_e2el'" in json.loads((tmp_path / "v.json").read_text())["error"]
    assert "no metric" in (tmp_path / "v.xml").read_text()
