"""Commands ``trace describe``, ``trace convert`` and ``trace synth``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.terminal import show, spinner

__all__ = ["trace_app"]

trace_app = typer.Typer(
    help="Look at workloads, convert them and make new ones.", no_args_is_help=True
)

TraceFile = Annotated[Path, typer.Argument(help="A workload of any known format.")]


@trace_app.command()
def describe(
    file: TraceFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Print counts, rates, burstiness, length quantiles and the share of reused prefix."""
    from specsim.show.render.traces import description_json, trace_table
    from specsim.workload.describe import describe as describe_trace
    from specsim.workload.readers import read_trace

    with spinner(f"reading {file.name}"):
        description = describe_trace(read_trace(file))
    if as_json:
        typer.echo(json.dumps(description_json(description), indent=1))
    else:
        show(trace_table(description, str(file)))


@trace_app.command()
def convert(
    file: TraceFile,
    out: Annotated[Path, typer.Argument(help="Ends in .parquet, .jsonl or .jsonl.gz.")],
) -> None:
    """Write a workload of any known format in specsim's own."""
    from specsim.workload.readers import read_trace
    from specsim.workload.readers.native import write_trace

    with spinner(f"converting {file.name}"):
        trace = read_trace(file)
        write_trace(trace, out)
    dropped = f", {trace.num_dropped:,} failed requests left out" if trace.num_dropped else ""
    typer.echo(f"{out}: {len(trace):,} requests read as {trace.format}{dropped}")


@trace_app.command()
def synth(
    out: Annotated[Path, typer.Argument(help="Ends in .parquet, .jsonl or .jsonl.gz.")],
    arrivals: Annotated[str, typer.Option(help="Such as gamma:rate=4,burstiness=0.5.")],
    lengths: Annotated[str, typer.Option(help="Such as dataset:name=sharegpt.")],
    num_requests: Annotated[int | None, typer.Option(min=1, help="How many.")] = None,
    duration: Annotated[float | None, typer.Option(help="For how many seconds.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and lengths.")] = 0,
) -> None:
    """Make a workload from an arrival process and a length distribution."""
    from specsim.core.errors import ConfigError
    from specsim.core.settings import validated
    from specsim.workload import WorkloadConfig
    from specsim.workload.readers.native import write_trace

    with validated("trace synth", ConfigError):
        config = WorkloadConfig.model_validate(
            {
                "arrivals": arrivals,
                "lengths": lengths,
                "num_requests": num_requests,
                "duration": duration,
            }
        )
    with spinner(f"writing {out.name}"):
        trace = config.build(seed)
        write_trace(trace, out)
    typer.echo(f"{out}: {len(trace):,} requests")
