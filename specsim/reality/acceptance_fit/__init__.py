"""Fitting acceptance models to half of the recorded requests, and testing on the other half."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specsim.acceptance.base import Acceptance
from specsim.core.errors import ConfigError, TraceError, UnknownFormatError
from specsim.core.rng import Luck, stream_id
from specsim.core.settings import nearest
from specsim.reality.acceptance_fit.fits import FITS, WINDOW, Decoded, Distances, Twin, decode
from specsim.workload.readers import read_trace

POSITIONS = 1_000_000  # output positions simulated to measure a model, so that its noise vanishes


@dataclass(frozen=True)
class Records:
    """Recorded acceptance of one proposer, without requests that would distort a fit."""

    file: Path
    proposer: str
    max_output_len: int
    tables: list[bytes]  # accepted length of a draft at each position, by request
    num_too_long: int  # requests left out because of their long outputs
    num_too_short: int  # requests left out: no draft, as fewer than two tokens are recorded

    @property
    def left_out(self) -> str:
        return (
            f"{self.num_too_long} requests of more than {self.max_output_len} output "
            f"tokens and {self.num_too_short} of fewer than 2 left out"
        )


def load_records(path: Path, proposer: str, max_output_len: int) -> Records:
    """Return the recorded acceptance of a proposer from its column of a token trace.

    Outputs longer than `max_output_len` are left out: they are endless loops, which any proposer
    predicts, and few of them would outweigh all others in tokens. Raises a TraceError if the file
    cannot be read, has no such column, or no request is left.
    """
    try:
        trace = read_trace(path)
    except UnknownFormatError as error:
        raise TraceError(
            f"{error}; beside them accepted_lens_{proposer}, the tokens accepted of a draft after "
            "each output token. Counts per position need no fit: acceptance: {kind: per_position, "
            "conditional_rates: [accepted / drafted, ...]}"
        ) from error
    if proposer not in trace.recorded_lens:
        known = ", ".join(sorted(trace.recorded_lens))
        others = f"name one that was recorded (--proposer: {known}), or " if known else ""
        is_tokens = trace.format == "token_trace"
        kind, column = ("token_trace", "acc") if is_tokens else ("native", "accepted_lens")
        raise TraceError(
            f"{path}: has no column '{column}_{proposer}', in which a trace of format '{kind}' "
            f"says what was accepted; {others}give a trace that has it"
        )
    rows = zip(trace.recorded_lens[proposer], trace.output_lens.tolist(), strict=True)
    # A record may be of another, longer answer to the same prompt.
    kept = [record[:output_len] for record, output_len in rows if output_len <= max_output_len]
    tables = [table for table in kept if len(table) > 1]
    if not tables:
        raise TraceError(
            f"{path}: no request with 2 to {max_output_len} recorded output tokens is in it; raise "
            "--max-output-len or use another trace"
        )
    too_long, too_short = len(trace) - len(kept), len(kept) - len(tables)
    return Records(path, proposer, max_output_len, tables, too_long, too_short)


@dataclass(frozen=True)
class Candidate:
    """A model fitted to one half of the requests, and its distance from the other half."""

    model: Acceptance
    held_out: Distances


@dataclass(frozen=True)
class AcceptanceFit:
    """The results of fitting all models."""

    records: Records
    draft_len: int
    split_seed: int
    num_fitted: int  # requests in the half that models were fitted to
    num_held_out: int
    halves: Distances  # between the halves of the data: the distance of a perfect model
    candidates: dict[str, Candidate]  # by kind
    best: str  # kind of the candidate that is closest to the held-out half
    chosen_kind: str  # the best, unless another one was asked for
    chosen: Acceptance  # a model of that kind, fitted to all requests

    def to_dict(self) -> dict[str, Any]:
        records = self.records
        return {
            "file": records.file.name,
            "proposer": records.proposer,
            "k": self.draft_len,
            "max_output_len": records.max_output_len,
            "split_seed": self.split_seed,
            "num_requests": len(records.tables),
            "num_too_long": records.num_too_long,
            "num_too_short": records.num_too_short,
            "num_fitted": self.num_fitted,
            "num_held_out": self.num_held_out,
            "halves": asdict(self.halves),
            "models": {
                kind: {"acceptance": fields(each.model), "held_out": asdict(each.held_out)}
                for kind, each in self.candidates.items()
            },
            "best": self.best,
            "acceptance": fields(self.chosen),
        }

    def to_preset(self, source: str) -> dict[str, Any]:
        """Return the content of a `specsim.acceptance.nested.AcceptanceFile`."""
        records, candidate = self.records, self.candidates[self.chosen_kind]
        return {
            "acceptance": fields(self.chosen),
            "provenance": {
                "source": source,
                "fitted_to": (
                    f"acc_{records.proposer} of all {len(records.tables)} requests in "
                    f"{records.file.name}, drafts of {self.draft_len} tokens; {records.left_out}"
                ),
                "command": (
                    f"specsim acceptance fit {records.file.name} --proposer {records.proposer} "
                    f"--k {self.draft_len} --max-output-len {records.max_output_len} "
                    f"--split-seed {self.split_seed} --kind {self.chosen_kind}"
                ),
            },
            "validation": {
                "acceptance": fields(candidate.model),
                "split_seed": self.split_seed,
                "num_fitted": self.num_fitted,
                "num_held_out": self.num_held_out,
                "held_out": candidate.held_out.rounded(),
                "halves": self.halves.rounded(),
            },
        }


def fields(model: Acceptance) -> dict[str, Any]:
    """Return a model in the form of an experiment."""
    return {"kind": model.kind, **model.model_dump(mode="json", exclude_defaults=True)}


def fit_acceptance(
    records: Records,
    draft_len: int,
    split_seed: int,
    chosen_kind: str | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> AcceptanceFit:
    """Fit all models and choose the best, or a given kind.

    Raises a ConfigError if there is no such kind, or it cannot be fitted; a TraceError if the
    records are too few or too short, or have drafts shorter than `draft_len`.

    Args:
        on_stage: Called with the kind of each model before it is fitted.
    """
    if chosen_kind not in (None, *FITS):
        raise ConfigError(
            f"no kind '{chosen_kind}' to fit; {nearest(str(chosen_kind), list(FITS))}"
        )
    fitted, held_out = _decoded_halves(records, draft_len, split_seed)
    twin = Twin(held_out, POSITIONS, "measure")
    candidates = {}
    for kind, fit in FITS.items():
        if on_stage is not None:
            on_stage(f"fitting {kind} to {len(fitted.output_lens):,} requests")
        model = fit(fitted)
        candidates[kind] = Candidate(model, Distances.between(twin.decode(model), held_out))
    best = min(candidates, key=lambda kind: candidates[kind].held_out.total)
    return AcceptanceFit(
        records=records,
        draft_len=draft_len,
        split_seed=split_seed,
        num_fitted=len(fitted.output_lens),
        num_held_out=len(held_out.output_lens),
        halves=Distances.between(fitted, held_out),
        candidates=candidates,
        best=best,
        chosen_kind=chosen_kind or best,
        chosen=FITS[chosen_kind or best](decode(records.tables, draft_len)),
    )


def _decoded_halves(records: Records, draft_len: int, split_seed: int) -> tuple[Decoded, Decoded]:
    if len(records.tables) < 4:
        raise TraceError(
            f"{records.file}: {len(records.tables):,} requests are too few to fit to one half and "
            "measure on the other; at least 4 are needed"
        )
    longest = max(map(max, records.tables))
    if not longest:
        raise TraceError(
            f"{records.file}: no draft token was ever accepted, so there is nothing to fit; write "
            "acceptance: {kind: bernoulli, alpha: 0}"
        )
    if draft_len > longest:
        raise TraceError(
            f"{records.file}: k = {draft_len}, but no recorded draft survived longer than "
            f"{longest} tokens; choose a k of at most that"
        )
    first, second = (decode(half, draft_len) for half in split_halves(records, split_seed))
    if not (len(first.window_sums) and len(second.window_sums)):
        raise TraceError(
            f"{records.file}: no request in one of the halves takes {WINDOW} steps; a fit needs "
            "longer outputs, or more of them"
        )
    return first, second


def split_halves(records: Records, split_seed: int) -> tuple[list[bytes], list[bytes]]:
    """Return two random halves of the survival tables, determined by the seed and their number."""
    count = len(records.tables)
    luck = Luck(split_seed, stream_id("acceptance_fit", "split"))
    order = np.argsort(luck.per_request(range(count)))
    middle = (count + 1) // 2
    first, second = np.sort(order[:middle]).tolist(), np.sort(order[middle:]).tolist()
    return [records.tables[row] for row in first], [records.tables[row] for row in second]
