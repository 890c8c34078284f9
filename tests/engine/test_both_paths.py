"""Whatever a compiled loop decides can be decided in Python as well: the same, to the byte."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digest_cases import (
    BERNOULLI,
    Case,
    case,
    later_cases,
    pool_cases,
    slowdown,
    write_profiles,
    write_token_trace,
)
from digests import run

from specsim.core import compiled
from specsim.core.step import BatchView, Ints
from specsim.decisions.loops import Asking, LoopMemory
from specsim.decisions.policy import LoopPolicy
from specsim.engine import order
from specsim.engine.python_verbs import PythonVerbs
from specsim.engine.speculation import Speculation
from specsim.engine.view import StepView
from specsim.policies import PicksDrafter
from specsim.policies.parts import trials
from specsim.policies.static import Off, Schedule, Static
from specsim.profile import StepCosts
from specsim.proposers.base import LookupProposer
from specsim.proposers.lookups import Ngram, Suffix
from specsim.run.draft_sources import TableDrafts

ENGINES: dict[str, Any] = {
    "asynchronous": {},
    "synchronous": {"async_scheduling": False, "scheduling_policy": "priority"},
    "prefill_first": {"scheduler": "prefill_first", "max_num_batched_tokens": 1024},
    "crowded": {"num_gpu_blocks": 130, "max_num_seqs": 40},
}
SLOW = [slowdown(0, 0.1, 0.3, 2.3), slowdown(1, 0.2, None, 0.7)]


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_profiles(tmp_path_factory.mktemp("profiles"))


def drafted(engine: str, profiles: dict[str, str], **changes: Any) -> Iterator[Case]:
    """Yield runs of one scheduler: fixed and scheduled lengths, models and lookups, all costs."""
    ranges = [[1, 4, 3], [5, 12, 2], [13, 30, 1], [31, 999, 0]]
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "match_probability": 0.5}
    suffix = {"method": "suffix", "num_speculative_tokens": 4, "mean_match_len": 2.0}
    usual: dict[str, Any] = {
        "engine": ENGINES[engine],
        "workload": {"num_requests": 30},
        "replicas": 2,
        "incidents": SLOW,
        **changes,
    }
    beta = {"kind": "beta", "a": 4.0, "b": 2.0}
    runs: dict[str, Any] = {
        "off": {"spec": None, "profile": profiles["overhead"], "policy": "off"},
        "eagle": {"spec": "eagle:3", "profile": profiles["two_regime"], "acceptance": beta},
        "eagle3": {"spec": "eagle3:3", "profile": profiles["host_time"]},
        "medusa": {"spec": "medusa:4", "profile": profiles["tabulated_mixed"]},
        "draft_model": {"spec": "draft_model:4", "profile": profiles["tabulated"]},
        "schedule": {"spec": "draft_model:3", "profile": profiles["overhead"],
                     "policy": {"kind": "schedule", "ranges": ranges}},
        "ngram": {"spec": ngram, "profile": profiles["two_regime"]},
        "suffix": {"spec": suffix, "profile": profiles["linear"],
                   "policy": {"kind": "schedule", "ranges": ranges}},
    }  # fmt: skip
    for name, fields in runs.items():
        yield case(f"{engine}/{name}", **{"acceptance": BERNOULLI, **usual, **fields})


def digests(cases: Iterator[Case]) -> dict[str, Any]:
    """Return the digest of every column of every run."""
    found = {each.name: run(each, "/")[0] for each in cases}
    assert not [name for name, record in found.items() if "error" in record], found
    return {name: record["digests"] for name, record in found.items()}


def asks_in_python(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Speculation, "lens_by_size", lambda self, largest: None)


def with_costs(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    compiled = StepCosts.compiled
    patch.setattr(StepCosts, "compiled", lambda self: replace(compiled(self), **changes))


def has_no_form(patch: pytest.MonkeyPatch) -> None:
    with_costs(patch, target=None, drafter=None, drafts=False)


def charges_target_in_python(patch: pytest.MonkeyPatch) -> None:
    with_costs(patch, target=None)


def charges_drafts_in_python(patch: pytest.MonkeyPatch) -> None:
    with_costs(patch, drafts=False)


def offers_in_python(patch: pytest.MonkeyPatch) -> None:
    offered_len = LookupProposer.offered_len
    for proposer in (Ngram, Suffix):
        patch.setattr(proposer, "offered_len", lambda *args: offered_len(*args))  # noqa: PLW0108 - not the same function


def verifies_in_python(patch: pytest.MonkeyPatch) -> None:
    def accepted_lens(self: TableDrafts, step: StepView) -> Ints:
        return self.fates(step.requests, step.output_lens)

    patch.setattr(TableDrafts, "verifies", True)
    patch.setattr(TableDrafts, "accepted_lens", accepted_lens)


def trims_nothing(patch: pytest.MonkeyPatch) -> None:
    for policy in (Off, Schedule, Static):
        patch.setattr(policy, "verify_lens", lambda _, batch, drafts, memory: drafts.draft_lens)


def observes(patch: pytest.MonkeyPatch) -> None:
    for policy in (Off, Schedule, Static):
        patch.setattr(policy, "observe", lambda *_: None)


def chooses_the_only_drafter(patch: pytest.MonkeyPatch) -> None:
    """Also, the loads of drafters are then taken apart one by one."""
    init = Speculation.__post_init__

    def chooses(self: Speculation) -> None:
        init(self)
        self.policy = self.policy.model_copy()
        object.__setattr__(self.policy, "__class__", _choosing(type(self.policy)))
        self.is_shared_out = self.source is not None

    patch.setattr(Speculation, "__post_init__", chooses)


def _choosing(policy: type) -> type:
    first: dict[str, Any] = {"choose_drafter": lambda self, request, prompt_len, memory: 0}
    return type(policy.__name__, (policy, PicksDrafter), first)


def does_everything_in_python(patch: pytest.MonkeyPatch) -> None:
    for force in (
        *(asks_in_python, has_no_form, offers_in_python, verifies_in_python, trims_nothing),
        *(observes, chooses_the_only_drafter),
    ):
        force(patch)


FORCED: list[tuple[Callable[[pytest.MonkeyPatch], None], set[int | str]]] = [
    (asks_in_python, {"decide"}),
    (has_no_form, {order.CHARGE_FORWARD, order.CHARGE_DRAFTS}),
    (charges_target_in_python, {order.CHARGE_FORWARD}),
    (charges_drafts_in_python, {order.CHARGE_DRAFTS}),
    (offers_in_python, {order.OFFER}),
    (verifies_in_python, {order.VERIFY, order.DELIVERED}),
    (trims_nothing, {"verify"}),
    (observes, {"observe"}),
    (chooses_the_only_drafter, {order.TAKE_IN, order.CHARGE_DRAFTS}),
    (
        does_everything_in_python,
        {
            *(order.CHARGE_FORWARD, order.CHARGE_DRAFTS, order.OFFER, order.VERIFY),
            *(order.DELIVERED, order.TAKE_IN, "decide", "verify", "observe"),
        },
    ),
]


@pytest.fixture(scope="module")
def as_they_are(profiles: dict[str, str]) -> Callable[[str], dict[str, Any]]:
    """Run every case once as it is; nothing is done in Python."""
    known: dict[str, dict[str, Any]] = {}

    def of(engine: str) -> dict[str, Any]:
        if engine not in known:
            with pytest.MonkeyPatch.context() as patch:
                seen = verbs_seen(patch)
                known[engine] = digests(drafted(engine, profiles))
            assert seen == set()
        return known[engine]

    return of


def verbs_seen(patch: pytest.MonkeyPatch) -> set[int | str]:
    """Return a set that fills with what replicas do in Python: verbs, and hooks of policies."""
    seen: set[int | str] = set()
    wanted, asking = PythonVerbs.handlers, Speculation.asking

    def watched(self: PythonVerbs) -> dict[int, Callable[[], None]]:
        found = wanted(self)
        seen.update(verb for verb in found if verb < order.VERBS)
        return found

    def asked(self: Speculation, step: Callable[[], StepView]) -> Asking:
        hooks = asking(self, step)
        if not self.is_loops:
            seen.update(verb for verb, hook in hooks._asdict().items() if hook is not None)
        return hooks

    patch.setattr(PythonVerbs, "handlers", watched)
    patch.setattr(Speculation, "asking", asked)
    return seen


@pytest.mark.parametrize(
    ("force", "verbs"), [pytest.param(*each, id=each[0].__name__) for each in FORCED]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_verb_done_in_python_does_the_same(
    engine: str,
    force: Callable[[pytest.MonkeyPatch], None],
    verbs: set[int | str],
    profiles: dict[str, str],
    as_they_are: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = as_they_are(engine)
    seen = verbs_seen(monkeypatch)
    force(monkeypatch)
    assert digests(drafted(engine, profiles)) == expected
    assert seen == verbs


@pytest.mark.parametrize("engine", ["asynchronous", "synchronous", "crowded"])
def test_what_the_drafter_leaves_out_costs_the_same_in_python(
    engine: str, profiles: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def turbospec() -> Iterator[Case]:
        yield case(f"{engine}/turbospec", policy="turbospec:prior=0", spec="draft_model:4",
                   profile=profiles["tabulated"], engine=ENGINES[engine])  # fmt: skip

    expected, loads = digests(turbospec()), Speculation.drafter_loads
    left_out: list[bool] = []

    def watched(self: Speculation, step: StepView) -> Any:
        left_out.append(bool(step.of_sequences("is_undrafted").any()))
        return loads(self, step)

    monkeypatch.setattr(Speculation, "drafter_loads", watched)
    charges_drafts_in_python(monkeypatch)
    assert digests(turbospec()) == expected
    assert any(left_out)


def weighed(engine: str, profiles: dict[str, str]) -> Iterator[Case]:
    """Yield runs of goodput: drafters of each sort of cost, and one that is soon given up."""
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "match_probability": 0.5}
    long = {"num_requests": 60, "lengths": {"kind": "uniform", "prompt": [1, 90],
                                            "output": [50, 150]}}  # fmt: skip
    runs: dict[str, Any] = {
        "eagle": {"spec": "eagle:3", "profile": profiles["two_regime"]},
        "eagle3": {"spec": "eagle3:5", "profile": profiles["linear"]},
        "medusa": {"spec": "medusa:4", "profile": profiles["tabulated_mixed"]},
        "ngram": {"spec": ngram, "profile": profiles["overhead"]},
        "useless": {"spec": "draft_model:4", "profile": profiles["tabulated"], "workload": long,
                    "acceptance": {"kind": "bernoulli", "alpha": 0.02}},
    }  # fmt: skip
    for name, fields in runs.items():
        usual = {"engine": ENGINES[engine], "workload": {"num_requests": 120}}
        yield case(f"{engine}/{name}", policy="goodput", **{**usual, **fields})


def policies_are_not_compiled(patch: pytest.MonkeyPatch) -> None:
    """Have the engine's machine code call policies that are loops as Python."""
    address = compiled.address_of

    def of_engine(loop: compiled.Loop) -> int | None:
        return None if loop.name.startswith("policies") else address(loop)

    patch.setattr(compiled, "address_of", of_engine)


def policies_are_asked_in_python(patch: pytest.MonkeyPatch) -> None:
    """Have them asked as policies in Python are."""
    patch.setattr(Speculation, "is_loops", False)


ASKED: list[tuple[Callable[[pytest.MonkeyPatch], None], set[int | str]]] = [
    (policies_are_not_compiled, set()),
    (policies_are_asked_in_python, {"decide", "observe", "drop"}),
]


@pytest.mark.parametrize(
    ("force", "verbs"), [pytest.param(*each, id=each[0].__name__) for each in ASKED]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_goodput_is_the_same_however_it_is_asked(
    engine: str,
    force: Callable[[pytest.MonkeyPatch], None],
    verbs: set[int | str],
    profiles: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = verbs_seen(monkeypatch)
    in_the_loop = digests(weighed(engine, profiles))
    assert seen == set()
    force(monkeypatch)
    assert digests(weighed(engine, profiles)) == in_the_loop
    assert seen == verbs


@pytest.fixture(scope="module")
def apart_as_they_are(profiles: dict[str, str]) -> dict[str, Any]:
    """Run those on GPUs of their own once as they are."""
    return digests(apart(profiles))


def apart(profiles: dict[str, str]) -> Iterator[Case]:
    """Yield runs of drafters on GPUs of their own, most of which overlap with the target."""
    usual: dict[str, Any] = {"engine": ENGINES["crowded"], "replicas": 2, "incidents": SLOW,
                             "workload": {"num_requests": 40}}  # fmt: skip
    own_gpus = {"latency_ms": 0.2, "token_bytes": 64000}
    for name, changes, fields in (
        ("beside", {"overlaps": True}, {}),
        ("goodput", {"overlaps": True}, {"policy": "goodput"}),
        ("schedule", {"overlaps": True}, {"policy": {"kind": "schedule",
                                                     "ranges": [[1, 9, 4], [10, 20, 0]]}}),
        ("joint", {"overlaps": True, "profile": "h100/llama-3.2-1b"}, {"policy": "joint"}),
        ("alone", {}, {"policy": "goodput"}),
    ):  # fmt: skip
        spec = {"method": "draft_model", "num_speculative_tokens": 4,
                "own_gpus": {**own_gpus, **changes}}  # fmt: skip
        yield case(f"apart/{name}", spec=spec, profile=profiles["overhead"], **usual, **fields)


@pytest.mark.parametrize(
    "force",
    [asks_in_python, has_no_form, charges_drafts_in_python, trims_nothing, observes]
    + [each[0] for each in ASKED],
)
def test_drafters_on_gpus_of_their_own_do_the_same_in_python(
    force: Callable[[pytest.MonkeyPatch], None],
    profiles: dict[str, str],
    apart_as_they_are: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force(monkeypatch)
    assert digests(apart(profiles)) == apart_as_they_are


@pytest.mark.parametrize("force", [asks_in_python, has_no_form, charges_drafts_in_python])
def test_drafters_of_one_pass_do_the_same_in_python(
    force: Callable[[pytest.MonkeyPatch], None],
    profiles: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def runs() -> Iterator[Case]:
        yield from (each for each in later_cases(profiles) if "0.33/goodput" in each.name)

    expected = digests(runs())
    assert len(expected) == 4
    force(monkeypatch)
    assert digests(runs()) == expected


@pytest.mark.parametrize(
    "policy",
    ["disco", "specdec_pp", "adaedl", "throughput_tiers:interval=2,window=4", "ucbspec",
     "adaptive_k:least_size=2", "nightjar", "tapout", "dsde:calibration_steps=3",
     "acceptance_gate:acceptance_window=2,acceptance_length_threshold=3",
     "acceptance_rate_gate:acceptance_rate_window_size=6,acceptance_rate_threshold=0.6"],
)  # fmt: skip
def test_published_policies_are_the_same_however_they_are_asked(
    policy: str, profiles: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs() -> Iterator[Case]:
        for spec, engine in (("draft_model:5", "synchronous"), ("suffix:4", "crowded")):
            yield case(f"{policy}/{spec}", spec=spec, policy=policy, profile=profiles["tabulated"],
                       engine=ENGINES[engine], workload={"num_requests": 12})  # fmt: skip

    seen = verbs_seen(monkeypatch)
    in_the_loop = digests(runs())
    assert seen == set()
    policies_are_asked_in_python(monkeypatch)
    assert digests(runs()) == in_the_loop
    assert "decide" in seen


def test_goodput_comes_to_all_four_verdicts_in_these_runs(
    profiles: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts: set[int] = set()
    settle = trials.settle

    def watched(*given: Any) -> int:
        verdicts.add(what := settle(*given))
        return what

    monkeypatch.setattr(trials, "settle", watched)
    policies_are_not_compiled(monkeypatch)
    digests(weighed("synchronous", profiles))
    assert verdicts == {trials.KEPT, trials.NOTHING, trials.TRIED, trials.BEGUN}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("force", "verbs"), [pytest.param(*each, id=each[0].__name__) for each in ASKED]
)
@pytest.mark.parametrize("engine", ["synchronous", "prefill_first", "crowded"])
def test_joint_is_the_same_however_it_is_asked(
    engine: str,
    force: Callable[[pytest.MonkeyPatch], None],
    verbs: set[int | str],
    profiles: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def runs() -> Iterator[Case]:
        workload: dict[str, Any] = {} if verbs else {"num_requests": 12}
        for each in weighed(engine, profiles):
            config = {**each.config, "policy": "joint"}
            config["workload"] = {**config["workload"], **workload}
            yield replace(each, name=f"{each.name}/joint", config=config)
        yield case(f"{engine}/model", spec="draft_model:5", policy="joint", engine=ENGINES[engine],
                   profile=profiles["tabulated"], workload=workload)  # fmt: skip
        yield case(f"{engine}/lookup", spec="suffix:4", policy="joint", engine=ENGINES[engine],
                   profile=profiles["linear"], workload=workload)  # fmt: skip

    seen = verbs_seen(monkeypatch)
    in_the_loop = digests(runs())
    assert seen == set()
    shown, stops = set(), set()
    draft_lens, stop_len = LoopPolicy.draft_lens, LoopPolicy.stop_len

    def watched(self: LoopPolicy, batch: BatchView, memory: LoopMemory) -> Any:
        shown.add(batch.drafts is not None)
        return draft_lens(self, batch, memory)

    def stopped(self: LoopPolicy, *given: Any) -> Any:
        found = stop_len(self, *given)
        stops.add(None if found is None else int(np.max(found)))
        return found

    monkeypatch.setattr(LoopPolicy, "draft_lens", watched)
    monkeypatch.setattr(LoopPolicy, "stop_len", stopped)
    force(monkeypatch)
    assert digests(runs()) == in_the_loop
    assert seen == (verbs and verbs | {"verify"})
    assert shown == ({False, True} if verbs else set())
    assert not verbs or {None, 1, 2, 5} <= stops


def few(profiles: dict[str, str], folder: Path) -> Iterator[Case]:
    """Yield a handful of runs of every scheduler, short ones."""
    for name, engine in ENGINES.items():
        workload = {"num_requests": 12, "lengths": {"kind": "uniform", "prompt": [1, 150],
                                                    "output": [1, 30]}}  # fmt: skip
        yield from drafted(name, profiles, workload=workload)
        yield case(f"{name}/goodput", policy="goodput", engine=engine, workload=workload,
                   profile=profiles["linear"])  # fmt: skip
    yield case("joint", policy="joint", spec="draft_model:4", engine=ENGINES["prefill_first"],
               workload={"num_requests": 8}, profile=profiles["linear"])  # fmt: skip
    rows = {"kind": "trace", "path": write_token_trace(folder / "few.jsonl", 1, 12)}
    yield case("suffix", spec="suffix:4", policy="goodput", profile=profiles["linear"],
               acceptance={"kind": "token_match"},
               workload={"lengths": rows, "num_requests": 12})  # fmt: skip


@pytest.mark.slow
def test_uncompiled_loops_do_the_same(profiles: dict[str, str], tmp_path: Path) -> None:
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "golden")]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([*folders, *sys.path])
    command = [sys.executable, "-W", "error", __file__]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == digests(few(profiles, tmp_path))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(digests(few(write_profiles(Path(folder)), Path(folder)))))


def test_pools_and_tiers_are_the_same_both_ways() -> None:
    names = {"pools/moved/static", "pools/recomputed/static", "tiers/disk"}
    as_they_are = digests(each for each in pool_cases() if each.name in names)
    with pytest.MonkeyPatch.context() as patch:
        does_everything_in_python(patch)
        in_python = digests(each for each in pool_cases() if each.name in names)
    assert in_python == as_they_are
    assert as_they_are.keys() == names
