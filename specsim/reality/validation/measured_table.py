"""Reading measured runs of a load generator from tables and from benchmark results."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.columns import first_line, read_columns, table_header
from specsim.core.errors import ConfigError
from specsim.core.reading import UnreadableError, number_in, parse_json, read_text
from specsim.core.settings import load_mapping, nearest
from specsim.engine.config import EngineConfig
from specsim.reality.validation.measured_run import (
    DESCRIBED,
    LATENCIES,
    METRICS,
    TABLE,
    MeasuredRun,
)
from specsim.reality.validation.table_row import MEAN_ALONE, SEVERAL, STAGES, TableRow, filled

_READ = [*DESCRIBED, *METRICS, "tensor_parallel_size", "match_probability", "mean_match_len"]
_OF_LATENCY = re.compile(
    r"(?:^|[^a-z])(?:ttft|tpot|itl|e2el?|latency|throughput)(?:[^a-z]|$)", re.I
)
_TYPO = 0.85  # similarity of a column's name to a known one from which it counts as misspelt
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}


def read_table(path: Path, given: Mapping[str, str] | None = None) -> list[MeasuredRun]:
    """Return the runs in a table (CSV, gzipped or not, or Parquet) or in benchmark results.

    The benchmark is vLLM's, or SGLang's, whose ``.jsonl`` has one result per line. A row that lacks
    what a simulation needs is returned with its `MeasuredRun.gaps`. Empty cells take the values in
    `given`, by column. Raises a SpecsimError if the file cannot be read, or a value does not fit
    its column.
    """
    is_result = path.suffix == ".json"
    if is_result or (path.suffix == ".jsonl" and "completed" in table_header(path)):
        results = _bench_results(path)
        names = [path.stem, *(f"{path.stem}-{number}" for number in range(2, len(results) + 1))]
        pairs = zip(names, results, strict=True)
        return [_run_of(path, n, *pair, given or {}) for n, pair in enumerate(pairs, start=1)]
    header = table_header(path)
    if path.suffix == ".jsonl":  # results in which texts such as method or version would be ignored
        raise ConfigError(
            f"{path}: lines of JSON are results of a benchmark, which have 'completed'; save a "
            "table as CSV or Parquet"
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ConfigError(f"{path}: has two columns '{twice[0]}'; remove or rename one")
    if not set(header) & set(METRICS):
        raise ConfigError(
            f"{path}: has no measured column (found: {', '.join(header) or 'nothing'}); each row "
            "is a whole run, not a request, and needs, separated by commas, at least "
            f"one of {', '.join(METRICS[:5])}, ..."
        )
    _, words = read_columns(path, (), header)
    rows = (dict(zip(words, row, strict=True)) for row in zip(*words.values(), strict=True))
    return runs_of_rows(list(rows), path, given, first_line(path))


def runs_of_rows(
    rows: Sequence[Mapping[str, object]],
    path: Path = Path("rows"),
    given: Mapping[str, str] | None = None,
    first_line: int = 1,
) -> list[MeasuredRun]:
    """Return the runs in rows with the same columns, like those of a table; see `read_table`.

    Args:
        path: Name of the table in messages; `first_line` is the number of its first row.
    """
    notes = _not_read(rows[0] if rows else ())
    runs = []
    for line, row in enumerate(rows, start=first_line):
        cells = {name: str(cell).strip() for name, cell in row.items()}
        runs.append(TableRow(path, line, filled(path, line, cells, given or {}), [*notes]).run())
    return runs


def _not_read(header: Iterable[str]) -> list[str]:
    """Return a note on columns that are not read though their names look relevant."""
    own = [name for name in header if name not in {*_READ, *SEVERAL, *STAGES}]
    near = {name: get_close_matches(name.lower(), _READ, 1, _TYPO) for name in own}
    return [
        f"column '{name}' is not read"
        + (f"; did you mean '{near[name][0]}'?" if near[name] else "")
        for name in own
        if near[name] or _OF_LATENCY.search(name) or name in EngineConfig.model_fields
    ]


def _bench_results(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file: one, or one per line as ``--append-result`` writes them."""
    try:
        lines = [parse_json(line) for line in read_text(path).splitlines() if line.strip()]
    except (OSError, UnreadableError):
        lines = []  # a single result over several lines, or invalid
    are_results = len(lines) > 1 and all(isinstance(line, dict) for line in lines)
    return lines if are_results else [load_mapping(path, ConfigError)]


def _run_of(
    path: Path, line: int, name: str, result: Mapping[str, Any], given: Mapping[str, str]
) -> MeasuredRun:
    """Return the run of a benchmark result; its draft counters are of this run alone.

    What the result does not contain, such as the GPU or num_speculative_tokens, comes from `given`
    cells or from ``--metadata COLUMN=VALUE`` of the benchmark. Raises a ConfigError if it is no
    such result.
    """
    for field in ("duration", "completed"):
        if not isinstance(result.get(field), int | float) or not result[field] > 0:
            value = f"= {result[field]!r}" if field in result else "is missing: it"
            raise ConfigError(
                f"{path}: {field} {value} must be a number above 0, as in a result of `vllm bench "
                "serve --save-result`; give such a file, a table as CSV, or the folder of a run"
            )
    _check_simulated(path, result)
    own, notes = {"run_id": name, **_cells(result)}, []
    of_drafts = {"num_speculative_tokens", "acceptance_length", "accept_rate_per_pos"}
    if not (own.keys() | given.keys()) & of_drafts:
        if "method" in given:
            notes.append("no spec_decode fields: taken as a run without speculation")
        given = {column: value for column, value in given.items() if column != "method"}
    row = TableRow(path, line, filled(path, line, own, given))
    if strategy := result.get("ramp_up_strategy"):
        row.gaps.append(
            f"ramp_up_strategy = {strategy!r}: a rate that changes cannot be repeated; measure "
            "with a --request-rate, or a --max-concurrency alone"
        )
    run = row.run()
    run = _with_lens(run, _lens(path, result, run.num_prompts))
    if "specsim" in result:
        notes.append(
            "of a simulation: LoRA adapters, arrivals neither Poisson nor gamma, and options of "
            "its engine that no column gives, are not in its result and are left out"
        )
    if failed := result.get("failed"):
        notes.append(f"{failed} requests failed: they are left out")
    is_sglang = "mean_e2e_latency_ms" in result
    return replace(run, notes=(*run.notes, *notes), begins_at_once=is_sglang)


_NO_ROW = (
    "sessions", "pools", "autoscaling", "incidents", "hits", "drafter", "stage_shares",
    "think_time",
)  # fmt: skip
"""Fields of specsim's own block in a result, of runs that no row of a table can describe."""
_SERVER = {
    "max_num_seqs": "max_num_seqs",
    "num_gpu_blocks": "num_gpu_blocks",
    "is_async": "async_scheduling",
}
"""Fields of that block about the server, by the columns of a table."""


def _check_simulated(path: Path, result: Mapping[str, Any]) -> None:
    """Raise a ConfigError if a result is of a simulation that a row cannot repeat."""
    own = result.get("specsim")
    if not isinstance(own, dict):
        return
    found = [name for name in _NO_ROW if own.get(name, 0) != 0]
    if (replicas := own.get("replicas", 1)) != 1:
        found = [f"{replicas} replicas or ranks", *found]
    policy = own.get("policy")
    if isinstance(policy, dict) and policy.get("kind") not in ("off", "static"):
        found.append(f"policy {policy.get('kind')}")
    if found:
        raise ConfigError(
            f"{path}: is of a simulation with {', '.join(found)}, which would be repeated on one "
            "server without; give a result of one replica with a fixed draft length"
        )


def _with_lens(run: MeasuredRun, lens: NDArray[np.int64] | None) -> MeasuredRun:
    notes = run.notes if lens is None else (each for each in run.notes if each != MEAN_ALONE)
    return replace(run, lens=lens, notes=tuple(notes))


def _cells(result: Mapping[str, Any]) -> dict[str, str]:
    cells = {name: _text(result[name]) for name in (*_READ, *SEVERAL, *STAGES) if name in result}
    cells |= {
        column: _text(result[name]) for column, name in TABLE["vllm"].items() if name in result
    }
    own = result.get("specsim")
    if isinstance(own, dict):
        cells |= {column: _text(own[name]) for name, column in _SERVER.items() if name in own}
    for latency in LATENCIES:
        theirs = ("e2el", "e2e_latency") if latency == "e2e" else (latency,)
        for statistic, name in _STATISTICS.items():
            values = (result.get(f"{name}_{each}_ms") for each in theirs)
            if (value := next((v for v in values if v is not None), None)) is not None:
                cells[f"{latency}_{statistic}_ms"] = _text(value)
    if result.get("accept_length") is not None:  # a result of SGLang
        cells["acceptance_length"] = _text(result["accept_length"])
    rates = result.get("spec_decode_per_position_acceptance_rates")
    if isinstance(rates, list) and rates:
        cells["accept_rate_per_pos"] = ";".join(map(str, rates))
        cells.setdefault("num_speculative_tokens", str(len(rates)))
    return cells


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _lens(path: Path, result: Mapping[str, Any], count: int) -> NDArray[np.int64] | None:
    """Return the lengths of the requests that did not fail; None if the result lacks some."""
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


def read_lengths(path: Path) -> dict[str, NDArray[np.int64]]:
    """Return lengths of single requests by ``run_id``, shape (n, 2): prompt, answer.

    Raises a SpecsimError if a column is missing, or a run's ``request_index`` are not 0, 1, 2, ...
    """
    names = ("request_index", "input_len", "output_len")
    columns, words = read_columns(path, names, ("run_id",))
    ids = np.array(words["run_id"])
    found = {}
    for run_id in dict.fromkeys(words["run_id"]):
        rows = np.flatnonzero(ids == run_id)
        index, prompts, outputs = (columns[name][rows] for name in names)
        order = np.argsort(index)
        if not np.array_equal(index[order], np.arange(len(rows))):
            raise ConfigError(
                f"{path}: request_index of run '{run_id}' must be 0 to {len(rows) - 1}, each once; "
                "number its requests in the order in which they were sent"
            )
        lens = np.stack([prompts, outputs], axis=1)[order]
        wrong = np.flatnonzero((lens < 1).any(axis=1) | (lens % 1 != 0).any(axis=1))
        if len(wrong):
            line = int(rows[order[wrong[0]]]) + first_line(path)
            raise ConfigError(
                f"{path}, line {line}: input_len and output_len must be whole numbers of at least "
                "1; leave failed requests out"
            )
        found[run_id] = lens.astype(np.int64)
    return found


def select_rows(
    runs: Sequence[MeasuredRun], filters: Iterable[str], option: str = "--rows"
) -> list[MeasuredRun]:
    """Return the runs that match ``COLUMN=VALUE`` filters: any value of a column, every column.

    Raises a ConfigError, naming `option`, if a filter has no ``=`` or no such column, or keeps
    nothing.
    """
    wanted: dict[str, list[str]] = {}
    for text in filters:
        column, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"{option} {text}: must be COLUMN=VALUE, such as dataset=gsm8k")
        known = list(dict.fromkeys(name for run in runs for name in run.cells))
        if column not in known:
            raise ConfigError(
                f"{option} {text}: no table has a column '{column}'; {nearest(column, known)}"
            )
        wanted.setdefault(column, []).append(value.strip())

    def is_kept(run: MeasuredRun) -> bool:
        for column, values in wanted.items():
            cell, numbers = run.cells.get(column, ""), {*map(number_in, values)} - {None}
            if cell not in values and number_in(cell) not in numbers:
                return False
        return True

    kept = [run for run in runs if is_kept(run)]
    if not kept:
        column = next(iter(wanted), "")
        known = list(dict.fromkeys(run.cells.get(column, "") for run in runs))
        raise ConfigError(
            f"{option}: leaves none of {len(runs):,} rows; {column} may be "
            f"{', '.join(map(repr, known[:8]))}"
        )
    return kept


def with_lengths(runs: Sequence[MeasuredRun], path: Path) -> list[MeasuredRun]:
    """Return the runs with the lengths of single requests in a file.

    Raises a ConfigError if the file is of other runs, or of another number of requests; see
    `read_lengths`.
    """
    lengths = read_lengths(path)
    if not lengths.keys() & {run.run_id for run in runs}:
        raise ConfigError(f"{path}: has none of the rows' run_id; name the file of these runs")
    for run in runs:
        lens = lengths.get(run.run_id)
        if lens is not None and len(lens) != run.num_prompts:
            raise ConfigError(
                f"{path}: run '{run.run_id}' has {len(lens):,} requests, but {run.place} says "
                f"num_prompts = {run.num_prompts}; correct one of them"
            )
    return [_with_lens(run, lengths.get(run.run_id)) for run in runs]
