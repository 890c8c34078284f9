"""DISCO: draft on while the next token is likely enough to be accepted."""

from typing import Literal, final

from pydantic import Field

from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.everybody import Stopping, StopRule, draft_on


def decide(view: View, memory: Stopping) -> None:
    """Draft to the end, unless stopped."""
    draft_on(view)


def stop(view: View, memory: Stopping) -> None:
    """Cut each draft after the first token that is not likely enough."""
    step, threshold = view.step[0], memory.rule[0].threshold
    step.stop_len = step.max_draft_len
    for row in range(step.num_rows):
        first, last = row * step.width, 0
        while last + 1 < view.draft_lens[row] and view.confidences[first + last] >= threshold:
            last += 1
        view.lens[row] = min(view.lens[row], last + 1)


@final
class Disco(LoopPolicy):
    """Each request drafts until a token is less likely accepted than the threshold.

    Mamou et al. (2024), "Dynamic Speculation Lookahead Accelerates Speculative Decoding of Large
    Language Models" (DISCO), arXiv 2405.04304. The paper trains a classifier on the drafter's
    probabilities, their entropy and the token's place. Here the confidence that the drafter states
    stands in for its answer, as in the form without a classifier that the authors put into
    transformers (``generation/stopping_criteria.py ConfidenceCriteria``). The token that falls
    short is drafted, and is the last one. Nothing there looks at cost. Where scikit-learn is
    installed, transformers fits a threshold to what was accepted (``candidate_generator.py
    update_candidate_strategy``), which at 00a11b6 none of its drafts is stopped by.
    """

    kind: Literal["disco"] = "disco"
    uses_confidences = True
    needs_sync = True
    threshold: float = Field(default=0.4, ge=0, le=1)
    """Least likelihood of acceptance to draft on; transformers' ``assistant_confidence_threshold``
    and its default."""

    loops = Loops(Stopping, decide=decide, stop=stop)

    def start(self, server: ServerView) -> LoopMemory:
        return self.remember(server, rule=row_of(StopRule, self))
