"""Ask AIConfigurator 0.12 for TTFT and TPOT of the loads of its sample.

    python -m venv OTHER && OTHER/bin/pip install aiconfigurator==0.12.0
    .venv/bin/python experiments/silicon/run.py --loads loads.csv
    OTHER/bin/python experiments/silicon/their_estimates.py loads.csv aiconfigurator.csv

As its own interface is used (`cli_estimate`, mode agg): the batch is the clients of a rank, bits of
weights are its own guess from the model's name but for what the sample names, and those of the KV
cache are what the scripts say. What it refuses is left out, with its reason on the terminal.
"""

import csv
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from aiconfigurator.cli.api import cli_estimate

logging.disable(logging.WARNING)


# Whose shapes it has without the network.
SHIPPED = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "zhipuai/GLM-5": "zai-org/GLM-5-FP8",
}
QUANT = ("gemm_quant_mode", "moe_quant_mode")


def estimate(load: dict[str, str], quant: Mapping[str, str | None]) -> tuple[float, float]:
    """Return TTFT and TPOT in milliseconds."""
    ranks, experts = int(load["dp"]), int(load["ep"])
    answer = cli_estimate(
        SHIPPED.get(load["model_path"], load["model_path"]),
        load["system"],
        backend_name=load["backend"],
        isl=int(load["isl"]),
        osl=int(load["osl"]),
        batch_size=max(1, int(load["clients"]) // ranks),
        tp_size=int(load["tp"]),
        attention_dp_size=ranks,
        moe_tp_size=int(load["tp"]) * ranks // experts,
        moe_ep_size=experts,
        kvcache_quant_mode="fp8" if load["kv_dtype"] == "fp8" else None,
        **quant,
    )
    return answer.ttft, answer.tpot


def main() -> None:
    loads, out = (Path(name) for name in sys.argv[1:])
    with loads.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "ttft_mean_ms", "tpot_mean_ms"])
        for row in rows:
            for quant in ({name: row[name] or None for name in QUANT}, {}):
                try:
                    found = estimate(row, quant)
                    writer.writerow([row["id"], *(f"{each:.4g}" for each in found)])
                    break
                except Exception as error:
                    print(row["id"], quant, " ".join(str(error).split())[:150], flush=True)
            file.flush()


if __name__ == "__main__":
    main()
