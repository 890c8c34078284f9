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
from types import ModuleType

_ROOMS = {
    "core": "atomic columns compiled compiler draft_luck errors families processes request "
    "resources rng settings step version",
    "run": "deployment drafting experiment preload simulate summary",
    "study": "capacity compare gate paired sweep tune",
    "tokens": "draft_eval",
    "show": "breakdown export plots profile_overview render report",
    "reality": "acceptance_fit calibration host_speed parity profile_fit validation",
    "hardware": "model_config",
}
"""By room: what was beside it."""
_MERGED = {
    "acceptance.bernoulli": "beta beta_position per_position",
    "acceptance.layered": "markov",
    "acceptance.nested": "per_drafter shift preset",
    "acceptance.recorded": "token_match",
    "cli": ".examples",
    "cli.inspection": "catalogue",
    "cli.measured_tables": "run_fitting table_validation",
    "cli.options": "terminal",
    "cli.serving": "interactive",
    "cli.simulation": "policies",
    "cli.studies": "splitting",
    "latency.linear": "two_regime",
    "lookup": ".base",
    "lookup.datastore": "corpus",
    "policies.goodput": "goodput_exact",
    "policies.references": "random oracle",
    "policies.step_controller": "cached_step_controller",
    "profile.kernel_tables": "table_options",
    "proposers.lookups": "datastore hybrid ngram sssd suffix",
    "proposers.models": "draft_model draft_models eagle eagle3 mtp medusa",
    "reality.acceptance_fit": ".halves",
    "reality.acceptance_fit.fits": "decoding",
    "reality.calibration": ".calibrate .results",
    "reality.calibration.vllm_subject": "vllm_plan",
    "reality.observe": ".observation .outcome",
    "reality.observe.client": "server observed_server limits",
    "reality.parity": ".scenario",
    "reality.profile_fit": ".estimate",
    "reality.profile_fit.regression": "drafting robust",
    "reality.validation": ".validation",
    "reality.validation.run_folder": "recorded_drafts",
    "reality.validation.table": "bench_result",
    "reality.validation.table_replay": "spread",
    "results.folder": "export",
    "results.metrics": "slo buckets",
    "results.records": "prefills",
    "results.tables": "weighted",
    "routing.prompts": "prefix_affinity scored",
    "routing.simple": "round_robin random least_outstanding least_outstanding_tokens",
    "run.cells": "ends",
    "run.experiment": "pool_config",
    "run.summary": "trust",
    "run.whole": "pools",
    "serve": ".server",
    "serve.protocol": "answers",
    "serve.watchers": "log metrics",
    "show.plots": ".figures",
    "show.plots.drawing": "maps",
    "show.plots.reality": "predictions profiles",
    "show.plots.runs": "tune",
    "show.render": ".tables",
    "show.render.capacity": "plan splits",
    "show.render.reality": "predictions run_fit",
    "show.report.axes": "sweep_folder",
    "show.report.study": "cells colours",
    "show.ui": ".server",
    "study.capacity.findings": "ranking",
    "study.capacity.probe": "interval",
    "study.capacity.search": "load_probe",
    "study.gate": ".baseline .suite",
    "study.plan.answer": "files",
    "study.sweep": ".folder",
    "study.sweep.plan": "check",
    "study.tune.batch": "trials",
    "study.tune.crossover": "check",
    "tokens.convert": "tokenizer",
    "tokens.describe": "repetition",
    "tokens.draft_eval": "draft_grid",
    "workload": ".config",
    "workload.arrivals.synthetic": "burst constant poisson gamma piecewise closed_loop trace",
    "workload.lengths.synthetic": "constant uniform lognormal truncated_normal dataset shift "
    "trace empirical",
    "workload.readers": "files",
    "workload.readers.formats": "azure burstgpt mooncake bailian llmservingsim vidur vllm_bench "
    "real_run sharegpt token_trace services programs texts",
}
"""By module: what was beside it, or with a dot inside it, and is in it now."""
_MOVED = {
    **{name: f"{room}.{name}" for room, names in _ROOMS.items() for name in names.split()},
    **{
        f"{new if name[0] == '.' else new.rpartition('.')[0]}.{name.lstrip('.')}": new
        for new, names in _MERGED.items()
        for name in names.split()
    },
    "calibration.clock": "reality.clock",
    "calibration.observe": "reality.observe",
    "calibration.observe.outcome": "reality.observe",
    "calibration.run_writer": "reality.run_writer",
    "calibration.torch_engine": "reality.torch_engine",
    "calibration.vllm": "reality.vllm.scheduler",
    "catalogue": "show.render.catalogue",
    "draft_grid": "tokens.draft_eval",
    "plots.profile_show": "show.plots.reality",
    "plots.timeline": "show.plots.runs",
    "plots.validation": "show.plots.reality",
    "render.gate": "show.render.studies",
    "render.profile_show": "show.render.profiles",
    "render.run": "show.render.runs",
    "results.steps": "results.folder",
    "results.time_use": "results.timeline",
    "serve.alarm": "reality.clock",
    "show.profile_overview": "show.render.profiles",
    "roofline_profile": "profile.from_roofline",
}


class _Moved(MetaPathFinder, Loader):
    """Find a module under the name that it had before version 0.2, with a warning."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        _, _, name = fullname.partition(f"{__name__}.")
        parts = name.split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        old = next((old for old in names if old in _MOVED), None)
        if old is None:
            return None
        new = f"{__name__}.{_MOVED[old]}{name.removeprefix(old)}"
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
