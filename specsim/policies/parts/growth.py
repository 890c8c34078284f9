"""Parts of policies that draft trees."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import mul

from specsim.acceptance.base import MAX_DRAFT_LEN
from specsim.core.step import StepOutcome
from specsim.core.trees import Path, Tree


def nodes_of(widths: Iterable[int]) -> int:
    """Return the tokens to verify: sum over h of k_1 * ... * k_h (SmartSpec, section 4.3)."""
    return sum(accumulate(widths, mul))


def checked_nodes(widths: Sequence[int]) -> int:
    """Return `nodes_of` the widths; a ValueError if it exceeds MAX_DRAFT_LEN."""
    if (num_nodes := nodes_of(widths)) > MAX_DRAFT_LEN:
        raise ValueError(
            f"a tree of widths {list(widths)} has {num_nodes} nodes, more than the "
            f"{MAX_DRAFT_LEN} that can be drafted; lower policy.widths, policy.max_width or "
            "engine.speculative_config.num_speculative_tokens"
        )
    return num_nodes


def outcomes_of(outcome: StepOutcome) -> Iterator[tuple[Tree, int, Path, int]]:
    """Yield each distinct (tree, nodes, accepted path) of a step's drafts, and its count."""
    trees = outcome.trees or []
    columns = map(id, trees), outcome.draft_lens.tolist(), outcome.paths
    by_id = {id(tree): tree for tree in trees}  # comparing trees would take longer
    for (number, nodes, path), times in Counter(zip(*columns, strict=True)).items():
        tree = by_id[number]
        if tree is not None and nodes:
            yield tree, nodes, path, times
