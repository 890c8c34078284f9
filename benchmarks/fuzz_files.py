"""Cases of commands that read files: a valid set of files, of which one has been changed.

Files are changed as what they are (a value, a row, a key), in their bytes, or as files: a link to
itself, a folder, another encoding. Options are changed now and then, too.
"""

import copy
import csv
import functools
import gzip
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz_values import BASE, HOOKS, NASTY

Files = dict[str, Any]
"""By name, what each holds: values, rows, or text."""
Mutate = Callable[[Any, random.Random], Any]
Tear = Callable[[bytes, random.Random], bytes]

ROOT = Path(__file__).resolve().parents[1]
QUICK = {**BASE, "workload": {**BASE["workload"], "num_requests": 6}}
USERS = ("keep", "mine.json", "own", "own/summary.json")
"""What belongs to the user; outputs are sometimes given these names."""
NEW = ("new", "new.json", "new.yaml", "new.jsonl.gz")
MINE = {"notes": [{"specsim_version": "0.1.0"}], "text": '"specsim_version": "0.1.0"'}

TOKENS = [
    {
        "id": str(number),
        "prompt_token_ids": [1, 2, 3],
        "generated_token_ids": [*range(60)],
        "acc_eagle": {"acc_len": [1, *([4, 3, 2, 1, 1, 2, 1, 1] * 8)[number : number + 59]]},
    }
    for number in range(4)
]
CHAT = [
    {"prompt": "a b c", "output": "d e", "id": "x", "timestamp": 1.5},
    {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]},
    {"conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "e"}]},
]
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": 1,
            "content": "<s>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    },
    "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
    "model": {
        "type": "WordLevel",
        "vocab": {"?": 0, "<s>": 1, "a": 2, "b": 3, "c": 4},
        "unk_token": "?",
    },
}
RUNS = [
    {
        "run_id": f"r{number}",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "tp": 1,
        "gpu": "NVIDIA A100-SXM4-80GB",
        "engine_version": "0.24.0",
        "isl": "200 (uniform 100..300)",
        "osl": "40 (uniform 20..60)",
        "dataset": "random tokens (seed 7)",
        "max_num_batched_tokens": "2048 (default seen in log)",
        "max_num_seqs": 64,
        "max_model_len": 4096,
        "num_gpu_blocks": "32000 tokens",
        "block_size": "16.0",
        "prefix_caching": "off",
        "num_prompts": 10,
        "num_warmups": 2,
        "concurrency": 4,
        "request_rate": "",
        "method": method,
        "num_speculative_tokens": k,
        "accept_rate_per_pos": rates,
        "ttft_p50_ms": 25.0,
        "tpot_mean_ms": 9.0,
        "output_tok_s": 400.0,
        "itl_p50_ms": 9.0,
    }
    for number, (method, k, rates) in enumerate(
        (("none", 0, ""), ("eagle3 (some head)", "3.0", "0.7;0.5;0.35"))
    )
]
BENCH = {
    "date": "20260101-120000",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 8,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 4,
    "duration": 10.0,
    "completed": 8,
    "failed": 0,
    "total_input_tokens": 1600,
    "total_output_tokens": 400,
    "request_throughput": 3.2,
    "output_throughput": 320.0,
    "mean_ttft_ms": 30.0,
    "median_ttft_ms": 28.0,
    "mean_tpot_ms": 9.0,
    "median_itl_ms": 8.8,
    "mean_e2el_ms": 900.0,
    "input_lens": [200] * 8,
    "output_lens": [50] * 8,
    "ttfts": [0.03] * 8,
    "itls": [[0.01] * 49] * 8,
    "spec_decode_acceptance_rate": 40.0,
    "spec_decode_acceptance_length": 2.2,
    "spec_decode_per_position_acceptance_rates": [0.6, 0.4, 0.2],
}
STEPS = [
    {
        "context_tokens": 500 * n + 37 * (n * n % 23),
        "batched_tokens": n + (40 + n * n % 17) * (n % 3 == 0),
        "requests": n,
        "mixed": n % 3 == 0,
        "seconds": 0.006 + 1e-7 * (500 * n + 37 * (n * n % 23)) + 1e-5 * n + 0.004 * (n % 3 == 0),
    }
    for n in range(1, 60)
]
MEASURED = {
    "meta.json": {
        "model": "meta-llama/Llama-3.1-8B",
        "engine_kwargs": {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            "max_model_len": 2048,
            "tensor_parallel_size": 1,
            "data_parallel_size": 1,
            "kv_cache_dtype": "auto",
        },
        "kv_cache": {"num_gpu_blocks": 500, "block_size": 16},
        "hardware": {"device_name": "NVIDIA H100 80GB HBM3"},
    },
    "requests.jsonl": [
        {
            "request_id": f"bench-{n}",
            "input_toks": 20 + n,
            "output_toks": 5 + n,
            "queued_ts": 1000.0 + n,
            "first_token_ts": 1000.1 + n,
            "last_token_ts": 1001.0 + n,
        }
        for n in range(6)
    ],
    "steps.jsonl": [
        {
            "seconds": row["seconds"],
            "context_tokens": row["context_tokens"],
            "batched_tokens": row["batched_tokens"],
            "num_requests": row["requests"],
            "prefill_tokens": 40 * row["mixed"],
            "scheduled": [1],
        }
        for row in STEPS
    ],
}
PRICES = {
    "currency": "USD",
    "date": "2026-01-01",
    "source": "x",
    "per_gpu_hour": {"h100": 3.0, "l40s": 1.0},
}
# `capacity` makes its runs longer until the answer stands still. With sessions or offloading, on
# two GPUs, these are a million requests, all of them needed: half a minute, at 30 us each.
SEARCHED = ["--max-requests", "8000", "--replications", "2"]
STUDIES: list[list[str]] = [
    ["compare", "e.yaml", "--policies", "off", "static:k=2", "--replications", "2", "--out", "OUT"],
    ["tune", "e.yaml", "--replications", "2", "--max-k", "2", "--out", "OUT"],
    [
        "capacity",
        "e.yaml",
        "--slo",
        "ttft:500,tpot:50",
        "--policies",
        "off",
        "--out",
        "OUT",
        *SEARCHED,
    ],
    [
        "capacity",
        "e.yaml",
        "--slo",
        "e2el:9000",
        "--gpus",
        "h100,l40s",
        "--qps",
        "10",
        "--prices",
        "prices.yaml",
        *SEARCHED,
    ],
    ["split", "e.yaml", "--gpus", "2", "--out", "OUT"],
    ["run", "e.yaml", "--seed", "3", "--check", "--out", "OUT"],
    [
        "plan",
        "--vllm",
        "vllm serve Qwen/Qwen3-8B",
        "--qps",
        "1",
        "--gpus",
        "h100",
        "--traffic",
        "chat",
        "--prices",
        "prices.yaml",
        "--acceptance",
        "ACCEPTANCE",
    ],
]


def _shipped(path: str) -> Any:
    import yaml  # noqa: PLC0415

    return yaml.safe_load((ROOT / "profiles" / path).read_text())


@functools.cache
def _catalogue() -> dict[str, tuple[Files, list[list[str]]]]:
    """Return by kind the files of a case, and the commands that read them."""
    scenario = json.loads((ROOT / "tests/parity/recorded/random-26.scenario.json").read_text())
    log = json.loads((ROOT / "tests/parity/recorded/random-26.log.json").read_text())
    result = Path(os.environ["FUZZ_RESULTS"]).parent / "baseline.json"
    fields = {"model": "llama-3.1-8b", "gpu": "h100"}
    made = [f"--{name}={value}" for name, value in fields.items()]
    suite = {"base": QUICK, "scenarios": {"a": {"policy": "off"}}, "replications": 2}
    sweep = {"base": QUICK, "axes": [{"policy": ["off", "static:k=2"]}, {"replicas": [1, 2]}]}
    acceptance = _shipped("acceptance/llama-3.1-8b/eagle/sharegpt.yaml")
    return {
        "studies": ({"e.yaml": QUICK, "prices.yaml": PRICES}, STUDIES),
        "gates": (
            {"suite.yaml": suite, "b.json": json.loads(result.read_text())},
            [
                ["gate", "b.json", "suite.yaml", "--json", "OUT", "--junit", "g.xml"],
                ["gate", "b.json", "b.json", "--tolerance", "mean_e2el_ms=2%"],
                ["gate", "--update", "OUT", "suite.yaml", "--date", "2026-01-01"],
            ],
        ),
        "sweeps": (
            {"s.yaml": sweep},
            [
                ["sweep", "s.yaml", "--out", "OUT", "--keep-going"],
                ["sweep", "s.yaml", "--out", "OUT"],
            ],
        ),
        "profiles": (
            {
                "p.yaml": _shipped("h100/llama-3.1-8b.yaml"),
                "e.yaml": {**QUICK, "profile": "./p.yaml"},
                "steps.csv": STEPS,
            },
            [
                ["run", "e.yaml"],
                ["profile", "show", "./p.yaml"],
                ["compare", "e.yaml", "--policies", "off"],
                ["profile", "show", "./p.yaml", "--steps", "steps.csv"],
                ["run", "e.yaml", "--set", "policy=goodput", "--set", "replicas=2"],
            ],
        ),
        "composed": (
            {
                "p.yaml": _shipped("a100-80gb/llama-3.1-8b.yaml"),
                "e.yaml": {**QUICK, "profile": "./p.yaml"},
                "runs.csv": RUNS,
            },
            [
                ["run", "e.yaml"],
                ["profile", "show", "./p.yaml"],
                ["validate", "runs.csv", "--profile", "./p.yaml"],
            ],
        ),
        "models": (
            {
                "m.json": _shipped("llama-3.1-8b.json"),
                "g.yaml": _shipped("h100.yaml"),
                "moe.json": _shipped("mixtral-8x7b.json"),
                "window.json": _shipped("gemma-4-31b.json"),
            },
            [
                ["profile", "roofline", "--model", name, "--gpu", gpu, "--out", "OUT"]
                for name in ("m.json", "moe.json", "window.json")
                for gpu in ("g.yaml", "h100")
            ]
            + [
                ["profile", "build", "--model", name, "--gpu", "h100", "--out", "OUT"]
                for name in ("m.json", "moe.json", "window.json")
            ],
        ),
        "tokenizers": (
            {"t.json": TOKENIZER, "chat.jsonl": CHAT},
            [["tokens", "from-text", "chat.jsonl", "--tokenizer", "t.json", "--out", "OUT.jsonl"]],
        ),
        "tokens": (
            {"t.jsonl": TOKENS},
            [
                [
                    "acceptance",
                    "fit",
                    "t.jsonl",
                    "--proposer",
                    "eagle",
                    "--k",
                    "3",
                    "--json",
                    "OUT",
                    "--preset",
                    "preset.yaml",
                ],
                ["tokens", "describe", "t.jsonl"],
                ["trace", "describe", "t.jsonl"],
                ["trace", "convert", "t.jsonl", "OUT"],
                ["draft-eval", "--proposer", "suffix", "--tokens", "t.jsonl"],
                [
                    "draft-eval",
                    "--proposer",
                    "ngram",
                    "--tokens",
                    "t.jsonl",
                    "--grid",
                    "num_speculative_tokens=1,2",
                ],
            ],
        ),
        "tables": (
            {
                "runs.csv": RUNS,
                "runs.parquet": RUNS,
                "bench.json": BENCH,
                "many.jsonl": [BENCH, BENCH],
            },
            [
                [*command, name]
                for name in ("runs.csv", "runs.parquet", "bench.json", "many.jsonl")
                for command in (
                    ["validate", "--profile", "a100-80gb/llama-3.1-8b", "--json", "OUT"],
                    ["profile", "fit", "--start", "a100-80gb/llama-3.1-8b", "--out", "OUT"],
                )
            ],
        ),
        "steps": (
            {f"steps.{suffix}": STEPS for suffix in ("csv", "parquet", "jsonl")},
            [
                ["profile", "fit", f"steps.{suffix}", *made, *kind, "--out", "OUT"]
                for suffix in ("csv", "parquet", "jsonl")
                for kind in ([], ["--kind", "linear"])
            ],
        ),
        "measured": (
            {f"run/{name}": value for name, value in MEASURED.items()},
            [
                ["validate", "run", "--profile", "h100/llama-3.1-8b", "--json", "OUT"],
                ["profile", "fit", "run", *made, "--out", "OUT"],
                ["trace", "describe", "run/requests.jsonl"],
            ],
        ),
        "parities": (
            {"s.json": scenario, "l.json": log},
            [
                ["parity", "s.json"],
                ["parity", "s.json", "--log", "l.json"],
                ["parity", "s.json", "--out", "OUT"],
            ],
        ),
        "presets": (
            {
                "profiles/acceptance/mine.yaml": acceptance,
                "e.yaml": {**QUICK, "acceptance": {"kind": "preset", "name": "mine"}},
            },
            [["run", "e.yaml"], ["tune", "e.yaml", "--replications", "2"]],
        ),
    }


KINDS_OF_FILES = (
    "studies",
    "gates",
    "sweeps",
    "profiles",
    "composed",
    "models",
    "tokenizers",
    "tokens",
    "tables",
    "steps",
    "measured",
    "parities",
    "presets",
)


def written(name: str, value: Any) -> bytes:
    """Return what a file of a name holds, or what comes nearest to it."""
    import yaml  # noqa: PLC0415

    kind = Path(name).suffix
    try:
        if kind == ".yaml":
            return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode(
                "utf-8", "replace"
            )
        if kind == ".json":
            return json.dumps(value).encode()
        if kind == ".jsonl":
            return b"".join(json.dumps(row).encode() + b"\n" for row in value)
        return _table(value) if kind == ".csv" else _columns(value)
    except Exception:  # no such value has this form
        return repr(value)[:100_000].encode("utf-8", "replace")


def _table(rows: list[Any]) -> bytes:
    stream = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(stream, names)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode("utf-8", "replace")


def _columns(rows: list[Any]) -> bytes:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    stream = io.BytesIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[str(name)] = pa.array(values)
        except (pa.ArrowException, OverflowError):
            columns[str(name)] = pa.array([repr(value)[:50] for value in values])
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def _fit_quickly() -> None:
    """Let `acceptance fit` look at less: of every trace, however short, it takes 20 s else."""
    from specsim.reality import acceptance_fit  # noqa: PLC0415
    from specsim.reality.acceptance_fit import fits  # noqa: PLC0415

    acceptance_fit._POSITIONS = fits._POSITIONS = 2000
    fits._MAX_TRIALS = 5


def _plan_quickly() -> None:
    """Let `plan` simulate fewer requests: it takes half a minute else."""
    from specsim.study import plan  # noqa: PLC0415
    from specsim.study.plan import candidates  # noqa: PLC0415

    plan._REQUESTS = candidates._REQUESTS = 40
    plan._REPLICATIONS, plan._LONGEST = 2, 100


def nudged(value: Any, rng: random.Random) -> Any:
    """Return values of which one to four are others of their kind, so that most remain valid."""
    value = copy.deepcopy(value)
    spots = [spot for spot in _places(value) if not isinstance(spot[0][spot[1]], str | dict | None)]
    for holder, key in rng.choices(spots, k=rng.choice((1, 1, 2, 4))) if spots else ():
        held = holder[key]
        if isinstance(held, bool):
            holder[key] = not held
        elif isinstance(held, int):
            holder[key] = rng.choice((0, 1, 2, 3, held // 2, held * 2, held + 1, held - 1, 5000))
        elif isinstance(held, float):
            holder[key] = held * rng.choice((0.0, 1e-6, 0.1, 0.5, 1.01, 2.0, 10.0, 1e6))
        elif isinstance(held, list) and held:
            holder[key] = rng.choice(
                ([], held[:1], held[1:], held * 2, held[::-1], [*held, held[0]])
            )
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inside:
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


def _odd_file(path: Path, rng: random.Random) -> None:
    """Put in the place of a file what is none, or one in another form."""
    data = path.read_bytes()
    path.unlink()
    choice = rng.randrange(8)
    if choice == 0:
        path.symlink_to(path.name)
    elif choice == 1:
        path.symlink_to("nothing")
    elif choice == 2:
        path.mkdir()
    elif choice == 3:
        os.mkfifo(path)
    elif choice == 4:
        path.write_bytes(gzip.compress(data))
    elif choice == 5:
        path.write_bytes(data.decode("utf-8", "replace").encode("utf-16"))
    elif choice == 6:
        path.write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
    else:
        path.write_bytes(b"")


def a_case_of_files(
    kind: str, rng: random.Random, mutate: Mutate, tear: Tear, experiment: dict[str, Any]
) -> list[str]:
    """Write the files of a case, one of them changed, and return its command."""
    valid, commands = _catalogue()[kind]
    files, command = dict(valid), list(rng.choice(commands))
    if kind == "tokens":
        _fit_quickly()
    if command[0] == "plan":
        _plan_quickly()
    if kind in ("studies", "sweeps", "gates"):
        base = {**experiment, "workload": {**experiment["workload"], "num_requests": 6}}
        name, changes = next(
            (name, value) for name, value in files.items() if Path(name).suffix == ".yaml"
        )
        files[name] = {**changes, "base": base} if "base" in changes else base
    read = [name for name in files if any(name in word or word == "run" for word in command)]
    changed = rng.choice(read or list(files)) if rng.random() < 0.9 else None
    for name, value in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(written(name, value))
        action = rng.random()
        if name != changed:
            continue
        if action < 0.35:
            path.write_bytes(written(name, nudged(value, rng)))
        elif action < 0.75:
            path.write_bytes(written(name, mutate(value, rng)))
        elif action < 0.9:
            path.write_bytes(tear(path.read_bytes(), rng))
        else:
            _odd_file(path, rng)
    return odd_options(command, rng)


def odd_options(command: list[str], rng: random.Random) -> list[str]:
    """Return a command with outputs, and at times an option changed or a field set."""
    Path("mine.json").write_text(json.dumps(MINE))
    Path("own").mkdir()
    Path("own/summary.json").write_text(json.dumps(MINE))
    out = rng.choice(NEW if rng.random() < 0.8 else USERS)
    command = [word.replace("OUT", out) if out in NEW else word for word in command]
    command = [out if word.startswith("OUT") else word for word in command]
    command = ["bernoulli:alpha=0.5" if word == "ACCEPTANCE" else word for word in command]
    if rng.random() < 0.1 and len(command) > 3:
        word = str(rng.choice(NASTY[:9] + NASTY[15:]))[:300].replace("\x00", "")
        command[rng.randrange(2, len(command))] = word
    if command[0] in ("run", "compare", "tune", "capacity", "split") and rng.random() < 0.25:
        place = rng.choice(SETTABLE)
        value = json.dumps(rng.choice(NASTY), default=str)[:300] if rng.random() < 0.8 else "{"
        command += ["--set", f"{place}={value}"]
    if command[0] in ("compare", "tune", "capacity", "split", "sweep", "gate", "plan"):
        command += ["--workers", "1"]
    return command


SETTABLE = (
    "seed",
    "replicas",
    "policy",
    "policy.k",
    "acceptance",
    "acceptance.alpha",
    "profile",
    "slo",
    "slo.ttft_ms",
    "workload",
    "workload.num_requests",
    "workload.duration",
    "workload.arrivals",
    "workload.arrivals.rate",
    "workload.lengths.prompt",
    "workload.lengths",
    "engine",
    "routing",
    "engine.max_num_seqs",
    "engine.max_num_batched_tokens",
    "engine.max_model_len",
    "engine.num_gpu_blocks",
    "engine.block_size",
    "engine.speculative_config",
    "pools",
    "engine.speculative_config.num_speculative_tokens",
    "engine.kv_offload",
    "autoscaling",
    "incidents",
    "engine.speculative_config.method",
    "profile.target",
    "profile.gpu",
    "x",
    "engine.x",
    "",
    ".",
    "a..b",
)


def a_study_folder(rng: random.Random, mutate: Mutate, tear: Tear) -> list[str]:
    """Change a file of what a study wrote, and look at it."""
    folders = Path(os.environ["FUZZ_RESULTS"]).parent / "studies"
    shutil.copytree(folders / rng.choice(("compare", "sweep", "capacity", "capacity")), "run")
    path = rng.choice(sorted(path for path in Path("run").rglob("*") if path.is_file()))
    if path.suffix in (".json", ".yaml") and rng.random() < 0.6:
        import yaml  # noqa: PLC0415

        value = yaml.safe_load(path.read_text()) if path.suffix == ".yaml" else None
        value = json.loads(path.read_text()) if value is None else value
        path.write_bytes(written(path.name, mutate(value, rng)))
    elif rng.random() < 0.8:
        path.write_bytes(tear(path.read_bytes(), rng))
    else:
        with suppress(OSError):
            _odd_file(path, rng)
    return odd_options(
        list(
            rng.choice(
                (
                    ["report", "run", "--out", "OUT.html"],
                    ["report", "run"],
                    ["plot", "run", "--out", "new"],
                    ["plot", "run", "--metric", "p99_ttft_ms", "--format", "svg"],
                    ["timeline", "run/off"],
                    ["breakdown", "run/off"],
                    ["sweep", "run/sweep.yaml", "--resume", "--out", "run"],
                )
            )
        ),
        rng,
    )


def a_class(rng: random.Random) -> list[str]:
    """Make a class of the user's, with some methods, some of which answer something odd."""
    name = f"fuzzed_{rng.randrange(10**12)}"
    family, base, given = rng.choice(
        (
            ("policy", "specsim.policies.base:Policy", "policies"),
            ("routing", "specsim.routing.base:Router", "routing"),
            ("acceptance", "specsim.acceptance.base:Acceptance", "acceptance"),
            ("autoscaling", "specsim.autoscaling.base:Autoscaler", "autoscaling"),
        )
    )
    module, _, parent = base.partition(":")
    lines = [f"import numpy as np\nfrom {module} import *\nfrom {module} import {parent}"]
    lines.append(f"class P({rng.choice(('object', *[parent] * 9))}):")
    lines.append(f"    kind: str = {rng.choice(('1', *[repr('p')] * 9))}")
    hooks = [rng.choice(HOOKS[given]) for _ in range(rng.randrange(4))]
    for hook in (HOOKS[given][0], *hooks):
        arguments = rng.choice(("self, *given, **named", "self, *given, **named", "self", "*given"))
        lines.append(f"    def {hook}({arguments}):\n        return {rng.choice(ANSWERS_OF_HOOKS)}")
    lines.append(rng.choice(("", "", "", "", "    needs_sync: bool = 1", "    x: int")))
    Path(f"{name}.py").write_text("\n".join(lines) + "\n")
    if family == "policy" and rng.random() < 0.05:
        return ["policy", "check", f"{name}.py:P"]
    config = {**QUICK, "replicas": 2}
    if family == "autoscaling":
        del config["replicas"]
    fields = {"max_replicas": 3} if family == "autoscaling" else {}
    config[family] = {"kind": f"{name}:P", **fields}
    Path("e.yaml").write_bytes(written("e.yaml", config))
    return ["run", "e.yaml"]


ANSWERS_OF_HOOKS = (
    "-1",
    "0",
    "1",
    "99",
    "None",
    "'a'",
    "1.5",
    "True",
    "[1]",
    "[]",
    "{}",
    "1 // 0",
    "given",
    "given[0]",
    "given[-1]",
    "self",
    "float('nan')",
    "np.ones(3)",
    "np.zeros(1, int)",
    "2**70",
    "np.array(2)",
    "iter([1])",
    "type",
    "lambda *x: 1",
    "[None] * 3",
    "b'x'",
    "exit()",
    "super().x",
)
