"""Write what GPUs take to exchange tensors into profiles/<gpu>.yaml, from kernel tables.

python experiments/built-profiles/collectives.py [GPU ...]     # needs the extra `tables`

All-reduces by vLLM's own kernel in a CUDA graph, the other operations by NCCL: each from a table
of that very operation. Sizes that a line between those beside them meets within 2 % are left out.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml

from specsim.core.errors import ProfileError
from specsim.profile.kernel_tables import GpuTables, tables_folder
from specsim.profile.kernel_times import line_of

PROFILES = Path(__file__).parents[2] / "profiles"
GPUS = ("a100-80gb", "b200", "b300", "gb200", "gb300", "h100", "h200", "l40s", "rtx-pro-6000")
VERSIONS = {"rtx-pro-6000": {"allreduce": "vllm/0.19.0"}}
"""Where not the newest is taken. On the RTX PRO 6000 the all-reduces collected with vLLM 0.19.0,
SGLang 0.5.10 and TensorRT-LLM 1.3.0rc10 agree within 3 % (15 GB/s); the newer ones of all three,
of a host whose GPUs copy to each other directly, have 36 GB/s."""
SIZES = range(11, 29)  # powers of two, bytes
OPERATIONS = {
    "all_reduce": ("vllm", "custom_allreduce_perf", {"backend": "vllm_graph"}),
    "all_gather": ("nccl", "nccl_perf", {"op_name": "all_gather", "nccl_dtype": "half"}),
    "reduce_scatter": ("nccl", "nccl_perf", {"op_name": "reduce_scatter", "nccl_dtype": "half"}),
}


def kept(sizes: list[float], us: list[float]) -> Iterator[int]:
    """Yield the places of the sizes that a line from the one before to one after it would miss."""
    start = 0
    yield start
    for end in range(2, len(sizes)):
        between = np.interp(sizes[start:end], [sizes[start], sizes[end]], [us[start], us[end]])
        if np.any(np.abs(between / us[start:end] - 1) > 0.02):
            start = end - 1
            yield start
    yield len(sizes) - 1


def tables_of(gpu: str) -> Iterator[dict[str, object]]:
    """Yield the table of each operation and number of GPUs."""
    for operation, (engine, name, wanted) in OPERATIONS.items():
        table = GpuTables(tables_folder(), gpu, engine, VERSIONS.get(gpu)).table("comm", name)
        for gpus in (2, 4, 8):
            try:
                rows = table.where(operation, num_gpus=gpus, **wanted)
            except ProfileError:
                continue  # not measured
            numbers, us = line_of(rows, "message_size")
            time_of = dict(zip(2 * numbers, us, strict=True))  # two bytes a number
            sizes = [float(1 << power) for power in SIZES if 1 << power in time_of]
            times = [float(f"{time_of[size]:.3g}") for size in sizes]
            places = list(kept(sizes, times))
            yield {
                "operation": operation, "gpus": gpus, "measured": table.source,
                "message_bytes": [int(sizes[place]) for place in places],
                "us": [times[place] for place in places],
            }  # fmt: skip


def main() -> None:
    """Replace the collectives of the files."""
    for gpu in sys.argv[1:] or GPUS:
        path = PROFILES / f"{gpu}.yaml"
        text = re.sub(r"^collectives:\n(?:[ -].*\n)*", "", path.read_text(), flags=re.MULTILINE)
        written = yaml.safe_dump({"collectives": list(tables_of(gpu))}, sort_keys=False, width=100,
                                 default_flow_style=None)  # fmt: skip
        path.write_text(text + written)


if __name__ == "__main__":
    main()
