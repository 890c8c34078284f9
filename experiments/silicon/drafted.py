"""Predict the servers of the sample that drafted with the model's own MTP layer.

    .venv/bin/python experiments/silicon/drafted.py      # beside results.csv: drafted.csv

Which these are, the sample does not tell: `inferencex.drafting`. Nor does it tell acceptance: one
alpha of all positions is chosen for each server, so that TPOT of one load is met (PROTOCOL.md,
claim 9). That load takes part, and is marked.
"""

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from inferencex import Server, clients_of, server_of
from run import METRICS, Row, line_of, measured, measurements, table_options

from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import tables_folder
from specsim.profile.profile import Profile
from specsim.reality.validation.measured_table import runs_of_rows
from specsim.reality.validation.table_replay import Prediction, predict

HERE = Path(__file__).parent
DRAFT_LENS = {"DeepSeek-R1": 2, "Qwen3.5-397B-A17B": 3}
CHOSEN_ON = ("1024", "1024", 4)
HALVINGS = 10


def servers(folder: Path) -> dict[tuple[str, str, str, Server], list[Row]]:
    """Return the rows that drafted, each load once, by line and server; polls are of each row."""
    found = defaultdict[tuple[str, str, str, Server], list[Row]](list)
    for rows in measurements(folder):
        drafted = [row for row in rows if row["drafts"]]
        if drafted:
            server = server_of(drafted[0], folder)._replace(polls=0)
            found[*line_of(drafted[0]), server].append(drafted[0])
    return found


def predicted(rows: list[Row], profile: Profile, folder: Path, alpha: float) -> list[Prediction]:
    """Simulate rows; alpha is the chance of a draft token, if all before it were accepted."""
    k = DRAFT_LENS[rows[0]["model_path"].partition("/")[2]]
    length = sum(alpha**place for place in range(k + 1))
    found = []
    for row in rows:
        server = server_of(row, folder)
        cells = measured(row, server) | {"method": "mtp", "num_speculative_tokens": k}
        [run] = runs_of_rows([cells | {"acceptance_length": f"{length:.6f}"}])
        found += predict([replace(run, engine={**run.engine, **server.engine})], profile)
    return found


def chosen(rows: list[Row], profile: Profile, folder: Path) -> float:
    """Return the alpha with which TPOT of the load that takes part is met."""
    [row] = [row for row in rows if (row["isl"], row["osl"], clients_of(row)) == CHOSEN_ON]
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        alpha = (low + high) / 2
        [each] = predicted([row], profile, folder, alpha)
        is_slow = (each.error("tpot_mean_ms") or 0.0) > 0.0
        low, high = (alpha, high) if is_slow else (low, alpha)
    return (low + high) / 2


def main() -> None:
    folder = tables_folder()
    with (HERE / "drafted.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = ["engine", "model", "gpu", "gpus", "isl", "osl", "clients", "k", "alpha"]
        writer.writerow(["id", *columns, "takes_part", "error_ttft", "error_tpot"])
        for (engine, model, gpu, server), rows in servers(folder).items():
            options = table_options(rows, server, folder)
            profile = TableProfile.of(replace(options, drafts={"mtp": server.model})).profile
            alpha = chosen(rows, profile, folder)
            size = server.tp * server.dp
            for row, each in zip(rows, predicted(rows, profile, folder, alpha), strict=True):
                load = row["isl"], row["osl"], clients_of(row)
                k, part = DRAFT_LENS[model.partition("/")[2]], int(load == CHOSEN_ON)
                said = [k, f"{alpha:.4f}", part]
                errors = [f"{each.error(name) or 0.0:.4f}" for name in METRICS]
                writer.writerow([row["id"], engine, model, gpu, size, *load, *said, *errors])
            file.flush()


if __name__ == "__main__":
    main()
