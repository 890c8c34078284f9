"""Command ``export``."""

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Annotated

import typer

from specsim.cli.terminal import spinner

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(help="A folder that run --out wrote.", show_default=False)],
    chrome_trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a trace for ui.perfetto.dev; compressed if it ends in .gz.",
            show_default=False,
        ),
    ] = None,
    prometheus: Annotated[
        Path | None, typer.Option(help="Write vLLM's metrics as text.", show_default=False)
    ] = None,
    vllm_bench: Annotated[
        Path | None,
        typer.Option(help="Write the result file of vllm bench serve.", show_default=False),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="START:END", help="Seconds of the run that the trace shows; by default all."
        ),
    ] = None,
) -> None:
    """Write a run in the formats of other tools.

    The trace has a process per replica: its steps, its GPU, its requests, and counters of running
    and waiting requests and KV blocks. The metrics are those that vLLM would report after the run,
    in its names, labels and buckets.
    """
    from specsim.cli.inspection import check_keeps_results
    from specsim.core.atomic import new_file
    from specsim.core.errors import ConfigError
    from specsim.show.export import (
        load_folder,
        prometheus_text,
        vllm_bench_result,
        write_chrome_trace,
    )

    named = {
        "--chrome-trace": chrome_trace,
        "--prometheus": prometheus,
        "--vllm-bench": vllm_bench,
    }
    paths = {option: path for option, path in named.items() if path is not None}
    if not paths:
        raise ConfigError(f"export: say what to write: {', '.join(named)}")
    for option, path in paths.items():
        check_keeps_results(path, f"{option} {path}:")
    if len({path.resolve() for path in paths.values()}) < len(paths):
        raise ConfigError(f"export: {', '.join(paths)} name the same file; give each its own")
    if window is not None and chrome_trace is None:
        raise ConfigError("--window: only --chrome-trace uses it; leave it out")
    span = _window(window)
    found, experiment = load_folder(run)
    with spinner("writing"), ExitStack() as files:
        new = {option: files.enter_context(new_file(path)) for option, path in paths.items()}
        if chrome_trace is not None:
            compressed = chrome_trace.suffix == ".gz"
            with _opened(new["--chrome-trace"], compressed=compressed) as stream:
                count = write_chrome_trace(found, stream, span)
        if prometheus is not None:
            new["--prometheus"].write_text(prometheus_text(found, experiment), encoding="utf-8")
        if vllm_bench is not None:
            new["--vllm-bench"].write_text(json.dumps(vllm_bench_result(found)) + "\n")
    for option, path in paths.items():
        detail = f" ({count:,} events)" if option == "--chrome-trace" else ""
        typer.echo(f"{option[2:]}: {path}{detail}")


@contextmanager
def _opened(path: Path, *, compressed: bool) -> Iterator[IO[str]]:
    with path.open("wb") as file:
        if not compressed:
            with TextIOWrapper(file, "ascii") as stream:
                yield stream
        else:  # without name and time, which would differ from run to run
            with (
                gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
                TextIOWrapper(packed, "ascii") as stream,
            ):
                yield stream


def _window(text: str | None) -> tuple[float, float]:
    from specsim.core.errors import ConfigError

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
