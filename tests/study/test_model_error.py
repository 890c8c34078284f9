"""How far step times have been off, as it reaches latencies, speed-ups and crossover loads."""

from collections.abc import Callable
from io import StringIO
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import tiny_config
from rich.console import Console

from specsim.acceptance.bernoulli import Bernoulli
from specsim.profile import load_profile
from specsim.profile.model_error import QUANTILE, TERMS, TimeError, known_spreads, moved
from specsim.profile.profile import NOT_MEASURED
from specsim.results.metrics import Slo
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.show.render.run_tables import comparison_table
from specsim.show.render.study_tables import tuning_tables, tuning_verdict
from specsim.study.capacity import Capacity, Goal, Hardware, find_capacity
from specsim.study.compare import compare
from specsim.study.paired import speed_up
from specsim.study.tune import tune

POISSON, CLOSED = {"kind": "poisson", "rate": 20.0}, {"kind": "closed_loop", "concurrency": 16}
COMPOSED = "h200/llama-3.1-8b"


def experiment(profile: str, arrivals: dict[str, Any], policy: str = "off") -> Experiment:
    config = tiny_config(profile=profile, policy=policy)
    lengths = {"kind": "constant", "prompt": 256, "output": 64}
    config["workload"] = {"arrivals": arrivals, "lengths": lengths, "num_requests": 200}
    config["engine"] = {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 5}}
    return Experiment.parse(config, "small")


@pytest.mark.parametrize("arrivals", [POISSON, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize("policy", ["off", "static:k=3"])
@pytest.mark.parametrize("profile", [COMPOSED, "l40s/qwen3-8b"])
def test_the_error_of_a_run_is_what_simulations_of_slower_servers_show(
    profile: str, policy: str, arrivals: dict[str, Any]
) -> None:
    rate = {"rate": 5.0} if profile.startswith("l40s") and "rate" in arrivals else {}
    given = experiment(profile, arrivals | rate, policy)
    usual = Summary(simulate(given))
    assert usual.time_error is not None

    def latency(size: float, term: str) -> float:
        slower = moved(load_profile(profile), term, size)
        return float(Summary(simulate(given, profile=slower)).data["mean_e2el_ms"])

    for term, found in zip(TERMS, usual.time_error.terms, strict=True):
        spread = known_spreads().terms[term]
        really = log(latency(0.1, term) / latency(-0.1, term)) / 0.2 * spread
        # Of all that the run may be off by, which is what a term's share of it is for. Clients in
        # lock-step send their prompts at once, which compute longer than in an average step.
        assert found == pytest.approx(really, abs=0.4 * usual.time_error.spread)


def test_a_tree_is_drafted_in_as_many_passes_as_its_paths_have_tokens() -> None:
    """The 20 nodes of a tree of 2 tokens take about what a chain of 2 does."""
    given, lens = experiment(COMPOSED, CLOSED), []
    for policy in ("static:k=2", "static_tree:widths=[4,4]"):
        own = given.replace(policy=policy).with_engine(async_scheduling=False)
        lens.append(Summary(simulate(own)).usual_step.draft_len)
    assert lens == [2, 2]


def test_a_tree_of_which_nothing_is_accepted_is_drafted_all_the_same() -> None:
    given = experiment(COMPOSED, CLOSED).replace(
        policy="static_tree:widths=[4,4]", acceptance="bernoulli:alpha=0"
    )
    run = Summary(simulate(given.with_engine(async_scheduling=False)))
    assert run.usual_step.draft_len == 1


def test_what_two_runs_share_cancels() -> None:
    one, other = TimeError((0.1, 0.0), 0.03), TimeError((0.1, 0.04), 0.0)
    assert one.spread_against(other) == pytest.approx(np.hypot(0.04, 0.03))
    found = speed_up([2.0, 2.0], [1.0, 1.0], (one, other))
    assert found.model_high is not None
    assert log(found.model_high / found.mean) == pytest.approx(0.05 * QUANTILE)
    assert speed_up([2.0], [1.0], (one, None)).model_low is None
    assert one.spread_against(one) == 0.0  # runs of the same steps


def printed(table: object) -> str:
    stream = StringIO()
    Console(file=stream, width=200).print(table)
    return stream.getvalue()


@pytest.mark.parametrize("count", [1, 5])
def test_a_comparison_says_both_intervals(count: int) -> None:
    policies = [f"static:k={k}" for k in range(1, count + 1)]
    found = compare(experiment(COMPOSED, POISSON), ["off", *policies], replications=2)
    ups = [each.speed_up for each in found.results]
    assert ups[0].model_low == ups[0].model_high == 1.0
    for each in ups[1:]:
        assert each.model_low is not None
        assert each.model_high is not None
        assert each.model_low < each.mean < each.model_high
        # At least what two runs differ by whatever their steps consist of.
        assert log(each.model_high / each.mean) > QUANTILE * known_spreads().rest * 2**0.5
    text = printed(comparison_table(found, ""))
    assert f"{ups[1].model_low:.3f} - {ups[1].model_high:.3f}" in text
    saved = found.to_dict()["static:k=1"]["speed_up"]
    assert (saved["model_low"], saved["model_high"]) == (ups[1].model_low, ups[1].model_high)


def test_of_profiles_whose_errors_nobody_has_measured_nothing_is_said() -> None:
    found = compare(experiment("h100/llama-3.1-8b", POISSON), ["static:k=1"], replications=1)
    assert {each.speed_up.model_low for each in found.results} == {None}
    assert "4 in 5" not in printed(comparison_table(found, ""))


@pytest.fixture
def fitted(tmp_path: Path) -> Callable[[int], str]:
    """A profile that was fitted to runs whose sequences have so many tokens."""
    built = load_profile(COMPOSED)

    def written(context_len: int) -> str:
        lens = {"context_lens": (context_len, context_len)}
        told = {"notes": built.provenance.notes.replace(NOT_MEASURED, "")}
        profile = built.model_copy(
            update={
                "valid_range": built.valid_range.model_copy(update=lens),
                "provenance": built.provenance.model_copy(update=told),
            }
        )
        path = tmp_path / f"fitted-{context_len}.yaml"
        path.write_text(yaml.safe_dump(profile.model_dump(mode="json", exclude_none=True)))
        return str(path)

    return written


def capacity_of(given: Experiment, profile: str) -> Capacity:
    goal = Goal(Slo(ttft_ms=2000, tpot_ms=50), 0.95, 0.05, True, None, 2, 100, None)
    hardware = [Hardware("given", load_profile(profile))]
    return find_capacity(given, goal, hardware, {"off": given.effective_policy})


@pytest.mark.slow
def test_what_was_fitted_at_one_context_is_told_not_to_be_known_at_others(
    fitted: Callable[[int], str],
) -> None:
    given = experiment(fitted(300), CLOSED)
    found = compare(given, ["static:k=1"], replications=2)
    assert found.results[1].speed_up.model_low is not None
    assert not found.warnings
    given = experiment(elsewhere := fitted(4000), CLOSED)
    found = compare(given, ["static:k=1"], replications=2)
    assert found.results[1].speed_up.model_low is None
    given = given.replace(engine=given.engine.model_copy(update={"max_num_seqs": 2}))
    capacity = capacity_of(given, elsewhere)
    assert capacity.found[0].model_interval is None
    tuning = tune(given, max_k=1, replications=2)
    for warnings in (found.warnings, capacity.notes, tuning.warnings):
        assert any("here they have 288 on average" in line for line in warnings)


def test_a_server_that_does_not_keep_up_has_no_such_interval() -> None:
    crowded = experiment(COMPOSED, {"kind": "poisson", "rate": 2000.0})
    crowded = crowded.replace(engine=crowded.engine.model_copy(update={"max_num_seqs": 4}))
    summary = Summary(simulate(crowded))
    assert summary.is_overloaded
    assert summary.time_error is None


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "alpha"), [(16, 0.2), (256, 0.4)])
def test_a_tuning_says_how_far_the_profile_moves_a_crossover(slots: int, alpha: float) -> None:
    given = experiment(COMPOSED, CLOSED)
    engine = given.engine.model_copy(update={"max_num_seqs": slots})
    workload = given.workload.model_copy(update={"num_requests": 100})
    given = given.replace(engine=engine, workload=workload, acceptance=Bernoulli(alpha=alpha))
    found = tune(given, max_k=1, replications=2)
    gain = found.batches.points[0].gains[1]
    assert gain.model_low is not None
    assert gain.model_high is not None
    assert gain.model_low < gain.mean < gain.model_high
    [crossover] = found.crossovers
    loads = [crossover.model_low, crossover.load, crossover.model_high]
    known = [load for load in loads if load is not None]
    assert len(known) == 2  # one end is open
    assert known == sorted(set(known))
    assert all("4 in 5 servers" in printed(each) for each in tuning_tables(found, ""))
    assert any("four in five servers measured:" in line for line in tuning_verdict(found))
