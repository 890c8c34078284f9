"""GPUs that only a drafter runs on: which, the way there, and whether it waits for the target."""

from typing import Annotated

from pydantic import Field

from specsim.core.settings import Settings


class OwnGpus(Settings):
    """GPUs beside those of the target, which then hold nothing of the drafter, for each replica."""

    profile: str | None = None
    """Profile of the drafter by itself, such as ``h100/llama-3.2-1b``: a draft token takes a
    forward pass of it, and its GPUs are counted. By default the drafting cost of the target's
    profile, on as many GPUs as the target has."""
    overlaps: bool = False
    """Whether it drafts while the target verifies, on from the drafts that are being verified. What
    it has drafted is thrown away unless all of those are accepted and it has guessed the token
    that the target adds (Liu et al. 2025, "PEARL"). Otherwise it drafts once the target is done."""
    latency_ms: Annotated[float, Field(ge=0)] = 0.0
    """From the target's GPUs to the drafter's, or back; a step that drafts takes both ways."""
    bandwidth_gb_s: Annotated[float, Field(gt=0)] = 50.0
    """In 1e9 bytes a second; by default 400 Gbit/s."""
    token_bytes: Annotated[float, Field(ge=0)] = 4.0
    """What is sent for each draft token: its id; where sampling verifies it, its distribution too,
    2 bytes for each token of the vocabulary."""

    @property
    def step_ms(self) -> float:
        """What exchanging takes of each step that drafts, milliseconds."""
        return 2.0 * self.latency_ms

    @property
    def token_us(self) -> float:
        """What sending takes for each draft token, microseconds."""
        return self.token_bytes / self.bandwidth_gb_s * 1e-3
