"""specsim: a discrete-event simulator of LLM serving with speculative decoding.

The rooms, in the order in which a run passes through (ARCHITECTURE.md walks one request through):

``run``          one YAML file, checked and frozen; the server it describes; simulation; summary
``workload``     which requests come, when, how long; readers for every trace format
``routing``      which replica takes a request
``engine``       a table of sequences and the five verbs of a step; replicas on SimPy's clock
``policies``     how much to draft, decided anew at every step
``proposers``, ``lookup``, ``acceptance``   who drafts, from what, what survives
``latency``, ``profile``, ``hardware``      how long a step takes, on which GPU, with which model
``results``      records, metrics, files
``study``        many runs for one answer: compare, tune, sweep, capacity, plan, gate
``reality``      real engines: calibration, validation, parity with recordings
``tokens``       traces of real tokens
``show``, ``cli``   tables, pictures, pages; the command line
``core``         what all of them stand on

Import the public names from `specsim.api`; this file imports no room, so that the command line
starts fast. Modules that have moved are found under their old names for now.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_LINES = Path(__file__).with_name("moved.csv").read_text().split()[1:]
_MOVED: dict[str, str] = dict(line.split(",") for line in _LINES)  # by old name, without specsim


def _new_name(name: str) -> str:
    """Return what a module is called now, which may have moved more than once."""
    root, *parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    old = next((old for old in names if old in _MOVED), None)
    if root != __name__ or old is None:
        return name
    return _new_name(".".join([root, _MOVED[old], *parts[old.count(".") + 1 :]]))


class _Moved(MetaPathFinder, Loader):
    """Find a module under the name that it had before version 0.2, with a warning."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = _new_name(fullname)
        if new == fullname:
            return None
        warnings.warn(f"{fullname} is now {new}", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, self, origin=new)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        assert spec.origin is not None
        module = import_module(spec.origin)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system has just put that of the old name there


sys.meta_path.insert(0, _Moved())  # before what would load a moved package's modules twice
