"""Text of a command: from a shell, or from a container of Kubernetes or Compose."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from specsim.core.errors import ConfigError
from specsim.core.reading import parse_yaml, read_text, readable
from specsim.core.settings import where_in

_COMMENT = re.compile(r"""(?<!\S)#[^\n]*|(\\.|'[^']*'|"(?:\\.|[^"\\])*")""", re.DOTALL)
"""A shell's comment; or, as the group, quoted text, in which ``#`` begins none."""
_CONTINUED = re.compile(r"\\[ \t\r]*\n")  # pages may leave spaces before the line's end
LINE_END = "\n"
"""Stands among words for the end of a line, outside quotes."""
ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*?);?", re.DOTALL)
_ARGUMENTS = re.compile(r"\$(?:[@*]|\{(?:[@*]|\w+\[[@*]\])\})")  # "$@" and "${MORE[@]}" of a script
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|\((\w+)\)|(\w+))")  # Kubernetes: $(A)
_FILE = re.compile(r"\S+\.(?:ya?ml|json|sh)")
_MANIFEST = re.compile(
    r"""(?:\s|\#[^\n]*\n|---[^\n]*\n)*(?:[\[{]|-\s|["']?[A-Za-z][\w.-]*["']?\s*:(?:\s|$))"""
)
_DOCUMENTS = re.compile(r"^---.*$", re.MULTILINE)
_STARTS = ("entrypoint", "command", "args")  # in the order in which a container joins them
_SECRETS = {"api-key": sys.maxsize, "admin-api-key": 1, "hf-token": 1}  # flags: most values of each
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")  # in maxModelLen
_ENGINES = ("v0", "v1")  # of a chart: variables, not flags
_ASIDE = ("initContainers", "exec")  # these have a command, but are no server


def words_in(text: str, program: str) -> list[str]:
    """Return the words of a command line, of a container in YAML or JSON, or of a file of either.

    Raises a ConfigError if it cannot be read, or several containers may be the server.
    """
    source = f"--{program}"
    if _FILE.fullmatch(text.strip()):
        with readable(f"{source}: {text}", ConfigError):
            text = read_text(Path(text.strip()))
    if _MANIFEST.match(text):
        return _of_manifest(text, source, program)
    return shell_words(text, source)


def without_arguments(words: list[str]) -> tuple[list[str], list[str]]:
    """Return words without a script's own arguments, which it passes on; and those arguments."""
    passed = [word for word in words if _ARGUMENTS.fullmatch(word)]
    return [word for word in words if word not in passed], passed


def without_secrets(words: list[str]) -> tuple[list[str], list[str]]:
    """Return words with placeholders for secrets, and the flags that have secrets."""
    kept: list[str] = []
    flags: list[str] = []
    values = 0  # secret values of the last flag that are still to come
    for word in words:
        name, equals, _ = word.partition("=")
        key = name.lstrip("-").replace("_", "-")
        if word.startswith("-") and key in _SECRETS:
            flags.append(name)
            kept += [name, f"YOUR-{key.upper()}"]
            values = 0 if equals else _SECRETS[key]
        elif values and not word.startswith("-"):
            values -= 1
        else:
            values = 0
            kept.append(word)
    return kept, flags


def shell_words(text: str, source: str) -> list[str]:
    """Return the words of command lines, with a `LINE_END` between lines.

    Variables that the lines set are filled in. Raises a ConfigError, naming `source`, if this
    fails.
    """
    joined = _CONTINUED.sub(" ", _COMMENT.sub(r"\1", text))
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=LINE_END)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = [*lexer]
    except ValueError as error:
        raise ConfigError(f"{source}: {error}; quote it as in a shell") from error
    ends = [word.strip("\n") == "" != word for word in words]
    kept = [n for n, is_end in enumerate(ends) if not (is_end and n and ends[n - 1])]
    return _filled([LINE_END if ends[n] else words[n] for n in kept])


def _filled(words: list[str]) -> list[str]:
    """Return words with the values of variables that earlier words set."""
    known, filled = dict[str, str](), []
    for word in words:
        new = _VARIABLE.sub(lambda v: known.get(v[1] or v[3] or v[4], v[2] or v[0]), word)
        if (found := ASSIGNED.fullmatch(new)) is not None:
            known[found[1]] = found[2]
        filled.append(new)
    return filled


class _Container(NamedTuple):
    name: str
    image: str
    words: tuple[str, ...]


def _of_manifest(text: str, source: str, program: str) -> list[str]:
    containers: dict[tuple[str, ...], _Container] = {}  # those that start alike are one
    for document in _DOCUMENTS.split(text):
        try:
            parsed = parse_yaml(document, is_ours=False)
        except yaml.YAMLError as error:
            raise ConfigError(f"{source}: {where_in(document, error)}") from error
        if isinstance(parsed, list) and not all(isinstance(each, dict) for each in parsed):
            parsed = {"args": parsed}
        for each in _containers(parsed, "", source):
            containers.setdefault(each.words, each)
    found = [*containers.values()]
    if not found:
        raise ConfigError(
            f"{source}: is YAML, in which nothing has args, a command, or a modelURL; paste those "
            f"of the container that serves, or its command line: {program} serve MODEL ..."
        )
    starts = re.compile(rf"\b{program}(?:\s+serve\b|\.\w)")  # as a command, or as a module
    own = [each for each in found if starts.search(" ".join(each.words))]
    own = own or [each for each in found if program in " ".join((each.image, *each.words))] or found
    if len(own) > 1:
        names = ", ".join(each.name or "one without a name" for each in own)
        raise ConfigError(
            f"{source}: {len(own)} containers may start the server: {names}; paste the args of one"
        )
    return [*own[0].words]


def _containers(value: Any, name: str, source: str) -> Iterator[_Container]:
    if isinstance(value, list):
        for each in value:
            yield from _containers(each, name, source)
    elif isinstance(value, dict):
        name = str(value.get("name", name))
        parts = [word for key in _STARTS for word in _words(value.get(key), source)]
        parts = parts or _of_chart(value, source)
        if len(parts) == 1:  # the shell whose `args` these are was not pasted with them
            parts = shell_words(parts[0], source)
        if parts:
            words = _filled([*_environment(value), *parts])
            yield _Container(name, str(value.get("image", "")), tuple(words))
            return
        for key, each in value.items():
            if key not in _ASIDE:
                yield from _containers(each, str(key), source)


def _of_chart(value: dict[str, Any], source: str) -> list[str]:
    """Return the command of a model in the values of vLLM's Helm chart, if they are such.

    References:
        vllm-project/production-stack, helm/templates/deployment-vllm-multi.yaml.
    """
    if not isinstance(value.get("modelURL"), str):
        return []
    words = ["vllm", "serve", value["modelURL"]]
    given = value.get("vllmConfig")
    fields = dict(given) if isinstance(given, dict) else {}
    fields = {name: setting for name, setting in fields.items() if name not in _ENGINES}
    more = _words(fields.pop("extraArgs", None), source)
    for name, setting in fields.items():
        flag = _CAPITAL.sub("-", str(name)).lower()
        if isinstance(setting, bool):
            words.append(f"--{flag}" if setting else f"--no-{flag}")
        elif setting is not None:
            words += [f"--{flag}", *_words([setting], source)]
    return [*words, *more]


def _environment(container: dict[str, Any]) -> list[str]:
    """Return the variables of a container as a shell sets them."""
    given = container.get("env", container.get("environment"))
    if isinstance(given, dict):
        return [f"{name}={value}" for name, value in given.items()]
    each = given if isinstance(given, list) else []
    pairs = [
        f"{one.get('name')}={one['value']}"
        for one in each
        if isinstance(one, dict) and "value" in one
    ]
    return [*(one for one in each if isinstance(one, str)), *pairs]


def _words(value: Any, source: str) -> list[str]:
    if not isinstance(value, list):
        return [] if value is None else shell_words(str(value), source)
    if None in value:
        raise ConfigError(f"{source}: a list of words has an empty one; quote it, or leave it out")
    is_json = [isinstance(each, dict | list | bool) for each in value]
    words = zip(value, is_json, strict=True)
    return [json.dumps(each, default=str) if typed else str(each) for each, typed in words]
