"""Families: pluggable parts, found by name.

A family is a package with a base class; the public modules in it hold the members, frozen pydantic
models whose fields are their configuration. Dropping a file in, or a class into a file, is all it
takes: members are found by walking the package, `specsim list` shows them, and the contract tests
of the family run on them. So that a run imports the members it names and no others, their names
are looked for in the text of the files first, where a member of the name ``off`` has the field
``kind: Literal["off"] = "off"``. Somebody else's class is named by its module or file,
``kind: my_pkg.my_file:MyPolicy`` or ``kind: lab/my_file.py:MyPolicy``, or made permanent by an
entry point in the group ``specsim.<family>``.
"""

import inspect
import os
import re
import sys
from abc import ABC
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeGuard, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from specsim.core.blame import fault, is_shipped_class
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.settings import Settings, as_flow, from_short_form, nearest, said_again, validated
from specsim.core.surroundings import working_folder

M = TypeVar("M", bound="Member")


def _as_it_is(folder: str) -> tuple[str, int]:
    """Return a folder of the path of imports, and when something was last installed there."""
    try:
        return folder, os.stat(folder or ".").st_mtime_ns
    except OSError:
        return folder, 0


@lru_cache(maxsize=32)
def _entries_in(group: str, folders: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Return a group of entry points; to look for them takes longer than a short run."""
    return entry_points(group=group)


class Member(Settings, ABC):
    """Base of all members of all families."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names under which the member is found."""
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Fields of typical members; shown by ``specsim list``, run by the family's contract tests."""


class Family(Generic[M]):
    """All members of one family, and the pydantic type of a field that holds one.

    Use it as a type annotation: ``policy: Annotated[Policy, POLICIES]``.

    Args:
        name: Package below ``specsim``, also the name of the entry-point group, ``specsim.<name>``.
        base: Class that every member extends.
        tag: Field that names the member.
        of_files: The member whose field ``name`` takes a file, if any does.
    """

    def __init__(
        self, name: str, base: type[M], tag: str = "kind", of_files: str | None = None
    ) -> None:
        self.name = name
        self.base = base
        self.tag = tag
        self.of_files = of_files
        self._found: dict[str, type[M] | None] = {}

    @cached_property
    def members(self) -> dict[str, type[M]]:
        """Members that specsim ships, by sorted names; a ConfigError if two have the same."""
        found: dict[str, type[M]] = {}
        for file_name in self._file_names:
            for member in self._members_in(file_name):
                name = self.name_of(member)
                if name in found:
                    raise ConfigError(
                        f"{member.__module__}: {self.tag} '{name}' is that of "
                        f"{found[name].__module__}; give it another"
                    )
                found[name] = member
        return dict(sorted(found.items()))

    @property
    def any_member(self) -> WithJsonSchema:
        """JSON schema for a field inside a member, where spelling all of them out never ends."""
        return WithJsonSchema({"type": "object", "description": f"any member of {self.name}"})

    @cached_property
    def _folder(self) -> Path:
        return Path(import_module(f"specsim.{self.name}").__path__[0])

    @cached_property
    def _file_names(self) -> list[str]:
        modules = (each.name for each in iter_modules([str(self._folder)]) if not each.ispkg)
        return [name for name in modules if not name.startswith("_") and name != "base"]

    def _members_in(self, file_name: str) -> list[type[M]]:
        module = import_module(f"specsim.{self.name}.{file_name}")
        return [
            value
            for value in vars(module).values()
            if self._is_member(value) and value.__module__ == module.__name__
        ]

    def _shipped(self, name: str) -> type[M] | None:
        """Return the shipped member of a name or alias, at the cost of one file if it is a name."""
        for file_name in self._file_names:
            path = self._folder / f"{file_name}.py"
            if file_name == name or f'Literal["{name}"]' in path.read_text(encoding="utf-8"):
                for member in self._members_in(file_name):
                    if self.name_of(member) == name:
                        return member
        return next((each for each in self.members.values() if name in each.aliases), None)

    def name_of(self, member: type[M]) -> str:
        """Return the name under which a member is configured."""
        return str(member.model_fields[self.tag].default)

    def all_members(self) -> dict[str, type[M]]:
        """Return the shipped members and those of installed packages, whose names come second.

        A ConfigError if one of them cannot be loaded.
        """
        entries = self._entries.items()
        installed = {n: self._installed(each) for n, each in entries if n not in self.members}
        return {**self.members, **installed}

    @property
    def _entries(self) -> dict[str, EntryPoint]:
        """What installed packages add, by name; nothing is loaded."""
        found = _entries_in(f"specsim.{self.name}", tuple(map(_as_it_is, sys.path)))
        return {entry.name: entry for entry in found}

    def _installed(self, entry: EntryPoint) -> type[M]:
        """Return the class of an installed package."""
        try:
            return self._checked(entry.load(), entry.value)
        except (Exception, SystemExit) as error:
            why = str(error) if isinstance(error, SpecsimError) else fault(error)
            package = entry.dist.name if entry.dist is not None else "an installed package"
            raise ConfigError(
                f"{self.tag} '{entry.name}' of {package} cannot be loaded from '{entry.value}': "
                f"{why}; mend or uninstall it"
            ) from error

    def find(self, name: str) -> type[M]:
        """Return the class behind a name, alias, entry point or path; else a ConfigError."""
        if name not in self._found:
            self._found[name] = self._shipped(name)
        shipped = self._found[name]
        if shipped is not None:
            return shipped
        if ":" in name:
            return self._checked(self._loaded(name), name)
        if (entry := self._entries.get(name)) is None:
            hint = nearest(name, [*self.members, *self._entries])
            if self.of_files and name.endswith((".yaml", ".yml")):
                hint = f"of a file of yours, copy what stands under '{self.name}' into this one"
            elif self._is_of_file(name):
                hint = f"a {self.of_files} is {{{self.tag}: {self.of_files}, name: {name}}}"
            elif (file := _file_named(name)) is not None:
                hint = self._classes_in(name, file)
            elif (module := _module_in(name)) is not None:
                hint = f"a class of yours is {module}:{name.removeprefix(module)[1:] or 'CLASS'}"
            raise ConfigError(f"no {self.tag} '{name}'; {hint}")
        return self._installed(entry)

    def _classes_in(self, name: str, file: Path) -> str:
        """Return what to write in place of the name of a file of the user's."""
        own = _classes_of(_loaded_module(name, Path(name)))
        members = [each.__name__ for each in own if issubclass(each, self.base)]
        if not members:
            return f"there is {file}, but it has no class that is a {self.base.__name__}"
        return f"name a class of {file}, too: {' or '.join(f'{name}:{each}' for each in members)}"

    def _loaded(self, path: str) -> object:
        """Return the class of a path; ``static:k`` may be meant as a field without a value."""
        try:
            return _load(path)
        except ConfigError as error:
            name, _, rest = path.partition(":")
            if self._shipped(name) is None:
                raise
            text = f"'{path}': '{rest}' is not field=value, and there is no file {name}.py"
            raise ConfigError(text) from error

    def _is_of_file(self, name: str) -> bool:
        return self.of_files is not None and "/" in name

    def parse(self, value: object) -> M:
        """Return the member that a mapping, or the short form ``static:k=3``, describes.

        A ConfigError where it names no member, a pydantic.ValidationError where a field is wrong.
        """
        if isinstance(value, self.base):
            return self._findable(value)
        value = _unquoted(value)
        fields = from_short_form(value, self.tag) if isinstance(value, str) else value
        is_path = isinstance(value, str) and (value.endswith(".py") or self._is_of_file(value))
        if fields == {} and is_path:
            fields = {self.tag: value}  # which `find` explains
        if fields == {} and isinstance(value, str):
            hint = nearest(value.partition(":")[0], list(self.members))
            hint = f"; {hint}" if hint.startswith("did") else ""
            raise ConfigError(f"'{value}' is not of the form name:field=value,field=value{hint}")
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{value!r} is not a mapping with a '{self.tag}'")
        name = _unquoted(fields.get(self.tag))
        if not isinstance(name, str):
            raise ConfigError(f"needs a '{self.tag}'; {nearest('', list(self.members))}")
        member = self.find(name)
        try:
            parsed = member.model_validate({**fields, self.tag: self.name_of(member)})
        except ValidationError as error:
            is_short = isinstance(value, str)
            problems = error.errors(include_url=False)
            again = [self._explained(each, member, is_short=is_short) for each in problems]
            raise ValidationError.from_exception_data(member.__name__, again) from error
        except SpecsimError:
            raise
        except Exception as error:  # the user's own constructor or validator
            raise ConfigError(f"'{name}' cannot be made: {fault(error)}") from error
        # Written back out, a class from elsewhere keeps the name under which it was found.
        return parsed.model_copy(update={self.tag: name}) if self._found[name] is None else parsed

    def _findable(self, member: M) -> M:
        """Return a member that was made in Python under a name by which a file finds its class."""
        own, name = type(member), getattr(member, self.tag)
        module = sys.modules.get(own.__module__)
        is_known = is_shipped_class(own) or ":" in name or name in self._entries
        if is_known or own.__module__ == "__main__" or getattr(module, own.__name__, 0) is not own:
            return member  # as well as can be said
        return member.model_copy(update={self.tag: f"{own.__module__}:{own.__name__}"})

    def _explained(self, problem: Any, member: type[M], *, is_short: bool) -> InitErrorDetails:
        """Return a problem of a member; of a field that is another's, with whose it is."""
        if problem["type"] != "unknown_field" or problem["loc"]:
            return self._with_example(problem, member, is_short=is_short)
        key = problem["ctx"]["key"]
        owners = [name for name, each in self.members.items() if key in each.model_fields]
        if owners and "did you mean" not in problem["msg"]:
            problem["msg"] += f" ('{key}' is a field of {', '.join(owners[:3])})"
        return said_again(problem)

    def _with_example(self, problem: Any, member: type[M], *, is_short: bool) -> InitErrorDetails:
        """Return a problem of a member; of a field that is missing, with how one writes it."""
        field = problem["loc"][0] if problem["loc"] else None
        values = [example[field] for example in member.examples if field in example]
        if problem["type"] != "missing" or len(problem["loc"]) > 1 or not values:
            return said_again(problem)
        text = as_flow(values[0])
        if is_short:  # without blanks, as a shell takes it
            text = f"{self.name_of(member)}:{field}={text.replace(', ', ',')}"
        return said_again(problem, {"example": text if is_short else f"{field}: {text}"})

    def given(self, source: str, value: object) -> M:
        """Return the member that an option or field asks for, which a ConfigError names."""
        try:
            with validated(source, ConfigError):
                return self.parse(value)
        except ConfigError as error:
            told = str(error)
            raise ConfigError(told if told.startswith(source) else f"{source}: {told}") from error

    def _is_member(self, value: object) -> TypeGuard[type[M]]:
        return (
            isinstance(value, type)
            and issubclass(value, self.base)
            and self.tag in value.model_fields
            and isinstance(value.model_fields[self.tag].default, str)
        )

    def _checked(self, value: object, path: str) -> type[M]:
        if not self._is_member(value):
            raise ConfigError(
                f"'{path}' is not a {self.base.__name__} with a default '{self.tag}'; "
                f"subclass specsim.{self.name}.{self.base.__name__}"
            )
        if not is_shipped_class(value):
            self._check_methods(value, path)
        return value

    def _check_methods(self, member: type[M], path: str) -> None:
        """Raise a ConfigError if a class lacks a method, or has one that cannot be called so."""
        shipped = next(each for each in member.__mro__ if is_shipped_class(each))
        for name in sorted(getattr(member, "__abstractmethods__", ())):
            written = [each for each in dir(member) if each not in dir(shipped)]
            close = get_close_matches(name, written, n=1)
            hint = f"its '{close[0]}' may be meant for it" if close else "write it"
            raise ConfigError(f"'{path}' has no method {name}; {hint}")
        for name in (name for name in dir(shipped) if not name.startswith("_")):
            theirs, own = (inspect.getattr_static(each, name) for each in (shipped, member))
            if own is theirs or not (isinstance(theirs, property) or inspect.isfunction(theirs)):
                continue
            if isinstance(theirs, property):
                if callable(own) or isinstance(own, staticmethod | classmethod):
                    raise ConfigError(f"'{path}': {name} must be a property; add @property")
            elif not _takes(own, theirs):
                takes = ", ".join(inspect.signature(theirs).parameters)
                raise ConfigError(f"'{path}': {name} must be a method that takes ({takes})")

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Validate a field of this family by `parse`; dump all fields of the member it holds.

        Without defaults, if they are left out, but with its name.
        """

        def validate(value: object) -> M:
            try:
                return self.parse(value)
            except ConfigError as error:
                raise PydanticCustomError("family", "{why}", {"why": str(error)}) from error

        def dumped(member: M, info: core_schema.SerializationInfo) -> dict[str, Any]:
            own: dict[str, Any] = {"mode": "json", "exclude_none": True, "warnings": False}
            fields = member.model_dump(**own)
            if info.exclude_defaults:
                kept = member.model_dump(**own, exclude_defaults=True)
                fields = {name: kept.get(name, fields[name]) for name in (self.tag, *kept)}
            return fields

        return core_schema.no_info_plain_validator_function(
            validate,
            serialization=core_schema.plain_serializer_function_ser_schema(dumped, info_arg=True),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Describe the field: a shipped member, one in short (``static:k=3``), a user's class."""
        theirs = {"type": "object", "properties": {self.tag: {"type": "string", "pattern": "[:.]"}}}
        shipped = [handler(member.__pydantic_core_schema__) for member in self.members.values()]
        return {"anyOf": [*shipped, {"type": "string"}, {**theirs, "required": [self.tag]}]}


def _takes(own: Any, theirs: Any) -> bool:
    """Tell whether a method can be called with what another takes."""
    function = own.__func__ if isinstance(own, staticmethod | classmethod) else own
    if not callable(function):
        return False
    parameters = inspect.signature(theirs).parameters.values()
    places = [each.name for each in parameters if each.kind != each.KEYWORD_ONLY]
    named = {each.name: None for each in parameters if each.kind == each.KEYWORD_ONLY}
    try:
        inspect.signature(function).bind(*places[isinstance(own, staticmethod) :], **named)
    except (TypeError, ValueError):
        return False
    return True


def _unquoted(value: object) -> object:
    """Return a name as it was meant: an unquoted ``off`` is the boolean False in YAML 1.1."""
    return "off" if value is False else value


def _module_in(name: str) -> str | None:
    """Return the module or file of a class that is named without a colon, None if none is."""
    module, _, attribute = name.rpartition(".")
    if name.endswith(".py"):
        return name
    return module if module and attribute.isidentifier() and attribute[0].isupper() else None


def _load(path: str) -> object:
    """Return what ``module:Class`` or ``folder/file.py:Class`` names."""
    module, _, attribute = path.rpartition(":")
    found = _loaded_module(path, Path(module))
    if not hasattr(found, attribute):
        names = [each.__name__ for each in _classes_of(found)]
        hint = nearest(attribute, names) if names else "it defines no class"
        raise ConfigError(f"cannot load '{path}': no '{attribute}'; {hint}")
    return getattr(found, attribute)


def _loaded_module(path: str, place: Path) -> ModuleType:
    """Return a module of the user's; a ConfigError, which names the path, if it fails."""
    try:
        return _module_at(place)
    except ModuleNotFoundError as error:
        is_it = error.name == str(place)
        where = f" in {working_folder()}, nor among what is installed" if is_it else ""
        raise ConfigError(f"cannot load '{path}': {error}{where}") from error
    except ImportError as error:
        raise ConfigError(f"cannot load '{path}': {error}") from error
    except SpecsimError:
        raise
    except (Exception, SystemExit) as error:  # the user's module runs when it is imported
        raise ConfigError(f"cannot load '{path}': {fault(error)}") from error


def _classes_of(module: ModuleType) -> list[type]:
    """Return the classes that a module makes; of those that it imports nobody asks for one."""
    classes = (each for each in vars(module).values() if isinstance(each, type))
    return [each for each in classes if each.__module__ == module.__name__]


def _file_named(name: str) -> Path | None:
    """Return the Python file, or package, that a module's or a file's name leads to here."""
    if not re.fullmatch(r"[\w./-]+", name):
        return None
    path = Path(name if name.endswith(".py") else name.replace(".", "/") + ".py")
    found = (each for each in (path, path.with_suffix("") / "__init__.py") if each.is_file())
    return next(found, None)


def _module_at(place: Path) -> ModuleType:
    """Return a module by its name, or by its file; a user's file needs no installation."""
    is_file = place.suffix == ".py"
    name = place.stem if is_file else str(place)
    if is_file and not place.is_file():
        raise ConfigError(f"there is no file {place}")
    if is_file and not name.isidentifier():
        raise ConfigError(f"{place}: is no name of a module; rename it to letters, digits and _")
    folder = place.parent.resolve() if is_file else working_folder()
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))  # where worker processes look for it, too
    module = sys.modules.get(name) or _program_named(name) or import_module(name)
    found = getattr(module, "__file__", None)
    if is_file and not (found and place.samefile(found)):
        taken = found or "a part of Python itself"
        raise ConfigError(f"{place}: Python takes '{name}' to be {taken}; rename the file")
    return module


def _program_named(name: str) -> ModuleType | None:
    """Return the running script if it is the module of a name; imported, it would run again."""
    program, spec = sys.modules["__main__"], find_spec(name)
    file, found = getattr(program, "__file__", None), spec.origin if spec is not None else None
    is_same = file and found and os.path.realpath(file) == os.path.realpath(found)
    return program if is_same else None
