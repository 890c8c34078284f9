"""Joint: how much to draft and then what to verify of it, at the long-run price of a second."""

from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.compiled import Pointers
from specsim.core.desk import Desk, PerRequest, loop_on
from specsim.core.step import BatchView, DraftView, Ints, StepOutcome
from specsim.policies._estimate import Fading
from specsim.policies._exchange import (
    FREE_SLOTS,
    TIMES_GIVEN,
    put_drafts,
    put_loads,
    put_outcome,
    trade_desk,
)
from specsim.policies._joining import act
from specsim.policies._joint_desk import (
    DRAFTS,
    DROPS,
    HAS_CONFIDENCES,
    HAS_FOUND,
    HAS_UNDRAFTED,
    IS_OFF,
    JOINING_ROOMS,
    LEARNS,
    MAY_STOP,
    NUM,
    NUM_STATES,
    PRIOR,
    PROBE,
    STOPS,
    VERB,
    VERIFIES,
    WIDTH,
    Joining,
)
from specsim.policies._lives import no_lives
from specsim.policies._prospects import LEVELS, prospects
from specsim.policies.base import Policy, ServerView
from specsim.policies.draft_goodput import KINDS, LEN_KINDS, bins_of, calibrating_desk

_PRIOR_TRIALS = 20.0  # that the rate of all requests counts for in the rate of one


@loop_on(Joining, *JOINING_ROOMS)
def act_on_desk(desk: Joining) -> int:
    """Do what `act` does."""
    return act(desk)


class _Memory:
    """All that it remembers, on one desk."""

    def __init__(self, server: ServerView, policy: "Joint") -> None:
        longest = max(server.max_draft_len, 1)
        state = np.zeros(NUM_STATES)
        state[PRIOR], state[PROBE] = policy.prior, -1.0
        fading = Desk(
            Fading,
            counts=PerRequest(0.0, 2),
            totals=np.zeros(2),
            rates=np.array([1.0 - 1.0 / policy.window, _PRIOR_TRIALS, 1.0, 0.0]),
        )
        self.server, self.longest, self.state = server, longest, state
        self.sizes: Ints = np.zeros(6, dtype=np.int64)
        self.desk = Desk(
            Joining,
            act_on_desk,
            states=PerRequest(0, dtype=np.int64),
            kinds=PerRequest((KINDS - 1) // 2, dtype=np.int64),
            fates=PerRequest(0.0, 2),
            begun=PerRequest(0.0),
            tokens=longest * LEVELS,
            gained=longest * LEVELS,
            trade=trade_desk(server, policy.window),
            calibrating=calibrating_desk(bins_of(longest), policy.calibration_window),
            seen=prospects(longest, policy.prior),
            fading=fading,
            len_kinds=LEN_KINDS,
            state=state,
            lives=no_lives(),
            sizes=self.sizes,
        )

    def fit(self, requests: Ints, drafts: DraftView | None = None) -> Joining:
        """Return the desk with a step's requests, and drafts."""
        num = len(requests)
        desk = self.desk.fit(num * self.longest, requests)
        desk.sizes[NUM], desk.sizes[HAS_CONFIDENCES] = num, self.server.has_confidences
        if drafts is not None:
            size = drafts.confidences.size
            desk.confidences[:size] = drafts.confidences.ravel()
            desk.draft_lens[:num] = drafts.draft_lens
            desk.sizes[WIDTH] = drafts.confidences.shape[1]
        return desk

    def pointers(self, most: int, num_requests: int) -> Pointers:
        """Return the desk for steps of so many sequences of so many requests at most."""
        self.desk.fit(most * self.longest, np.array([num_requests - 1]))
        self.sizes[HAS_CONFIDENCES] = self.server.has_confidences
        return self.desk.pointers

    def act(self, verb: int) -> int:
        """Do one of the verbs with what is on the desk."""
        self.sizes[VERB] = verb
        return self.desk.runs[0]()


@final
class Joint(Policy):
    """Propose by what trimming will leave of a draft, then verify what pays by its confidences.

    Two decisions are one: a draft is worth what is left of it once its confidences are known.
    Both maximise tokens - rate x time, the rate being what the server has lately emitted per
    second of decoding; the derivation is in docs/explanation/joint.md.
    """

    kind: Literal["joint"] = "joint"
    uses_confidences: ClassVar[bool] = True
    needs_confidences: ClassVar[bool] = False
    needs_sync: ClassVar[bool] = True
    minds_prompts: ClassVar[bool] = True
    window: int = Field(default=50, ge=1)
    """Steps after which tokens and time, and without confidences acceptance, have faded to 1/e."""
    calibration_window: int = Field(default=1000, ge=1)
    """Steps after which what came of a stated probability has faded to 1/e."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before anything has been seen."""

    def start(self, server: ServerView) -> _Memory:
        """Return the prior, and a drafter that is taken at its word."""
        return _Memory(server, self)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | Ints:
        """Return what is worth drafting."""
        server, load, num = memory.server, batch.decode_load(), batch.size
        if not load.num_requests or not server.max_draft_len:
            return 0
        desk = memory.fit(batch.requests, batch.drafts)
        desk.in_prefill[:num] = batch.in_prefill
        desk.sizes[HAS_FOUND] = batch.drafts is not None
        desk.sizes[HAS_UNDRAFTED] = batch.is_undrafted is not None
        if batch.is_undrafted is not None:
            desk.is_undrafted[:num] = batch.is_undrafted
        desk.trade.limits[FREE_SLOTS] = batch.free_slots
        put_loads(desk.trade, server, batch.load, load, min(num * memory.longest, batch.free_slots))
        length = memory.act(DRAFTS)
        return desk.trade.lens[:num].copy() if length < 0 else length

    def stop_len(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> int | None:
        """Return after how many passes another one is not worth its time."""
        if not memory.state[MAY_STOP] or not drafts.draft_lens.any():
            return None
        memory.fit(batch.requests, drafts)
        return memory.act(STOPS)

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> Ints:
        """Return what is worth verifying of what was drafted."""
        server = memory.server
        if not server.has_confidences or not drafts.confidences.size:
            return drafts.draft_lens
        desk = memory.fit(batch.requests, drafts)
        put_drafts(desk.trade, server, batch, drafts)
        memory.act(VERIFIES)
        lens: Ints = desk.trade.lens[: batch.size].copy()
        return lens

    def drops(self, batch: BatchView, memory: _Memory) -> NDArray[np.bool_] | None:
        """Return everyone while the drafter is not worth what it takes to keep it up."""
        if memory.server.plain_time is None:
            return None
        desk = memory.fit(batch.requests)
        put_loads(desk.trade, memory.server, batch.load, batch.decode_load())
        return desk.let_go[: batch.size].copy() if memory.act(DROPS) else None

    def loop_desk(self, memory: _Memory, most: int, num_requests: int) -> Pointers | None:
        """Return the desk, if loops can tell what steps take."""
        is_told = memory.desk.fit(1).trade.limits[TIMES_GIVEN]
        return None if is_told else memory.pointers(most, num_requests)

    def drops_now(self, memory: _Memory) -> bool:
        """Return whether the drafter is not worth its upkeep for those that it has read."""
        return bool(memory.state[IS_OFF])

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Note what came of what was stated, and what the step took."""
        num = len(outcome.requests)
        desk = memory.fit(outcome.requests)
        desk.draft_lens[:num], desk.accepted_lens[:num] = outcome.draft_lens, outcome.accepted_lens
        put_outcome(desk.trade, memory.server, outcome)
        memory.act(LEARNS)
