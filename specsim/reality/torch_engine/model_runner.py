"""ModelRunner: the target verifies, the draft model drafts, each over its own KV cache."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.rng import generator
from specsim.reality.profile_fit.grid import GridPoint, Sample
from specsim.reality.torch_engine.attention import Span
from specsim.reality.torch_engine.model import Llama, Timer


class PassRow(NamedTuple):
    """What one request reads in a step. All lengths are tokens."""

    request: int
    start: int  # text in the target's KV cache before the step
    end: int  # end of what the step reads, drafts included
    known_len: int  # its text without drafts
    draft_len: int  # drafts among the tokens from `start` to `end`
    is_partial: bool  # whether it stops before the known tokens, and emits nothing
    is_padded: bool  # whether its drafts are dummies, which are never accepted


class RequestText:
    """Prompt, output so far, and after them the drafts to verify."""

    def __init__(self, prompt: NDArray[np.int64], slot_len: int) -> None:
        self.token_ids = np.zeros(slot_len + 1, dtype=np.int64)
        self.token_ids[: len(prompt)] = prompt
        self.slot: int | None = None  # row of the KV caches; None while it does not run
        self.draft_read_len = 0  # tokens in the draft model's KV cache

    def span(self, start: int, end: int, asked: range) -> Span:
        """Return the span of tokens from `start` to `end`."""
        assert self.slot is not None
        return Span(self.slot, start, self.token_ids[start:end], asked)

    def write(self, position: int, token_ids: list[int]) -> None:
        """Write tokens at a position, over earlier ones."""
        self.token_ids[position : position + len(token_ids)] = token_ids


class ModelRunner:
    """Executes the steps that a scheduler plans."""

    def __init__(
        self, target: Llama, draft: Llama, timer: Timer, *, num_slots: int, slot_len: int
    ) -> None:
        self._target, self._draft, self._timer = target, draft, timer
        self.target_time = 0.0  # seconds of the last `verify`
        self.draft_time = 0.0  # seconds of the last `draft`
        self._slot_len = slot_len
        self._free_slots = list(range(num_slots))[::-1]
        self._texts: dict[int, RequestText] = {}
        self._rows: list[tuple[PassRow, RequestText]] = []
        self._successors: list[list[int]] = []

    def add(self, request: int, prompt: NDArray[np.int64]) -> None:
        self._texts[request] = RequestText(prompt, self._slot_len)

    def assume_read(self, request: int, length: int) -> None:
        """Assume that the draft model has read `length` tokens, for an artificial step."""
        self._texts[request].draft_read_len = length

    def end(self, request: int, start: int, end: int) -> list[int]:
        """Forget a request that has ended; return its text from `start` to `end`."""
        self.release(request)
        answer: list[int] = self._texts.pop(request).token_ids[start:end].tolist()
        return answer

    def release(self, request: int) -> None:
        """Release the KV cache row of a request that was preempted or has ended."""
        text = self._texts[request]
        if text.slot is not None:
            self._free_slots.append(text.slot)
        text.slot = None
        text.draft_read_len = 0

    def verify(self, rows: list[PassRow]) -> list[int]:
        """Run the target over a step; return how many of each row's drafts it accepts."""
        self._timer.start()
        self._rows = [(row, self._texts[row.request]) for row in rows]
        for _, text in self._rows:
            if text.slot is None:
                text.slot = self._free_slots.pop()
        tokens = iter(self._target.next_tokens([_target_span(*each) for each in self._rows]))
        self._successors = [
            [] if row.is_partial else [next(tokens) for _ in range(row.draft_len + 1)]
            for row in rows
        ]
        agreed_lens = [
            0 if row.is_padded else _agreed_len(row, text, said)
            for (row, text), said in zip(self._rows, self._successors, strict=True)
        ]
        self.target_time = self._timer.stop()
        return agreed_lens

    def accept(self, accepted_lens: list[int]) -> None:
        """Store what each row of the last `verify` emitted: accepted drafts and the next token."""
        for (row, text), said, accepted_len in zip(
            self._rows, self._successors, accepted_lens, strict=True
        ):
            if not row.is_partial:
                text.write(row.known_len + accepted_len, [said[accepted_len]])

    def draft(self, accepted_lens: list[int], asked_lens: list[int]) -> None:
        """Run the draft model after a step, before the scheduler processes the step.

        As in vLLM the first pass reads what the target has just read, and every pass runs for the
        whole batch, with unfinished prompts and ended answers. Lengths are by the rows of the last
        `verify`.
        """
        self._timer.start()
        longest = max(asked_lens, default=0)
        spans, ends = [], []
        for (row, text), accepted_len in zip(self._rows, accepted_lens, strict=True):
            # Up to the token emitted last, or the end of the prompt that was read.
            known_len = row.end if row.is_partial else row.known_len + accepted_len + 1
            first = text.draft_read_len
            last_read = known_len - first - 1
            asked = range(last_read, last_read + 1) if longest else range(0)
            spans.append(text.span(first, row.end + (not row.is_partial), asked))
            text.draft_read_len = known_len
            ends.append(known_len)
        places = list(range(len(self._rows)))
        for number in range(1, longest + 1):
            tokens = self._draft.next_tokens(spans)
            kept, spans = [], []
            for place, token in zip(places, tokens, strict=True):
                (row, text), position = self._rows[place], ends[place] + number - 1
                # After part of a prompt its next token follows.
                if asked_lens[place] >= number and not row.is_partial:
                    text.write(position, [token])
                if asked_lens[place] > number:
                    assert text.slot is not None
                    kept.append(place)
                    spans.append(Span(text.slot, position, np.array([token]), range(1)))
            places = kept
        if not longest:
            self._draft.next_tokens(spans)
        self.draft_time = self._timer.stop()


def _target_span(row: PassRow, text: RequestText) -> Span:
    num = row.end - row.start
    asked = range(0) if row.is_partial else range(num - row.draft_len - 1, num)
    return text.span(row.start, row.end, asked)


def _agreed_len(row: PassRow, text: RequestText, said: list[int]) -> int:
    drafts = text.token_ids[row.end - row.draft_len : row.end].tolist()
    pairs = enumerate(zip(drafts, said, strict=False))
    return next((place for place, (drafted, real) in pairs if drafted != real), row.draft_len)


def measure(runner: ModelRunner, point: GridPoint, vocab_size: int) -> Sample:
    """Run one artificial step of a grid and time both models, without waiting between steps.

    The runner needs as many free slots as the step has sequences; tokens are random.
    """
    rows = _rows(point)
    for row in rows:
        text = generator(0, "grid", str(row.request)).integers(0, vocab_size, row.end)
        runner.add(row.request, text)
    for row in rows[: point.num_decodes]:
        runner.assume_read(row.request, row.known_len)
    runner.verify(rows)
    nothing = [0] * len(rows)
    runner.accept(nothing)
    runner.draft(nothing, [point.draft_len] * len(rows))
    for row in rows:
        runner.end(row.request, row.end, row.end)
    return Sample(point, runner.target_time, runner.draft_time)


def _rows(point: GridPoint) -> list[PassRow]:
    # The last known token of each answer is read now, with the drafts after it.
    start, known_len = point.context_len, point.context_len + 1
    end, whole = known_len + point.draft_len, {"is_partial": False, "is_padded": False}
    rows = [
        PassRow(number, start, end, known_len, point.draft_len, **whole)
        for number in range(point.num_decodes)
    ]
    if point.chunk_len:
        rows.append(PassRow(point.num_decodes, 0, point.chunk_len, point.chunk_len, 0, **whole))
    return rows
