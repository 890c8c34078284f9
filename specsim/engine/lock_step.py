"""Lock-step: data-parallel ranks of a mixture of experts, which make every pass together.

Each rank is a replica with a scheduler and a KV cache of its own. A forward pass needs all of them,
since each holds some of the experts of every layer: it begins when the last rank has come to it,
and lasts as long as the slowest. A rank without work makes a dummy pass (vLLM 0.32.0
``v1/engine/core.py DPEngineCoreProc.run_busy_loop``). That a server without requests goes on with
dummy passes until ranks agree to stop is left out.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Pieces, StepLoad
from specsim.engine.order import BEGUN, CHARGE_FORWARD, LATER, THERE, wait_for_others
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
        there = [rank for rank in self.ranks if rank.is_there]
        ranks = [rank for rank in self.ranks if not (rank.is_there or rank.rests)]
        if there and not ranks:
            return self._meets_at
        return min(rank.replica.goes_on_at for rank in ranks or self.ranks)

    @property
    def leader(self) -> Replica:
        """The first rank."""
        return self.ranks[0].replica

    @property
    def _meets_at(self) -> float:
        """When the last rank comes to the next pass: one that rests, after its own last step."""
        return max([rank.replica.now for rank in self.ranks])

    def advance(self, until: float) -> None:
        """Do whatever happens before an instant."""
        while True:
            found = [rank.replica.come(until) for rank in self.ranks]
            if LATER in found:
                return
            if THERE in found:
                meets_at = self._meets_at
                if meets_at >= until:
                    return
                self._pass_together([each == THERE for each in found], meets_at)
                continue
            wakes_at = self.next_at
            if wakes_at >= until:
                return
            for rank in self.ranks:
                rank.replica.now = max(rank.replica.now, wakes_at)

    def _pass_together(self, comes: list[bool], meets_at: float) -> None:
        """Let a pass begin, of those ranks that come with a step and of the others with a dummy."""
        columns = [rank.columns for rank in self.ranks]
        there = [each for each, has_step in zip(columns, comes, strict=True) if has_step]
        if self._charges_alone:
            others = len(comes) - len(there)
            times = [*(float(each.pass_time[0]) for each in there), *[self._dummy_time] * others]
            tokens = [*(int(each.pass_tokens[0]) for each in there)]
            tokens += [self._dummy.batched_tokens] * others
            time = self._costs.time_of_ranks(times, tokens)
        else:
            ranks = zip(self.ranks, comes, strict=True)
            loads = [rank.load if has_step else self._dummy for rank, has_step in ranks]
            time = self._costs.lock_step_time(loads)
        overhead_time = 0.0
        if self.ranks[0].replica.ledger.is_async:  # before the pass, then
            overhead_time = max([float(each.pass_overhead[0]) for each in there])
        begins_at = max(meets_at + overhead_time, *[float(each.gpu_free_at[0]) for each in columns])
        for each in columns:
            each.now[0] = meets_at
            each.gpu_free_at[0] = begins_at + time
        for each in there:
            each.pass_time[0], each.pass_state[0] = time, BEGUN
            each.gpu_free_at[0] = begins_at


class _Columns(NamedTuple):
    """What a rank's state says of passes and of work, each of shape (1,)."""

    now: NDArray[np.float64]
    gpu_free_at: NDArray[np.float64]
    pass_time: NDArray[np.float64]
    pass_overhead: NDArray[np.float64]
    pass_tokens: NDArray[np.int64]
    pass_state: NDArray[np.int64]
    num_running: NDArray[np.int64]
    in_flight: NDArray[np.int64]


class Rank:
    """A replica whose forward passes are those of a `LockStep`, to which it comes and waits."""

    def __init__(self, replica: Replica, *, charges_alone: bool) -> None:
        self.replica = replica
        replica.table.limits["charges_alone"] = charges_alone
        self._state: Any = None

    @property
    def columns(self) -> _Columns:
        """Its state."""
        state = self.replica.table.state
        if state is not self._state:
            self._state = state
            self._columns = _Columns(*[state[name] for name in _Columns._fields])
        return self._columns

    @property
    def is_there(self) -> bool:
        """Whether it has a step that waits for the others."""
        return bool(self.columns.pass_state[0])

    @property
    def rests(self) -> bool:
        """Whether it has nothing to do now, and makes a dummy pass if others make one."""
        state = self.columns
        is_busy = state.pass_state[0] or state.num_running[0] or state.in_flight[0]
        return not is_busy and self.replica.goes_on_at > self.replica.now

    def arrive(self) -> bool:
        """Wait for the others with a step, unless that is empty; the loop says what it takes."""
        replica = self.replica
        num_requests = int(replica.step.record["num_requests"])
        if not replica.step.record["batched_tokens"]:
            replica.verbs.charge_forward()
            return False
        wait_for_others(replica.ledger.records(), 0.0, replica.costs.overhead_time(num_requests))
        return True

    @property
    def load(self) -> StepLoad:
        """What it brings to the pass."""
        step = self.replica.step
        return step.load._replace(pieces=step.pieces())
