"""Settings: how values from outside come in. Files are read, checked, and explained in one line.

Every configuration class of specsim extends `Settings`: immutable, unknown fields are errors that
name the nearest known field, NaN and infinity are no numbers.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from yaml.constructor import ConstructorError

from specsim.core.errors import SpecsimError

_FASTEST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, and ten times as fast
_YAML: Any = type("_Yaml", (_FASTEST,), {})
"""As PyYAML's, but no value of it is a ValueError, and no key stands twice."""
_KINDS = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


class Settings(BaseModel):
    """Base of every configuration class."""

    # Built when first used: a program imports a hundred of them, and a run uses twenty.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    hint = nearest(str(key), list(cls.model_fields))
                    raise PydanticCustomError(
                        "unknown_field", "unknown field '{key}'; {hint}", {"key": key, "hint": hint}
                    )
        return data


def nearest(name: str, known: list[str]) -> str:
    """Return a clause for the end of an error message: the closest known word, or all of them."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"choose from {', '.join(sorted(known))}"


def parse_yaml(text: str) -> Any:
    """Return the value that a text in YAML holds; a yaml.YAMLError if it is none."""
    return yaml.load(text, _YAML)


def _scalar(kind: str) -> Callable[[Any, yaml.ScalarNode], Any]:
    construct = getattr(_FASTEST, f"construct_yaml_{kind}")

    def checked(loader: Any, node: yaml.ScalarNode) -> Any:
        try:
            return construct(loader, node)
        except ValueError as problem:
            what = f"{_short(node.value)} is no {kind}: {problem}"
            raise ConstructorError(None, None, what, node.start_mark) from problem

    return checked


def _mapping(loader: Any, node: yaml.MappingNode) -> Any:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in seen:
            problem = f"the key '{key.value}' stands here twice; leave one"
            raise ConstructorError(None, None, problem, key.start_mark)
        seen.add(str(key.value))
    return loader.construct_yaml_map(node)


_YAML.add_constructor("tag:yaml.org,2002:map", _mapping)
for _kind in ("int", "float", "timestamp"):
    _YAML.add_constructor(f"tag:yaml.org,2002:{_kind}", _scalar(_kind))


def load_mapping(path: Path, error: type[SpecsimError]) -> dict[str, Any]:
    """Return the mapping that a YAML or JSON file holds; raise `error` if it holds none."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else parse_yaml(text)
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{path}: is not a UTF-8 text file") from problem
    except (yaml.YAMLError, json.JSONDecodeError) as problem:
        raise error(f"{path}: {_where(problem, text)}") from problem
    if not isinstance(data, dict):
        found = (
            "is empty" if data is None else f"holds {_KINDS.get(type(data), type(data).__name__)}"
        )
        raise error(f"{path}: {found}; a mapping of fields is expected")
    return data


def _where(problem: yaml.YAMLError | json.JSONDecodeError, text: str) -> str:
    if isinstance(problem, json.JSONDecodeError):
        return f"line {problem.lineno}: not JSON: {problem.msg}"
    mark = getattr(problem, "problem_mark", None)
    what = getattr(problem, "problem", None) or "cannot be parsed"
    if mark is None:
        return f"not YAML: {what}"
    line = min(mark.line + 1, max(1, len(text.splitlines())))  # the end of the text has no line
    return f"line {line}: not YAML: {what}"


@contextmanager
def validated(source: str, error: type[SpecsimError]) -> Iterator[None]:
    """Turn a pydantic error inside the block into one line, with the source of the values."""
    try:
        yield
    except ValidationError as problem:
        raise error(f"{source}: {explain(problem)}") from problem


def explain(problem: ValidationError) -> str:
    """Return the first problem of a validation as one line: field, value, rule, remedy."""
    first, *rest = problem.errors(include_url=False)
    field = ".".join(str(part) for part in first["loc"])
    kind, given = first["type"], first["input"]
    if kind == "missing":
        text = f"'{field}' is missing"
    elif kind in ("family", "unknown_field", "value_error"):
        text = f"{field + ': ' if field else ''}{first['msg'].removeprefix('Value error, ')}"
    elif kind in ("model_type", "dict_type"):
        text = f"{field} = {_short(given)}: should be a mapping of fields"
    elif kind == "int_parsing":
        text = f"{field} = {_short(given)}: should be an integer, in digits alone"
    else:
        text = f"{field} = {_short(given)}: {first['msg'].removeprefix('Input ').lower()}"
    return text + (f" (and {len(rest)} more)" if rest else "")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
