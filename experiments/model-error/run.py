"""Find out by how much built profiles are off, term by term; see PROTOCOL.md.

    SPECSIM_DATA=... python experiments/model-error/run.py

Writes specsim/profile/model_errors.yaml, and coverage.csv beside this file.
"""

import csv
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "gpu-runs"))
from clean import cleaned  # noqa: E402 - beside that experiment
from run import SERVERS, Server, data_folder  # noqa: E402

from specsim.profile.from_tables import TableProfile  # noqa: E402
from specsim.profile.kernel_tables import TableOptions, tables_folder  # noqa: E402
from specsim.profile.model_error import QUANTILE, TERMS, moved  # noqa: E402
from specsim.reality.validation import Replayer, read_table, select_rows  # noqa: E402
from specsim.reality.validation.prediction_errors import OF_TOKENS, value_of  # noqa: E402

OUT = HERE.parents[1] / "specsim" / "profile" / "model_errors.yaml"
METRIC = f"{OF_TOKENS}_mean_ms"
STEP, ROUNDS, START = 0.1, 40, 0.1


class Rows(NamedTuple):
    """Rows of a server."""

    errors: np.ndarray  # (rows,), logarithm of measured over predicted
    answers: np.ndarray  # (rows, terms), derivative of the logarithm of predicted


def rows_of(server: Server) -> Rows:
    """Simulate the rows of a server, as built and with each term moved."""
    profile = TableProfile.of(TableOptions(tables=tables_folder(), **server.build)).profile
    with TemporaryDirectory() as folder:
        rows = read_table(cleaned(data_folder() / server.file, Path(folder)))
    with Replayer(select_rows(rows, server.rows), processes=1) as replayer:
        every = [profile, *(moved(profile, term, STEP) for term in TERMS)]
        found = [[value_of(each, METRIC) for each in replayer.predict(one)] for one in every]
        keys = replayer.keys
    predicted = np.array([[value for _, value in one] for one in found])
    measured = np.array([value for value, _ in found[0]])
    loads = [[n for n, key in enumerate(keys) if key == one] for one in dict.fromkeys(keys)]
    errors = np.log(measured) - np.log(predicted[0])
    answers = (np.log(predicted[1:] / predicted[0]) / STEP).T
    # Repetitions are one simulation, so that their answers are the same.
    return Rows(np.array([errors[load].mean() for load in loads]),
                np.array([answers[load[0]] for load in loads]))  # fmt: skip


def spreads_of(servers: list[Rows]) -> tuple[np.ndarray, float]:
    """Return the spread of each column's number over servers, and of the rest."""
    terms = np.full(servers[0].answers.shape[1], START)
    rest = START
    for _ in range(ROUNDS):
        squares, left, count = np.zeros(len(terms)), 0.0, 0
        for each in servers:
            known = each.answers.T @ each.answers / rest**2 + np.diag(1 / terms**2)
            covariance = np.linalg.inv(known)
            means = covariance @ each.answers.T @ each.errors / rest**2
            squares += means**2 + np.diag(covariance)
            off = each.errors - each.answers @ means
            left += off @ off + np.trace(each.answers @ covariance @ each.answers.T)
            count += len(off)
        terms, rest = np.maximum(np.sqrt(squares / len(servers)), 1e-6), np.sqrt(left / count)
    return terms, float(rest)


def left_out(servers: list[Rows], place: int) -> tuple[np.ndarray, float]:
    """Return which rows of a server lie within 80 %, by the others, and their log density."""
    terms, rest = spreads_of(servers[:place] + servers[place + 1 :])
    own = servers[place]
    widths = np.sqrt((own.answers * terms) ** 2 @ np.ones(len(terms)) + rest**2)
    density = -0.5 * (own.errors / widths) ** 2 - np.log(widths)
    return np.abs(own.errors) <= QUANTILE * widths, float(density.mean())


def main() -> None:
    servers = [rows_of(server) for server in SERVERS]
    plain = [Rows(each.errors, np.ones((len(each.errors), 1))) for each in servers]
    lines, densities = [], {"terms": 0.0, "one": 0.0}
    for place, server in enumerate(SERVERS):
        row = {"server": server.name, "rows": len(servers[place].errors)}
        for name, those in (("terms", servers), ("one", plain)):
            inside, density = left_out(those, place)
            row |= {f"within_{name}": f"{inside.mean():.2f}", f"density_{name}": f"{density:.2f}"}
            densities[name] += density / len(SERVERS)
        row["median_error"] = f"{np.median(np.exp(servers[place].errors) - 1):+.3f}"
        row["answers"] = " ".join(f"{each:.2f}" for each in servers[place].answers.mean(axis=0))
        lines.append(row)
    with (HERE / "coverage.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    terms, rest = spreads_of(servers)
    made = {
        "servers": len(servers),
        "terms": {name: round(float(each), 4) for name, each in zip(TERMS, terms, strict=True)},
        "rest": round(rest, 4),
    }
    OUT.write_text(
        "# Standard deviations over servers, by experiments/model-error/run.py.\n"
        + yaml.safe_dump(made, sort_keys=False)
    )
    for name in ("terms", "one"):
        mean = np.mean([float(row[f"within_{name}"]) for row in lines])
        print(f"{name}: {mean:.0%} within, log density {densities[name]:.2f}")
    print(made)


if __name__ == "__main__":
    main()
