"""Inputs: the files that a study's runs read, and whether they have changed."""

import json
from contextlib import suppress
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from specsim.acceptance.nested import Preset
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.resources import find_resource, following, locate
from specsim.core.settings import Settings, load_mapping, parts_of
from specsim.hardware.specs import gpu_file
from specsim.profile import find_profile, load_profile
from specsim.run.experiment import POOLS, Experiment


class Input(Settings):
    """A file or folder that a run reads."""

    name: str
    """Name for messages, such as ``profile h100/llama-3.1-8b``."""
    digest: str | None
    """Digest of its content; None if it cannot be read, which its run then reports."""


def inputs_of(experiment: Experiment) -> dict[str, Input]:
    """Return all files that a run of an experiment reads, by the field that names them.

    These are its profile with its model, GPU and tables, the profile of a drafter with GPUs of its
    own, acceptance presets, traces and corpora.
    """
    found: dict[str, Input] = {}
    for pool in POOLS if experiment.pools else ():
        for field, each in inputs_of(experiment.of_pool(pool)).items():
            found[f"{pool}.{field}"] = each
    if found:
        return found
    parts, proposer = list(parts_of(experiment)), experiment.engine.speculative_config
    profiles = {"profile": experiment.profile}
    if proposer and proposer.apart and proposer.apart.profile:
        profiles["engine.speculative_config.own_gpus.profile"] = proposer.apart.profile
    for place, name in profiles.items():
        found[place] = Input(name=f"profile {name}", digest=None)
        with suppress(SpecsimError):
            found[place] = _input(f"profile {name}", find_profile(name))
            profile = load_profile(name)
            own, shape = profile.model.endswith(".json"), f"{profile.model}.json"
            model = Path(profile.model) if own else find_resource("profiles", shape)
            found[f"{place}.model"] = _input(f"model {profile.model}", model)
            found[f"{place}.gpu"] = _input(f"GPU {profile.gpu}", gpu_file(profile.gpu))
            parts.extend(parts_of(profile, f"{place}."))
    for field, part in parts:
        if isinstance(part, Preset):
            file = find_resource("profiles", f"acceptance/{part.name}.yaml")
            found[f"{field}.name"] = _input(f"preset {part.name}", file)
        elif isinstance(part, Path):
            found[field] = _input(str(part), locate(part))
    return found


def _input(name: str, path: Path | None) -> Input:
    try:
        return Input(name=name, digest=None if path is None else _digest(path))
    except (OSError, SpecsimError):
        return Input(name=name, digest=None)


def _digest(path: Path) -> str:
    if not path.is_dir():
        stat = path.stat()
        return _file_digest(path, (stat.st_mtime_ns, stat.st_size))
    files = sorted(file for file in path.rglob("*") if file.is_file())
    text = "".join(f"{file.relative_to(path).as_posix()} {_digest(file)}\n" for file in files)
    return sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=64)
def _file_digest(path: Path, version: tuple[int, int]) -> str:
    # Cached: many experiments of a study read one file, which may be long.
    if path.suffix in (".yaml", ".yml"):  # by content, whatever its layout and comments
        values = json.dumps(load_mapping(path, ConfigError), sort_keys=True, default=str)
        return sha256(values.encode()).hexdigest()[:12]
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()[:12]


def load_with_base(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; a path under ``base`` becomes that file's mapping."""
    data: dict[str, Any] = following(load_mapping(path, ConfigError), path.parent)
    if isinstance(data.get("base"), str):
        base = path.parent / data["base"]
        try:
            data["base"] = following(load_mapping(base, ConfigError), base.parent)
        except ConfigError as error:
            raise ConfigError(f"{path}: base: {error}") from error
    return data
