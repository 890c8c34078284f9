"""AdapterCost: what LoRA adapters add to a step, where that was measured."""

from pydantic import Field

from specsim.core.settings import Settings

LORA_STEP, LORA_TOKEN, LORA_LOAD, LORA_READ = range(4)
"""Places in `AdapterCost.numbers`."""


class AdapterCost(Settings):
    """What LoRA adapters of one rank add to the target's forward pass.

    Their memory is part of the profile's `reserved_gib`: vLLM sets aside room for `max_loras`
    adapters when it starts.
    """

    step_ms: float = Field(default=0.0, ge=0)
    """Of a step that serves any adapter: launches, and products of the size of the model."""
    token_us: float = Field(default=0.0, ge=0)
    """Per token of sequences with an adapter."""
    load_ms: float = Field(default=0.0, ge=0)
    """To copy an adapter from host memory to the GPU; the step waits for it."""
    read_ms: float = Field(default=0.0, ge=0)
    """To read an adapter into host memory, before that."""

    @property
    def numbers(self) -> list[float]:
        """The same in seconds, in the order of `LORA_STEP` to `LORA_READ`."""
        milliseconds = [self.step_ms, self.token_us * 1e-3, self.load_ms, self.read_ms]
        return [value * 1e-3 for value in milliseconds]
