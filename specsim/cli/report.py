"""Commands that make something to look at from results: ``report`` and ``plot``."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specsim.cli.terminal import spinner, warn

__all__ = ["plot", "report"]


Results = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Folder of a sweep (finished or not), a comparison, a run or a capacity plan.",
        show_default=False,
    ),
]

PriceTable = Annotated[
    Path | None,
    typer.Option(
        help="Price per GPU and hour, YAML; by default dated examples of list prices.",
        show_default=False,
    ),
]


def _load(results: Path, prices: Path | None) -> Any:
    from specsim.core.errors import ConfigError
    from specsim.show.report import load_study
    from specsim.show.report.study import with_prices
    from specsim.study.capacity.prices import Prices

    study = load_study(results)
    if study.kind == "capacity":
        if prices is not None:
            raise ConfigError("--prices is not used: a capacity plan has its own")
        return study
    table = Prices.load(prices)
    return with_prices(study, table.per_gpu_hour, currency=table.currency, date=table.date)


def report(
    results: Results,
    out: Annotated[
        Path | None,
        typer.Option(help="The page; by default report.html in DIR.", show_default=False),
    ] = None,
    prices: PriceTable = None,
) -> None:
    """Make one HTML page from results: which policy at which load, at what cost, and why.

    The page holds all it needs: it opens without a network, in any browser.
    """
    from specsim.core.errors import ConfigError
    from specsim.show.report import write_page

    page = out or results / "report.html"
    if page.suffix not in (".html", ".htm"):
        raise ConfigError(f"--out {page}: a page must end in .html; rename it")
    with spinner("reading the results"):
        study = _load(results, prices)
    with spinner("writing the page"):
        write_page(study, page)
    size = page.stat().st_size / 1e6
    count = f"{len(study.points):,} of {study.num_expected:,} runs"
    failed = f", {len(study.failed)} failed" if study.failed else ""
    typer.echo(f"report: {page} ({count}{failed}, {size:.1f} MB)")


def plot(
    results: Results,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the plots; by default DIR/plots.", show_default=False),
    ] = None,
    file_format: Annotated[
        Literal["svg", "png", "pdf"], typer.Option("--format", help="Of the files.")
    ] = "svg",
    metric: Annotated[
        str, typer.Option(help="What is drawn over load and compared, as in summary.json.")
    ] = "mean_e2el_ms",
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="Only these runs: --where profile=h100."),
    ] = None,
    prices: PriceTable = None,
) -> None:
    """Draw the charts of the report for a paper, one file each.

    Over load, speed-up, best policy, cost; and of one hardware and load (choose them by --where)
    the latency distributions, the timeline and where the time went.
    """
    from specsim.show.plots.study import plot_study
    from specsim.show.report.cells import find_measure, restricted

    with spinner("reading the results"):
        study, held = restricted(_load(results, prices), where or [])
        measure = find_measure(study, metric)
    with spinner("drawing"):
        drawn, left_out = plot_study(study, measure, out or results / "plots", f".{file_format}")
    warn([f"only runs with {choice}, for others say --where" for choice in held])
    for path in drawn:
        typer.echo(f"plot: {path}")
    for reason in left_out:
        typer.echo(reason)
