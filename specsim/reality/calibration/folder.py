"""The folder of a calibration: what is written into it, and when it may be used."""

import json
from pathlib import Path
from typing import Any

import yaml

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError
from specsim.profile import Profile

__all__ = ["check_folder", "write_json", "write_profile"]


def check_folder(folder: Path) -> None:
    """Refuse a folder that results would get lost in.

    Raises:
        ConfigError: It holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there already and not empty; name a new folder (--out)")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write plain values.

    Raises:
        ConfigError: The file cannot be written.
    """
    with new_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as YAML, as `load_profile` reads it.

    Raises:
        ConfigError: The file cannot be written.
    """
    written = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    with new_file(path) as temporary:
        temporary.write_text(yaml.safe_dump(written, sort_keys=False, width=100))
