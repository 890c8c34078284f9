"""What verification, drafting and overhead take of a speculative step, by batch size.

    python experiments/run.py specdecode-bench-shares

Writes results.csv beside this file.
"""

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

from specsim.api import Experiment, Summary, simulate
from specsim.results.folder import StepsTable, load_steps
from specsim.results.timeline import time_use

HERE = Path(__file__).parent
BATCH_SIZES = (1, 8, 16, 32, 64)
METHODS = ("eagle3", "ngram")
DRAFT_LENS = (1, 3, 5)


def full_decodes(steps: StepsTable, size: int) -> StepsTable:
    """The steps that decode all sequences and prefill none."""
    rows = (steps["num_requests"] == size) & (steps["prefill_tokens"] == 0)
    columns = {name: values[rows] for name, values in steps.columns.items()}
    return StepsTable(columns, steps.provenance)


def shares(base: Experiment, method: str, size: int, k: int) -> dict[str, float]:
    speculative = {"method": method, "num_speculative_tokens": k}
    experiment = base.replace(
        engine={**base.engine.model_dump(exclude_unset=True), "speculative_config": speculative},
        workload={**base.workload.model_dump(exclude_unset=True), "num_requests": size},
        policy=f"static:k={k}",
    )
    with TemporaryDirectory() as folder:
        Summary(simulate(experiment)).save(Path(folder))
        return time_use(full_decodes(load_steps(Path(folder)), size), 1).overall.parts


def main(out: Path = HERE, sizes: tuple[int, ...] = BATCH_SIZES) -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    with (out / "results.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["method", "k", "batch_size", "verification", "draft", "overhead", "idle"])
        for method in METHODS:
            for k in DRAFT_LENS:
                for size in sizes:
                    found = shares(base, method, size, k)
                    writer.writerow([method, k, size, *(f"{x:.4f}" for x in found.values())])


if __name__ == "__main__":
    main()
