"""specsim observe, against a small server with vLLM's streaming interface."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import openai_server
import pytest
import yaml
from conftest import Run
from openai_server import DELIVERIES, STEP, FakeVllm, serving
from tiny_model import free_port

from specsim.core.request import PrefixIds, Request
from specsim.reality.observe import Observation, accepted_drafts, request_row
from specsim.reality.observe.client import (
    MAX_EVENT_BYTES,
    Metrics,
    Server,
    StreamedAnswer,
    TooMuchError,
    parse_metrics,
    read_answer,
)
from specsim.reality.observe.workload import Prompts, Sent, load_workload
from specsim.reality.validation import load_run
from specsim.show.render.reality_tables import observation_table
from specsim.workload.readers import read_trace

pytestmark = pytest.mark.slow

NUM = 30


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    return write_workload(tmp_path / "w.yaml")


def write_workload(path: Path, **arrivals: Any) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "workload": {
                    "arrivals": arrivals or {"kind": "poisson", "rate": 100.0},
                    "lengths": {"kind": "uniform", "prompt": [1, 30], "output": [2, 30]},
                    "num_requests": NUM,
                },
                "engine": {"max_num_seqs": 8, "block_size": 16},
                "seed": 3,
            }
        )
    )
    return path


def read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows as the workload numbers them: on a busy machine one may overtake another."""
    lines = (folder / "requests.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows == sorted(rows, key=lambda row: row["queued_ts"])
    rows.sort(key=lambda row: int(row["request_id"].removeprefix("request-")))
    return rows, json.loads((folder / "meta.json").read_text())


def observe(cli: Run, url: str, workload: Path, *options: object) -> tuple[int, str, str]:
    return cli("observe", "--url", url, "--workload", workload, "--out", "run", *options)


def test_every_request_is_sent_as_the_workload_says(cli: Run, workload: Path) -> None:
    server = FakeVllm()
    with serving(server) as url:
        code, out, err = observe(cli, url + "/v1/", workload, "--body", '{"temperature": 0}')
    assert code == 0, err
    assert f"{NUM} of {NUM}" in out
    rows, meta = read(Path("run"))
    asked = load_workload(workload, []).requests
    by_prompt = {tuple(each["prompt"]): each for each in server.seen[1:]}  # after the warm-up
    sent = [by_prompt[tuple(row["input_tok_ids"])] for row in rows]
    assert [len(each["prompt"]) for each in sent] == [each.prompt_len for each in asked]
    assert [row["output_toks"] for row in rows] == [each.output_len for each in asked]
    assert all(each["min_tokens"] == each["max_tokens"] for each in sent)
    assert all(each["temperature"] == 0 and each["ignore_eos"] for each in sent)
    assert len(server.seen) == NUM + 1
    assert all(1_000 <= token < 30_000 for each in sent for token in each["prompt"])
    assert meta["complete"] is True
    assert meta["engine_kwargs"] == {
        "max_num_seqs": 8, "enable_prefix_caching": True, "max_model_len": 2048
    }  # fmt: skip
    assert meta["kv_cache"] == {"num_gpu_blocks": 500, "block_size": 16}


def test_deliveries_are_recorded_as_they_come(cli: Run, workload: Path) -> None:
    with serving(FakeVllm()) as url:
        observe(cli, url, workload)
    rows, _ = read(Path("run"))
    assert len(rows) == NUM
    for row in rows:
        counts = [count for _, count in row["deliveries"]]
        times = [at for at, _ in row["deliveries"]]
        assert counts[:-1] == [DELIVERIES[n % 5] for n in range(len(counts) - 1)]
        assert sum(counts) == row["output_toks"] == len(row["output_tok_ids"])
        assert row["queued_ts"] + STEP < row["first_token_ts"] == times[0]
        assert row["last_token_ts"] == times[-1] > row["queued_ts"] + STEP * len(times)
        assert times == sorted(times)


def test_arrival_times_are_kept_however_slow_the_server(cli: Run, workload: Path) -> None:
    server = FakeVllm(step=0.05)  # answers take longer than the whole load
    with serving(server) as url:
        observe(cli, url, workload)
    rows, meta = read(Path("run"))
    planned = np.array([each.arrived_at for each in load_workload(workload, []).requests])
    due = np.array([row["arrival_time"] for row in rows])
    np.testing.assert_allclose(due - due[0], planned - planned[0], atol=1e-9)
    late = np.array([row["queued_ts"] for row in rows]) - due
    assert late.min() >= 0
    assert late.mean() < 0.1  # of answers that take half a second and more
    assert meta["client"]["lateness_ms"]["max"] == pytest.approx(late.max() * 1e3)
    seen = np.sort(server.seen_at[1:])
    assert abs((seen - seen[0]) - (planned - planned[0])).mean() < 0.1


def test_closed_loop_keeps_its_concurrency(cli: Run, tmp_path: Path) -> None:
    path = write_workload(tmp_path / "w.yaml", kind="closed_loop", concurrency=4)
    with serving(FakeVllm()) as url:
        assert observe(cli, url, path)[0] == 0
    rows, _ = read(Path("run"))
    events = [(row["queued_ts"], 1) for row in rows] + [(row["last_token_ts"], -1) for row in rows]
    running = np.cumsum([change for _, change in sorted(events)])
    assert len(rows) == NUM
    assert running.max() == 4


FAULTS = {
    3: "500", 5: "disconnect", 8: "event", 11: "odd metrics", 13: "nonsense",
    21: "short", 23: "fewer", 25: "silence",
}  # fmt: skip


def test_no_failure_is_dropped(cli: Run, tmp_path: Path) -> None:
    workload = write_workload(tmp_path / "w.yaml", kind="constant", rate=20.0)
    with serving(FakeVllm(faults=FAULTS)) as url:
        code, _, err = observe(cli, url, workload, "--timeout", 0.5)
    assert code == 1
    rows, meta = read(Path("run"))
    assert len(rows) == NUM
    failed = {int(row["request_id"].split("-")[1]) + 1: row for row in rows if "error" in row}
    assert failed.keys() == FAULTS.keys()
    for number, said in {
        3: "HTTP 500: EngineCore encountered an issue", 8: "in the stream: out of blocks",
        21: "the stream ended before", 25: "timeout", 13: "not understood",
        5: "the connection broke", 11: "metrics is no object", 23: "completion_tokens = -1",
    }.items():  # fmt: skip
        assert said in failed[number]["error"]
        assert said in err
    assert failed[3]["first_token_ts"] is None
    assert [count for _, count in failed[5]["deliveries"]] == [1, 3]  # what came before is kept
    assert meta["client"]["num_failed"] == len(FAULTS)
    assert sum(meta["client"]["errors"].values()) == len(FAULTS)
    assert meta["complete"] is True  # nothing is missing
    assert load_run(Path("run")).num_failed == len(FAULTS)
    trace = read_trace(Path("run/requests.jsonl"))
    assert (len(trace), trace.num_dropped) == (NUM - len(FAULTS), len(FAULTS))


def start_server() -> tuple["subprocess.Popen[bytes]", str]:
    port = free_port()
    script = str(Path(openai_server.__file__))
    process = subprocess.Popen([sys.executable, script, str(port)], stdout=subprocess.DEVNULL)
    for _ in range(200):
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}"
        time.sleep(0.05)
    process.kill()
    raise AssertionError("the server did not start")


def start_client(url: str, workload: Path, out: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "specsim", "observe", "--url", url]
    return subprocess.Popen(
        [*command, "--workload", str(workload), "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_rows(folder: Path, number: int) -> None:
    path = folder / "requests.jsonl"
    for _ in range(600):
        if path.exists() and path.read_text().count("\n") >= number:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {number} rows")


def test_server_killed_half_way(tmp_path: Path) -> None:
    workload = write_workload(tmp_path / "w.yaml", kind="constant", rate=15.0)
    server, url = start_server()
    client = start_client(url, workload, tmp_path / "run")
    wait_for_rows(tmp_path / "run", NUM // 3)
    server.kill()
    server.wait()
    _, err = client.communicate(timeout=60)
    rows, meta = read(tmp_path / "run")
    assert client.returncode == 1
    assert len(rows) == NUM  # as many as sent
    errors = [row.get("error") for row in rows]
    assert errors[-1] is not None
    assert sum(error is None for error in errors) >= NUM // 3
    assert any(row["deliveries"] for row in rows if "error" in row)  # broken off in the middle
    assert "did not answer after the run" in err
    assert meta["client"]["num_failed"] == NUM - errors.count(None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_what_there_is(tmp_path: Path, number: signal.Signals) -> None:
    workload = write_workload(tmp_path / "w.yaml", kind="constant", rate=15.0)
    server, url = start_server()
    client = start_client(url, workload, tmp_path / "run")
    wait_for_rows(tmp_path / "run", 5)
    client.send_signal(number)
    out, _ = client.communicate(timeout=60)
    server.kill()
    server.wait()
    rows, meta = read(tmp_path / "run")
    assert client.returncode == 130
    assert "INTERRUPTED" in out
    assert meta["complete"] is False
    assert 5 <= len(rows) == meta["client"]["num_sent"] < NUM
    ends = [row.get("error") for row in rows]
    assert set(ends) <= {None, "interrupted"}


def test_server_without_token_ids_or_metrics(cli: Run, workload: Path) -> None:
    with serving(FakeVllm(tells_ids=False, has_metrics=False)) as url:
        code, _, err = observe(cli, url, workload)
    rows, _ = read(Path("run"))
    asked = [each.output_len for each in load_workload(workload, []).requests]
    assert code == 0
    assert [row["output_toks"] for row in rows] == asked  # by the server's count
    assert "/metrics did not answer before the run" in err


def test_server_that_counts_nothing(cli: Run, workload: Path) -> None:
    """Nor ends the last line: a full answer has the length that was asked for."""
    with serving(FakeVllm(tells_ids=False, counts=False)) as url:
        code, _, err = observe(cli, url, workload)
    rows, meta = read(Path("run"))
    asked = [each.output_len for each in load_workload(workload, []).requests]
    assert (code, meta["client"]["num_failed"]) == (0, 0)
    assert [row["output_toks"] for row in rows] == asked
    assert "another length" not in err


def test_speculation_is_read_from_the_server(cli: Run, workload: Path) -> None:
    server = FakeVllm(tells_drafts=True)
    with serving(server) as url:
        _, out, _ = observe(cli, url, workload, "--warm-up", 0)
    rows, meta = read(Path("run"))
    assert meta["server_metrics"]["vllm:spec_decode_num_drafts_total"] == server.drafts
    assert f"{1 + server.accepted / server.drafts:.3f}" in out
    assert sum(len(row["accepted"]) for row in rows) == server.drafts
    assert sum(draft[2] for row in rows for draft in row["accepted"]) == server.accepted
    assert all(row["scheduled_ts"] == pytest.approx(row["queued_ts"] + 0.0015) for row in rows)


def test_the_policy_of_the_file_is_that_of_the_server(cli: Run, workload: Path) -> None:
    policy = {"kind": "static", "k": 3}
    workload.write_text(workload.read_text() + yaml.safe_dump({"policy": policy}))
    with serving(FakeVllm(tells_drafts=True)) as url:
        _, _, err = observe(cli, url, workload, "--warm-up", 0)
    assert read(Path("run"))[1]["policy"] == policy
    assert "remove it from meta.json if the server has none" in err


def test_replicas_of_the_file_are_recorded_and_compared_with_what_answers(
    cli: Run, workload: Path
) -> None:
    said = yaml.safe_load(workload.read_text()) | {"profile": "h100/llama-3.1-8b", "replicas": 2}
    failure = {"kind": "failure", "replica": 0, "at": 1.0}
    more = {"routing": "least_outstanding", "incidents": [failure]}
    workload.write_text(yaml.safe_dump(said | more))
    with serving(FakeVllm()) as url:
        _, _, err = observe(cli, url, workload, "--warm-up", 0)
    meta = read(Path("run"))[1]
    assert meta["replicas"] == 2
    assert meta["routing"]["kind"] == "least_outstanding"
    assert meta["num_engines"] == 1
    assert meta["not_recorded"] == ["incidents"]
    assert "incidents of the experiment are not recorded" in err
    assert "metrics are of 1 engines, those of the workload file are 2" in err


def test_a_priority_is_recorded_as_it_was_sent() -> None:
    sent = Sent(0, 0.9, StreamedAnswer(1.0, deliveries=[(1.2, 1)]))
    prompt = np.array([1, 2])
    assert request_row(sent, prompt, 3)["priority"] == 3
    assert "priority" not in request_row(sent, prompt)


def spec(drafted: list[Any], accepted: list[Any]) -> dict[str, Any]:
    return {"speculative_decoding": {"per_step_drafted": drafted, "per_step_accepted": accepted}}


def test_positions_of_drafts() -> None:
    every = accepted_drafts(spec([3, 3, 3], [0, 2, 3]), [1, 1, 3, 2])
    assert every == [[1, 3, 0], [2, 3, 2], [5, 3, 3]]  # the last was cut at the answer's end
    some = accepted_drafts(spec([2, 2], [2, 2]), [1, 1, 3, 2])
    assert some == [[2, 2, 2], [5, 2, 2]]
    assert accepted_drafts(spec([2, 2], [2, 2]), [1, 3, 1, 1]) == [[1, 2, 2], [5, 2, 2]]
    assert accepted_drafts(spec([2, 2], [0, 2]), [1, 1, 1, 3]) is None  # which of the two was it?
    assert accepted_drafts(spec([2, 2], [2, 2]), [1, 6]) is None  # two steps in one delivery
    assert accepted_drafts({}, [1, 2]) is None
    assert accepted_drafts(spec(["2"], [None]), [1, 3]) is None
    assert accepted_drafts(spec([], []), [1]) == []


def test_a_queue_time_that_is_no_number_is_not_believed() -> None:
    answer = StreamedAnswer(0.0, [(1.0, 2)], metrics={"queue_time_ms": "1.5"})
    assert request_row(Sent(0, 0.0, answer), np.arange(3))["scheduled_ts"] is None


def test_prompts() -> None:
    def request(index: int, **fields: Any) -> Request:
        return Request(index=index, prompt_len=20, output_len=1, **fields)

    prompts = Prompts(0, 100, 200)
    recorded = np.arange(20)
    assert prompts.of(request(0, prompt_token_ids=recorded)) is recorded
    unrecorded = prompts.of(request(0, prompt_token_ids=np.array([-1])))
    assert len(unrecorded) == 20
    assert unrecorded.min() >= 100
    assert (prompts.of(request(0)) == unrecorded).all()
    assert (prompts.of(request(1)) != unrecorded).any()
    one = prompts.of(request(1, prefix_ids=PrefixIds([5, 6, 7], 8)))
    two = prompts.of(request(2, prefix_ids=PrefixIds([5, 6, 9], 8)))
    assert (one[:16] == two[:16]).all()
    assert (one[16:] != two[16:]).any()


def test_metrics_are_summed_over_engines() -> None:
    text = (
        'vllm:a_total{engine="0",model_name="m"} 2.0\nvllm:a_total{engine="1",model_name="m"} 3\n'
        'vllm:p_total{engine="0",position="1"} 4\nvllm:h_bucket{le="1"} 7\nvllm:g{engine="0"} NaN\n'
    )
    assert parse_metrics(text).values == {"vllm:a_total": 5.0, 'vllm:p_total{position="1"}': 4.0}
    assert parse_metrics("").since(parse_metrics(text)) == {}
    assert parse_metrics("vllm:a_total 1").since(parse_metrics(text)) == {}  # restarted


class TestBadInput:
    def test_nothing_answers(self, cli: Run, workload: Path) -> None:
        self.assert_fails(
            cli,
            f"http://127.0.0.1:{free_port()}",
            workload,
            "no server answers (Connection refused)",
        )

    def test_something_else_answers(self, cli: Run, workload: Path) -> None:
        def banner() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"SSH-2.0-x\r\n\r\n")

        with closing(socket.socket()) as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            thread = threading.Thread(target=banner)
            thread.start()
            url = f"http://127.0.0.1:{other.getsockname()[1]}"
            self.assert_fails(cli, url, workload, "no server answers")
            thread.join()

    def test_another_web_server_answers(self, cli: Run, workload: Path) -> None:
        server = FakeVllm()
        with serving(server) as url:
            self.assert_fails(cli, url + "/other", workload, "no OpenAI-compatible server")

    def test_wrong_model(self, cli: Run, workload: Path) -> None:
        with serving(FakeVllm()) as url:
            self.assert_fails(cli, url, workload, "no such model; it has: tiny", "--model", "big")

    def test_several_models(self, cli: Run, workload: Path) -> None:
        with serving(FakeVllm(models=("a", "b"))) as url:
            self.assert_fails(cli, url, workload, "choose with --model: a, b")

    def test_warm_up_that_fails(self, cli: Run, workload: Path) -> None:
        with serving(FakeVllm(faults={0: "500"})) as url:
            self.assert_fails(cli, url, workload, "HTTP 500: EngineCore encountered an issue")

    def test_folder_holds_a_run(self, cli: Run, workload: Path) -> None:
        Path("run").mkdir(exist_ok=True)
        (Path("run") / "requests.jsonl").write_text("mine\n")
        with serving(FakeVllm()) as url:
            code, _, err = observe(cli, url, workload)
        assert code == 2
        assert "holds a run already" in err
        assert (Path("run") / "requests.jsonl").read_text() == "mine\n"

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--ids", "5"), "--ids 5: expected two token ids"),
            (("--ids", "9:3"), "the smaller first"),
            (("--body", "{"), "is not JSON"),
            (("--body", '{"top_p": NaN}'), "NaN is no number"),
            (("--body", "[]"), "expected an object"),
            (("--body", '{"prompt": "x"}'), "prompt is set by the workload"),
            (("--set", "workload.arrivals.rat=3"), "did you mean 'rate'?"),
            (("--set", "engin.block_size=3"), "did you mean 'engine'?"),
        ],
    )
    def test_options(self, cli: Run, workload: Path, options: tuple[str, ...], said: str) -> None:
        self.assert_fails(cli, "http://127.0.0.1:9", workload, said, *options)

    def test_file_without_a_workload(self, cli: Run, workload: Path) -> None:
        workload.write_text("arrivals: {kind: poisson, rate: 3}\n")
        self.assert_fails(cli, "http://127.0.0.1:9", workload, "has no section 'workload'")

    def test_sessions_whose_prompts_hold_answers(self, cli: Run, workload: Path) -> None:
        data = yaml.safe_load(workload.read_text())
        data["workload"]["lengths"] = {
            "kind": "sessions", "turns": 3, "first_prompt": 9, "new_input": 5, "output": 4
        }  # fmt: skip
        workload.write_text(yaml.safe_dump(data))
        said = "w.yaml: workload: turns of sessions wait for answers"
        self.assert_fails(cli, "http://127.0.0.1:9", workload, said)

    @pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:99999"])
    def test_url(self, cli: Run, workload: Path, url: str) -> None:
        self.assert_fails(cli, url, workload, f"--url {url}: is no")

    def assert_fails(self, cli: Run, url: str, workload: Path, said: str, *options: object) -> None:
        code, _, err = observe(cli, url, workload, *options)
        assert code == 2
        assert said in err
        assert err.count("\n") == 1
        assert not Path("run").exists()


def test_key_is_sent_and_not_recorded(
    cli: Run, workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server = FakeVllm()
    with serving(server) as url:
        code, _, err = observe(cli, url.replace("//", "//user:word@"), workload)
        assert (code, "word" in err) == (2, False)
        observe(cli, url, workload)
    assert server.keys == {"Bearer sk-secret"}
    recorded = Path("run/meta.json").read_text() + Path("run/requests.jsonl").read_text()
    assert "secret" not in recorded


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
def test_no_prompt_goes_where_a_redirect_leads(
    path: str, workload: Path, tmp_path: Path, cli: Run
) -> None:
    heard: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.path)

        def do_GET(self) -> None:
            self.do_POST()

    class Redirecting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            is_listed = self.path == "/v1/models" != path
            self.send_response(200 if is_listed else 307)
            self.send_header("Location", f"http://localhost:{other.server_port}{self.path}")
            self.end_headers()
            if is_listed:
                self.wfile.write(b'{"data": [{"id": "m"}]}')

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *args: object) -> None:
            pass

    with (
        HTTPServer(("127.0.0.1", 0), Elsewhere) as other,
        HTTPServer(("127.0.0.1", 0), Redirecting) as server,
    ):
        for each in (other, server):
            threading.Thread(target=each.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code, _, err = cli(
            "observe", "--workload", workload, "--url", url, "--out", tmp_path / "out"
        )
        for each in (other, server):
            each.shutdown()
    assert code == 2
    assert "redirects to" in err or "HTTP 307" in err
    assert not heard


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (b'data: {"choices":[{"text":"a"}]}\n', "more than .* tokens where 5 were asked for"),
        (b"x" * (MAX_EVENT_BYTES // 4), "an event of more than 8 MiB"),
    ],
)
def test_an_answer_without_end_is_given_up(chunk: bytes, message: str) -> None:
    class Endless:
        async def iter_any(self) -> Any:
            while True:
                yield chunk

    class Response:
        content = Endless()

    with pytest.raises(TooMuchError, match=message):
        asyncio.run(read_answer(Response(), StreamedAnswer(0.0, asked_len=5)))


ENDED = "vllm:request_success_total"


def test_that_recorded_turns_do_not_wait_is_noted(tmp_path: Path, workload: Path) -> None:
    row = {"prompt_len": 5, "output_len": 2, "session": "a"}
    rows = [json.dumps({"arrived_at": at, **row}) for at in (0.0, 1.5)]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    arrivals = {"kind": "trace", "path": str(tmp_path / "t.jsonl")}
    workload.write_text(yaml.safe_dump({"workload": {"arrivals": arrivals}}))
    asked = load_workload(workload, [])
    assert [request.arrived_at for request in asked.requests] == [0.0, 1.5]
    assert "turns of sessions were sent when they were recorded" in asked.notes[0]
    arrivals["sessions"] = "ignored"
    workload.write_text(yaml.safe_dump({"workload": {"arrivals": arrivals}}))
    assert load_workload(workload, []).notes == ()
    [note] = load_workload(workload, ["workload.adapters.count=2"]).notes
    assert "the adapters of the workload were not asked for" in note


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({ENDED: 4.0}, {ENDED: 1.0}, "counters fell during the run"),
        ({"vllm:num_requests_running": 1.0}, {ENDED: 1.0}, "busy with other requests when"),
        ({}, {ENDED: 9.0}, "ended 9 requests, but only 1 were sent"),
        (None, {ENDED: 1.0}, "did not answer before the run"),
    ],
)
def test_what_spoils_a_run_is_noted(
    workload: Path, before: dict[str, float] | None, after: dict[str, float], said: str
) -> None:
    asked = load_workload(workload, [])
    answer = StreamedAnswer(1.0, deliveries=[(1.2, asked.requests[0].output_len + 1)])
    found = Observation(Server("http://here", "m", None, None), NUM, [Sent(0, 0.9, answer)])
    found.check(asked, None if before is None else Metrics(before), Metrics(after))
    late, longer, *others = found.notes
    assert "100 ms late" in late
    assert longer == "1 answers have another length than was asked for"
    assert len(others) == 1
    assert said in others[0]


def test_tokens_that_were_seen_are_never_fewer() -> None:
    """Of an answer that a server made longer than was asked for, or with the prompt before it."""
    answer = StreamedAnswer(0.0, finish_reason="length", is_whole=True, asked_len=3)
    answer.deliveries = [(1.0, 1)] * 5
    assert answer.num_tokens == 5
    answer.deliveries = [(1.0, 1)] * 2
    assert answer.num_tokens == 3


def test_token_ids_of_some_events_alone_are_not_those_of_the_answer() -> None:
    answer = StreamedAnswer(0.0, deliveries=[(1.0, 1), (1.1, 1)], token_ids=[5])
    assert "output_tok_ids" not in request_row(Sent(0, 0.0, answer), np.arange(3))
    answer.token_ids = [5, 6]
    assert request_row(Sent(0, 0.0, answer), np.arange(3))["output_tok_ids"] == [5, 6]


def test_answers_of_one_token_have_no_time_per_token() -> None:
    answers = [StreamedAnswer(0.0, deliveries=[(0.5, 1)], is_whole=True)] * 2
    sent = [Sent(number, 0.0, answer) for number, answer in enumerate(answers)]
    found = Observation(Server("http://here", "m", None, None), 2, sent)
    table = observation_table(found, "")
    cells = dict(zip(table.columns[0].cells, table.columns[1].cells, strict=True))
    assert (cells["TTFT"], cells["TPOT"]) == ("500.00", "-")
