"""Text of a command: as a shell takes it, or as a container of Kubernetes or Compose has it."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from specsim.core.errors import ConfigError
from specsim.core.reading import UnreadableError, parse_yaml, read_text
from specsim.core.settings import where_in

_COMMENT = re.compile(r"""(?<!\S)#[^\n]*|(\\.|'[^']*'|"(?:\\.|[^"\\])*")""", re.DOTALL)
"""A comment of a shell's; or, kept as the group, what is quoted, where ``#`` begins none."""
_CONTINUED = re.compile(r"\\[ \t\r]*\n")  # also where a page left spaces before the line's end
_FILE = re.compile(r"\S+\.(?:ya?ml|json|sh)")
_MANIFEST = re.compile(
    r"""(?:\s|\#[^\n]*\n|---[^\n]*\n)*(?:[\[{]|-\s|["']?[A-Za-z][\w.-]*["']?\s*:(?:\s|$))"""
)
_DOCUMENTS = re.compile(r"^---.*$", re.MULTILINE)
_STARTS = ("entrypoint", "command", "args")  # in the order in which they follow one another
_ASIDE = ("initContainers", "exec")  # what has a command, too, and is no server


def words_in(text: str, program: str) -> list[str]:
    """Return the words of a command line, of a container in YAML or JSON, or of a file of either.

    A ConfigError if it cannot be read, or several containers may be the server.
    """
    source = f"--{program}"
    if _FILE.fullmatch(text.strip()):
        try:
            text = read_text(Path(text.strip()))
        except OSError as error:
            raise ConfigError(f"{source}: {text}: cannot be read: {error.strerror}") from error
        except UnreadableError as error:
            raise ConfigError(f"{source}: {text}: {error}") from error
    if _MANIFEST.match(text):
        return _of_manifest(text, source, program)
    return shell_words(text, source)


def shell_words(text: str, source: str) -> list[str]:
    """Return the words of a command line; a ConfigError, with its source, if it is none."""
    try:
        return shlex.split(_CONTINUED.sub(" ", _COMMENT.sub(r"\1", text)))
    except ValueError as error:
        raise ConfigError(f"{source}: {error}; quote it as in a shell") from error


class _Container(NamedTuple):
    name: str
    image: str
    words: tuple[str, ...]


def _of_manifest(text: str, source: str, program: str) -> list[str]:
    containers: dict[tuple[str, ...], _Container] = {}  # those that start alike are one
    for document in _DOCUMENTS.split(text):
        try:
            parsed = parse_yaml(document)
        except yaml.YAMLError as error:
            raise ConfigError(f"{source}: {where_in(document, error)}") from error
        if isinstance(parsed, list) and not all(isinstance(each, dict) for each in parsed):
            parsed = {"args": parsed}
        for each in _containers(parsed, "", source):
            containers.setdefault(each.words, each)
    found = [*containers.values()]
    own = [each for each in found if any(program in word for word in (each.image, *each.words))]
    if len(own or found) != 1:
        names = ", ".join(each.name or "one without a name" for each in own or found)
        why = f"may start the server: {names}; paste the args of one"
        raise ConfigError(
            f"{source}: {len(own or found)} containers {why}"
            if found
            else f"{source}: is YAML, in which nothing has args or a command; paste those of the "
            "container that serves"
        )
    return [*(own or found)[0].words]


def _containers(value: Any, name: str, source: str) -> Iterator[_Container]:
    if isinstance(value, list):
        for each in value:
            yield from _containers(each, name, source)
    elif isinstance(value, dict):
        name = str(value.get("name", name))
        parts = [word for key in _STARTS for word in _words(value.get(key), source)]
        if len(parts) == 1:  # `args` of a shell that was not pasted with them
            parts = shell_words(parts[0], source)
        if parts:
            yield _Container(name, str(value.get("image", "")), tuple(parts))
            return
        for key, each in value.items():
            if key not in _ASIDE:
                yield from _containers(each, str(key), source)


def _words(value: Any, source: str) -> list[str]:
    if not isinstance(value, list):
        return [] if value is None else shell_words(str(value), source)
    if None in value:
        raise ConfigError(f"{source}: a list of words has an empty one; quote it, or leave it out")
    return [each if isinstance(each, str) else json.dumps(each) for each in value]
