"""SpecDec++: draft on until it is likely that one of the tokens is rejected."""

from typing import Literal, final

from pydantic import Field

from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.everybody import Stopping, StopRule, draft_on


def decide(view: View, memory: Stopping) -> None:
    """Draft to the end, unless stopped."""
    draft_on(view)


def stop(view: View, memory: Stopping) -> None:
    """Cut each draft once P(a token before its last is rejected) exceeds the threshold."""
    step, rule = view.step[0], memory.rule[0]
    step.stop_len = step.max_draft_len
    for row in range(step.num_rows):
        first, length, survival = row * step.width, 1, 1.0
        while length < view.draft_lens[row]:
            if length >= rule.least_len and 1.0 - survival > rule.threshold:
                break
            survival *= view.confidences[first + length - 1]
            length += 1
        view.lens[row] = min(view.lens[row], length)


@final
class SpecDecPP(LoopPolicy):
    """Each request drafts until P(some token is rejected) = 1 - prod p_i exceeds the threshold.

    Huang, Guo and Wang (2024), "SpecDec++: Boosting Speculative Decoding via Adaptive Candidate
    Lengths", arXiv 2405.19715: drafting is a Markov decision process whose best policy is such a
    threshold. The paper trains a head to predict p_i; here it is the confidence that the drafter
    states. As in the released code (``specdec_pp/hf_generation.py`` at 937aee2) a token is judged
    by the pass that follows it, so that a draft is one token longer than what crossed the
    threshold.
    """

    kind: Literal["specdec_pp"] = "specdec_pp"
    uses_confidences = True
    needs_sync = True
    threshold: float = Field(default=0.3, ge=0, le=1)
    """Chance of a rejection above which drafting stops; default of the authors' example."""
    least_len: int = Field(default=2, ge=1)
    """Shortest draft, tokens: the 2 of the authors' ``--bound 2 20``; num_speculative_tokens is
    the upper bound."""

    loops = Loops(Stopping, decide=decide, stop=stop)

    def start(self, server: ServerView) -> LoopMemory:
        return self.remember(server, rule=row_of(StopRule, self))
