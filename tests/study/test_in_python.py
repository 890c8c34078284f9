"""Studies called from Python: what is wrong is said of arguments, not of options of a command."""

import json
import pickle
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import tiny_config

from specsim.api import (
    Experiment,
    Summary,
    capacity,
    compare,
    gate,
    parse_policies,
    plan,
    simulate,
    sweep,
    tune,
)
from specsim.core.errors import ConfigError, SpecsimError
from specsim.study.split import Split

SERVER = "vllm serve meta-llama/Llama-3.1-8B-Instruct"


def tiny(**fields: Any) -> Experiment:
    return Experiment.parse({**tiny_config(), **fields}, "tiny")


def swept(**asked: Any) -> Any:
    """Run a sweep twice into one folder, in the working directory."""
    axes: Any = [{"policy": ["off", "static:k=2"]}]
    Path("s.yaml").write_text(yaml.safe_dump({"base": tiny_config(), "axes": axes}))
    sweep("s.yaml", "done")
    Path("s.yaml").write_text(yaml.safe_dump({"base": tiny_config(), "axes": axes, **asked}))
    return sweep("s.yaml", "done", resume="replications" in asked)


ERRORS: dict[str, Callable[[], object]] = {
    "policies off: is given 2 times": lambda: parse_policies(["off", "off"]),
    "policies static:k=x: k = 'x'": lambda: compare(tiny(), ["static:k=x"], replications=1),
    "policies static:k=9: policy.k": lambda: compare(tiny(), ["static:k=9"]),
    "max_k 0: ": lambda: tune(tiny(), max_k=0),
    "slo is missing": lambda: capacity(tiny()),
    "slo x:1: no metric": lambda: capacity(tiny(), slo="x:1"),
    "gpus: 'h100' is given twice": lambda: capacity(tiny(), slo="ttft:9", gpus="h100, h100"),
    "policies statik: no kind": lambda: capacity(tiny(), slo="ttft:9", policies="statik"),
    "tolerance 9: must be from": lambda: capacity(tiny(), slo="ttft:9", tolerance=9),
    "num_requests 0: must be a whole": lambda: capacity(tiny(), slo="ttft:9", num_requests=0),
    "max_requests 0.5: must be a wh": lambda: capacity(tiny(), slo="ttft:9", max_requests=0.5),
    "or is_closed=True": lambda: capacity(
        tiny(workload={**tiny_config()["workload"], "arrivals": {"kind": "burst"}}), slo="ttft:9"
    ),
    "give either vllm '": plan,
    "pools=True: is of vLLM's transfers; leave it out with sglang": lambda: plan(
        sglang=SERVER, pools=True
    ),
    "api_price 1: should be": lambda: plan(vllm=SERVER, api_price="1"),
    "overrides k: expected": lambda: sweep("s.yaml", "out", overrides=["k"]),
    "go on with it by resume=True": swept,
    "resume=True: belongs to another sweep": lambda: swept(replications=2),
    "tolerances x=0.1: ": lambda: gate("b.json", "r.json", tolerances={"x": 0.1}),
}


@pytest.mark.parametrize("words", ERRORS)
def test_an_error_names_the_argument(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(
        yaml.safe_dump({"base": tiny_config(), "axes": [{"policy": ["off"]}]})
    )
    with pytest.raises(SpecsimError) as caught:
        ERRORS[words]()
    assert words in str(caught.value)
    assert "--" not in str(caught.value)


def test_plan_shows_all_that_it_takes() -> None:
    assert {"vllm", "qps", "workers", "on_stage"} <= signature(plan).parameters.keys()
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpu'"):
        plan(vllm=SERVER, gpu="h100")


def test_what_is_meant_for_a_shell_stays() -> None:
    """A server's own flags, and another command that one may run."""
    with pytest.raises(SpecsimError, match="vllm: --pipeline-parallel-size 0: must be at l"):
        plan(vllm=f"{SERVER} --pipeline-parallel-size 0")


def test_a_run_of_unusual_size_is_allowed_by_the_environment() -> None:
    many = tiny(workload={**tiny_config()["workload"], "num_requests": 10**8})
    with pytest.raises(SpecsimError, match="go on with SPECSIM_LARGE=1 in the environment"):
        simulate(many)


@pytest.mark.parametrize(
    "overrides",
    [
        "workload.num_requests=3",
        {"workload.num_requests": 3, "seed": 2},
        {"workload.num_requests": np.int64(3)},
    ],
)
def test_overrides_are_a_text_or_a_mapping_too(
    overrides: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    axes: Any = [{"policy": ["off"]}]
    Path("s.yaml").write_text(yaml.safe_dump({"base": tiny_config(), "axes": axes}))
    sweep("s.yaml", "done", overrides=overrides)
    record = json.loads(next(Path("done", "points").glob("*.json")).read_text())
    assert record["metrics"]["num_prompts"] == 3


@pytest.mark.parametrize(
    "given", ["exp.yaml", Path("exp.yaml"), {"profile": "h100/llama-3.1-8b"}, None]
)
def test_what_is_no_experiment_says_how_to_get_one(given: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: simulate(given),
        lambda: compare(given, ["off"], replications=1),
        lambda: capacity(experiment=given),
    ]
    for call in calls:
        with pytest.raises(
            SpecsimError, match=r"should be an Experiment; Experiment\.load\(PATH\)"
        ):
            call()


@pytest.mark.parametrize(
    "function", [capacity, compare, gate, parse_policies, plan, simulate, sweep, tune]
)
def test_processes_of_the_user_find_each_function(function: Callable[..., object]) -> None:
    assert pickle.loads(pickle.dumps(function)) is function


def test_whatever_saves_makes_its_folder(tmp_path: Path) -> None:
    slow = tiny(workload={**tiny_config()["workload"], "arrivals": {"kind": "poisson", "rate": 1}})
    results: dict[str, Any] = {
        "summary.json": Summary(simulate(tiny())),
        "tune.json": tune(tiny(), max_k=1, replications=2),
        "capacity.json": capacity(slow, slo="ttft:9000", num_requests=20, replications=2),
        "split.json": Split(1, []),
    }
    for name, found in results.items():
        found.save(tmp_path / name / "new")
        assert (tmp_path / name / "new" / name).is_file()
        (tmp_path / name / "file").touch()
        with pytest.raises(ConfigError, match="file: is a file; name a folder"):
            found.save(str(tmp_path / name / "file"))
