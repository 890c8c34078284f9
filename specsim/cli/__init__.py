"""The command line.

Functions here only read arguments and show results. Imports inside functions are allowed here
alone, so that ``specsim --version`` starts without loading what a simulation needs.
"""

import os
from collections.abc import Callable
from copy import copy
from inspect import cleandoc
from pathlib import Path

import typer
from typer import Option

from specsim.cli.inspection import breakdown, export, list_members, plot, report, schema, timeline
from specsim.cli.measured_tables import validate
from specsim.cli.options import with_numbers
from specsim.cli.profiles import profile_app
from specsim.cli.reality import acceptance_app, calibrate, observe, parity
from specsim.cli.serving import serve, ui
from specsim.cli.simulation import ManyPolicies, compare, policy_app, run, sweep
from specsim.cli.studies import capacity, demo, gate, init, plan, split, tune
from specsim.cli.traces import draft_eval, tokens_app, trace_app
from specsim.core.atomic import track_inputs
from specsim.core.version import __version__, foreign

__all__ = ["app", "app_of"]

app = typer.Typer(
    help="Simulate LLM serving with speculative decoding: which policy, which k, at which load.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_LINES = Path(__file__).with_name("examples.txt").read_text().splitlines()
EXAMPLES = dict(line.split(": ", 1) for line in _LINES)
"""The example at the end of each command's help."""


def _example(command: str) -> str:
    return f"Example: specsim {command} {EXAMPLES[command]}"


def _help(command: Callable[..., None]) -> str:
    """Return a docstring with one line per paragraph, for the terminal to wrap."""
    paragraphs = cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(each.replace("\n", " ") for each in paragraphs)


_COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Answer": {
        "plan": plan, "init": init, "demo": demo, "capacity": capacity, "tune": tune,
        "compare": compare, "split": split, "gate": gate,
    },
    "Simulate": {"run": run, "sweep": sweep, "serve": serve, "policy": policy_app},
    "Look": {
        "report": report, "ui": ui, "plot": plot, "timeline": timeline, "breakdown": breakdown,
        "export": export,
    },
    "Real engines": {
        "calibrate": calibrate, "observe": observe, "validate": validate, "parity": parity,
    },
    "Inputs": {
        "trace": trace_app, "tokens": tokens_app, "draft-eval": draft_eval,
        "acceptance": acceptance_app, "profile": profile_app,
    },
    "Reference": {"list": list_members, "schema": schema},
}  # fmt: skip
"""Commands by purpose, as the help groups them."""
for _panel, _members in _COMMANDS.items():
    for _name, _member in _members.items():
        if isinstance(_member, typer.Typer):
            for _own in _member.registered_commands:
                assert _own.callback is not None
                _read = with_numbers(_own.callback)
                _called = _own.name or _read.__name__.replace("_", "-")
                _own.epilog = _example(f"{_name} {_called}")
                _own.help = _help(_read)
            app.add_typer(_member, name=_name, rich_help_panel=_panel)
        else:
            _class = ManyPolicies if _member in (capacity, compare, split) else None
            _add = app.command(
                _name,
                cls=_class,
                help=_help(_member),
                epilog=_example(_name),
                rich_help_panel=_panel,
            )
            _add(with_numbers(_member))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specsim {__version__}")
        if why := foreign():
            typer.echo(f"warning: {why}", err=True)
        raise typer.Exit


_SMALL = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy starts a thread per core, for matrices of no run
    "PYDANTIC_DISABLE_PLUGINS": "__all__",  # searches all installed packages
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # reuses freed memory, which saves 10 MiB
}
"""Variables that libraries read when imported, unless the user has set them."""
_MEASURING = ("calibrate", "observe")  # their libraries would pass it on to others


@app.callback()
def _root(
    context: typer.Context,
    version: bool = Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
    debug: bool = Option(False, "--debug", help="Show tracebacks."),
    large: bool = Option(False, "--large", help="Let runs begin however large they are."),
    force: bool = Option(
        False, "--force", help="Let outputs replace files that specsim did not write."
    ),
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


def app_of(words: list[str]) -> typer.Typer:
    """Return the command line with only the command named in `words`, or else with all.

    Typer takes milliseconds to make all commands, of which one is called.
    """
    name = next((word for word in words if not word.startswith("-")), None)
    one = copy(app)
    one.registered_commands = [each for each in app.registered_commands if each.name == name]
    one.registered_groups = [each for each in app.registered_groups if each.name == name]
    return one if one.registered_commands or one.registered_groups else app
