"""Timelines and breakdowns of results folders, against values worked out by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Run, tiny_config

from specsim.core.errors import ConfigError
from specsim.hardware import GIB
from specsim.results.folder import ResultsFolder, StepsTable, load_steps
from specsim.results.records import STEP_FIELDS
from specsim.results.timeline import time_use, timeline
from specsim.run.deployment import Deployment
from specsim.run.experiment import POOLS, Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.show.breakdown import break_down
from specsim.show.report import load_study

PROVENANCE = {"config_hash": "0123456789ab", "seed": 0, "specsim_version": "0"}


def steps_table(**columns: list[float]) -> StepsTable:
    """Return a table of steps; what is not given is 1 for counts of requests and 0 otherwise."""
    count = len(columns["scheduled_at"])
    defaults: dict[str, Any] = {
        name: np.full(count, float(name == "num_requests")) for name in STEP_FIELDS.names or ()
    }
    given = {name: np.array(values, dtype=float) for name, values in columns.items()}
    given.setdefault("started_at", given["scheduled_at"])
    given.setdefault("replica", np.zeros(count))
    given.setdefault("alpha_estimate", np.full(count, np.nan))
    return StepsTable({**defaults, **given}, PROVENANCE)


IDLE_BETWEEN = {"scheduled_at": [0, 1, 4], "ended_at": [1, 3, 5], "num_requests": [1, 2, 4]}


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Run a tiny experiment and return its results folder: ``saved(replicas=2)``."""

    def run(**changes: Any) -> Path:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        Summary(simulate(Experiment.parse(tiny_config(**changes), "tiny"))).save(folder)
        return folder

    return run


def rewrite(folder: Path, **columns: Any) -> None:
    """Replace columns of a folder's steps; None takes one away."""
    table = pq.read_table(folder / "steps.parquet")
    data = {name: table[name] for name in table.column_names}
    data |= {name: values for name, values in columns.items() if values is not None}
    kept = {name: values for name, values in data.items() if columns.get(name, 0) is not None}
    pq.write_table(pa.table(kept), folder / "steps.parquet")


def test_what_steps_have_is_averaged_over_busy_time() -> None:
    found = timeline(steps_table(**IDLE_BETWEEN), num_bins=5, window=1)
    assert found["busy_time"].tolist() == [1, 1, 1, 0, 1]
    assert found["batch_size"].tolist()[:3] == [1, 2, 2]
    assert np.isnan(found["batch_size"][3])


def test_a_bin_with_parts_of_two_steps_weighs_them() -> None:
    found = timeline(steps_table(**IDLE_BETWEEN), num_bins=2, window=1)
    assert found["batch_size"].tolist() == [
        pytest.approx((1 * 1 + 2 * 1.5) / 2.5),
        pytest.approx((2 * 0.5 + 4 * 1) / 1.5),
    ]


def test_what_the_system_has_is_averaged_over_all_time() -> None:
    found = timeline(steps_table(**IDLE_BETWEEN, num_waiting=[0, 5, 5]), num_bins=1, window=1)
    assert found["num_waiting"].tolist() == [pytest.approx((5 * 2 + 5 * 1) / 5)]


def test_asynchronous_steps_do_not_count_twice() -> None:
    steps = steps_table(scheduled_at=[0, 1, 2], ended_at=[2, 4, 5], num_requests=[1, 2, 4])
    assert steps.held_until.tolist() == [1, 2, 5]
    found = timeline(steps, num_bins=5, window=1)
    assert found["busy_time"].tolist() == [1] * 5
    assert found["batch_size"].tolist() == [1, 2, 4, 4, 4]


def test_tokens_are_counted_where_a_step_ends() -> None:
    steps = steps_table(**IDLE_BETWEEN, output_tokens=[3, 5, 7], deliveries=[1, 2, 4])
    found = timeline(steps, num_bins=5, window=1)
    assert found["output_tokens"].tolist() == [0, 3, 0, 5, 7]
    assert found["tokens_per_second"].tolist() == [0, 3, 0, 5, 7]
    assert found["tokens_per_step"].tolist()[3:] == [2.5, 1.75]


def test_acceptance_slides_over_a_window_that_ends_with_the_bin() -> None:
    steps = steps_table(**IDLE_BETWEEN, draft_tokens=[4, 4, 2], accepted_tokens=[4, 1, 0])
    found = timeline(steps, num_bins=5, window=3)
    assert np.isnan(found["acceptance"][0])
    assert found["acceptance"].tolist()[1:] == [1.0, 1.0, 5 / 8, 1 / 6]


def test_replicas_are_summed_or_averaged() -> None:
    steps = steps_table(
        replica=[0, 1], scheduled_at=[0, 0], ended_at=[1, 2], num_requests=[2, 4],
        num_waiting=[1, 2], output_tokens=[2, 4],
    )  # fmt: skip
    found = timeline(steps, num_bins=2, window=1)
    assert found["num_waiting"].tolist() == [3, 2]
    assert found["batch_size"].tolist() == [3, 4]
    assert found["busy_time"].tolist() == [2, 1]
    one = timeline(steps.of_replica(1), num_bins=1, window=1)
    assert one["batch_size"].tolist() == [4]


def test_the_estimate_of_alpha_is_shown_where_it_is_known() -> None:
    nan = float("nan")
    steps = steps_table(**IDLE_BETWEEN, alpha_estimate=[nan, 0.5, 0.75])
    found = timeline(steps, num_bins=5, window=1)
    assert found.knows_alpha
    assert np.nan_to_num(found["alpha_estimate"], nan=-1).tolist() == [-1, 0.5, 0.5, -1, 0.75]
    assert not timeline(steps_table(**IDLE_BETWEEN), num_bins=5, window=1).knows_alpha


@pytest.mark.parametrize("num_bins", [1, 7, 1000])
@pytest.mark.parametrize("replicas", [1, 3])
def test_bins_conserve_tokens_and_time(
    num_bins: int, replicas: int, saved: Callable[..., Path]
) -> None:
    steps = load_steps(saved(replicas=replicas))
    found = timeline(steps, num_bins=num_bins, window=5)
    for name in ("output_tokens", "draft_tokens", "accepted_tokens", "deliveries"):
        assert found[name].sum() == steps[name].sum()
    busy = sum(
        float((mine.held_until - mine["scheduled_at"]).sum())
        for mine in map(steps.of_replica, steps.replicas)
    )
    assert found["busy_time"].sum() == pytest.approx(busy)
    assert found["end"][-1] - found["start"][0] == pytest.approx(np.diff(steps.span)[0])


def test_synchronous_steps() -> None:
    steps = steps_table(
        **IDLE_BETWEEN, target_time=[0.5, 1, 0.75], draft_time=[0.25, 0.5, 0],
        overhead_time=[0.25, 0.5, 0.25],
    )  # fmt: skip
    found = time_use(steps, 1)
    assert found.overall.parts == pytest.approx(
        {"target": 0.45, "draft": 0.15, "overhead": 0.2, "idle": 0.2}
    )
    assert [(row.label, row.num_steps, row.share) for row in found.rows] == [
        ("0", 0, 0.2), ("1", 1, 0.2), ("2-3", 1, 0.4), ("4", 1, 0.2),
    ]  # fmt: skip
    assert found.rows[2].parts == {"target": 0.5, "draft": 0.25, "overhead": 0.25, "idle": 0}
    assert found.hidden_overhead_share == 0


def test_asynchronous_overhead_counts_only_where_the_gpu_waits() -> None:
    steps = steps_table(
        scheduled_at=[0, 0.5], started_at=[0.5, 2.5], ended_at=[2.5, 4.0],
        target_time=[2, 1.5], overhead_time=[0.5, 0.5],
    )  # fmt: skip
    found = time_use(steps, 1)
    assert found.overall.parts["target"] == pytest.approx(3.5 / 4)
    assert found.overall.parts["overhead"] == pytest.approx(0.5 / 4)
    assert found.hidden_overhead_share == pytest.approx(0.5 / 4)


def test_a_replica_without_steps_was_idle() -> None:
    steps = steps_table(scheduled_at=[0], ended_at=[1], target_time=[1])
    assert time_use(steps, 4).overall.parts["idle"] == 0.75


@pytest.mark.parametrize("is_async", [True, False])
def test_shares_add_up_to_one_and_to_the_clock(is_async: bool, saved: Callable[..., Path]) -> None:
    engine = {**tiny_config()["engine"], "async_scheduling": is_async}
    steps = load_steps(saved(engine=engine, replicas=2))
    found = time_use(steps, 2)
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    for row in (found.overall, *found.rows):
        assert sum(row.parts.values()) == pytest.approx(1)
    start, end = steps.span
    busy = sum(
        float((mine.held_until - mine["scheduled_at"]).sum())
        for mine in map(steps.of_replica, steps.replicas)
    )
    assert 1 - found.overall.parts["idle"] == pytest.approx(busy / (2 * (end - start)))
    assert (found.hidden_overhead_share > 0) is is_async


def test_parts_add_up_to_the_limit_and_the_gpu(saved: Callable[..., Path]) -> None:
    engine = {**tiny_config()["engine"], "num_gpu_blocks": None}
    found = break_down(saved(engine=engine))
    parts = found.memory_parts
    assert sum(parts.values()) == pytest.approx(79.1 * GIB)
    assert sum(parts.values()) - parts["beyond_limit"] == pytest.approx(0.92 * 79.1 * GIB)
    assert 0 <= parts["unused"] < found.memory.block_bytes + found.memory.draft_block_bytes
    assert parts["draft_weights"] == pytest.approx(0.79 * GIB)
    assert parts["draft_kv"] / parts["target_kv"] == pytest.approx(4096 / 131072)


def test_without_drafts_the_drafter_takes_nothing(saved: Callable[..., Path]) -> None:
    parts = break_down(saved(policy="off")).memory_parts
    assert (parts["draft_weights"], parts["draft_kv"]) == (0, 0)


def test_more_blocks_than_fit_are_mentioned(saved: Callable[..., Path]) -> None:
    engine = {**tiny_config()["engine"], "num_gpu_blocks": 100_000}
    (warning,) = break_down(saved(engine=engine)).warnings
    assert "num_gpu_blocks = 100000 takes 145.5 GiB" in warning


def test_use_of_the_kv_cache(constant_step: Callable[..., str], tmp_path: Path) -> None:
    requests = {
        "arrivals": {"kind": "constant", "rate": 0.25},
        "lengths": {"kind": "constant", "prompt": 20, "output": 2},
        "num_requests": 2,
    }
    engine = {**tiny_config()["engine"], "async_scheduling": False}
    config = tiny_config(
        workload=requests, engine=engine, policy="off", profile=constant_step(delta_ms=1000)
    )
    experiment = Experiment.parse(config, "x")
    Summary(simulate(experiment)).save(tmp_path / "run")
    found = break_down(tmp_path / "run").kv
    # Two blocks for 20 and 21 tokens, two seconds of every request, none in between.
    assert load_steps(tmp_path / "run")["scheduled_at"].tolist() == [0, 1, 4, 5]
    assert (found.num_blocks, found.num_usable, found.peak_used) == (400, 399, 2)
    assert found.mean_used == pytest.approx(2 * 4 / 6)
    assert found.peak_lookahead == 0


def test_each_pool_has_blocks_of_its_own(saved: Callable[..., Path]) -> None:
    few, many = {"num_gpu_blocks": 200}, {"num_gpu_blocks": 400}
    for sizes in ((few, many), (many, few)):
        pools = {name: {"engine": each} for name, each in zip(POOLS, sizes, strict=True)}
        folder = saved(policy="off", pools=pools)
        found, steps = break_down(folder), load_steps(folder)
        for number, kind in ((0, found), (1, found.prefill)):
            assert kind is not None
            free = steps.of_replica(number)["free_blocks"]
            usable = sizes[1 - number]["num_gpu_blocks"] - 1
            assert (kind.kv.num_usable, kind.kv.peak_used) == (usable, usable - free.min())
            assert 0 < kind.kv.mean_used < kind.kv.peak_used
        [point] = load_study(folder).points
        known = [share for share in point.timeline["kv_usage"] if share is not None]
        held = [each.kv.mean_used for each in (found, found.prefill) if each is not None]
        assert sum(known) / len(known) == pytest.approx(sum(held) / (199 + 399), rel=1e-4)


def test_each_stage_of_a_pipeline_has_its_share_of_the_time(
    constant_step: Callable[..., str], saved: Callable[..., Path]
) -> None:
    overhead = {"step_ms": 0.1}
    profile = constant_step(delta_ms=4.0, stage_shares=[0.75, 0.25], overhead=overhead)
    engine = {"num_gpu_blocks": 400, "max_model_len": 512}
    folder = saved(engine=engine, policy="off", acceptance=None, profile=profile)
    found, steps = break_down(folder).time, load_steps(folder)
    start, end = steps.span
    target = steps["target_time"].sum() / (2 * (end - start))
    assert found.overall.parts["target"] == pytest.approx(target)
    most = steps["overhead_time"].sum() / (2 * (end - start))  # the rest is waiting for tokens
    assert 0 < found.overall.parts["overhead"] <= most
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    [point] = load_study(folder).points
    assert point.breakdown["target_s"] == pytest.approx(steps["target_time"].sum())


@pytest.mark.parametrize("stages", [(4, 1), (1, 4)])
def test_the_stages_of_each_pool_are_its_own(
    constant_step: Callable[..., str], saved: Callable[..., Path], stages: tuple[int, int]
) -> None:
    made = (constant_step(delta_ms=9.0, stage_shares=[1 / count] * count) for count in stages)
    pools = {name: {"profile": each} for name, each in zip(POOLS, made, strict=True)}
    folder = saved(policy="off", acceptance=None, pools=pools, profile=pools["decode"]["profile"])
    found, steps = break_down(folder).time, load_steps(folder)
    start, end = steps.span
    target = steps["target_time"].sum() / (5 * (end - start))
    assert found.overall.parts["target"] == pytest.approx(target)
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    [point] = load_study(folder).points
    assert point.breakdown["idle_s"] == pytest.approx(5 * (end - start) * (1 - target), rel=0.01)


@pytest.mark.parametrize("idle_s", [0.0, 20.0])
def test_shares_of_scaled_replicas_are_of_those_that_were_up(
    saved: Callable[..., Path], idle_s: float
) -> None:
    """Before the first request there is one, whose time does not count."""
    scaled = {"kind": "target_concurrency", "target": 1, "max_replicas": 8, "interval_s": 0.1}
    scaled |= {"start_up_s": 0.1, "window_s": 0.1}
    arrivals = {"kind": "piecewise", "segments": [[idle_s + 1e-9, 0], [2, 20.0]]}
    workload = {**tiny_config()["workload"], "arrivals": arrivals, "num_requests": None}
    folder = saved(autoscaling=scaled, workload=workload)
    start, end = load_steps(folder).span
    told = ResultsFolder(folder).own["autoscaling"]
    last_end = told["replica_seconds"] / told["mean_replicas"]
    # A step may come after the last token.
    paid = (told["replica_seconds"] - start) * (end - start) / (last_end - start)
    assert paid < 8 * (end - start)
    found, [point] = break_down(folder), load_study(folder).points
    known = [share for share in point.timeline["kv_usage"] if share is not None]
    assert found.kv.mean_used / found.kv.num_usable == pytest.approx(mean(known), 1e-4)
    assert sum(row.share for row in found.time.rows) == pytest.approx(1)
    idle = found.time.overall.parts["idle"] * paid
    assert point.breakdown["idle_s"] == pytest.approx(idle)
    assert idle == pytest.approx(paid - sum(point.breakdown.values()) + point.breakdown["idle_s"])


def test_lookahead_is_that_of_the_longest_draft(saved: Callable[..., Path]) -> None:
    folder = saved()
    found, steps = break_down(folder).kv, load_steps(folder)
    assert found.peak_lookahead == pytest.approx(3 / 16 * steps["num_running"].max())
    assert 0 < found.mean_lookahead < found.peak_lookahead
    assert found.peak_used == 399 - steps["free_blocks"].min()


def test_the_plan_gives_the_blocks_of_the_deployment() -> None:
    engine = {**tiny_config()["engine"], "num_gpu_blocks": None}
    deployment = Deployment.of(Experiment.parse(tiny_config(engine=engine), "x"))
    assert deployment.engine.num_gpu_blocks == deployment.memory.num_blocks()


def truncate(folder: Path) -> None:
    data = (folder / "steps.parquet").read_bytes()
    (folder / "steps.parquet").write_bytes(data[: len(data) // 2])


def repeat_backwards(folder: Path) -> None:
    table = pq.read_table(folder / "steps.parquet")
    pq.write_table(table.take(list(range(table.num_rows))[::-1]), folder / "steps.parquet")


def keep_no_row(folder: Path) -> None:
    pq.write_table(pq.read_table(folder / "steps.parquet").slice(0, 0), folder / "steps.parquet")


def with_rows(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        column = pq.read_table(folder / "steps.parquet")[name].to_numpy()
        rewrite(folder, **{name: change(column.copy())})

    return spoil


def second(value: Any) -> Callable[[np.ndarray], Any]:
    return lambda column: [column[0], value, *column[2:]]


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda folder: (folder / "steps.parquet").unlink(), "holds no steps.parquet"),
    "truncated": (truncate, "steps.parquet: is not a complete Parquet file; run the"),
    "text": (lambda folder: (folder / "steps.parquet").write_text("a,b"), "is not a complete"),
    "no column": (lambda folder: rewrite(folder, free_blocks=None), "no column 'free_blocks'"),
    "no step": (keep_no_row, "holds no step;"),
    "words": (with_rows("drafts", lambda c: ["x"] * len(c)), "'drafts' holds string, not numbers"),
    "NaN": (with_rows("ended_at", second(float("nan"))), "row 2: ended_at = nan must be"),
    "negative": (with_rows("free_blocks", second(-3)), "row 2: free_blocks = -3 must be"),
    "null": (with_rows("deliveries", second(None)), "deliveries = None must be"),
    "no request": (with_rows("num_requests", second(0)), "row 2: num_requests = 0"),
    "backwards": (repeat_backwards, "must be in the order of replica and clock"),
    "two runs": (with_rows("seed", second(9)), "column 'seed' has 2 values"),
}


@pytest.mark.parametrize("case", SPOILT)
@pytest.mark.parametrize("command", ["timeline", "breakdown"])
def test_a_spoilt_folder_is_one_line_and_nothing_is_written(
    case: str, command: str, saved: Callable[..., Path], cli: Run
) -> None:
    folder = saved()
    spoil, message = SPOILT[case]
    spoil(folder)
    before = sorted(folder.iterdir())
    code, out, err = cli(command, folder, "--plot", folder / "plot.png")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_the_folders_below_are_named(saved: Callable[..., Path]) -> None:
    folder = saved()
    with pytest.raises(ConfigError, match=f"give one of the folders in it: {folder.name}"):
        load_steps(folder.parent)
    with pytest.raises(ConfigError, match=f"one run; give one of the folders in it: {folder.name}"):
        break_down(folder.parent)
    with pytest.raises(ConfigError, match="there is no such folder"):
        load_steps(folder / "nowhere")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rate: 20.0", "rate: 21.0", "not the same run"),
        ("replicas: 1", "replicas: 0", "replicas = 0"),
    ],
)
def test_another_configuration_is_noticed(
    old: str, new: str, message: str, saved: Callable[..., Path]
) -> None:
    path = saved() / "config.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        break_down(path.parent)


def test_a_profile_that_has_changed_since_is_noticed(saved: Callable[..., Path]) -> None:
    folder = saved()
    rewrite(folder, free_blocks=np.full(len(load_steps(folder)), 500))
    with pytest.raises(ConfigError, match="free_blocks = 500, but only 399 blocks fit"):
        break_down(folder)


def test_timeline_writes_a_plot_and_its_series(saved: Callable[..., Path], cli: Run) -> None:
    folder = saved()
    code, out, err = cli("timeline", folder, "--bins", 20)
    assert (code, err) == (0, "")
    assert "timeline.png and timeline.parquet" in out
    rows = pq.read_table(folder / "timeline.parquet").to_pydict()
    assert set(rows["run"]) == {folder.name}
    assert len(rows["start"]) == 20
    assert set(rows["config_hash"]) == {load_steps(folder).provenance["config_hash"]}
    assert set(rows["seed"]) == {0}
    pictures = [(folder / f"timeline.{suffix}").read_bytes() for suffix in ("png", "parquet")]
    assert cli("timeline", folder, "--bins", 20)[0] == 0
    again = [(folder / f"timeline.{suffix}").read_bytes() for suffix in ("png", "parquet")]
    assert again == pictures


def test_several_folders_share_a_plot(saved: Callable[..., Path], cli: Run, tmp_path: Path) -> None:
    one, two = saved(), saved(policy="off")
    rewrite(one, alpha_estimate=np.full(len(load_steps(one)), 0.5))
    code, _, err = cli("timeline", one, two)
    assert code == 2
    assert "--plot" in err
    assert cli("timeline", one, two, "--plot", tmp_path / "both.svg", "--bins", 10)[0] == 0
    picture = (tmp_path / "both.svg").read_text()
    rows = pq.read_table(tmp_path / "both.parquet")
    assert rows.num_rows == 20
    assert rows["run"].to_pylist() == [one.name] * 10 + [two.name] * 10
    assert len(set(rows["config_hash"].to_pylist())) == 2
    assert picture.count("estimate of alpha</text>") == 1


def test_a_folder_given_twice_is_an_error(saved: Callable[..., Path], cli: Run) -> None:
    folder = saved()
    same = folder / ".." / folder.name
    code, out, err = cli("timeline", folder, same, "--plot", "both.png")
    assert (code, out, err) == (2, "", f"error: {same}: is given twice; leave it out once\n")
    assert not Path("both.png").exists()


def test_one_replica_can_be_chosen(saved: Callable[..., Path], cli: Run) -> None:
    folder = saved(replicas=2)
    assert cli("timeline", folder, "--replica", 1)[0] == 0
    rows = pq.read_table(folder / "timeline.parquet")
    mine = load_steps(folder).of_replica(1)
    assert sum(rows["output_tokens"].to_pylist()) == mine["output_tokens"].sum()
    code, _, err = cli("timeline", folder, "--replica", 2)
    assert code == 2
    assert "replica 2 ran no step; choose from 0, 1" in err


@pytest.mark.parametrize(
    ("command", "args", "message"),
    [
        ("timeline", ("--plot", "plot.gif"), "must end in .png, .svg, .pdf, not '.gif'"),
        ("breakdown", ("--plot", "plot"), "must end in .png, .svg, .pdf, not ''"),
        ("timeline", ("--plot", "steps.png"), "would replace steps.parquet"),
        ("timeline", ("--plot", "there/requests.svg"), "would replace requests.parquet"),
        ("breakdown", ("--json", "summary.json"), "would replace summary.json, a result of a run"),
        ("breakdown", ("--json", "config.yaml"), "would replace config.yaml, a result of a run"),
        ("breakdown", ("--plot", "steps.parquet"), "would replace steps.parquet, a result of"),
        ("timeline", ("--bins", "0"), "bins"),
        ("timeline", ("--window", "0"), "window"),
    ],
)
def test_bad_options(
    command: str, args: tuple[str, ...], message: str, saved: Callable[..., Path],
    cli: Run, tmp_path: Path,
) -> None:  # fmt: skip
    folder = saved()
    before = sorted(tmp_path.rglob("*"))
    code, out, err = cli(command, folder, *args)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_breakdown_prints_draws_and_writes(
    saved: Callable[..., Path], cli: Run, tmp_path: Path
) -> None:
    folder = saved()
    args = ("--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    code, out, err = cli("breakdown", folder, *args)
    assert (code, err) == (0, "")
    for words in ("batch size", "hidden", "KV blocks of the drafter", "look-ahead", "0.92"):
        assert words in out
    data = json.loads((tmp_path / "b.json").read_text())
    assert sum(data["memory_gib"].values()) == pytest.approx(79.1)
    assert sum(data["time"]["overall"]["parts"].values()) == pytest.approx(1)
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_breakdown_draws_each_pool(saved: Callable[..., Path], cli: Run, tmp_path: Path) -> None:
    sizes = {"prefill": {"num_gpu_blocks": 100_000}, "decode": {"num_gpu_blocks": 400}}
    pools = {name: {"engine": each} for name, each in sizes.items()}
    folder = saved(policy="off", pools=pools)
    code, _, err = cli("breakdown", folder, "--plot", tmp_path / "b.svg")
    picture = (tmp_path / "b.svg").read_text()
    assert code == 0
    assert all(f"{name} pool" in picture for name in POOLS)
    assert err.startswith("warning: prefill pool: engine.num_gpu_blocks = 100000 takes 138.6 GiB")
