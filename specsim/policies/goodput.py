"""SmartSpec: the draft length of highest estimated goodput, of all requests or of each its own."""

from typing import Literal, NamedTuple, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows
from specsim.core.desk import Ints
from specsim.core.step import StepLoad
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, PicksPrefix, ServerView
from specsim.policies.goodput_exact import BY_REQUEST
from specsim.policies.parts.by_request import by_request
from specsim.policies.parts.estimate import alpha_of, best_common_len, expected_len, note_trials
from specsim.policies.parts.trials import Known, ask_in_common, learn, let_go, no_trials


class Weighed(NamedTuple):
    """The policy's memory."""

    known: Rows[Known]  # one row
    ring: Ints  # accepted tokens and drafts cut short of each step in the window


def decide(view: View, memory: Weighed) -> None:
    """Ask for the k of highest goodput, unless the drafter is given up or a trial runs."""
    known = memory.known[0]
    ask_in_common(view, known, memory.ring, best_common_len(view, alpha_of(known)))
    view.step[0].alpha = alpha_of(known)


def observe(view: View, memory: Weighed) -> None:
    """Learn the acceptance rate, and how long the drafter takes to read prompts."""
    known = memory.known[0]
    learn(view, known, note_trials(view, known, memory.ring))


def drop(view: View, memory: Weighed) -> None:
    """Let go of the sequences for which drafting does not pay."""
    let_go(view, memory.known[0])


FOR_ALL = Loops(Weighed, decide=decide, observe=observe, drop=drop)


@final
class Goodput(LoopPolicy, PicksPrefix):
    """Estimated emitted tokens over estimated step time, maximised over k = 0..V.

    Liu et al. (2024), "Optimizing Speculative Decoding for Serving Large Language Models Using
    Goodput", algorithms 1 and 2: emitted tokens by eq. 8 and 9 with a moving average of past
    acceptance, T_batch = T_draft(k) + T_target by eq. 4 to 7 from the profile. With `granularity`
    step, all requests share one alpha and one k; with request, each has its own, found by the
    search of `goodput_exact` from estimates that weigh a request's own acceptance more.

    k = 0 is among the candidates: the text requires speculation to be switched off under load,
    though TurboSpec's listing 2 starts at 1. A k whose KV slots are not free is left out (line 5).
    With `candidates` prefixes, the step holds the first-come prefix of the running sequences that
    has the highest goodput, each with its own best k (lines 2 to 11): a few long contexts at the
    end may cost more than they yield. They wait until those before them have ended. This is not
    the default: deferred work is not saved, and the goodput of one step ignores later steps.
    """

    kind: Literal["goodput"] = "goodput"
    examples = ({}, {"granularity": "request"}, {"candidates": "prefixes"})
    granularity: Literal["step", "request"] = "step"
    candidates: Literal["batch", "prefixes"] = "batch"
    """``batch``: run all running sequences; ``prefixes``: the prefix of highest goodput."""
    window: int = Field(default=50, ge=1)
    """Steps of the moving average; the paper finds its length uncritical."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before any draft has been verified."""

    @property
    def loops(self) -> Loops:  # type: ignore[override]  # which differ
        """The loops with one k for all requests, or with one for each."""
        return BY_REQUEST if self.granularity == "request" else FOR_ALL

    def start(self, server: ServerView) -> LoopMemory:
        window = self.window
        if self.granularity == "request":
            return self.remember(server, **by_request(server, self.prior, window, 5.0))
        known = row_of(Known, self, **no_trials(window))
        return self.remember(server, known=known, ring=np.zeros(2 * window, dtype=np.int64))

    @property
    def picks_prefix(self) -> bool:
        """Whether steps may leave running sequences out."""
        return self.candidates == "prefixes"

    def prefix_size(self, known_lens: Ints, memory: LoopMemory) -> int:
        """Return the size of the prefix of highest goodput, if all its sequences decode."""
        server, alpha = memory.server, self.alpha_estimate(memory)
        context_lens = np.cumsum(known_lens - 1)
        best_size, best_rate, num, lens = 1, 0.0, len(known_lens), range(server.max_draft_len + 1)
        for size in range(num, 0, -max(1, num // 32)):  # in a large batch, not every size
            context = int(context_lens[size - 1])
            loads = [StepLoad(context, size * (1 + k), size) for k in lens]
            times = [server.step_time(load, k) for k, load in enumerate(loads)]
            goodputs = [expected_len(alpha, k) / time for k, time in enumerate(times)]
            k = goodputs.index(max(goodputs))
            rate = size * expected_len(alpha, k) / times[k]
            if rate > best_rate:
                best_size, best_rate = size, rate
        return best_size
