"""What is kept of a run: percentiles of counted values, steps on disk, files that are left out."""

import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import Run as Cli
from conftest import tiny_config
from hypothesis import example, given
from hypothesis import strategies as st

from specsim.core.errors import ConfigError, SpecsimError
from specsim.results.folder import load_steps, write_steps
from specsim.results.metrics import latency_statistics
from specsim.results.records import (
    GAP_FIELDS,
    STEP_FIELDS,
    ArrayFile,
    Deliveries,
    DeliveryFile,
    StepLog,
    records_of_run,
)
from specsim.results.tables import WeightedSample, assemble, sorted_gaps
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

DETAILS = ["input_lens", "output_lens", "ttfts", "latencies", "start_times", "queue_times",
           "errors", "itls"]  # fmt: skip
FILES = {"summary.json", "requests.parquet", "config.yaml"}

values = st.one_of(st.sampled_from([0.0, 0.0125, 0.25, 1e-300]), st.floats(0.0, 1e6))
gap_rows = st.lists(st.tuples(values, st.integers(1, 4), st.integers(1, 9)), min_size=1)


@given(rows=gap_rows, percent=st.one_of(st.sampled_from([50, 90, 95, 99]), st.floats(0, 100)))
@example(rows=[(0.5, 1, 1)], percent=99)
@example(rows=[(0.1, 1, 5000), (0.3, 3, 5000)], percent=50)  # more than a block
def test_counted_values_are_as_good_as_values_spelt_out(
    rows: list[tuple[float, int, int]], percent: float
) -> None:
    gaps = np.array(rows, dtype=GAP_FIELDS)
    counts, tokens = gaps["count"], gaps["tokens"]
    by_delivery = np.repeat(gaps["value"], counts)
    by_token = np.repeat(gaps["value"] / tokens, counts * tokens)
    half = len(gaps) // 2
    ordered = sorted_gaps([gaps[:half], gaps[half:]])
    for sample, expected in (
        (WeightedSample(ordered), by_delivery),
        (WeightedSample(ordered, per_token=True), by_token),
    ):
        assert len(sample) == len(expected)
        assert sample.percentiles([percent]) == [np.percentile(expected, percent)]
        scale = expected.max() or 1.0
        assert sample.mean() == pytest.approx(expected.mean(), rel=1e-12)
        assert abs(sample.std() - expected.std()) <= 1e-12 * scale


def test_many_rows_are_counted_across_blocks() -> None:
    rng = np.random.default_rng(3)
    gaps = np.zeros(50_000, dtype=GAP_FIELDS)
    gaps["value"], gaps["tokens"] = rng.random(len(gaps)), rng.integers(1, 4, len(gaps))
    gaps["count"] = rng.integers(1, 30, len(gaps))
    sample = latency_statistics(WeightedSample(sorted_gaps([gaps])))
    expected = latency_statistics(np.repeat(gaps["value"], gaps["count"]))
    assert sample == pytest.approx(expected, rel=1e-12)
    assert all(sample[name] == expected[name] for name in ("p50", "p90", "p95", "p99"))


def test_without_a_gap_all_statistics_are_0_as_in_vllm() -> None:
    assert set(latency_statistics(WeightedSample(sorted_gaps([]))).values()) == {0.0}


def steps(count: int, start: float = 0.0) -> np.ndarray:
    rows = np.zeros(count, dtype=STEP_FIELDS)
    rows["scheduled_at"] = start + np.arange(count)
    rows["ended_at"] = rows["scheduled_at"] + 1.0
    rows["num_requests"] = 1
    return rows


@pytest.mark.parametrize("limit", [0, 7, 1000])
def test_steps_come_back_in_order_from_memory_and_from_disk(limit: int, tmp_path: Path) -> None:
    log = StepLog(3, max_in_memory=limit)
    expected: list[list[np.ndarray]] = [[], [], []]
    clock, buffer = 0.0, np.zeros(16, dtype=STEP_FIELDS)
    with patch.object(ArrayFile, "append", autospec=True, side_effect=ArrayFile.append) as to_disk:
        for size in (1, 5, 3, 16, 2, 4):
            for replica in (0, 2):  # replica 1 never runs
                buffer[:size] = steps(size, clock)
                log.add(replica, buffer[:size])  # which is used again
                expected[replica].append(steps(size, clock))
            clock += size
    assert to_disk.called == (limit < len(log)) == (limit < 1000)
    assert len(log) == 62
    nothing = [np.zeros(0, dtype=STEP_FIELDS)]
    for replica, pieces in enumerate(expected):
        assert np.array_equal(log.of_replica(replica), np.concatenate(pieces + nothing))
    everything = np.concatenate([*expected[0], *expected[2]])
    for size in (1, 9, 62, 10**6):
        blocks = [(replicas.copy(), rows.copy()) for replicas, rows in log.blocks(size)]
        assert np.array_equal(np.concatenate([rows for _, rows in blocks]), everything)
        assert np.concatenate([replicas for replicas, _ in blocks]).tolist() == [0] * 31 + [2] * 31
        assert {len(rows) for _, rows in blocks[:-1]} <= {size}
    log.add(1, steps(1))  # reading leaves the file as it was
    assert len(log.of_replica(1)) == 1
    assert np.array_equal(log.of_replica(2), np.concatenate(expected[2]))
    provenance = {"config_hash": "x", "seed": 0, "specsim_version": "1"}
    write_steps(log, provenance, tmp_path / "steps.parquet")
    assert load_steps(tmp_path)["replica"].tolist() == [0] * 31 + [1] + [2] * 31


@pytest.mark.parametrize("duplicated", [deepcopy, lambda log: pickle.loads(pickle.dumps(log))])
def test_a_copy_of_steps_on_disk_has_a_file_of_its_own(
    duplicated: Callable[[StepLog], StepLog],
) -> None:
    log = StepLog(1, max_in_memory=2)
    log.add(0, steps(7))
    copy = duplicated(log)
    copy.add(0, steps(4, 7.0))
    log.add(0, steps(3, 9.0))
    assert np.array_equal(copy.of_replica(0), np.concatenate([steps(7), steps(4, 7.0)]))
    assert np.array_equal(log.of_replica(0), np.concatenate([steps(7), steps(3, 9.0)]))


def test_runs_are_equal_if_they_recorded_the_same(tiny: Callable[..., Experiment]) -> None:
    run = simulate(tiny())
    again = simulate(tiny(), keeps_steps=False, keeps_deliveries=True)
    assert (run, Summary(run)) == (again, Summary(again))
    assert run == pickle.loads(pickle.dumps(run))
    assert run != simulate(tiny(seed=1))
    assert run != simulate(tiny(), requests=run.requests[:29])


def test_long_tables_are_written_in_row_groups(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = Summary(simulate(tiny()))
    summary.save(tmp_path / "one")
    for module in ("run.summary", "results.folder"):
        monkeypatch.setattr(f"specsim.{module}.ROWS_PER_GROUP", 10)
    summary.save(tmp_path / "many")
    for name in ("requests", "steps"):
        one, many = (pq.ParquetFile(tmp_path / n / f"{name}.parquet") for n in ("one", "many"))
        assert one.num_row_groups == 1
        assert many.num_row_groups == -(-one.metadata.num_rows // 10)
        for column in one.schema_arrow.names:
            assert str(one.read()[column].to_pylist()) == str(many.read()[column].to_pylist())


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specsim.results.records.ArrayFile.write", fail)
    log = StepLog(1, max_in_memory=2)
    with pytest.raises(ConfigError, match="No space left on device; set TMPDIR"):
        log.add(0, steps(3))


def test_steps_that_were_not_kept_are_an_error_and_no_number_needs_them(
    tiny: Callable[..., Experiment],
) -> None:
    kept, dropped = (Summary(simulate(tiny(), keeps_steps=keeps)) for keeps in (True, False))
    assert kept.data == dropped.data
    assert kept.warnings == dropped.warnings
    assert len(kept.tables.steps) == kept.data["specsim"]["num_steps"]
    for read in (lambda: dropped.tables.steps, lambda: dropped.run.replicas[0].steps):
        with pytest.raises(SpecsimError, match="were not kept"):
            read()


def test_replicas_are_added_up_and_a_second_counts_once() -> None:
    records = records_of_run(2, 1, keeps_steps=False)
    for number, each in enumerate(records):
        each.totals["steps"] += 2 + number
        each.totals["context_tokens"] = 10 * (2 - number)
        each.outcomes[1, number] += 3
    tables = assemble(records)
    assert (tables.totals["steps"], tables.totals["context_tokens"]) == (5, 20)
    assert tables.outcomes.tolist() == [[0, 0], [3, 3]]


def test_room_for_deliveries_is_that_of_the_longest_answers() -> None:
    room = Deliveries.room_for(np.array([3, 1, 4]))
    assert room.starts.tolist() == [0, 3, 4, 8]
    room.at[:] = range(8)
    assert room.column("at", np.array([2, 1, 3])).tolist() == [0, 1, 3, 4, 5, 6]
    assert room.column("at", np.array([1, 3]), first=1).tolist() == [3, 4, 5, 6]
    assert room.column("lens", np.array([], dtype=int)).tolist() == []


def test_deliveries_come_back_by_request_from_the_parts_that_hold_them() -> None:
    file, counts = DeliveryFile(), np.array([2, 0, 3, 1, 2])
    for requests in (np.array([1, 2, 4]), np.array([0, 3])):
        part = Deliveries.room_for(counts[requests] + 1)
        for place, request in enumerate(requests):
            mine = slice(part.starts[place], part.starts[place] + counts[request])
            part.at[mine] = 10 * request + np.arange(counts[request])
            part.lens[mine] = request + 1
        file.add(requests, part.packed(counts[requests]))
    assert file.column("at", counts).tolist() == [0, 1, 20, 21, 22, 30, 40, 41]
    assert file.column("lens", counts[1:4], first=1).tolist() == [3, 3, 3, 4]
    assert file.column("drafted", counts[1:2], first=1).tolist() == []


@pytest.mark.parametrize("at_once", [1, 3, 50, 10**6])
def test_lists_per_request_do_not_depend_on_how_many_are_written_at_once(
    at_once: int, tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = Summary(simulate(tiny(), keeps_deliveries=True))
    for name in ("_DELIVERIES_AT_ONCE", "_REQUESTS_AT_ONCE"):
        monkeypatch.setattr(f"specsim.results.folder.{name}", at_once)
    summary.save(tmp_path)
    data = json.loads((tmp_path / "summary.json").read_text())
    rows = summary.tables.requests
    assert list(data)[-len(DETAILS) :] == DETAILS
    assert data["input_lens"] == rows["prompt_len"].tolist()
    assert data["ttfts"] == (rows["first_token_at"] - rows["arrived_at"]).tolist()
    assert [len(itls) for itls in data["itls"]] == (rows["deliveries"] - 1).tolist()
    assert sum(map(sum, data["itls"])) == pytest.approx(
        (rows["ended_at"] - rows["first_token_at"]).sum()
    )
    for itls, row in zip(data["itls"], rows, strict=True):
        assert sum(itls) == pytest.approx(row["ended_at"] - row["first_token_at"], abs=1e-6)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "exp.yaml"
    path.write_text(yaml.safe_dump(tiny_config()))
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_no_steps_takes_the_steps_of_an_earlier_run_away(cli: Cli, config: Path) -> None:
    folder = Path("r")
    assert cli("run", config, "--out", folder)[0] == 0
    (folder / "mine.txt").write_text("mine")
    before = (folder / "requests.parquet").read_bytes()
    assert names(folder) == {*FILES, "steps.parquet", "mine.txt"}
    assert cli("run", config, "--out", folder, "--no-steps")[0] == 0
    assert names(folder) == {*FILES, "mine.txt"}
    assert (folder / "requests.parquet").read_bytes() == before
    assert set(DETAILS) <= json.loads((folder / "summary.json").read_text()).keys()


@pytest.mark.parametrize(
    "command",
    [
        ("timeline", "r"),
        ("breakdown", "r"),
        ("report", "r"),
        ("plot", "r"),
        ("export", "r", "--chrome-trace", "t.json"),
    ],
)
def test_what_needs_the_steps_says_why_there_are_none(
    command: tuple[str, ...], cli: Cli, config: Path
) -> None:
    assert cli("run", config, "--out", "r", "--no-steps")[0] == 0
    before = names(Path("r"))
    code, out, err = cli(*command)
    assert (code, out) == (2, "")
    assert "r: holds no steps.parquet; it was written with --no-steps" in err
    assert "run the experiment again without that" in err
    assert err.count("\n") == 1
    assert names(Path("r")) == before


def test_no_details_is_vllms_file_without_save_detailed(cli: Cli, config: Path) -> None:
    assert cli("run", config, "--out", "all")[0] == 0
    assert cli("run", config, "--out", "r", "--no-details")[0] == 0
    full, short = (json.loads(Path(f"{name}/summary.json").read_text()) for name in ("all", "r"))
    assert {name: value for name, value in full.items() if name not in DETAILS} == short
    assert names(Path("r")) == {*FILES, "steps.parquet"}
    code, _, err = cli("export", "r", "--prometheus", "p.txt")
    assert code == 2
    assert "holds no itls; run the experiment again without --no-details" in err
    assert err.count("\n") == 1
    assert cli("export", "r", "--vllm-bench", "b.json")[0] == 0
    assert "generated_texts" not in json.loads(Path("b.json").read_text())


@pytest.mark.parametrize("option", ["--no-steps", "--no-details"])
def test_options_about_files_need_a_folder(option: str, cli: Cli, config: Path) -> None:
    code, out, err = cli("run", config, option)
    assert (code, out) == (2, "")
    assert err == f"error: {option}: is about what --out writes; add that or leave it out\n"
