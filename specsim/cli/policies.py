"""Command ``policy check``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.options import progress
from specsim.core.errors import ConfigError

policy_app = typer.Typer(help="Try out policies of one's own.", no_args_is_help=True)


@policy_app.command()
def check(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="my.py:MyPolicy, a name from `specsim list policies`, or either with fields: "
            "my.py:MyPolicy:k=3.",
            show_default=False,
        ),
    ],
) -> None:
    """Run a policy through a hundred small worlds and tell what it breaks.

    Steps of prefills alone, no memory, long prompts, asynchronous and synchronous scheduling,
    prefill first, sessions, pools, failures: every answer of the policy is checked, every invariant
    of the engine, and that two runs with one seed agree. The exit code is 0 if all holds, else 1.
    """
    from specsim.core.blame import blamed
    from specsim.policies import POLICIES
    from specsim.study.policy_check import check_policy

    config = _importable(policy)
    with blamed():
        parsed = POLICIES.parse(config)
    with progress("worlds", None) as on_progress:
        found = check_policy(parsed, config, on_progress)
    for problem, worlds in found.broken.items():
        more = f" and {len(worlds) - 1} more worlds" if len(worlds) > 1 else ""
        typer.echo(f"{problem} [in: {worlds[0]}{more}]")
    if found.broken:
        broken = f"{found.num_broken} of {found.num_worlds} worlds"
        typer.echo(f"{found.policy}: broken in {broken}, see above", err=True)
        raise typer.Exit(1)
    typer.echo(f"{found.policy} holds: {found.num_worlds} worlds, {found.seconds:.0f} s")


def _importable(policy: str) -> str:
    """Return the short form of a policy, whose file may be given by its path."""
    file, is_path, rest = policy.partition(".py:")
    if not is_path:
        return policy
    path = Path(f"{file}.py")
    if not path.is_file():
        raise ConfigError(f"{policy}: there is no file {path}")
    if not path.stem.isidentifier():
        raise ConfigError(f"{path}: is no name of a module; rename it to letters, digits and _")
    sys.path.insert(0, str(path.resolve().parent))
    return f"{path.stem}:{rest}"
