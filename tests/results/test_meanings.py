"""Parquet files say of each column what it is, and in which unit."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from specsim.api import Experiment, Summary, capacity, simulate, sweep
from specsim.results import meanings
from specsim.results.folder import load_requests, load_steps
from specsim.results.timeline import timeline, write_timelines

Tiny = Callable[..., Experiment]


def described(path: Path, file: str | None = None) -> dict[str, tuple[str, str]]:
    """Return unit and meaning of each column of a file; all have them, as the reference does."""
    fields = {field.name: field.metadata for field in pq.read_schema(path)}
    found = {n: (each[b"unit"].decode(), each[b"meaning"].decode()) for n, each in fields.items()}
    known = meanings()[file or path.name]
    assert {name: list(each) for name, each in found.items() if name in known} == {
        name: known[name] for name in found if name in known
    }
    return found


def test_the_files_of_a_run_say_what_they_hold(tiny: Tiny, tmp_path: Path) -> None:
    Summary(simulate(tiny())).save(tmp_path)
    requests = described(tmp_path / "requests.parquet")
    assert requests["ttft"] == ("s", "Time to first token: first_token_at - arrived_at.")
    assert requests["prompt_len"][0] == "tokens"
    steps = described(tmp_path / "steps.parquet")
    assert steps["free_blocks"][0] == "KV blocks"
    write_timelines({"a": timeline(load_steps(tmp_path), num_bins=5, window=1)}, tmp_path / "any")
    assert set(described(tmp_path / "any", "timeline.parquet")) == set(
        meanings()["timeline.parquet"]
    )


def test_the_files_of_studies_say_what_they_hold(tiny: Tiny, tmp_path: Path) -> None:
    tiny().save(tmp_path / "e.yaml")
    axes = [{"policy": ["off", "static:k=2"]}]
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"base": "e.yaml", "axes": axes}))
    sweep(tmp_path / "s.yaml", tmp_path / "sweep", workers=1)
    points = {f.name: f.metadata for f in pq.read_schema(tmp_path / "sweep/points.parquet")}
    assert points.pop("policy") is None
    assert points["p99_ttft_ms"][b"unit"] == b"ms"
    assert points["time_shares.target"][b"meaning"].startswith(b"Shares of target")
    assert not [name for name, each in points.items() if each is None]


@pytest.mark.slow
def test_the_loads_of_a_capacity_say_what_they_are(tiny: Tiny, tmp_path: Path) -> None:
    goal = {"slo": "ttft:500,tpot:50", "tolerance": 0.2, "replications": 2, "num_requests": 200}
    found = capacity(tiny(), **goal, workers=1)
    found.save(tmp_path)
    columns = described(tmp_path / "capacity.parquet")
    assert set(meanings()["capacity.parquet"]) <= set(columns)
    assert columns["p99_ttft_ms"][0] == "ms"


def test_files_that_say_nothing_are_read_as_before(tiny: Tiny, tmp_path: Path) -> None:
    Summary(simulate(tiny())).save(tmp_path)
    before = load_requests(tmp_path), load_steps(tmp_path)
    for file in ("requests.parquet", "steps.parquet"):
        table = pq.read_table(tmp_path / file)
        plain = pa.schema([field.remove_metadata() for field in table.schema])
        pq.write_table(table.cast(plain), tmp_path / file)
    after = load_requests(tmp_path), load_steps(tmp_path)
    for one, other in zip(before, after, strict=True):
        assert one.columns.keys() == other.columns.keys()
        assert all(
            (one[name] == other[name]).all() for name in one.columns if name != "alpha_estimate"
        )
