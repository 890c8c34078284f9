"""Cases of fuzzing: files, command lines and bytes, each made from a number alone."""

import copy
import functools
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from fuzz_catalogue import KINDS_OF_FILES
from fuzz_changes import as_json, mutated, put, torn
from fuzz_classes import a_class
from fuzz_files import a_case_of_files, a_study_folder
from fuzz_fleets import CLIENTS, FLEETS, SERVERS
from fuzz_requests import a_move, a_reply, a_request, read_reply, send_move, send_request
from fuzz_values import ANSWERS, BASE, COMMANDS, NASTY, OPTIONS, POLICY, ROWS, VARIANTS


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
    import yaml

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
        import pyarrow as pa
        import pyarrow.parquet as pq

        value = rng.choice((5, 1e300, -1.0, float("nan"), 2.0**62))
        pq.write_table(pa.table({"prompt_len": [3, value], "output_len": [1, 2]}), name)
        data = Path(name).read_bytes()
        data = torn(data, rng) if rng.random() < 0.7 else data
    elif name.endswith(".jsonl") and rng.random() < 0.8:
        rows = [json.loads(line) for line in ROWS[name].splitlines()]
        data = b"".join(as_json(mutated(row, rng)) + b"\n" for row in rows)
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
        path.write_bytes(as_json(mutated(json.loads(path.read_text()), rng)))
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


def _files(kind: str, rng: random.Random) -> list[str]:
    experiment = config_of(rng) if rng.random() < 0.6 else fleet_of(rng)
    experiment["engine"] = {k: v for k, v in experiment["engine"].items() if v is not None}
    return a_case_of_files(kind, rng, experiment)


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
    "study folder": a_study_folder,
    "class": a_class,
    **{kind: functools.partial(_files, kind) for kind in KINDS_OF_FILES},
}
