"""What was taken for what in a log, and what was ignored: said by every command that reads it."""

import json
from pathlib import Path

import pytest
import yaml
from conftest import Run, tiny_config

from specsim.show.report import load_study
from specsim.study.plan.question import find_traffic
from specsim.workload import WorkloadConfig
from specsim.workload.lengths.distributions import Empirical, ShiftedLengths

SAID = (
    "log.csv: n_in is the prompt length, n_out is the output length, created_at is the arrival, "
    "in seconds; ignored: tenant"
)
SHORT = ("--workers", "1")
COMMANDS = {
    "run": (),
    "compare": ("--policies", "static:k=1", "--replications", "1", *SHORT),
    "tune": ("--max-k", "1", "--replications", "2", *SHORT),
    "capacity": ("--slo", "e2el:2000", "--replications", "1", "--num-requests", "50", *SHORT),
    "split": ("--gpus", "2", *SHORT),
}
IN_THE_FILE = {
    "run": "summary.json",
    "compare": "comparison.json",
    "tune": "tune.json",
    "capacity": "capacity.json",
}


def log(folder: Path) -> Path:
    rows = [f"{n / 20},{20 + n % 7},{5 + n % 5},acme" for n in range(60)]
    path = folder / "log.csv"
    path.write_text("\n".join(["created_at,n_in,n_out,tenant", *rows]))
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_the_same_of_a_log(command: str, cli: Run, tmp_path: Path) -> None:
    workload = {"arrivals": {"kind": "trace", "path": str(log(tmp_path))}}
    Path("e.yaml").write_text(yaml.safe_dump(tiny_config(workload=workload)))
    code, _, err = cli(command, "e.yaml", "--out", "out", *COMMANDS[command])
    assert (code, err.count(f"warning: {SAID}\n")) == (0, 1)
    if command in IN_THE_FILE:
        assert json.dumps(SAID) in Path("out", IN_THE_FILE[command]).read_text()
        assert load_study(Path("out")).warnings.count(SAID) == 1


def test_a_sweep_says_it_of_all_its_logs(cli: Run, tmp_path: Path) -> None:
    workload = {"arrivals": {"kind": "trace", "path": str(log(tmp_path))}}
    sweep = {"base": tiny_config(workload=workload), "axes": [{"policy": ["off", "static:k=1"]}]}
    Path("s.yaml").write_text(yaml.safe_dump(sweep))
    code, _, err = cli("sweep", "s.yaml", "--workers", "1")
    assert (code, err.count(f"warning: {SAID}\n")) == (0, 1)
    assert load_study(Path("results/s")).warnings.count(SAID) == 1


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_rows_that_are_left_out_are_told_of_the_points_that_lack_them(
    routing: str, cli: Run, tmp_path: Path
) -> None:
    """Where replicas share a clock, nobody told of them."""
    path = log(tmp_path)
    path.write_text(path.read_text() + "\n3.0,20,0,acme\n3.1,20,0,acme")
    arrivals = [{"kind": "trace", "path": str(path)}, {"kind": "poisson", "rate": 8.0}]
    base = tiny_config(replicas=2, routing=routing)
    axes = [
        {"workload.arrivals": arrivals, "workload.lengths": [None, base["workload"]["lengths"]]}
    ]
    axes += [{"policy": ["off", "static:k=1"]}]
    Path("s.yaml").write_text(yaml.safe_dump({"base": base, "axes": axes}))
    code, _, err = cli("sweep", "s.yaml", "--workers", "1")
    told = load_study(Path("results/s")).warnings
    assert (code, len(told)) == (0, 1)
    assert err.splitlines()[-1:] == [f"warning: {each}" for each in told]
    assert told[0].count("policy off and 1 more point: ") == 1
    assert told[0].endswith("; rows without prompt or output, left out as failed: 2")


def test_points_without_their_log_do_not_end_a_sweep_that_keeps_going(
    cli: Run, tmp_path: Path
) -> None:
    arrivals = [{"kind": "trace", "path": str(path)} for path in (log(tmp_path), "no.csv")]
    workload = {"num_requests": 20}
    axes = [{"workload.arrivals": arrivals}]
    sweep = {"base": tiny_config(workload=workload), "axes": axes}
    Path("s.yaml").write_text(yaml.safe_dump(sweep))
    code, out, err = cli("sweep", "s.yaml", "--workers", "1", "--keep-going")
    assert (code, err.count(f"warning: {SAID}\n")) == (1, 1)
    assert "1 of 2 points failed" in err
    assert "results: " in out


def test_a_log_is_found_wherever_a_workload_names_it(tmp_path: Path) -> None:
    inner = Empirical(path=log(tmp_path))
    drawn = ShiftedLengths(at=0.5, before=inner, after=inner)
    arrivals = {"kind": "poisson", "rate": 1.0}
    workload = WorkloadConfig.model_validate(
        {"arrivals": arrivals, "lengths": drawn.model_dump(), "num_requests": 10}
    )
    assert workload.notes == [SAID]


def test_a_log_that_has_changed_is_read_again(tmp_path: Path) -> None:
    lengths = {"kind": "empirical", "path": log(tmp_path)}
    workload = WorkloadConfig.model_validate(
        {"arrivals": {"kind": "poisson", "rate": 1.0}, "lengths": lengths, "num_requests": 10}
    )
    assert "tenant" in workload.notes[0]
    (tmp_path / "log.csv").write_text("arrived_at,prompt_len,output_len\n0,1,1\n1,1,1")
    assert "tenant" not in "".join(workload.notes)


def test_a_plan_says_it_of_an_experiment_that_has_a_log(tmp_path: Path) -> None:
    workload = {"arrivals": {"kind": "trace", "path": str(log(tmp_path))}}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(tiny_config(workload=workload)))
    assert (
        find_traffic(str(tmp_path / "e.yaml")).note
        == f"as in the experiment; its acceptance for drafts of eagle3 alone; {SAID}"
    )


@pytest.mark.parametrize(("window", "is_said"), [(None, False), ([1.0, 9.0], True)])
def test_lengths_of_other_rows_than_the_windows_are_said(
    window: list[float] | None, is_said: bool, tmp_path: Path
) -> None:
    path = str(log(tmp_path))
    arrivals = {"kind": "trace", "path": path, "window": window}
    workload = WorkloadConfig.model_validate(
        {"arrivals": arrivals, "lengths": {"kind": "trace", "path": path}}
    )
    assert any("leave lengths out" in note for note in workload.notes) == is_said
