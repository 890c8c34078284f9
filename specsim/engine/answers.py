"""Answers: checks of what user-written policies, routers and autoscalers return.

The contract tests hold the policies that specsim ships to the same rules, so that their answers
need no checks during a run.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from specsim.autoscaling import Autoscaler, PoolView
from specsim.core.blame import held_to, is_shipped, is_whole, name_of
from specsim.core.errors import PluginError
from specsim.core.step import Ints
from specsim.core.trees import Tree
from specsim.decisions.policy import DraftsTrees, Policy
from specsim.engine.asking import MOST_EMPTY_STEPS
from specsim.engine.view import StepView
from specsim.routing import PromptView, ReplicaView, Router

T = TypeVar("T")


class AskedMember(Generic[T]):
    """A router or an autoscaler with its memory; the answers of a user's class are checked.

    The first questions are asked twice, the second time with another memory from `start`. Both
    memories see the same questions, so the answers are equal unless the class has randomness or
    state outside its memory, with which no run could be repeated.
    """

    def __init__(
        self,
        member: Router | Autoscaler,
        method: str,
        ask: Callable[..., T],
        start: Callable[[], Any],
        luck: str,
    ) -> None:
        self._member, self._method, self._ask, self._luck = member, method, ask, luck
        self._memory = start()
        self._left = 0 if is_shipped(member) else _ASKED_TWICE
        self._second = start() if self._left else None

    def answer(self, *question: Any) -> T:
        """Return the answer; a PluginError if it is not allowed, or differs the second time."""
        given = self._ask(self._memory, *question)
        if self._left:
            self._left -= 1
            again = self._ask(self._second, *question)
            rule = (
                f"{given} again, as when it was first asked the same; keep a generator "
                f"{self._luck} in the memory that `start` makes, and draw from that"
            )
            held_to(self._member, self._method, again, again == given, rule)
        return given


_ASKED_TWICE = 64  # questions; enough to find a class that is random


def asked_router(router: Router, seed: int) -> AskedMember[int]:
    """Return a checked router: its answers are places in the list of replicas."""

    def ask(memory: Any, prompt: PromptView, replicas: Sequence[ReplicaView]) -> int:
        given: Any = router.choose(prompt, replicas, memory)
        if not is_shipped(router):
            most = len(replicas) - 1
            is_right = is_whole(given) and 0 <= given <= most
            held_to(router, "choose", given, is_right, f"a whole number from 0 to {most}")
        return int(given)

    return AskedMember(router, "choose", ask, partial(router.start, seed), "of its seed")


def asked_autoscaler(autoscaler: Autoscaler) -> AskedMember[float]:
    """Return a checked autoscaler: its answers are numbers of replicas for a pool."""

    def ask(memory: Any, pool: PoolView) -> float:
        given: Any = autoscaler.enough(pool, memory)
        if not is_shipped(autoscaler):
            is_number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
            held_to(autoscaler, "enough", given, is_number and isfinite(given), "a finite number")
        return float(given)

    return AskedMember(autoscaler, "enough", ask, autoscaler.start, "of a fixed seed")


class Answers:
    """Checks the answers of one policy; each method returns the answer as one type.

    A PluginError names the policy, the method, the step and the value.
    """

    def __init__(self, policy: Policy, max_draft_len: int, max_depth: int) -> None:
        self._policy = policy
        self._largest, self._deepest = max_draft_len, max_depth

    def draft_lens(self, given: Any, step: StepView) -> int | Ints | list[Tree]:
        """Return draft lengths, or trees: for all sequences alike, or one for each."""
        if isinstance(self._policy, DraftsTrees):
            return self._trees(given, step)
        if isinstance(given, Tree):
            rule = "lengths: only a policy that extends DraftsTrees returns a tree"
            self._need(False, "draft_lens", step, given, rule)
        if is_whole(given):
            self._need(0 <= given <= self._largest, "draft_lens", step, given, self._range)
            return int(given)
        return self._lens("draft_lens", given, step, self._largest, self._range)

    def _trees(self, given: Any, step: StepView) -> list[Tree]:
        trees: list[Tree] = [given] * step.size if isinstance(given, Tree) else given
        is_right = isinstance(trees, list) and len(trees) == step.size
        is_right = is_right and all(isinstance(tree, Tree) for tree in trees)
        rule = f"a Tree, or a list of {step.size} of them, one per sequence of the batch"
        self._need(is_right, "draft_lens", step, given, rule)
        limits = f"of at most {self._largest} nodes, {self._deepest} of them along a path"
        limits += "; its max_draft_len says how many nodes, num_speculative_tokens how long a path"
        for tree in trees:
            is_small = tree.num_nodes <= self._largest and tree.depth <= self._deepest
            self._need(is_small, "draft_lens", step, tree, limits)
        return trees

    def verify_lens(self, given: Any, draft_lens: Ints, step: StepView) -> Ints:
        """Return how many draft tokens of each sequence are verified."""
        rule = "from 0 to the drafts of each sequence"
        return self._lens("verify_lens", given, step, draft_lens, rule)

    def stop_len(self, given: Any, step: StepView) -> int | Ints | None:
        """Return the length at which drafts are cut; None if they are not."""
        if given is None:
            return None
        if not is_whole(given):
            return self._lens("stop_len", given, step, 1 << 40, "None, or 0 or more")
        self._need(given >= 0, "stop_len", step, given, "None, or 0 or more")
        return int(given)

    def uses_lookup(self, given: Any, size: int, step: StepView) -> NDArray[np.bool_]:
        """Return whether each draft of a lookup is used."""
        values = _array(given)
        is_right = values is not None and values.shape == (size,) and values.dtype == np.bool_
        self._need(is_right, "uses_lookup", step, given, f"{size} truth values, one per draft")
        return np.asarray(values, dtype=np.bool_)

    def drops(self, given: Any, step: StepView) -> NDArray[np.bool_] | None:
        """Return which sequences the drafter stops serving; None: none of them."""
        if given is None:
            return None
        values = _array(given)
        is_right = values is not None and values.shape == (step.size,) and values.dtype == np.bool_
        self._need(is_right, "drops", step, given, f"None, or {step.size} truth values")
        return np.asarray(values, dtype=np.bool_)

    def alpha(self, given: Any, step: StepView) -> float:
        """Return an estimate of alpha, nan where there is none."""
        is_number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
        is_right = is_number and not given < 0 and not given > 1
        self._need(is_right, "alpha_estimate", step, given, "a number from 0 to 1, or nan")
        return float(given)

    def drafter(self, given: Any, num_drafters: int, request: int) -> int:
        """Return the number of a drafter."""
        if not is_whole(given) or not 0 <= given < num_drafters:
            rule = f"a whole number from 0 to {num_drafters - 1}"
            self._refuse("choose_drafter", f"for request {request}", given, rule)
        return int(given)

    def prefix_size(self, given: Any, step: StepView) -> int:
        """Return a number of sequences."""
        is_right = is_whole(given) and given >= 1
        self._need(is_right, "prefix_size", step, given, "a whole number of sequences, at least 1")
        return int(given)

    def by_size(self, given: Any, largest: int) -> Ints | None:
        """Return draft lengths by the size of the step."""
        if given is None:
            return None
        values = _array(given)
        is_right = values is not None and values.shape == (largest + 1,) and _are_whole(values)
        if not is_right or values is None or values.min() < 0 or values.max() > self._largest:
            rule = f"{largest + 1} whole numbers, {self._range}"
            self._refuse("lens_by_size", "before the run", given, rule)
        return np.array(values, dtype=np.int64)

    def refuse_empty_steps(self, step: StepView) -> NoReturn:
        """Raise a PluginError: too many steps in a row were empty."""
        raise PluginError(
            f"{name_of(self._policy)}: {MOST_EMPTY_STEPS:,} steps in a row, the last at "
            f"{step.record['scheduled_at']:g} s, ran nothing although requests wait: the run "
            "makes no progress; what the policy drafts leaves no room for any sequence"
        )

    @property
    def _range(self) -> str:
        return f"from 0 to {self._largest}, the longest draft"

    def _lens(
        self, method: str, given: Any, step: StepView, largest: int | Ints, rule: str
    ) -> Ints:
        values = _array(given)
        if values is None or values.shape != (step.size,) or not _are_whole(values):
            one = ", or one whole number for all" if method == "draft_lens" else ""
            many = f"{step.size} whole numbers, one per sequence of the batch{one}"
            self._refuse(method, _at(step), given, many)
        wrong = np.flatnonzero((values < 0) | (values > largest))
        if len(wrong):
            where = f"(place {wrong[0]}: {values[wrong[0]]}) {_at(step)}"
            each = "" if isinstance(largest, int) else f", {_short(largest)}"
            self._refuse(method, where, given, f"{rule}{each}")
        return values.astype(np.int64)

    def _need(self, is_right: Any, method: str, step: StepView, given: Any, rule: str) -> None:
        if not is_right:
            self._refuse(method, _at(step), given, rule)

    def _refuse(self, method: str, where: str, given: Any, rule: str) -> NoReturn:
        raise PluginError(
            f"{name_of(self._policy)}: {method} returned {_short(given)} {where}; it must be {rule}"
        )


def _at(step: StepView) -> str:
    return f"in step {int(step.record['index'])} ({step.size} sequences)"


def _array(given: Any) -> NDArray[Any] | None:
    """Return a list or array as an array; None if it is neither, or ragged."""
    if not isinstance(given, list | tuple | np.ndarray):
        return None
    try:
        return np.asarray(given) if len(given) else np.zeros(0, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return None


def _are_whole(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "iu"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
