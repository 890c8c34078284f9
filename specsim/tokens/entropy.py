"""Empirical entropy: how well the tokens before it tell an output's next token."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEPTH", "Entropy", "empirical_entropy"]

DEPTH = 24
"""Longest path of the tree, tokens: vLLM's ``suffix_decoding_max_tree_depth``."""


class Entropy(NamedTuple):
    """Entropy of the next token in bits, given the tokens before it."""

    bits: float
    """Over all contexts of 0 to `DEPTH` - 1 tokens."""
    repeated: float
    """Over those of them alone that stand at least twice, from which a drafter can learn."""
    by_context_len: tuple[float, ...]
    """Over the contexts of each length alone, from 0; ends where no output is longer."""


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
    contexts = np.zeros_like(starts)  # equal numbers for equal contexts at `starts`
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
    # Zero may come out a rounding error below.
    return max(0.0, bits) / max(1, count)


def _sum_n_log_n(counts: NDArray[np.int64]) -> float:
    counts = counts[counts > 1]
    return float(np.sum(counts * np.log2(counts)))
