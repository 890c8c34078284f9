"""DSDE: longer drafts where drafter and target have agreed steadily, none far above the mean."""

from math import ceil, exp
from typing import Literal, NamedTuple, Protocol, final

from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import FloatRows, Floats, Ints, PerRequest
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.everybody import draft_on
from specsim.policies.parts.recent import change_of_variance, keep

TOKENS, SHORTEST = 30, 2


class DsdeState(Protocol):
    """Results of the calibration steps."""

    steps_left: int  # calibration steps still to come
    most_accepted: int  # longest accepted length, tokens
    added: float  # sum of the divergences
    num: int  # number of divergences
    largest: float  # largest divergence
    by_confidence: int  # 1 if divergences come from confidences


class DsdeMemory(NamedTuple):
    """The policy's memory."""

    state: Rows[DsdeState]  # one row
    divergences: FloatRows  # ring per request: divergences of its last tokens
    counts: Ints  # per request: tokens put into its ring
    means: Floats  # per request: mean divergence over its last draft


@inner
def learn(view: View, memory: DsdeMemory, row: int, lost: float) -> None:
    """Note the divergence of drafter and target over a draft: by confidences if `lost` < 0."""
    state, request, length, total = memory.state[0], view.requests[row], view.draft_lens[row], 0.0
    for at in range(row * view.step[0].width, row * view.step[0].width + length):
        divergence = 2.0 * (lost if lost >= 0.0 else 1.0 - view.confidences[at]) ** 2
        total += divergence
        keep(memory.divergences, memory.counts, request, divergence)
        if state.steps_left:
            state.added, state.num = state.added + divergence, state.num + 1
            state.largest = max(state.largest, divergence)
    memory.means[request] = total / length


def decide(view: View, memory: DsdeMemory) -> None:
    """Draft the lengths of eq. 3, 4 and 8, capped at their mean; at first, the longest drafts."""
    step, state = view.step[0], memory.state[0]
    if state.steps_left or not step.num_rows:
        draft_on(view)
        return
    stretch = 1.0 + state.added / max(state.num, 1) / (state.largest + 1e-9)
    longest = max(state.most_accepted * stretch, float(SHORTEST))  # eq. 1
    for row, request in enumerate(view.requests[: step.num_rows]):
        change = change_of_variance(memory.divergences[request], memory.counts[request])
        penalty = (exp(2.0 * memory.means[request]) - 1.0) * change
        view.lens[row] = ceil(max(1.0 - penalty, 0.0) * (longest - SHORTEST) + SHORTEST)
    most = min(ceil(view.lens[: step.num_rows].mean()), step.max_draft_len)
    for row in range(step.num_rows):
        view.lens[row] = min(view.lens[row], most)


def verify(view: View, memory: DsdeMemory) -> None:
    """Verify all drafts, and learn divergences from their confidences, if they have any."""
    for row in range(view.step[0].num_rows):
        view.lens[row] = view.draft_lens[row]
        if memory.state[0].by_confidence and view.draft_lens[row]:
            learn(view, memory, row, -1.0)


def observe(view: View, memory: DsdeMemory) -> None:
    """Learn divergences from rejections if there are no confidences; count calibration steps."""
    state, drafted = memory.state[0], 0
    for row in range(view.step[0].num_rows):
        length, accepted = view.draft_lens[row], view.accepted_lens[row]
        drafted += length
        if length and not state.by_confidence:
            learn(view, memory, row, (1.0 if accepted < length else 0.0) / (accepted + 1.0))
        if state.steps_left:
            state.most_accepted = max(state.most_accepted, accepted)
    state.steps_left -= min(state.steps_left, drafted, 1)


@final
class Dsde(LoopPolicy):
    """Per request (1 - (e^(2 D) - 1) W) (longest - 2) + 2 tokens, at most the mean over the batch.

    Yang et al. (2025), "DSDE: Dynamic Speculative Decoding with KLD Stability for Real-World
    Serving", arXiv 2509.01083, eq. 1 to 11. D is the mean divergence of drafter and target over the
    last draft; W is its variance over the last 10 tokens divided by that over 30, with weights that
    fade by 0.85 per token; `longest` is the most that the calibration steps accepted, times 1 +
    mean / largest divergence. As in the released code (``vllm/spec_decode/dynamic_scheduler.py
    KLScheduler`` at 4d571a2), lengths and their mean are rounded up; with fewer than 30 tokens, W
    compares the last third with all; it is 0 with fewer than two tokens and 20 without variance.
    Not taken from there: 0.9 for 0.85, half of mean / largest, a shortest draft of a tenth of
    longest, calibration per request. A token's divergence is the least that its total variation
    allows, 2 (1 - c)^2 (Pinsker), c its confidence; asynchronously 1 - c is the share of its
    trials that a draft lost. The number of calibration steps is a choice made here.
    """

    kind: Literal["dsde"] = "dsde"
    uses_confidences = "if known"
    needs_sync = "by default"
    calibration_steps: int = Field(default=20, ge=1)
    """First steps of the server that verify drafts."""
    loops = Loops(DsdeMemory, decide=decide, verify=verify, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        known = {"steps_left": self.calibration_steps, "by_confidence": server.has_confidences}
        new = {"divergences": PerRequest(0.0, TOKENS), "counts": PerRequest(0, dtype=int)}
        return self.remember(server, state=row_of(DsdeState, **known), means=PerRequest(0.0), **new)
