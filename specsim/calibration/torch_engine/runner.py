"""Runner: the target verifies, the draft model drafts, each over its own KV cache."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.calibration.torch_engine.batch import Span
from specsim.calibration.torch_engine.model import Llama
from specsim.calibration.torch_engine.text import Text
from specsim.calibration.torch_engine.timers import Timer
from specsim.engine.plan import StepPlan
from specsim.engine.sequence import Sequence

__all__ = ["Runner"]


class _Row(NamedTuple):
    """A sequence of a step, and what it reads."""

    sequence: Sequence
    text: Text
    start: int
    """Tokens in the target's KV cache before the step."""
    end: int
    draft_len: int
    """Drafts among the tokens from `start` to `end`."""
    is_partial: bool


class Runner:
    """Executes the steps that a scheduler plans.

    Parameters
    ----------
    target : Llama
    draft : Llama
    num_slots : int
        Rows of their KV caches.
    slot_len : int, tokens
    timer : Timer
    """

    def __init__(
        self, target: Llama, draft: Llama, *, num_slots: int, slot_len: int, timer: Timer
    ) -> None:
        self._target, self._draft = target, draft
        self._timer = timer
        self.target_time = 0.0
        """Seconds of the last `verify`."""
        self.draft_time = 0.0
        """Seconds of the last `draft`."""
        self._slot_len = slot_len
        self._free_slots = list(range(num_slots))[::-1]
        self._texts: dict[Sequence, Text] = {}
        self._rows: list[_Row] = []
        self._successors: list[list[int]] = []

    def add(self, sequence: Sequence, prompt: NDArray[np.int64]) -> None:
        """Take in a request's prompt."""
        self._texts[sequence] = Text(prompt, self._slot_len)

    def assume_read(self, sequence: Sequence, length: int) -> None:
        """Take the draft model to have read so many tokens, for a step that was made up."""
        self._texts[sequence].draft_read_len = length

    def end(self, sequence: Sequence) -> list[int]:
        """Forget a sequence that has ended; return its answer."""
        self._release(sequence)
        text = self._texts.pop(sequence)
        answer: list[int] = text.token_ids[sequence.prompt_len : sequence.known_len].tolist()
        return answer

    def _release(self, sequence: Sequence) -> None:
        text = self._texts[sequence]
        if text.slot is not None:
            self._free_slots.append(text.slot)
        text.slot = None
        text.draft_read_len = 0

    def verify(self, plan: StepPlan) -> list[int]:
        """Run the target over what a step schedules.

        Parameters
        ----------
        plan : StepPlan
            With at least one sequence.

        Returns
        -------
        list of int, tokens
            Of each sequence's drafts, how many are what the target would have said itself.
        """
        self._timer.start()
        for sequence in plan.preempted:
            self._release(sequence)
        self._rows = [self._row(plan, place) for place in range(len(plan.sequences))]
        tokens = iter(self._target.next_tokens([_target_span(row) for row in self._rows]))
        self._successors = [
            [] if row.is_partial else [next(tokens) for _ in range(row.draft_len + 1)]
            for row in self._rows
        ]
        agreed_lens = [
            0 if row.sequence in plan.padded else _agreed_len(row, said)
            for row, said in zip(self._rows, self._successors, strict=True)
        ]
        self.target_time = self._timer.stop()
        return agreed_lens

    def _row(self, plan: StepPlan, place: int) -> _Row:
        sequence, draft_len = plan.sequences[place], plan.verified_lens[place]
        scheduled_len = plan.scheduled_lens[place]
        text = self._texts[sequence]
        if text.slot is None:
            text.slot = self._free_slots.pop()
        start = sequence.computed_len - scheduled_len
        end = sequence.computed_len - (plan.draft_lens[place] - draft_len)
        return _Row(sequence, text, start, end, draft_len, sequence in plan.partial)

    def accept(self, accepted_lens: list[int]) -> None:
        """Write down what a step emitted: accepted drafts, which stand there, and what follows.

        Parameters
        ----------
        accepted_lens : list of int, tokens
            Of each sequence of the last `verify`.
        """
        for row, said, accepted_len in zip(
            self._rows, self._successors, accepted_lens, strict=True
        ):
            if not row.is_partial:
                row.text.write(row.sequence.known_len + accepted_len, [said[accepted_len]])

    def draft(self, accepted_lens: list[int], asked_lens: int | list[int]) -> None:
        """Run the draft model after a step; before the scheduler takes the step in.

        As in vLLM the first pass reads what the target has just read, and every pass runs for the
        whole batch: for prompts half read and answers that have ended, too.

        Parameters
        ----------
        accepted_lens : list of int, tokens
            Of each sequence of the step.
        asked_lens : int or list of int, tokens
            Length of each draft.
        """
        self._timer.start()
        num = len(self._rows)
        lens = [asked_lens] * num if isinstance(asked_lens, int) else asked_lens
        longest = max(lens, default=0)
        spans, ends = [], []
        for row, accepted_len in zip(self._rows, accepted_lens, strict=True):
            # Up to the token that was emitted last, or as far as the prompt has been read.
            known_len = row.end if row.is_partial else row.sequence.known_len + accepted_len + 1
            first = row.text.draft_read_len
            last_read = known_len - first - 1
            asked = range(last_read, last_read + 1) if longest else range(0)
            spans.append(row.text.span(first, row.end + (not row.is_partial), asked))
            row.text.draft_read_len = known_len
            ends.append(known_len)
        places = list(range(num))
        for number in range(1, longest + 1):
            tokens = self._draft.next_tokens(spans)
            kept = []
            spans = []
            for place, token in zip(places, tokens, strict=True):
                row, position = self._rows[place], ends[place] + number - 1
                if lens[place] >= number:
                    self._keep(row, position, token)
                if lens[place] > number:
                    kept.append(place)
                    spans.append(self._drafted_span(row, position, token))
            places = kept
        if not longest:
            self._draft.next_tokens(spans)
        self.draft_time = self._timer.stop()

    def _keep(self, row: _Row, position: int, token: int) -> None:
        """Put a draft behind the text; behind a prompt half read its continuation stands."""
        if not row.is_partial:
            row.text.write(position, [token])

    def _drafted_span(self, row: _Row, position: int, token: int) -> Span:
        assert row.text.slot is not None
        return Span(row.text.slot, position, np.array([token]), range(1))


def _target_span(row: _Row) -> Span:
    num = row.end - row.start
    asked = range(0) if row.is_partial else range(num - row.draft_len - 1, num)
    return row.text.span(row.start, row.end, asked)


def _agreed_len(row: _Row, said: list[int]) -> int:
    drafts = row.text.token_ids[row.end - row.draft_len : row.end].tolist()
    pairs = enumerate(zip(drafts, said, strict=False))
    return next((place for place, (drafted, real) in pairs if drafted != real), row.draft_len)
