"""The draft length that recent acceptance and recent step times make best."""

from typing import Annotated, Any, Literal, NamedTuple, Protocol, final

from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.estimate import (
    Fading,
    alpha_of_all,
    fade,
    fading_desk,
    longest_of,
    rate_of,
)


class SeenTimes(Protocol):
    """The latest step times, seconds, and parameters of the policy."""

    draft_pass: float  # a: per drafted token
    verify: float  # b: of a step without drafting
    prior: float
    alpha_max: float


class SeenLately(NamedTuple):
    """The policy's memory."""

    times: Rows[SeenTimes]  # one row
    fading: Annotated[Any, Fading]


@inner
def best_window(alpha: float, times: SeenTimes, longest: int) -> int:
    """Return the first k that maximises (1 - alpha^(k + 1)) / ((1 - alpha) (k a + b))."""
    power, best = alpha, 0
    best_rate = (1.0 - power) / times.verify  # without 1 - alpha, which changes no argmax
    for k in range(1, longest + 1):
        power *= alpha
        rate = (1.0 - power) / (k * times.draft_pass + times.verify)
        if rate > best_rate:
            best, best_rate = k, rate
    return best


def decide(view: View, memory: SeenLately) -> None:
    """Ask for the best length of each request; the longest until both times are known."""
    step, times = view.step[0], memory.times[0]
    step.alpha = alpha_of_all(memory.fading.totals, times.prior)
    for row in range(step.num_rows):
        view.lens[row] = step.max_draft_len
        if times.draft_pass != 0.0 and times.verify != 0.0:
            alpha = min(rate_of(memory.fading, view.requests[row], step.alpha), times.alpha_max)
            view.lens[row] = best_window(alpha, times, step.max_draft_len)


def observe(view: View, memory: SeenLately) -> None:
    """Learn alpha from the drafts, and a and b from the step's times."""
    step, times, longest = view.step[0], memory.times[0], longest_of(view)
    memory.fading.sizes[0] = step.num_rows
    fade(memory.fading)
    if not step.prefill_tokens:
        times.verify = step.target_time + step.overhead_time
        times.draft_pass = step.draft_time / longest if longest else times.draft_pass


@final
class WindowOpt(LoopPolicy):
    """Per request, the k that maximises l(alpha, k) / (k a + b), all three observed online.

    alpha: maximum likelihood over the request's last drafts, accepted / (accepted + drafts with a
    rejection), capped at `alpha_max`; a and b: the most recent drafting time per token and
    verification time of a step that read no prompts. "A Drop-in Solution for On-the-fly Adaptation
    of Speculative Decoding", section 4.1, eq. 1 and 2. There is no profile and no term for the
    batch size: b is the time of the last such step.
    """

    kind: Literal["window_opt"] = "window_opt"
    window: int = Field(default=16, ge=1)
    """h: drafts of a request after which an observation of it has faded to 1/e."""
    alpha_max: float = Field(default=0.98, gt=0, lt=1)
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before any draft has been verified."""

    loops = Loops(SeenLately, decide=decide, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        """Return a memory with the prior alpha and without step times."""
        fading = fading_desk(self.window, 1.0, forgets=True)
        return self.remember(server, times=row_of(SeenTimes, self), fading=fading)
