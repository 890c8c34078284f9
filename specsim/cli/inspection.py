"""Commands that show members, the schema, and the results of runs."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from specsim.cli.options import (
    PriceTable,
    check_plot,
    need,
    output_file,
    show,
    spinner,
    warn,
    write_json,
)
from specsim.core.atomic import new_file, packed
from specsim.core.errors import ConfigError, SpecsimError


def list_members(family: str | None = Argument(None, help="Show only this family.")) -> None:
    """Show every member of every family with its fields, and the shipped profiles."""
    from specsim.acceptance.nested import load_preset, preset_names
    from specsim.core.resources import resource_names
    from specsim.core.settings import nearest
    from specsim.hardware import load_gpu, load_model, model_names
    from specsim.show.render.catalogue import FAMILIES, family_table, names_table
    from specsim.workload.lengths.distributions import DATASETS

    if family is not None and family not in FAMILIES:
        raise ConfigError(f"no family '{family}'; {nearest(family, list(FAMILIES))}")
    for name, members in FAMILIES.items():
        if family in (None, name):
            show(family_table(members))
    if family is None:
        presets = {name: load_preset(name).provenance.fitted_to for name in preset_names()}
        show(
            names_table("datasets", {name: stats.source for name, stats in DATASETS.items()}),
            names_table(
                "profiles, as GPU/name", _by_folder(resource_names("profiles", "*/*.yaml"))
            ),
            names_table(
                "GPUs", {n: load_gpu(n).name for n in resource_names("profiles", "*.yaml")}
            ),
            names_table("models", {n: load_model(n).name for n in model_names()}),
            names_table("acceptance presets", presets),
        )


def schema() -> None:
    """Print the JSON schema of an experiment, for editors that complete YAML."""
    from specsim.run.experiment import Experiment

    typer.echo(json.dumps(Experiment.model_json_schema(), indent=2))


def _check_distinct(folders: list[Path]) -> None:
    known: set[Path] = set()
    for folder in folders:
        if folder.resolve() in known:
            raise ConfigError(f"{folder}: is given twice; leave it out once")
        known.add(folder.resolve())


def _check_keeps_results(path: Path, source: str) -> None:
    """Raise an error if a file would overwrite a result of a run."""
    from specsim.results.folder import RESULT_FILES

    if path.name in RESULT_FILES:
        raise ConfigError(f"{source} would replace {path.name}, a result of a run; rename it")


def _labels(folders: list[Path]) -> list[str]:
    resolved = [folder.resolve() for folder in folders]
    shared = Path(os.path.commonpath([folder.parent for folder in resolved]))
    return [str(folder.relative_to(shared)) for folder in resolved]


@contextmanager
def _read_from(*folders: Path) -> Iterator[None]:
    """Turn errors from inconsistent results into one that names their folder.

    Files are checked when read, but not every number of every list; `--debug` shows the error
    itself.
    """
    try:
        yield
    except SpecsimError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        if "--debug" in sys.argv:
            raise
        from specsim.core.blame import fault

        raise ConfigError(
            f"{', '.join(map(str, folders))}: what it holds makes no sense, so it was edited or "
            f"cut short ({fault(error)}); run the experiment again"
        ) from error


def timeline(
    results: list[Path] = Argument(..., help="Folders that run --out wrote."),
    plot: Path | None = Option(
        None, help="Draw it here, .png, .svg or .pdf; by default timeline.png in the only folder."
    ),
    bins: int = Option(200, min=1, max=10_000, help="Bins of the time axis."),
    window: int = Option(10, min=1, help="Bins over which the acceptance is measured."),
    replica: int | None = Option(None, min=0, help="Only this replica, not all of them together."),
) -> None:
    """Draw what runs did over time, one row of panels per folder.

    Batch size and waiting requests, the draft length that the policy asked for, its estimate of
    alpha where it has one, the measured acceptance, output tokens per step and per second. Of
    several replicas, requests waiting and tokens/s are summed, all else is averaged. The series
    stand in a Parquet file beside the plot.
    """
    need("vl_convert", "timeline")
    from specsim.results.folder import load_steps
    from specsim.results.timeline import timeline as binned
    from specsim.results.timeline import write_timelines
    from specsim.show.charts import check_suffix
    from specsim.show.charts.run_plots import plot_timelines

    if plot is None and len(results) > 1:
        raise ConfigError(
            f"timeline of {len(results)} folders: say with --plot where the plot goes"
        )
    plot = plot or results[0] / "timeline.png"
    table = plot.with_suffix(".parquet")
    check_suffix(plot)
    _check_keeps_results(table, f"{plot}: its series")
    _check_distinct(results)
    with spinner("reading the steps"), _read_from(*results):
        timelines = {}
        for label, folder in zip(_labels(results), results, strict=True):
            steps = load_steps(folder)
            steps = steps if replica is None else steps.of_replica(replica)
            timelines[label] = binned(steps, num_bins=bins, window=window)
    with spinner("drawing"), new_file(table) as rows:
        write_timelines(timelines, rows)
        plot_timelines(timelines, plot)
    typer.echo(f"timeline: {plot} and {table.name}")


def breakdown(
    results: Path = Argument(..., help="A folder that run --out wrote."),
    json_out: Path | None = Option(None, "--json", help="Write the numbers here."),
    plot: Path | None = Option(None, help="Draw it here: .png, .svg or .pdf."),
) -> None:
    """Print where the time and the memory of a run went.

    Time: forward passes of the target, drafting, overhead and idling, by batch size. Memory of one
    GPU: weights and KV blocks of target and drafter, and how much of the KV cache was in use.
    """
    from specsim.show.breakdown import break_down
    from specsim.show.render.run_tables import breakdown_tables

    for path, option in ((json_out, "--json"), (plot, "--plot")):
        if path is not None:
            _check_keeps_results(path, f"{option} {path}:")
    check_plot(plot)
    with spinner("reading the results"), _read_from(results):
        found = break_down(results)
    with spinner("writing"), output_file(json_out) as json_file:
        write_json(json_file, found.to_dict())
        if plot is not None:
            from specsim.show.charts.run_plots import plot_breakdown

            plot_breakdown(found, plot, str(results))
    show(*breakdown_tables(found, str(results)))
    for pool, engine in found.engines.items():
        warn([f"{pool} pool: {text}" if pool else text for text in engine.warnings])


def export(
    run: Path = Argument(..., help="A folder that run --out wrote."),
    chrome_trace: Path | None = Option(
        None, help="Write a trace for ui.perfetto.dev; compressed if it ends in .gz."
    ),
    prometheus: Path | None = Option(None, help="Write vLLM's metrics as text."),
    vllm_bench: Path | None = Option(None, help="Write the result file of vllm bench serve."),
    window: str | None = Option(
        None, metavar="START:END", help="Seconds of the run that the trace shows; by default all."
    ),
) -> None:
    """Write a run in the formats of other tools.

    The trace has a process per replica: its steps, its GPU, its requests, and counters of running
    and waiting requests and KV blocks. The metrics are those that vLLM would report after the run,
    in its names, labels and buckets.
    """
    from specsim.show.export import (
        load_folder,
        prometheus_text,
        vllm_bench_result,
        write_chrome_trace,
    )

    named = {"--chrome-trace": chrome_trace, "--prometheus": prometheus, "--vllm-bench": vllm_bench}
    paths = {option: path for option, path in named.items() if path is not None}
    if not paths:
        raise ConfigError(f"export: say what to write: {', '.join(named)}")
    for option, path in paths.items():
        _check_keeps_results(path, f"{option} {path}:")
    if len({path.resolve() for path in paths.values()}) < len(paths):
        raise ConfigError(f"export: {', '.join(paths)} name the same file; give each its own")
    if window is not None and chrome_trace is None:
        raise ConfigError("--window: only --chrome-trace uses it; leave it out")
    span = _window(window)
    with _read_from(run):
        found, experiment = load_folder(run)
        end = float(found.requests["ended_at"].max()) if window is not None else inf
    if span[0] >= end:
        raise ConfigError(f"--window {window}: the run ends at {end:.3f} s; begin before that")
    with spinner("writing"), _read_from(run), ExitStack() as files:
        new = {option: files.enter_context(new_file(path)) for option, path in paths.items()}
        if chrome_trace is not None:
            file, is_packed = new["--chrome-trace"], chrome_trace.suffix == ".gz"
            with packed(file, is_packed=is_packed) as raw, TextIOWrapper(raw, "ascii") as stream:
                count = write_chrome_trace(found, stream, span)
        if prometheus is not None:
            new["--prometheus"].write_text(prometheus_text(found, experiment), encoding="utf-8")
        if vllm_bench is not None:
            new["--vllm-bench"].write_text(json.dumps(vllm_bench_result(found)) + "\n")
    for option, path in paths.items():
        detail = f" ({count:,} events)" if option == "--chrome-trace" else ""
        typer.echo(f"{option[2:]}: {path}{detail}")


def _by_folder(names: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for name in names:
        folder, _, rest = name.partition("/")
        found.setdefault(folder, []).append(rest)
    return {folder: ", ".join(rest) for folder, rest in found.items()}


def _window(text: str | None) -> tuple[float, float]:
    if text is None:
        return 0.0, float("inf")
    start, _, end = text.partition(":")
    try:
        window = (float(start), float(end))
    except ValueError:
        window = (0.0, 0.0)
    if not 0 <= window[0] < window[1]:
        raise ConfigError(f"--window {text}: expected seconds, the start first, such as 10:60")
    return window


Results = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Folder of a sweep (finished or not), a comparison, a run or a capacity plan.",
        show_default=False,
    ),
]


def _load(results: Path, prices: Path | None) -> Any:
    from specsim.show.report import load_study
    from specsim.show.study import with_prices
    from specsim.study.capacity import Prices

    study = load_study(results)
    if study.kind == "capacity":
        if prices is not None:
            raise ConfigError("--prices is not used: a capacity plan has its own")
        return study
    table = Prices.load(prices)
    return with_prices(study, table)


def report(
    results: Results,
    out: Path | None = Option(None, help="The page; by default report.html in DIR."),
    prices: PriceTable = None,
) -> None:
    """Make one HTML page from results: which policy at which load, at what cost, and why.

    The page holds all it needs: it opens without a network, in any browser.
    """
    from specsim.show.report import write_page

    page = out or results / "report.html"
    if page.suffix not in (".html", ".htm"):
        raise ConfigError(f"--out {page}: a page must end in .html; rename it")
    with spinner("reading the results"), _read_from(results):
        study = _load(results, prices)
    with spinner("writing the page"), _read_from(results):
        write_page(study, page)
    size = page.stat().st_size / 1e6
    count = f"{len(study.points):,} of {study.num_expected:,} runs"
    failed = f", {len(study.failed)} failed" if study.failed else ""
    typer.echo(f"report: {page} ({count}{failed}, {size:.1f} MB)")


def plot(
    results: Results,
    out: Path | None = Option(None, help="Folder for the plots; by default DIR/plots."),
    file_format: Literal["svg", "png", "pdf"] = Option(
        "svg", "--format", help="Format of the files."
    ),
    metric: str = Option(
        "mean_e2el_ms", help="What is drawn over load and compared, as in summary.json."
    ),
    where: list[str] | None = Option(
        None, metavar="FIELD=VALUE", help="Only these runs: --where profile=h100."
    ),
    prices: PriceTable = None,
) -> None:
    """Draw the charts of the report for a paper, one file each.

    A metric over load, speed-up, best policy and cost; and for one hardware and load (choose them
    by --where) the latency distributions, the timeline and where the time went.
    """
    need("vl_convert", "plot")
    if out is not None and (suffix := out.suffix.lower().lstrip(".")) in ("svg", "png", "pdf"):
        raise ConfigError(
            f"--out {out}: is the name of a picture, and several are drawn; name a folder, and "
            f"--format {suffix}"
        )
    from specsim.show.charts.study_plots import plot_study
    from specsim.show.study import find_measure, restricted

    with spinner("reading the results"), _read_from(results):
        study, held = restricted(_load(results, prices), where or [])
        measure = find_measure(study, metric)
    with spinner("drawing"), _read_from(results):
        drawn, left_out = plot_study(study, measure, out or results / "plots", f".{file_format}")
    warn([f"only runs with {choice}, for others say --where" for choice in held])
    for path in drawn:
        typer.echo(f"plot: {path}")
    for reason in left_out:
        typer.echo(reason)
