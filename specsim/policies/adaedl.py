"""AdaEDL: draft on while the drafter's entropy promises enough acceptance."""

from math import inf, sqrt
from typing import Literal, NamedTuple, Protocol, final

from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Floats, PerRequest
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.everybody import draft_on, least_entropy

MOST_OF_TWO = 0.6931472  # the entropy of two outcomes is log 2 at most, in nats; rounded up


class EdlNumbers(Protocol):
    """Parameters; see the fields of the policy."""

    scale: float
    target: float
    change: float
    rate_memory: float
    threshold_memory: float


class EdlMemory(NamedTuple):
    """The policy's memory."""

    known: Rows[EdlNumbers]  # one row
    thresholds: Floats  # per request: lowest bound at which it drafts on
    rates: Floats  # per request: smoothed share of draft tokens accepted


@inner
def bound(confidence: float, scale: float) -> float:
    """Return the lower bound on the likelihood of acceptance, 1 - sqrt(scale * entropy)."""
    return 1.0 - sqrt(scale * least_entropy(confidence))


def decide(view: View, memory: EdlMemory) -> None:
    """Draft to the end, unless stopped."""
    draft_on(view)


def stop(view: View, memory: EdlMemory) -> None:
    """Cut each draft after the first token whose bound is below the request's threshold."""
    step, scale = view.step[0], memory.known[0].scale
    step.stop_len = step.max_draft_len
    least = 1.0 - sqrt(scale * MOST_OF_TWO)
    for row in range(step.num_rows):
        threshold, first, last = memory.thresholds[view.requests[row]], row * step.width, 0
        surely = 0.5 if threshold <= least else inf  # this sure, no logarithm is needed
        while last + 1 < view.draft_lens[row]:
            confidence = view.confidences[first + last]
            if confidence < surely and bound(confidence, scale) < threshold:
                break
            last += 1
        view.lens[row] = min(view.lens[row], last + 1)


def observe(view: View, memory: EdlMemory) -> None:
    """Move each drafted request's threshold: up if too few tokens are accepted, else down."""
    step, known = view.step[0], memory.known[0]
    for row in range(step.num_rows):
        drafted, request = view.draft_lens[row], view.requests[row]
        if not drafted:
            continue
        fresh = (1.0 - known.rate_memory) * view.accepted_lens[row] / drafted
        rate = memory.rates[request] = known.rate_memory * memory.rates[request] + fresh
        change = known.change if rate < known.target else -known.change
        if change > 0.0 or view.accepted_lens[row] < step.max_draft_len:
            memory.thresholds[request] += (1.0 - known.threshold_memory) * change


@final
class AdaEdl(LoopPolicy):
    """Each request drafts until 1 - sqrt(gamma H) falls below a threshold that follows acceptance.

    Agrawal, Jeon and Lee (2024), "AdaEDL: Early Draft Stopping for Speculative Decoding of Large
    Language Models via an Entropy-based Lower Bound on Token Acceptance Probability", arXiv
    2410.18351. H is the entropy of the drafter's distribution, of which only the confidence is
    modelled: H is taken to be the least that is possible with it, so that the bound is never below
    the paper's. The threshold moves as in algorithm 1, taken from descriptions by others: up while
    too few tokens are accepted, else down, unless all of a draft of full length were accepted. That
    is the rule of Zhang et al. (2024), "Draft & Verify", arXiv 2309.08168, except that theirs never
    moves down after a draft of full length (dilab-zju/self-speculative-decoding ``decoding.py`` at
    f69f2a7, with the same numbers in both papers). The first threshold is theirs, since AdaEDL
    gives none. As there, the token that falls short is still drafted, and is the last one.
    """

    kind: Literal["adaedl"] = "adaedl"
    uses_confidences = True
    needs_sync = True
    gamma: float = Field(default=0.2, gt=0)
    threshold: float = Field(default=0.5, ge=0, le=1)
    """Threshold of a request's first draft."""
    target: float = Field(default=0.9, ge=0, le=1)
    """Share of a request's draft tokens that should be accepted."""
    change: float = Field(default=0.01, gt=0)
    rate_memory: float = Field(default=0.5, ge=0, lt=1)
    """Weight of the past in a request's share of accepted draft tokens; the paper's beta_1."""
    threshold_memory: float = Field(default=0.9, ge=0, lt=1)
    """Weight of the past in a request's threshold; the paper's beta_2."""

    loops = Loops(EdlMemory, decide=decide, stop=stop, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        known = row_of(EdlNumbers, self, scale=self.gamma)
        thresholds, rates = PerRequest(self.threshold), PerRequest(0.0)
        return self.remember(server, known=known, thresholds=thresholds, rates=rates)
