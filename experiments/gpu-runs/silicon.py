"""Predict what real vLLM servers took, from kernel tables alone: rows of AIConfigurator's sample.

    .venv/bin/python experiments/gpu-runs/silicon.py --out experiments/gpu-runs/results/silicon.json

Reads systems/silicon_sample.csv of aiconfigurator-core 0.12.0 (TTFT and TPOT of closed loops) and
fits nothing. Of the loads the sample tells sizes and concurrency only. Rows of dated dumps are of
InferenceX, whose lengths are uniform from 0.8 to 1 of the sizes, and whose scripts say how the
servers were started (`STARTED`). Of what AIConfigurator's authors measured themselves lengths are
all the same, and a step has up to 512 + 1,500 tokens more than a prompt, as its generator writes
loads and servers (bench_run.sh.j2, rule_plugin/vllm.rule). Of the others, lengths are taken to be
uniform within 20 % of the sizes.
"""

import argparse
import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import TableOptions, tables_folder
from specsim.reality.validation.measured_table import read_table
from specsim.reality.validation.table_replay import Prediction, Replayer

MODELS = {
    "Qwen/Qwen3-32B": ("qwen3-32b", "bfloat16"),
    "meta-llama/Llama-3.1-70B": ("llama-3.1-70b", "fp8"),
    "nvidia/Llama-3.1-8B-Instruct-FP8": ("llama-3.1-8b", "fp8"),
    "moonshotai/Kimi-K2.5": ("kimi-k2.5", ""),
    "openai/gpt-oss-120b": ("gpt-oss-120b", "mxfp4"),
}
DTYPES = {"fp4": "nvfp4", "fp8": "fp8", "": "bfloat16"}
OF_EXPERTS = {"fp4": "nvfp4_experts", "int4": "int4_experts"}
_FP8_KV = {"kv_dtype": "fp8"}
_MXFP8 = {**_FP8_KV, "kernels": {"moe": "sglang"}}
_EAGER = {**_FP8_KV, "kernels": {"allreduce": "trtllm", "graphs": "decodes"}}
_FUSED = {**_FP8_KV, "kernels": {**_EAGER["kernels"], "quant": "fused"}}
_MARLIN = {"kernels": {"moe": "marlin"}}
_SORTED = {"kernels": {"sampling": "sort"}}
STARTED = {
    ("qwen3-32b", "h100", "bfloat16"): _SORTED,
    ("llama-3.1-70b", "h100", "fp8"): _FP8_KV,
    ("llama-3.1-70b", "h200", "fp8"): _FP8_KV,
    ("llama-3.1-70b", "b200", "fp8"): _FUSED,
    ("llama-3.1-70b", "b200", "nvfp4"): _EAGER,
    ("gpt-oss-120b", "h100", "mxfp4"): _MARLIN,
    ("gpt-oss-120b", "h200", "mxfp4"): _MARLIN,
    ("gpt-oss-120b", "b200", "mxfp4_mxfp8"): _MXFP8,
}
"""What benchmarks/*.sh of github.com/SemiAnalysisAI/InferenceX (70b_fp8_h100_slurm.sh,
gptoss_fp4_h200.sh and their like) set: an 8-bit KV cache, VLLM_MXFP4_USE_MARLIN=1, on B200
FlashInfer's fused all-reduce (TensorRT-LLM's kernel), of 8 bits quantizing fused into attention and
norms, everywhere asynchronous scheduling. For gpt-oss on B200 FlashInfer's experts with 8-bit
inputs (VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1), measured under SGLang; what they return is cut from
3,072 to 2,880 numbers between all-reduce and norm, so that vLLM cannot fuse these."""
REQUESTS_PER_CLIENT = 10
METRICS = ("ttft_mean_ms", "tpot_mean_ms")


def sets(folder: Path) -> dict[tuple[str, str, str, int], list[dict[str, str]]]:
    """Return the rows of one GPU, model, data type and number of GPUs each."""
    found = defaultdict(list)
    with (folder / "silicon_sample.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            is_plain = row["moe_ep_size"] in {"", "0", "1"} and row["mode"] == "agg"
            if row["backend"] == "vllm" and is_plain and row["model_path"] in MODELS:
                model, dtype = MODELS[row["model_path"]]
                if model == "llama-3.1-70b":
                    dtype = DTYPES[row["precision"]]
                elif model == "kimi-k2.5":
                    dtype = OF_EXPERTS[row["precision"]]
                gpu = row["system"].removesuffix("_sxm")
                if (model, gpu) == ("gpt-oss-120b", "b200"):
                    dtype = "mxfp4_mxfp8"
                found[gpu, model, dtype, int(row["tp_size"])].append(row)
    return dict(sorted(found.items()))


def measured(row: dict[str, str]) -> dict[str, object]:
    """Return a row as `specsim validate` reads tables."""
    source = row["silicon_data_source"]
    told = re.search(r"silicon_concurrency=(\d+)", source)
    clients = int(told[1] if told else row["batch_size"])
    is_inferencex = re.search(r"file=20\d\d-|db-dump/20", source) is not None
    is_authors = "aic-auto-gap-analysis" in source
    high = 1.0 if is_inferencex else 1.2

    def lengths(size: int) -> str:
        return str(size) if is_authors else f"uniform {int(0.8 * size)}..{int(high * size)}"

    return {
        "run_id": row["id"],
        "model": row["model_path"],
        "gpu": row["system"].removesuffix("_sxm").upper(),
        "tp": row["tp_size"],
        "engine_version": row["backend_version"] or "0.11",
        "method": "none",
        "num_speculative_tokens": 0,
        "isl": lengths(int(row["isl"])),
        "osl": lengths(int(row["osl"])),
        "concurrency": clients,
        "num_prompts": max(20, REQUESTS_PER_CLIENT * clients),
        "num_warmups": clients,
        "prefix_caching": "off",
        "async_scheduling": "on" if is_inferencex else "",
        "max_num_batched_tokens": int(row["isl"]) + 2012 if is_authors else 8192,
        "ttft_mean_ms": row["silicon_ttft_ms"],
        "tpot_mean_ms": row["silicon_tpot_ms"],
    }


def predicted(profile: TableProfile, rows: list[dict[str, str]]) -> list[Prediction]:
    """Return what a profile says of each row."""
    table = [measured(row) for row in rows]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
        with Replayer(read_table(path), seed=0) as replayer:
            return replayer.predict(profile.profile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder of kernel tables")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", help="only this one")
    parser.add_argument("--predictions", type=Path, help="CSV for measured and predicted values")
    args = parser.parse_args()
    folder = args.tables or tables_folder()
    summary, lines = [], [["id", "isl", "osl", *(f"measured_{name}" for name in METRICS), *METRICS]]
    for (gpu, model, dtype, size), rows in sets(folder).items():
        if args.model not in {None, model}:
            continue
        started = STARTED.get((model, gpu, dtype), {})
        options = TableOptions(
            model, gpu, tensor_parallel_size=size, dtype=dtype, tables=folder, **started
        )
        each_row = predicted(TableProfile.of(options), rows)
        lines += [
            [each.run.run_id, row["isl"], row["osl"], *each.run.measured.values()]
            + [round(each.values[name], 4) for name in METRICS]
            for row, each in zip(rows, each_row, strict=True)
        ]
        found = {name: [each.error(name) or 0.0 for each in each_row] for name in METRICS}
        figures = {
            name: {
                "median": round(float(np.median(np.abs(values))), 4),
                "worst": round(float(np.max(np.abs(values))), 4),
                "bias": round(float(np.median(values)), 4),
            }
            for name, values in found.items()
        }
        summary.append(
            {"gpu": gpu, "model": model, "dtype": dtype, "tp": size, "rows": len(rows), **figures}
        )
        ttft, tpot = (figures[name] for name in METRICS)
        print(
            f"{gpu:6} {model:14} {dtype:9} tp{size} {len(rows):3} rows: "
            f"TPOT {tpot['median']:6.1%} / {tpot['worst']:6.1%} ({tpot['bias']:+.1%})  "
            f"TTFT {ttft['median']:6.1%} / {ttft['worst']:7.1%} ({ttft['bias']:+.1%})",
            flush=True,
        )
    if args.predictions is not None:
        with args.predictions.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(lines)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
