"""Predict what real servers of vLLM and SGLang took, from kernel tables, beside AIConfigurator.

    .venv/bin/python experiments/silicon/run.py

Reads systems/silicon_sample.csv of aiconfigurator-core 0.12.0 (TTFT and TPOT of closed loops) and
fits nothing. Of the loads the sample tells sizes and concurrency only. Rows of dated dumps are of
InferenceX, whose lengths are uniform from 0.8 to 1 of the sizes, and whose scripts say how the
servers were started (`inferencex.py`). Of what AIConfigurator's authors measured themselves lengths
are all the same, and a step of vLLM has up to 512 + 1,500 tokens more than a prompt, as its
generator writes loads and servers (bench_run.sh.j2, rule_plugin/vllm.rule). Of the others, lengths
are taken to be uniform within 20 % of the sizes.
"""

import argparse
import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import numpy as np
from inferencex import Server, clients_of, drafting, server_of, split_of

from specsim.core.errors import SpecsimError
from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import TableOptions, tables_folder
from specsim.profile.profile import Profile
from specsim.reality.validation.measured_run import MeasuredRun
from specsim.reality.validation.measured_table import runs_of_rows
from specsim.reality.validation.table_replay import predict

HERE = Path(__file__).parent
METRICS = ("ttft_mean_ms", "tpot_mean_ms")
METRICS_MS = ("ttft_ms", "tpot_ms")  # as the sample names them
ROUNDED = 0.001
REQUESTS_PER_CLIENT = 10
MOST = 12
"""Loads of a line (engine, model and GPU) that AIConfigurator is asked, which takes long; drawn."""

Row = dict[str, str]


def measurements(folder: Path) -> Iterator[list[Row]]:
    """Yield the rows of each load of a server, which may have been measured several times."""
    found = defaultdict[object, list[Row]](list)
    with (folder / "silicon_sample.csv").open(newline="", encoding="utf-8") as file:
        wanted = [row for row in csv.DictReader(file) if row["backend"] in {"vllm", "sglang"}]
    drafted = drafting(wanted)
    for row in wanted:
        if row["mode"] == "agg":
            load = row["isl"], row["osl"], clients_of(row)
            server = server_of(row, folder), split_of(row)
            row["drafts"] = "mtp" if row["id"] in drafted else ""
            found[(*line_of(row), server, *load)].append(row)
    yield from found.values()


def rows_of(folder: Path) -> list[Row]:
    """Return all rows; of a load that was measured several times the first without drafts."""
    first = (min(rows, key=lambda row: row["drafts"]) for rows in measurements(folder))
    return sorted(first, key=line_of)


def write_repeats(folder: Path, path: Path) -> None:
    """Write by how much measurements of the same load of the same server differ.

    One row for each pair of them; the same numbers under another id, or rounded, are left out.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["engine", "model", "gpu", "ttft", "tpot"])
        for rows in sorted(measurements(folder), key=lambda rows: line_of(rows[0])):
            times = {tuple(float(row[f"silicon_{name}"]) for name in METRICS_MS) for row in rows
                     if not row["drafts"]}  # fmt: skip
            for pair in combinations(sorted(times), 2):
                apart = [max(both) / min(both) - 1 for both in zip(*pair, strict=True)]
                if max(apart) > ROUNDED:
                    writer.writerow([*line_of(rows[0]), *(f"{each:.4f}" for each in apart)])


def line_of(row: Row) -> tuple[str, str, str]:
    return row["backend"], row["model_path"], row["system"]


def drawn(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows that are compared: of each line all, or as many as are drawn."""
    rng = np.random.default_rng(0)
    for _, group in groupby(rows, line_of):
        loads = list(group)
        chosen = (loads[number] for number in sorted(rng.permutation(len(loads))[:MOST].tolist()))
        yield from (row for row in chosen if not row["drafts"])


def is_inferencex(row: Row) -> bool:
    return re.search(r"file=20\d\d-|db-dump/20", row["silicon_data_source"]) is not None


def measured(row: Row, server: Server) -> dict[str, object]:
    """Return a row as `specsim validate` reads tables."""
    is_authors = "aic-auto-gap-analysis" in row["silicon_data_source"]
    clients, high = clients_of(row), 1.0 if is_inferencex(row) else 1.2

    def lengths(size: int) -> str:
        return str(size) if is_authors else f"uniform {int(0.8 * size)}..{int(high * size)}"

    tokens = int(row["isl"]) + 2012 if is_authors and row["backend"] == "vllm" else server.tokens
    return {
        "run_id": row["id"],
        "gpu": row["system"].removesuffix("_sxm").upper(),
        "tp": server.tp,
        "engine_version": row["backend_version"] if row["backend"] == "vllm" else "",
        "method": "none",
        "num_speculative_tokens": 0,
        "isl": lengths(int(row["isl"])),
        "osl": lengths(int(row["osl"])),
        "concurrency": clients,
        "num_prompts": max(20, REQUESTS_PER_CLIENT * clients),
        "num_warmups": clients,
        "prefix_caching": "off",
        "async_scheduling": "on" if is_inferencex(row) and row["backend"] == "vllm" else "",
        "max_num_batched_tokens": tokens,
        **dict(zip(METRICS, (row["silicon_ttft_ms"], row["silicon_tpot_ms"]), strict=True)),
    }


def runs_of(rows: Sequence[Row], server: Server) -> list[MeasuredRun]:
    """Return rows as runs, with what tables of runs have no column for."""
    runs = runs_of_rows([measured(row, server) for row in rows])
    return [replace(run, engine={**run.engine, **server.engine}) for run in runs]


def table_options(rows: Sequence[Row], server: Server, folder: Path) -> TableOptions:
    """Return what a profile of such a server is composed of."""
    return TableOptions(
        server.model,
        rows[0]["system"].removesuffix("_sxm"),
        tensor_parallel_size=server.tp,
        data_parallel_size=server.dp,
        enable_expert_parallel=server.is_expert_parallel,
        dtype=server.dtype,
        kv_dtype=server.kv_dtype,
        engine=server.tables,
        kernels=server.kernels,
        tables=folder,
    )


def built(rows: Sequence[Row], server: Server, folder: Path) -> Profile:
    """Return a profile of such a server."""
    profile = TableProfile.of(table_options(rows, server, folder)).profile
    if server.overlaps_host:  # which the first scheduler of vLLM did not
        overhead = profile.overhead.model_copy(update={"sync_step_ms": profile.overhead.step_ms})
        return profile.model_copy(update={"overhead": overhead})
    return profile


def sets_of(folder: Path, only: str = "") -> dict[tuple[Any, ...], list[Row]]:
    """Return rows by line and server; under vLLM those that are drawn, but of Qwen3-32B all.

    They are drawn from all lines, so that some lines alone have the rows of a whole run.
    """
    rows = rows_of(folder)
    asked = {row["id"] for row in drawn(rows)}
    sets: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if only not in " ".join(line_of(row)) or row["drafts"]:
            continue
        if row["backend"] == "vllm" and row["id"] not in asked and "32B" not in row["model_path"]:
            continue  # which takes long
        sets[*line_of(row), server_of(row, folder)].append(row)
    return sets


def estimates(path: Path) -> dict[str, dict[str, float]]:
    """Return what AIConfigurator says, by row and metric."""
    with path.open(newline="", encoding="utf-8") as file:
        return {
            row.pop("id"): {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        }


def write_loads(rows: Iterable[Row], folder: Path, path: Path) -> None:
    """Write what their_estimates.py asks, with the same servers as here."""
    columns = ("id", "model_path", "system", "backend", "isl", "osl", "gemm_quant_mode")
    own = ("moe_quant_mode", *columns)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*own, "clients", "tp", "dp", "ep", "kv_dtype"])
        writer.writeheader()
        for row in rows:
            server = server_of(row, folder)
            size = server.tp * server.dp
            writer.writerow(
                {name: row[name] for name in own}
                | {"clients": clients_of(row), "tp": server.tp, "dp": server.dp}
                | {"ep": size if server.is_expert_parallel else 1, "kv_dtype": server.kv_dtype}
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder of kernel tables")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv")
    parser.add_argument("--only", help="a part of 'engine model gpu', such as 'sglang'")
    parser.add_argument("--loads", type=Path, help="write what their_estimates.py asks, no more")
    args = parser.parse_args()
    folder = args.tables or tables_folder()
    only = args.only or ""
    if args.loads is not None:
        rows = (row for row in drawn(rows_of(folder)) if only in " ".join(line_of(row)))
        write_loads(rows, folder, args.loads)
        return
    write_repeats(folder, args.out.with_name("repeats.csv"))
    theirs = estimates(HERE / "aiconfigurator.csv")
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["id", "engine", "model", "gpu", "gpus", "dtype", "isl", "osl", "clients"]
            + [f"{who}_{name}" for who in ("error", "aiconfigurator") for name in ("ttft", "tpot")]
        )
        for (engine, model, gpu, server), group in sets_of(folder, only).items():
            head = f"{engine} {model} {gpu} {server.dtype} tp{server.tp} dp{server.dp}"
            try:
                found = predict(runs_of(group, server), built(group, server, folder))
            except SpecsimError as error:
                print(f"{head}: skipped {len(group)} rows: {error}", flush=True)
                continue
            for row, each in zip(group, found, strict=True):
                said = theirs.get(row["id"], {})
                errors = [each.error(name) or 0.0 for name in METRICS]
                others = [
                    f"{said[name] / each.run.measured[name] - 1:.4f}" if said else ""
                    for name in METRICS
                ]
                sizes = [row["isl"], row["osl"], clients_of(row)]
                writer.writerow(
                    [row["id"], engine, model, gpu, server.tp * server.dp, server.dtype, *sizes]
                    + [f"{error:.4f}" for error in errors]
                    + others
                )
            file.flush()
            middle = [float(np.median([abs(each.error(name) or 0) for each in found]))
                      for name in METRICS]  # fmt: skip
            bias = [float(np.median([each.error(name) or 0 for each in found])) for name in METRICS]
            print(
                f"{head}: {len(group)} rows, TTFT {middle[0]:.1%} ({bias[0]:+.1%}), "
                f"TPOT {middle[1]:.1%} ({bias[1]:+.1%})",
                flush=True,
            )


if __name__ == "__main__":
    main()
