"""describe: which drafter suits a token trace.

It measures how well earlier tokens predict an output's next ones, where they occurred before, and
what drafters gain.
"""

from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.request import Request, Text
from specsim.core.rng import generator
from specsim.tokens.draft_eval import DraftEval, evaluate_drafts, parse_drafter

DEPTH = 24  # longest path of the tree, tokens: vLLM's ``suffix_decoding_max_tree_depth``
_MANY_REPEATED = 0.01  # share of the requests
_NGRAM_LENS = (4, 8)  # tokens; powers of two, ascending

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Entropy(NamedTuple):
    """Entropy of the next token in bits, given the tokens before it."""

    bits: float  # over all contexts of 0 to `DEPTH` - 1 tokens
    repeated: float
    """Entropy over contexts that occur at least twice, from which a drafter can learn, bits."""
    by_context_len: tuple[float, ...]
    """Entropy over the contexts of each length, from 0 to the longest output."""


def empirical_entropy(outputs: list[NDArray[np.int32]], depth: int = DEPTH) -> Entropy:
    """Return the weighted average entropy of the suffix tree of some outputs.

    The tree holds every substring of every output of up to `depth` tokens. A node is a context:
    ``w`` of 0 to ``depth - 1`` tokens; its child ``a`` has been visited ``c(wa)`` times, once for
    each place where ``w`` is followed by ``a``. The node's entropy is that of its children's
    shares, in bits, and its weight in the average is the number of visits to its children,
    ``n(w) = sum over a of c(wa)``; where an output ends, its last tokens have no child and count
    for nothing. So the average is::

        sum over w of [n(w) log2 n(w) - sum over a of c(wa) log2 c(wa)]  /  sum over w of n(w)

    which counting substrings gives without a tree. A context that stands once in the sample has
    entropy 0, however hard it is to draft after it, and most long contexts of free text do stand
    once. So values of samples of different size or depth do not compare, and `Entropy.repeated`
    tells texts apart where `Entropy.bits` hardly does.

    Args:
        outputs: At least one token in all, of shape (output_len,).
        depth: At least 1, in tokens.

    References:
        Oliaro et al. 2024, "SuffixDecoding", appendix A.2: a tree of about 100 outputs, the entropy
        of each node from how often its children are visited, a weighted average over the nodes. The
        paper gives neither weights, nor unit, nor depth; they are chosen here.
    """
    lens = [len(output) for output in outputs]
    tokens = np.unique(np.concatenate(outputs), return_inverse=True)[1]
    num_tokens = int(tokens.max()) + 1
    ends = np.repeat(np.cumsum(lens), lens)
    starts = np.arange(len(tokens))
    contexts = np.zeros_like(starts)  # equal contexts at `starts` have equal numbers
    sums: list[tuple[float, int, int]] = []
    for context_len in range(depth):
        goes_on = starts + context_len < ends[starts]
        starts, contexts = starts[goes_on], contexts[goes_on]
        if not len(starts):
            break
        visits = np.bincount(contexts)
        children = contexts * num_tokens + tokens[starts + context_len]
        _, contexts, counts = np.unique(children, return_inverse=True, return_counts=True)
        bits = _sum_n_log_n(visits) - _sum_n_log_n(counts)
        sums.append((bits, len(starts), int(visits[visits > 1].sum())))
    total = sum(bits for bits, _, _ in sums)
    visited = sum(count for _, count, _ in sums)
    revisited = sum(count for _, _, count in sums)
    return Entropy(
        bits=_mean(total, visited),
        repeated=_mean(total, revisited),
        by_context_len=tuple(_mean(bits, count) for bits, count, _ in sums),
    )


def _mean(bits: float, count: int) -> float:
    # Rounding may make 0 slightly negative.
    return max(0.0, bits) / max(1, count)


def _sum_n_log_n(counts: NDArray[np.int64]) -> float:
    counts = counts[counts > 1]
    return float(np.sum(counts * np.log2(counts)))


@dataclass(frozen=True)
class Overlap:
    """Shares of the output tokens, 0 to 1, that lie in an n-gram seen before."""

    n: int  # length of the n-grams, tokens
    own_prompt: float | None  # in the request's own prompt; None if prompts are not recorded
    own_output: float  # earlier in the same output
    earlier_outputs: float  # in an output of an earlier request of the file
    anywhere: float  # in at least one of these

    @property
    def new(self) -> float:
        """In none of these."""
        return 1.0 - self.anywhere


def measure_overlaps(texts: list[Text]) -> tuple[Overlap, ...]:
    """Return the overlaps of outputs with what came before them.

    An n-gram lies wholly in one output or one prompt. It has been seen in the same output if it
    begins there at an earlier place, where the two may overlap. All n-grams of a stretch need not
    come from one place. The tokens of outputs that are shorter than n are all new.

    Args:
        texts: In the order of the file, at least one, none without output.

    Returns:
        One for each of `_NGRAM_LENS`.

    Note:
        Exact, without hashing: n-grams of twice the length are numbered by sorting pairs of numbers
        of the shorter ones. Ten million tokens take about 25 s and 1.4 GiB.
    """
    lens = np.array([(text.prompt_len, text.output_len) for text in texts]).ravel()
    numbers, ends = np.repeat(np.arange(len(lens)), lens), np.repeat(lens.cumsum(), lens)
    joined = np.concatenate([text.token_ids for text in texts])
    grams, n = np.unique(joined, return_inverse=True)[1], 1
    overlaps = []
    for wanted in _NGRAM_LENS:
        while n < wanted:
            pairs = grams[:-n] * (grams.max(initial=0) + 1) + grams[n:]
            grams, n = np.unique(pairs, return_inverse=True)[1], 2 * n
        overlaps.append(_overlap(grams, n, numbers, ends))
    return tuple(overlaps)


def _overlap(grams: Ints, n: int, numbers: Ints, ends: Ints) -> Overlap:
    """Return the overlap for one length.

    Args:
        grams: Number of the n-gram that begins at each token of all texts end to end.
        numbers: Number of each token's prompt (even) or output (the next odd number).
        ends: End of that prompt or output.
    """
    starts = np.flatnonzero(np.arange(len(grams)) + n <= ends[: len(grams)])
    requests, is_output = numbers // 2, numbers % 2 == 1
    in_output = starts[is_output[starts]]
    in_prompt = starts[~is_output[starts]]
    ids, owners = grams[in_output], requests[in_output]
    num_requests = int(requests[-1]) + 1
    owned = ids * num_requests + owners
    stood_before = np.ones(len(owned), dtype=bool)
    stood_before[np.unique(owned, return_index=True)[1]] = False
    _, first, same = np.unique(ids, return_index=True, return_inverse=True)
    seen = {
        "own_prompt": np.isin(owned, grams[in_prompt] * num_requests + requests[in_prompt]),
        "own_output": stood_before,
        "earlier_outputs": owners[first][same] < owners,
    }
    anywhere = np.logical_or.reduce(list(seen.values()))
    total = int(is_output.sum())

    def share(found: Mask) -> float:
        steps = np.zeros(len(requests) + 1, dtype=np.int64)
        steps[in_output[found]] += 1
        steps[in_output[found] + n] -= 1
        return float(np.count_nonzero(steps.cumsum())) / total

    shares = {name: share(found) for name, found in seen.items()}
    has_prompts = total < len(requests)
    return Overlap(
        n=n,
        own_prompt=shares["own_prompt"] if has_prompts else None,
        own_output=shares["own_output"],
        earlier_outputs=shares["earlier_outputs"],
        anywhere=share(anywhere),
    )


DRAFTERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ngram", {"num_speculative_tokens": 5}),
    ("ngram_gpu", {"num_speculative_tokens": 5}),
    ("suffix", {}),
)
"""Proposers that are replayed, with vLLM's defaults (n-grams of 5; suffix: trees of depth 24). vLLM
has no default for the k of n-grams; it is their length here."""

REPLAYED_TOKENS = 2_000_000
"""Requests are replayed from the first, up to this many tokens of prompts and outputs: a replay
takes tens of microseconds per output token."""

_ALIKE = 1.05  # ratio of tokens per step within which two drafters count as equal


@dataclass(frozen=True)
class DraftWorth:
    """What a drafter's drafts gained in the replay."""

    method: str
    num_speculative_tokens: int  # longest draft
    tokens_per_step: float
    acceptance: float  # accepted share of the draft tokens
    drafted_per_step: float  # draft tokens to verify per step: the additional cost

    @classmethod
    def of(cls, result: DraftEval) -> "DraftWorth":
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
    """Statistics of a token trace."""

    num_requests: int
    num_unrecorded_prompts: int
    num_repeated: int  # requests with the same prompt and output as an earlier one
    prompt_tokens: int
    output_tokens: int
    distinct_tokens: int  # in prompts and outputs
    distinct_output_tokens: int
    num_sampled: int  # outputs for the entropy
    depth: int  # of the entropy's tree, tokens
    entropy: Entropy
    overlaps: tuple[Overlap, ...]
    num_replayed: int  # requests for the replay, the first ones of the file
    drafters: tuple[DraftWorth, ...]
    advice: str

    def as_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["entropy"] = self.entropy._asdict()
        for overlap, values in zip(self.overlaps, plain["overlaps"], strict=True):
            values["new"] = overlap.new
        return plain


def _replayed(method: str, options: dict[str, Any], requests: list[Request]) -> DraftEval:
    """Replay a drafter without a draft for the first token, as in a server, for comparison."""
    drafter = parse_drafter(method, options, "tokens describe")
    return evaluate_drafts(drafter, requests, drafts_first_token=False)


def describe_tokens(requests: list[Request], num_sampled: int, seed: int) -> TokenDescription:
    """Return a description of token ids; its entropy is of `num_sampled` outputs, by `seed`."""
    texts = [request.text for request in requests]
    outputs = [text.token_ids[text.prompt_len :] for text in texts]
    size = min(num_sampled, len(outputs))
    sample = generator(seed, "tokens", "sample").choice(len(outputs), size, replace=False)
    overlaps = measure_overlaps(texts)
    lens = accumulate(request.prompt_len + request.output_len for request in requests)
    replayed = requests[: max(1, sum(total <= REPLAYED_TOKENS for total in lens))]
    drafters = tuple(
        DraftWorth.of(_replayed(method, options, replayed)) for method, options in DRAFTERS
    )
    num_repeated = len(texts) - len({(each.prompt_len, each.token_ids.tobytes()) for each in texts})
    return TokenDescription(
        num_requests=len(requests),
        num_unrecorded_prompts=sum(text.prompt_len == 0 for text in texts),
        num_repeated=num_repeated,
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
        advice=advice(drafters, overlaps[0]) + _flattery(num_repeated, len(requests)),
    )


def advice(drafters: tuple[DraftWorth, ...], overlap: Overlap) -> str:
    """Return text on which drafter is worth trying; `overlap` is of short n-grams."""
    best, *others = sorted(drafters, key=lambda drafter: -drafter.tokens_per_step)
    found = (
        f"{best.method} gives {best.tokens_per_step:.2f} tokens per step for "
        f"{best.drafted_per_step:.1f} drafted"
    )
    if best.tokens_per_step < 1.15:  # below this gain a lookup is not worth its checks
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


def _flattery(num_repeated: int, num_requests: int) -> str:
    """Return a warning if repeated requests flatter drafters that know earlier outputs."""
    if num_repeated < _MANY_REPEATED * num_requests or not num_repeated:
        return ""
    return (
        f" {num_repeated:,} requests are earlier ones again, whose answers suffix knows: leave "
        "them out if the traffic does not repeat itself."
    )


def _where(overlap: Overlap, method: str) -> str:
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
