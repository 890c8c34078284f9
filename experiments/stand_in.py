"""Make up data in the shape of those that experiments need and that are no part of the project.

    python experiments/stand_in.py FOLDER     # then SPECSIM_DATA=FOLDER

For whoever wants to run such an experiment without the data: every step of it runs, in small. What
comes out says nothing of the world. Texts are phrases from a list, so that lookups find some; how
many drafts were accepted is drawn; arrivals are those of traces/chat.parquet; the latencies that
TurboSpec published are replaced by what experiments/turbospec-tables predicts; servers are
simulated ones.
"""

import csv
import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.api import read_trace
from specsim.reality.validation import validate
from specsim.results.metrics import Requests

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from kernel_folder import make_kernel_folder, write_csv  # formulas of ours

HERE = Path(__file__).parent
REQUESTS = {"gsm8k": 40, "cnn": 40, "instructcoder": 80, "sharegpt": 60}
QUESTIONS, SESSIONS, TURNS, CALLS = 620, 8, 10, 300
LENGTHS = {"ShareGPT": (60, 40), "Sonnet": (120, 30), "CNN-DailyMail": (200, 30)}
"""Mean tokens of prompts and answers."""
RATE = 0.7
"""Chance that a draft token is accepted, after TurboSpec's tables."""

LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
PRO, RTX = "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA GeForce RTX 4090"
SERVERS = {
    "RTX4090-llama-3.1-8b": (LLAMA, RTX),
    "RTXPRO6000-llama-3.1-8b": (LLAMA, PRO),
    "RTXPRO6000-qwen3-30b-a3b-dp2-ep2": (QWEN, PRO),
}

Rng = np.random.Generator
Row = dict[str, Any]


def make(folder: Path) -> Path:
    """Write all files and return the folder; the same bytes every time."""
    rng = np.random.default_rng(20261123)
    phrases = rng.integers(1000, 9000, (150, 8))
    for name, count in REQUESTS.items():
        rows = (with_drafts(request(phrases, rng, number), rng) for number in range(count))
        write_lines(folder / "tokens" / f"llama31_8b_{name}.jsonl.gz", rows)
    questions = ({**request(phrases, rng, n), "prompt_token_ids": []} for n in range(QUESTIONS))
    write_lines(folder / "tokens" / "bird_sql.jsonl.gz", questions)
    write_lines(folder / "tokens" / "swe_agent.jsonl.gz", turns(phrases, rng))
    write_calls(folder / "traces" / "AzureLLMInferenceTrace_conv.csv")
    write_papers(folder / "papers")
    for name, server in SERVERS.items():
        write_run(folder / "real-runs" / name, server, rng)
    return folder


def text(phrases: NDArray[np.int64], rng: Rng, mean: int) -> list[int]:
    """Return some phrases, one after the other: about so many."""
    chosen: list[int] = (
        phrases[rng.integers(len(phrases), size=1 + rng.poisson(mean))].ravel().tolist()
    )
    return chosen


def request(phrases: NDArray[np.int64], rng: Rng, number: int) -> Row:
    prompt, answer = text(phrases, rng, 12), text(phrases, rng, 5)
    return {"id": str(number), "prompt_token_ids": prompt, "generated_token_ids": answer}


def with_drafts(row: Row, rng: Rng) -> Row:
    """Add, by drafter, the tokens of a step at each position: those accepted and one more."""
    size = len(row["generated_token_ids"])
    lens = {name: rng.geometric(1 - rate, size) for name, rate in (("eagle", 0.6), ("ngram", 0.3))}
    drafts = {
        f"acc_{name}": {"acc_len": np.minimum(9, each).tolist()} for name, each in lens.items()
    }
    return {**row, **drafts}


def turns(phrases: NDArray[np.int64], rng: Rng) -> Iterator[Row]:
    """Yield the turns of sessions: each prompt begins with all that was said before."""
    for session in range(SESSIONS):
        said: list[int] = []
        for turn in range(1, TURNS + 1):
            said = said + text(phrases, rng, 6)
            answer = text(phrases, rng, 4)
            head = {"id": f"{session}-{turn}", "session": f"session {session}", "turn": turn}
            yield {**head, "prompt_token_ids": said, "generated_token_ids": answer}
            said = said + answer


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def write_calls(path: Path) -> None:
    """Write the first requests of our own hour of chat as Azure writes its traces."""
    start, found = datetime(2026, 1, 1), []
    for each in list(read_trace(HERE.parent / "traces" / "chat.parquet").requests())[:CALLS]:
        at = start + timedelta(seconds=each.arrived_at)
        found.append((f"{at:%Y-%m-%d %H:%M:%S.%f}0", each.prompt_len, each.output_len))
    path.parent.mkdir(parents=True)
    write_csv(path, "TIMESTAMP,ContextTokens,GeneratedTokens", found)


def write_papers(folder: Path) -> None:
    """Write TurboSpec's tables 2 to 5 with statistics and latencies of our own."""
    folder.mkdir(parents=True)
    with (HERE / "turbospec-tables" / "predictions.csv").open(newline="") as stream:
        cells = list(csv.DictReader(stream))
    served = sorted({(row["dataset"], row["target"]) for row in cells})
    lens = [(dataset, "-", target, *LENGTHS[dataset]) for dataset, target in served]
    write_csv(
        folder / "turbospec_table2.csv",
        "dataset,draft,target,input_mean,input_std,output_mean,output_std",
        ((*head, prompt, prompt / 2, answer, answer / 2) for *head, prompt, answer in lens),
    )
    rates = ((dataset, "-", target, RATE) for dataset, target in served)
    write_csv(folder / "turbospec_table3.csv", "dataset,draft,target,token_acceptance_rate", rates)
    tables = {
        "turbospec_table4.csv": [row for row in cells if row["hardware"] == "L40S"],
        "turbospec_table5_org_k1.csv": [
            row for row in cells if row["hardware"] != "L40S" and row["config"] in {"Org", "k=1"}
        ],
    }
    for name, rows in tables.items():
        write_csv(folder / name, ",".join(cells[0]), (row.values() for row in rows))


def write_run(path: Path, server: tuple[str, str], rng: Rng) -> None:
    """Write a run that took 2 % longer than simulated by kernel tables that are formulas."""
    model, gpu = server
    has_experts = model == QWEN
    kernels = make_kernel_folder(path / "profile" / ("tp1" if has_experts else ""))
    skews = (
        (regime, n, 1, chunk, 512 if chunk else 0, 100, 200, 100, m, 2 * m, 1.2 * m)
        for regime, chunk in (("pure", 0), ("mixed", 128))
        for n in (2, 16, 64)
        for m in (10.0, 100.0)
    )
    header = "regime,n,nb,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us"
    write_csv(kernels / "skew.csv", header, skews)
    if has_experts:
        with (kernels / "dense.csv").open("a") as stream:
            stream.writelines(f"qk_norm,{tokens},{2 + 0.1 * tokens}\n" for tokens in (1, 256, 2048))
        grid = ((t, e, 10 + e + 0.2 * t) for t in (1, 64, 2048) for e in (8, 128))
        write_csv(kernels / "moe.csv", "tokens,activated_experts,time_us", grid)
    gpus = 2 if has_experts else 1
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 4096}
    ranks = {"data_parallel_size": gpus, "enable_expert_parallel": has_experts}
    meta = {
        "model": model,
        "vllm_version": "0.19.0",
        "engine_kwargs": {**limits, **ranks, "tensor_parallel_size": 1, "kv_cache_dtype": "auto"},
        "kv_cache": {"num_gpu_blocks": 2000, "block_size": 16},
        "hardware": {"device_name": gpu},
    }
    (path / "meta.json").write_text(json.dumps(meta))
    (path / "profile" / "meta.yaml").write_text(f"gpu: {gpu}\nvllm_version: 0.19.0\n")
    arrived, ones = np.cumsum(rng.exponential(0.05, CALLS // 2)), np.ones(CALLS // 2)
    asked = {
        "prompt_len": rng.integers(20, 600, len(ones)),
        "output_len": rng.integers(9, 90, len(ones)),
    }
    write_answers(
        path,
        {**asked, "arrived_at": arrived, "first_token_at": arrived + 1, "ended_at": arrived + 9},
    )
    write_answers(path, validate(path).simulated)


def write_answers(path: Path, run: Requests) -> None:
    """Write when requests were queued and answered, each 2 % later than here."""
    queued = run["arrived_at"]
    first, last = (queued + 1.02 * (run[name] - queued) for name in ("first_token_at", "ended_at"))
    rows = zip(run["prompt_len"], run["output_len"], queued, first, last, strict=True)
    with (path / "requests.jsonl").open("w", encoding="utf-8") as stream:
        for number, (prompt, output, *times) in enumerate(rows):
            lens = {"input_toks": int(prompt), "output_toks": int(output)}
            names = ("queued_ts", "first_token_ts", "last_token_ts")
            at = {name: float(time) for name, time in zip(names, times, strict=True)}
            stream.write(json.dumps({"request_id": f"bench-{number}", **lens, **at}) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
