"""The server as a whole: it agrees with the simulation, bears abuse and failures, and ends well."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import tiny_config
from serving import Served, serving
from test_answers import check_nothing_is_left

from specsim.core.errors import ConfigError
from specsim.engine.integrity import IntegrityCheck
from specsim.reality.observe import accepted_drafts
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.serve import LiveServer, ServeOptions, live, services

ROOT = Path(__file__).parents[2]
ASKED = {"prompt": list(range(50)), "max_tokens": 30, "ignore_eos": True}


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("serve_benchmark", ROOT / "benchmarks/serve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("policy", ["static", "goodput", "window_opt", "q_learning", "joint"])
def test_what_is_logged_is_what_a_simulation_of_it_says(policy: str, tmp_path: Path) -> None:
    """Indices are used again here, and not there: nothing is left of who had one before."""
    config = {"policy": {"kind": policy}}
    options = ServeOptions(port=0, speed=20.0, grace=5.0, log=tmp_path / "log")
    with serving(options, **config) as served:
        for number in range(12):
            prompt = list(range(number % 3 * 100, number % 3 * 100 + 40))
            asked = {"prompt": prompt, "max_tokens": 20 + number, "ignore_eos": True, "n": 2}
            assert served.ask("/v1/completions", asked)[0] == 200
    rows = logged(tmp_path)
    meta = json.loads((tmp_path / "log/meta.json").read_text())
    assert meta["complete"]
    assert meta["policy"]["kind"] == policy
    run = simulate(
        Experiment.parse(tiny_config(**config), "test"), requests=benchmark().requests_of(rows)
    )
    found = np.sort(run.replicas[0].requests, order="request")
    assert found["ended_at"] == pytest.approx([row["last_token_ts"] for row in rows], abs=1e-6)
    assert found["drafts"].tolist() == [len(row["accepted"]) for row in rows]
    assert found["cached_len"].sum() > 0


def test_blocks_that_gpus_share_are_logged_as_configured(
    constant_step: Callable[..., str], tmp_path: Path
) -> None:
    """A simulation of the log shares them out again, by the same profile."""
    profile = constant_step(
        delta_ms=4.0, decode_context_parallel_size=4, drafts={"eagle3": {"token_us": 50}}
    )
    options = ServeOptions(port=0, speed=20.0, grace=5.0, log=tmp_path / "log")
    with serving(options, profile=profile) as served:
        asked = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}
        assert served.ask("/v1/completions", asked)[0] == 200
    meta = json.loads((tmp_path / "log/meta.json").read_text())
    assert meta["engine_kwargs"]["block_size"] == meta["kv_cache"]["block_size"] == 16


def test_a_rank_that_waits_for_nobody_is_logged_as_a_server(tmp_path: Path) -> None:
    """A simulation of its folder would send half of its requests to another one."""
    options = ServeOptions(port=0, speed=20.0, grace=5.0, log=tmp_path / "log")
    with serving(options, engine={**tiny_config()["engine"], "data_parallel_size": 2}) as served:
        for number in range(4):
            asked = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True, "priority": number}
            assert served.ask("/v1/completions", asked)[0] == 200
    folders = [tmp_path / "log" / name for name in ("replica-0", "replica-1")]
    for folder in folders:
        meta = json.loads((folder / "meta.json").read_text())
        assert "data_parallel_size" not in meta["engine_kwargs"]
        assert meta["num_engines"] == 1
    texts = [line for each in folders for line in (each / "requests.jsonl").read_text().split("\n")]
    rows = sorted((json.loads(text) for text in texts if text), key=lambda row: row["number"])
    assert [row.get("priority", 0) for row in rows] == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ["static", "goodput", "off"])
def test_a_client_hears_what_came_of_each_draft_as_vllm_tells_it(
    policy: str, tmp_path: Path
) -> None:
    options = ServeOptions(port=0, speed=20.0, grace=5.0, log=tmp_path / "log")
    stream_options = {"include_usage": True, "continuous_usage_stats": True}
    heard = []
    with serving(options, policy={"kind": policy}) as served:
        for _ in range(6):
            events = served.events("/v1/completions", {**ASKED, "stream_options": stream_options})
            counts = [event["usage"]["completion_tokens"] for event in events if event["choices"]]
            heard.append((events[-1]["metrics"], np.diff([0, *counts]).tolist()))
        whole = served.ask("/v1/completions", ASKED)[1]["metrics"]
        several = served.ask("/v1/completions", {**ASKED, "n": 2})[1]
    assert "metrics" not in several  # times and drafts of which of them?
    assert whole.keys() == heard[0][0].keys()
    for row, (metrics, counts) in zip(logged(tmp_path), heard, strict=False):
        assert accepted_drafts(metrics, counts) == (row["accepted"] or None)
        told = metrics["speculative_decoding"]
        assert sum(told["acceptance_histogram"]) == told["num_spec_steps"] == len(row["accepted"])
        times = [row[name] for name in ("queued_ts", "scheduled_ts", "first_token_ts")]
        names = ("queue_time_ms", "time_to_first_token_ms")
        assert np.diff(times) == pytest.approx([metrics[name] / 50 for name in names], abs=1e-9)


def logged(folder: Path) -> list[Any]:
    lines = (folder / "log/requests.jsonl").read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda row: row["number"])


@pytest.mark.slow
def test_a_client_sees_what_a_simulation_says(tmp_path: Path) -> None:
    """Tried again on a machine that does other things, too; benchmarks/serve.py has the bounds."""
    bench = benchmark()
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        with bench.served(folder, "--log", str(folder / "log")) as server:
            load = bench.Load(10, 2.0, 0, (20, 60))
            asyncio.run(load.run(server.port))
        expected = bench.simulated(folder)
        pairs = [
            (np.median([getattr(each, metric) for each in load.seen]), np.median(expected[metric]))
            for metric in ("ttft", "tpot", "e2e")
        ]
        if all(seen == pytest.approx(wanted, rel=0.1, abs=0.01) for seen, wanted in pairs):
            return
        # Nothing but delays is excused.
        assert all(seen > 0.9 * wanted - 0.01 for seen, wanted in pairs)
    pytest.fail(f"four times (seen, simulated) seconds differ: {pairs}")


class Checked(live.Deliverer):
    """Checks every invariant of the engine after every step, too."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.check = IntegrityCheck()

    def scheduled(self, step: Any) -> None:
        self.check.scheduled(step)

    def delivered(self, step: Any) -> None:
        self.check.delivered(step)
        super().delivered(step)


def test_abuse_is_answered_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "Deliverer", Checked)
    bench = benchmark()
    with serving() as served:
        found = asyncio.run(bench.abused(served.ports[0], 700, 1))
        until = time.monotonic() + 5
        while time.monotonic() < until and served.live.num_unfinished:
            time.sleep(0.01)
        check_nothing_is_left(served)
        assert served.ask("/v1/completions", ASKED)[0] == 200
    assert bench.improper(found) == []
    assert found["body 400"] > 200 < sum(found.values())
    assert found["huge 413"] > 0


def test_a_slow_reader_is_cut_off_and_stalls_nobody() -> None:
    body = {**ASKED, "max_tokens": 900, "n": 16, "stream": True}
    body["stream_options"] = {"continuous_usage_stats": True}
    data = json.dumps(body).encode()
    with serving() as served, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", served.ports[0]))
        for service in served.services:  # what the system buffers comes on top
            assert service.live.num_unfinished == 0
        slow.sendall(benchmark().framed("/v1/completions", data))
        assert served.ask("/v1/completions", {**ASKED, "max_tokens": 5})[0] == 200
        until = time.monotonic() + 10
        while time.monotonic() < until and served.live.num_unfinished:
            time.sleep(0.02)
        assert served.live.num_unfinished == 0


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", b""),
        (b"POST /v1/completions HTTP/1.1\r\nHo", b""),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b"408"),
    ],
)
def test_who_sends_a_request_too_slowly_is_not_waited_for(sent: bytes, expected: bytes) -> None:
    options = ServeOptions(port=0, speed=50.0, grace=0.5, request_timeout=0.3)
    with serving(options) as served, socket.socket() as slow:
        slow.settimeout(10)
        slow.connect(("127.0.0.1", served.ports[0]))
        slow.sendall(sent)
        answer = slow.recv(4096)
        assert answer.startswith(b"HTTP/1.1 " + expected) if expected else not answer
        assert served.ask("/v1/completions", ASKED)[0] == 200


def test_so_many_requests_get_a_fault_by_the_seed() -> None:
    def statuses(seed: int) -> list[int]:
        options = ServeOptions(port=0, speed=50.0, grace=0.5, fault_rate=0.3)
        with serving(options, seed=seed) as served:
            asked = {**ASKED, "max_tokens": 2}
            found = [served.ask("/v1/completions", asked)[0] for _ in range(60)]
            assert served.ask("/v1/completions", {**ASKED, "n": -1})[0] == 400
            assert served.ask("/health")[0] == 200
            check_nothing_is_left(served)
        return found

    first = statuses(1)
    assert set(first) == {200, 500, 503}
    assert 8 <= sum(status != 200 for status in first) <= 30
    assert statuses(1) == first != statuses(2)


@pytest.mark.parametrize(
    "change",
    [
        {"pools": {}, "replicas": 1},
        {"autoscaling": {"kind": "target_queue", "target": 1, "max_replicas": 2}},
    ],
)
def test_what_is_not_served_is_refused_by_name(change: dict[str, Any]) -> None:
    with (
        pytest.raises(ConfigError, match=f"{next(iter(change))}: specsim serve"),
        serving(**change),
    ):
        pass


def test_adapters_are_not_left_out_in_silence(
    tiny: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    lora = {"step_ms": 1.0, "token_us": 0.1, "load_ms": 1.0, "read_ms": 1.0}
    profile, engine = constant_step(delta_ms=4.0, lora=lora), {"lora_config": {"max_loras": 2}}
    experiment = tiny(profile=profile, engine=engine, acceptance=None)
    with pytest.raises(ConfigError, match="lora_config: specsim serve does not do that yet"):
        live.Live(experiment)
    workload = {**tiny_config()["workload"], "adapters": {"count": 2}}
    drawn = tiny(profile=profile, acceptance=None, engine={}, workload=workload)
    with pytest.raises(ConfigError, match=r"workload\.adapters: specsim serve does not do that"):
        live.Live(drawn)


def test_a_short_log_of_lengths_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("prompt_len,output_len\n9,3\n9,5\n")
    workload = {"arrivals": "burst", "lengths": {"kind": "trace", "path": str(log)}}
    with serving(workload=workload | {"num_requests": 2}) as served:
        asked = {"prompt": "what?"}
        answers = [served.ask("/v1/completions", asked)[1]["usage"] for _ in range(3)]
    assert [each["completion_tokens"] for each in answers] == [3, 5, 3]


def test_while_no_replica_is_up_requests_are_refused() -> None:
    failure = {"kind": "failure", "replica": 0, "at": 10.0, "until": 70.0}
    with serving(incidents=[failure]) as served:
        assert served.ask("/health")[0] == 200
        long = {**ASKED, "max_tokens": 900}
        answers = []
        until = time.monotonic() + 60  # machines do other things, too
        while time.monotonic() < until and (not answers or answers[-1][0] != 503):
            answers.append(served.ask("/v1/completions", long))
        assert answers[-1][1]["error"]["type"] == "ServiceUnavailableError"
        assert served.ask("/health")[0] == 503
        while time.monotonic() < until and served.ask("/health")[0] != 200:
            time.sleep(0.02)
        assert served.ask("/v1/completions", ASKED)[0] == 200
        check_nothing_is_left(served)


def test_a_fault_of_the_engine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Faulty(live.Deliverer):
        def delivered(self, step: Any) -> None:
            raise ZeroDivisionError

    monkeypatch.setattr(live, "Deliverer", Faulty)
    with serving() as served:
        status, found = served.ask("/v1/completions", ASKED)
        assert status == 503
        assert "the engine has failed" in found["error"]["message"]
        assert served.ask("/health")[0] == 503


def test_each_replica_has_a_port_of_its_own() -> None:
    with serving(ServeOptions(port=0, speed=50.0, is_each=True, grace=0.5), replicas=2) as served:
        assert len(set(served.ports)) == 2
        for port in served.ports:
            assert served.ask("/v1/completions", ASKED, port=port)[0] == 200
        page = served.ask("/metrics", port=served.ports[1])[1]
        assert 'generation_tokens_total{engine="0",model_name="llama-3.1-8b"} 30.0' in page


def test_one_port_has_a_router_behind_it() -> None:
    with serving(replicas=2, routing={"kind": "random"}) as served:
        for _ in range(12):
            assert served.ask("/v1/completions", ASKED)[0] == 200
        lines = served.ask("/metrics")[1].splitlines()
        counts = [float(x.split()[-1]) for x in lines if x.startswith("vllm:generation_tokens_t")]
        assert len(counts) == 2
        assert sum(counts) == 12 * 30
        assert min(counts) > 0


def test_requests_beyond_the_limit_are_refused() -> None:
    with serving(ServeOptions(port=0, speed=50.0, max_requests=4, grace=0.5)) as served:
        assert served.ask("/v1/completions", {**ASKED, "n": 4})[0] == 200
        status, found = served.ask("/v1/completions", {**ASKED, "n": 5})
        assert status == 400
        assert "at most 4 may be unfinished" in found["error"]["message"]
        served.call(lambda: setattr(served.services[0], "check", lambda *given: None))
        served.call(lambda: setattr(served.services[0], "check_count", lambda asked: None))
        assert served.ask("/v1/completions", {**ASKED, "n": 5})[0] == 503  # they came together
        assert served.events("/v1/completions", {**ASKED, "n": 5})[0]["error"]["code"] == 503
        assert served.live.drafting.num_free == 4


def test_connections_beyond_the_limit_are_refused() -> None:
    with serving(ServeOptions(port=0, speed=50.0, max_connections=2, grace=0.5)) as served:
        address = ("127.0.0.1", served.ports[0])
        with socket.create_connection(address), socket.create_connection(address):
            time.sleep(0.1)
            status, found = served.ask("/health")
            assert (status, found["error"]["message"]) == (503, "too many connections")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"policy": {"kind": "oracle"}}, "knows the future"),
        ({"policy": {"kind": "bayes"}}, "knows the future"),
    ],
)
def test_what_cannot_be_served_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        services(Experiment.parse(tiny_config(**config), "test"), ServeOptions())


def started(folder: Path, **config: Any) -> tuple[Any, int, str]:
    """Start a server of its own; return its process, its port and the line it said."""
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(tiny_config(**config)))
    command = [sys.executable, "-m", "specsim", "serve", str(path), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=folder, text=True, env=environment, **pipes)
    assert process.stdout is not None
    said = process.stdout.readline()
    return process, int(re.search(r":(\d+) ", said)[1]), said


def test_a_policy_that_raises_ends_the_server_as_it_ends_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from typing import Literal\n"
        "from specsim.api import BatchView, Policy\n"
        "class Flaky(Policy):\n"
        '    kind: Literal["flaky"] = "flaky"\n'
        "    def draft_lens(self, batch: BatchView, memory: object) -> int:\n"
        '        raise ValueError("no idea")\n'
    )
    process, port, _ = started(tmp_path, policy={"kind": "mine:Flaky"})
    asked = HTTPConnection("127.0.0.1", port, timeout=20)
    asked.request("POST", "/v1/completions", json.dumps(ASKED))
    answer = asked.getresponse()
    assert answer.status == 503
    assert "the engine has failed; see what the server" in answer.read().decode()
    asked.close()
    said = process.communicate(timeout=20)[1]
    line = r"error: Flaky 'mine:Flaky': ValueError: no idea \(.*mine.py, line 6, .*\)\n"
    assert re.fullmatch(line, said)
    assert process.returncode == 2


def test_sigterm_lets_answers_end(tmp_path: Path) -> None:
    process, port, said = started(tmp_path)
    assert "(model llama-3.1-8b; Ctrl-C ends it)" in said
    data = json.dumps({**ASKED, "stream": True, "max_tokens": 60}).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(benchmark().framed("/v1/completions", data))
        found = connection.recv(1 << 16)
        process.send_signal(signal.SIGTERM)
        while more := connection.recv(1 << 16):
            found += more
    assert b"data: [DONE]" in found
    assert process.communicate(timeout=20)[0].endswith("serve: ended\n")
    assert process.returncode == 0


def test_a_port_that_is_taken_is_one_line(served: Served) -> None:
    made = services(Experiment.parse(tiny_config(), "test"), ServeOptions())

    async def start(port: int) -> None:
        await LiveServer(made, ServeOptions(port=port)).start()

    for port in (served.ports[0], 70_000):
        with pytest.raises(ConfigError, match=f"--port {port}"):
            asyncio.run(start(port))


def test_it_serves_where_the_system_has_no_limits_to_ask_for() -> None:
    """On Windows, which has no module `resource`."""
    config = tiny_config()
    text = (
        "import asyncio, sys; sys.modules['resource'] = None\n"
        "from specsim.api import Experiment\n"
        "from specsim.serve import LiveServer, ServeOptions, services\n"
        "options = ServeOptions(port=0)\n"
        f"server = LiveServer(services(Experiment.parse({config!r}, 'test'), options), options)\n"
        "print('port', *asyncio.run(server.start()))\n"
    )
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("port "), done.stderr
