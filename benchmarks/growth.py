"""What a step costs the simulator: per step and per sequence in it.

    python benchmarks/growth.py          # a minute; writes growth.csv and growth.png

1 to 1,024 sequences that all begin at once and decode side by side, without speculation and with
k = 3, at vLLM's defaults. Counted is the CPU time of the replica alone (`Replica.advance`), the
least of five runs of a million request-steps or more. Then a line is fitted, by relative errors:
seconds = per step + per request-step * sequences.
"""

import csv
import platform
from pathlib import Path
from time import process_time
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from specsim.core.request import Request
from specsim.engine.replica import Replica
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate

HERE = Path(__file__).parent
SIZES = [2**power for power in range(11)]
REQUEST_STEPS = 1_000_000
REPEATS = 5

advance = Replica.advance


def experiment(k: int) -> Experiment:
    return Experiment.parse(
        {
            "workload": {
                "arrivals": {"kind": "burst"},
                "lengths": {"kind": "constant", "prompt": 16, "output": 1},
                "num_requests": 1,
            },
            "engine": {
                "max_num_seqs": 1024,
                "max_num_batched_tokens": 32768,
                "num_gpu_blocks": 200_000,
                "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
            },
            "policy": f"static:k={k}" if k else "off",
            "acceptance": {"kind": "bernoulli", "alpha": 0.7},
            "profile": "h100/llama-3.1-8b",
        },
        "growth",
    )


def measured(wanted: Experiment, size: int) -> float:
    """Return the CPU seconds of a step of so many sequences."""
    output_len = min(100_000, max(1000, REQUEST_STEPS // size))
    requests = [Request(index, 16, output_len) for index in range(size)]
    spent = 0.0

    def timed(replica: Replica, until: float) -> None:
        nonlocal spent
        began = process_time()
        advance(replica, until)
        spent += process_time() - began

    Replica.advance = timed
    try:
        run = simulate(wanted, requests=requests, keeps_steps=False)
    finally:
        Replica.advance = advance
    return spent / int(run.replicas[0].totals["steps"][0])


def main() -> None:
    measured(experiment(0), 1)  # loads what was compiled
    rows: list[dict[str, Any]] = []
    figure, axes = plt.subplots(figsize=(6, 4))
    for k in (0, 3):
        seconds = np.array(
            [min(measured(experiment(k), size) for _ in range(REPEATS)) for size in SIZES]
        )
        # Relative errors: every size counts alike.
        columns = np.stack([np.ones(len(SIZES)), SIZES], axis=1) / seconds[:, np.newaxis]
        (step, request_step), *_ = np.linalg.lstsq(columns, np.ones(len(SIZES)), rcond=None)
        us, ns = step * 1e6, request_step * 1e9
        print(f"k = {k}: {us:.2f} us per step + {ns:.1f} ns per request-step")
        rows += [
            {"k": k, "sequences": size, "us_per_step": f"{value * 1e6:.2f}"}
            for size, value in zip(SIZES, seconds, strict=True)
        ]
        axes.loglog(SIZES, seconds * 1e6, "o", label=f"k = {k}, measured")
        fitted = (step + request_step * np.array(SIZES)) * 1e6
        label = f"{us:.2f} us + {ns:.0f} ns per sequence"
        axes.loglog(SIZES, fitted, "-", label=label)
    axes.set(xlabel="sequences in the step", ylabel="CPU time per step, us")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(HERE / "growth.png", dpi=120)
    with (HERE / "growth.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["k", "sequences", "us_per_step"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
