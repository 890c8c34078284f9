"""specsim observe against the real vLLM, on the CPU, with random weights and no tokenizer."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Run
from tiny_model import MODEL, NEEDS_VLLM, PYTHON, START_TIMEOUT, free_port

from specsim.reality.validation import load_run

NUM = 40
SPECULATIVE = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}

pytestmark = NEEDS_VLLM


class Server:
    """``vllm serve``, which can be killed with all its processes."""

    def __init__(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(MODEL))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "server.log"
        self.recorded = folder / "recorded"
        options = {
            "--model": folder, "--served-model-name": "tiny", "--load-format": "dummy",
            "--max-model-len": 2048, "--max-num-seqs": 16, "--host": "127.0.0.1", "--port": port,
            "--speculative-config": json.dumps(SPECULATIVE),
            "--per-request-spec-decode-metrics": "detailed",
            "--scheduler-cls": "specsim.reality.vllm.scheduler.recording_scheduler",
        }  # fmt: skip
        flags = ["--skip-tokenizer-init", "--enforce-eager", "--enable-per-request-metrics"]
        # The command `vllm serve` of the CPU build asks for the version of a package named vllm,
        # and finds none; this is what it would run.
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", *flags]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, *(str(part) for pair in options.items() for part in pair)],
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
                env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                     "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(ROOT),
                     "SPECSIM_RECORD_DIR": str(self.recorded)},
            )  # fmt: skip

    def wait(self) -> None:
        port = int(self.url.rpartition(":")[2])
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end and self._process.poll() is None:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.5)
        raise AssertionError(f"vLLM did not start:\n{self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("vllm"))
    try:
        found.wait()
        yield found
    finally:
        found.kill()


def write_workload(rate: float) -> Path:
    path = Path("w.yaml")
    config = {
        "workload": {
            "arrivals": {"kind": "constant", "rate": rate},
            "lengths": {"kind": "uniform", "prompt": [1, 200], "output": [1, 60]},
            "num_requests": NUM,
        },
        "engine": {"max_num_seqs": 16, "speculative_config": SPECULATIVE},
    }
    path.write_text(yaml.safe_dump(config))
    return path


def observe(cli: Run, server: Server, rate: float) -> tuple[int, str, str]:
    options = ("--ids", "10:1000", "--body", '{"temperature": 0}')
    workload = write_workload(rate)
    return cli("observe", "--url", server.url, "--workload", workload, "--out", "run", *options)


def read() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return rows_of(Path("run")), json.loads(Path("run/meta.json").read_text())


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the last row of each request, in order of arrival; see `RunWriter`."""
    rows = map(json.loads, (folder / "requests.jsonl").read_text().splitlines())
    last = {row["request_id"]: row for row in rows}
    return sorted(last.values(), key=lambda row: row["queued_ts"])


def test_what_is_recorded_is_what_vllm_counts(cli: Run, server: Server) -> None:
    code, out, err = observe(cli, server, rate=10.0)
    assert code == 0, err
    assert "draft acceptance" in out
    rows, meta = read()
    counted = meta["server_metrics"]
    assert len(rows) == NUM == counted['vllm:request_success_total{finished_reason="length"}']
    assert sum(row["output_toks"] for row in rows) == counted["vllm:generation_tokens_total"]
    assert sum(row["input_toks"] for row in rows) == counted["vllm:prompt_tokens_total"]
    counts = [count for row in rows for _, count in row["deliveries"]]
    assert sum(counts) == sum(row["output_toks"] for row in rows)
    assert max(counts) > 1  # and more than k + 1 where a slow front end joins deliveries
    known = [draft for row in rows for draft in row.get("accepted", ())]
    assert len(known) <= counted["vllm:spec_decode_num_drafts_total"]
    ttfts = [row["first_token_ts"] - row["queued_ts"] for row in rows]
    assert sum(ttfts) > counted["vllm:time_to_first_token_seconds_sum"]  # which has no network
    assert all(row["scheduled_ts"] >= row["queued_ts"] for row in rows)
    assert meta["vllm_version"].startswith("0.")
    assert meta["kv_cache"]["num_gpu_blocks"] > 0
    run = load_run(Path("run"))
    assert len(run.runs[0]["arrived_at"]) == NUM


def test_the_client_sees_what_the_engine_records(cli: Run, server: Server) -> None:
    observe(cli, server, rate=10.0)
    seen, _ = read()
    recorded = rows_of(server.recorded)[-NUM:]
    num_known = 0
    for client, engine in zip(seen, recorded, strict=True):  # 0.1 s apart: none overtakes another
        assert client["input_toks"] == engine["input_toks"]
        assert client["output_toks"] == engine["output_toks"]
        assert client["queued_ts"] < engine["queued_ts"]  # one clock, on one machine
        for name in ("first_token_ts", "last_token_ts"):
            assert engine[name] < client[name] < engine[name] + 0.25
        if "accepted" in client:
            num_known += len(client["accepted"])
            assert client["accepted"] == [list(draft) for draft in engine["accepted"]]
    assert num_known > 0


def test_killed_half_way_the_rest_are_errors(cli: Run, server: Server) -> None:
    def kill_later() -> None:
        path = Path("run/requests.jsonl")
        while not path.exists() or path.read_text().count("\n") < NUM // 2:
            time.sleep(0.05)
        server.kill()

    thread = threading.Thread(target=kill_later)
    thread.start()
    code, _, err = observe(cli, server, rate=8.0)
    thread.join()
    rows, meta = read()
    errors = [row.get("error") for row in rows]
    assert code == 1
    assert len(rows) == NUM
    assert errors.count(None) >= NUM // 2
    assert errors[-1] is not None
    assert meta["client"]["num_failed"] == NUM - errors.count(None)
    assert "failed" in err
