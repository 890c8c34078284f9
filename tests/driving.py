"""Driving a policy by hand: what it would see, without an engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
from conftest import server_view

from specsim.core.step import BatchView, DraftView, StepLoad, StepOutcome
from specsim.policies import POLICIES, Policy


class Driven:
    """A policy whose answers are plain numbers and lists, which compare and print well."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def draft_lens(self, seen: BatchView, memory: Any) -> Any:
        return plain(self._policy.draft_lens(seen, memory))

    def verify_lens(self, seen: BatchView, drafts: DraftView, memory: Any) -> Any:
        return plain(self._policy.verify_lens(seen, drafts, memory))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


def plain(answer: Any) -> Any:
    """Return an array as a list, and anything else as it is."""
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


def started(
    policy: str | dict[str, Any],
    longest: int,
    step_time: Callable[[StepLoad, Any], float] = lambda load, lens: 1.0,
    **server: Any,
) -> tuple[Driven, Any]:
    """Return a policy and its fresh memory."""
    parsed = POLICIES.parse(policy)
    return Driven(parsed), parsed.start(server_view(longest, step_time, **server))


def drafts_of(draft_lens: list[int], confidences: Any = None) -> DraftView:
    """Return drafts of these lengths."""
    return DraftView(np.array(draft_lens, dtype=np.int64), confidences)


def sure_drafts(*rows: list[float]) -> DraftView:
    """Return drafts with these confidences."""
    confidences = np.zeros((len(rows), max(map(len, rows))), dtype=np.float32)
    for place, row in enumerate(rows):
        confidences[place, : len(row)] = row
    return drafts_of([len(row) for row in rows], confidences)


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
    rows = [row if isinstance(row, tuple) else (row, 1, 1) for row in known]
    requests, prompt_lens, output_lens = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
    known_lens = prompt_lens + output_lens
    load = StepLoad(int((known_lens - 1).sum()), len(rows) + drafts, len(rows))
    in_prefill = np.isin(requests, chunks)
    others.setdefault("num_running", len(rows))
    return BatchView(requests, prompt_lens, known_lens, in_prefill, load, drafts=found, **others)


def outcome(draft_lens: list[int], accepted_lens: list[int], **others: Any) -> StepOutcome:
    """Return the outcome of a step of requests 0, 1, ..."""
    requests = others.pop("requests", range(len(draft_lens)))
    others.setdefault("output_tokens", sum(accepted_lens) + len(accepted_lens))
    columns = (np.array(each, dtype=np.int64) for each in (requests, draft_lens, accepted_lens))
    if "drafters" in others:
        others["drafters"] = np.array(others["drafters"], dtype=np.int64)
    return StepOutcome(*columns, **others)
