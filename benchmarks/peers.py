"""Speed and memory of AISimulate on the very requests of W1, W2 and W3, in turn with specsim.

    python benchmarks/peers.py OTHER/bin/aisimulate      # four minutes; writes peers.csv

OTHER is an environment with it (experiments/aisimulate says which). Three runs of each; medians.
It has as many KV blocks as a replica here. With drafts it draws accepted lengths by their mean.
"""

import csv
import json
import statistics
import sys
import tempfile
from pathlib import Path

import yaml
from speed import HERE, POLICIES, SPECSIM, measured

from specsim.acceptance.bernoulli import Bernoulli
from specsim.hardware.specs import load_model
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment

RUNS = 3
BLOCK = 512  # of the trace
HEAD = "eagle3-llama-3.1-8b"


def write_trace(experiment: Experiment, path: Path) -> None:
    """Write the requests in Mooncake's form; no two prompts have a block in common."""
    trace = experiment.workload.build(experiment.seed)
    columns = (trace.arrived_at, trace.prompt_lens, trace.output_lens)
    with path.open("w", encoding="utf-8") as file:
        for number, (arrived, prompt, output) in enumerate(zip(*columns, strict=True)):
            row = {
                "request_id": str(number),
                "timestamp": 1e3 * float(arrived),
                "input_length": int(prompt),
                "output_length": int(output),
                "hash_ids": [number * 1000 + n for n in range(-(-int(prompt) // BLOCK))],
            }
            file.write(json.dumps(row) + "\n")


def prediction(experiment: Experiment, trace: Path, k: int) -> dict[str, object]:
    engine, acceptance = Deployment.of(experiment).engine, experiment.acceptance
    asked: dict[str, object] = {
        "mode": "aggregated",
        "model": "meta-llama/Meta-Llama-3.1-8B",
        "hardware": "h100_sxm",
        "backend": "vllm",
        "workers": {
            "aggregated": {
                "parallelism": {"replicas": experiment.replicas},
                "scheduler": {
                    "max_batched_tokens": engine.max_num_batched_tokens,
                    "max_sequences": engine.max_num_seqs,
                },
                "kv_cache": {
                    "capacity": {"type": "fixed", "blocks": engine.num_gpu_blocks},
                    "block_size": 16,
                },
                "timing": {"gemm_quant_mode": "bfloat16", "kvcache_quant_mode": "bfloat16"},
            }
        },
    }
    if k:
        assert isinstance(acceptance, Bernoulli)
        shape = load_model(HEAD)
        names = (
            *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
            *("num_key_value_heads", "head_dim", "vocab_size"),
        )
        asked["speculation"] = {
            "kind": "eagle3",
            "params": {"num_speculative_tokens": k},
            "draft_config": {name: getattr(shape, name) for name in names},
            "expected_accepted_tokens": sum(acceptance.alpha**place for place in range(1, k + 1)),
        }
    source = {"type": "trace", "paths": [str(trace)], "format": "mooncake", "block_size": BLOCK}
    return {"traffic": {"source": source, "load": {"type": "trace_timestamps"}}, "engine": asked}


def main() -> None:
    [peer] = sys.argv[1:]
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for workload in ("w1", "w2", "w3"):
            path = HERE / f"{workload}.yaml"
            write_trace(Experiment.load(path), folder / "trace.jsonl")
            for policy, k in (("k = 0", 0), ("k = 3", 3)):
                experiment = Experiment.load(path, [POLICIES[policy]])
                asked = folder / "prediction.yaml"
                asked.write_text(yaml.safe_dump(prediction(experiment, folder / "trace.jsonl", k)))
                ours = [*SPECSIM, "run", str(path), "--set", POLICIES[policy], "--out"]
                theirs = [peer, "predict", "--config", str(asked), "--output-dir"]
                pairs = [
                    [
                        measured([*command, str(folder / f"{workload}-{k}-{number}-{who}")])
                        for who, command in enumerate((ours, theirs))
                    ]
                    for number in range(RUNS)
                ]
                for who, found in zip(
                    ("specsim", "aisimulate"), zip(*pairs, strict=True), strict=True
                ):
                    cpu, memory = (statistics.median(each) for each in zip(*found, strict=True))
                    lines.append([workload, policy, who, f"{cpu:.2f}", f"{memory:.0f}"])
                    print(*lines[-1], flush=True)
    with (HERE / "peers.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["workload", "policy", "simulator", "cpu_s", "peak_mib"])
        writer.writerows(lines)


if __name__ == "__main__":
    main()
