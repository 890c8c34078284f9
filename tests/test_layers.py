"""Which module may import which; the rows are those of the design, lowest first."""

import ast
import re
from collections import Counter
from collections.abc import Container, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from specsim.autoscaling import AUTOSCALING
from specsim.core.families import Family
from specsim.policies import POLICIES, Policy
from specsim.routing import ROUTING

FAMILY: dict[str, Family[Any]] = {
    "policies": POLICIES,
    "routing": ROUTING,
    "autoscaling": AUTOSCALING,
}
ROWS = [
    "core",
    "hardware workload acceptance latency profile lookup proposers decisions policies routing "
    "autoscaling",
    "results engine",
    "run",
    "tokens study reality vllm serve show cli api __main__",
]
RANK = {
    unit: (row, place) for row, units in enumerate(ROWS) for place, unit in enumerate(units.split())
}
FAMILIES = {"acceptance", "latency", "proposers", "policies", "routing", "autoscaling"}
HEAVY = ("fcntl", "llvmlite", "numba", "pyarrow", "resource", "scipy", "vl_convert")
ROOT = Path(__file__).parents[1] / "specsim"
SCRIPTS = sorted(
    path for name in ("benchmarks", "experiments") for path in (ROOT.parent / name).rglob("*.py")
)
TESTS = sorted(
    path
    for path in (ROOT.parent / "tests").rglob("*.py")
    if not path.name.startswith("record")  # which drive vLLM's scheduler
)
OWN = {  # what is defined in tests themselves, and what tuples have
    *("_asdict", "_fields", "_make", "_replace"),
    *(name for path in TESTS for name in re.findall(r"(?:self\.|def )(_\w+)", path.read_text())),
}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


class Facts(NamedTuple):
    """What tests ask of a file of specsim, which is parsed once."""

    imports: list[tuple[ast.Import | ast.ImportFrom, bool]]
    """In the order of `ast.walk`, and whether at the top level, for type checkers or not."""
    first: list[ast.Import | ast.ImportFrom]  # those at the top level that do run
    classes: list[str]
    names: set[str]  # of variables and attributes
    constants: set[Any]


@cache
def facts(path: Path) -> Facts:
    tree = ast.parse(path.read_text())
    only_types = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    top_level = {*tree.body, *(each for node in only_types for each in ast.iter_child_nodes(node))}
    nodes = list(ast.walk(tree))
    found = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return Facts(
        [(node, node in top_level) for node in found],
        [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)],
        [node.name for node in nodes if isinstance(node, ast.ClassDef)],
        names | {node.id for node in nodes if isinstance(node, ast.Name)},
        {node.value for node in nodes if isinstance(node, ast.Constant)},
    )


def imports(path: Path) -> list[tuple[str, bool]]:
    """Return what a file imports, and whether it does so at its top level."""
    found = []
    for node, is_top_level in facts(path).imports:
        if isinstance(node, ast.ImportFrom):
            found.append((node.module or "", is_top_level))
        else:
            found.extend((alias.name, is_top_level) for alias in node.names)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_or_left(path: Path) -> None:
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    for name, is_top_level in imports(path):
        may_be_late = own in {"cli", "__main__"} or name.startswith(HEAVY)
        assert is_top_level or may_be_late, f"imports {name} inside a function"
        assert not name.startswith(("torch", "vllm")) or own in {"reality", "vllm"}
        assert not name.startswith("simpy") or own in {"engine", "run"}
        assert not name.startswith("vl_convert") or path.is_relative_to(ROOT / "show" / "charts")
        assert not name.startswith(("tiktoken", "tokenizers")) or own == "tokens"
        if not name.startswith("specsim."):
            continue
        _, unit, *rest = name.split(".")
        assert unit == own or RANK[unit] < RANK[own], f"{own} must not import {unit}"
        is_member = unit in FAMILIES and rest and rest[0] != "base"
        assert not (is_member and own in FAMILIES - {unit}), f"{own} imports a member of {unit}"


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def loaded_first(path: Path, modules: Container[str]) -> set[str]:
    """Return the modules that a file needs whole before its own top level has run."""
    found: set[str] = set()
    for node in facts(path).first:
        if isinstance(node, ast.ImportFrom):
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update({node.module or ""}, parts)
        else:
            found.update(alias.name for alias in node.names)
    found |= {name.rsplit(".", number)[0] for name in found for number in range(name.count("."))}
    own = name_of(path)  # whose packages are being loaded already
    return {name for name in found if name in modules and not f"{own}.".startswith(f"{name}.")}


def test_modules_load_in_any_order() -> None:
    """A circle of imports breaks only the command that happens to enter it at the wrong place."""
    modules = {name_of(path): path for path in ROOT.rglob("*.py")}
    graph = {name: loaded_first(path, modules) for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
    else:
        circle = []
    assert not circle


@pytest.mark.parametrize("family", ["policies", "routing", "autoscaling"])
def test_the_engine_knows_no_member(family: str) -> None:
    """What is to be done for one of them alone is done by its own class, through one hook."""
    paths = [path for path in MODULES if path.parent == ROOT / "engine"]
    assert len(paths) > 10
    for path in paths:
        for name, _ in imports(path):
            known = name.removeprefix(f"specsim.{family}")
            assert known in (name, ""), f"{path.name} imports {name}"
        names, members = facts(path).names, FAMILY[family].members
        shown = {member.__name__ for member in members.values()}
        assert not names & shown, f"{path.name} names {names & shown}"
        assert not facts(path).constants & (
            members.keys() - {"off", "static", "schedule", "random"}
        )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_private_stays_in_its_room(path: Path) -> None:
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    for node, _ in facts(path).imports:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specsim."):
            _, unit, *rest = str(node.module).split(".")
            private = [name for name in rest if name.startswith("_")]
            assert unit == own or not private, f"imports {node.module}"
            names = [alias.name for alias in node.names if re.match("_[a-z]", alias.name, re.I)]
            assert not names, f"imports {names} of {node.module}"


def private_names(path: Path) -> Iterator[str]:
    """Yield what a test takes from modules of specsim that is their own affair."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specsim"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and node.attr not in OWN:
            yield f".{node.attr}"
        elif isinstance(node, ast.Constant) and str(node.value).startswith("specsim."):
            yield str(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            yield from ("." + ast.unparse(name).strip("'") for name in node.args[1:2])


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_tests_take_nothing_private(path: Path) -> None:
    assert not [name for name in private_names(path) if re.search(r"\._[a-zA-Z]", name)]


def test_a_policy_has_few_members() -> None:
    members = {name for name in vars(Policy) if not name.startswith(("_", "model_"))}
    assert len(members | set(Policy.__annotations__)) <= 15


def test_no_name_is_used_twice() -> None:
    classes = [name for path in MODULES for name in facts(path).classes if name != "_Memory"]
    files = [path.name for path in MODULES if path.name not in {"__init__.py", "base.py"}]
    assert [name for name, count in Counter(classes + files).items() if count > 1] == []


def test_no_column_is_a_method_of_numpys_rows() -> None:
    """Loops that run as Python would find the method: `specsim.core.compiled.as_records`."""
    rows = [
        node
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
    ]
    fields = {
        ast.unparse(each.target)
        for row in rows
        for each in row.body
        if isinstance(each, ast.AnnAssign)
    }
    assert not fields & set(dir(np.void))


def test_every_unit_has_a_place() -> None:
    assert {path.relative_to(ROOT).with_suffix("").parts[0] for path in MODULES} <= set(RANK)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_what_a_script_imports_exists(path: Path) -> None:
    """Some import inside a function, which a renamed class breaks only when it is called."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specsim"):
            try:
                module = import_module(str(node.module))
            except ImportError as error:
                if not (error.name or "").startswith(("torch", "vllm")):  # are not installed
                    raise
                continue
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                assert hasattr(module, alias.name) or find_spec(name), name
