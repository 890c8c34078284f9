"""EngineStep: one step on the clock."""

from math import nan

from specsim.engine.plan import StepPlan
from specsim.engine.scheduler import Scheduler
from specsim.step import StepLoad

__all__ = ["EngineStep"]


class EngineStep:
    """One step on the clock: its plan, what it costs and what came of it."""

    __slots__ = (
        "accepted_lens",
        "alpha_estimate",
        "asked_lens",
        "draft_time",
        "ended_at",
        "free_blocks",
        "load",
        "num_running",
        "num_waiting",
        "overhead_time",
        "plan",
        "scheduled_at",
        "started_at",
        "target_time",
        "verified_draft_time",
    )

    def __init__(self, plan: StepPlan, scheduler: Scheduler, now: float) -> None:
        self.plan = plan
        self.load: StepLoad = plan.load
        self.scheduled_at = now
        self.started_at = now
        """When the GPU begins with it."""
        self.ended_at = now
        """When its tokens are delivered."""
        self.num_running = len(scheduler.running)
        self.num_waiting = len(scheduler.waiting)
        self.free_blocks = scheduler.kv.num_free
        self.asked_lens: int | list[int] = 0
        """Draft lengths that the drafter was run for at its end, tokens."""
        self.alpha_estimate = nan
        """What the policy believed about acceptance at its end."""
        self.accepted_lens: list[int] = []
        self.target_time = 0.0
        self.draft_time = 0.0
        self.overhead_time = 0.0
        self.verified_draft_time = 0.0
        """What it took to make the drafts that the step verifies."""
