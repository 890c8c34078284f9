"""Build a profile per server, fit it to a few cells, and compare with all its other runs.

    SPECSIM_DATA=FOLDER python experiments/gpu-runs/run.py [--tables SYSTEMS]

FOLDER holds gpu-runs/*.csv; SYSTEMS is the folder `systems` of aiconfigurator-core, if it is not
installed. Writes
results/errors.json (our own figures: errors, parameters), and with --predictions FOLDER what was
measured and predicted of each row, which is not part of the project.
"""

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from clean import cleaned

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError, SpecsimError
from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import TableOptions, tables_folder
from specsim.reality.profile_fit.run_fit import DEVIATIONS, RunFit, fit_runs
from specsim.reality.validation import MeasuredRun, TableErrors, read_table, select_rows

HERE = Path(__file__).parent
OUT = HERE / "results" / "errors.json"
A100, H100 = "a100_llama-3.1-8b_eagle3.csv", "h100_qwen3-8b_eagle3.csv"
H200, NVL = "h200_gpt-oss-120b_eagle3.csv", "h100nvl_gemma-4-31b_mtp.csv"
RANDOM = "random tokens (InferenceX benchmark_serving, seed 0)"
PREFIX = "prefix_repetition (1 shared prefix)"
GSM8K = 'gsm8k {"n_shot": 8}'
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
AWQ = "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4"
LLAMA_HEAD = {"eagle3": "eagle3-llama-3.1-8b"}
FULL = {"eagle3": str(HERE / "eagle3-qwen3-8b-full-vocabulary.json")}
COMPRESSED = {"eagle3": "eagle3-qwen3-8b"}
HEADS = "own EAGLE-3 head: /data/hw3/output/"
NONE_OR_FULL = ("draft_model=", f"draft_model={HEADS}checkpoints/checkpoint_best")
NONE_OR_COMPRESSED = (
    "draft_model=",
    f"draft_model={HEADS}checkpoints_compressed_vocab/checkpoint_best",
)
ONLY_TOKENS = ("tpot_or_itl_mean_ms", "itl_p50_ms")
"""Where compile time lies in the first TTFTs."""


@dataclass(frozen=True)
class Cell:
    """A load with or without speculation; its repetitions belong to it."""

    clients: int
    k: int
    dataset: str
    prompt: str = ""
    """As in the column isl, where one data set has prompts of several lengths."""

    def holds(self, run: MeasuredRun) -> bool:
        """Return whether a run is one of it."""
        own = (run.concurrency, run.num_speculative_tokens, run.cells.get("dataset", ""))
        is_alike = not self.prompt or self.prompt == run.cells.get("isl", "")
        return is_alike and own == (self.clients, self.k, self.dataset)

    def __str__(self) -> str:
        of = f"{self.dataset}, {self.prompt}" if self.prompt else self.dataset
        return f"{of}, C = {self.clients}, k = {self.k}"


@dataclass(frozen=True)
class Server:
    """A measured server, the profile that it is built from, and the cells that are fitted."""

    name: str
    file: str
    rows: tuple[str, ...]
    build: dict[str, Any]
    cells: tuple[Cell, ...]
    metrics: tuple[str, ...] = tuple(DEVIATIONS)
    requests: str | None = None
    """File with the lengths of single requests."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of `fit_runs`."""


def _loads(*pairs: tuple[int, int], dataset: str = GSM8K) -> tuple[Cell, ...]:
    return tuple(Cell(clients, k, dataset) for clients, k in pairs)


def _lengths(*ks: int) -> tuple[Cell, ...]:
    return tuple(Cell(8, k, "philschmid/mt-bench (80 prompts)") for k in ks)


def _contexts(*pairs: tuple[int, int]) -> tuple[Cell, ...]:
    return tuple(Cell(256, k, PREFIX, f"{prefix} shared prefix + 96 suffix") for prefix, k in pairs)


ON_A100 = {"model": "llama-3.1-8b", "gpu": "a100-80gb", "drafts": LLAMA_HEAD}
ON_H100 = {
    "model": "qwen3-8b",
    "gpu": "h100",
    "kernels": {"sampling": "triton"},  # top-k and top-p of its generation_config, vLLM 0.20
}
ON_NVL = {
    "model": "gemma-4-31b",
    "gpu": "h100-nvl",
    "tables_of": "h100",  # no table is of an H100 NVL
    "dtype": "fp8",
    "drafts": {"mtp": "gemma-4-31b-assistant"},
}
SERVERS = (
    Server(
        "a100-llama-3.1-8b-fp16",
        A100,
        (f"model={LLAMA}", "quantisation=weights fp16, kv fp16"),
        ON_A100,
        _loads((1, 5), (8, 0), (64, 5)),
    ),
    Server(
        "a100-llama-3.1-8b-fp16-kv-fp8",
        A100,
        (f"model={LLAMA}", "quantisation=weights fp16, kv fp8"),
        # No table of an A100 has 8 bits: attention of decodes is for the fit to find.
        {**ON_A100, "kernels": {"drafts": "flashinfer"}},
        _loads((1, 5), (8, 0), (64, 5)),
    ),
    Server(
        "a100-llama-3.1-8b-w4a16",
        A100,
        (f"model={AWQ}", "quantisation=weights w4a16, kv fp16"),
        {**ON_A100, "dtype": "int4"},
        _loads((1, 0), (8, 0), (64, 0)),
    ),
    Server(
        "h100-qwen3-8b-bf16-full",
        H100,
        ("quantisation=BF16", *NONE_OR_FULL),
        {**ON_H100, "drafts": FULL},
        _lengths(0, 2, 4),
        ONLY_TOKENS,
    ),
    Server(
        "h100-qwen3-8b-fp8-full",
        H100,
        ("quantisation=FP8 dynamic weights", *NONE_OR_FULL),
        {**ON_H100, "dtype": "fp8", "drafts": FULL},
        _lengths(0, 2, 4),
        ONLY_TOKENS,
    ),
    Server(
        "h100-qwen3-8b-fp8-compressed",
        H100,
        ("quantisation=FP8 dynamic weights", *NONE_OR_COMPRESSED),
        {**ON_H100, "dtype": "fp8", "drafts": COMPRESSED},
        _lengths(0, 1, 3),
        ONLY_TOKENS,
    ),
    Server(
        "h200-gpt-oss-120b",
        H200,
        (),
        {
            "model": "gpt-oss-120b",
            "gpu": "h200",
            "dtype": "mxfp4",
            "kernels": {"moe": "marlin"},  # as its environment says
            "drafts": {"eagle3": "eagle3-gpt-oss-120b"},
        },
        _loads((1, 1), (8, 0), (64, 1), dataset=RANDOM),
    ),
    Server(
        "h100nvl-gemma-4-31b",
        NVL,
        ("concurrency=11", "method_as_written=none", "method_as_written=mtp"),
        ON_NVL,
        _loads((11, 0), (11, 2), (11, 7), dataset=PREFIX),
    ),
    Server(
        "h100nvl-gemma-4-31b-256",
        NVL,
        (
            *("concurrency=256", "method_as_written=none"),
            "method_as_written=mtp (dynamic-SD schedule fixed K=3)",
        ),
        ON_NVL,
        _contexts((400, 3), (900, 0), (4000, 3)),
    ),
)
"""The cells were chosen before any of the runs had been simulated with a fit: see README.md."""


def main() -> None:
    """Fit all servers, or those that are named, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder of kernel tables")
    parser.add_argument("--server", action="append", choices=[each.name for each in SERVERS])
    parser.add_argument("--predictions", type=Path, help="CSV for measured and predicted values.")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    data = data_folder()
    tables = options.tables or tables_folder()
    if not tables.is_dir():
        raise ConfigError(f"--tables {tables}: is no folder; name that of the kernel tables")
    wanted = [each for each in SERVERS if not options.server or each.name in options.server]
    found = {each.name: _fitted(each, data, tables) for each in wanted}
    summary = {each.name: _summary(each, found[each.name]) for each in wanted}
    with new_file(options.out, is_own=options.out == OUT) as file:
        file.write_text(json.dumps(summary, indent=1) + "\n")
    if options.predictions is not None:
        with new_file(options.predictions) as file, file.open("w", newline="") as stream:
            csv.writer(stream).writerows(_lines(found))
    for name, each in summary.items():
        print(_told(name, each))


def data_folder() -> Path:
    given = os.environ.get("SPECSIM_DATA")
    if given is None or not (folder := Path(given) / "gpu-runs").is_dir():
        raise ConfigError(
            f"SPECSIM_DATA = {given!r}: has no folder gpu-runs; set it to that of the measured runs"
        )
    return folder


def _fitted(server: Server, data: Path, tables: Path) -> RunFit:
    start = TableProfile.of(TableOptions(tables=tables, **server.build)).profile
    with TemporaryDirectory() as folder:
        rows = read_table(cleaned(data / server.file, Path(folder)))
    runs = select_rows(rows, server.rows)
    fitted = [run for run in runs if any(cell.holds(run) for cell in server.cells)]
    held_out = [run for run in runs if run not in fitted]
    return fit_runs(
        start,
        fitted,
        held_out,
        metrics=server.metrics,
        processes=os.cpu_count() or 1,
        **server.options,
    )


def _summary(server: Server, found: RunFit) -> dict[str, Any]:
    told = found.to_dict()
    rows = {"fitted": len(found.fitted[0]), "held_out": len(found.held_out[0])}
    pairs = {"before": 0, "after": 1}
    return {
        "fitted_cells": [str(cell) for cell in server.cells],
        "rows": rows,
        "num_evaluations": told["num_evaluations"],
        "parameters": told["parameters"],
        "errors": {
            group: {when: _errors(each, server.metrics) for when, each in errors.items()}
            for group, errors in told["errors"].items()
        },
        "speculation": {when: _speed_ups(server, found, place) for when, place in pairs.items()},
    }


def _errors(errors: list[dict[str, Any]], metrics: tuple[str, ...]) -> dict[str, Any]:
    return {
        each["metric"]: {
            "runs": each["count"],
            **{name: round(each[name], 4) for name in ("median_abs", "worst_abs", "median")},
            "worst_in": each["worst_run"],
        }
        for each in errors
        if each["metric"] in metrics
    }


def _speed_ups(server: Server, found: RunFit, place: int) -> dict[str, Any]:
    """Return errors of speed-ups of which a side was held out, and of the best k of all rows."""
    fitted, held_out = found.fitted[place], found.held_out[place]
    speed = "tpot_mean_ms" if server.metrics == ONLY_TOKENS else None
    unseen = [each for each in fitted if not _has_both_sides(server, each.run)]
    ups = TableErrors.of([*unseen, *held_out], speed).speed_ups
    best = TableErrors.of([*fitted, *held_out], speed).best
    shares = [abs(each.predicted / each.measured - 1) for each in ups]
    return {
        "speed_ups": len(shares),
        "median_abs": round(median(shares), 4) if shares else None,
        "worst_abs": round(max(shares), 4) if shares else None,
        "right_sign": sum(each.agrees for each in ups),
        "loads_with_a_choice": len(best),
        "best_k_slower_by": round(max((each.loss for each in best), default=0.0), 4),
    }


def _has_both_sides(server: Server, run: MeasuredRun) -> bool:
    """Return whether a run with drafts was fitted, and the one without at its load, too."""
    alike = [
        cell for cell in server.cells if replace(cell, k=run.num_speculative_tokens).holds(run)
    ]
    return run.num_speculative_tokens > 0 and any(cell.k == 0 for cell in alike)


def _lines(found: dict[str, RunFit]) -> Iterator[list[Any]]:
    yield ["server", "group", "run_id", "metric", "measured", "start", "fitted"]
    for server, fit in found.items():
        for group, (before, after) in (("fitted", fit.fitted), ("held_out", fit.held_out)):
            for old, new in zip(before, after, strict=True):
                for metric, measured in old.run.measured.items():
                    values = [f"{each.values[metric]:.6g}" for each in (old, new)]
                    yield [server, group, old.run.run_id, metric, measured, *values]


def _told(name: str, summary: dict[str, Any]) -> str:
    lines = [
        f"{name}: {summary['rows']['fitted']} rows fitted, {summary['rows']['held_out']} held out"
    ]
    for group, errors in summary["errors"].items():
        for metric, after in errors["after"].items():
            before = errors["before"][metric]
            pairs = (
                f"{100 * e['median_abs']:5.1f} /{100 * e['worst_abs']:5.1f} %"
                for e in (before, after)
            )
            lines.append(f"  {group:9} {metric:22} {' -> '.join(pairs)}")
    lines.append(f"  speculation {summary['speculation']['after']}")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except SpecsimError as error:
        sys.exit(f"run.py: {error}")
