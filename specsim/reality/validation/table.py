"""Tables of measured runs: one row per run of a load generator against a server."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specsim.core.columns import first_line, read_columns, table_header
from specsim.core.errors import ConfigError
from specsim.core.settings import nearest
from specsim.reality.validation.bench_result import is_bench_result, read_bench_result
from specsim.reality.validation.measured_run import METRICS, MeasuredLengths, MeasuredRun
from specsim.reality.validation.table_row import TableRow, filled


def read_table(path: Path, given: Mapping[str, str] | None = None) -> list[MeasuredRun]:
    """Return the runs in a table, CSV (gzip or not) or Parquet, or a result of vLLM's benchmark.

    A row that lacks what a simulation takes is returned with its `MeasuredRun.gaps`. Lengths that a
    row lacks are those of rows with the same model, dataset and number of requests.

    Args:
        given: What its empty cells hold, by column.

    Raises:
        SpecsimError: The file cannot be read, or a value is not what its column holds; file, line,
            column, value and rule are named.
    """
    if is_bench_result(path):
        return _completed([read_bench_result(path, given or {})])
    header = table_header(path)
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ConfigError(f"{path}: has two columns '{twice[0]}'; remove or rename one")
    if not set(header) & set(METRICS):
        raise ConfigError(
            f"{path}: has no measured column (found: {', '.join(header) or 'nothing'}); it needs "
            f"at least one of {', '.join(METRICS[:5])}, ..."
        )
    _, words = read_columns(path, (), header)
    rows = zip(*words.values(), strict=True)
    return _completed(
        [
            TableRow(path, line, filled(path, line, cells, given or {})).run()
            for line, row in enumerate(rows, start=first_line(path))
            for cells in (dict(zip(words, map(str.strip, row), strict=True)),)
        ]
    )


def read_lengths(path: Path) -> dict[str, NDArray[np.int64]]:
    """Return the lengths of single requests, shape (n, 2), prompt and answer, by ``run_id``.

    Raises:
        SpecsimError: A column is missing, or the ``request_index`` of a run are not 0, 1, 2, ...
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
    """Return the runs that ``COLUMN=VALUE`` filters keep: any of one column, all columns.

    The filters are given under an option.

    Raises:
        ConfigError: A filter has no ``=``, its column is in no table, or nothing is left.
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
    kept = [run for run in runs if all(_is_any(run.cells.get(c, ""), v) for c, v in wanted.items())]
    if not kept:
        column = next(iter(wanted), "")
        known = list(dict.fromkeys(run.cells.get(column, "") for run in runs))
        raise ConfigError(
            f"{option}: leaves none of {len(runs)} rows; {column} may be "
            f"{', '.join(map(repr, known[:8]))}"
        )
    return kept


def _is_any(cell: str, values: list[str]) -> bool:
    return any(cell == value or _same_number(cell, value) for value in values)


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def with_lengths(runs: Sequence[MeasuredRun], path: Path) -> list[MeasuredRun]:
    """Return the runs with the lengths of single requests that a file has of them.

    Raises:
        SpecsimError: As `read_lengths`; or the file is of other runs, or of more or fewer requests.
    """
    lengths = read_lengths(path)
    if not lengths.keys() & {run.run_id for run in runs}:
        raise ConfigError(f"{path}: has none of the rows' run_id; name the file of these runs")
    for run in runs:
        lens = lengths.get(run.run_id)
        if lens is not None and len(lens) != run.num_prompts:
            raise ConfigError(
                f"{path}: run '{run.run_id}' has {len(lens)} requests, but {run.place} says "
                f"num_prompts = {run.num_prompts}; correct one of them"
            )
    return [replace(run, lens=lengths.get(run.run_id)) for run in runs]


def _completed(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    """Give rows whose cells of lengths are empty those of the same model, dataset and count."""
    alike: dict[tuple[str, ...], list[MeasuredRun]] = {}
    for run in runs:
        alike.setdefault(_requests_of(run), []).append(run)
    return [_completed_run(run, alike[_requests_of(run)]) for run in runs]


def _requests_of(run: MeasuredRun) -> tuple[str, ...]:
    return run.cells.get("model", ""), run.cells.get("dataset", ""), str(run.num_prompts)


def _completed_run(run: MeasuredRun, others: list[MeasuredRun]) -> MeasuredRun:
    changes: dict[str, MeasuredLengths] = {}
    notes = list(run.notes)
    for name, column in (("prompt", "isl"), ("output", "osl")):
        known = [lens for each in others if (lens := getattr(each, name)) is not None]
        is_empty = getattr(run, name) is None and not run.cells.get(column)
        if is_empty and known and run.cells.get("dataset"):
            mean = sum(lens.mean for lens in known) / len(known)
            changes[name] = replace(known[0], mean=mean)
            notes.append(f"{column} is empty: the mean of rows of the same model and dataset")
    output = changes.get("output", run.output)
    if output is not None and output.bounds is None and _differ(output.mean, others):
        changes["output"] = replace(output, differ=True)
        notes.append(
            "answers differ in length, and only their mean is known: evenly from 0.5 to 1.5 of it"
        )
    return replace(run, notes=tuple(notes), **changes)  # type: ignore[arg-type]


def _differ(mean: float, others: list[MeasuredRun]) -> bool:
    """Return whether answers of this mean ended by themselves, not all at the same limit."""
    limits = [each.output.mean for each in others if each.output is not None]
    limits += [float(cell) for each in others if (cell := each.cells.get("osl", "")).isdigit()]
    return not any(limit % 1 == 0 and 0.95 * limit <= mean <= limit for limit in limits)
