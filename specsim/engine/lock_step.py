"""Lock-step: data-parallel ranks of a mixture of experts, which make every pass together.

Each rank is a replica with a scheduler and a KV cache of its own. A forward pass needs all of them,
since each holds some of the experts of every layer: it begins when the last rank has come to it,
and lasts as long as the slowest. A rank without work makes a dummy pass (vLLM 0.32.0
``v1/engine/core.py DPEngineCoreProc.run_busy_loop``). That a server without requests goes on with
dummy passes until ranks agree to stop is left out.
"""

from collections.abc import Mapping
from math import inf, nextafter

from specsim.core.step import Pieces, StepLoad
from specsim.engine.order import CHARGE_FORWARD
from specsim.engine.replica import Handler, Replica
from specsim.profile import StepCosts


class LockStep:
    """The ranks of one server, which join it as their replicas are made.

    Args:
        dummy_len: Tokens of a dummy pass: one, and drafts where every step verifies some (vLLM
            0.32.0 ``v1/worker/gpu_worker.py execute_dummy_batch``).
    """

    def __init__(self, costs: StepCosts, dummy_len: int = 1) -> None:
        self._costs = costs
        self._dummy = StepLoad(0, dummy_len, 1, 0, Pieces([dummy_len], [0]))
        # Then each rank's own loop says what its pass takes: a run takes a fifth of the time.
        self._charges_alone = costs.compiled().target is not None and costs.waits_for_slowest
        self._dummy_time = costs.lock_step_time([self._dummy])
        self.ranks: list[Rank] = []

    def join(self, replica: Replica) -> Mapping[int, Handler]:
        """Take a replica in; return the verb for which it waits for the others."""
        rank = Rank(replica, charges_alone=self._charges_alone)
        self.ranks.append(rank)
        return {CHARGE_FORWARD: rank.arrive}

    @property
    def next_at(self) -> float:
        """When any rank would go on by itself; infinite if all wait for requests."""
        ranks = [rank for rank in self.ranks if not (rank.is_there or rank.is_idle)]
        if not ranks and any(rank.is_there for rank in self.ranks):
            return self._meets_at
        return min(rank.replica.goes_on_at for rank in ranks or self.ranks)

    @property
    def _meets_at(self) -> float:
        """When the last rank comes to the next pass: one that is idle, after its own last step."""
        return max(rank.replica.now for rank in self.ranks)

    def advance(self, until: float) -> None:
        """Do whatever happens before an instant."""
        while True:
            for rank in self.ranks:
                rank.come(until)
            if not all(rank.is_there or rank.is_idle for rank in self.ranks):
                return
            there = [rank for rank in self.ranks if rank.is_there]
            if there:
                if self._meets_at >= until:
                    return
                self._pass_together(there)
                continue
            wakes_at = self.next_at
            if wakes_at >= until:
                return
            for rank in self.ranks:
                rank.replica.now = max(rank.replica.now, wakes_at)

    def _pass_together(self, there: list["Rank"]) -> None:
        """Let a pass begin, of those ranks that have a step and of the others with a dummy."""
        meets_at = self._meets_at
        time = self._time(there)
        overhead_time = max(rank.overhead_time for rank in there)
        begins_at = max(meets_at + overhead_time, *(rank.gpu_free_at for rank in self.ranks))
        for rank in self.ranks:
            rank.replica.now = meets_at
            if rank.is_there:
                rank.charge(time, begins_at)
            else:
                rank.gpu_free_at = begins_at + time

    def _time(self, there: list["Rank"]) -> float:
        """Return what the pass of those ranks and of the dummies of all others takes."""
        if self._charges_alone:
            least = self._dummy_time if len(there) < len(self.ranks) else 0.0
            return max(least, *(rank.own_time for rank in there))
        loads = [rank.load if rank.is_there else self._dummy for rank in self.ranks]
        return self._costs.lock_step_time(loads)


class Rank:
    """A replica whose forward passes are those of a `LockStep`, to which it comes and waits."""

    def __init__(self, replica: Replica, *, charges_alone: bool) -> None:
        self.replica = replica
        self._charges_alone = charges_alone
        self.is_there = False
        """Whether it has a step that waits for the others."""

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do now, and makes a dummy pass if others make one.

        It has looked for requests when the last pass began; later ones wait for the pass after.
        """
        ledger = self.replica.ledger
        is_empty = not (ledger["num_running"] or ledger["in_flight"])
        return is_empty and not self.is_there and self.replica.goes_on_at > self.replica.now

    def come(self, until: float) -> None:
        """Go on to the next forward pass, as far as that lies before an instant."""
        replica = self.replica
        while not (self.is_there or self.is_idle) and replica.goes_on_at < until:
            replica.go_on(nextafter(replica.goes_on_at, inf))

    def arrive(self) -> bool:
        """Wait for the others with a step, unless that is empty."""
        self.is_there = bool(self.replica.step.record["batched_tokens"])
        if not self.is_there:
            self.replica.verbs.charge_forward()
        elif self._charges_alone:
            self.replica.ledger.charge()
        return self.is_there

    @property
    def own_time(self) -> float:
        """What its pass would take by itself, where that was charged for."""
        return float(self.replica.step.record["target_time"])

    @property
    def load(self) -> StepLoad:
        """What it brings to the pass."""
        step = self.replica.step
        return step.load._replace(pieces=step.pieces())

    @property
    def overhead_time(self) -> float:
        """The engine's own time before the pass where that is asynchronous, seconds."""
        replica = self.replica
        return replica.costs.overhead_time(replica.step.size) if replica.ledger.is_async else 0.0

    @property
    def gpu_free_at(self) -> float:
        """When its GPU ends what it has been given."""
        return float(self.replica.table.state["gpu_free_at"][0])

    @gpu_free_at.setter
    def gpu_free_at(self, instant: float) -> None:
        self.replica.ledger.set(gpu_free_at=instant)

    def charge(self, time: float, begins_at: float) -> None:
        """Take the step's share of the pass, and go on by itself."""
        step = self.replica.step
        step.record["target_time"] = time
        step.record["overhead_time"] = self.replica.costs.overhead_time(step.size)
        self.gpu_free_at = begins_at
        self.replica.done()
        self.is_there = False
