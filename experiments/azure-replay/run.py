"""The whole Azure 2023 conversation trace on four replicas, with and without speculation.

    SPECSIM_DATA=... python experiments/run.py azure-replay

Writes results.csv beside this file.
"""

import csv
import os
from pathlib import Path

from specsim.api import Experiment, compare, parse_policies

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data"))
FIELDS = (
    *("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms"),
    *("mean_e2el_ms", "p99_e2el_ms", "output_throughput"),
)


def main() -> None:
    trace = DATA / "traces" / "AzureLLMInferenceTrace_conv.csv"
    experiment = Experiment.load(HERE / "experiment.yaml", [f"workload.arrivals.path={trace}"])
    policies = parse_policies(["static:k=1", "static:k=3"])
    comparison = compare(experiment, policies, replications=1, workers=2)
    with (HERE / "results.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["policy", *FIELDS, "speed_up"])
        for result in comparison.results:
            values = [f"{result.mean(field):.3f}" for field in FIELDS]
            writer.writerow([result.label, *values, f"{result.speed_up.mean:.3f}"])


if __name__ == "__main__":
    main()
