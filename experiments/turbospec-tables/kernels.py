"""What the targets' matrices take by tokens of a step, from kernel tables: writes kernels.csv.

    python experiments/turbospec-tables/kernels.py SYSTEMS

SYSTEMS is the folder `systems` of aiconfigurator-core, or another of its layout.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from servers import HERE, SERVERS

from specsim.hardware import load_model
from specsim.profile.composer import Composer
from specsim.profile.kernel_tables import GpuTables
from specsim.profile.table_options import TableOptions

LONGEST = 8192
"""Tokens of a step; beyond it times go on as they did last."""


def main(tables: Path) -> None:
    """Write a row per target and number of tokens: reading the weights, and all else."""
    with (HERE / "kernels.csv").open("w", newline="") as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(["target", "tokens", "read_us", "compute_us"])
        for server in SERVERS:
            options = TableOptions(
                tables=tables,
                model=server.model,
                gpu=server.gpu,
                tensor_parallel_size=server.tensor_parallel_size,
            )
            composer = Composer(
                load_model(server.model), options, GpuTables(tables, server.gpu, "vllm")
            )
            found = composer.latency()
            head = np.interp(
                found["batched_tokens"], found["head"]["at"], found["head"]["times_us"]
            )
            rows = zip(
                found["batched_tokens"], found["read_us"], found["compute_us"], head, strict=True
            )
            for tokens, read, compute, sampled in rows:
                if tokens <= LONGEST:  # the head reads its weights at one token
                    beyond = compute + sampled - head[0]
                    row = [f"{value:.0f}" for value in (read + head[0], beyond)]
                    lines.writerow([server.target, tokens, *row])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
