"""Relative paths follow the file that names them, and where they lead nowhere, the old way."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Run, tiny_config
from kernel_folder import make_kernel_folder

import specsim
from specsim.api import Summary, compare, load_profile, parse_policies, read_trace, simulate, sweep
from specsim.core.errors import ConfigError, ProfileError
from specsim.run.experiment import Experiment
from specsim.study.gate import Suite
from specsim.study.sweep import Sweep
from specsim.workload.arrivals.patterns import TraceReplay
from specsim.workload.lengths.distributions import TraceRows

PROFILE = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
    "target": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": 8},
    "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
}
TRACE = {"kind": "trace", "path": "w.jsonl"}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder lab/ with an experiment and what that reads, seen from the folder above."""
    monkeypatch.chdir(tmp_path)
    folder = Path("lab")
    folder.mkdir()
    rows = [f'{{"arrived_at": {n}, "prompt_len": 5, "output_len": 3}}\n' for n in range(4)]
    (folder / "w.jsonl").write_text("".join(rows))
    write(folder / "p.yaml", PROFILE)
    write(
        folder / "e.yaml", tiny_config(profile="p.yaml", policy="off", workload={"arrivals": TRACE})
    )
    return folder


def write(path: Path, data: Any) -> Path:
    path.write_text(yaml.safe_dump(data))
    return path


def paths(experiment: Experiment) -> tuple[str, str]:
    assert isinstance(experiment.workload.arrivals, TraceReplay)
    return experiment.profile, str(experiment.workload.arrivals.path)


def test_an_experiment_runs_from_anywhere(cli: Run, lab: Path, tmp_path: Path) -> None:
    code, _, err = cli("run", tmp_path / "lab" / "e.yaml")
    assert (code, err) == (0, "")
    assert paths(Experiment.load(lab / "e.yaml")) == ("lab/p.yaml", "lab/w.jsonl")


def test_beside_the_working_directory_nothing_is_rewritten(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lab)
    for path in (Path("e.yaml"), Path.cwd() / "e.yaml"):
        assert paths(Experiment.load(path)) == ("p.yaml", "w.jsonl")


def test_the_file_comes_before_the_working_directory(lab: Path) -> None:
    write(Path("p.yaml"), PROFILE)
    assert Experiment.load(lab / "e.yaml").profile == "lab/p.yaml"


def test_an_old_path_from_the_working_directory_still_leads_there(lab: Path) -> None:
    (lab / "p.yaml").rename("mine.yaml")
    write(lab / "e.yaml", tiny_config(profile="mine.yaml", policy="off"))
    assert Experiment.load(lab / "e.yaml").profile == "mine.yaml"
    assert load_profile("mine.yaml").gpu == "h100"


def test_an_override_follows_the_working_directory(lab: Path) -> None:
    assert Experiment.load(lab / "e.yaml", ["profile=p.yaml"]).profile == "p.yaml"
    with pytest.raises(ProfileError, match=r"^p.yaml: cannot be read"):
        load_profile("p.yaml")


@pytest.mark.parametrize("name", ["h100/llama-3.1-8b", "traces/chat.parquet"])
def test_a_name_stays_a_name(name: str, lab: Path) -> None:
    is_trace = name.startswith("traces")
    workload = {"arrivals": {"kind": "trace", "path": name}} if is_trace else {"arrivals": TRACE}
    config = tiny_config(profile="p.yaml" if is_trace else name, workload=workload)
    loaded = Experiment.load(write(lab / "e.yaml", config))
    assert name in paths(loaded)


def test_short_forms_and_corpora_follow_too(lab: Path) -> None:
    config = tiny_config(acceptance={"kind": "token_match"})
    config["workload"]["lengths"] = "trace:path=w.jsonl"
    drafting = {"method": "datastore", "corpus": "w.jsonl", "num_speculative_tokens": 3}
    config["engine"]["speculative_config"] = drafting
    loaded = Experiment.load(write(lab / "e.yaml", config))
    assert isinstance(loaded.workload.lengths, TraceRows)
    assert str(loaded.workload.lengths.path) == "lab/w.jsonl"
    assert str(getattr(loaded.engine.speculative_config, "corpus", None)) == "lab/w.jsonl"


def test_of_a_sweep_base_and_axes_follow_their_own_files(lab: Path) -> None:
    (lab / "sweeps").mkdir()
    write(lab / "sweeps" / "q.yaml", PROFILE)
    axes = [{"profile": ["q.yaml", "h100/llama-3.1-8b"]}]
    sweep = Sweep.load(write(lab / "sweeps" / "s.yaml", {"base": "../e.yaml", "axes": axes}))
    [first, second] = [point.experiment() for point in sweep.points()]
    assert [Path(path).resolve() for path in paths(first)] == [
        (lab / "sweeps" / "q.yaml").resolve(), (lab / "w.jsonl").resolve(),
    ]  # fmt: skip
    assert second.profile == "h100/llama-3.1-8b"


def test_of_a_suite_base_and_scenarios_follow_their_own_files(lab: Path) -> None:
    scenarios = {"a": {"workload.arrivals.path": "w.jsonl"}}
    base = tiny_config(profile="p.yaml", policy="off", workload={"arrivals": TRACE})
    for given in ("e.yaml", base):
        suite = Suite.load(write(lab / "s.yaml", {"base": given, "scenarios": scenarios}))
        assert paths(suite.experiment("a")) == ("lab/p.yaml", "lab/w.jsonl")


def test_of_a_profile_every_path_follows_it(lab: Path) -> None:
    make_kernel_folder(lab / "tables")
    kernels = {"kind": "kernels", "path": "tables", "num_layers": 2}
    drafts = {"eagle3": {"latency": kernels}}
    write(lab / "p.yaml", {**PROFILE, "target": kernels, "drafts": drafts})
    profile = load_profile("lab/p.yaml")
    for latency in (profile.target, profile.drafts["eagle3"].latency):
        assert str(getattr(latency, "path", None)) == "lab/tables"


CLASS = """
from typing import Any, Literal
from specsim.api import BatchView, Policy

class Two(Policy):
    kind: Literal["two"] = "two"
    most: int = 2
    def draft_lens(self, batch: BatchView, memory: Any) -> int:
        return self.most
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "policy"),
    [
        ("in_lab_1", {"kind": "in_lab_1:Two", "most": 3}),
        ("in_lab_2", "in_lab_2:Two:most=3"),
        ("in_lab_3", {"kind": "in_lab_3.py:Two", "most": 3}),
        ("in_lab_4", "in_lab_4.py:Two:most=3"),
    ],
)
def test_a_class_is_found_beside_the_experiment(
    module: str, policy: Any, lab: Path, cli: Run
) -> None:
    (lab / f"{module}.py").write_text(CLASS)
    path = write(lab / "e.yaml", tiny_config(policy=policy))
    loaded = Experiment.load(path)
    assert loaded.policy is not None
    assert loaded.policy.model_dump() == {"kind": f"lab/{module}.py:Two", "most": 3}
    assert Experiment.parse(loaded.to_dict(), "again") == loaded
    # Other processes find it, too; and what was written may be run again from here.
    args = ("--policies", f"lab/{module}.py:Two", "--replications", 2, "--workers", 2)
    assert cli("compare", path, *args, "--out", "c")[0] == 0
    assert cli("run", path, "--out", "one")[0] == 0
    assert cli("run", "one/config.yaml", "--out", "two")[0] == 0


def test_of_two_files_of_one_name_none_is_taken_for_the_other(lab: Path) -> None:
    Path("of_two.py").write_text(CLASS)
    (lab / "of_two.py").write_text(CLASS.replace("2", "1"))
    loaded = Experiment.load(write(lab / "e.yaml", tiny_config(policy="of_two:Two")))
    assert getattr(loaded.policy, "most", None) == 1
    with pytest.raises(ConfigError, match=r"Python takes 'of_two' to be .*lab/of_two.py; rename"):
        Experiment.parse(tiny_config(policy="of_two.py:Two"), "here")


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("sys.py:Two", "sys.py: Python takes 'sys' to be a part of Python itself; rename the file"),
        ("sys:Two", "cannot load 'sys:Two': no 'Two'; it defines no class"),
    ],
)
def test_a_file_that_is_called_as_a_module_of_python_itself(
    lab: Path, policy: str, why: str
) -> None:
    Path("sys.py").write_text(CLASS)
    with pytest.raises(ConfigError, match=why):
        Experiment.parse(tiny_config(policy=policy), "here")


def test_a_script_that_names_its_own_class_runs_once(lab: Path) -> None:
    script = lab / "own_class.py"
    script.write_text(
        CLASS + "print('begins')\n"
        "from specsim.api import Experiment\n"
        f"config = {tiny_config()!r}\n"
        "for policy in ('own_class:Two', __file__ + ':Two'):\n"
        "    found = Experiment.parse({**config, 'policy': policy}, 'script').policy\n"
        "    print(type(found) is Two)\n"
    )
    root = str(Path(specsim.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        check=False,
    )
    assert done.stdout.decode().split() == ["begins", "True", "True"], done.stderr.decode()


def test_the_api_takes_paths_as_text(lab: Path) -> None:
    experiment = Experiment.load("lab/e.yaml")
    assert experiment == Experiment.load(lab / "e.yaml")
    assert load_profile(Path("lab/p.yaml")) == load_profile("lab/p.yaml")
    assert len(read_trace("lab/w.jsonl")) == 4
    compare(experiment, parse_policies(["off"]), replications=1, folder="kept")
    Summary(simulate(experiment)).save("saved")
    write(Path("s.yaml"), {"base": "lab/e.yaml", "axes": [{"policy": ["off"]}]})
    assert len(sweep("s.yaml", "swept")) == 1
    for folder in ("kept/off", "saved"):
        assert Path(folder, "summary.json").is_file()
