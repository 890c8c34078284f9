"""The recorder in a real server: what a signal cuts off is recorded up to there."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

import pytest
from conftest import ROOT
from tiny_model import MODEL, NEEDS_VLLM, PYTHON, START_TIMEOUT, free_port

from specsim.reality.validation import load_run

NUM = 8

pytestmark = NEEDS_VLLM


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    (folder / "config.json").write_text(json.dumps(MODEL | {"max_position_embeddings": 16_384}))
    # What `vllm serve` runs; the command itself fails in the CPU build, whose package has another
    # name.
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    flags = "--load-format dummy --skip-tokenizer-init --enforce-eager --max-num-seqs 4"
    flags += f" --served-model-name tiny --host 127.0.0.1 --port {port} --max-model-len 16384"
    flags += " --dtype float32 --block-size 32"
    flags += " --scheduler-cls specsim.reality.vllm.scheduler.recording_scheduler"
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": str(ROOT),
        "SPECSIM_RECORD_DIR": str(folder / "run"),
    }
    with (folder / "log.txt").open("w") as log:
        return subprocess.Popen(
            [*command, *flags.split()],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **variables},
        )


def wait_until_up(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT
    while time.monotonic() < end and server.poll() is None:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise AssertionError(f"vLLM did not start:\n{log.read_text()[-3000:]}")


def ask(port: int, max_tokens: int) -> None:
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": max_tokens, "ignore_eos": True}
    body |= {"temperature": 0, "detokenize": False, "return_token_ids": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_loses_no_step_and_no_request(tmp_path: Path, sent: signal.Signals) -> None:
    port = free_port()
    server = start(tmp_path, port)
    try:
        wait_until_up(server, port, tmp_path / "log.txt")
        ask(port, 5)  # one that ends
        asked = [threading.Thread(target=ask, args=(port, 16_000)) for _ in range(NUM)]
        for thread in asked:
            thread.start()
        time.sleep(1.0)  # 16,000 tokens take longer, and longer than vLLM needs to stop
        if sent == signal.SIGKILL:
            os.killpg(server.pid, sent)
        else:
            os.kill(server.pid, sent)
        server.wait(timeout=60)
        for thread in asked:
            thread.join()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
    folder = tmp_path / "run"
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert len(steps) > 20
    run = load_run(folder)
    assert run.runs[0]["output_len"].tolist() == [5]
    assert run.num_failed == NUM
    # After a SIGTERM vLLM kills its engine (--shutdown-timeout 0), which may have stopped before.
    assert run.meta["complete"] is False or sent == signal.SIGTERM
