"""The command line.

Functions here do nothing but read arguments and show results. They import late, and only they may:
``specsim --version`` starts in a fraction of what a simulation has to load.
"""

import os
from typing import Annotated

import typer

from specsim.cli.calibration import calibrate
from specsim.cli.inspection import breakdown, export, list_members, plot, report, schema, timeline
from specsim.cli.interactive import ui
from specsim.cli.policies import policy_app
from specsim.cli.profiles import profile_app
from specsim.cli.reality import acceptance_app, observe, parity, validate
from specsim.cli.simulation import ManyPolicies, compare, run, sweep
from specsim.cli.studies import capacity, gate, tune
from specsim.cli.traces import draft_eval, tokens_app, trace_app
from specsim.core.atomic import track_inputs
from specsim.core.version import __version__, foreign

__all__ = ["app"]

app = typer.Typer(
    help="Simulate LLM serving with speculative decoding: which policy, which k, at which load.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command(cls=ManyPolicies)(compare)
app.command()(sweep)
app.command(cls=ManyPolicies)(capacity)
app.command()(tune)
app.command()(gate)
app.command("draft-eval")(draft_eval)
app.command()(report)
app.command()(ui)
app.command()(plot)
app.command()(timeline)
app.command()(breakdown)
app.command()(export)
app.command()(calibrate)
app.command()(observe)
app.command()(validate)
app.command()(parity)
app.add_typer(policy_app, name="policy")
app.add_typer(profile_app, name="profile")
app.add_typer(acceptance_app, name="acceptance")
app.add_typer(trace_app, name="trace")
app.add_typer(tokens_app, name="tokens")
app.command("list")(list_members)
app.command()(schema)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specsim {__version__}")
        if why := foreign():
            typer.echo(f"warning: {why}", err=True)
        raise typer.Exit


_SMALL = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy starts a thread per core, for matrices that no run has
    "PYDANTIC_DISABLE_PLUGINS": "__all__",  # looked for in every package that is installed
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # takes what the simulation has freed, not 10 MiB more
}
"""What libraries read when they are imported, unless the user has set it."""
_MEASURING = ("calibrate", "observe")  # of which another program's libraries would see it


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    large: Annotated[
        bool, typer.Option("--large", help="Let runs begin however large they are.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Let outputs replace files that specsim did not write.")
    ] = False,
) -> None:
    """Read the options that come before the command."""
    track_inputs()
    if large:
        os.environ["SPECSIM_LARGE"] = "1"  # worker processes see it, too
    if force:
        os.environ["SPECSIM_FORCE"] = "1"
    if context.invoked_subcommand not in _MEASURING:
        for name, value in _SMALL.items():
            os.environ.setdefault(name, value)
