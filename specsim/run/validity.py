"""How far to trust a run's step times: the profile's kind, its valid range, and the mean step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.figures import figures
from specsim.core.step import StepLoad
from specsim.policies import DraftsTrees
from specsim.profile import Profile
from specsim.profile.model_error import UsualStep
from specsim.profile.profile import NOT_MEASURED
from specsim.results.tables import RunTables
from specsim.run.deployment import Deployment
from specsim.workload.arrivals import Arrivals, OpenArrivals

_COUNTS = ("steps", "beyond_context", "beyond_batched", "context_tokens", "batched_tokens")


@dataclass(frozen=True)
class Beyond:
    """Steps of one or several runs that lie beyond the valid range of their profile."""

    steps: int  # all steps
    beyond_context: int  # steps with more context tokens than the valid range
    beyond_batched: int  # steps with more batched tokens than the valid range
    context_tokens: int  # of the largest step
    batched_tokens: int  # of the largest step
    context_len: float  # mean context of a sequence over the requests, tokens
    pools: "tuple[Beyond, ...]" = ()  # of the prefill pool and of the decode pool

    @classmethod
    def of(cls, totals: np.void, context_len: float, pools: "tuple[Beyond, ...]" = ()) -> "Beyond":
        """Return the counts of replicas, summed (`specsim.results.records.TOTAL_FIELDS`)."""
        counts = {name: int(totals[name]) for name in _COUNTS}
        return cls(**counts, context_len=context_len, pools=pools)

    @classmethod
    def over(cls, runs: "Sequence[Beyond]") -> "Beyond":
        columns = {name: [vars(run)[name] for run in runs] for name in (*_COUNTS, "context_len")}
        kinds: dict[str, Any] = {"tokens": max, "len": np.mean}
        found = {n: kinds.get(n.split("_")[-1], sum)(each) for n, each in columns.items()}
        pools = zip(*(run.pools for run in runs), strict=True)
        return cls(**found, pools=tuple(cls.over(each) for each in pools))

    @property
    def share(self) -> float:
        """Share of steps beyond the valid range, by context or batched tokens: the larger."""
        return max(self.beyond_context, self.beyond_batched) / max(self.steps, 1)

    def warnings(self, profiles: Sequence[Profile]) -> list[str]:
        """Return a warning for each way in which steps exceed the valid range of a profile.

        Args:
            profiles: Those of the prefill and of the decode pool, or a single one.
        """
        found = []
        parts = zip(self.pools, ("prefill pool's ", "decode pool's "), profiles, strict=False)
        for each, whose, profile in parts if len(profiles) > 1 else [(self, "", profiles[0])]:
            for kind in ("context", "batched"):
                count, largest = (getattr(each, n) for n in (f"beyond_{kind}", f"{kind}_tokens"))
                if count:
                    limit = getattr(profile.valid_range, f"{kind}_tokens")
                    found.append(
                        f"{figures(100 * count / each.steps, 3)} % of the {whose}steps lie outside "
                        f"the profile's valid range: up to {largest:,} {kind} tokens, fitted up to "
                        f"{limit:,}"
                    )
        return found + [
            f"{each.model} on {each.gpu}: fitted to runs whose sequences have {lens[0]:,} to "
            f"{lens[1]:,} tokens; here they have {figures(self.context_len)} on average, of which "
            "the fit says nothing"
            for each in profiles
            if (lens := each.valid_range.context_lens)
            and not each.valid_range.is_known(self.context_len)
        ]


def context_len(requests: NDArray[np.void]) -> float:
    """Return the mean context of a sequence while it decodes, tokens."""
    return float((requests["prompt_len"] + requests["output_len"] / 2).mean())


ROOFLINE = (
    "steps as the roofline says, not as measured; it flatters speculation at medium batch sizes "
    "(profiles/README.md)"
)


BASES = ("fitted", "kernels", "roofline")  # sources of step times, the least trusted last


def step_times(profile: Profile) -> str:
    """Return the source of a profile's step times: ``fitted``, ``kernels`` or ``roofline``.

    Fitted to measured steps; composed of kernels measured one by one; computed from a data sheet.
    """
    if profile.target.kind == "roofline":
        return "roofline"
    return "kernels" if NOT_MEASURED in profile.provenance.notes else "fitted"


def usual_step(tables: RunTables, deployment: Deployment, arrivals: Arrivals) -> UsualStep:
    """Return the mean step of a run, by which model errors are looked up."""
    requests, steps = tables.requests, max(int(tables.totals["steps"]), 1)
    proposer = deployment.proposer
    decodes = max(float(requests["deliveries"].sum()) / steps, 1.0)
    context = context_len(requests)
    prompts = float((requests["prompt_len"] - requests["cached_len"]).sum()) / steps
    drafted = float(requests["draft_tokens"].sum())
    load = StepLoad(
        context_tokens=round(decodes * context),
        batched_tokens=round(decodes + drafted / steps + prompts),
        num_requests=round(decodes),
        prefill_tokens=round(prompts),
    )
    return UsualStep(
        load,
        context_len=context,
        drafters=tuple(proposer.cost_keys) if proposer is not None and drafted else (),
        draft_len=_usual_draft_len(tables, deployment),
        is_open=isinstance(arrivals, OpenArrivals),
        block=deployment.costs.block,
        own_cost=deployment.costs.drafts[0] if deployment.drafter else None,
        overlaps=deployment.costs.overlaps,
        is_async=deployment.costs.hides_overhead,
    )


def _usual_draft_len(tables: RunTables, deployment: Deployment) -> int:
    """Return how many tokens a drafter makes in sequence per step, on average.

    For trees this is the longest accepted path, at least 1. A drafter that overlaps makes all
    tokens that it is asked for, even if some steps verify none.
    """
    requests, totals = tables.requests, tables.totals
    drafts = float(requests["drafts"].sum())
    if not drafts:
        return 0
    if isinstance(deployment.policy, DraftsTrees):
        return max(1, int(np.flatnonzero(tables.outcomes.any(axis=0)).max()))
    if deployment.costs.overlaps:
        return round(float(totals["asked_tokens"]) / float(totals["num_requests"]))
    return round(float(requests["draft_tokens"].sum()) / drafts)
