"""Lock-step: data-parallel ranks of a mixture of experts, which make every pass together.

Each rank is a replica with a scheduler and a KV cache of its own. A forward pass needs all of them,
since each holds some of the experts of every layer: it begins when the last rank has come to it,
and lasts as long as the slowest. A rank without work makes a dummy pass (vLLM 0.32.0
``v1/engine/core.py DPEngineCoreProc.run_busy_loop``). That a server without requests goes on with
dummy passes until ranks agree to stop is left out.
"""

from math import inf, nextafter
from typing import Any

from specsim.core.step import Pieces, StepLoad
from specsim.engine.order import CHARGE_FORWARD, VERBS, WAITS
from specsim.engine.replica import Replica
from specsim.profile import StepCosts


class LockStep:
    """The ranks of one server, which join it as they are made.

    Args:
        dummy_len: Tokens of a dummy pass: one, and drafts where every step verifies some (vLLM
            0.32.0 ``v1/worker/gpu_worker.py execute_dummy_batch``).
    """

    def __init__(self, costs: StepCosts, dummy_len: int = 1) -> None:
        self._costs = costs
        self._dummy = StepLoad(0, dummy_len, 1, 0, Pieces([dummy_len], [0]))
        self.ranks: list[Rank] = []

    @property
    def next_at(self) -> float:
        """When any rank would go on by itself; infinite if all wait for requests."""
        at_work = [rank.goes_on_at for rank in self.ranks if not (rank.is_there or rank.is_idle)]
        return min(at_work or (rank.goes_on_at for rank in self.ranks))

    def advance(self, until: float) -> None:
        """Do whatever happens before an instant."""
        while True:
            for rank in self.ranks:
                rank.come(until)
            if not all(rank.is_there or rank.is_idle for rank in self.ranks):
                return
            there = [rank for rank in self.ranks if rank.is_there]
            if there:
                self._pass_together(there)
                continue
            wakes_at = self.next_at
            if wakes_at >= until:
                return
            for rank in self.ranks:
                rank.now = max(rank.now, wakes_at)

    def _pass_together(self, there: list["Rank"]) -> None:
        """Let a pass begin, of those ranks that have a step and of the others with a dummy."""
        meets_at = max(rank.now for rank in there)
        loads = [rank.load if rank.is_there else self._dummy for rank in self.ranks]
        time = self._costs.lock_step_time(loads)
        overhead_time = max(rank.overhead_time for rank in there)
        begins_at = max(meets_at + overhead_time, *(rank.gpu_free_at for rank in self.ranks))
        for rank in self.ranks:
            rank.now = meets_at
            if rank.is_there:
                rank.charge(time, begins_at)
            else:
                rank.gpu_free_at = begins_at + time


class Rank(Replica):
    """A replica whose forward passes are those of a `LockStep`, to which it comes and waits."""

    def __init__(self, group: LockStep, *parts: Any) -> None:
        super().__init__(*parts)
        self._group = group
        group.ranks.append(self)
        self.is_there = False
        """Whether it has a step that waits for the others."""

    def _python_verbs(self) -> dict[int, Any]:
        return {**super()._python_verbs(), CHARGE_FORWARD: self._charge_forward}

    @property
    def next_at(self) -> float:
        """When any rank would go on by itself."""
        return self._group.next_at

    @property
    def goes_on_at(self) -> float:
        """When this rank would, if it need not wait for others."""
        return super().next_at

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do now, and makes a dummy pass if others make one.

        It has looked for requests when the last pass began; later ones wait for the pass after.
        """
        is_empty = not (self.num_running or self._field("in_flight"))
        return is_empty and not self.is_there and self.goes_on_at > self.now

    def advance(self, until: float) -> None:
        """Do whatever happens before an instant, with all other ranks."""
        self._group.advance(until)

    def come(self, until: float) -> None:
        """Go on to the next forward pass, as far as that lies before an instant."""
        while not (self.is_there or self.is_idle) and self.goes_on_at < until:
            self._go_on(nextafter(self.goes_on_at, inf))

    def _go_on(self, until: float) -> None:
        self._until[0] = until
        while (verb := self._run()) != WAITS:
            if verb == CHARGE_FORWARD and self.step.record["batched_tokens"]:
                self.is_there = True
                return
            self._handlers[verb]()
            if verb < VERBS:
                self._place[0] += 1
        if self._wiring.announces_ends:
            self._tell_ends()

    @property
    def load(self) -> StepLoad:
        """What it brings to the pass."""
        step = self.step
        return step.load._replace(pieces=step.pieces())

    @property
    def overhead_time(self) -> float:
        """The engine's own time before the pass where that is asynchronous, seconds."""
        return self._costs.overhead_time(self.step.size) if self.is_async else 0.0

    @property
    def gpu_free_at(self) -> float:
        """When its GPU ends what it has been given."""
        return float(self.table.state["gpu_free_at"][0])

    @gpu_free_at.setter
    def gpu_free_at(self, instant: float) -> None:
        self._set(gpu_free_at=instant)

    def charge(self, time: float, begins_at: float) -> None:
        """Take the step's share of the pass, and go on by itself."""
        step = self.step
        step.record["target_time"] = time
        step.record["overhead_time"] = self._costs.overhead_time(step.size)
        self.gpu_free_at = begins_at
        self._place[0] += 1
        self.is_there = False
