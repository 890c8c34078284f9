"""LoraConfig: how many LoRA adapters an engine serves and holds."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from specsim.core.settings import Settings

_Count = Annotated[int, Field(gt=0, le=1 << 20)]


class LoraConfig(Settings):
    """LoRA adapters, under the names of vLLM 0.32.0 ``config/lora.py``."""

    max_loras: _Count = 1
    """Adapters that a step may serve, and that the GPU holds; who is for another one waits."""
    max_cpu_loras: _Count | None = None
    """Adapters that host memory holds; by default `max_loras`."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ValueError(
                f"max_cpu_loras = {self.max_cpu_loras} must be at least max_loras = "
                f"{self.max_loras}: what the GPU holds, host memory does, too"
            )
        return self

    @property
    def limits(self) -> dict[str, int]:
        """By the names of `specsim.engine.engine_limits.Limits`."""
        held = self.max_cpu_loras or self.max_loras
        return {"max_loras": self.max_loras, "max_cpu_loras": held}
