"""Comparisons: paired, reproducible, and fair."""

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from specsim.cli.options import show
from specsim.core.errors import ConfigError
from specsim.policies import Policy
from specsim.policies.static import Off
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.show.render import WideTable
from specsim.show.render.run_tables import comparison_table
from specsim.study.compare import Comparison, PolicyResult, compare, folder_name, parse_policies
from specsim.study.paired import mean_and_half_width, regret, speed_up

STATISTICS, KINDS = ("mean", "p50", "p90", "p99"), ("ttft", "tpot", "itl", "e2el")


def test_speed_up_is_the_geometric_mean_with_a_paired_interval() -> None:
    value = speed_up([2.0, 8.0], [1.0, 2.0])
    assert value.mean == pytest.approx(8**0.5)
    # t(1, 97.5 %) = 12.706; logs are ln 2 and ln 4, their standard error ln 2 / 2.
    assert value.high == pytest.approx(8**0.5 * 2 ** (12.706 / 2), rel=1e-3)
    assert value.low == pytest.approx(8**0.5 / 2 ** (12.706 / 2), rel=1e-3)


def test_a_single_replication_has_no_interval() -> None:
    assert speed_up([2.0], [1.0]).low is None


def test_the_interval_is_students() -> None:
    assert mean_and_half_width([5.0]) == (5.0, None)
    mean, half_width = mean_and_half_width([1.0, 2.0, 3.0])
    # t(2, 97.5 %) = 4.303; the standard deviation is 1.
    assert (mean, half_width) == (2.0, pytest.approx(4.303 / 3**0.5, rel=1e-3))


def test_regret_is_the_geometric_mean_in_percent_with_a_paired_interval() -> None:
    value = regret([1.0, 2.0], [2.0, 8.0], "oracle")
    assert value.reference == "oracle"
    assert value.mean == pytest.approx(100 * (8**0.5 - 1))
    assert value.high == pytest.approx(100 * (8**0.5 * 2 ** (12.706 / 2) - 1), rel=1e-3)
    assert value.low == pytest.approx(100 * (8**0.5 / 2 ** (12.706 / 2) - 1), rel=1e-3)


def test_regret_is_negative_when_better_and_nothing_against_oneself() -> None:
    assert regret([4.0], [3.0], "x").mean == pytest.approx(-25.0)
    itself = regret([4.0, 5.0], [4.0, 5.0], "x")
    assert (itself.mean, itself.low, itself.high) == (0.0, 0.0, 0.0)


def comparison(latencies: dict[str, list[float]], overloaded: str = "") -> Comparison:
    """Return a comparison of policies with these mean latencies per replication."""
    fields = {f"{statistic}_{kind}_ms": 1.0 for statistic in STATISTICS for kind in KINDS}
    fields |= {"request_throughput": 1.0, "output_throughput": 5.0}

    def result(label: str, policy: Policy) -> PolicyResult:
        own = {
            "stability": "overloaded" if label == overloaded else "stable",
            "tokens_per_step": 1.5,
            "num_preemptions": 0,
        }
        summaries = [
            {**fields, "mean_e2el_ms": value, "specsim": own} for value in latencies[label]
        ]
        return PolicyResult(label, policy, summaries, speed_up(latencies["off"], latencies[label]))

    policies = parse_policies(list(latencies))
    return Comparison([result(*item) for item in policies.items()], len(latencies["off"]))


def test_standings_rank_by_speed_and_name_their_references() -> None:
    found = comparison(
        {"off": [8.0], "static:k=1": [5.0], "static:k=3": [4.0], "oracle": [2.0]}
    ).standings
    assert [(s.rank, s.result.label) for s in found] == [
        (None, "oracle"), (1, "static:k=3"), (2, "static:k=1"), (3, "off"),
    ]  # fmt: skip
    assert [s.regrets["oracle"].mean for s in found] == pytest.approx([0.0, 100.0, 150.0, 300.0])
    best = [s.regrets["best_static"] for s in found]
    assert {value.reference for value in best} == {"static:k=3"}
    assert [value.mean for value in best] == pytest.approx([-50.0, 0.0, 25.0, 100.0])


def test_regret_is_told_against_the_bound_that_does_not_know_the_luck() -> None:
    found = comparison({"off": [8.0], "bayes": [4.0], "static:k=1": [5.0]}).standings
    assert [s.regrets["bayes"].mean for s in found] == pytest.approx([0.0, 25.0, 100.0])
    assert found[0].to_dict()["regret_bayes"]["reference"] == "bayes"


def test_without_the_references_there_is_no_regret() -> None:
    standing = comparison({"off": [8.0]}).standings[0]
    assert not standing.regrets
    assert standing.to_dict()["regret_oracle"] is None


def test_a_tie_is_an_interval_that_holds_no_difference() -> None:
    latencies = {
        "off": [8.0, 8.1, 8.2], "static:k=1": [4.0, 4.1, 4.2], "static:k=2": [4.1, 4.0, 4.3],
    }  # fmt: skip
    found = comparison(latencies).standings
    assert [(s.result.label, s.is_tied) for s in found] == [
        ("static:k=1", None), ("static:k=2", True), ("off", False),
    ]  # fmt: skip


def test_one_replication_cannot_tell_a_tie() -> None:
    assert {s.is_tied for s in comparison({"off": [8.0], "static": [8.0]}).standings} == {None}


FOUR = {
    "off": [8.0, 8.1], "static:k=1": [5.0, 5.1], "static:k=2": [5.1, 5.0], "oracle": [2.0, 2.1],
}  # fmt: skip


def text_of(table: Table | WideTable, width: int = 200) -> str:
    console = Console(width=width, file=StringIO(), record=True)
    console.print(table)
    return console.export_text()


def test_four_policies_stay_columns() -> None:
    assert "ITL p99, ms" in text_of(comparison_table(comparison(FOUR), "few"))


def test_five_policies_become_a_scoreboard() -> None:
    shown = comparison({**FOUR, "static:k=3": [4.0, 4.1]}, overloaded="static:k=3")
    lines = [line.split() for line in text_of(comparison_table(shown, "many")).splitlines()]
    rows = {words[0]: words[1:] for words in lines if words and words[0].isdigit()}
    assert [words[1] for words in lines if words[:1] == ["bound"]] == ["oracle"]
    assert rows["1"][:2] == ["static:k=3", "OVERLOADED"]
    assert rows["3"][:2] == ["=", "static:k=2"]
    assert sum("OVERLOADED" in words for words in lines) == 1


@pytest.mark.parametrize(("width", "num_tables"), [(160, 1), (100, 2)])
def test_a_scoreboard_too_wide_for_the_terminal_becomes_two(width: int, num_tables: int) -> None:
    shown = comparison({**FOUR, "static:k=3": [4.0, 4.1]})
    text = text_of(comparison_table(shown, "many"), width)
    assert text.count("static:k=1 ") == num_tables
    assert "…" not in text


@pytest.mark.parametrize("width", [30, 40, 80])
def test_a_scoreboard_keeps_names_and_numbers_on_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 40 columns it had no names, and of numbers their first digits."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    shown = comparison({**FOUR, "static:k=3": [4.0, 4.1]})
    show(comparison_table(shown, "many"))
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert all(sum(label in line for line in lines) >= 2 for label in ("static:k=1", "static:k=3"))
    assert all(f" {each.speed_up.mean:.3f}" in text for each in shown.results)


def test_policies_are_named_or_given(tiny: Callable[..., Experiment]) -> None:
    """From Python as on the command line: in short form, or by label."""
    found = compare(tiny(), ["static:k=2"], replications=1)
    assert [each.label for each in found.results] == ["off", "static:k=2"]
    given = compare(tiny(), parse_policies(["static:k=2"]), replications=1)
    assert given.to_dict() == found.to_dict()
    mixed = compare(tiny(), {"off": "off", "two": "static:k=2"}, replications=1)
    assert [each.latencies for each in mixed.results] == [each.latencies for each in given.results]
    assert len(compare(tiny(), "off", replications=1).results) == 1
    assert parse_policies("static:k=2") == parse_policies(["static:k=2"])
    with pytest.raises(ConfigError, match="'off', which speed-ups are over, is missing"):
        compare(tiny(), {"a": Off()}, replications=1)
    for number, said in ((0, "0"), (2**63, "9223372036854775808"), (1.5, "1.5"), ("2", "'2'")):
        with pytest.raises(ConfigError, match=f"replications = {said} must be a whole number"):
            compare(tiny(), ["off"], replications=number)
    with pytest.raises(ConfigError, match="no kind 'nope'; "):
        compare(tiny(), {"off": "nope"}, replications=1)
    for workers in (0, -1, 2.5):
        with pytest.raises(ConfigError, match=f"workers = {workers} must be a whole number"):
            compare(tiny(), ["off"], replications=1, workers=workers)


@pytest.mark.parametrize("text", ["off,static:k=2", "off static:k=2"])
def test_policies_that_were_given_as_one_are_told_apart(text: str) -> None:
    with pytest.raises(ConfigError, match=r"names several as one; .* by spaces.*: off static:k=2"):
        parse_policies([text])


def test_the_baseline_is_always_there(tiny: Callable[..., Experiment]) -> None:
    result = compare(tiny(), parse_policies(["static:k=2"]), replications=2)
    assert [policy.label for policy in result.results] == ["off", "static:k=2"]
    assert result.results[0].speed_up.mean == 1.0


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_processes_changes_nothing(
    workers: int, tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    policies = parse_policies(["static:k=1", "static:k=3"])
    alone = compare(tiny(), policies, replications=2, folder=tmp_path / "alone")
    together = compare(
        tiny(), policies, replications=2, workers=workers, folder=tmp_path / "together"
    )
    assert alone.to_dict() == together.to_dict()
    for label in policies:
        for name in ("summary.json", "requests.parquet", "steps.parquet"):
            file = f"{folder_name(label)}/{name}"
            assert (tmp_path / "alone" / file).read_bytes() == (
                tmp_path / "together" / file
            ).read_bytes()


def test_all_policies_meet_the_same_requests(tiny: Callable[..., Experiment]) -> None:
    result = compare(tiny(), parse_policies(["static:k=3"]), replications=1)
    totals = {policy.summaries[0]["total_output_tokens"] for policy in result.results}
    assert len(totals) == 1


def test_replications_that_are_one_run_are_told(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    path = tmp_path / "recorded.jsonl"
    row = {"prompt_len": 9, "output_len": 8, "accepted_lens_eagle3": [3, 1, 0, 2, 2, 1, 1, 0]}
    path.write_text("".join(f"{json.dumps({**row, 'arrived_at': n * 0.05})}\n" for n in range(9)))
    experiment = tiny(workload={"arrivals": {"kind": "trace", "path": str(path)}})
    recorded = experiment.replace(acceptance={"kind": "recorded", "proposer": "eagle3"})
    [note] = compare(recorded, ["static:k=2"], replications=2).notes
    assert note.startswith("all replications of off, static:k=2 are the same, for nothing in them")
    assert compare(recorded, ["static:k=2"], replications=1).notes == []
    assert compare(experiment, ["static:k=2"], replications=2).notes == []  # drafts have luck


def test_one_policy_that_needs_synchronous_steps_makes_all_synchronous(
    tiny: Callable[..., Experiment],
) -> None:
    result = compare(tiny(), parse_policies(["static:k=3", "oracle"]), replications=1)
    assert not any(policy.summaries[0]["specsim"]["is_async"] for policy in result.results)
    note = "synchronous scheduling for all, because oracle needs it"
    assert result.warnings[0] == note
    assert [policy["warnings"][0] for policy in result.to_dict().values()] == [note] * 3


def test_all_policies_that_need_synchronous_steps_are_named(
    tiny: Callable[..., Experiment],
) -> None:
    result = compare(tiny(), parse_policies(["oracle", "confidence"]), replications=1)
    assert result.notes == ["synchronous scheduling for all, because oracle and confidence need it"]


def test_the_schedule_that_tune_writes_is_compared_as_a_policy(
    tiny: Callable[..., Experiment],
) -> None:
    ranges = [[1, 4, 3], [5, 64, 1]]
    speculation = {"method": "eagle3", "num_speculative_tokens": 3}
    engine = {"num_gpu_blocks": 400, "max_model_len": 1024, "max_num_seqs": 16}
    own = {**speculation, "num_speculative_tokens_per_batch_size": ranges}
    labels = ["static:k=3", "schedule:ranges=[[1,4,3],[5,64,1]]"]
    experiment = tiny(engine={**engine, "speculative_config": own})
    found = compare(experiment, parse_policies(labels), replications=1)
    plain = tiny(engine={**engine, "speculative_config": speculation})
    same = compare(plain, parse_policies(labels), replications=1)
    assert found.notes == [f"vLLM's schedule of k is left out; as a policy it is {labels[1]}"]
    times = [each.mean("mean_e2el_ms") for each in found.results]
    assert times == [each.mean("mean_e2el_ms") for each in same.results]


def test_policies_that_a_pipeline_cannot_have_are_named(
    tiny: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    drafts = {"eagle3": {"basis": "pass", "step_ms": 0.5}}
    profile = constant_step(delta_ms=4.0, stage_shares=[0.5, 0.5], drafts=drafts)
    with pytest.raises(ConfigError, match="oracle: must see each step's outcome before the next"):
        compare(tiny(profile=profile), parse_policies(["goodput", "oracle"]), replications=1)
    found = compare(tiny(profile=profile), parse_policies(["off", "joint"]), replications=1)
    assert not found.notes


def test_pools_are_pipelines_where_their_own_profiles_are(
    tiny: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    plain, staged = (
        constant_step(delta_ms=4.0, stage_shares=shares, drafts={"eagle3": {"token_us": 9}})
        for shares in ([1.0], [0.5, 0.5])
    )
    pools = {"prefill": {"profile": plain}, "decode": {"profile": plain}}
    found = compare(tiny(profile=staged, pools=pools), parse_policies(["oracle"]), replications=1)
    assert found.notes == ["synchronous scheduling for all, because oracle needs it"]
    pools = {"prefill": {"profile": staged}, "decode": {"profile": plain}}
    beside = tiny(profile=plain, pools=pools, policy={"kind": "oracle"})
    found = compare(beside, parse_policies(["oracle"]), replications=1)
    assert found.results[-1].mean("duration") == Summary(simulate(beside)).data["duration"]
    pools["decode"] = {"profile": staged}
    with pytest.raises(ConfigError, match="oracle: must see each step's outcome before the next"):
        compare(tiny(profile=plain, pools=pools), parse_policies(["oracle"]), replications=1)


def test_where_steps_are_synchronous_anyway_nothing_is_said(
    tiny: Callable[..., Experiment],
) -> None:
    engine = {**tiny().engine.model_dump(exclude_none=True), "async_scheduling": False}
    result = compare(tiny(engine=engine), parse_policies(["oracle"]), replications=1)
    assert result.notes == []
    assert compare(tiny(), parse_policies(["static"]), replications=1).notes == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("statik", "did you mean 'static'"),
        ("static:k=0", r"k = 0"),
        ("static:j=1", "unknown field 'j'"),
    ],
)
def test_bad_policies_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_policies([text])


@pytest.mark.parametrize("texts", [["static:k=1", "off", "static:k=1"], ["off", "off"]])
def test_a_policy_given_twice_is_named(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"--policies {texts[-1]}: is given 2 times"):
        parse_policies(texts)
