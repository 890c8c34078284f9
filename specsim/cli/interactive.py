"""The command with a page of its own: ``ui``."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.options import Overrides, Seed, all_overrides, spinner


def ui(
    config: Annotated[
        Path | None,
        typer.Argument(help="The experiment, a YAML file; by default an example on one H100."),
    ] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8437,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, and open nothing.")
    ] = False,
) -> None:
    """Move load, lengths, acceptance, GPU, policy and SLO, and see what comes of it at once.

    A page on this machine, for this machine alone, with nothing from the network. Each move
    simulates 1,000 requests, with the policy and without speculation. Ctrl-C ends it.

    Examples: specsim ui; specsim ui experiment.yaml --port 0
    """
    from specsim.run.experiment import Experiment
    from specsim.show import ui as page

    config = config or Path(page.__file__).with_name("example.yaml")
    playground = page.Playground(Experiment.load(config, all_overrides(overrides, seed)))
    with page.listen(playground, port) as server:
        with spinner("simulating for the first time"):
            server.answer(page.Moved())
        try:
            typer.echo(f"ui: {server.url} (Ctrl-C ends it)")
            if not no_browser:
                webbrowser.open(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ui: ended")
