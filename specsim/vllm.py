"""vLLM's schedulers with a policy of specsim, which decides the draft length at every step.

    vllm serve MODEL --speculative-config '{"method": ..., "num_speculative_tokens": 5}' \
        --scheduler-cls specsim.vllm.AsyncScheduler \
        --additional-config '{"specsim": {"policy": "goodput"}}'

Use `Scheduler` if vLLM schedules synchronously. In place of ``--additional-config`` the environment
variable ``SPECSIM_CONTROL`` may hold the value of "specsim" as JSON. vLLM schedules as usual; the
policy sets one number, the draft length of the runners (vLLM 0.32.0 ``v1/core/sched/output.py
SchedulerOutput.num_spec_tokens_to_schedule``). If the policy fails, the server continues with the
configured draft length, and logs this once.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as _Async
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler as _Sync

from specsim.core.errors import ConfigError
from specsim.reality.clock import Clock
from specsim.reality.vllm.at_work import Columns
from specsim.reality.vllm.control import NO_POLICY, Control, Controller, Engine, told

_LOOKUPS = {"ngram", "ngram_gpu", "suffix"}
_FIELD = "num_spec_tokens_to_schedule"

_log = logging.getLogger("vllm.specsim")  # vLLM shows logs of names below its own


class Scheduler(_Sync):
    """vLLM's synchronous scheduler, with draft lengths by a policy of specsim."""

    controller: Controller | None = None
    """None after a decision has failed, which must not stop the server."""
    clock: Clock  # of step times; may be replaced

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        control, engine = _control(vllm_config), _engine(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)
        rank = vllm_config.parallel_config.data_parallel_index
        self.controller = Controller(control, engine, rank)
        self.clock = Clock()
        _log.info("specsim: policy '%s' decides how much is drafted", control.policy)
        self._num_requests = 0
        self._steps: deque[tuple[Any, int, int, float]] = deque()
        """(SchedulerOutput, number, k, instant of scheduling) of each running step."""
        self._ended_at = 0.0

    def add_request(self, request: Any) -> None:
        request.specsim_number = self._num_requests
        self._num_requests += 1
        super().add_request(request)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        # Before vLLM's own method, which advances positions and reserves room for the drafts.
        self._or_give_up(self._decide, scheduler_output)
        super()._update_after_schedule(scheduler_output)

    def _decide(self, controller: Controller, output: Any) -> None:
        if controller.constant is not None:
            output.num_spec_tokens_to_schedule = controller.constant
            return
        now = self.clock.now()
        pool = self.kv_cache_manager.block_pool
        free_slots = pool.get_num_free_blocks() * self.block_size
        k, step = controller.decide(self._columns(output), now, len(self.running), free_slots)
        output.num_spec_tokens_to_schedule = k
        self._steps.append((output, step, k, now))

    def _columns(self, output: Any) -> Columns:
        """Return the fields of `Scheduled` for the sequences of a step."""
        counts, of_id = output.num_scheduled_tokens, self.requests
        requests = [of_id[request_id] for request_id in counts]
        cached = output.scheduled_cached_reqs
        computed, output_lens = cached.num_computed_tokens, cached.num_output_tokens
        if len(computed) != len(requests):  # new requests are in another list
            computed = [each.num_computed_tokens for each in requests]
            output_lens = [
                each.num_output_tokens + each.num_output_placeholders for each in requests
            ]
        return [
            *[each.specsim_number for each in requests],
            *[each.num_prompt_tokens for each in requests],
            *output_lens,
            *[each.num_output_placeholders for each in requests],
            *computed,
            *counts.values(),
        ]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        # Sampled tokens are read before vLLM's method, which cuts them in place; all else after it,
        # when the data is in the caches again.
        sampled = self._or_give_up(self._sampled, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if sampled is not None:
            places = model_runner_output.req_id_to_index
            self._or_give_up(self._observe, scheduler_output, places, *sampled)
        return outputs

    def _sampled(self, _: Controller, made: Any) -> tuple[float, list[int]] | None:
        """Return when a step ended, and each sequence's output tokens in the runner's order."""
        return (self.clock.now(), [*map(len, made.sampled_token_ids)]) if self._steps else None

    def _observe(
        self,
        controller: Controller,
        output: Any,
        places: dict[str, int],
        now: float,
        sampled: list[int],
    ) -> None:
        steps = self._steps
        while steps and steps[0][0] is not output:
            steps.popleft()
        if not steps:
            return
        _, step, k, scheduled_at = steps.popleft()
        seconds = now - max(scheduled_at, self._ended_at)
        self._ended_at = now
        if counts := output.num_scheduled_tokens:
            lens = [sampled[places[each]] for each in counts] if sampled else [0] * len(counts)
            controller.observe(step, k, seconds, lens)
        if not self.requests:
            controller.rest()

    def _or_give_up(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Call `act` with the controller, if there is one; drop the controller if that fails."""
        if self.controller is None:
            return None
        try:
            return act(self.controller, *arguments)
        except Exception as error:  # any error: the server must go on
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        controller, self.controller = self.controller, None
        if controller is not None:
            with suppress(Exception):  # the log may be what has failed
                controller.close()
        is_own = isinstance(error, ConfigError)
        _log.error(
            "specsim: the policy decides no more, and drafts have the configured length: %s",
            error,
            exc_info=not is_own,
        )

    def finish_requests(self, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if request_ids is None:
            # All requests: after a SIGTERM, when the engine is killed before its `shutdown`.
            self._or_give_up(Controller.rest)
        return super().finish_requests(request_ids, *args, **kwargs)

    def shutdown(self) -> None:
        self._or_give_up(Controller.close)
        super().shutdown()


class AsyncScheduler(Scheduler, _Async):
    """vLLM's asynchronous scheduler, with draft lengths by a policy of specsim."""


def _control(config: Any) -> Control:
    """Return the control; a ConfigError if none is given, or this vLLM cannot be controlled."""
    if _FIELD not in {field.name for field in fields(SchedulerOutput)}:
        raise ConfigError(
            f"vLLM {vllm.__version__} drafts equally much in every step (no {_FIELD}); "
            "use 0.28 or newer"
        )
    if config.speculative_config is None:
        raise ConfigError("a policy needs a drafter; add --speculative-config")
    found = told(config.additional_config)
    if found is None:
        raise ConfigError(NO_POLICY)
    return found


def _engine(config: Any) -> Engine:
    speculation = config.speculative_config
    return Engine(
        method=speculation.method,
        num_speculative_tokens=speculation.num_speculative_tokens,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        drafts_by_model=speculation.method not in _LOOKUPS,
    )
