"""The catalogue: every family, its members, and what ships with specsim."""

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from specsim.acceptance import ACCEPTANCE
from specsim.autoscaling import AUTOSCALING
from specsim.core.families import Family
from specsim.core.settings import Settings, as_flow
from specsim.latency import LATENCY
from specsim.policies import POLICIES
from specsim.proposers import PROPOSERS
from specsim.routing import ROUTING
from specsim.workload.arrivals import ARRIVALS
from specsim.workload.lengths import LENGTHS
from specsim.workload.readers import READERS

_ALL: tuple[Family[Any], ...] = (
    *(ARRIVALS, LENGTHS, READERS, LATENCY, ACCEPTANCE, PROPOSERS, POLICIES),
    *(ROUTING, AUTOSCALING),
)
FAMILIES: dict[str, Family[Any]] = {family.name: family for family in _ALL}
"""All families by name."""


def family_table(family: Family[Any]) -> Table:
    """Return the members of a family with their fields."""
    table = Table(title=family.name, title_justify="left", header_style="bold", show_lines=True)
    for column in (family.tag, "what it is, and an example", "fields"):
        table.add_column(column)
    for name, member in family.all_members().items():
        fields = (
            _field(field, info)
            for field, info in member.model_fields.items()
            if field != family.tag
        )
        summary, *_ = (member.__doc__ or "").strip().splitlines() or ["(no docstring)"]
        examples = (as_flow({family.tag: name, **example}) for example in member.examples)
        table.add_row(name, escape("\n".join([summary, *examples])), escape("\n".join(fields)))
    return table


def names_table(title: str, names: dict[str, str]) -> Table:
    """Return a table of names, each with a remark."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("source")
    for name, remark in names.items():
        table.add_row(name, escape(remark))
    return table


def _field(name: str, info: FieldInfo) -> str:
    text = f"{name}: {_type(info.annotation)}"
    return text if info.is_required() else f"{text} = {info.default}"


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return f"{{{', '.join(annotation.model_fields)}}}"
    arguments = get_args(annotation)
    if not arguments:
        return getattr(annotation, "__name__", str(annotation)).replace("NoneType", "None")
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, arguments))
    if get_origin(annotation) is tuple:
        return f"[{', '.join('...' if part is ... else _type(part) for part in arguments)}]"
    return " | ".join(map(_type, arguments))
