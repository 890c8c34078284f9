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
    """Cut each draft after the first token whose confidence is below the threshold."""
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
    probabilities, their entropy and the token's place; here the confidence that the drafter states
    replaces the classifier's output, as in the authors' version without a classifier in
    transformers (``generation/stopping_criteria.py ConfidenceCriteria``): the token that falls
    short is still drafted, and is the last one. Cost plays no part. With scikit-learn installed,
    transformers also fits a threshold to past acceptance (``candidate_generator.py
    update_candidate_strategy``), but at 00a11b6 no draft is stopped by it.
    """

    kind: Literal["disco"] = "disco"
    uses_confidences = True
    needs_sync = True
    threshold: float = Field(default=0.4, ge=0, le=1)
    """Lowest confidence at which a request drafts on; transformers'
    ``assistant_confidence_threshold`` and its default."""

    loops = Loops(Stopping, decide=decide, stop=stop)

    def start(self, server: ServerView) -> LoopMemory:
        return self.remember(server, rule=row_of(StopRule, self))
