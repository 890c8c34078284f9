"""describe: what a token trace says about which drafter suits it."""

from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.tokens.draft_eval import DraftEval, evaluate_drafts, parse_drafter
from specsim.tokens.repetition import (
    DEPTH,
    Entropy,
    Overlap,
    empirical_entropy,
    measure_overlaps,
)

DRAFTERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ngram", {"num_speculative_tokens": 5}),
    ("suffix", {}),
)
"""Proposers that are replayed, with vLLM's defaults (ngram: n-grams of 5; suffix: trees of depth
24). vLLM has no default for the k of ngram; it is that of the n-grams here."""

REPLAYED_TOKENS = 2_000_000
"""Requests are replayed from the first, until their prompts and outputs come to so many tokens:
one request after the other takes tens of microseconds per output token."""

_LITTLE = 1.15  # tokens per step below which a lookup is not worth its checks
_ALIKE = 1.05  # ratio of tokens per step within which two drafters are called equal


@dataclass(frozen=True)
class DraftWorth:
    """What a drafter's drafts were worth in the replay."""

    method: str
    num_speculative_tokens: int
    """Longest draft."""
    tokens_per_step: float
    acceptance: float
    """Accepted share of the draft tokens."""
    drafted_per_step: float
    """Draft tokens to verify per step, which is what a step costs more."""

    @classmethod
    def of(cls, result: DraftEval) -> "DraftWorth":
        """Keep what matters of a draft evaluation."""
        total, proposer = result.total, result.drafter.proposer
        return cls(
            method=proposer.method,
            num_speculative_tokens=proposer.num_speculative_tokens,
            tokens_per_step=result.tokens_per_step,
            acceptance=result.acceptance,
            drafted_per_step=total.drafted / max(1, total.steps),
        )


@dataclass(frozen=True)
class TokenDescription:
    """A token trace in a few numbers."""

    num_requests: int
    num_unrecorded_prompts: int
    prompt_tokens: int
    output_tokens: int
    distinct_tokens: int
    """In prompts and outputs."""
    distinct_output_tokens: int
    num_sampled: int
    """Outputs that the entropy is of."""
    depth: int
    """Of the entropy's tree, tokens."""
    entropy: Entropy
    overlaps: tuple[Overlap, ...]
    num_replayed: int
    """Requests that the drafters were tried on, the first ones of the file."""
    drafters: tuple[DraftWorth, ...]
    advice: str

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        plain = asdict(self)
        plain["entropy"] = self.entropy._asdict()
        for overlap, values in zip(self.overlaps, plain["overlaps"], strict=True):
            values["new"] = overlap.new
        return plain


def describe_tokens(requests: list[Request], num_sampled: int, seed: int) -> TokenDescription:
    """Return a description of a token trace.

    Args:
        requests: With token ids, at least one.
        num_sampled: Outputs that the entropy is worked out on, at least 1; drawn without
            replacement.
        seed: Of the sample.
    """
    texts = [request.text for request in requests]
    outputs = [text.token_ids[text.prompt_len :] for text in texts]
    size = min(num_sampled, len(outputs))
    sample = generator(seed, "tokens", "sample").choice(len(outputs), size, replace=False)
    overlaps = measure_overlaps(texts)
    replayed = _first(requests)
    drafters = tuple(
        DraftWorth.of(evaluate_drafts(parse_drafter(method, options, "tokens describe"), replayed))
        for method, options in DRAFTERS
    )
    return TokenDescription(
        num_requests=len(requests),
        num_unrecorded_prompts=sum(text.prompt_len == 0 for text in texts),
        prompt_tokens=sum(text.prompt_len for text in texts),
        output_tokens=sum(text.output_len for text in texts),
        distinct_tokens=len(np.unique(np.concatenate([text.token_ids for text in texts]))),
        distinct_output_tokens=len(np.unique(np.concatenate(outputs))),
        num_sampled=size,
        depth=DEPTH,
        entropy=empirical_entropy([outputs[place] for place in sorted(sample.tolist())]),
        overlaps=overlaps,
        num_replayed=len(replayed),
        drafters=drafters,
        advice=advice(drafters, overlaps[0]),
    )


def _first(requests: list[Request]) -> list[Request]:
    lens = accumulate(request.prompt_len + request.output_len for request in requests)
    return requests[: max(1, sum(total <= REPLAYED_TOKENS for total in lens))]


def advice(drafters: tuple[DraftWorth, ...], overlap: Overlap) -> str:
    """Say which drafter looks worth trying, and what this leaves out.

    Args:
        drafters: At least one.
        overlap: Of short n-grams, since a draft is found by a few tokens.
    """
    best, *others = sorted(drafters, key=lambda drafter: -drafter.tokens_per_step)
    found = (
        f"{best.method} gives {best.tokens_per_step:.2f} tokens per step for "
        f"{best.drafted_per_step:.1f} drafted"
    )
    if best.tokens_per_step < _LITTLE:
        found = (
            f"no lookup looks worth much here ({found}, {100 * overlap.new:.0f} % of the output "
            f"tokens are in new {overlap.n}-grams): try a drafter with a model, such as eagle3"
        )
    else:
        equal = [each for each in others if best.tokens_per_step < _ALIKE * each.tokens_per_step]
        found += "".join(
            f", {each.method} {each.tokens_per_step:.2f} for {each.drafted_per_step:.1f}"
            for each in others
        )
        names = " or ".join(each.method for each in (best, *equal))
        found = f"{names} looks worth trying ({found}){_where(overlap, best.method)}"
    return (
        f"{found}. This leaves out what drafting and verifying cost and how requests share steps: "
        "`specsim run` has both."
    )


def _where(overlap: Overlap, method: str) -> str:
    """Return where a drafter finds most of what repeats."""
    places = {
        "in the request's own prompt": overlap.own_prompt or 0.0,
        "earlier in the same output": overlap.own_output,
    }
    if method == "suffix":
        places["in outputs of earlier requests, which ngram does not search"] = (
            overlap.earlier_outputs
        )
    place, share = max(places.items(), key=lambda item: item[1])
    return f"; {100 * share:.0f} % of the output tokens are in {overlap.n}-grams that stand {place}"
