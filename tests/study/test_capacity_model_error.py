"""Capacity says how far its step times may be off, as on servers that were measured."""

import json
from math import log
from pathlib import Path

import pytest
import yaml
from conftest import Run, tiny_config

from specsim.profile import Profile, load_profile
from specsim.profile.model_error import QUANTILE
from specsim.results.metrics import Slo
from specsim.run.experiment import Experiment
from specsim.study.capacity import Found, Goal, Hardware, find_capacity

SLO = Slo(ttft_ms=60, tpot_ms=20)


def slowed(profile: Profile, factor: float) -> Profile:
    """Return a profile of kind linear whose steps take so many times as long."""
    names = ("alpha_ns", "gamma_us", "delta_ms")
    target = {name: factor * getattr(profile.target, name) for name in names}
    overhead = {
        name: factor * getattr(profile.overhead, name) for name in ("step_ms", "request_us")
    }
    return profile.model_copy(
        update={
            "target": profile.target.model_copy(update=target),
            "overhead": profile.overhead.model_copy(update=overhead),
        }
    )


def capacity_of(profile: Profile, slo: Slo) -> Found:
    config = tiny_config(policy="off")
    config["workload"]["num_requests"] = 300
    experiment = Experiment.parse(config, "small")
    goal = Goal(slo, 0.95, 0.01, False, None, 2, 300, None)
    hardware, policies = [Hardware("given", profile)], {"off": experiment.effective_policy}
    [found] = find_capacity(experiment, goal, hardware, policies).found
    return found


@pytest.mark.parametrize("slo", [SLO, Slo(e2el_ms=1e6)], ids=["limits", "backlog"])
def test_the_rate_of_a_slower_server_follows_from_the_probes(slo: Slo) -> None:
    profile = load_profile(tiny_config()["profile"])
    usual = capacity_of(profile, slo)
    assert usual.rate is not None
    for factor in (0.9, 1.1):
        really = capacity_of(slowed(profile, factor), slo).rate
        assert really is not None
        # Better than the rate of the usual server, which is a tenth off at least.
        assert usual.rate_if(factor) == pytest.approx(really, rel=0.05)
    assert usual.rate_if(1.0) == usual.rate


def test_capacity_tells_both_intervals(cli: Run, tmp_path: Path) -> None:
    config = tiny_config(policy="off") | {"profile": "h200/llama-3.1-8b"}
    config["workload"]["num_requests"] = 100
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(config))
    options = ("--replications", 2, "--num-requests", 100, "--workers", 1, "--out", "done")
    code, _, err = cli("capacity", "e.yaml", "--slo", "ttft:2000,tpot:50", *options)
    assert code == 0
    [found] = json.loads((tmp_path / "done" / "capacity.json").read_text())["results"]
    low, high = found["requests_per_second_model_interval"]
    assert low < found["requests_per_second"] < high
    # Steps are off by a few percent, and so is the rate, if not by more.
    assert 0.04 < log(high / low) / (2 * QUANTILE) < 0.5
    assert f"{low:.3g} to {high:.3g} with step times as far off as on four in five servers" in err


def test_of_what_nobody_has_measured_nothing_is_said(cli: Run, tmp_path: Path) -> None:
    config = tiny_config(policy="off")
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(config))
    options = ("--replications", 2, "--num-requests", 60, "--workers", 1, "--out", "done")
    policies = ("--policies", "off", "static:k=1")
    code, _, err = cli("capacity", "e.yaml", "--slo", "ttft:2000,tpot:50", *options, *policies)
    assert code == 0
    both = "h100 off, h100 static:k=1: how far such step times are off, nobody has measured"
    assert err.count(both) == err.count("nobody has measured") == 1
