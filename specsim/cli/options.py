"""Options that several commands share, and the files and libraries that they take."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specsim.cli.terminal import warn
from specsim.core.atomic import new_file, new_folder
from specsim.core.errors import ConfigError

if TYPE_CHECKING:
    from specsim.profile import Profile

Config = Annotated[Path, typer.Argument(help="The experiment, a YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Replace a field: --set policy.k=3."),
]
Seed = Annotated[int | None, typer.Option(help="Replace the seed.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.", show_default=False)]
Workers = Annotated[int, typer.Option(min=1, help="Processes; the results do not depend on them.")]
ALL_CORES = os.cpu_count() or 1


def all_overrides(overrides: list[str] | None, seed: int | None) -> list[str]:
    """Return what ``--set`` and ``--seed`` replace."""
    return [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]


@contextmanager
def results_folder(out: Path | None, replaced: Iterable[str] = ()) -> Iterator[Path | None]:
    """Open the results folder before the work: what cannot be written fails at once.

    What it holds under the names in `replaced` must be specsim's own, and does not stay in it.
    """
    if out is None:
        yield None
    else:
        with new_folder(out, replaced) as unfinished:
            yield unfinished


@contextmanager
def output_file(path: Path | None) -> Iterator[Path | None]:
    """Open a file before the work, likewise."""
    if path is None:
        yield None
    else:
        with new_file(path) as unfinished:
            yield unfinished


def write_json(file: Path | None, data: Any) -> None:
    """Write data where that is wanted."""
    if file is not None:
        file.write_text(json.dumps(data, indent=1) + "\n")


def profile_text(profile: "Profile") -> str:
    """Return a profile as YAML; what is as usual is left out."""
    import yaml

    fields = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return yaml.safe_dump(
        fields, sort_keys=False, width=100, allow_unicode=True, default_flow_style=None
    )


_EXTRAS = {"matplotlib": "plots", "aiohttp": "observe"}


def need(library: str, source: str) -> None:
    """Refuse what takes a library that is not installed, before the work.

    Args:
        source: Command or option that asks for it.

    Raises:
        ConfigError: It says which extra to install.
    """
    if find_spec(library) is None:
        raise ConfigError(f"{source}: {_how_to_install(library)}")


def can_draw(picture: str) -> bool:
    """Return whether a picture beside other results can be drawn; if not, warn of that."""
    if find_spec("matplotlib") is not None:
        return True
    warn([f"{picture} is left out: {_how_to_install('matplotlib')}"])
    return False


def _how_to_install(library: str) -> str:
    return f"{library} is not installed here; install it: pip install 'specsim[{_EXTRAS[library]}]'"
