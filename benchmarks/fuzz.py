"""Fuzzing: bad input gives one line and exit code 2, never a traceback, a hang or a lost file.

    python benchmarks/fuzz.py [--number 3000] [--seed 0] [--kinds config trace ...] [--workers 2]

Every case is made from its number alone: ``--only 17`` makes and runs case 17 again, and leaves its
files in the folder that it names. Cases run inside worker processes, which are limited in time and
memory. The exit code is 1 if anything was found.
"""

import argparse
import asyncio
import contextlib
import copy
import functools
import hashlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 15.0  # the 10 s that are allowed, on a machine that does other things, too
LIMIT_BYTES = 2 << 30
OK_CODES = {0, 1, 2, 3}

BASE: dict[str, Any] = {
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 20.0},
        "lengths": {"kind": "uniform", "prompt": [1, 200], "output": [1, 40]},
        "num_requests": 10,
    },
    "engine": {
        "num_gpu_blocks": 400,
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
    },
    "policy": {"kind": "static", "k": 2},
    "acceptance": {"kind": "bernoulli", "alpha": 0.7},
    "profile": "h100/llama-3.1-8b",
    "slo": {"ttft_ms": 500},
    "seed": 1,
}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"workload.arrivals": {"kind": "gamma", "rate": 8.0, "burstiness": 0.5}},
    {"workload.arrivals": {"kind": "piecewise", "segments": [[2, 1], [2, 3]]}},
    {"workload.arrivals": {"kind": "closed_loop", "concurrency": 4, "think_time": 1.0}},
    {"workload.arrivals": "burst"},
    {"workload.arrivals": {"kind": "constant", "rate": 3.0}, "workload.duration": 3.0},
    {
        "workload.lengths": {
            "kind": "lognormal",
            "prompt": {"mean": 100, "sigma": 0.5},
            "output": {"mean": 25, "sigma": 0.5},
        }
    },
    {
        "workload.lengths": {
            "kind": "truncated_normal",
            "prompt": {"mean": 51, "std": 12, "max": 99},
            "output": {"mean": 12, "std": 6, "min": 1, "max": 51},
        }
    },
    {
        "workload.lengths": {
            "kind": "shift",
            "at": 0.5,
            "before": "constant:prompt=9,output=4",
            "after": "dataset:name=gsm8k",
        }
    },
    {"replicas": 2, "incidents": [{"kind": "failure", "replica": 0, "at": 0.1, "until": 0.3}]},
    {"policy": "goodput", "routing": "round_robin"},
    {
        "engine.speculative_config.num_speculative_tokens_per_batch_size": [[1, 8, 3]],
        "policy": None,
    },
    {"acceptance": {"kind": "per_position", "unconditional_rates": [0.8, 0.6, 0.5]}},
    {"engine.scheduler": "prefill_first", "engine.max_num_batched_tokens": 1024},
]
NASTY: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**400,
    1e308,
    -1e308,
    1e-300,
    5e-324,
    float("nan"),
    float("inf"),
    0.5,
    "",
    " ",
    "x" * 5000,
    "static:k=3",
    "off",
    "a:b:c",
    "/dev/zero",
    "/dev/null",
    "no/such/folder",
    "\x00",
    "\ud7ff",
    "é",
    "[",
    "{",
    "*a",
    "&a",
    "!!python/object",
    "nan",
    "1e400",
    "2020-13-45",
    "9" * 4300,
    [],
    {},
    [[]],
    [{}],
    {"kind": None},
    {"kind": "x"},
    [1] * 1000,
    {"a": {"b": {"c": {}}}},
    ["x", 1, None],
    {"": ""},
    {"kind": "os:system"},
    "os:system",
    [0, 0],
    [1e308, 1e308],
    {"linspace": [0, 1, 10**9]},
    -0.0,
    "0x10",
    "1_000",
    "y",
    "~",
]
FRAGMENTS = [
    b"[" * 30000,
    b"{" * 200,
    b"&a [*a]",
    b"*a",
    b"!!binary aGVsbG8=: 1",
    b"9" * 4300,
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"? ",
    b": ",
    b"- " * 3000,
    b"<<: *a\n",
    b"a: &a [x,x,x]\nb: &b [*a,*a,*a]\n",
    b"%YAML 1.1\n---\n",
    b"\n---\n",
    b"'",
    b'"',
    b"|",
    b">",
    b"!!set {a}",
    b"!!timestamp 1",
    b"1e999",
    b",,,,",
    b"\r",
    b"PAR1",
    b"\x1f\x8b",
    b"NaN",
    b"Infinity",
    b"-1",
    b"\xe2\x80\xa8",
    b"null",
]
ROWS: dict[str, bytes] = {
    "a.csv": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,4,2\n"
    b"2023-11-16 18:17:04.03,9,5\n",
    "b.csv": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,C,4,2,6,x\n",
    "c.jsonl": b'{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[1,2]}\n'
    b'{"timestamp":9,"input_length":30,"output_length":5,"hash_ids":[1]}\n',
    "d.jsonl": b'{"chat_id":1,"timestamp":0,"input_length":20,"output_length":5,'
    b'"hash_ids":[1,2]}\n',
    "e.jsonl": b'{"prompt_len":3,"output_len":2,"arrived_at":0.5,"id":"r","priority":1,'
    b'"prompt_token_ids":[1,2,3],"output_token_ids":[4,5]}\n',
    "f.json": b'{"input_lens":[3,4],"output_lens":[1,2],"start_times":[0.0,1.0]}',
}
POLICY = """from specsim.policies.base import Policy
import numpy as np
class P(Policy):
    kind: str = "p"
    def draft_lens(self, batch, memory):
        {body}
"""
ANSWERS = [
    "-1",
    "[1]",
    "[1] * (batch.size + 1)",
    "np.int64(3)",
    "99",
    "None",
    "'a'",
    "1 // 0",
    "1.5",
    "True",
    "[[1]] * batch.size",
    "np.ones(batch.size)",
    "np.ones(batch.size, int)",
    "[-1] * batch.size",
    "{}",
    "[None] * batch.size",
    "batch.nothing",
    "np.array(2)",
    "[2**70] * batch.size",
    "(1,)",
    "float('nan')",
    "iter([1])",
    "batch.known_lens * 0",
    "np.full(batch.size, 2**40)",
    "[]",
    "exit()",
]
COMMANDS = [
    "run",
    "compare",
    "sweep",
    "capacity",
    "tune",
    "gate",
    "draft-eval",
    "report",
    "plot",
    "timeline",
    "breakdown",
    "export",
    "observe",
    "validate",
    "parity",
    "profile fit",
    "profile show",
    "profile build",
    "profile roofline",
    "acceptance fit",
    "trace describe",
    "trace convert",
    "trace synth",
    "tokens from-text",
    "tokens describe",
    "list",
    "policy check",
    "schema",
    "plan",
    "init",
]
OPTIONS = [
    "--out",
    "--set",
    "--seed",
    "--json",
    "--plot",
    "--policies",
    "--replications",
    "--workers",
    "--check",
    "--no-steps",
    "--dry-run",
    "--slo",
    "--rates",
    "--update",
    "--junit",
    "--tolerance",
    "--where",
    "--metric",
    "--format",
    "--window",
    "--chrome-trace",
    "--prometheus",
    "--vllm-bench",
    "--model",
    "--gpu",
    "--tp",
    "--draft",
    "--kind",
    "--steps",
    "--arrivals",
    "--lengths",
    "--num-requests",
    "--duration",
    "--proposer",
    "--tokens",
    "--opt",
    "--grid",
    "--profile",
    "--url",
    "--tokenizer",
    "--prices",
    "--bins",
    "--replica",
    "--help",
    "--resume",
    "--keep-going",
    "--policy",
    "--qps",
    "--traffic",
    "--vllm",
]


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
        if isinstance(holder[key], int | float) and rng.random() < 0.6:
            holder[key] *= rng.choice((-1, 0, 0.5, 2, 3, 10, 1000, 1e9, 1e-9))
            if isinstance(holder[key], float) and holder[key].is_integer():
                holder[key] = int(holder[key])
        elif action < 0.7:
            holder[key] = copy.deepcopy(rng.choice(NASTY))
        elif action < 0.85:
            del holder[key]
        elif isinstance(holder, dict):
            holder[rng.choice(("x", "", "kind", "seed", "1"))] = copy.deepcopy(rng.choice(NASTY))
    return value


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


def a_study(rng: random.Random) -> list[str]:
    """Make a sweep or a suite."""
    name, field = rng.choice((("axes", "sweep"), ("scenarios", "gate")))
    parts: dict[str, Any] = {"axes": [{"policy": ["off", "static:k=2"]}, {"replicas": [1, 2]}]}
    if name == "scenarios":
        parts = {"scenarios": {"a": {"policy": "off"}}, "replications": 2}
    study = mutated({"base": config_of(rng), **parts}, rng)
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
    shutil.copytree(os.environ["FUZZ_RESULTS"], "run")
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
        asyncio.run(client._read(Response(), client.StreamedAnswer(0.0), 5))  # type: ignore[arg-type]
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
    from specsim.show.ui.playground import Playground  # noqa: PLC0415
    from specsim.show.ui.server import listen  # noqa: PLC0415

    server = listen(Playground(Experiment.parse(BASE, "fuzz")), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def send_move(path: str) -> int:
    """Send the bytes of a request; return 2 where it is refused, 3 where the server failed."""
    server = ui_server()
    data = Path(path).read_bytes().replace(b"TOKEN", server.token.encode())
    data = data.replace(b"HOST", b"127.0.0.1:%d" % server.server_port)
    with socket.create_connection(
        ("127.0.0.1", server.server_port), timeout=LIMIT_SECONDS
    ) as there:
        there.sendall(data)
        there.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: there.recv(65536), b""))
    status = reply.split(b" ", 2)[1:2]
    if status == [b"500"]:
        raise AssertionError(reply[-300:])
    return 0 if status == [b"200"] else 2


NOT_COMMANDS = {"(reply)": read_reply, "(move)": send_move}
KINDS = {
    "config": a_config,
    "study": a_study,
    "trace": a_trace,
    "arguments": some_arguments,
    "results": a_folder,
    "policy": a_policy,
    "reply": a_reply,
    "question": a_question,
    "move": a_move,
}


def digests() -> dict[str, str]:
    """Return a digest of every file in the working directory."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path().rglob("*")
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }


def run_case(number: int, seed: int, kinds: list[str], folder: str) -> dict[str, Any]:
    """Make a case and run it in this process; return what was wrong."""
    from specsim.__main__ import main  # noqa: PLC0415

    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(kinds)
    os.makedirs(folder)
    os.chdir(folder)
    Path("keep").write_text("a file of the user's\n")
    args = KINDS[kind](rng)
    before, out, err = digests(), io.StringIO(), io.StringIO()
    begun_at, trace, code = time.monotonic(), "", 0
    sys.argv = ["specsim", *args]
    sys.stdin = io.StringIO(Path("stdin").read_text() if Path("stdin").exists() else "")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = NOT_COMMANDS[args[0]](args[1]) if args[0] in NOT_COMMANDS else main() or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            trace = traceback.format_exc()
    after = digests()
    lost = [name for name, digest in before.items() if after.get(name) != digest]
    problems = ["traceback"] if trace or "Traceback" in err.getvalue() else []
    problems += ["overwritten " + ", ".join(lost)] if lost else []
    problems += [f"exit code {code}"] if code not in OK_CODES else []
    if code == 2 and not err.getvalue().strip() and args[0] not in NOT_COMMANDS:
        problems.append("no message")
    seconds = time.monotonic() - begun_at
    return {
        "kind": kind,
        "args": args,
        "code": code,
        "problems": problems,
        "seconds": seconds,
        "trace": trace or err.getvalue()[-3000:],
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def work(pipe: Connection, seed: int, kinds: list[str], root: str) -> None:
    """Run the cases that come through a pipe."""
    resource.setrlimit(resource.RLIMIT_DATA, (2 * LIMIT_BYTES, 2 * LIMIT_BYTES))
    while (number := _received(pipe)) is not None:
        for name in ("SPECSIM_FORCE", "SPECSIM_LARGE"):
            os.environ.pop(name, None)
        folder = os.path.join(root, str(number))
        pipe.send((number, run_case(number, seed, kinds, folder)))
        os.chdir(root)
        shutil.rmtree(folder, ignore_errors=True)


def _received(pipe: Connection) -> int | None:
    try:
        return int(pipe.recv())
    except EOFError:  # all is done
        return None


class Worker:
    """A process that runs cases, and is replaced when it hangs, dies or has grown."""

    def __init__(self, *given: Any) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=work, args=(theirs, *given), daemon=True)
        self.process.start()
        theirs.close()
        self.number: int | None = None
        self.since = 0.0

    def give(self, number: int) -> None:
        """Let it run a case; the first waits for the imports."""
        self.number, self.since = number, time.monotonic()
        self.pipe.send(number)

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join()


def fuzz(options: argparse.Namespace, root: str) -> list[dict[str, Any]]:
    """Run all cases; return those in which something was wrong."""
    numbers = iter(options.only or range(options.number))
    given = (options.seed, options.kinds, root)
    found: list[dict[str, Any]] = []
    counts: Counter[tuple[str, Any]] = Counter()
    workers = [Worker(*given) for _ in range(options.workers)]
    busy = [worker for worker in workers if _next(worker, numbers)]
    while busy:
        ready = set(wait([worker.pipe for worker in busy], timeout=1.0))
        for worker in list(busy):
            result = _result(worker, ready, patience=LIMIT_SECONDS + 60 * (not counts))
            if result is None:
                continue
            counts[result["kind"], result["code"]] += 1
            if result["problems"]:
                found.append({"number": worker.number, **result})
                print(worker.number, result["problems"], result["args"], flush=True)
            busy.remove(worker)
            has_grown = result["rss"] > LIMIT_BYTES // 2
            if has_grown:
                worker.end()
            other = Worker(*given) if has_grown else worker
            if _next(other, numbers):
                busy.append(other)
    for (kind, code), count in sorted(counts.items(), key=str):
        print(f"{kind:10} exit {code}: {count}")
    print(f"{sum(counts.values())} cases, {len(found)} with something wrong")
    return found


def _result(worker: Worker, ready: set[Any], patience: float) -> dict[str, Any] | None:
    """Return what came of a worker's case; None if it is still under way."""
    nothing = {"kind": "?", "code": None, "args": [], "rss": LIMIT_BYTES, "trace": ""}
    if worker.pipe not in ready:
        is_hanging = time.monotonic() - worker.since > patience
        return {**nothing, "problems": ["hang"]} if is_hanging else None
    try:
        _, result = worker.pipe.recv()
    except EOFError:
        return {**nothing, "problems": ["process died"]}
    result["rss"] *= 1024
    if result["rss"] > LIMIT_BYTES:
        result["problems"].append(f"memory {result['rss'] >> 20} MiB")
    if result["seconds"] > 10:
        result["problems"].append(f"slow {result['seconds']:.0f} s")
    return dict(result)


def _next(worker: Worker, numbers: Any) -> bool:
    number = next(numbers, None)
    if number is not None:
        worker.give(number)
    return number is not None


def main() -> int:
    """Read options, make a valid results folder, and fuzz."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", type=int, nargs="+", help="Run these cases again.")
    parser.add_argument("--details", type=Path, help="Write what was found here, as JSON.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specsim-fuzz-") as root:
        os.environ.setdefault("SPECSIM_CACHE_DIR", os.path.expanduser("~/.cache/specsim"))
        os.environ["FUZZ_RESULTS"] = f"{root}/valid"
        from specsim.run.experiment import Experiment  # noqa: PLC0415
        from specsim.run.simulate import simulate  # noqa: PLC0415
        from specsim.run.summary import Summary  # noqa: PLC0415

        run = simulate(Experiment.parse(BASE, "fuzz"), keeps_deliveries=True)
        Summary(run).save(Path(root) / "valid")
        found = fuzz(options, root)
    if options.details:
        options.details.write_text(json.dumps(found, indent=1))
    for problem, count in Counter(str(each["problems"][0]) for each in found).items():
        print(f"{count} x {problem}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
