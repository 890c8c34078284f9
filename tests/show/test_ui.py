"""`specsim ui` without a browser: its answers are those of the engine, and nobody else gets one."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from time import process_time
from typing import Any, Literal
from urllib.request import urlopen

import pytest
import yaml
from conftest import Run, tiny_config

from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.show import ui
from specsim.show.ui import Moved, Playground, UiServer
from specsim.study.capacity import Prices
from specsim.study.compare import compare, parse_policies

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def ask(server: UiServer) -> Ask:
    def asked(
        body: object = None, path: str = "answer", method: str = "POST", **headers: str
    ) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        text = body if isinstance(body, str) else json.dumps(body or {})
        where = path if path.startswith("/") else f"/{server.token}/{path}"
        connection.request(method, where, text, headers)
        reply = connection.getresponse()
        found = reply.read().decode()
        is_json = reply.headers["Content-Type"].startswith("application/json")
        return reply.status, json.loads(found) if is_json else found

    return asked


def test_the_answer_is_that_of_a_comparison(ask: Ask) -> None:
    status, found = ask({"rate": 30, "k": 2, "alpha": 0.5})
    changes = {"acceptance": {"kind": "bernoulli", "alpha": 0.5}}
    base = Experiment.parse(tiny_config(**changes, policy={"kind": "static", "k": 2}), "t")
    workload = base.workload.model_dump(exclude_none=True)
    workload["arrivals"]["rate"] = 30.0
    engine = base.engine.model_copy(
        update={"speculative_config": base.engine.speculative_config.model_copy(
            update={"num_speculative_tokens": 2})}
    )  # fmt: skip
    compared = compare(
        base.replace(workload=workload, engine=engine),
        parse_policies(["static:k=2"]),
        replications=1,
    )
    expected = compared.results[1]
    assert (status, found["simulated"]) == (200, 2)
    assert (
        ask({"rate": 30, "k": 2, "alpha": 0.5, "ttft_ms": 1})[1]["simulated"] == 0
    )  # its limits alone
    assert found["speed_up"] == expected.speed_up.mean
    assert found["runs"][0]["tpot"]["p99"] == expected.summaries[0]["p99_tpot_ms"]
    assert found["runs"][1]["ttft"]["p50"] == compared.results[0].summaries[0]["p50_ttft_ms"]


def test_the_download_is_the_experiment_that_was_answered(ask: Ask, tmp_path: Path) -> None:
    moved = {
        "prompt": 60,
        "output": 20,
        "policy": "goodput",
        "tpot_ms": 2,
        "gpu": "l40s/llama-3.1-8b",
    }
    status, text = ask(moved, "experiment")
    assert status == 200
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    experiment = Experiment.load(path)
    assert (experiment.profile, experiment.effective_policy.kind) == (moved["gpu"], "goodput")
    assert experiment.slo is not None
    assert experiment.slo.model_dump() == {"ttft_ms": 200, "tpot_ms": 2, "e2el_ms": None}
    answer, again = ask(moved)[1], Playground(experiment).answer(Moved())
    assert answer["runs"] == again["runs"]
    assert answer["runs"][0]["attainment"] < 0.5


def test_only_what_was_moved_changes() -> None:
    bare = Experiment.parse(
        {
            "profile": "h100/llama-3.1-8b",
            "workload": {
                "arrivals": {"kind": "closed_loop", "concurrency": 4},
                "lengths": {"kind": "constant", "prompt": 100, "output": 10},
                "num_requests": 5000,
            },
        },
        "bare",
    )
    playground = Playground(bare)
    assert playground.experiment.workload.num_requests == 1000
    assert playground.start()["k"] is None
    assert playground.answer(Moved())["speed_up"] is None
    moved = playground.moved(Moved(rate=3, policy="static")).to_dict()
    assert moved["workload"]["arrivals"] == {"kind": "poisson", "rate": 3.0}
    assert moved["workload"]["lengths"]["kind"] == "constant"
    assert moved["engine"]["speculative_config"]["num_speculative_tokens"] == 3
    lengths = playground.moved(Moved(output=50)).to_dict()["workload"]["lengths"]
    assert lengths["prompt"] == {"mean": 100.0, "sigma": 0.0}


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"num_requests": 3}, 400, "num_requests = 3"),
        ({"rate": -1}, 400, "rate = -1: should be greater than 0"),
        ({"rte": 5}, 400, "unknown field 'rte'; did you mean 'rate'?"),
        ({"gpu": "l40/llama-3.1-8b"}, 400, "did you mean 'l40s/llama-3.1-8b'?"),
        ({"gpu": "/etc/passwd"}, 400, "choose from"),
        ({"alpha": "x"}, 400, "alpha = 'x'"),
        ('{"rate": 1e999}', 400, "rate = inf"),
        ('{"rate": 5', 400, "not JSON"),
        ("[" * 3000, 400, ""),  # too deeply nested for Python 3.11, for 3.13 no JSON
        ("[1]", 400, "no mapping of what was moved"),
        ('{"k": ' + "9" * 4000 + "}", 400, ""),
        ("{}" + " " * 5000, 413, "send at most 4096"),
    ],
)
def test_what_is_wrong_is_one_line(ask: Ask, body: object, status: int, why: str) -> None:
    found, data = ask(body)
    assert (found, why in data["error"], "\n" in data["error"]) == (status, True, False), data


def test_only_the_page_that_was_opened_gets_an_answer(server: UiServer, ask: Ask) -> None:
    assert ask(Origin="http://evil.example")[0] == 403
    assert ask(Host="evil.example")[0] == 403  # its name may point to this machine
    assert ask(Origin=server.url.rsplit("/", 2)[0])[0] == 200
    assert [ask(path=path)[0] for path in ("/", "/guess/answer", "/guess")] == [404] * 3
    assert ask(path="/etc/passwd", method="GET")[0] == 404
    assert ask(path="other")[0] == 404
    assert ask(method="GET", path="none")[0] == 404
    assert server.server_address[0] == "127.0.0.1"


def test_an_address_without_its_last_slash_leads_to_the_page(server: UiServer, ask: Ask) -> None:
    with urlopen(server.url.removesuffix("/"), timeout=30) as reply:
        assert (reply.url, reply.read().decode()) == (server.url, ask(method="GET", path="")[1])


def test_the_page_needs_nothing_from_a_network(ask: Ask) -> None:
    status, page = ask(method="GET", path="")
    assert (status, "{{" in page) == (200, False)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|src=", page)


def test_the_newest_wins(server: UiServer, monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    begun, answered = Event(), server.playground.answer

    def slow(moved: Moved, on_progress: Callable[[int], None]) -> dict[str, Any]:
        while moved.rate == 1:
            begun.set()
            on_progress(0)
        return answered(moved, on_progress)

    monkeypatch.setattr(server.playground, "answer", slow)
    old: list[int] = []
    thread = Thread(target=lambda: old.append(ask({"rate": 1})[0]))
    thread.start()
    assert begun.wait(10)
    assert ask({"rate": 2})[0] == 200
    thread.join(10)
    assert old == [409]


def test_a_question_of_another_page_waits(
    server: UiServer, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    begun, go_on, answered = Event(), Event(), server.playground.answer

    def slow(moved: Moved, on_progress: Callable[[int], None]) -> dict[str, Any]:
        if moved.rate == 1:
            begun.set()
            assert go_on.wait(10)
        return answered(moved, on_progress)

    monkeypatch.setattr(server.playground, "answer", slow)
    found: dict[str, int] = {}

    def asking(page: str, rate: float) -> Thread:
        def asked() -> None:
            found[page] = ask({"rate": rate}, f"answer?{page}")[0]

        thread = Thread(target=asked)
        thread.start()
        return thread

    first = asking("one", 1)
    assert begun.wait(10)
    second = asking("two", 2)
    second.join(0.1)
    go_on.set()
    first.join(10)
    second.join(10)
    assert found == {"one": 200, "two": 200}


def test_the_run_of_a_page_that_is_closed_ends(
    server: UiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = Event(), Event()

    def endless(moved: Moved, on_progress: Callable[[int], None]) -> dict[str, Any]:
        try:
            while not ended.wait(0.01):
                begun.set()
                on_progress(0)
        finally:
            ended.set()
        return {}

    monkeypatch.setattr(server.playground, "answer", endless)
    with socket.create_connection(("127.0.0.1", server.server_port)) as page:
        host = f"Host: 127.0.0.1:{server.server_port}"
        head = f"POST /{server.token}/answer HTTP/1.1\r\n{host}\r\nContent-Length: 2\r\n\r\n"
        page.sendall(f"{head}{{}}".encode())
        assert begun.wait(10)
        assert not ended.wait(0.1)
    was_ended = ended.wait(10)
    ended.set()
    assert was_ended


def test_a_page_that_moves_on_leaves_no_traceback(
    server: UiServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun, go_on, ended = Event(), Event(), Event()

    def slow(moved: Moved, on_progress: Callable[[int], None]) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(10)
        return {"much": "x" * 10_000_000}

    closed = server.shutdown_request
    monkeypatch.setattr(server.playground, "answer", slow)
    monkeypatch.setattr(server, "shutdown_request", lambda each: (closed(each), ended.set()))
    with socket.create_connection(("127.0.0.1", server.server_port)) as page:
        host = f"Host: 127.0.0.1:{server.server_port}"
        head = f"POST /{server.token}/answer HTTP/1.1\r\n{host}\r\nContent-Length: 2\r\n\r\n"
        page.sendall(f"{head}{{}}".encode())
        assert begun.wait(10)
    go_on.set()
    assert ended.wait(10)
    assert capfd.readouterr() == ("", "")


def test_what_the_page_simulates_otherwise_is_said() -> None:
    turns = {"kind": "sessions", "turns": 2, "first_prompt": 50, "new_input": 9, "output": 5}
    acceptance = {"kind": "per_position", "conditional_rates": [0.5]}
    config = tiny_config(policy={"kind": "off"}, acceptance=acceptance)
    config["workload"] = {
        "arrivals": {"kind": "poisson", "rate": 50.0}, "lengths": turns, "num_requests": 2000,
    }  # fmt: skip
    playground = Playground(Experiment.parse(config, "t"))
    cut = "the first 1,000 requests alone; `specsim run` simulates all"
    own = playground.answer(Moved())
    assert (own["arriving"], own["warnings"]) == ("sessions", [cut])
    moved = playground.answer(Moved(prompt=60, alpha=0.5, num_requests=40))
    assert moved["arriving"] == "requests"
    assert moved["warnings"] == [
        "workload.lengths: lognormal in place of sessions, to be moved",
        "acceptance: bernoulli in place of per_position, to be moved",
    ]


def test_the_rate_that_is_answered_is_the_one_that_was_asked() -> None:
    example = Experiment.load(Path(ui.__file__).with_name("example.yaml"))
    found = Playground(example).answer(Moved(rate=20.0, policy="off"))
    [run] = found["runs"]
    # 15.6 with the seconds in which the server empties after the last of 1,000 requests.
    assert run["request_throughput"] == pytest.approx(20.0, rel=0.1)
    tokens = run["output_throughput"] * 3600 / 1e6
    assert found["cost_per_million"] == pytest.approx(found["cost_per_hour"] / tokens)


def test_each_limit_is_judged_at_its_own_percentile() -> None:
    config = tiny_config(slo={"ttft_ms": 1e5, "tpot_ms": 1e5}, policy={"kind": "off"})
    limited = Experiment.parse(config, "t")
    median = Playground(limited).answer(Moved())["runs"][0]["tpot"]["p50"]
    slo = {"ttft_ms": 1e5, "tpot_ms": median * 1.001}
    strict = Playground(limited.replace(slo=slo)).answer(Moved())
    shares = {"tpot_ms": 0.5}
    loose = Playground(limited.replace(slo=slo), limit_shares=shares).answer(Moved())
    assert (strict["is_met"], loose["is_met"]) == (False, True)
    assert loose["promise"] == (
        f"99 % of the requests within TTFT 100,000 ms, 50 % of the requests within "
        f"TPOT {slo['tpot_ms']:g} ms"
    )


@pytest.mark.parametrize("policy", ["static", "goodput"])
def test_a_move_is_answered_while_one_looks(policy: Literal["static", "goodput"]) -> None:
    playground = Playground(Experiment.load(Path(ui.__file__).with_name("example.yaml")))
    playground.answer(Moved(policy=policy))  # as the command does before the page is opened
    begin = process_time()
    answers = [playground.answer(Moved(policy=policy, rate=rate)) for rate in (2, 10, 30, 60)]
    assert (process_time() - begin) / len(answers) < 1.0  # seconds of CPU; generous
    assert [(each["num_requests"], each["simulated"]) for each in answers] == [(1000, 2)] * 4


def test_a_sketch_of_a_policy_in_python_comes_while_one_looks() -> None:
    experiment = Experiment.load(Path(ui.__file__).with_name("example.yaml"))
    playground = Playground(experiment.replace(policy=parse_policies(["confidence"])["confidence"]))
    slow = Moved(rate=10)
    playground.answer(slow.model_copy(update={"num_requests": 20}))
    begin = process_time()
    sketch = playground.answer(slow.model_copy(update={"num_requests": 90}))
    assert process_time() - begin < 2.0  # 0.3 on an idle machine
    whole = playground.answer(slow)
    assert [each["num_requests"] for each in (sketch, whole)] == [90, 1000]
    means = [each["runs"][0]["tpot"]["mean"] for each in (sketch, whole)]
    assert means[0] == pytest.approx(means[1], rel=0.1)


def test_the_gpus_of_pools_are_counted_pool_by_pool(tiny: Callable[..., Experiment]) -> None:
    decode = {"replicas": 2, "profile": "h100/llama-3.1-8b-tp2"}
    pools = {"prefill": {"profile": "l40s/llama-3.1-8b"}, "decode": decode}
    playground = Playground(tiny(pools=pools, policy="off"))
    assert playground.start()["profiles"] == ["h100/llama-3.1-8b"]  # which neither uses
    answer = playground.answer(Moved())
    assert answer["gpus"] == "1 × L40S + 4 × H100"
    prices = Prices.load(None).per_gpu_hour
    assert answer["cost_per_hour"] == pytest.approx(prices["l40s"] + 4 * prices["h100"])


def test_each_pool_runs_on_its_own_profile(
    tiny: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    fast, slow = constant_step(delta_ms=5), constant_step(delta_ms=30)
    pools = {"prefill": {}, "decode": {"profile": slow}}
    experiment = tiny(pools=pools, policy="off", acceptance=None, profile=fast)
    [outcome] = Playground(experiment).answer(Moved())["runs"]
    expected = Summary(simulate(experiment)).data["mean_tpot_ms"]
    assert outcome["tpot"]["mean"] == pytest.approx(expected)
    assert expected > 30


def test_a_drafter_on_gpus_of_its_own_is_counted_where_it_drafts(
    tiny: Callable[..., Experiment],
) -> None:
    drafts: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": 3}
    drafts["own_gpus"] = {"profile": "l40s/llama-3.1-8b"}
    playground = Playground(tiny(policy="static", engine={"speculative_config": drafts}))
    assert playground.answer(Moved())["gpus"] == "1 × H100 + 1 × L40S"
    assert playground.answer(Moved(policy="off"))["gpus"] == "1 × H100"


def test_a_simulation_ends_when_it_is_told(tiny: Callable[..., Experiment]) -> None:
    class Enough(Exception):
        pass

    def stop(done: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        Playground(tiny()).answer(Moved(), stop)


def test_a_port_in_use_is_one_line(server: UiServer, cli: Run) -> None:
    code, _, error = cli("ui", "--no-browser", "--port", server.server_port)
    assert (code, error) == (
        2,
        f"error: --port {server.server_port}: is in use; give another, or 0 for any\n",
    )


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_config()))
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.argv = ['specsim', 'ui', {str(path)!r}, '--no-browser', '--port', '0']\n"
        "from specsim.__main__ import main; main()"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ui: http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=20)
    assert (process.returncode, output, error) == (0, "ui: ended\n", "")


@pytest.mark.parametrize(
    ("count", "said"),
    [(50, []), (1000, []), (1001, ["the first 1,000 requests alone; `specsim run` simulates all"])],
)
def test_what_is_left_out_of_a_trace_is_said(tmp_path: Path, count: int, said: list[str]) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{0.2 * n},9,3\n" for n in range(count))
    path.write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
    config = tiny_config(policy={"kind": "off"})
    config["workload"] = {"arrivals": {"kind": "trace", "path": str(path)}}
    found = Playground(Experiment.parse(config, "t")).answer(Moved())
    assert (found["num_requests"], found["warnings"]) == (min(count, 1000), said)


def test_a_pipeline_is_not_offered_gpus_of_one_stage(
    tiny: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    """Profiles on as many GPUs: none is shipped of two stages."""
    staged = constant_step(delta_ms=12, stage_shares=[0.5, 0.5])
    assert Playground(tiny(profile=staged, policy="off")).start()["profiles"] == [staged]
