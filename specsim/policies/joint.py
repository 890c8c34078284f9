"""Joint: how much to draft and then what to verify of it, at the long-run price of a second."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.step import BatchView, DraftView, Ints, StepLoad, StepOutcome
from specsim.policies._desk import PerRequest
from specsim.policies._estimate import AlphaPerRequest
from specsim.policies._exchange import Exchange, Price, spend, spend_on, value_of
from specsim.policies.base import Policy, ServerView
from specsim.policies.draft_goodput import Calibration

_LEVELS = 32  # of survival, equally wide
_REMEMBERED = 512.0  # drafts after which one has faded to 1/e in the prospects
_PRIOR_DRAFTS = 4.0
_PRIOR_TRIALS = 20.0  # that the rate of all requests counts for in the rate of one
_FIRST_GAP, _LAST_GAP = 16, 2048  # steps between two looks at a drafter that did not pay
_PROBE_DRAFTS = 8  # of a request that is drafted for to see whether it pays
_EVIDENCE = 16  # drafts without which a drafter is not given up
_WORTHWHILE = 0.01  # share of a step that a drafter which was given up has to gain
_PROBED = 4  # sequences of which such a step verifies a token at least


class Prospects:
    """How likely the first, second, ... token of a draft survives: not the mean, the distribution.

    What is drafted is trimmed when its confidences are known, so that a j-th token is worth
    E[max(S_j - price, 0)], for which all of the distribution of S_j counts.

    Args:
        longest: Tokens.
        prior: alpha before anything has been drafted.
    """

    def __init__(self, longest: int, prior: float) -> None:
        survival = prior ** np.arange(1, longest + 1)
        self._longest = longest
        self._counts = np.zeros((2, longest, _LEVELS))
        """Drafts and their survival, by place and level of survival."""
        at = (np.arange(longest), (survival * (_LEVELS - 1e-9)).astype(np.intp))
        self._counts[0][at], self._counts[1][at] = _PRIOR_DRAFTS, _PRIOR_DRAFTS * survival
        self.num = _PRIOR_DRAFTS
        """Drafts, fading."""
        self.seen = 0
        """Drafts."""
        self._firsts: NDArray[np.float64] = np.full(1, prior)
        """Survival of the last first tokens."""
        self._decline = np.ones(longest)
        """Conditional survival at each place over that at the first."""

    def add(self, gains: NDArray[np.float64], draft_lens: Ints) -> None:
        """Take in the survival of drafts, shape (n, at most longest), all longer than 0.

        A draft that ended early would have gone on like those that did not.
        """
        num, width = gains.shape
        survival = np.zeros((num, self._longest))
        survival[:, :width] = gains
        self._firsts = gains[:, 0].copy()
        for place in range(1, self._longest):
            is_open = draft_lens <= place
            before = survival[:, place - 1]
            others = np.roll(self._firsts, place)
            if is_open.all():
                survival[:, place] = before * np.minimum(others * self._decline[place], 1.0)
            elif is_open.any():
                more = before * np.minimum(others * self._decline[place], 1.0)
                survival[is_open, place] = more[is_open]
            else:
                total = float(before.sum()) * float(others.mean())
                if total > 0.0:
                    now = float(survival[:, place].sum()) / total
                    self._decline[place] += min(num / 64.0, 0.5) * (now - self._decline[place])
        levels = np.minimum((survival * _LEVELS).astype(np.intp), _LEVELS - 1)
        levels += np.arange(self._longest) * _LEVELS
        size = self._longest * _LEVELS
        keep = max(1.0 - num / _REMEMBERED, 0.2)
        self._counts *= keep
        self._counts[0] += np.bincount(levels.ravel(), minlength=size).reshape(-1, _LEVELS)
        weights = np.bincount(levels.ravel(), survival.ravel(), minlength=size)
        self._counts[1] += weights.reshape(-1, _LEVELS)
        self.num = keep * self.num + num
        self.seen += num

    def cumulated(self) -> NDArray[np.float64]:
        """Return what a draft of 1, 2, ... tokens leads to if what is likeliest is verified.

        Tokens verified and tokens accepted, by the level down to which they are, shape (2, longest,
        levels).
        """
        falling = self._counts[:, :, ::-1].cumsum(axis=2)
        total: NDArray[np.float64] = falling.cumsum(axis=1) / self.num
        return total


@dataclass(slots=True)
class _Memory:
    server: ServerView
    exchange: Exchange
    prospects: Prospects
    calibration: Calibration
    alphas: AlphaPerRequest
    has_seen_drafts: bool = False
    """Whether drafts were looked at as they were made, and what is verified are parts of them."""
    idle_steps: int = 0
    """Since something was drafted last."""
    gap: int = _FIRST_GAP
    """Steps after which that is tried again, though it does not seem to pay."""
    is_probing: bool = False
    advantage: float = 0.1
    """What drafting is worth more than a server without a drafter, over what a step is worth."""
    is_off: bool = False
    """Whether the drafter is not worth its own upkeep."""
    dropped: PerRequest = field(default_factory=lambda: PerRequest(0, dtype=np.int8))
    """1 of each request that is not drafted for any more."""
    probe: int = -1
    """A request that is drafted for nevertheless, to see whether that pays by now; -1: none."""
    probes_left: int = 0
    """Drafts that are made for it."""

    def note_advantage(self, gain: float) -> None:
        """Take in by what share of a step drafting for all is better than no drafter."""
        self.advantage += 0.1 * (gain - self.advantage)
        was_off = self.is_off
        if self.prospects.seen >= _EVIDENCE:
            self.is_off = self.advantage < (_WORTHWHILE if was_off else 0.0)
        if self.is_off and not was_off:
            self.idle_steps = 0
        if was_off and not self.is_off:
            self.gap = _FIRST_GAP


@final
class Joint(Policy):
    """Propose by what trimming will leave of a draft, then verify what pays by its confidences.

    Two decisions are one: a draft is worth what is left of it once its confidences are known.
    Both maximise tokens - rate x time, the rate being what the server has lately emitted per
    second of decoding (`Exchange`); the derivation is in docs/explanation/joint.md.
    """

    kind: Literal["joint"] = "joint"
    uses_confidences: ClassVar[bool] = True
    needs_confidences: ClassVar[bool] = False
    needs_sync: ClassVar[bool] = True
    window: int = Field(default=50, ge=1)
    """Steps after which tokens and time, and without confidences acceptance, have faded to 1/e."""
    calibration_window: int = Field(default=1000, ge=1)
    """Steps after which what came of a stated probability has faded to 1/e."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before anything has been seen."""

    def start(self, server: ServerView) -> _Memory:
        """Return the prior, and a drafter that is taken at its word."""
        longest = server.max_draft_len
        return _Memory(
            server,
            Exchange(self.window),
            Prospects(max(longest, 1), self.prior),
            Calibration(self.calibration_window, max(longest, 1)),
            AlphaPerRequest(self.window, self.prior, _PRIOR_TRIALS),
        )

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | Ints:
        """Return what is worth drafting."""
        load = batch.decode_load()
        if not load.num_requests or not memory.server.max_draft_len:
            return 0
        if not memory.server.has_confidences:
            lens = self._by_past(batch, load, memory)
        elif batch.drafts is not None:
            lens = self._of_found(batch, batch.drafts, load, memory)
        else:
            return self._by_prospects(batch, load, memory)
        return lens

    def _by_prospects(self, batch: BatchView, load: StepLoad, memory: _Memory) -> int:
        """Return a length for all, by what survives of drafts as a rule."""
        server, num = memory.server, load.num_requests
        rate = memory.exchange.rate(num)
        price = Price(server, batch, load, rate)
        if not price.longest:
            return 0
        tokens, gained = memory.prospects.cumulated()
        values = price.values(num * tokens, num * gained)
        time = server.plain_time(load) if server.plain_time else server.step_time(load, 0)
        plain = value_of(num, time, rate)
        best = int(values.argmax())
        memory.note_advantage(float(values[best] - plain) / (rate * time if rate else plain))
        is_served = (memory.dropped.of(batch.requests) == 0) & ~batch.in_prefill
        served = int(np.count_nonzero(is_served))
        if not served:
            memory.idle_steps += 1
            return 0
        if served < num:
            values = price.values(served * tokens, served * gained)
            best = int(values.argmax())
        least = 1 + int(values[1:].argmax())
        if memory.is_off:
            memory.is_probing, memory.idle_steps = True, 0
            memory.probes_left -= 1
            return least
        return self._explored(best, least, memory)

    def _explored(self, best: int, least: int, memory: _Memory) -> int:
        """Return a length, now and then one that does not seem to pay."""
        memory.is_probing = False
        if best:
            memory.idle_steps, memory.gap = 0, _FIRST_GAP
            return best
        memory.idle_steps += 1
        if memory.idle_steps < memory.gap:
            return 0
        memory.idle_steps, memory.gap = 0, min(2 * memory.gap, _LAST_GAP)
        memory.is_probing = True
        return least

    def _by_past(self, batch: BatchView, load: StepLoad, memory: _Memory) -> Ints:
        """Return a length for each sequence, by what was accepted of it so far."""
        server, rate = memory.server, memory.exchange.rate(load.num_requests)
        survival = memory.alphas.survival(batch, server.max_draft_len)
        lens = Price(server, batch, load, rate).best_lens(survival)
        if not (most := self._explored(int(lens.max()), 1, memory)) or lens.any():
            return lens
        return np.where(batch.in_prefill, 0, most if batch.size <= batch.free_slots else 0)

    def _of_found(
        self, batch: BatchView, drafts: DraftView, load: StepLoad, memory: _Memory
    ) -> Ints:
        """Return what is worth handing over and verifying of what a lookup has found."""
        server = memory.server
        memory.has_seen_drafts = True
        num, rate = load.num_requests, memory.exchange.rate(load.num_requests)
        if not drafts.draft_lens.any():
            return drafts.draft_lens
        gains = memory.calibration.gains(batch.requests, drafts, are_new=True)
        token_time = (server.step_time(load, 1) - server.step_time(load, 0)) / num
        most = min(batch.free_slots, gains.size)
        return spend(gains, load, server.step_times, rate, most=most, token_time=token_time).lens

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> Ints:
        """Return what is worth verifying of what was drafted."""
        server, draft_lens = memory.server, drafts.draft_lens
        if not server.has_confidences:
            return draft_lens
        gains = memory.calibration.gains(batch.requests, drafts, are_new=not memory.has_seen_drafts)
        is_drafted = draft_lens > 0
        if not memory.has_seen_drafts and is_drafted.any():
            memory.prospects.add(gains[is_drafted], draft_lens[is_drafted])
        num = batch.size - int(np.count_nonzero(batch.in_prefill))
        lens = spend_on(batch, drafts, gains, server, memory.exchange.rate(num))
        if memory.is_probing:
            first = np.flatnonzero(is_drafted)[:_PROBED]
            lens[first] = np.maximum(lens[first], 1)
        return lens

    def drops(self, batch: BatchView, memory: _Memory) -> NDArray[np.bool_] | None:
        """Return everyone while the drafter is not worth what it takes to keep it up."""
        server, requests = memory.server, batch.requests
        if not memory.is_off or server.plain_time is None or batch.drafts is not None:
            return None
        if memory.probe >= 0 and memory.probes_left <= 0:
            memory.probe = -1
        is_new = memory.dropped.of(requests) == 0
        if memory.probe < 0 and memory.idle_steps >= memory.gap and is_new.any():
            memory.probe, memory.probes_left = int(requests[is_new][-1]), _PROBE_DRAFTS
            memory.idle_steps, memory.gap = 0, min(2 * memory.gap, _LAST_GAP)
        let_go: NDArray[np.bool_] = is_new & (requests != memory.probe)
        memory.dropped.values[requests[let_go]] = 1
        return let_go if let_go.any() else None

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Note what came of what was stated, and what the step took."""
        memory.exchange.add(outcome)
        if not memory.server.has_confidences:
            memory.alphas.add(outcome)
        elif np.count_nonzero(outcome.draft_lens):
            memory.calibration.add(outcome)
