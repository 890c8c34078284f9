"""Joint: how much to draft and then what to verify of it, at the long-run price of a second."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.desk import PerRequest
from specsim.core.step import BatchView, DraftView, Ints, StepLoad, StepOutcome
from specsim.policies._budget import best_worth
from specsim.policies._estimate import AlphaPerRequest
from specsim.policies._exchange import Exchange, Price, spend_on, value_of
from specsim.policies._prospects import Prospects, Recents
from specsim.policies.base import Policy, ServerView
from specsim.policies.draft_goodput import LEN_KINDS, ConfidenceCalibration

_NEW, _SERVED, _LET_GO = range(3)
_SAMPLE = 32  # drafts of a step that are looked at for the prospects
_PRIOR_TRIALS = 20.0  # that the rate of all requests counts for in the rate of one
_STEADY = 100.0  # steps over which a drafter has to be worth its upkeep
_SOON = 20.0  # for whom it serves, who are the fewer the longer it reads no prompts
_PRIOR_GAIN = 0.05  # share of a step that a drafter is expected to gain
_PRIOR_REQUESTS = 8.0  # that this counts for, and that they decode for as many steps as above
_KEPT = 0.999  # share of what is known of requests that a step leaves
_EVIDENCE = 16  # drafts without which a drafter is not given up
_WORTHWHILE = 0.01  # share of a step that a drafter has to gain
_LOSS = 0.002  # share of all steps that may be lost by drafting what does not seem to pay
_PROBE_DRAFTS = 8  # of a request that is drafted for though the drafter was given up
_PROBED = 4  # sequences of which such a step verifies a token at least


class Lives:
    """What it takes the drafter to read a prompt, and for how many steps that is of use.

    Both are means over requests, fading: of those admitted, and of those that have ended, with a
    prior. Prompts come in bursts; what reading them costs is borne by all steps that gain from it.
    """

    def __init__(self) -> None:
        self.seen = 0
        """Requests."""
        self._begun = PerRequest(0.0)
        self._step, self._age, self._size = 0.0, 0.0, 0
        self._admitted, self._reading = 0.0, 0.0
        """Requests, and seconds that the drafter would have read their prompts."""
        self._ended, self._lived = _PRIOR_REQUESTS, _PRIOR_REQUESTS * _STEADY
        """Requests, and the steps in which they decoded."""

    def admit(self, requests: Ints, seconds: float) -> None:
        """Take in what a step admits, and how long prompts would have been read in it."""
        self._begun.up_to(requests)[requests] = self._step
        self.seen += len(requests)
        self._admitted += len(requests)
        self._reading += seconds
        self._ended += len(requests)

    def share(self, requests: Ints, num: int) -> float:
        """Return what a step of so many decoding sequences bears of reading prompts, seconds."""
        self._step += 1.0
        age = len(requests) * self._step - float(np.add.reduce(self._begun.of(requests)))
        self._ended -= len(requests) - self._size
        self._lived += num - (age - self._age)
        self._size, self._age = len(requests), age
        if not self._admitted:
            return 0.0
        life = max(self._lived, 1.0) / max(self._ended, 1.0)
        share = num * self._reading / self._admitted / life
        self._admitted, self._reading = _KEPT * self._admitted, _KEPT * self._reading
        self._lived, self._ended = _KEPT * self._lived, _KEPT * self._ended
        return share


@dataclass(slots=True)
class _Memory:
    server: ServerView
    exchange: Exchange
    prospects: Prospects
    calibration: ConfidenceCalibration
    alphas: AlphaPerRequest
    has_seen_drafts: bool = False
    """Whether drafts were looked at as they were made, and what is verified are parts of them."""
    recents: Recents = field(default_factory=Recents)
    idle_steps: int = 0
    """Since something was drafted that did not seem to pay."""
    is_probing: bool = False
    gains: tuple[float, ...] = (0.0, 0.0, 0.0)
    """What drafting is worth more than a server without a drafter, over what a step is worth, as a
    mean over steps, fading: for all; for all, with the drafter's prefills; for whom it serves."""
    noted: float = 0.0
    """Steps of which these are a mean."""
    lives: Lives = field(default_factory=Lives)
    is_closed: bool = False
    """Whether the drafter is not worth reading the prompts of more requests;"""
    steps_since_new: int = 0
    """Since a request was admitted: until then it may come to serve more of the batch;"""
    is_off: bool = False
    """and whether it is not worth its upkeep for those that it has read."""
    states: PerRequest = field(default_factory=lambda: PerRequest(_NEW, dtype=np.int8))
    """Of each request: new to the drafter, served, or let go of."""
    probe: int = -1
    """A request that is drafted for nevertheless, to see whether that pays by now; -1: none."""
    probes_left: int = 0
    """Drafts that are made for it."""

    def note(self, idle: float, *gains: float) -> None:
        """Take in the gains of a step, and decide whom the drafter is to serve.

        To come back it has to gain half of what it takes while it serves too few yet (`idle`).
        """
        if self.prospects.seen >= _EVIDENCE:  # before, gains are what the prior says
            self.noted += 1.0
            steps = min(self.noted, _STEADY)
            horizons = (steps, steps, min(steps, _SOON))
            self.gains = tuple([m + (gains[n] - m) / horizons[n] for n, m in enumerate(self.gains)])
            prior = _PRIOR_REQUESTS / (self.lives.seen + _PRIOR_REQUESTS)
            for_all, with_prefills, for_served = [
                gain + prior * (_PRIOR_GAIN - gain) for gain in self.gains
            ]
            least = max(idle / 2.0, _WORTHWHILE) if self.is_closed else _WORTHWHILE
            self.is_closed = with_prefills < least
            is_waning = self.is_closed or self.steps_since_new > _STEADY
            self.is_off = is_waning and min(for_all, for_served) < 0.0


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
            ConfidenceCalibration(self.calibration_window, max(longest, 1)),
            AlphaPerRequest(self.window, self.prior, _PRIOR_TRIALS),
        )

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | Ints:
        """Return what is worth drafting."""
        load = batch.decode_load()
        if not load.num_requests or not memory.server.max_draft_len:
            return 0
        if not memory.server.has_confidences:
            return self._by_past(batch, load, memory)
        if batch.drafts is not None:
            return self._of_found(batch, batch.drafts, load, memory)
        return self._by_prospects(batch, load, memory)

    def _by_prospects(self, batch: BatchView, load: StepLoad, memory: _Memory) -> int:
        """Return a length for all, by what survives of drafts as a rule."""
        server, num = memory.server, load.num_requests
        rate = memory.exchange.rate(num)
        price = Price(server, batch, load, rate)
        if not price.longest:
            return 0
        classes = memory.recents.classes(batch.requests)
        time = server.plain_time(load) if server.plain_time else server.step_time(load, 0)
        plain = value_of(num, time, rate)
        worth = rate * time if rate else plain
        decoding = classes if num == batch.size else classes[~batch.in_prefill]
        values = price.values(*memory.prospects.of_batch(decoding))
        for_all = for_served = (max(values) - plain) / worth
        served = num
        if batch.is_undrafted is not None:
            is_served = ~batch.is_undrafted & ~batch.in_prefill
            served = int(np.count_nonzero(is_served))
            if served < num:
                values = price.values(*memory.prospects.of_batch(classes[is_served]))
                for_served = (max(values) - plain) / worth
        idle = server.step_time(load, 0) / time - 1.0
        reading = memory.lives.share(batch.requests, num)
        memory.note(idle, for_all, for_all - reading / time, for_served)
        memory.idle_steps += 1
        if not served:
            return 0
        best = values.index(max(values))
        least = values.index(max(values[1:]), 1)
        if memory.probes_left > 0:
            memory.is_probing = True
            memory.probes_left -= 1
            return least
        return self._explored(best, least, (values[0] - values[least]) / worth, memory)

    def _explored(self, best: int, least: int, loss: float, memory: _Memory) -> int:
        """Return a length, now and then one that loses some of a step's worth, as far as is known.

        So rarely that little is lost.
        """
        memory.is_probing = not best and memory.idle_steps * _LOSS >= loss
        if memory.is_probing:
            memory.idle_steps = 0
            return least
        return best

    def _by_past(self, batch: BatchView, load: StepLoad, memory: _Memory) -> Ints:
        """Return a length for each sequence, by what was accepted of it so far."""
        server, rate = memory.server, memory.exchange.rate(load.num_requests)
        survival = memory.alphas.survival(batch, server.max_draft_len)
        lens = Price(server, batch, load, rate).best_lens(survival)
        memory.idle_steps += 1
        if lens.any() or batch.size > batch.free_slots:
            return lens
        most = self._explored(0, 1, 1.0, memory)
        return np.where(batch.in_prefill, 0, most)

    def _of_found(
        self, batch: BatchView, drafts: DraftView, load: StepLoad, memory: _Memory
    ) -> Ints:
        """Return what is worth handing over and verifying of what a lookup has found."""
        server = memory.server
        memory.has_seen_drafts = True
        if not drafts.draft_lens.any():
            return drafts.draft_lens
        kinds = LEN_KINDS[drafts.draft_lens]
        gains = memory.calibration.gains(batch.requests, drafts, kinds, are_new=True)
        rate = memory.exchange.rate(load.num_requests)
        times = Price(server, batch, load, rate).times_of(1)
        return best_worth(gains, load, times, rate, 0, batch.free_slots)[0]

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> Ints:
        """Return what is worth verifying of what was drafted."""
        server, draft_lens = memory.server, drafts.draft_lens
        if not server.has_confidences or not drafts.confidences.size:
            return draft_lens
        classes = memory.recents.classes(batch.requests)
        are_new = not memory.has_seen_drafts
        gains = memory.calibration.gains(batch.requests, drafts, classes, are_new=are_new)
        num_drafts = int(np.count_nonzero(draft_lens))
        if are_new and (num_drafts < _SAMPLE or memory.idle_steps % 4 == 0):
            drafted, stride = np.flatnonzero(draft_lens), 1 + num_drafts // _SAMPLE
            some = drafted[memory.idle_steps // 4 % stride :: stride]
            memory.prospects.add(gains[some], draft_lens[some], classes[some])
        num = batch.size - int(np.count_nonzero(batch.in_prefill))
        lens = spend_on(batch, drafts, gains, server, memory.exchange.rate(num))
        if memory.is_probing:
            first = np.flatnonzero(draft_lens)[:_PROBED]
            lens[first] = np.maximum(lens[first], 1)
        return lens

    def drops(self, batch: BatchView, memory: _Memory) -> NDArray[np.bool_] | None:
        """Return everyone while the drafter is not worth what it takes to keep it up."""
        server, requests, load = memory.server, batch.requests, batch.load
        if server.plain_time is None:
            return None
        upkeep = 0.0
        if load.prefill_tokens:
            upkeep += server.step_time(load, 0) - server.plain_time(load)
            if (decodes := batch.decode_load()).num_requests:
                upkeep -= server.step_time(decodes, 0) - server.plain_time(decodes)
        states = memory.states.of(requests)
        has_new = np.count_nonzero(states) < batch.size
        if has_new or upkeep:
            memory.lives.admit(requests[states == _NEW], upkeep)
        memory.steps_since_new = 0 if has_new else memory.steps_since_new + 1
        if not has_new and not memory.is_off:
            return None
        let_go: NDArray[np.bool_] = (
            states == _NEW if memory.is_closed else np.zeros(batch.size, dtype=bool)
        )
        if memory.is_off:
            let_go = states != _LET_GO
            if memory.probes_left <= 0:
                memory.probe = -1
                if memory.idle_steps * _LOSS >= _PROBE_DRAFTS and (states == _NEW).any():
                    memory.probe = int(requests[states == _NEW][-1])
                    memory.probes_left, memory.idle_steps = _PROBE_DRAFTS, 0
            let_go &= requests != memory.probe
        memory.states.values[requests] = np.where(let_go | (states == _LET_GO), _LET_GO, _SERVED)
        return let_go if let_go.any() else None

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Note what came of what was stated, and what the step took."""
        memory.exchange.add(outcome, memory.server)
        if not memory.server.has_confidences:
            memory.alphas.add(outcome)
        elif np.count_nonzero(outcome.draft_lens):
            memory.calibration.add(outcome)
            memory.recents.add(outcome)
