"""The run folder: what is added survives, and nothing measured is overwritten."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specsim.core.errors import ConfigError
from specsim.reality.run_writer import RequestRow, RunWriter, StepRow, add_repetition
from specsim.reality.validation import load_run

META = {"engine_kwargs": {"max_num_seqs": 4}, "engine": "a test"}
STEP: StepRow = {
    "started_at": 1.0,
    "seconds": 0.01,
    "context_tokens": 3,
    "batched_tokens": 2,
    "num_requests": 2,
    "prefill_tokens": 0,
    "draft_tokens": 0,
    "accepted_tokens": 0,
    "num_waiting": 0,
    "free_blocks": 7,
}


def request(number: int, queued: float) -> RequestRow:
    return {
        "request_id": f"r-{number}",
        "input_toks": 5,
        "output_toks": 2,
        "arrival_time": queued,
        "queued_ts": queued,
        "scheduled_ts": queued + 0.1,
        "first_token_ts": queued + 0.2,
        "last_token_ts": queued + 0.3,
    }


def meta_of(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "meta.json").read_text())
    return found


def test_a_closed_run_is_complete_and_in_order_of_arrival(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "run"
    with RunWriter(folder, META) as run:
        for number, queued in ((1, 3.0), (0, 1.0), (2, 2.0)):
            run.add_request(request(number, queued))
        run.add_step(STEP)
        run.update_meta(hardware="an abacus")
        assert not meta_of(folder)["complete"]
    meta = meta_of(folder)
    assert meta["complete"] is True
    assert (meta["engine"], meta["hardware"]) == ("a test", "an abacus")
    found = load_run(folder)
    assert found.runs[0]["arrived_at"].tolist() == [0.0, 1.0, 2.0]
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert [row["request_id"] for row in rows] == ["r-0", "r-2", "r-1"]
    assert json.loads((folder / "steps.jsonl").read_text()) == STEP


def test_an_error_marks_the_run_incomplete_and_keeps_the_rows(tmp_path: Path) -> None:
    def record() -> None:
        with RunWriter(tmp_path / "run", META) as run:
            run.add_request(request(0, 1.0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        record()
    assert meta_of(tmp_path / "run")["complete"] is False
    assert len(load_run(tmp_path / "run").runs[0]["arrived_at"]) == 1


def test_the_last_row_of_a_request_counts_closed_or_not(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", META)
    run.add_request({**request(0, 1.0), "error": "has not ended"})
    run.add_request({**request(1, 2.0), "error": "has not ended"})
    run.add_request(request(0, 1.0))
    for _ in ("cut off", "closed"):
        found = load_run(tmp_path / "run")
        assert (len(found.runs[0]["arrived_at"]), found.num_failed) == (1, 1)
        run.close(complete=False)
    assert len((tmp_path / "run" / "requests.jsonl").read_text().splitlines()) == 2


def test_a_kill_leaves_every_row(tmp_path: Path) -> None:
    code = (
        "import os, signal, json, sys\n"
        "from pathlib import Path\n"
        "from specsim.reality.run_writer import RunWriter\n"
        "run = RunWriter(Path(sys.argv[1]), {})\n"
        "for _ in range(100): run.add_step(json.loads(sys.argv[2]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    folder = tmp_path / "run"
    subprocess.run([sys.executable, "-c", code, str(folder), json.dumps(STEP)], check=False)
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert rows == [STEP] * 100
    assert meta_of(folder)["complete"] is False


def test_a_folder_with_a_run_is_refused_and_stays(tmp_path: Path) -> None:
    with RunWriter(tmp_path, META) as run:
        run.add_request(request(0, 1.0))
    with pytest.raises(ConfigError, match=r"holds a run already \(requests.jsonl\); name another"):
        RunWriter(tmp_path, {})
    assert meta_of(tmp_path)["complete"] is True


def test_a_repetition_stands_beside_the_first(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        with RunWriter(tmp_path / name, META) as run:
            run.add_request(request(0, 1.0))
    for name, file in (("two", "requests-2.jsonl"), ("three", "requests-3.jsonl")):
        assert add_repetition(tmp_path / "one", tmp_path / name).name == file
    assert len(load_run(tmp_path / "one").runs) == 3
    with pytest.raises(ConfigError, match=r"has no requests\.jsonl; give the folder"):
        add_repetition(tmp_path / "one", tmp_path)


def test_it_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys\n"
        "import specsim.reality.run_writer, specsim.reality.vllm.recorder\n"
        "import specsim.reality.vllm\n"
        "own = {name.split('.')[0] for name in sys.modules} - {'specsim'}\n"
        "print(sorted(own & {'numpy', 'pydantic', 'numba', 'simpy', 'yaml', 'pyarrow'}))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_an_id_that_clients_use_again_loses_no_request(tmp_path: Path) -> None:
    """Clients name their requests themselves (X-Request-Id); the engine numbers them."""
    with RunWriter(tmp_path / "run", META) as run:
        for number in (0, 1):
            named: RequestRow = {**request(7, number + 1.0), "number": number}
            run.add_request({**named, "error": "had not ended"})
            run.add_request(named)
    assert load_run(tmp_path / "run").runs[0]["arrived_at"].tolist() == [0.0, 1.0]
