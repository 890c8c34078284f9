"""What came of an observed run, and how far it is to be believed."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from specsim.reality.observe.observed_server import Metrics, Server
from specsim.reality.observe.workload import Sent, Workload
from specsim.reality.run_writer import RequestRow
from specsim.results.metrics import latency, tpot, ttft

_LATE = 0.05  # seconds; beyond it the load was not the one that was asked for
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
_RUNNING = "vllm:num_requests_running"
_ENDED = "vllm:request_success_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


@dataclass
class Observation:
    """What came of a run."""

    server: Server
    num_planned: int
    sent: list[Sent] = field(default_factory=list)
    server_metrics: dict[str, float] = field(default_factory=dict)
    """By how much each of the server's counters grew."""
    notes: list[str] = field(default_factory=list)
    """What a user should know before believing the numbers."""
    is_interrupted: bool = False

    @property
    def answered(self) -> list[Sent]:
        """Requests without an error."""
        return [sent for sent in self.sent if sent.answer.error is None]

    @property
    def errors(self) -> Counter[str]:
        """How many requests ended with each error."""
        return Counter(sent.answer.error for sent in self.sent if sent.answer.error is not None)

    @property
    def lateness(self) -> NDArray[np.float64]:
        """By how much the client sent each request too late, seconds."""
        return np.array([sent.lateness for sent in self.sent])

    def latencies(self) -> dict[str, NDArray[np.float64]]:
        """Return the latencies of the answered requests, seconds, under vLLM's names.

        ``ttft``, ``tpot`` and ``e2el`` per request, ``itl`` per delivery after the first; all from
        when the request was sent.
        """
        answers = [sent.answer for sent in self.answered]
        times = [[time for time, _ in answer.deliveries] for answer in answers]
        requests = {
            "arrived_at": np.array([answer.sent_at for answer in answers]),
            "first_token_at": np.array([stamps[0] for stamps in times]),
            "ended_at": np.array([stamps[-1] for stamps in times]),
            "output_len": np.array([answer.num_tokens for answer in answers]),
        }
        return {
            "ttft": ttft(requests),
            "tpot": tpot(requests),
            "itl": np.concatenate([np.diff(stamps) for stamps in times]) if times else np.zeros(0),
            "e2el": latency(requests),
        }

    @property
    def output_rate(self) -> float:
        """Output tokens per second, from the first request sent to the last token."""
        if not self.answered:
            return 0.0
        start = min(sent.answer.sent_at for sent in self.answered)
        end = max(sent.answer.deliveries[-1][0] for sent in self.answered)
        return sum(sent.answer.num_tokens for sent in self.answered) / max(end - start, 1e-9)

    def speculation(self) -> dict[str, float]:
        """Return what speculation achieved, as the server counts it; nothing if there was none.

        ``acceptance_rate`` is accepted over drafted tokens; ``acceptance_length``, as vLLM has it,
        1 + accepted tokens over drafts.
        """
        drafts, tokens = (self.server_metrics.get(name, 0.0) for name in (_DRAFTS, _DRAFT_TOKENS))
        accepted = self.server_metrics.get(_ACCEPTED, 0.0)
        if not drafts or not tokens:
            return {}
        return {"acceptance_rate": accepted / tokens, "acceptance_length": 1.0 + accepted / drafts}

    def to_dict(self) -> dict[str, Any]:
        """Return what ``meta.json`` says of the run."""
        late = self.lateness * 1e3 if self.sent else np.zeros(1)
        return {
            "client": {
                "num_planned": self.num_planned,
                "num_sent": len(self.sent),
                "num_answered": len(self.answered),
                "num_failed": self.errors.total(),
                "errors": dict(self.errors),
                "interrupted": self.is_interrupted,
                "lateness_ms": {
                    "mean": float(late.mean()),
                    "p99": float(np.percentile(late, 99)),
                    "max": float(late.max()),
                },
            },
            "server_metrics": self.server_metrics,
            "notes": self.notes,
        }

    def check(self, workload: Workload, before: Metrics | None, after: Metrics | None) -> None:
        """Note what the clock, the answers and the server's counters, if known, give away."""
        if self.sent and (late := float(np.percentile(self.lateness, 99))) > _LATE:
            self.notes.append(
                f"the client sent 1 % of the requests {late * 1e3:,.0f} ms late or more: the load "
                "was not quite the one that was asked for"
            )
        asked = [workload.requests[sent.index].output_len for sent in self.answered]
        got = [sent.answer.num_tokens for sent in self.answered]
        if asked != got:
            number = sum(one != other for one, other in zip(asked, got, strict=True))
            self.notes.append(f"{number} answers have another length than was asked for")
        if before is None or after is None:
            when = "before" if before is None else "after"
            self.notes.append(f"the server's /metrics did not answer {when} the run: no counters")
        else:
            self._count(before, after)

    def _count(self, before: Metrics, after: Metrics) -> None:
        self.server_metrics = after.since(before)
        if not self.server_metrics:
            self.notes.append("the server's counters fell during the run: it was restarted")
        if before.values.get(_RUNNING, 0.0) > 0:
            self.notes.append("the server was busy with other requests when the run began")
        names = [name for name in self.server_metrics if name.startswith(_ENDED)]
        ended = round(sum(self.server_metrics[name] for name in names))
        if ended > len(self.sent):
            self.notes.append(
                f"the server ended {ended:,} requests, but only {len(self.sent):,} were sent from "
                "here: others used it at the same time"
            )


def request_row(sent: Sent, prompt: NDArray[np.int64]) -> RequestRow:
    """Return the row of a request.

    With ``scheduled_ts`` if the server tells how long a request queued, and ``accepted`` if it
    tells the outcome of every draft, and every output token belongs to one of them.
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
    """Return what came of each draft, from vLLM's metrics of a request; None where it is not known.

    vLLM lists the steps that had a draft, not after how many output tokens each of them was. With
    one delivery per step that is known if all steps had one, or if every draft brought something,
    so that steps without a draft are those of a single token.

    Args:
        metrics: ``metrics`` of the last event, where ``vllm serve --per-request-spec-decode-metrics
            detailed`` puts ``speculative_decoding``.
        counts: Tokens of each delivery.
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
