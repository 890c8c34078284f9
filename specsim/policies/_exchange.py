"""What a second is worth in tokens, and what to verify at that price."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inner
from specsim.core.desk import Floats, Ints, LocalDesk, loop_on
from specsim.core.step import BatchView, DraftView, StepLoad, StepOutcome
from specsim.policies._budget import best_worth
from specsim.policies._times import Lens, TimesOf
from specsim.policies.base import ServerView

_CHOICES = 33  # of how much of many drafts is verified


class Exchange:
    """The long-run rate of tokens per second, for batches of any size.

    A policy that maximises tokens - rate x time in every step, where rate is the ratio of the two
    that it arrives at, maximises that ratio over all steps (Dinkelbach 1967); the best ratio within
    each step does not. Prompts are to be read whatever is drafted, so their time is left out. Time
    per step and tokens per sequence change slowly; batches do not, so that the rate is made of the
    former for a given batch.

    Args:
        window: Steps after which one has faded to 1/e.
    """

    def __init__(self, window: float) -> None:
        self._keep = 1.0 - 1.0 / window
        self._tokens = self._sequences = self._time = self._steps = 0.0

    def add(self, outcome: StepOutcome, server: ServerView) -> None:
        """Take a step in."""
        time = outcome.target_time + outcome.draft_time + outcome.overhead_time
        load = outcome.load
        if load.prefill_tokens:
            tokens = load.batched_tokens - load.prefill_tokens
            decodes = load._replace(batched_tokens=tokens, prefill_tokens=0)
            time -= server.step_time(load, 0) - server.step_time(decodes, 0)
        if not len(outcome.requests) or load.batched_tokens <= load.prefill_tokens or time <= 0.0:
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


def value_of(tokens: Any, time: Any, rate: float) -> Any:
    """Return what steps are worth that emit so many tokens in so many seconds."""
    return tokens - rate * time if rate else tokens / time


class DraftChoices(NamedTuple):
    """What may come of drafts of 1, 2, ... tokens, several choices of how much is verified each."""

    tokens: Floats
    """That are verified, shape (longest, choices);"""
    gained: Floats
    """and those of them that are accepted."""
    batched: Ints
    """Tokens of the step without drafts, then of each choice; filled in."""
    times: Floats
    """Of such steps, without drafting, seconds."""
    drafting: Floats
    """What drafting 0, 1, ... tokens takes, seconds."""
    values: Floats
    """Of drafting 0, 1, ... tokens; filled in."""
    constants: Floats
    """Sequences; what a second is worth, tokens."""
    sizes: Ints
    """Lengths from 1 that are not worth a look, longest, choices, batched tokens without drafts."""


@loop_on(DraftChoices)
def size_choices(desk: DraftChoices) -> int:
    """Work out the batched tokens of all choices that are worth a look; return how many."""
    choices, batched = desk.sizes[2], desk.sizes[3]
    first, end = desk.sizes[0] * choices, desk.sizes[1] * choices
    desk.batched[0] = batched
    for index in range(first, end):
        desk.batched[1 + index - first] = batched + round(desk.tokens[index])
    return int(1 + end - first)


@inner
def _value(desk: DraftChoices, tokens: float, time: float) -> float:
    rate: float = desk.constants[1]
    return tokens - rate * time if rate else tokens / time


@loop_on(DraftChoices)
def weigh_choices(desk: DraftChoices) -> int:
    """Work out what the best choice of each length is worth; nothing verified is one of them."""
    num, times, values = desk.constants[0], desk.times, desk.values
    skipped, choices = desk.sizes[0], desk.sizes[2]
    values[0] = _value(desk, num, times[0])
    for place in range(desk.sizes[1]):
        values[1 + place] = -np.inf
        if place < skipped:
            continue
        drafting = desk.drafting[1 + place]
        values[1 + place] = _value(desk, num, times[0] + drafting)
        for index in range(place * choices, (place + 1) * choices):
            time = times[1 + index - skipped * choices] + drafting
            value = _value(desk, num + desk.gained[index], time)
            values[1 + place] = max(values[1 + place], value)
    return 0


_DESK = LocalDesk(DraftChoices, size_choices, weigh_choices, constants=2)


class Price:
    """What drafting is worth at the end of a step, for the sequences of the next.

    Args:
        batch: Of the step.
        load: Of the next one, if nothing is drafted.
        rate: What a second is worth, tokens; 0: not known, and goodput is maximised.
    """

    def __init__(self, server: ServerView, batch: BatchView, load: StepLoad, rate: float) -> None:
        self._server, self._load, self.rate = server, load, rate
        self._slots = batch.free_slots
        self.longest = longest = min(server.max_draft_len, batch.free_slots // load.num_requests)
        self._shortest = longest if server.drafts_at_one_cost else 1
        """Of the drafts that are worth a look: where a longer one costs no more, it is no worse."""
        none = server.step_time(batch.load, 0)
        self._draft_times = [0.0]
        """What drafting 0, 1, ... tokens per sequence adds to the step, seconds."""
        if longest:
            last = server.step_time(batch.load, longest) - none
            self._draft_times += [last] * longest
        if longest > 1 and not server.drafts_at_one_cost:
            # Each further token takes the same, nearly: contexts grow by a token.
            first = server.step_time(batch.load, 1) - none
            each = (last - first) / (longest - 1)
            self._draft_times[1:longest] = [k * each + first for k in range(longest - 1)]

    def values(self, tokens: NDArray[np.float64], gained: NDArray[np.float64]) -> list[float]:
        """Return what it is worth to draft 0, 1, ... tokens for every sequence.

        Args:
            tokens: How many might be verified of drafts of 1, 2, ... tokens, several choices for
                each, shape (longest, choices);
            gained: and how many are then accepted.
        """
        load, longest, choices = self._load, self.longest, tokens.shape[1]
        first, size = self._shortest - 1, longest * choices
        desk = _DESK.fit(size)
        desk.tokens[:size], desk.gained[:size] = tokens[:longest].ravel(), gained[:longest].ravel()
        desk.drafting[: longest + 1] = self._draft_times
        desk.constants[0], desk.constants[1] = load.num_requests, self.rate
        sizes = desk.sizes
        sizes[0], sizes[1], sizes[2], sizes[3] = first, longest, choices, load.batched_tokens
        num = _DESK.runs[0]()
        desk.times[:num] = self._server.step_times(load, desk.batched[:num], 0)
        _DESK.runs[1]()
        values: list[float] = desk.values[: longest + 1].tolist()
        return values

    def best_len(self, gains: NDArray[np.float64], copies: float) -> int:
        """Return the length of highest value for drafts that may survive as their copies do."""
        shares = np.linspace(0.0, 1.0, _CHOICES)
        tokens, gained = np.zeros((2, self.longest, _CHOICES))
        for k in range(self._shortest, self.longest + 1):
            falling = np.append(0.0, np.sort(gains[:, :k], axis=None)[::-1])
            at = np.rint(shares * (len(falling) - 1)).astype(np.intp)
            tokens[k - 1], gained[k - 1] = at / copies, np.cumsum(falling)[at] / copies
        values = self.values(tokens, gained)
        return values.index(max(values))

    def best_lens(self, survival: NDArray[np.float64]) -> Ints:
        """Return the lengths of highest value, none of which is trimmed."""
        server, load, rate = self._server, self._load, self.rate
        best: Ints = np.zeros(len(survival), dtype=np.int64)
        most = min(self._slots, survival.size)
        if not self.longest:
            return best
        best_value = value_of(load.num_requests, server.step_time(load, 0), rate)
        limits: Iterable[int] = range(1, self.longest + 1)
        if not server.drafts_by_model or server.drafts_at_one_cost:
            limits = (self.longest,)
        for limit in limits:
            times = self.times_of(limit)
            lens, value = best_worth(survival[:, :limit], load, times, rate, 0, most)
            if value > best_value:
                best, best_value = lens, value
        return best

    def times_of(self, limit: int) -> TimesOf:
        """Return what steps take that verify drafts of at most so many tokens."""
        server, extra = self._server, self._draft_times
        per_token = 0.0
        drafting = extra[limit]
        if not server.drafts_by_model:  # pays for what it drafts, which is what is verified
            per_token = extra[1] / self._load.num_requests
            drafting = 0.0

        def step_times(load: StepLoad, tokens: Ints, draft_lens: Lens) -> NDArray[np.float64]:
            times = server.step_times(load, tokens, 0)
            return times + (drafting + per_token * (tokens - load.batched_tokens))

        return step_times


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
    # The drafts of the next step will take about as long, which matters to goodput.
    drafted = 0 if rate else int(draft_lens.max())
    lens, _ = best_worth(gains, load, server.step_times, rate, drafted, gains.size)
    return np.minimum(lens, draft_lens)
