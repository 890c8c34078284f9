"""Draft evaluation: what a lookup would have drafted for recorded answers, and its acceptance.

No engine and no clock: each request of a token trace is replayed alone, in file order, against its
recorded output. A drafter that is a model is replayed by its recorded acceptance only, which is
enough to compare it with a lookup, or to use it as a fallback. A grid searches for the best
options.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import yaml

from specsim.core.errors import ConfigError, TraceError
from specsim.core.reading import parse_yaml
from specsim.core.request import UNRECORDED, Request, Text
from specsim.core.settings import validated
from specsim.lookup import Draft, KnownTexts, Lookup, draft_of
from specsim.policies.hybrid_suffix import HybridSuffix
from specsim.proposers import PROPOSERS, Proposer
from specsim.workload.readers import read_trace

_OF_THE_ENGINE = {"disable_mqa_scorer", "num_speculative_tokens_per_batch_size"}
_NO_EFFECT = frozenset({"method", "model", *_OF_THE_ENGINE})
"""Options for an engine or a policy, without effect here, and those of `parse_drafter` itself."""


class Drafter(NamedTuple):
    """A proposer; for a hybrid also the rule that picks between lookup and fallback."""

    proposer: Proposer
    picker: HybridSuffix | None = None


class DraftCounts(NamedTuple):
    """Counts of the drafts of one request, or of several."""

    steps: int  # verifications, with or without a draft
    accepted: int  # accepted draft tokens
    drafted: int  # draft tokens
    output_tokens: int


@dataclass(frozen=True)
class DraftEval:
    """Result of a draft evaluation."""

    drafter: Drafter
    per_request: list[DraftCounts]  # in the order of the file
    prompt_time: float  # time of the lookup to read the prompts, seconds
    step_time: float  # time of the lookup to draft and to learn from each step, seconds
    memory_bytes: int  # of the lookup at its largest, by its own count
    drafts_first_token: bool  # whether the first output token is drafted as well

    @property
    def total(self) -> DraftCounts:
        return DraftCounts(*map(sum, zip(*self.per_request, strict=True)))

    @property
    def tokens_per_step(self) -> float:
        """Output tokens per verification, without a first token from prefill."""
        prefilled = 0 if self.drafts_first_token else len(self.per_request)
        total = self.total
        return (total.output_tokens - prefilled) / max(1, total.steps)

    @property
    def acceptance(self) -> float:
        total = self.total
        return total.accepted / max(1, total.drafted)

    @property
    def step_us(self) -> float:
        """Host time per step, microseconds."""
        return 1e6 * self.step_time / max(1, self.total.steps)

    def totals_as_json(self) -> dict[str, Any]:
        """Return all totals that are the same on every machine."""
        total, (proposer, picker) = self.total, self.drafter
        who = {"proposer": proposer.model_dump(mode="json", exclude_none=True)}
        if picker is not None:
            who["policy"] = picker.model_dump(mode="json", exclude_none=True)
        return {
            **who,
            "drafts_first_token": self.drafts_first_token,
            "requests": len(self.per_request),
            **total._asdict(),
            "tokens_per_step": self.tokens_per_step,
            "acceptance": self.acceptance,
        }

    def as_json(self) -> dict[str, Any]:
        """Return all results that are the same on every machine."""
        return {
            **self.totals_as_json(),
            "columns": list(DraftCounts._fields),
            "per_request": [list(counts) for counts in self.per_request],
        }


def parse_drafter(method: str, options: dict[str, Any], source: str) -> Drafter:
    """Return the drafter of a method with options.

    Raises a ConfigError if there is no such method, or an option is wrong.

    Args:
        options: Fields of the proposer; a prefix shared by all fields of a method may be left out
            (``max_tree_depth`` for ``suffix_decoding_max_tree_depth``). For ``hybrid`` also
            ``tau``.
        source: Origin of the options, for error messages.
    """
    member = PROPOSERS.find(method)
    prefix = f"{method}_decoding_"
    fields, picker_fields = {"method": method}, {}
    for name, value in options.items():
        if member.has_fallback and name in HybridSuffix.model_fields.keys() - {"kind"}:
            picker_fields[name] = value
        else:
            field = prefix + name if prefix + name in member.model_fields else name
            if field in options and field != name:
                raise ConfigError(f"{source}: {name} and {field} are the same; give one of them")
            if field in _NO_EFFECT:
                raise ConfigError(f"{source}: {field} has no effect on a replay; leave it out")
            fields[field] = value
    with validated(source, ConfigError):
        picker = HybridSuffix.model_validate(picker_fields) if member.has_fallback else None
        proposer = PROPOSERS.parse(fields)
    try:
        for part in proposer.parts:
            part.check_real_drafts()
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error
    return Drafter(proposer, picker)


def load_texts(path: Path) -> list[Request]:
    """Return the requests of a token trace; a TraceError if it is none."""
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
    drafter: Drafter,
    requests: list[Request],
    on_progress: Callable[[int], None] | None = None,
    *,
    drafts_first_token: bool | None = None,
) -> DraftEval:
    """Replay requests one after another.

    Raises a TraceError if a drafter is a model whose acceptance was not recorded.

    Args:
        requests: With token ids, and with recorded acceptance for a model.
        on_progress: Called with the number of finished requests.
        drafts_first_token: Whether the first output token is drafted, which in a server comes from
            prefill; by default as in the published figures of the proposer. Set it to compare
            proposers.
    """
    lookup, proposer = _make_lookup(drafter, requests), drafter.proposer
    if drafts_first_token is None:
        drafts_first_token = proposer.drafts_first_token
    skipped_len = 0 if drafts_first_token else 1
    per_request: list[DraftCounts] = []
    prompt_time, step_time, memory_bytes = 0.0, 0.0, 0
    for request in requests:
        begun_at = perf_counter()
        lookup.start(request.index, request.text)
        prompt_time += perf_counter() - begun_at
        counts, seconds = _replay(lookup, request, skipped_len, proposer.num_speculative_tokens)
        per_request.append(counts)
        step_time += seconds
        memory_bytes = max(memory_bytes, lookup.memory_bytes)
        lookup.end(request.index)
        if on_progress is not None:
            on_progress(len(per_request))
    return DraftEval(drafter, per_request, prompt_time, step_time, memory_bytes, drafts_first_token)


def _make_lookup(drafter: Drafter, requests: list[Request]) -> Lookup:
    proposer, picker = drafter
    lookups = [part.make_lookup() or _RecordedDrafts(part, requests) for part in proposer.parts]
    if picker is None:
        return lookups[0]
    longest = proposer.num_speculative_tokens
    lens = [min(part.num_speculative_tokens, longest) for part in proposer.parts]
    return _HybridLookup(picker, *lookups, lookup_len=lens[0], fallback_len=lens[1])


class _RecordedDrafts(KnownTexts):
    """Replaces a model: as many tokens of its draft agree with the answer as were recorded."""

    def __init__(self, proposer: Proposer, requests: list[Request]) -> None:
        super().__init__()
        name = proposer.method
        for request in requests:
            if name not in request.recorded_lens:
                known = ", ".join(sorted(request.recorded_lens)) or "none"
                raise TraceError(
                    f"method '{name}' drafts with a model, so it needs its recorded acceptance, "
                    f"'acc_{name}', which request {request.id or request.index} does not have (it "
                    f"has: {known}); give a trace that carries it, or another proposer"
                )
        self._records = {request.index: request.recorded_lens[name] for request in requests}
        self._max_len = proposer.num_speculative_tokens

    def draft(self, request: int, max_len: int) -> Draft:
        (token_ids, prompt_len), known_len = self._texts[request], self._known_lens[request]
        record, position = self._records[request], known_len - prompt_len
        draft_len = min(max_len, self._max_len)
        accepted_len = min(record[position] if position < len(record) else 0, draft_len)
        agreed = token_ids[known_len : known_len + accepted_len].tolist()
        return Draft(agreed + [UNRECORDED] * (draft_len - len(agreed)))


class _HybridLookup(KnownTexts):
    """A lookup with a fallback, which drafts where the policy does not use the lookup's draft."""

    def __init__(
        self,
        picker: HybridSuffix,
        lookup: Lookup,
        fallback: Lookup,
        *,
        lookup_len: int,
        fallback_len: int,
    ) -> None:
        super().__init__()
        self._picker = picker
        self._memory = picker.new_memory(fallback_len)
        self._lookup, self._fallback = lookup, fallback
        self._lookup_len, self._fallback_len = lookup_len, fallback_len

    def start(self, request: int, text: Text) -> None:
        super().start(request, text)
        self._lookup.start(request, text)
        self._fallback.start(request, text)

    def reveal(self, request: int, known_len: int) -> None:
        super().reveal(request, known_len)
        self._lookup.reveal(request, known_len)
        self._fallback.reveal(request, known_len)

    def draft(self, request: int, max_len: int) -> Draft:
        draft = self._lookup.draft(request, min(max_len, self._lookup_len))
        [is_used] = self._picker.uses_lookup(np.array([draft.score]), self._memory)
        if is_used:
            return draft
        other = self._fallback.draft(request, self._fallback_len)
        # Learnt before the step that reveals it, but not asked for until then.
        answer = self._texts[request].token_ids[self._known_lens[request] :]
        self._memory.add(other.accepted_len(answer))
        return other

    def end(self, request: int) -> None:
        super().end(request)
        self._lookup.end(request)
        self._fallback.end(request)

    @property
    def memory_bytes(self) -> int:
        return self._lookup.memory_bytes + self._fallback.memory_bytes


def _replay(
    lookup: Lookup, request: Request, skipped_len: int, max_len: int
) -> tuple[DraftCounts, float]:
    """Return the counts of one request, and the lookup's time for its steps, seconds."""
    text = request.text
    known_len, end_len = text.prompt_len, len(text.token_ids)
    steps = accepted = drafted = 0
    host_time = 0.0
    if skipped_len:
        known_len += skipped_len
        lookup.reveal(request.index, known_len)
    while known_len < end_len:
        begun_at = perf_counter()
        draft = draft_of(lookup, request.index, max_len)
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


_MAX_COMBINATIONS = 10_000  # each replays the whole trace


class Combination(NamedTuple):
    """One combination of options and its results."""

    options: dict[str, Any]  # the options of the grid
    totals: dict[str, Any]  # from `specsim.tokens.draft_eval.DraftEval.totals_as_json`
    step_us: float  # host time per step, microseconds

    def as_json(self) -> dict[str, Any]:
        """Return all values that are the same on every machine."""
        return {"options": self.options, **self.totals}


def grid_options(grid: Iterable[str]) -> list[dict[str, Any]]:
    """Return every combination of the values of some options; the last option changes fastest.

    Raises a ConfigError if an option has no values, if it or a value is repeated, or if there are
    too many combinations.

    Args:
        grid: ``NAME=V1,V2,...`` for each option, with values in YAML.
    """
    values: dict[str, list[Any]] = {}
    for text in grid:
        name, found = _grid_values(text)
        if name in values:
            raise ConfigError(f"--grid {text}: {name} is there twice; list all values in one")
        values[name] = found
    num = prod(map(len, values.values()))
    if num > _MAX_COMBINATIONS:
        raise ConfigError(
            f"--grid: {num:,} combinations, but at most {_MAX_COMBINATIONS:,} are evaluated; give "
            "fewer values, or search a few options at a time"
        )
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def _grid_values(text: str) -> tuple[str, list[Any]]:
    name, equals, listed = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--grid {text}: expected NAME=V1,V2,...")
    try:
        values = parse_yaml(f"[{listed}]") if listed.strip() else []
    except yaml.YAMLError as error:
        raise ConfigError(f"--grid {text}: the values are not YAML, separated by commas") from error
    if not isinstance(values, list) or not values:
        raise ConfigError(f"--grid {text}: no values; list at least one after '='")
    seen: list[tuple[type, Any]] = []  # 1 == True, but they are different values
    for value in values:
        if (type(value), value) in seen:
            raise ConfigError(f"--grid {text}: {value} is there twice; list each value once")
        seen.append((type(value), value))
    return name, values


def evaluate_grid(
    drafters: Sequence[tuple[dict[str, Any], Drafter]],
    requests: list[Request],
    on_progress: Callable[[int], None] | None = None,
) -> list[Combination]:
    """Replay requests with each combination of options, and rank these by tokens per step.

    Raises the errors of `evaluate_drafts`, or one for a corpus that cannot be read.
    """
    found: list[Combination] = []
    for options, drafter in drafters:
        result = evaluate_drafts(drafter, requests)
        # Only totals are kept: the counts of ten thousand combinations would fill the memory.
        found.append(Combination(options, result.totals_as_json(), result.step_us))
        if on_progress is not None:
            on_progress(len(found))
    return sorted(found, key=lambda combination: -combination.totals["tokens_per_step"])
