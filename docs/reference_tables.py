"""The reference: tables made from the code itself.

    python docs/reference_tables.py     # writes them into docs/reference/

`CONTENTS` has one function per marker: what stands below the line ``<!-- generated: commands -->``
of a page, up to its end, is what `CONTENTS["commands"]` returns.
"""

import ast
import inspect
import json
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pyarrow.parquet as pq
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from specsim.cli import app
from specsim.core.families import Family, Member
from specsim.core.request import Request
from specsim.engine.versions import RULES, Rules
from specsim.hardware import GpuSpec, ModelShape
from specsim.profile import Profile
from specsim.results import grouped, meanings
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.show.render.catalogue import FAMILIES
from specsim.study.gate import Suite
from specsim.study.sweep import Sweep

PAGES = {
    "workload.arrivals": "workload.md",
    "workload.lengths": "workload.md",
    "workload.readers": "workload.md",
    "policies": "policies.md",
    "proposers": "drafting.md",
    "acceptance": "drafting.md",
    "latency": "latency-and-routing.md",
    "routing": "latency-and-routing.md",
    "autoscaling": "latency-and-routing.md",
}
"""Page that describes each family."""
FOLDER = Path(__file__).parent / "reference"
ROOT = Path(__file__).parents[1]
NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", Path: "path"}
BOUNDS = (("gt", "> "), ("ge", "≥ "), ("lt", "< "), ("le", "≤ "))
TINY = {
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 20.0},
        "lengths": {
            "kind": "sessions",
            "turns": 2,
            "first_prompt": 100,
            "new_input": 20,
            "output": 20,
        },
        "num_requests": 20,
    },
    "engine": {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}},
    "acceptance": {"kind": "bernoulli", "alpha": 0.7},
    "profile": "h100/llama-3.1-8b",
    "autoscaling": {"kind": "target_queue", "target": 1, "max_replicas": 2},
    "slo": {"ttft_ms": 500},
}


def one_line(text: str) -> str:
    """Return text as a cell of a table: one line, code in single backticks."""
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# Fields of configuration files


def field_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the string under each field of a model and of its base classes."""
    texts: dict[str, str] = {}
    for each in reversed([base for base in model.__mro__ if issubclass(base, BaseModel)][:-1]):
        if each is not BaseModel:
            texts |= own_texts(each)
    return texts


@cache
def own_texts(kind: type) -> dict[str, str]:
    """Return the string under each field of a class."""
    texts: dict[str, str] = {}
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            texts[field.target.id] = ast.literal_eval(below.value)
    return texts


def versions() -> str:
    """Return which versions of vLLM have which rules."""
    rows = [
        [f"`{name}`", one_line(text), *("yes" if getattr(r, name) else "" for r in RULES.values())]
        for name, text in own_texts(Rules).items()
    ]
    return table(["rule", "meaning", *RULES], rows)


def type_text(annotation: Any, metadata: Iterable[Any] = (), base: str = "") -> str:
    """Return what a field may hold, as a user of YAML would say it."""
    metadata = list(metadata)
    for each in metadata:
        if isinstance(each, Family):
            return f"[one of {each.name}]({PAGES[each.name]}#{anchor(each.name)})"
        if isinstance(each, FieldInfo):
            metadata = metadata + list(each.metadata)
    bounds = [
        f"{sign}{getattr(m, name)}" for m in metadata for name, sign in BOUNDS if hasattr(m, name)
    ]
    return " ".join([_plain_type(annotation, base), ", ".join(bounds)]).strip()


def _plain_type(annotation: Any, base: str) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        text = type_text(args[0], args[1:], base)
    elif origin in (Union, types.UnionType):
        text = " or ".join(type_text(a, base=base) for a in args if a is not types.NoneType)
    elif origin is Literal:
        text = " or ".join(f"`{each}`" for each in args)
    elif origin in (list, tuple):
        inner = [type_text(a, base=base) for a in args if a is not Ellipsis]
        is_fixed = origin is tuple and Ellipsis not in args
        text = f"[{', '.join(inner)}]" if is_fixed else f"list of {inner[0]}"
    elif origin is dict:
        text = f"mapping to {type_text(args[1], base=base)}"
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        text = f"[{_title(annotation)}]({base}#{anchor(annotation.__name__)})"
    else:
        text = NAMES.get(annotation, "anything")
    return text


def default_text(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if field.is_required() or default is PydanticUndefined:
        return "*needed*"
    if isinstance(default, Member):
        return f"`{next(iter(default.model_dump().values()))}`"
    if default is None or isinstance(default, BaseModel) or default in ({}, (), ""):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def fields(model: type[BaseModel], skipped: Iterable[str] = ()) -> str:
    """Return the table of a model's fields."""
    texts = field_texts(model)
    rows = [
        (
            f"`{name}`",
            type_text(f.annotation, f.metadata),
            default_text(f),
            one_line(texts.get(name, "")),
        )
        for name, f in model.model_fields.items()
        if name not in skipped
    ]
    return table(("field", "value", "default", "meaning"), rows) if rows else "No fields.\n"


def nested(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the models that a model's fields hold, families apart."""

    def inside(annotation: Any, metadata: Iterable[Any]) -> Iterator[type[BaseModel]]:
        if any(isinstance(each, Family) for each in metadata):
            return
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        args = get_args(annotation)
        if get_origin(annotation) is Annotated:
            yield from inside(args[0], args[1:])
        else:
            for each in args:
                yield from inside(each, ())

    for field in model.model_fields.values():
        yield from inside(field.annotation, field.metadata)


def tree(*roots: type[BaseModel]) -> str:
    """Return a section per model, the roots first, then what they hold."""
    todo, done = list(roots), []
    while todo:
        model = todo.pop(0)
        if model not in done:
            done.append(model)
            todo.extend(nested(model))
    return "\n".join(_section(model, "##") for model in done)


def _section(
    model: type[BaseModel], level: str, title: str = "", skipped: Iterable[str] = ()
) -> str:
    heading = title or anchored(_title(model), anchor(model.__name__))
    return f"{level} {heading}\n\n{prose(model.__doc__ or '')}\n\n{fields(model, skipped)}"


def _title(model: type[BaseModel]) -> str:
    return model.__name__.strip("_")


def prose(text: str) -> str:
    """Return a docstring without its Google sections."""
    text = inspect.cleandoc(text)
    for heading in ("Args:", "Attributes:", "References:", "Returns:", "Raises:"):
        text = text.split(f"\n{heading}\n")[0]
    return text.replace("``", "`").strip()


def families(page: str) -> str:
    """Return a section per family of a page, with one for each of its members."""
    return "\n".join(_family(FAMILIES[name]) for name in PAGES if PAGES[name] == page)


def _family(family: Family[Any]) -> str:
    title = anchored(family.name, anchor(family.name))
    parts = [f"## {title}\n\n{prose(family.base.__doc__ or '')}\n"]
    inner: list[type[BaseModel]] = []
    for kind, member in family.members.items():
        heading = anchored(kind, f"{anchor(family.name)}-{anchor(kind)}")
        parts.append(_section(member, "###", heading, {family.tag}))
        if member.aliases:
            parts.append(f"Also known as {', '.join(f'`{alias}`' for alias in member.aliases)}.\n")
        inner += [each for each in nested(member) if each not in inner]
    return "\n".join([*parts, *(_section(model, "###") for model in inner)])


def anchored(title: str, name: str) -> str:
    """Return a heading that can be linked to under a name, here and in the site."""
    return f'<a id="{name}"></a>{title}'


def anchor(name: str) -> str:
    return name.lower().strip("_").replace(".", "-").replace("_", "-").replace(" ", "-")


# Commands


def commands() -> str:
    root = typer.main.get_command(app)
    return "\n".join(_command(path, command) for path, command in all_commands(root))


def all_commands(root: Any, path: str = "specsim") -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, groups before their members."""
    yield path, root
    for name, command in getattr(root, "commands", {}).items():
        yield from all_commands(command, f"{path} {name}")


def _command(path: str, command: Any) -> str:
    text = inspect.getdoc(command.callback) if command.epilog else command.help
    parts = [f"## {anchored(path, anchor(path))}\n\n{prose(text or '')}\n"]
    shown = [each for each in command.params if each.name not in _UNSHOWN]
    arguments = [_argument_name(each) for each in shown if each.param_type_name == "argument"]
    if not hasattr(command, "commands"):
        parts.append(f"```text\n{' '.join([path, *arguments, '[OPTIONS]'])}\n```\n")
    if command.epilog:
        parts.append(f"```text\n{command.epilog.removeprefix('Example: ')}\n```\n")
    hints = get_type_hints(command.callback) if command.callback else {}
    rows = [_parameter(each, hints[each.name]) for each in shown]
    return "\n".join([*parts, table(("option", "default", "meaning"), rows) if rows else ""])


_UNSHOWN = ("help", "install_completion", "show_completion")
_OF_THE_MACHINE = ("workers",)


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _parameter(parameter: Any, hint: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        name = _argument_name(parameter)
    else:
        value = "" if parameter.is_flag else f" {parameter.metavar or _value_name(hint)}"
        name = ", ".join(parameter.opts) + value
    default = "*needed*" if parameter.required else ""
    if parameter.name in _OF_THE_MACHINE:
        default = "one per core"
    elif parameter.default not in (None, False, ()) and not callable(parameter.default):
        default = f"`{getattr(parameter.default, 'value', parameter.default)}`"
    return f"`{name}`", default, one_line(getattr(parameter, "help", "") or "")


def _value_name(hint: Any) -> str:
    """Return what stands for the value of an option, from the annotation of its parameter."""
    if get_origin(hint) is Literal:
        return "|".join(get_args(hint))
    for each in get_args(hint):
        if each is not types.NoneType:
            return _value_name(each)
    if issubclass(hint, Enum):
        return "|".join(str(each.value) for each in hint)
    return {int: "COUNT", float: "NUMBER", Path: "PATH"}.get(hint, "TEXT")


# Results


def results() -> str:
    """Return the columns and fields of a run's results, each with its meaning."""
    found: dict[str, dict[str, None]] = {}
    offload = {"engine": {**TINY["engine"], "kv_offload": {"blocks": 100}}}
    clients = {"kind": "closed_loop", "concurrency": 2}
    offload["workload"] = {**TINY["workload"], "arrivals": clients}
    offload["incidents"] = [{"kind": "slowdown", "replica": 0, "at": 0, "factor": 2}]
    spec = {"method": "draft_model", "num_speculative_tokens": 3}
    own = {**spec, "own_gpus": {"profile": "h100/llama-3.2-1b"}}
    apart = {"engine": {"speculative_config": own}}
    named = [Request(index=0, prompt_len=9, output_len=9, id="a", priority=1, adapter=1)]
    with TemporaryDirectory() as folder:
        profile = Path(folder) / "lora.yaml"
        plain = ROOT / "profiles" / f"{TINY['profile']}.yaml"
        profile.write_text(f"{plain.read_text()}\nlora: {{}}\n")
        piped = Path(folder) / "piped.yaml"
        piped.write_text(f"{plain.read_text()}\nstage_shares: [0.5, 0.5]\n")
        pipeline = {"policy": "off", "acceptance": None, "profile": str(piped)}
        pipeline["engine"] = {"num_gpu_blocks": 400, "max_model_len": 512}
        lora = {"engine": {**TINY["engine"], "lora_config": {}}, "profile": str(profile)}
        for changes, requests in (
            ({}, None), ({"pools": {}, "autoscaling": None}, None), (offload, None), (lora, named),
            (apart, None), (pipeline, None),
        ):  # fmt: skip
            for file, names in _written({**TINY, **changes}, requests).items():
                found.setdefault(file, {}).update(dict.fromkeys(names))
    others = {file: dict.fromkeys(names) for file, names in meanings().items() if file not in found}
    return "\n".join(_meanings(file, list(names)) for file, names in (found | others).items())


def _written(config: dict[str, Any], requests: list[Request] | None) -> dict[str, list[str]]:
    """Return what a run writes, by file."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        experiment = Experiment.parse(config, "the reference")
        Summary(simulate(experiment, requests=requests, keeps_deliveries=True)).save(folder)
        data = json.loads((folder / "summary.json").read_text())
        return {
            "summary.json": list(dict.fromkeys(grouped(key) for key in data if key != "specsim")),
            "specsim": list(data["specsim"]),
            "requests.parquet": pq.read_schema(folder / "requests.parquet").names,
            "steps.parquet": pq.read_schema(folder / "steps.parquet").names,
        }


def _meanings(file: str, names: list[str]) -> str:
    known = meanings()[file]
    wrong = set(names) ^ set(known)
    if wrong:
        raise ValueError(f"{file}: no meaning, or no column: {', '.join(sorted(wrong))}")
    heading = "The block `specsim` of summary.json" if file == "specsim" else file
    header = ("name", "unit", "meaning") if file.endswith(".parquet") else ("name", "meaning")
    rows = [(f"`{name}`", *map(one_line, as_columns(known[name]))) for name in names]
    return f"## {anchored(heading, anchor(file))}\n\n{table(header, rows)}"


def as_columns(known: str | list[str]) -> list[str]:
    """Return a meaning, or unit and meaning, as cells."""
    return [known] if isinstance(known, str) else known


CONTENTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "experiment": lambda: tree(Experiment),
    **{page.removesuffix(".md"): partial(families, page) for page in PAGES.values()},
    "files": lambda: tree(Sweep, Suite, Profile, GpuSpec, ModelShape),
    "results": results,
    "versions": versions,
}

_MARKER = re.compile(r"<!-- generated: ([\w-]+) -->\n")


def page(path: Path) -> str:
    """Return a page of the reference as it should be: what is not generated stays."""
    text = path.read_text(encoding="utf-8")
    marker = _MARKER.search(text)
    return text if marker is None else f"{text[: marker.end()]}\n{CONTENTS[marker[1]]()}"


if __name__ == "__main__":
    for each in sorted(FOLDER.glob("*.md")):
        each.write_text(page(each), encoding="utf-8")
