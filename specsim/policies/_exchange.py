"""What a second is worth in tokens, and what to verify at that price."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import BatchView, DraftView, Ints, StepLoad, StepOutcome
from specsim.policies._times import TimesOf
from specsim.policies.base import ServerView

_CHOICES = 33  # of how much of many drafts is verified
_LEAST_GAIN = 2.0**-10  # tokens; what gains less is worth no place in a batch


class Exchange:
    """The long-run rate of tokens per second, for batches of any size.

    A policy that maximises tokens - rate x time in every step, where rate is the ratio of the two
    that it arrives at, maximises that ratio over all steps (Dinkelbach 1967); the best ratio within
    each step does not. Prompts are to be read whatever is drafted, so steps with prefills are left
    out. Time per step and tokens per sequence change slowly; batches do not, so that the rate is
    made of the former for a given batch.

    Args:
        window: Steps after which one has faded to 1/e.
    """

    def __init__(self, window: float) -> None:
        self._keep = 1.0 - 1.0 / window
        self._tokens = self._sequences = self._time = self._steps = 0.0

    def add(self, outcome: StepOutcome) -> None:
        """Take a step in."""
        time = outcome.target_time + outcome.draft_time + outcome.overhead_time
        if outcome.load.prefill_tokens or not len(outcome.requests) or time <= 0.0:
            return
        keep = self._keep
        self._tokens = keep * self._tokens + outcome.output_tokens
        self._sequences = keep * self._sequences + len(outcome.requests)
        self._time = keep * self._time + time
        self._steps = keep * self._steps + 1.0

    def rate(self, num: int) -> float:
        """Return tokens per second of a batch of so many sequences; 0 while it is not known."""
        if not self._time:
            return 0.0
        return num * self._tokens / self._sequences * self._steps / self._time


class Spent(NamedTuple):
    """What is best verified."""

    lens: Ints
    """Of each sequence, tokens."""
    value: float
    """Tokens - rate x time; tokens per second where the rate is not known."""


def value_of(tokens: Any, time: Any, rate: float) -> Any:
    """Return what steps are worth that emit so many tokens in so many seconds."""
    return tokens - rate * time if rate else tokens / time


def spend(  # noqa: PLR0913 - all of it counts
    gains: NDArray[np.float64],
    load: StepLoad,
    step_times: TimesOf,
    rate: float,
    *,
    most: int,
    draft_time: float = 0.0,
    token_time: float = 0.0,
) -> Spent:
    """Return how much of each draft is best verified.

    The B largest gains are the best B tokens, since gains do not rise along a draft (proof:
    `goodput_exact`); so it is enough to try every B. Of equal gains all are taken or none.

    Args:
        gains: P(the first j tokens of draft i are accepted), shape (n, longest).
        load: Of the step that verifies nothing.
        rate: What a second is worth, tokens; 0: not known, and goodput is maximised.
        most: Tokens that may be verified.
        draft_time: Seconds that drafting takes, whatever is verified.
        token_time: Seconds that each verified token takes to draft.
    """
    falling = np.sort(gains[gains > _LEAST_GAIN])[: -most - 1 : -1] if most > 0 else gains[:0, 0]
    num = len(falling)
    emitted = np.full(num + 1, float(load.num_requests))
    emitted[1:] += np.add.accumulate(falling)
    times = step_times(load, np.arange(load.batched_tokens, load.batched_tokens + num + 1), 0)
    times += draft_time + token_time * np.arange(num + 1)
    values = value_of(emitted, times, rate)
    best = int(values.argmax())
    value = float(values[best])
    if not best:
        return Spent(np.zeros(len(gains), dtype=np.int64), value)
    lens: Ints = np.count_nonzero(gains >= falling[best - 1], axis=1)
    if (over := int(lens.sum()) - most) > 0:  # equal gains beyond what may be verified
        ends = np.cumsum(lens[::-1])
        lens[::-1] -= np.diff(np.minimum(ends, over), prepend=0)
    return Spent(lens, value)


class Price:
    """What drafting is worth at the end of a step, for the sequences of the next.

    Args:
        batch: Of the step.
        load: Of the next one, if nothing is drafted.
        rate: As for `spend`.
    """

    def __init__(self, server: ServerView, batch: BatchView, load: StepLoad, rate: float) -> None:
        self._server, self._load, self._rate = server, load, rate
        self._slots = batch.free_slots
        self.longest = longest = min(server.max_draft_len, batch.free_slots // load.num_requests)
        none = server.step_time(batch.load, 0)
        self._draft_times = np.zeros(longest + 1)
        """What drafting 0, 1, ... tokens per sequence adds to the step, seconds."""
        if longest:
            self._draft_times[1:] = server.step_time(batch.load, longest) - none
        if longest > 1 and not server.drafts_at_one_cost:
            # Each further token takes the same, nearly: contexts grow by a token.
            first = server.step_time(batch.load, 1) - none
            self._draft_times[1:] = np.linspace(first, self._draft_times[-1], longest)

    def values(
        self, tokens: NDArray[np.float64], gained: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return what it is worth to draft 0, 1, ... tokens for every sequence.

        Args:
            tokens: How many might be verified of drafts of 1, 2, ... tokens, several choices for
                each, shape (longest, choices);
            gained: and how many are then accepted.
        """
        load, longest, rate = self._load, self.longest, self._rate
        batched = np.rint(tokens[:longest]).astype(np.int64).ravel() + load.batched_tokens
        times = self._server.step_times(load, np.append(batched, load.batched_tokens), 0)
        num, drafting = load.num_requests, self._draft_times[1:, np.newaxis]
        values = np.empty(longest + 1)
        values[0] = value_of(num, times[-1], rate)
        verified = times[:-1].reshape(longest, -1) + drafting
        drafted = value_of(num + gained[:longest], verified, rate)
        values[1:] = drafted.max(axis=1, initial=-np.inf)
        np.maximum(values[1:], value_of(num, times[-1] + drafting[:, 0], rate), out=values[1:])
        return values

    def best_len(self, gains: NDArray[np.float64], copies: float) -> int:
        """Return the length of highest value for drafts that may survive as their copies do."""
        shares = np.linspace(0.0, 1.0, _CHOICES)
        tokens, gained = np.empty((2, self.longest, _CHOICES))
        for k in range(1, self.longest + 1):
            falling = np.append(0.0, np.sort(gains[:, :k], axis=None)[::-1])
            at = np.rint(shares * (len(falling) - 1)).astype(np.intp)
            tokens[k - 1], gained[k - 1] = at / copies, np.cumsum(falling)[at] / copies
        return int(self.values(tokens, gained).argmax())

    def best_lens(self, survival: NDArray[np.float64]) -> Ints:
        """Return the lengths of highest value, none of which is trimmed; see `spend`."""
        server, load, times = self._server, self._load, self._draft_times
        none: Ints = np.zeros(len(survival), dtype=np.int64)
        longest = min(server.max_draft_len, self._slots)
        if not longest or not self.longest:
            return none
        token_time, limits = 0.0, range(1, self.longest + 1)
        if not server.drafts_by_model:
            token_time = float(times[-1] - times[1]) / max(self.longest - 1, 1) / load.num_requests
            times = np.full(self.longest + 1, times[1] - token_time * load.num_requests)
        if not server.drafts_by_model or server.drafts_at_one_cost:
            limits = range(self.longest, self.longest + 1)
        value = value_of(load.num_requests, server.step_time(load, 0), self._rate)
        best = Spent(none, float(value))
        for limit in limits:
            spent = spend(
                survival[:, :limit],
                load,
                server.step_times,
                self._rate,
                most=min(self._slots, survival.size),
                draft_time=float(times[limit]),
                token_time=token_time,
            )
            best = max(best, spent, key=lambda each: each.value)
        return best.lens


def spend_on(
    batch: BatchView,
    drafts: DraftView,
    gains: NDArray[np.float64],
    server: ServerView,
    rate: float,
) -> Ints:
    """Return how much of each draft of a step is best verified, by the gains of its tokens."""
    draft_lens = drafts.draft_lens
    load = batch.load._replace(
        batched_tokens=batch.load.batched_tokens - int(np.add.reduce(draft_lens)),
        num_requests=batch.size - int(np.count_nonzero(batch.in_prefill)),
    )
    draft_time = 0.0
    if not rate:  # those of the next step will take about as long
        draft_time = server.step_time(load, int(draft_lens.max())) - server.step_time(load, 0)
    spent = spend(gains, load, server.step_times, rate, most=gains.size, draft_time=draft_time)
    lens: Ints = np.minimum(spent.lens, draft_lens)
    return lens
