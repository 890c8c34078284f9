"""Cases of fuzzing: files, command lines and bytes, each made from a number alone."""

import asyncio
import copy
import functools
import json
import os
import random
import shutil
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz_files import KINDS_OF_FILES, a_case_of_files, a_class, a_study_folder
from fuzz_fleets import CLIENTS, FLEETS, SERVERS
from fuzz_values import (
    ANSWERS,
    BASE,
    COMMANDS,
    FRAGMENTS,
    NASTY,
    OPTIONS,
    POLICY,
    ROWS,
    VARIANTS,
)

LIMIT_SECONDS = 15.0  # of its own time, for the 10 s that are allowed on a machine that is idle
_PATIENCE = 1.0  # seconds after which a server is told that no more bytes come


def put(config: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted field."""
    *parents, name = path.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
    config[name] = value


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) in some nested values."""
    found: list[tuple[Any, Any]] = []
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inside:
        found.append((value, key))
        if isinstance(each, dict | list):
            found += places(each)
    return found


def mutated(value: Any, rng: random.Random) -> Any:
    """Return nested values with one to three of them replaced, left out or added."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2))):
        spots = places(value)
        if not spots:
            break
        holder, key = rng.choice(spots)
        action = rng.random()
        number = holder[key]
        is_small = isinstance(number, int | float) and abs(number) < 2**70
        if is_small and rng.random() < 0.6:
            holder[key] *= rng.choice((-1, 0, 0.5, 2, 3, 10, 1000, 1e9, 1e-9))
            if isinstance(holder[key], float) and holder[key].is_integer():
                holder[key] = int(holder[key])
        elif action < 0.7:
            holder[key] = copy.deepcopy(rng.choice(NASTY))
        elif action < 0.8:
            del holder[key]
        elif action < 0.9:
            holder[key] = _reshaped(number, rng)
        elif isinstance(holder, dict):
            holder[rng.choice(("x", "", "kind", "seed", "1"))] = copy.deepcopy(rng.choice(NASTY))
    return value


def _reshaped(value: Any, rng: random.Random) -> Any:
    """Return a value of another form: in a list, as text, without its list, one of it twice."""
    forms = [[value], {"x": value}, str(value)[:5000] if not isinstance(value, int) else "7"]
    if isinstance(value, list) and value:
        forms += [value[0], [*value, value[-1]], value[::-1], value * 3]
    if isinstance(value, dict) and value:
        forms += [list(value), list(value.values()), {name: value for name in value}]
    return copy.deepcopy(rng.choice(forms))


def torn(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with some of them changed, left out or added."""
    for _ in range(rng.choice((1, 1, 1, 2))):
        at = rng.randrange(len(data) + 1)
        action = rng.random()
        if action < 0.3:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif action < 0.5:
            data = data[:at] + rng.choice(FRAGMENTS) + data[at:]
        elif action < 0.65:
            data = data[:at]
        elif action < 0.8:
            data = data[:at] + data[at + rng.randrange(1, 40) :]
        else:
            word = str(rng.choice(NASTY))[:5000].encode("utf-8", "replace")
            data = data[:at] + word + data[at:]
    return data


def config_of(rng: random.Random) -> dict[str, Any]:
    """Return a valid experiment."""
    config = copy.deepcopy(BASE)
    for path, value in rng.choice(VARIANTS).items():
        put(config, path, value)
    return config


def fleet_of(rng: random.Random) -> dict[str, Any]:
    """Return an experiment of a cluster; nearly all are valid."""
    config = copy.deepcopy(BASE)
    for choice in (rng.choice(FLEETS), rng.choice(SERVERS), rng.choice(CLIENTS)):
        for path, value in copy.deepcopy(choice).items():
            put(config, path, value)
    return config


def as_yaml(value: Any) -> bytes:
    """Return values as YAML, or as near to it as JSON comes."""
    import yaml  # noqa: PLC0415

    try:
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode("utf-8", "replace")
    except (yaml.YAMLError, ValueError):  # too many digits
        return repr(value)[:100_000].encode("utf-8", "replace") if value else b""


def a_config(rng: random.Random) -> list[str]:
    """Make an experiment, changed in its values or in its text."""
    config = config_of(rng)
    data = as_yaml(mutated(config, rng)) if rng.random() < 0.7 else torn(as_yaml(config), rng)
    Path("e.yaml").write_bytes(data)
    out = rng.choice(([], [], ["--out", rng.choice(("out", ".", "e.yaml", "static:k=3", "keep"))]))
    return ["run", "e.yaml", *out]


def a_fleet(rng: random.Random) -> list[str]:
    """Make an experiment of a cluster, changed in what makes it one."""
    config = fleet_of(rng)
    config["engine"] = {k: v for k, v in config["engine"].items() if v is not None}
    names = [name for name in config if name not in BASE or name in ("engine", "workload")]
    chosen = rng.sample(names, min(len(names), rng.choice((1, 1, 2))))
    changed = mutated({name: config[name] for name in chosen}, rng)
    config = {**{k: v for k, v in config.items() if k not in chosen}, **changed}
    Path("e.yaml").write_bytes(as_yaml(config))
    return rng.choice(
        (
            ["run", "e.yaml", "--out", "out"],
            ["run", "e.yaml", "--check", "--set", "workload.num_requests=20"],
            ["run", "e.yaml", "--workers", "2"],
            ["compare", "e.yaml", "--policies", "off", "static:k=2", "--workers", "1"],
            ["split", "e.yaml", "--gpus", rng.choice(("2", "3", "9")), "--workers", "1"],
        )
    )


def a_study(rng: random.Random) -> list[str]:
    """Make a sweep or a suite."""
    name, field = rng.choice((("axes", "sweep"), ("scenarios", "gate")))
    parts: dict[str, Any] = {"axes": [{"policy": ["off", "static:k=2"]}, {"replicas": [1, 2]}]}
    if name == "scenarios":
        parts = {"scenarios": {"a": {"policy": "off"}}, "replications": 2}
    base = config_of(rng) if rng.random() < 0.7 else fleet_of(rng)
    study = mutated({"base": base, **parts}, rng)
    Path("s.yaml").write_bytes(as_yaml(study) if rng.random() < 0.8 else torn(as_yaml(study), rng))
    Path("b.json").write_bytes(torn(b'{"format": "specsim gate 1", "scenarios": {}}', rng))
    if field == "sweep":
        return ["sweep", "s.yaml", "--dry-run", "--workers", "1"]
    return ["gate", "b.json", "s.yaml", "--workers", "1", "--json", "g.json", "--junit", "g.xml"]


def a_trace(rng: random.Random) -> list[str]:
    """Make a workload file."""
    name = rng.choice([*ROWS, "g.parquet"])
    if name == "g.parquet":
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        value = rng.choice((5, 1e300, -1.0, float("nan"), 2.0**62))
        pq.write_table(pa.table({"prompt_len": [3, value], "output_len": [1, 2]}), name)
        data = Path(name).read_bytes()
        data = torn(data, rng) if rng.random() < 0.7 else data
    elif name.endswith(".jsonl") and rng.random() < 0.8:
        rows = [json.loads(line) for line in ROWS[name].splitlines()]
        data = b"".join(_as_json(mutated(row, rng)) + b"\n" for row in rows)
    else:
        data = torn(ROWS[name], rng)
    Path(name).write_bytes(data)
    config = {**BASE, "workload": {"arrivals": {"kind": "trace", "path": name}}}
    Path("t.yaml").write_bytes(as_yaml(config))
    return rng.choice(
        (
            ["trace", "describe", name],
            ["trace", "convert", name, rng.choice((name, "o.jsonl", "keep"))],
            ["tokens", "describe", name],
            [
                "draft-eval",
                "--proposer",
                "ngram",
                "--tokens",
                name,
                "--opt",
                "num_speculative_tokens=3",
            ],
            ["run", "t.yaml"],
            ["run", "t.yaml", "--set", f"workload.arrivals.rate={rng.choice((1, 1e-9, 1e9))}"],
        )
    )


def _as_json(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except ValueError:
        return b'{"prompt_len": ' + b"9" * 5000 + b"}"


def some_arguments(rng: random.Random) -> list[str]:
    """Make a command line of options and values that may or may not go together."""
    Path("e.yaml").write_bytes(as_yaml(config_of(rng)))
    Path("a.csv").write_bytes(ROWS["a.csv"])
    values = ["e.yaml", "a.csv", "keep", "nothing", ".", "results", *map(_word, NASTY)]
    args = rng.choice(COMMANDS).split()
    for _ in range(rng.randrange(5)):
        args += [rng.choice(OPTIONS)] if rng.random() < 0.6 else []
        args += [rng.choice(values)]
    return ["observe", "--help"] if args[0] == "observe" and "--url" in args else args


def _word(value: Any) -> str:
    try:
        return str(value).replace("\x00", "")[:300]
    except ValueError:
        return "9" * 300


def a_folder(rng: random.Random) -> list[str]:
    """Make a results folder in which a file has been edited."""
    shutil.copytree(rng.choice(sorted(Path(os.environ["FUZZ_RESULTS"]).iterdir())), "run")
    path = rng.choice(sorted(path for path in Path("run").iterdir() if path.is_file()))
    if path.suffix == ".json" and rng.random() < 0.6:
        path.write_bytes(_as_json(mutated(json.loads(path.read_text()), rng)))
    else:
        path.write_bytes(torn(path.read_bytes(), rng))
    return rng.choice(
        (
            ["report", "run"],
            ["breakdown", "run", "--json", "b.json"],
            ["export", "run", "--prometheus", "p.txt", "--vllm-bench", "v.json"],
            ["export", "run", "--chrome-trace", "c.json"],
            ["validate", "run", "--profile", "h100/llama-3.1-8b"],
            ["run", "run/config.yaml"],
            ["profile", "fit", "run", "--model", "llama-3.1-8b", "--gpu", "h100"],
        )
    )


def a_policy(rng: random.Random) -> list[str]:
    """Make a policy that answers something odd."""
    name = f"fuzzed_{rng.randrange(10**12)}"
    body = (
        f"return {rng.choice(ANSWERS)}"
        if rng.random() < 0.9
        else rng.choice(("pass", "(", "raise"))
    )
    Path(f"{name}.py").write_text(POLICY.format(body=body))
    config = config_of(rng)
    config["engine"].pop("num_speculative_tokens_per_batch_size", None)
    Path("e.yaml").write_bytes(as_yaml({**config, "policy": f"{name}:P"}))
    return ["run", "e.yaml"]


EVENT = b'data: {"choices":[{"text":"a","token_ids":[1]}],"usage":{"completion_tokens":1}}\n\n'


def a_reply(rng: random.Random) -> list[str]:
    """Let the client read a server's reply, which is no command."""
    pages = [b'{"data":[{"id":"m","max_model_len":9}]}', b'vllm:x_total{a="b"} 1\n', EVENT * 3]
    page = rng.choice(pages)
    data = torn(page, rng)
    if page is pages[2]:
        data += rng.choice((b"data: [DONE]\n\n", b"", b"data: " + b"[" * 5000 + b"\n\n"))
    Path("reply").write_bytes(data)
    return ["(reply)", "reply"]


def read_reply(path: str) -> int:
    """Do with a reply what `observe` does."""
    from specsim.reality.observe import client  # noqa: PLC0415

    data = Path(path).read_bytes()

    class Content:
        async def iter_any(self) -> Any:
            for start in range(0, len(data), 7):
                yield data[start : start + 7]

    class Response:
        content = Content()

    client.parse_metrics(data.decode("utf-8", "replace"))
    client._models(data.decode("utf-8", "replace"))
    try:
        asyncio.run(client._read(Response(), client.StreamedAnswer(0.0), 5))
    except client.TooMuchError:
        return 2
    return 0


SERVE = (
    "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 --max-num-seqs 64 "
    "--max-model-len=8192 --gpu-memory-utilization 0.9 --no-enable-prefix-caching -O3 "
    '--speculative-config \'{"method": "eagle3", "num_speculative_tokens": 3}\''
)
LAUNCH = (
    "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --mem-fraction-static 0.8 "
    "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --max-running-requests 64"
)


def a_question(rng: random.Random) -> list[str]:
    """Make a question to the planner, whose server, traffic, load or GPU is odd."""
    asked = {"command": SERVE, "traffic": "chat", "qps": "20", "slo": "ttft:500,tpot:40"}
    asked["gpu"] = rng.choice(("h100", "l40s", "b200"))
    for name in rng.sample(sorted(asked), rng.choice((1, 1, 2))):
        asked[name] = (
            rng.choice((*map(_word, NASTY), "e.yaml", "a.csv", "1e9", "h100,h100", "ttft:1,ttft:2"))
            if rng.random() < 0.4 and name != "command"
            else torn(asked[name].encode(), rng).decode("utf-8", "replace")
        )
    Path("e.yaml").write_bytes(as_yaml(config_of(rng)))
    Path("a.csv").write_bytes(ROWS["a.csv"])
    if rng.random() < 0.7:  # the same is read as by plan, and nothing is simulated
        Path("stdin").write_text("\n".join(value.replace("\n", " ") for value in asked.values()))
        return ["init", rng.choice(("o.yaml", "o.yaml", "keep"))]
    command, option = asked.pop("command"), "--vllm"
    if rng.random() < 0.5:
        command, option = torn(LAUNCH.encode(), rng).decode("utf-8", "replace"), "--sglang"
    asked.pop("gpu")
    args = [item for name, value in asked.items() for item in (f"--{name}", value)]
    args = [option, command, *args, "--gpus", rng.choice(("no-such", "", "h100,no-such"))]
    return ["plan", *(arg.replace("\x00", "") for arg in args), "--workers", "1"]


def a_move(rng: random.Random) -> list[str]:
    """Make what the page with sliders sends, which is no command."""
    moved = {"rate": 30.0, "prompt": 50, "output": 20, "alpha": 0.5, "policy": "static", "k": 2}
    moved |= {"gpu": rng.choice(("h100/llama-3.1-8b", "x")), "ttft_ms": 100.0}
    body = _as_json(mutated(moved, rng)) if rng.random() < 0.7 else torn(_as_json(moved), rng)
    path = rng.choice(("answer", "answer", "experiment", "../x"))
    head = f"POST /TOKEN/{path} HTTP/1.1\r\nHost: HOST\r\nContent-Length: {len(body)}\r\n\r\n"
    data = head.encode() if rng.random() < 0.8 else torn(head.encode(), rng)
    Path("request").write_bytes(data + body)
    return ["(move)", "request"]


@functools.cache
def ui_server() -> Any:
    """Return a server of `specsim ui`, one for each worker."""
    from specsim.run.experiment import Experiment  # noqa: PLC0415
    from specsim.show.ui import listen  # noqa: PLC0415
    from specsim.show.ui.playground import Playground  # noqa: PLC0415

    server = listen(Playground(Experiment.parse(BASE, "fuzz")), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def send_move(path: str) -> int:
    """Send the bytes of a request; return 2 where it is refused."""
    server = ui_server()
    data = Path(path).read_bytes().replace(b"TOKEN", server.token.encode())
    data = data.replace(b"HOST", b"127.0.0.1:%d" % server.server_port)
    return _sent(server.server_port, data)


def a_request(rng: random.Random) -> list[str]:
    """Make what `specsim serve` is asked, which is no command."""
    sampling = {"max_tokens": 5, "stream": rng.random() < 0.5, "n": 2, "temperature": 0.5}
    said = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d"}]
    bodies: dict[str, Any] = {
        "/v1/completions": {"model": "x", "prompt": [1, 2, 3], "ignore_eos": True, **sampling},
        "/v1/chat/completions": {"messages": said, "min_tokens": 2, "stop": ["q"], **sampling},
        "/tokenize": {"prompt": "hello"},
        "/detokenize": {"tokens": [1, 2]},
        "/metrics": None,
    }
    path = rng.choice(list(bodies))
    valid = b"" if bodies[path] is None else _as_json(bodies[path])
    body = valid
    if valid:
        is_nested = rng.random() < 0.7
        body = _as_json(mutated(bodies[path], rng)) if is_nested else torn(valid, rng)
    verb = "POST" if valid else "GET"
    head = f"{verb} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    data = head.encode() if rng.random() < 0.8 else torn(head.encode(), rng)
    Path("request").write_bytes(data + body)
    return ["(request)", "request"]


@functools.cache
def api_port() -> int:
    """Return the port of a server of `specsim serve`, one for each worker."""
    from specsim.run.experiment import Experiment  # noqa: PLC0415
    from specsim.serve import LiveServer, ServeOptions, services  # noqa: PLC0415

    options = ServeOptions(port=0, speed=100.0, grace=0.5)
    server = LiveServer(services(Experiment.parse(BASE, "fuzz"), options), options)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return int(asyncio.run_coroutine_threadsafe(server.start(), loop).result(60)[0])


def send_request(path: str) -> int:
    """Send the bytes of a request; return 2 where it is refused."""
    return _sent(api_port(), Path(path).read_bytes())


def _sent(port: int, data: bytes) -> int:
    """Send bytes and read the reply; return 2 where they are refused.

    Raises:
        AssertionError: The server failed.
    """
    reply = b""
    address = ("127.0.0.1", port)
    # It may hang up on what is no request.
    with socket.create_connection(address, _PATIENCE) as there, suppress(ConnectionError):
        there.sendall(data)
        with suppress(TimeoutError):  # it may wait for the rest of a body
            reply = there.recv(65536)
        there.settimeout(LIMIT_SECONDS)
        with suppress(OSError):
            there.shutdown(socket.SHUT_WR)
        for part in iter(lambda: there.recv(65536), b""):
            reply += part
    status = reply.split(b" ", 2)[1:2]
    if status == [b"500"]:
        raise AssertionError(reply[-300:])
    return 0 if status == [b"200"] else 2


def _files(kind: str, rng: random.Random) -> list[str]:
    experiment = config_of(rng) if rng.random() < 0.6 else fleet_of(rng)
    experiment["engine"] = {k: v for k, v in experiment["engine"].items() if v is not None}
    return a_case_of_files(kind, rng, mutated, torn, experiment)


NOT_COMMANDS = {"(reply)": read_reply, "(move)": send_move, "(request)": send_request}
KINDS = {
    "config": a_config,
    "fleet": a_fleet,
    "study": a_study,
    "trace": a_trace,
    "arguments": some_arguments,
    "results": a_folder,
    "policy": a_policy,
    "reply": a_reply,
    "question": a_question,
    "move": a_move,
    "request": a_request,
    "study folder": lambda rng: a_study_folder(rng, mutated, torn),
    "class": a_class,
    **{kind: functools.partial(_files, kind) for kind in KINDS_OF_FILES},
}
