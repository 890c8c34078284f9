"""Predict all rows of all servers as built, nothing fitted, and say the errors of each load.

    SPECSIM_DATA=FOLDER python experiments/gpu-runs/measured_loads.py [--tables SYSTEMS]

Writes results/loads.json. The servers of run.py, and two that take part in no fit and no choice of
a rule (`OTHERS`).
"""

import argparse
import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from clean import cleaned
from run import LLAMA, ON_A100, SERVERS, Server, data_folder

from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import TableOptions, tables_folder
from specsim.profile.profile import Profile
from specsim.reality.validation import MeasuredRun, read_table, select_rows
from specsim.reality.validation.prediction_errors import value_of
from specsim.reality.validation.table_replay import Prediction, predict

OUT = Path(__file__).parent / "results" / "loads.json"
MIXED, QWEN = "a100class_suffix-ngram-eagle3.csv", "Qwen/Qwen3-30B-A3B-Instruct-2507"
OF_SERVER = ("tpot_or_itl_mean_ms", "ttft_mean_ms", "e2e_mean_ms")
OTHERS = (
    Server("a100class-llama-3.1-8b", MIXED, (f"model={LLAMA}",), ON_A100, (), OF_SERVER),
    Server(
        "a100class-qwen3-30b-a3b-tp2",
        MIXED,
        (f"model={QWEN}",),
        {
            "model": "qwen3-30b-a3b",
            "gpu": "a100-80gb",
            "tensor_parallel_size": 2,
            "drafts": {"eagle3": "eagle3-qwen3-30b-a3b"},
        },
        (),
        OF_SERVER,
    ),
)


def load_of(server: Server, run: MeasuredRun) -> str:
    """Return clients and data set, or their shared prompt; of a server without cells the method."""
    dataset = run.cells.get("dataset", "").split()[0].split("/")[-1].removesuffix("_shared_prefix")
    if not server.cells:
        return f"{dataset}, {run.method or 'no drafts'}"
    if dataset == "prefix_repetition":
        dataset = f"prompts of {run.cells['isl'].partition(' ')[0]}"
    return f"{run.load}, {dataset}"


def built(server: Server, tables: Path) -> Profile:
    return TableProfile.of(TableOptions(tables=tables, **server.build)).profile


def runs_of(server: Server) -> list[MeasuredRun]:
    with TemporaryDirectory() as folder:
        rows = read_table(cleaned(data_folder() / server.file, Path(folder)))
    return select_rows(rows, server.rows)


def by_load(server: Server, rows: list[Prediction]) -> list[dict[str, object]]:
    """Return the errors of each load, with and without drafts together."""
    loads: dict[str, list[Prediction]] = {}
    for row in rows:
        loads.setdefault(load_of(server, row.run), []).append(row)
    return [
        {
            "server": server.name,
            "load": load,
            "rows": len(members),
            **{metric: found for metric in server.metrics if (found := _error(members, metric))},
        }
        for load, members in loads.items()
    ]


def _error(rows: list[Prediction], metric: str) -> dict[str, object]:
    """Return the middle of the sizes, and the worst with its sign and whose it is."""
    pairs = ((value_of(row, metric), row.run) for row in rows)
    errors = [(found / real - 1, run) for (real, found), run in pairs if real]
    if not errors:
        return {}
    worst, run = max(errors, key=lambda each: abs(each[0]))
    drafts = f"{run.method} k = {run.num_speculative_tokens}" if run.method else "no drafts"
    middle = median(abs(error) for error, _ in errors)
    return {"median": round(middle, 4), "worst": round(worst, 4), "worst_in": drafts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder of kernel tables")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    tables = options.tables or tables_folder()
    found = []
    for server in (*SERVERS, *OTHERS):
        found += by_load(server, predict(runs_of(server), built(server, tables)))
        print(server.name, flush=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
