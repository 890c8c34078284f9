"""Draft evaluation: what a lookup would have drafted for recorded answers, and how much of it held.

No engine and no clock: each request of a token trace is replayed alone, in the order of the file,
against what the model really said.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from specsim.errors import ConfigError, TraceError
from specsim.lookup import Lookup
from specsim.proposers import PROPOSERS, Proposer
from specsim.request import Request
from specsim.settings import validated
from specsim.workload.readers import read_trace

__all__ = ["DraftCounts", "DraftEval", "evaluate_drafts", "load_texts", "parse_proposer"]


class DraftCounts(NamedTuple):
    """What became of the drafts of one request, or of several."""

    steps: int
    """Verifications, whether or not anything had been drafted."""
    accepted: int
    """Draft tokens."""
    drafted: int
    """Draft tokens."""
    output_tokens: int
    """Tokens of the answer."""


@dataclass(frozen=True)
class DraftEval:
    """Result of a draft evaluation."""

    proposer: Proposer
    per_request: list[DraftCounts]
    """In the order of the file."""
    host_time: float
    """Seconds spent on drafting and on taking in text."""
    memory_bytes: int
    """Of the lookup at its largest, as it says itself."""

    @property
    def total(self) -> DraftCounts:
        """All requests together."""
        return DraftCounts(*map(sum, zip(*self.per_request, strict=True)))

    @property
    def tokens_per_step(self) -> float:
        """Output tokens per verification; a first token that comes from prefill is left out."""
        prefilled = 0 if self.proposer.drafts_first_token else len(self.per_request)
        total = self.total
        return (total.output_tokens - prefilled) / max(1, total.steps)

    @property
    def acceptance(self) -> float:
        """Accepted share of the draft tokens."""
        total = self.total
        return total.accepted / max(1, total.drafted)

    @property
    def call_us(self) -> float:
        """Host time per step, microseconds."""
        return 1e6 * self.host_time / max(1, self.total.steps)

    def totals_as_json(self) -> dict[str, Any]:
        """Return everything that is the same on every machine, all requests together."""
        total = self.total
        return {
            "proposer": self.proposer.model_dump(mode="json", exclude_none=True),
            "requests": len(self.per_request),
            "steps": total.steps,
            "accepted": total.accepted,
            "drafted": total.drafted,
            "output_tokens": total.output_tokens,
            "tokens_per_step": self.tokens_per_step,
            "acceptance": self.acceptance,
        }

    def as_json(self) -> dict[str, Any]:
        """Return everything that is the same on every machine."""
        return {
            **self.totals_as_json(),
            "columns": list(DraftCounts._fields),
            "per_request": [list(counts) for counts in self.per_request],
        }


def parse_proposer(method: str, options: dict[str, Any], source: str) -> Proposer:
    """Return the proposer that some options describe.

    Parameters
    ----------
    method : str
    options : dict
        Fields of the proposer; a prefix that all of a method's fields share may be left out
        (``max_tree_depth`` for ``suffix_decoding_max_tree_depth``).
    source : str
        Where they come from, for error messages.

    Returns
    -------
    Proposer

    Raises
    ------
    ConfigError
        There is no such method, or an option is wrong.
    """
    fields = PROPOSERS.find(method).model_fields
    prefix = f"{method}_decoding_"
    full = {prefix + name if prefix + name in fields else name: options[name] for name in options}
    with validated(source, ConfigError):
        return PROPOSERS.parse({"method": method, **full})


def load_texts(path: Path) -> list[Request]:
    """Return the requests of a token trace.

    Parameters
    ----------
    path : Path

    Returns
    -------
    list of Request

    Raises
    ------
    TraceError
        It cannot be read, or has no token ids.
    """
    trace = read_trace(path)
    if trace.prompt_token_ids is None or trace.output_token_ids is None:
        raise TraceError(
            f"{path}: format '{trace.format}' carries no token ids; give a token trace "
            "(prompt_token_ids, generated_token_ids), which `specsim tokens from-text` makes"
        )
    if trace.num_dropped:
        raise TraceError(
            f"{path}: {trace.num_dropped} of {len(trace) + trace.num_dropped} requests have no "
            "output tokens, so there is nothing to verify drafts against; remove them"
        )
    return list(trace.requests())


def evaluate_drafts(
    proposer: Proposer,
    requests: list[Request],
    on_progress: Callable[[int], None] | None = None,
) -> DraftEval:
    """Replay requests one after the other.

    Parameters
    ----------
    proposer : Proposer
    requests : list of Request
        With token ids.
    on_progress : callable, optional
        Told how many requests are done.

    Returns
    -------
    DraftEval

    Raises
    ------
    ConfigError
        The proposer has no token-level mode.
    """
    lookup = proposer.make_lookup()
    if lookup is None:
        raise ConfigError(
            f"method '{proposer.method}' drafts with a model, whose tokens no trace holds; choose "
            f"from {', '.join(_lookup_methods())}"
        )
    per_request: list[DraftCounts] = []
    host_time, memory_bytes = 0.0, 0
    for request in requests:
        counts, seconds = _replay(lookup, proposer, request)
        per_request.append(counts)
        host_time += seconds
        memory_bytes = max(memory_bytes, lookup.memory_bytes)
        lookup.end(request.index)
        if on_progress is not None:
            on_progress(len(per_request))
    return DraftEval(proposer, per_request, host_time, memory_bytes)


def _replay(lookup: Lookup, proposer: Proposer, request: Request) -> tuple[DraftCounts, float]:
    """Return the counts of one request, and the seconds that the lookup took for it."""
    text, max_len = request.text, proposer.num_speculative_tokens
    known_len, end_len = text.prompt_len, len(text.token_ids)
    steps = accepted = drafted = 0
    begun_at = perf_counter()
    lookup.start(request.index, text)
    if not proposer.drafts_first_token:
        known_len += 1
        lookup.reveal(request.index, known_len)
    host_time = perf_counter() - begun_at
    while known_len < end_len:
        begun_at = perf_counter()
        draft = lookup.draft(request.index, max_len)
        host_time += perf_counter() - begun_at
        accepted_len = draft.accepted_len(text.token_ids[known_len:])
        steps += 1
        accepted += accepted_len
        drafted += len(draft.token_ids)
        known_len = min(known_len + accepted_len + 1, end_len)
        begun_at = perf_counter()
        lookup.reveal(request.index, known_len)
        host_time += perf_counter() - begun_at
    return DraftCounts(steps, accepted, drafted, text.output_len), host_time


def _lookup_methods() -> list[str]:
    return [name for name, member in PROPOSERS.members.items() if member.has_lookup()]
