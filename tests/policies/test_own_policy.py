"""A policy of one's own that trims: the step gets shorter by what it drops, however scheduled."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from specsim.api import BatchView, DraftView, Experiment, Policy, Summary, Tree, simulate
from specsim.core.errors import ConfigError, PluginError
from specsim.engine.answers import Answers
from specsim.policies import ServerView


class VerifyNothing(Policy):
    """Draft, and then verify none of it."""

    kind: Literal["verify_nothing"] = "verify_nothing"

    def draft_lens(self, batch: BatchView, memory: ServerView) -> int:
        return memory.max_draft_len

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: Any) -> list[int]:
        return [0] * batch.size


class Hasty(Policy):
    """Stop the drafter after some tokens, whatever it says."""

    kind: Literal["hasty"] = "hasty"
    uses_confidences: ClassVar[Literal[False, True, "if known"]] = True
    stops_at: int | None = 1

    def draft_lens(self, batch: BatchView, memory: Any) -> int:
        return 3

    def stop_len(self, batch: BatchView, drafts: DraftView, memory: Any) -> int | None:
        assert drafts.confidences.shape == (batch.size, drafts.draft_lens.max())
        return self.stops_at


class Deaf(Hasty):
    """Stop it without having asked what it says."""

    uses_confidences: ClassVar[Literal[False, True, "if known"]] = False


def test_what_looks_at_confidences_needs_them(tiny: Callable[..., Experiment]) -> None:
    with pytest.raises(ConfigError, match="must set uses_confidences"):
        tiny(policy=Deaf())


@pytest.mark.parametrize(("stops_at", "longest"), [(None, 3), (7, 3), (1, 1), (0, 0)])
def test_the_drafter_is_stopped(
    stops_at: int | None, longest: int, tiny: Callable[..., Experiment]
) -> None:
    requests = Summary(simulate(tiny(policy=Hasty(stops_at=stops_at)))).tables.requests
    assert requests["draft_tokens"].sum() == longest * requests["drafts"].sum()
    assert (requests["drafts"].sum() > 0) == (longest > 0)


def test_a_drafter_is_not_stopped_before_it_begins(tiny: Callable[..., Experiment]) -> None:
    with pytest.raises(PluginError, match=r"stop_len returned -1 .* must be None, or 0 or more"):
        simulate(tiny(policy=Hasty(stops_at=-1)))


@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_dropped_costs_nothing(
    is_async: bool, tiny: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    experiment = tiny(
        profile=constant_step(gamma_us=1000, drafts={"eagle3": {}}),
        workload={
            "arrivals": {"kind": "burst"},
            "lengths": {"kind": "constant", "prompt": 8, "output": 6},
            "num_requests": 1,
        },
    )
    engine = experiment.engine.model_copy(update={"async_scheduling": is_async})
    run = simulate(experiment.replace(engine=engine, policy=VerifyNothing()), check=True)
    steps = Summary(run).tables.steps
    decodes = steps[steps["prefill_tokens"] == 0]
    assert len(decodes) == 5
    assert (decodes["batched_tokens"] == 1).all()
    assert decodes["target_time"] == pytest.approx(1e-3)
    assert (decodes["draft_tokens"] == 0).all()


STEP: Any = SimpleNamespace(size=2, record={"index": 7, "scheduled_at": 0.5})
ANSWERS: list[tuple[str, tuple[Any, ...], Any, Any, str]] = [
    (
        "draft_lens",
        (STEP,),
        4,
        Tree.of_widths((1, 1)),
        "lengths: only a policy that extends DraftsTrees returns a tree",
    ),
    ("uses_lookup", (2, STEP), [True, False], [1, 0], "2 truth values, one per draft"),
    ("stop_len", (STEP,), [0, 9], [0, -1], "None, or 0 or more"),
    ("drops", (STEP,), None, [True], "None, or 2 truth values"),
    ("alpha", (STEP,), 0.5, 1.5, "a number from 0 to 1, or nan"),
    ("drafter", (2, 9), 1, 2, "a whole number from 0 to 1"),
    ("prefix_size", (STEP,), 1, 0, "a whole number of sequences, at least 1"),
    ("by_size", (2,), [4, 0, 1], [4, 0], "3 whole numbers, from 0 to 4, the longest draft"),
    ("by_size", (1,), None, [5, 0], "2 whole numbers, from 0 to 4, the longest draft"),
]


@pytest.mark.parametrize(("method", "others", "right", "wrong", "rule"), ANSWERS)
def test_what_it_answers_is_looked_at(
    method: str, others: tuple[Any, ...], right: Any, wrong: Any, rule: str
) -> None:
    answers = Answers(VerifyNothing(), 4, 0)
    look = getattr(answers, method)
    # The value asked about stands first, but for `yes`, whose method does.
    first = others[: method == "yes"]
    assert np.array_equal(look(*first, right, *others[len(first) :]), right)
    with pytest.raises(PluginError, match=rf"VerifyNothing.* returned .*; it must be {rule}"):
        look(*first, wrong, *others[len(first) :])
