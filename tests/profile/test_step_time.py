"""A step has one price: whoever asks for it, by one function."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.api import Experiment, Policy, simulate
from specsim.core.errors import PluginError
from specsim.core.step import BatchView, StepLoad, StepOutcome
from specsim.decisions.policy import ServerView
from specsim.engine import cost
from specsim.latency import LATENCY, LatencyModel
from specsim.policies import quick_step_time, quick_step_times
from specsim.profile import (
    BlockPass,
    DraftCost,
    Overhead,
    StepCosts,
    costs,
    load_profile,
    step_time,
)

ROOT = Path(step_time.__file__).parents[1]
TARGET, DRAFT_MODEL = (load_profile(name).target for name in ("h100/llama-3.1-8b", "a100/llama-7b"))
TABLES = load_profile("h100/llama-3.1-8b-kernels").target
COSTS = {
    "off": StepCosts(TARGET, (), Overhead(step_ms=0.3, request_us=20)),
    "pass": StepCosts(
        TARGET,
        (DraftCost(latency=DRAFT_MODEL, token_us=2, target_share=0.03, step_ms=0.2, request_us=5),),
        Overhead(request_us=20),
    ),
    "draft": StepCosts(TABLES, (DraftCost(basis="draft", latency=TARGET),), Overhead()),
    "heads": StepCosts(
        TARGET, (DraftCost(basis="heads", latency=TABLES, step_ms=0.1),), Overhead(step_ms=1)
    ),
    "block": StepCosts(
        TARGET, (DraftCost(latency=DRAFT_MODEL),), Overhead(step_ms=1), block=BlockPass(8, False)
    ),
    "parallel": StepCosts(
        TARGET, (DraftCost(latency=DRAFT_MODEL, token_us=2),), Overhead(), block=BlockPass(4)
    ),
    "lookup": StepCosts(TABLES, (DraftCost(token_us=20),), Overhead(step_ms=0.5)),
    "asynchronous": StepCosts(
        TARGET,
        (DraftCost(basis="draft", latency=DRAFT_MODEL),),
        Overhead(step_ms=12, request_us=50),  # more than some of the passes, less than others
        hides_overhead=True,
    ),
}


@pytest.mark.parametrize("name", COSTS)
def test_of_one_step_of_many_and_in_a_loop_it_is_the_same(name: str) -> None:
    costs, rng = COSTS[name], np.random.default_rng(5)
    one, in_loop = quick_step_time(costs), quick_step_times(costs)
    for num, longest in rng.integers(1, (200, 9), size=(40, 2)).tolist():
        prompt_len = int(rng.integers(0, 2) * rng.integers(1, 2000))
        load = StepLoad(int(rng.integers(0, 100_000)), num + prompt_len, num, prompt_len)
        tokens = load.batched_tokens + np.arange(30)
        for lens in (0, longest, rng.integers(0, longest + 1, num)):
            singly = [
                costs.step_time(load._replace(batched_tokens=n), lens) for n in tokens.tolist()
            ]
            assert costs.step_times(load, tokens, lens).tolist() == singly
            assert in_loop(load, tokens, lens).tolist() == singly
            assert one(load, lens) == singly[0]


@pytest.mark.parametrize("draft_len", [0, 1, 7])
def test_all_drafts_of_one_pass_cost_the_same(draft_len: int) -> None:
    load = StepLoad(5_000, 10 + 300, 10, 300)
    plain = TARGET.forward_time(load)
    dflash = DRAFT_MODEL.forward_time(StepLoad(5_310, 10 * 8, 10))
    assert COSTS["block"].step_time(load, draft_len) == pytest.approx(plain + dflash + 1e-3)
    pard = DRAFT_MODEL.forward_time(StepLoad(5_000, 310 + 10 * 4, 10, 300))
    tokens = 10 * draft_len * 2e-6
    assert COSTS["parallel"].step_time(load, draft_len) == pytest.approx(plain + pard + tokens)


class Listens(Policy):
    """Notes what steps take as it is told, before and afterwards."""

    kind: str = "listens"

    def start(self, server: ServerView) -> list[tuple[float, float, int]]:
        self._server = server
        return []

    def draft_lens(self, batch: BatchView, memory: list[tuple[float, float, int]]) -> int:
        return 3

    def observe(self, outcome: StepOutcome, memory: list[tuple[float, float, int]]) -> None:
        told = self._server.step_time(outcome.load, 3)
        took = outcome.target_time + outcome.draft_time + outcome.overhead_time
        TOLD.append((told, took, outcome.load.prefill_tokens))


TOLD: list[tuple[float, float, int]] = []


@pytest.mark.parametrize("step_ms", [0.5, 40.0])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_policy_is_told_how_far_apart_steps_are(step_ms: float, is_async: bool) -> None:
    """Asynchronously the engine's own time passes while the step before is on the GPU."""
    TOLD.clear()
    experiment = Experiment.parse(
        {
            "workload": {
                "arrivals": {"kind": "burst"},
                "lengths": {"kind": "constant", "prompt": 20, "output": 60},
                "num_requests": 4,
            },
            "engine": {
                "async_scheduling": is_async,
                "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
            },
            "acceptance": {"kind": "bernoulli", "alpha": 0.5},
            "profile": "h100/llama-3.1-8b",
            "policy": Listens(),
        },
        "it",
    )
    profile = load_profile("h100/llama-3.1-8b")
    profile = profile.model_copy(update={"overhead": Overhead(step_ms=step_ms)})
    steps = simulate(experiment, profile=profile).replicas[0].steps
    apart = np.diff(steps["ended_at"])[2:8]  # all four decode
    told, took, _ = np.array(TOLD)[3:9].T
    assert told == pytest.approx(apart, rel=1e-6)
    assert took == pytest.approx(apart, rel=1e-4)  # the drafts of the step before


@pytest.mark.slow
def test_it_is_written_once() -> None:
    """The engine's loop and Python call one function; nobody else knows what costs there are."""
    assert cost.draft_time is costs.draft_time is step_time.draft_time
    assert cost.overhead_time is costs.overhead_time is step_time.overhead_time
    of_costs = {"TARGET_SHARE", "TOKEN", "STEP", "REQUEST", "OVERHEAD_STEP", "OVERHEAD_REQUEST"}
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if len(of_costs.intersection(re.findall("[A-Z_]+", text))) < 2:
            continue  # whatever is a name is a word, and words are found sooner
        names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        assert path.name == "step_time.py" or len(of_costs & names) < 2, path


EXPERTS = {"kind": "roofline", "gpu": "h100"}
MODELS = [
    *({"kind": kind, **each} for kind, of in LATENCY.members.items() for each in of.examples),
    {**EXPERTS, "model": "mixtral-8x7b", "tensor_parallel_size": 2},
    {**EXPERTS, "model": "qwen3-30b-a3b"},
]


def name_of(fields: dict[str, Any]) -> str:
    return f"{fields['kind']}-{fields.get('model')}"


@pytest.mark.parametrize("fields", MODELS, ids=name_of)
def test_a_pass_lasts_as_long_in_a_loop_as_in_python(fields: dict[str, Any]) -> None:
    model, rng = LATENCY.parse(fields), np.random.default_rng(6)
    costs = StepCosts(model, (), Overhead())
    in_loop = quick_step_times(costs)
    assert in_loop != costs.step_times
    for num, prompt_len in rng.integers(1, (300, 4000), size=(60, 2)).tolist():
        load = StepLoad(int(rng.integers(0, 200_000)), 0, num, prompt_len * int(rng.integers(0, 2)))
        tokens = num + load.prefill_tokens + np.arange(5)
        singly = [model.forward_time(load._replace(batched_tokens=n)) for n in tokens.tolist()]
        assert in_loop(load, tokens, 0).tolist() == singly
        assert np.array_equal(model.forward_time(load._replace(batched_tokens=tokens)), singly)


def test_whoever_has_a_form_has_no_other_formula() -> None:
    """But for what each sequence processes, and for padding around a model that is Python."""
    own = {
        kind
        for kind, each in LATENCY.members.items()
        if "forward_time" in vars(each) and "form" in vars(each)
    }
    assert own == {"composed", "cuda_graph"}


class Given(LatencyModel):
    """What somebody's model says of every pass."""

    kind: str = "given"
    time: Any = 0.0

    def forward_time(self, load: StepLoad) -> Any:
        return self.time


LOAD = StepLoad(1000, 8, 8)
ASKED: dict[str, Callable[[StepCosts], object]] = {
    "target_time": lambda costs: costs.target_time(LOAD),
    "step_time": lambda costs: costs.step_time(LOAD, 2),
    "draft_time": lambda costs: costs.draft_time(LOAD, 2, 0.01),
    "lock_step_time": lambda costs: costs.lock_step_time([LOAD]),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(
    "time",
    [
        *(float("nan"), float("inf"), -1e-9, np.float64(-1), np.array([0.1, -0.1]), "0.1", True),
        *([0.1], (0.1,), [], np.array([0.1, 0.1]), None),
    ],
)
def test_what_is_no_duration_is_refused_of_a_users_model(time: Any, asked: str) -> None:
    model = Given.model_construct(time=time)
    costs = StepCosts(model, (DraftCost.model_construct(latency=model),), Overhead())
    with pytest.raises(PluginError, match=r"Given 'given': \w+ returned .*; it must be seconds"):
        ASKED[asked](costs)


def test_a_users_model_gives_the_same_time_for_the_same_load() -> None:
    class Noisy(Given):
        def forward_time(self, load: StepLoad) -> Any:
            return float(rng.random())

    rng = np.random.default_rng(1)
    with pytest.raises(PluginError, match=r"forward_time returned .* the same for the same load"):
        StepCosts(Noisy.model_construct(), (), Overhead()).compiled()


def test_no_rank_hides_what_another_is_told() -> None:
    class Unsure(Given):
        def forward_time(self, load: StepLoad) -> Any:
            return float("nan") if load.num_requests > 8 else 0.25

    costs = StepCosts(Unsure.model_construct(), (), Overhead())
    assert costs.lock_step_time([LOAD, LOAD]) == 0.25
    with pytest.raises(PluginError, match="forward_time returned nan"):
        costs.lock_step_time([LOAD, StepLoad(1000, 9, 9)])


@pytest.mark.parametrize("time", [0, 0.0, 0.25, np.float32(0.25), np.array(0.25)])
def test_any_duration_is_as_the_model_says(time: Any) -> None:
    costs = StepCosts(Given.model_construct(time=time), (), Overhead())
    assert costs.target_time(LOAD) == costs.step_time(LOAD, 0) == time
