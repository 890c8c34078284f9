"""LoRA adapters: how many an engine holds, which a step serves, and what that takes.

Sources: vLLM 0.32.0 ``v1/core/sched/scheduler.py`` (`max_loras`), ``lora/worker_manager.py
LRUCacheWorkerLoRAManager``, ``lora/model_manager.py LRUCacheLoRAModelManager``.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from specsim.core.compiled import inner
from specsim.core.settings import Settings
from specsim.engine.table import Table
from specsim.profile.costs import LORA_LOAD, LORA_READ, LORA_STEP, LORA_TOKEN

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


@inner
def serve_adapter(table: Table, row: int) -> None:
    """Count the adapter of a sequence that has come into the step."""
    step = table.steps[table.state[0].current]
    adapter = table.facts[table.sequences[row].request].adapter
    if adapter and table.adapters[adapter].scheduled_in != step.index:
        table.adapters[adapter].scheduled_in = step.index
        step.num_adapters += 1


@inner
def serve_running(table: Table) -> None:
    """Count the adapters of all that run, whether or not they are in the step."""
    for place in range(table.state[0].num_running):
        serve_adapter(table, table.running[place])


@inner
def may_serve(table: Table, row: int) -> bool:
    """Return whether the step may serve the adapter of a sequence, too, if it has one."""
    step = table.steps[table.state[0].current]
    adapter = table.facts[table.sequences[row].request].adapter
    has_room = step.num_adapters < table.limits[0].max_loras
    return bool(has_room or not adapter or table.adapters[adapter].scheduled_in == step.index)


@inner
def charge_adapters(table: Table) -> None:
    """Charge for bringing the step's adapters to the GPU, and for computing with them."""
    state = table.state[0]
    step, costs = table.steps[state.current], table.adapter_costs
    tokens = 0
    time = 0.0
    for place in range(step.num_requests):
        entry = table.entries[state.current, place]
        number = table.facts[entry.request].adapter
        if not number:
            continue
        tokens += entry.scheduled_len
        if table.adapters[number].charged_in != step.index:
            table.adapters[number].charged_in = step.index
            time += _made_ready(table, number)
    if tokens:
        step.target_time += state.slowness * (time + costs[LORA_STEP] + costs[LORA_TOKEN] * tokens)


@inner
def _made_ready(table: Table, number: int) -> float:
    """Have an adapter on the GPU, in place of what was used first; return how long that takes."""
    limits, state, adapter = table.limits[0], table.state[0], table.adapters[number]
    time = 0.0
    state.adapter_uses += 1
    if not adapter.held_at:
        time += table.adapter_costs[LORA_READ]
        state.num_held += 1
        if state.num_held > limits.max_cpu_loras:
            _let_go(table, True)
    adapter.held_at = state.adapter_uses
    if not adapter.active_at:
        time += table.adapter_costs[LORA_LOAD]
        state.num_active += 1
        if state.num_active > limits.max_loras:
            _let_go(table, False)
    adapter.active_at = state.adapter_uses
    return time


@inner
def _let_go(table: Table, is_held: bool) -> None:
    """Let go of the adapter that was used first: in host memory, and so on the GPU; or there."""
    state = table.state[0]
    first = least = 0
    for number in range(1, len(table.adapters)):
        adapter = table.adapters[number]
        used_at = adapter.held_at if is_held else adapter.active_at
        if used_at and (not first or used_at < least):
            first, least = number, used_at
    if table.adapters[first].active_at:
        table.adapters[first].active_at = 0
        state.num_active -= 1
    if is_held:
        table.adapters[first].held_at = 0
        state.num_held -= 1
