"""Settings: how values from outside come in. Files are read, checked, and explained in one line.

Every configuration class of specsim extends `Settings`: immutable, unknown fields are errors that
name the nearest known field, NaN and infinity are no numbers.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.reading import parse_json, parse_yaml, read_text, readable, short

_KINDS = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


class Settings(BaseModel):
    """Base of every configuration class."""

    # Built when first used: a program imports a hundred of them, and a run uses twenty.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="wrap")
    @classmethod
    def _check_names(cls, data: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """Tell of unknown fields beside all else that is wrong."""
        known = cls.model_fields
        if not isinstance(data, dict):
            return check(data)
        flags = {name for name, value in data.items() if isinstance(value, bool) and name in known}
        if flags := {name for name in flags if _is_number(known[name].annotation)}:
            data = {n: str(v).lower() if n in flags else v for n, v in data.items()}  # no 0 or 1
        if data.keys() <= known.keys():
            return check(data)
        found = list(_unknown([key for key in data if key not in known], list(known)))
        try:
            check({name: value for name, value in data.items() if name in known})
        except ValidationError as problem:
            found += [said_again(each) for each in problem.errors(include_url=False)]
        raise ValidationError.from_exception_data(cls.__name__, found)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values, without what was worked out of the old ones."""
        copied = super().model_copy(update=update, deep=deep)
        for name in vars(copied).keys() - type(self).model_fields.keys():
            del vars(copied)[name]
        return copied


def _is_number(kind: Any) -> bool:
    """Return whether a field is of numbers, of which pydantic takes truth values for 0 and 1."""
    parts = [kind]
    for each in parts:  # grows
        parts += get_args(each)
    return bool not in parts and any(each is int or each is float for each in parts)


_MOST_SAID = 4
"""Of the unknown fields of one mapping: a file of another kind has dozens."""
_MOST_CHOICES = 40


def _unknown(keys: list[object], known: list[str]) -> Iterator[InitErrorDetails]:
    for key in keys[:_MOST_SAID]:
        is_number = str(key).isdigit()  # as YAML reads {rate: 1,5}
        context = {
            "key": short(key)[1:-1] if isinstance(key, str) else short(key),
            "hint": "write 1.5, not 1,5" if is_number else nearest(str(key), known),
        }
        kind = PydanticCustomError("unknown_field", "unknown field '{key}'; {hint}", context)
        yield InitErrorDetails(type=kind, loc=(), input=key)
    if rest := keys[_MOST_SAID:]:
        text = "and {more} more unknown fields: is this a file of another kind?"
        kind = PydanticCustomError("unknown_fields", text, {"more": len(rest)})
        yield InitErrorDetails(type=kind, loc=(), input=rest)


def said_again(problem: Any, context: dict[str, Any] | None = None) -> InitErrorDetails:
    """Return a problem of a ValidationError for another one, with a context for `told_problems`."""
    kind = PydanticCustomError(problem["type"], problem["msg"], context)
    return InitErrorDetails(type=kind, loc=problem["loc"], input=problem["input"])


def nearest(name: str, known: list[str]) -> str:
    """Return a clause for the end of an error message: the closest known word, or what there is."""
    close = get_close_matches(name[:100], known, n=1)
    begun = [each for each in known if len(name) > 1 and each.startswith(name)]
    if close := close or begun[: len(begun) == 1] or _alike(name[:100], known):
        return f"did you mean '{close[0]}'?"
    more = f" and {len(known) - _MOST_CHOICES} more" if len(known) > _MOST_CHOICES else ""
    return f"choose from {', '.join(sorted(known)[:_MOST_CHOICES])}{more}"


def _alike(name: str, known: list[str]) -> list[str]:
    """Return the word that is written otherwise, as papers do (AdaEDL), or in another order."""
    plain = {re.sub("[^a-z0-9]", "", each.lower()): each for each in known}
    if close := get_close_matches(re.sub("[^a-z0-9]", "", name.lower()), plain, n=1):
        return [plain[close[0]]]
    parts = {*re.findall("[a-z0-9]+", name.lower())}
    same = [each for each in known if len(parts) > 1 and parts <= {*each.lower().split("_")}]
    return same[: len(same) == 1]


def load_mapping(
    path: Path, error: type[SpecsimError], remedy: str = "", *, is_shared: bool = False
) -> dict[str, Any]:
    """Return the mapping that a YAML or JSON file holds; raise `error` if it holds none.

    Args:
        remedy: What to do if the file holds something else.
        is_shared: Whether whoever asks leaves it as it is, so that a text is parsed once. Of a
            short run a third was parsing the same profile and GPU again.
    """
    parse = _parsed_once if is_shared else parse_yaml
    try:
        with readable(path, error):
            text = read_text(path)
            data = parse_json(text) if ".json" in path.suffixes[-2:] else parse(text)
    except yaml.YAMLError as problem:
        raise error(f"{path}: {where_in(text, problem)}") from problem
    if not isinstance(data, dict):
        kind = _KINDS.get(type(data), type(data).__name__)
        found = "is empty" if data is None else f"holds {kind}"
        raise error(f"{path}: {found}; a mapping of fields is expected{remedy}")
    return data


_parsed_once = lru_cache(maxsize=8)(parse_yaml)


def where_in(text: str, problem: yaml.YAMLError) -> str:
    """Return on which line a text is not YAML, and why."""
    mark = getattr(problem, "problem_mark", None)
    what = getattr(problem, "problem", None) or "cannot be parsed"
    if mark is None:
        return f"not YAML: {what}"
    line = min(mark.line + 1, max(1, len(text.splitlines())))  # the end of the text has no line
    return f"line {line}: not YAML: {what}"


@contextmanager
def validated(source: str, error: type[SpecsimError]) -> Iterator[None]:
    """Turn a pydantic error inside the block into a line per problem, with the values' source."""
    try:
        yield
    except ValidationError as problem:
        lines = told_problems(problem)
        raise error("\n".join(f"{source}: {line}" for line in lines)) from problem


_MOST_LINES = 20  # of a file of another kind, every value may be a problem


def told_problems(error: Any) -> list[str]:
    """Return the problems of a `pydantic.ValidationError`, in a line each; the first, if many."""
    found = error.errors(include_url=False)
    told = dict.fromkeys(_told(each) for each in found if not _follows(each, found))
    lines = "\n".join(told).splitlines()
    left_out = len(lines) - _MOST_LINES
    return lines if left_out <= 0 else [*lines[:_MOST_LINES], f"and {left_out} more such problems"]


def _follows(problem: Any, found: list[Any]) -> bool:
    """Tell whether a list is said to be too short only since some of what it holds is wrong."""
    loc = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(each["loc"]) > len(loc) and each["loc"][: len(loc)] == loc for each in found
    )


def _told(problem: Any) -> str:
    """Return one problem as one line: field, value, rule, remedy."""
    field = ".".join(str(part) for part in problem["loc"])
    kind, given = problem["type"], problem["input"]
    if kind == "missing":
        example = problem.get("ctx", {}).get("example")
        return f"'{field}' is missing" + (f", such as {example}" if example else "")
    if kind in ("family", "unknown_field", "unknown_fields", "value_error"):
        return f"{field + ': ' if field else ''}{problem['msg'].removeprefix('Value error, ')}"
    if kind in ("model_type", "dict_type"):
        return f"{field} = {short(given)}: should be a mapping of fields".removeprefix(" = ")
    if kind == "int_parsing":
        return f"{field} = {short(given)}: should be an integer, in digits alone"
    if kind in ("too_short", "too_long"):  # "Tuple should have at least 1 item after validation"
        rule = problem["msg"][problem["msg"].index("should") :].partition(" after validation")[0]
        return f"{field} = {short(given)}: {rule}"
    return f"{field} = {short(given)}: {problem['msg'].removeprefix('Input ').lower()}"


def overridden(
    data: dict[str, Any], overrides: Iterable[str] | Mapping[str, object], option: str = "--set"
) -> dict[str, Any]:
    """Return a configuration with values replaced, each by ``dotted.path=value``, in YAML.

    Or each by a value of a mapping, by its dotted path. A ConfigError, which names the option, if
    one has no ``=``, or a path that leads through no mapping.
    """
    result: dict[str, Any] = json.loads(json.dumps(data, default=str, skipkeys=True))
    if isinstance(overrides, Mapping):
        for path, value in overrides.items():
            set_field(result, path, value, path)
        return result
    for override in listed(overrides):
        path, equals, text = str(override).partition("=")
        if not equals or not path:
            raise ConfigError(f"{option} {override}: expected field.name=value")
        set_field(result, path, _typed(text, f"{option} {override}"), f"{option} {override}")
    return result


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return what is no mapping in nested mappings, by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        is_nested = isinstance(value, Mapping)
        flat |= flattened(value, f"{prefix}{name}.") if is_nested else {f"{prefix}{name}": value}
    return flat


def with_values(part: Any, values: Mapping[str, Any]) -> Any:
    """Return nested mappings and lists with values in place of the names that stand for them."""
    if isinstance(part, dict):
        return {values.get(key, key): with_values(each, values) for key, each in part.items()}
    if isinstance(part, list):
        return [with_values(each, values) for each in part]
    return values.get(part, part) if isinstance(part, str) else part


def as_yaml(fields: Mapping[str, Any], **style: Any) -> str:
    """Return fields as YAML, in their order."""
    text: str = yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True, **style)
    return text


def as_flow(value: Any) -> str:
    """Return a value as YAML of one line, as it may stand behind a field's name."""
    style: dict[str, Any] = {"default_flow_style": True, "width": 10**6}
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, **style)
    return text.removesuffix("...\n").strip()  # which ends a number or a text


def listed(overrides: Iterable[str] | Mapping[str, object]) -> list[str]:
    """Return overrides one by one, also a single one, and those of a mapping."""
    if isinstance(overrides, Mapping):
        plain = {  # numbers of numpy are none of YAML's
            path: value.tolist() if hasattr(value, "tolist") else value
            for path, value in overrides.items()
        }
        return [f"{path}={as_flow(value)}" for path, value in plain.items()]
    return [overrides] if isinstance(overrides, str) else list(overrides)


def check_used(overrides: Iterable[str], replaced: Iterable[str], by: str) -> None:
    """Raise a ConfigError if an override is of a field that something else replaces."""
    fields = list(replaced)
    for override in overrides:
        path = override.partition("=")[0]
        for field in fields:
            if f"{path}.".startswith(f"{field}."):
                raise ConfigError(
                    f"--set {override}: is not used, for {by} '{field}'; change it there"
                )


def set_field(config: dict[str, Any], path: str, value: object, source: str) -> None:
    """Replace a value in place, making mappings on its path; else a ConfigError."""
    *parents, name = path.split(".")
    target = config
    for parent in parents:
        inner = target.setdefault(parent, {})
        if isinstance(inner, str):  # such as policy: static
            inner = target[parent] = from_short_form(inner) or inner
        if not isinstance(inner, dict):
            raise ConfigError(f"{source}: '{parent}' is not a mapping of fields")
        target = inner
    target[name] = value


# A name, or a module or file and a class; then fields.
_SHORT_FORM = re.compile(
    r"(?P<name>[^:]*\.py:[A-Za-z_]\w*|[\w.-]+(?::[A-Za-z_]\w*(?=:|$))?)(?::(?P<options>.*))?"
)
_NEXT_OPTION = re.compile(r",(?=\s*\w+\s*=)")  # not the commas of a list


def from_short_form(text: str, tag: str = "kind") -> dict[str, Any]:
    """Return the fields of ``name:field=value,field=value``; none if it is not of that form.

    A ConfigError if what stands behind the name is no ``field=value``.
    """
    form = _SHORT_FORM.fullmatch(text)
    if form is None:
        return {}
    fields: dict[str, Any] = {tag: form["name"]}
    for option in filter(None, _NEXT_OPTION.split(form["options"] or "")):
        key, equals, raw = option.partition("=")
        if not equals:
            raise ConfigError(f"'{text}': '{option}' is not field=value")
        fields[key.strip()] = _typed(raw, f"'{text}': '{option}'")
    return fields


def _typed(text: str, place: str) -> Any:
    """Return a value that was typed behind ``=``; a ConfigError, which names the place, if none."""
    if not text.strip():
        raise ConfigError(f"{place:.80}: the value is missing; write null for none")
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        why = getattr(error, "problem", None) or "cannot be parsed"
        raise ConfigError(f"{place:.80}: cannot read the value: {why}") from error


def parts_of(value: object, field: str = "") -> Iterator[tuple[str, object]]:
    """Yield all models and paths in some settings, by dotted field name."""
    if isinstance(value, BaseModel | Path):
        yield field.rstrip("."), value
    inside: dict[Any, object] = {}
    if isinstance(value, BaseModel):
        inside = {name: getattr(value, name) for name in type(value).model_fields}
    elif isinstance(value, dict):
        inside = value
    elif isinstance(value, list | tuple):
        inside = dict(enumerate(value))
    for name, each in inside.items():
        yield from parts_of(each, f"{field}{name}.")
