"""Reference policies: random draft lengths, and bounds that know more than a server can."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from specsim.core.desk import Desk, PerRequest, loop_on
from specsim.core.step import BatchView, DraftView, Ints, StepOutcome
from specsim.decisions.loops import ROOMS
from specsim.decisions.policy import KnowsModel, OraclePolicy, Policy, ServerView, pricing_of
from specsim.policies.parts.exchange import (
    Trade,
    best_of,
    known_rate,
    note_dearer,
    note_step,
    put_drafts,
    put_loads,
    put_outcome,
    rate_of,
    set_prices,
    spend_before,
    spend_on_drafts,
    spend_on_found,
    trade_desk,
    weigh_choices,
)


@final
class Random(Policy[ServerView]):
    """Guess each accepted length at random and draft just that; goodput plays no part.

    The lower reference of Liu et al. (2024), "SmartSpec", section 7.2.1, fig. 14.
    """

    kind: Literal["random"] = "random"

    def draft_lens(self, batch: BatchView, memory: ServerView) -> Ints:
        """Return a length from 0 to the longest for each sequence, all equally likely."""
        return memory.rng.integers(0, memory.max_draft_len + 1, batch.size)


@final
class OracleGoodput(OraclePolicy[ServerView]):
    """Per sequence, the draft length that maximises the goodput of its verification.

    With accepted lengths known, a draft is never longer than its accepted length, nor than what the
    request still needs. Every accepted token adds one emitted token at the same cost, so for each
    limit v on the draft length the best choice is min(v, accepted length), and the best v is found
    by trying all. Liu et al. (2024), "SmartSpec", section 7.2.1: an oracle that calculates goodput
    from the actual accepted lengths.

    It is greedy, one step at a time: under continuous batching another policy can beat it.
    """

    kind: Literal["oracle"] = "oracle"

    def draft_lens(self, batch: BatchView, memory: ServerView) -> Ints:
        """Return the lengths of highest goodput for the step that will verify them."""
        assert memory.oracle is not None
        load = batch.decode_load()
        useful_lens = memory.oracle.useful_lens(batch.requests, batch.output_lens)
        useful_lens[batch.in_prefill] = 0
        best, best_rate = np.zeros(batch.size, dtype=np.int64), 0.0
        if not load.num_requests:
            return best
        longest = min(memory.max_draft_len, int(useful_lens.max()))
        for limit in range(longest + 1):
            lens = np.minimum(useful_lens, limit)
            emitted_tokens = load.num_requests + int(lens.sum())
            verified = load._replace(batched_tokens=emitted_tokens)
            rate = emitted_tokens / memory.step_time(verified, lens)
            if rate > best_rate:
                best, best_rate = lens, rate
        return best


_SAMPLES = 256  # random drafts from which this step's confidences are guessed
_CHOICES = 33  # choices of how many tokens of these drafts are verified
_KNOWN, _FOUND, _GUESSED, _TRIMS, _LEARNS = range(5)  # tasks of `weigh`


@loop_on(Trade, *ROOMS)
def weigh(desk: Trade) -> int:
    """Do the task in `sizes[3]`; return a length for all sequences; -1: they are in `lens`."""
    verb = desk.sizes[3]
    if verb == _LEARNS:
        note_step(desk)
        return -1
    rate = rate_of(desk.exchange, desk.decodes[2])
    if verb == _TRIMS:
        spend_on_drafts(desk, rate)
        return -1
    longest = set_prices(desk)
    if verb == _GUESSED:
        note_dearer(desk)
        weigh_choices(desk, 0, longest, rate)
        return best_of(desk.values, 0, longest)
    if verb == _FOUND:
        spend_on_found(desk, rate)
    else:
        spend_before(desk, longest, rate)
    return -1


@dataclass(slots=True)
class _Knowing:
    server: ServerView
    rates: PerRequest
    """Mean and mean square of the rates of each request's last draft, as known when it was made."""
    desk: Desk[Trade]

    def put(self, gains: NDArray[np.float64], size: int = 0) -> Trade:
        """Return the desk with `gains` in it, with room for `size` sequences."""
        num, longest = gains.shape
        desk = self.desk.fit(max(num, size, _CHOICES) * self.server.max_draft_len)
        desk.gains[: gains.size] = gains.T.ravel()
        desk.sizes[0], desk.sizes[1], desk.sizes[2] = _CHOICES, num, longest
        return desk


@final
class Bayes(KnowsModel[_Knowing]):
    """The bound of a server that knows the acceptance model and its state, but not the luck.

    It knows all that a request's past can tell (its own acceptance, and the regime in which its
    last token was drafted) and this step's confidences, to which the past adds nothing. With these
    probabilities it decides as `joint` does, which has to learn them.
    """

    kind: Literal["bayes"] = "bayes"
    examples = ({}, {"confidences": False})
    uses_confidences = "if known"
    needs_sync = True
    confidences: bool = True
    """Whether to use this step's confidences; if not, past acceptance alone."""

    def start(self, server: ServerView) -> _Knowing:
        """Return a memory without observations of tokens per second."""
        desk = trade_desk(server, 50.0, weigh, pricing=pricing_of(server))
        return _Knowing(server, PerRequest(0.0, 2, max(server.max_draft_len, 1)), desk)

    def draft_lens(self, batch: BatchView, memory: _Knowing) -> int | Ints:
        """Return the draft lengths of highest expected value."""
        server, load = memory.server, batch.decode_load()
        num, longest = load.num_requests, server.max_draft_len
        if not num or not longest:
            return 0
        assert server.model is not None
        known = server.model.rates(batch.requests, np.maximum(batch.output_lens, 0))
        rates = np.stack(known, axis=1)
        rates[batch.in_prefill] = 0.0
        memory.rates.up_to(batch.requests)[batch.requests] = rates
        if batch.free_slots < num:
            return 0
        what = _KNOWN
        if self.confidences and server.has_confidences:
            what = _GUESSED if batch.drafts is None else _FOUND
        if what == _KNOWN:
            desk = memory.put(np.cumprod(rates[:, 0], axis=1, dtype=np.float64))
        elif batch.drafts is not None:  # a lookup's, which are paid by the token
            desk = memory.put(_survival(batch.drafts))
        else:
            desk = self._guessed_desk(rates, batch, memory)
        desk.sizes[3], desk.limits["free_slots"] = what, batch.free_slots
        put_loads(desk, batch.load, load, min(batch.size * longest, batch.free_slots))
        length = memory.desk.runs[0]()
        if length > 0 and what == _GUESSED and not server.drafts_at_one_cost:
            return min(longest, batch.free_slots // num)  # `stop_len` will cut it
        return desk.lens[: batch.size].copy() if length < 0 else length

    def _guessed_desk(
        self, rates: NDArray[np.float64], batch: BatchView, memory: _Knowing
    ) -> Trade:
        """Return the desk with the choices of how many guessed draft tokens are verified."""
        gains = self._guessed(rates, batch, memory.server)
        desk = memory.put(gains[:0], batch.size)
        copies = len(gains) / batch.size
        shares = np.linspace(0.0, 1.0, _CHOICES)
        server = memory.server
        longest = min(server.max_draft_len, batch.free_slots // batch.size)
        for k in range(longest if server.drafts_at_one_cost else 1, longest + 1):
            falling = np.append(0.0, np.sort(gains[:, :k], axis=None)[::-1])
            at = np.rint(shares * (len(falling) - 1)).astype(np.intp)
            choices = slice((k - 1) * _CHOICES, k * _CHOICES)
            desk.tokens[choices], desk.gained[choices] = (
                at / copies,
                np.cumsum(falling)[at] / copies,
            )
        return desk

    def stop_len(self, batch: BatchView, drafts: DraftView, memory: _Knowing) -> int | None:
        """Return the draft length after which another drafting pass is not worth its time."""
        if batch.drafts is not None:
            return None
        drafts = drafts._replace(draft_lens=np.where(batch.in_prefill, 0, drafts.draft_lens))
        desk, server, lens = memory.desk.fit(1), memory.server, drafts.draft_lens
        num, width = desk.decodes[2], drafts.confidences.shape[1]
        worth = known_rate(desk, num)
        if not self.confidences or not worth or server.drafts_at_one_cost or not lens.any():
            return None
        load = batch.decode_load()
        times = [server.step_time(load._replace(batched_tokens=n * num), 0) for n in (1, 2)]
        price, drafting = worth * (times[1] - times[0]) / num, desk.drafting.copy()
        gains, rates = _survival(drafts), memory.rates.of(batch.requests)
        for k in range(1, width):
            next_ones = self._guessed(rates[:, :, k : k + 1], batch, server)[:, 0]
            copies = len(next_ones) // batch.size
            survival = np.repeat(gains[:, k - 1], copies) * next_ones
            added = np.maximum(survival - price, 0.0).sum() / copies
            if added <= worth * (drafting[k + 1] - drafting[k]):
                return k
        return None

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Knowing) -> Ints:
        """Return how much of each draft is worth verifying, by this step's confidences."""
        server, draft_lens = memory.server, drafts.draft_lens
        if not self.confidences or not server.has_confidences:
            return draft_lens
        desk = memory.put(_survival(drafts))
        put_drafts(desk, batch, drafts)
        desk.sizes[3] = _TRIMS
        memory.desk.runs[0]()
        return desk.lens[: batch.size].copy()

    def observe(self, outcome: StepOutcome, memory: _Knowing) -> None:
        """Learn the tokens per second from a step that has ended."""
        desk = memory.desk.fit(1)
        put_outcome(desk, outcome)
        desk.sizes[3] = _LEARNS
        memory.desk.runs[0]()

    def _guessed(
        self, rates: NDArray[np.float64], batch: BatchView, server: ServerView
    ) -> NDArray[np.float64]:
        """Return random guesses of the survival that confidences will show, several per row."""
        assert server.model is not None
        rates, squares = np.repeat(rates, max(1, _SAMPLES // batch.size), axis=0).swapaxes(0, 1)
        rates = np.clip(rates, 1e-6, 1.0 - 1e-6)
        variances = squares - rates**2 + server.model.known_share * (rates - squares)
        most = rates * (1.0 - rates)
        total = most / np.clip(variances, 1e-6 * most, 0.999 * most) - 1.0
        stated = server.rng.beta(total * rates, total * (1.0 - rates))
        return np.cumprod(stated, axis=1)


def _survival(drafts: DraftView) -> NDArray[np.float64]:
    """Return how likely the first 1, 2, ... tokens of drafts survive; 0 beyond their ends."""
    return np.cumprod(drafts.confidences, axis=1, dtype=np.float64)
