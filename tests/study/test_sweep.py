"""Sweeps: every point there once, whole, and the same whatever happened in between."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, Run, tiny_config

from specsim.core.errors import ConfigError
from specsim.policies import POLICIES
from specsim.study.sweep import Sweep, SweepFolder, labels
from specsim.study.sweep.plan import problems_of


def sweep_file(folder: Path, axes: Any, base: Any = None, **rest: Any) -> Path:
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump({"base": base or tiny_config(), "axes": axes, **rest}))
    return path


AXES = [
    {"policy": ["off", "static:k=2"]},
    {"workload.arrivals.rate": [5, 20.0], "workload.num_requests": [8, 9]},
]


def test_the_grid_is_the_product_of_the_axes_and_fields_of_one_axis_change_together(
    tmp_path: Path,
) -> None:
    points = list(Sweep.load(sweep_file(tmp_path, AXES, replications=2), ["seed=7"]).points())
    rows = [(*point.axes.values(), point.replication, point.seed) for point in points]
    assert rows == [
        ("off", 5, 8, 0, 7), ("off", 5, 8, 1, 8), ("off", 20.0, 9, 0, 7), ("off", 20.0, 9, 1, 8),
        ("static:k=2", 5, 8, 0, 7), ("static:k=2", 5, 8, 1, 8),
        ("static:k=2", 20.0, 9, 0, 7), ("static:k=2", 20.0, 9, 1, 8),
    ]  # fmt: skip
    assert points[5].experiment().seed == 8
    assert points[5].experiment().workload.num_requests == 8


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ([3, 1], [3, 1]),
        ({"linspace": [1, 2, 5]}, [1, 1.25, 1.5, 1.75, 2]),
        ({"linspace": [0.1, 0.3, 3]}, [0.1, 0.2, 0.3]),
        ({"logspace": [1, 32, 6]}, [1, 2, 4, 8, 16, 32]),
        ({"range": [1, 8, 2]}, [1, 3, 5, 7]),
        ({"range": [0.1, 0.4, 0.1]}, [0.1, 0.2, 0.3, 0.4]),
        ({"range": [9, 3, -3]}, [9, 6, 3]),
    ],
)
def test_values_may_be_spaced(given: Any, values: list[float], tmp_path: Path) -> None:
    path = sweep_file(tmp_path, [{"workload.arrivals.rate": given}])
    assert Sweep.load(path).axes == [{"workload.arrivals.rate": values}]


@pytest.mark.parametrize(
    "steps", [[1, 8], [1, 8, 0], [1, 8, -1], [8, 1, 1], [1, 8, True], [0, 1, 1e-300], [0, 1e308, 1]]
)
def test_a_range_that_leads_nowhere_is_refused(steps: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be \[first, last, step\]"):
        Sweep.load(sweep_file(tmp_path, [{"workload.num_requests": {"range": steps}}]))


def test_linked_fields_may_be_ranges_and_a_dry_run_counts_them(cli: Run, tmp_path: Path) -> None:
    linked = {"policy.k": {"range": [1, 3, 1]}, "workload.arrivals.rate": {"range": [5, 15, 5]}}
    base = tiny_config(policy={"kind": "static", "k": 1})
    path = sweep_file(tmp_path, [{"replicas": [1, 2]}, linked], base, replications=2)
    code, out, _ = cli("sweep", path, "--dry-run", "--workers", 1)
    assert code == 0
    assert "00011: replicas 2, policy.k 3, workload.arrivals.rate 15, seed" in out
    assert "12 points, about" in out
    linked["policy.k"] = {"range": [1, 4, 1]}
    code, _, err = cli("sweep", sweep_file(tmp_path, [linked], base), "--dry-run")
    assert code == 2
    assert "are linked" in err
    assert "(found: policy.k 4, workload.arrivals.rate 3)" in err


def test_replicas_beyond_counting_are_one_line(cli: Run, tmp_path: Path) -> None:
    code, _, err = cli("sweep", sweep_file(tmp_path, [{"replicas": [1, 10**320]}]), "--dry-run")
    assert code == 2
    assert "should be less than or equal to 1000000" in err


def test_labels_are_short_and_different(tmp_path: Path) -> None:
    values = ["off", {"kind": "static", "k": 2}, "goodput"]
    engines = [{"method": "eagle3", "num_speculative_tokens": k} for k in (3, 4)]
    axes = [{"policy": values}, {"engine.speculative_config": engines}]
    points = list(Sweep.load(sweep_file(tmp_path, axes)).points())
    assert [point.labels["policy"] for point in points[::2]] == ["off", "static:k=2", "goodput"]
    assert points[1].labels["engine.speculative_config"] == "eagle3:num_speculative_tokens=4"


def test_labels_keep_names_as_they_are() -> None:
    trace = {"kind": "trace", "path": "l\N{LATIN SMALL LETTER O WITH DIAERESIS}g 1.csv"}
    assert labels([{"arrivals": trace}, {}])[0].endswith(f"path: {trace['path']}}}")


def test_labels_of_policies_can_be_typed() -> None:
    """Lists and mappings included, ``schedule:ranges=[[1,8,3],[9,32,1]]``."""
    for name, member in POLICIES.members.items():
        for example in member.examples:
            value = {"kind": name, **example}
            (label,) = labels([value])
            assert POLICIES.parse(label) == POLICIES.parse(value)
            assert ", " not in label


def test_a_sweep_writes_its_points_and_one_table(cli: Run, tmp_path: Path) -> None:
    code, out, err = cli("sweep", sweep_file(tmp_path, AXES), "--workers", 1, "--out", "done")
    assert (code, err) == (0, "")
    assert "static:k=2" in out
    assert "4 points" in out
    table = pq.read_table(tmp_path / "done" / "points.parquet")
    assert table["policy"].to_pylist() == ["off"] * 2 + ["static:k=2"] * 2
    assert table["workload.arrivals.rate"].to_pylist() == [5.0, 20.0] * 2
    assert table["completed"].to_pylist() == [8, 9] * 2
    record = json.loads((tmp_path / "done" / "points" / "00003.json").read_text())
    assert record["metrics"]["mean_tpot_ms"] == table["mean_tpot_ms"][3].as_py()
    assert len(record["distributions"]["ttft_ms"]) == 101
    assert record["distributions"]["e2el_ms"][50] == pytest.approx(
        record["metrics"]["p50_e2el_ms"], rel=1e-5
    )
    assert 0 < max(record["timeline"]["kv_usage"]) < 1
    total = sum(record["breakdown"].values())
    assert record["breakdown"]["target_s"] / (total - record["breakdown"]["idle_s"]) > 0.5
    assert len(SweepFolder.open(tmp_path / "done").numbers()) == 4


@pytest.mark.parametrize("others", [[], ["static:k=2"]])
def test_an_unquoted_off_is_a_policy_and_not_false(tmp_path: Path, others: list[str]) -> None:
    sweep = Sweep.load(sweep_file(tmp_path, [{"policy": [False, *others]}]))
    assert next(iter(sweep.points())).labels == {"policy": "off"}


def test_all_combinations_meet_the_same_requests(cli: Run, tmp_path: Path) -> None:
    cli("sweep", sweep_file(tmp_path, AXES[:1], replications=2), "--workers", 1, "--out", "done")
    table = pq.read_table(tmp_path / "done" / "points.parquet")
    off, static = (
        table["total_output_tokens"].to_pylist()[:2],
        table["total_output_tokens"].to_pylist()[2:],
    )
    assert off == static
    assert off[0] != off[1]


def test_an_experiment_and_a_sweep_taken_for_each_other_are_named(cli: Run, tmp_path: Path) -> None:
    sweep, experiment, trace = sweep_file(tmp_path, AXES), tmp_path / "e.yaml", tmp_path / "t.csv"
    experiment.write_text(yaml.safe_dump(tiny_config()))
    trace.write_text("arrival_time,prompt_len,output_len\n0,5,5\n")
    for command, path, said in (
        ("run", sweep, f"is a sweep, not an experiment; run it by `specsim sweep {sweep}`"),
        ("sweep", experiment, "is an experiment, not a sweep; name it in one: base: e.yaml"),
        ("run", trace, "name it in one, as workload.arrivals or workload.lengths: {kind: trace"),
    ):
        code, _, err = cli(command, path)
        assert (code, err.count("\n")) == (2, 1)
        assert said in err


def test_the_number_of_processes_changes_nothing(cli: Run, tmp_path: Path) -> None:
    path = sweep_file(tmp_path, AXES)
    for workers in (1, 3):
        assert cli("sweep", path, "--workers", workers, "--out", f"by{workers}")[0] == 0
    for name in ("sweep.yaml", "points.parquet", "points/00002.json"):
        assert (tmp_path / "by1" / name).read_bytes() == (tmp_path / "by3" / name).read_bytes()


def test_a_sweep_of_both_kinds_of_scheduling_says_so(tmp_path: Path) -> None:
    [note] = Sweep.load(sweep_file(tmp_path, [{"policy": ["static:k=2", "oracle"]}])).notes
    assert "asynchronous scheduling" in note
    assert not Sweep.load(sweep_file(tmp_path, AXES)).notes


def test_a_failing_point_is_refused_or_recorded_and_the_others_go_on(
    cli: Run, tmp_path: Path
) -> None:
    axes = [{"policy": ["static:k=2", "static:k=3"]},
            {"engine.speculative_config.num_speculative_tokens": [2, 3]}]  # fmt: skip
    path = sweep_file(tmp_path, axes)
    code, _, err = cli("sweep", path, "--workers", 1, "--out", "done")
    assert code == 2
    assert "policy static:k=3, engine.speculative_config.num_speculative_tokens 2: " in err
    assert not (tmp_path / "done").exists()
    code, out, err = cli("sweep", path, "--workers", 1, "--out", "done", "--keep-going")
    assert code == 1
    assert "4 points" in out
    assert "1 of 4 points failed; the first, policy static:k=3" in err
    table = pq.read_table(tmp_path / "done" / "points.parquet")
    assert [error is None for error in table["error"].to_pylist()] == [True, True, False, True]
    assert "k = 3" in table["error"][2].as_py()
    first = (tmp_path / "done" / "points.parquet").read_bytes()
    again = ("--out", "done", "--keep-going", "--resume")
    assert cli("sweep", path, "--workers", 1, *again)[0] == 1
    assert (tmp_path / "done" / "points.parquet").read_bytes() == first


def test_all_problems_are_told_before_the_first_point_is_run(cli: Run, tmp_path: Path) -> None:
    trace = {"kind": "trace", "path": "none.jsonl"}
    axes = [{"profile": ["h100/llama-3.1-8b", "none.yaml"]},
            {"workload.arrivals": ["burst", trace]}]  # fmt: skip
    path = sweep_file(tmp_path, axes)
    code, out, err = cli("sweep", path, "--workers", 1, "--out", "done", "--dry-run")
    assert code == 2
    assert out.count("seed") == 4
    assert "4 points, about" in out
    assert [line.split(": ")[-1] for line in err.splitlines()].count(
        "No such file or directory"
    ) > 1
    assert not (tmp_path / "done").exists()
    assert cli("sweep", path, "--workers", 1, "--out", "done")[0] == 2
    assert not (tmp_path / "done").exists()


def test_of_pools_the_profile_is_looked_at_that_decodes(
    tmp_path: Path, constant_step: Callable[..., str]
) -> None:
    """The experiment's own has no cost of the drafter, and no pool uses it."""
    plain, knows = constant_step(delta_ms=5), "h100/llama-3.1-8b"
    pools = {"prefill": {"profile": knows}, "decode": {"profile": knows}}
    base = tiny_config(profile=plain, pools=pools)
    sweep = Sweep.load(sweep_file(tmp_path, [{"policy": ["off", "static:k=2"]}], base))
    assert problems_of(sweep) == []


def test_ctrl_c_says_how_to_go_on(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "stopped.py").write_text(
        "from typing import Literal\nfrom specsim.api import Policy\n\n\n"
        "class Stopped(Policy):\n    kind: Literal['stopped'] = 'stopped'\n\n"
        "    def draft_lens(self, batch, memory):\n        raise KeyboardInterrupt\n"
    )
    path = sweep_file(tmp_path, [{"policy": ["off", "stopped:Stopped"]}])
    code, _, err = cli("sweep", path, "--workers", 1, "--out", "done")
    assert (code, err) == (
        130, "warning: stopped; --resume --out done goes on with what is left\n"
    )  # fmt: skip
    assert len(SweepFolder.open(tmp_path / "done").numbers()) == 1


def test_a_point_that_kills_its_process_is_named_and_the_others_go_on(
    cli: Run, tmp_path: Path
) -> None:
    (tmp_path / "deadly_policy.py").write_text(
        "import os\nfrom typing import Literal\nfrom specsim.api import Policy\n\n\n"
        "class Deadly(Policy):\n    kind: Literal['deadly'] = 'deadly'\n\n"
        "    def draft_lens(self, batch, memory):\n        os.kill(os.getpid(), 9)\n"
    )
    path = sweep_file(tmp_path, [{"policy": ["off", "deadly_policy:Deadly", "static:k=1"]}])
    code, _, err = cli("sweep", path, "--workers", 2, "--out", "done")
    assert code == 1
    assert "1 of 3 points failed; the first, policy deadly_policy:Deadly: its process was" in err


def test_the_seeds_of_all_replications_are_looked_at_first(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    base = tiny_config(seed=2**63 - 1)
    path.write_text(yaml.safe_dump({"base": base, "axes": [{"replicas": [1]}], "replications": 2}))
    with pytest.raises(ConfigError, match="seed = 9223372036854775808: should be less"):
        Sweep.load(path)


@pytest.mark.parametrize(
    ("axes", "rest", "message"),
    [
        ([], {}, "axes: names no axis, so the grid is empty"),
        ([{}], {}, "no field"),
        ([{"policy": []}], {}, "'policy' has no value, so the grid is empty"),
        ([{"workload.arrivals.ratee": [1, 2]}], {}, "'ratee'; did you mean 'rate'"),
        ([{"workload.arrival.rate": [1, 2]}], {}, "'arrival'; did you mean 'arrivals'"),
        ([{"polizy": ["off"]}], {}, "'polizy'; did you mean 'policy'"),
        ([{"policy": ["off", "statik"]}], {}, "did you mean 'static'"),
        ([{"profile.gpu": ["h100"]}], {}, "axes: profile.gpu: 'profile' is not a mapping"),
        ([{"seed": [1, 2]}], {}, "set replications instead"),
        ([{"policy": ["off"]}, {"policy": ["static"]}], {}, "'policy' is on two axes"),
        ([{"policy.k": [1, 2]}, {"policy": ["static:k=3"]}], {}, "take the place of 'policy.k'"),
        ([{"policy": ["off", "off"]}], {}, "'off' is given twice"),
        ([{"policy": ["off"], "replicas": [1, 2]}], {}, "policy 1, replicas 2"),
        ([{"policy": "off"}], {}, "yaml: axes: policy = 'off' must be a list of values"),
        ([{"policy": "off"}], {}, "values, {linspace: .first, last, count.}, {logspace: .first"),
        ({"policy": ["off"]}, {}, "must be a list of axes"),
        ([{"replicas": {"linspace": [1, 2]}}], {}, "must be .first, last, count., three numbers"),
        ([{"replicas": {"linspace": [1, 2, 1e9]}}], {}, "a whole count from 2 to 100,000"),
        ([{"replicas": {"logspace": [0, 2, 3]}}], {}, "with both ends above 0"),
        ([{"replicas": {"linspace": [1, 9, 9]}}], {"replications": 99999}, "899,991 runs are more"),
        ([{"policy": ["off"]}], {"replicationz": 2}, "did you mean 'replications'"),
        ([{"policy": ["off"]}], {"replications": 0}, "replications = 0"),
        ([{"policy": ["off"]}], {"base": "no.yaml"}, "s.yaml: base: .*no.yaml: cannot be read"),
    ],
)
def test_a_bad_sweep_is_one_line_that_names_it(
    axes: Any, rest: Any, message: str, tmp_path: Path
) -> None:
    path = sweep_file(tmp_path, axes, **rest)
    with pytest.raises(ConfigError, match=message) as error:
        Sweep.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("override", ["policy=off", "policy.k=1", "workload.arrivals.rate=3"])
def test_an_override_of_what_an_axis_sets_is_an_error(override: str, tmp_path: Path) -> None:
    path = sweep_file(tmp_path, AXES)
    with pytest.raises(ConfigError, match=f"--set {override}: is not used, for an axis sets"):
        Sweep.load(path, [override])
    assert Sweep.load(path, ["workload.arrivals.kind=constant"]).num_points == 4


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return edit


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, [], "holds a sweep already; go on with it by --resume"),
        (None, ["--resume", "--seed", 5], "belongs to another sweep: its 'base' differs"),
        (edited("sweep.yaml", "0.1.0", "0.0.9"), ["--resume"], "begun by specsim 0.0.9"),
        (edited("sweep.yaml", "_format: 1", "_format: 9"), ["--resume"], "sweep_format = 9"),
        (edited("sweep.yaml", "llama-3.1-8b: ", "llama-3.1-8b: x"), ["--resume"], "has changed"),
        (edited("sweep.yaml", "sweep_format: 1", ""), [], "not written by `specsim sweep`"),
        (edited("sweep.yaml", "axes", "axis"), ["--resume"], "did you mean 'axes'"),
        (
            edited("sweep.yaml", "axes:", "axes:\n- workload.arrivals.rate.x: [1]"),
            ["--resume"],
            "leave one out; correct the sweep's own file, and run it into a new folder",
        ),
        (removed("sweep.yaml"), ["--resume"], "holds points of no sweep"),
        (edited("points/00001.json", "{", ""), ["--resume"], "remove the file and --resume"),
        (edited("points/00001.json", '"point": 1', '"point": 2'), ["--resume"], "of point 1"),
        (edited("points/00001.json", '"axes": {', '"axes": {"x": 1, '), ["--resume"], "of point 1"),
        (None, ["--ray-address", "x"], "--ray-address is used by --backend ray only"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    change: Callable[[Path], None] | None,
    options: list[Any],
    message: str,
    cli: Run,
    tmp_path: Path,
) -> None:
    arguments = ("sweep", sweep_file(tmp_path, AXES), "--workers", 1, "--out", "done")
    assert cli(*arguments)[0] == 0
    if change is not None:
        change(tmp_path / "done")
    code, _, err = cli(*arguments, *options)
    assert code == 2
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert message in err


def test_a_trace_that_has_changed_is_refused(cli: Run, tmp_path: Path) -> None:
    row = '{{"arrived_at": {}, "prompt_len": 5, "output_len": {}}}\n'
    trace = tmp_path / "w.jsonl"
    trace.write_text("".join(row.format(n, 3) for n in range(4)))
    base = tiny_config(workload={"arrivals": {"kind": "trace", "path": "w.jsonl"}})
    path = sweep_file(tmp_path, AXES[:1], base)
    arguments = ("sweep", path, "--workers", 1, "--out", "done", "--resume")
    assert [cli(*arguments)[0], cli(*arguments)[0]] == [0, 0]
    trace.write_text("".join(row.format(n, 17) for n in range(4)))
    code, _, err = cli(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert "--resume: w.jsonl has changed since the sweep began; name another folder" in err
    plan = yaml.safe_load((tmp_path / "done" / "sweep.yaml").read_text())
    del plan["inputs"]  # as it was written before
    (tmp_path / "done" / "sweep.yaml").write_text(yaml.safe_dump(plan))
    assert cli(*arguments)[0] == 0


def test_a_drafter_on_gpus_of_its_own_that_has_changed_is_refused(
    cli: Run, tmp_path: Path, constant_step: Callable[..., str]
) -> None:
    drafter = Path(constant_step(delta_ms=2.0))
    spec = {
        "method": "draft_model",
        "num_speculative_tokens": 2,
        "own_gpus": {"profile": str(drafter)},
    }
    base = tiny_config(engine={"speculative_config": spec}, policy="static")
    path = sweep_file(tmp_path, AXES[:1], base)
    arguments = ("sweep", path, "--workers", 1, "--out", "done", "--resume")
    assert [cli(*arguments)[0], cli(*arguments)[0]] == [0, 0]
    drafter.write_text(drafter.read_text().replace("2.0", "9.0"))
    code, _, err = cli(*arguments)
    assert (code, f"{drafter} has changed since the sweep began" in err) == (2, True)


def started(*arguments: object, cwd: Path) -> "subprocess.Popen[bytes]":
    """Start specsim in a session of its own, so that everything that it starts can be found."""
    command = [sys.executable, "-m", "specsim", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def processes(session: int) -> dict[int, str]:
    """Return the command lines of the live processes of a session."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(status[3]) == session and status[0] not in "ZX":
                found[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:
            continue
    return found


def eventually(is_true: Callable[[], object], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not is_true() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(is_true())


def rates(num: int) -> list[dict[str, Any]]:
    return [{"workload.arrivals.rate": {"linspace": [1, 20, num]}}]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("num_kills", "num_points"), [(2, 24), pytest.param(20, 60, marks=pytest.mark.extras)]
)
def test_killed_at_random_moments_and_resumed_it_ends_with_the_same_bytes(
    num_kills: int, num_points: int, cli: Run, tmp_path: Path
) -> None:
    # A point takes some 30 ms: long enough that a kill finds most of the points still to be made.
    base = tiny_config(workload={**tiny_config()["workload"], "num_requests": 2000})
    path, random = sweep_file(tmp_path, rates(num_points), base), Random(7)
    points = tmp_path / "killed" / "points"
    for _ in range(num_kills):
        run = started("sweep", path, "--workers", 2, "--out", "killed", "--resume", cwd=tmp_path)
        num_before = len(list(points.glob("0*.json")))
        if num_more := random.randrange(3):
            eventually(lambda n=num_before + num_more: len(list(points.glob("0*.json"))) >= n)
            time.sleep(random.random() * 0.03)
        else:  # somewhere in the start, or soon after: at once where two points have come
            moment, n = random.random() * 2.0, num_before + 2
            eventually(lambda n=n: len(list(points.glob("0*.json"))) >= n, moment)
        run.kill()
        assert run.wait() == -signal.SIGKILL, "it has ended before it could be killed"
        assert eventually(lambda session=run.pid: not processes(session)), "left workers behind"
    assert 0 < len(list(points.glob("0*.json"))) < num_points
    for name, options in (("killed", ["--resume"]), ("undisturbed", [])):
        assert cli("sweep", path, "--workers", 2, "--out", name, *options)[0] == 0
    assert not list(points.glob(".*"))
    made = [f"points/{n:05}.json" for n in range(num_points)]
    for name in ("sweep.yaml", "points.parquet", *made):
        killed, undisturbed = (tmp_path / folder / name for folder in ("killed", "undisturbed"))
        assert killed.read_bytes() == undisturbed.read_bytes()


@pytest.mark.extras
def test_a_ray_worker_that_is_killed_changes_nothing(cli: Run, tmp_path: Path) -> None:
    base = tiny_config(workload={**tiny_config()["workload"], "num_requests": 300})
    path = sweep_file(tmp_path, rates(60), base)
    run = started("sweep", path, "--backend", "ray", "--workers", 2, "--out", "ray", cwd=tmp_path)
    try:
        assert eventually(lambda: len(list((tmp_path / "ray" / "points").glob("0*.json"))) > 5)
        busy = [pid for pid, line in ray_processes(run.pid).items() if line.startswith("ray::_run")]
        assert len(busy) in (1, 2)
        os.kill(busy[0], signal.SIGKILL)
        assert not (tmp_path / "ray" / "points.parquet").exists(), "it had ended already"
        assert run.wait(timeout=240) == 0
    finally:
        run.kill()
        run.wait()
    assert cli("sweep", path, "--workers", 2, "--out", "local")[0] == 0
    files = [folder / "points.parquet" for folder in (tmp_path / "ray", tmp_path / "local")]
    assert files[0].read_bytes() == files[1].read_bytes()


def ray_processes(ancestor: int) -> dict[int, str]:
    """Return the command lines of the processes that a process has started, at any remove."""
    parents, lines = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
            lines[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:
            continue
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: lines[pid] for pid in found if pid in lines}


def test_a_folder_holds_the_results_of_one_command(cli: Run, tmp_path: Path) -> None:
    """A run, a comparison and a sweep went into one folder, and a report was of any of them."""
    config, sweep = tmp_path / "e.yaml", sweep_file(tmp_path, AXES[:1])
    config.write_text(yaml.safe_dump(tiny_config()))
    compare = ("compare", config, "--policies", "off", "--replications", 1, "--workers", 1)
    commands = {"run": ("run", config), "compare": compare, "sweep": ("sweep", sweep)}
    for name, command in commands.items():
        assert cli(*command, "--out", name)[0] == 0
        before = sorted(Path(name).rglob("*"))
        for other in commands.keys() - {name}:
            code, _, err = cli(*commands[other], "--out", name)
            assert (code, err.count("\n")) == (2, 1)
            assert f"error: {name}: holds the results of `specsim {name}`" in err
        assert sorted(Path(name).rglob("*")) == before
    assert cli(*compare, "--out", "compare")[0] == 0  # the same again takes its place
