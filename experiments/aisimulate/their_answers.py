"""Ask AISimulate what run.py has written down.

    python3.11 -m venv OTHER && OTHER/bin/pip install aisimulate==0.13.0.dev202610270000000085
    .venv/bin/python experiments/aisimulate/run.py --questions questions.jsonl
    OTHER/bin/python experiments/aisimulate/their_answers.py questions.jsonl answers.csv

By its own `run_prediction`, with its defaults but for what the question says. It is asked as
exactly as it can answer: by measured tables alone (`SILICON`), then with its formulas where those
have gaps (`HYBRID`); of models as they are published with the formats of weights and KV cache
named, then without those of weights, then with neither. What it refuses has no numbers, and the
reason in the last column.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aisimulate.config.cli import CorePredictionConfig
from aisimulate.predict import run_prediction
from aisimulate.stack import resolve_runner_factory

BLOCK = 16
METRICS = {
    "output_tok_s": "output_throughput_tok_s",
    "tpot_mean_ms": "mean_tpot_ms",
    "ttft_mean_ms": "mean_ttft_ms",
    "ttft_p50_ms": "median_ttft_ms",
    "e2e_mean_ms": "mean_e2e_latency_ms",
}
WEIGHTS = ("gemm_quant_mode", "moe_quant_mode")

Said = dict[str, Any]


def trace_of(question: Said) -> Iterator[Said]:
    """Yield requests in Mooncake's form; prompts share their first blocks, and no others."""
    common = question["shared_tokens"] // BLOCK
    for number, (prompt, output) in enumerate(question["requests"]):
        blocks = range(-(-prompt // BLOCK))
        yield {
            "request_id": str(number),
            "timestamp": question["arrived_ms"][number] if question["arrived_ms"] else 0,
            "input_length": prompt,
            "output_length": output,
            "hash_ids": [n if n < common else (number + 1) * 1_000_000 + n for n in blocks],
        }


def ways(question: Said) -> Iterator[tuple[str, Said]]:
    """Yield what may be asked, the most exact first: which tables, and the formats named."""
    formats = question["formats"]
    others = {name: text for name, text in formats.items() if name not in WEIGHTS}
    for mode in ("SILICON", "HYBRID"):
        yield mode, formats
        if question["as_published"]:
            yield mode, others
            yield mode, {}


def prediction(question: Said, trace: Path, mode: str, formats: Said) -> Said:
    load: Said = {"type": "trace_timestamps"}
    if not question["arrived_ms"]:
        load = {"type": "concurrency", "concurrency": question["clients"]}
    gpus = question["tensor"] * question["data"]
    worker = {
        "parallelism": {
            "tensor": question["tensor"],
            "attention_data": question["data"],
            "moe_tensor": gpus // question["experts"],
            "moe_expert": question["experts"],
        },
        "scheduler": {
            "max_batched_tokens": question["max_batched_tokens"],
            "max_sequences": question["max_sequences"],
        },
        "kv_cache": {"prefix_caching": question["prefix_caching"]},
        "timing": formats,
    }
    if question["blocks"]:
        worker["kv_cache"] |= {
            "block_size": BLOCK,
            "capacity": {"type": "fixed", "blocks": question["blocks"]},
        }
    engine = {
        "mode": "aggregated",
        "model": question["model"],
        "hardware": question["hardware"],
        "backend": question["backend"],
        "database_mode": mode,
        "workers": {"aggregated": worker},
    }
    if question["speculation"]:
        engine["speculation"] = question["speculation"]
    source = {"type": "trace", "paths": [str(trace)], "format": "mooncake", "block_size": BLOCK}
    config = CorePredictionConfig.model_validate(
        {"traffic": {"source": source, "load": load}, "engine": engine}
    )
    factory = resolve_runner_factory("engine")
    return run_prediction(config, stack="engine", runner_factory=factory).summary


def answer(question: Said, folder: Path) -> list[object]:
    """Return the metrics, by which tables, the formats told, and why not, if none did."""
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(each) + "\n" for each in trace_of(question)))
    draft = question["speculation"] or {}
    if (config := draft.get("draft_config")) and draft["kind"] == "draft_model":
        (folder / "draft").mkdir(exist_ok=True)
        (folder / "draft" / "config.json").write_text(json.dumps(config))
        draft["draft_model_path"] = str(folder / "draft")
    why = ""
    for mode, formats in ways(question):
        try:
            found = prediction(question, trace, mode, formats)
        except Exception as error:
            why = why or " ".join(str(error).split())[:200]
            continue
        told = " ".join(formats.values())
        return [*(f"{found[name]:.6g}" for name in METRICS.values()), mode, told, ""]
    return [*("" for _ in METRICS), "", "", why]


def main() -> None:
    questions, out = (Path(name) for name in sys.argv[1:])
    with (
        tempfile.TemporaryDirectory() as folder,
        questions.open(encoding="utf-8") as lines,
        out.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["set", "id", *METRICS, "tables", "formats", "refused"])
        for line in lines:
            question = json.loads(line)
            writer.writerow([question["set"], question["id"], *answer(question, Path(folder))])
            file.flush()


if __name__ == "__main__":
    main()
