"""Results of ``vllm bench serve --save-result`` as rows of a table of measured runs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.reality.validation.measured_run import LATENCIES, MeasuredRun
from specsim.reality.validation.table_row import COLUMNS, TableRow, filled

_NAMES = {
    "model": "model_id",
    "concurrency": "max_concurrency",
    "request_rate": "request_rate",
    "burstiness": "burstiness",
    "num_prompts": "completed",
    "duration_s": "duration",
    "request_throughput": "request_throughput",
    "output_tok_s": "output_throughput",
    "total_input_tokens": "total_input_tokens",
    "total_output_tokens": "total_output_tokens",
    "acceptance_length": "spec_decode_acceptance_length",
    "num_drafts": "spec_decode_num_drafts",
    "num_draft_tokens": "spec_decode_draft_tokens",
    "num_accepted_tokens": "spec_decode_accepted_tokens",
}
"""By column, what vLLM calls it (0.32.0 ``benchmarks/serve.py``)."""
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_RATES = "spec_decode_per_position_acceptance_rates"


def is_bench_result(path: Path) -> bool:
    """Return whether a path is one of such a result, and not of a table."""
    return path.suffix == ".json"


def read_bench_result(path: Path, given: Mapping[str, str]) -> MeasuredRun:
    """Return the run of a result; its counters of drafts, too, are of this run alone.

    What the file does not say, such as the GPU or num_speculative_tokens, are `given` cells, or
    come from ``--metadata COLUMN=VALUE`` of the benchmark.

    Raises:
        ConfigError: It is no such result, or a value is not what it should be.
    """
    result = load_mapping(path, ConfigError)
    for name in ("duration", "completed"):
        if not isinstance(result.get(name), int | float) or not result[name] > 0:
            raise ConfigError(
                f"{path}: {name} = {result.get(name)!r} must be a number above 0, as in a result "
                "of `vllm bench serve --save-result`; give such a file, or a table as CSV"
            )
    cells = filled(path, 1, {"run_id": path.stem, **_cells(result)}, given)
    run = TableRow(path, 1, cells).run()
    lens = _lens(path, result, run.num_prompts)
    failed = result.get("failed") or 0
    notes = (f"{failed} requests failed: they are left out",) if failed else ()
    return replace(run, lens=lens, notes=(*run.notes, *notes))


def _cells(result: Mapping[str, Any]) -> dict[str, str]:
    cells = {name: _text(result[name]) for name in COLUMNS if name in result}
    cells |= {column: _text(result[name]) for column, name in _NAMES.items() if name in result}
    for latency in LATENCIES:
        theirs = "e2el" if latency == "e2e" else latency
        for statistic, name in _STATISTICS.items():
            if (value := result.get(f"{name}_{theirs}_ms")) is not None:
                cells[f"{latency}_{statistic}_ms"] = _text(value)
    rates = result.get(_RATES)
    if isinstance(rates, list) and rates:
        cells["accept_rate_per_pos"] = ";".join(map(str, rates))
        cells.setdefault("num_speculative_tokens", str(len(rates)))
    return cells


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _lens(path: Path, result: Mapping[str, Any], count: int) -> NDArray[np.int64] | None:
    """Return the lengths of the requests that did not fail, if the result has all of them."""
    columns = [result.get(name) for name in ("input_lens", "output_lens")]
    if not all(isinstance(column, list) and column for column in columns):
        return None
    try:
        lens = np.array(list(zip(*columns, strict=True)), dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        lens = np.zeros((0, 2), dtype=np.int64)
    lens = lens[(lens > 0).all(axis=1)]
    if len(lens) != count:
        raise ConfigError(
            f"{path}: input_lens and output_lens must be whole numbers, {count} of them above 0 as "
            "'completed' says; remove both to take their mean"
        )
    return lens
