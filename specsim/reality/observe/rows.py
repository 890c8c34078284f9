"""What was observed of a request, as a row of the run folder."""

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from specsim.reality.calibration.run_writer import RequestRow
from specsim.reality.observe.load import Sent

__all__ = ["accepted_drafts", "request_row"]


def request_row(sent: Sent, prompt: NDArray[np.int64]) -> RequestRow:
    """Return the row of a request.

    Args:
        prompt: Of shape (prompt_len,).

    Returns:
        ``scheduled_ts`` if the server tells how long a request queued; ``accepted`` if it tells the
        outcome of every draft, and every output token belongs to one of them.
    """
    answer = sent.answer
    times = [time for time, _ in answer.deliveries]
    queued_ms = answer.metrics.get("queue_time_ms")
    if not isinstance(queued_ms, int | float):  # the server's word for it
        queued_ms = None
    row: RequestRow = {
        "request_id": f"request-{sent.index}",
        "input_toks": len(prompt),
        "output_toks": answer.num_tokens,
        "arrival_time": sent.due_at,
        "queued_ts": answer.sent_at,
        "scheduled_ts": None if queued_ms is None else answer.sent_at + queued_ms / 1e3,
        "first_token_ts": times[0] if times else None,
        "last_token_ts": times[-1] if times else None,
        "deliveries": answer.deliveries,
        "input_tok_ids": prompt.tolist(),
    }
    if answer.token_ids:
        row["output_tok_ids"] = answer.token_ids
    accepted = accepted_drafts(answer.metrics, [count for _, count in answer.deliveries])
    if accepted is not None:
        row["accepted"] = accepted
    if answer.error is not None:
        row["error"] = answer.error
    return row


def accepted_drafts(metrics: dict[str, Any], counts: list[int]) -> list[list[int]] | None:
    """Return what came of each draft, from vLLM's metrics of a request.

    vLLM lists the steps that had a draft, not after how many output tokens each of them was. With
    one delivery per step that is known if all steps had one, or if every draft brought something,
    so that steps without a draft are those of a single token.

    Args:
        metrics: ``metrics`` of the last event, where ``vllm serve --per-request-spec-decode-metrics
            detailed`` puts ``speculative_decoding``.
        counts: Tokens of each delivery.

    Returns:
        None where it is not known.
    """
    found = metrics.get("speculative_decoding")
    if not isinstance(found, dict) or not counts:
        return None
    drafted, accepted = found.get("per_step_drafted"), found.get("per_step_accepted")
    if not (_are_lens(drafted) and _are_lens(accepted)):
        return None
    ends = np.cumsum(counts).tolist()
    steps = list(zip(ends[:-1], counts[1:], strict=True))  # tokens before it, tokens it brought
    if len(steps) != len(accepted):
        *earlier, last = steps or [(0, 0)]
        steps = [step for step in earlier if step[1] > 1]
        if 0 in accepted:
            return None
        if len(steps) < len(accepted):  # the last may have been cut short at the answer's end
            steps.append(last)
    if not len(steps) == len(accepted) == len(drafted):
        return None
    brought = [count for _, count in steps]
    expected = [accepted_len + 1 for accepted_len in accepted]
    if brought[:-1] != expected[:-1] or brought[-1:] > expected[-1:]:
        return None
    return [
        [position, draft_len, accepted_len]
        for (position, _), draft_len, accepted_len in zip(steps, drafted, accepted, strict=True)
    ]


def _are_lens(found: object) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(isinstance(length, int) for length in found)
