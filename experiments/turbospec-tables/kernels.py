"""What the targets' matrices take by tokens of a step, from kernel tables: writes kernels.csv.

    python experiments/turbospec-tables/kernels.py SYSTEMS

SYSTEMS is the folder `systems` of aiconfigurator-core, or another of its layout.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from servers import BESIDE, HERE, SERVERS

from specsim.hardware import load_model
from specsim.profile.composer import Composer
from specsim.profile.kernel_tables import GpuTables, TableOptions

LONGEST = 8192
"""Tokens of a step; beyond it times go on as they did last."""


def main(tables: Path) -> None:
    """Write a row per target and number of tokens: reading the weights, and all else."""
    with (HERE / "kernels.csv").open("w", newline="") as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(["gpu", "model", "tp", "tokens", "read_us", "compute_us"])
        for server in (*SERVERS, *BESIDE):
            model, gpu, size = server.model, server.gpu, server.tensor_parallel_size
            options = TableOptions(tables=tables, model=model, gpu=gpu, tensor_parallel_size=size)
            composer = Composer(load_model(model), options, GpuTables(tables, gpu, "vllm"))
            found = composer.latency()
            kept = [tokens for tokens in found["batched_tokens"] if tokens < LONGEST]
            read, compute = (
                np.interp([*kept, LONGEST], found["batched_tokens"], found[name])
                for name in ("read_us", "compute_us")
            )
            head = np.interp([*kept, LONGEST], found["head"]["at"], found["head"]["times_us"])
            for row in zip([*kept, LONGEST], read, compute, head, strict=True):
                tokens, *times, sampled = row  # the head reads its weights at one token
                values = (times[0] + head[0], times[1] + sampled - head[0])
                lines.writerow([gpu, model, size, tokens, *(f"{value:.0f}" for value in values)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
