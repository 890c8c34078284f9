"""Driving a policy by hand: what it would see, without an engine."""

from collections.abc import Callable
from typing import Any

from conftest import server_view

from specsim.engine.sequence import Sequence
from specsim.policies import POLICIES, Policy
from specsim.request import Request
from specsim.step import BatchView, DraftView, StepLoad, StepOutcome


def started(
    policy: str | dict[str, Any],
    longest: int,
    step_time: Callable[[StepLoad, Any], float] = lambda load, lens: 1.0,
    **server: Any,
) -> tuple[Policy, Any]:
    """Return a policy and its fresh memory."""
    parsed = POLICIES.parse(policy)
    return parsed, parsed.start(server_view(longest, step_time, **server))


def batch(
    *known: tuple[int, int, int] | int,
    drafts: int = 0,
    chunks: tuple[int, ...] = (),
    found: DraftView | None = None,
    **others: Any,
) -> BatchView:
    """Return a view of requests given as (index, prompt, output tokens) or as an index alone.

    `drafts` are in the batch already; `chunks` are the indices of requests in mid-prefill;
    `found` is what a lookup has found for the next step.
    """
    sequences = []
    for row in known:
        index, prompt, output = row if isinstance(row, tuple) else (row, 1, 1)
        sequence = Sequence(Request(index=index, prompt_len=prompt, output_len=99), 0, 999)
        sequence.known_len += output
        sequence.in_chunk = index in chunks
        sequences.append(sequence)
    tokens = len(sequences) + drafts
    load = StepLoad(sum(s.known_len - 1 for s in sequences), tokens, len(sequences))
    return BatchView(sequences, load, drafts=found, **others)


def outcome(draft_lens: list[int], accepted_lens: list[int], **others: Any) -> StepOutcome:
    """Return the outcome of a step of requests 0, 1, ..."""
    others.setdefault("requests", list(range(len(draft_lens))))
    others.setdefault("output_tokens", sum(accepted_lens) + len(accepted_lens))
    return StepOutcome(draft_lens=draft_lens, accepted_lens=accepted_lens, **others)
