"""vLLM's schedulers with a policy of specsim in them: how much to draft, decided at every step.

    vllm serve MODEL --speculative-config '{"method": ..., "num_speculative_tokens": 5}' \
        --scheduler-cls specsim.vllm.AsyncScheduler \
        --additional-config '{"specsim": {"policy": "goodput"}}'

`Scheduler` where vLLM schedules synchronously. In place of ``--additional-config`` the environment
variable `VARIABLE` may hold what would stand under "specsim", in JSON. What is scheduled is vLLM's
affair; the policy settles one number, which its runners draft by (vLLM 0.32.0
``v1/core/sched/output.py SchedulerOutput.num_spec_tokens_to_schedule``). If it fails, the server
goes on with the drafts that it was configured for, and says so once.
"""

import logging
from collections import deque
from dataclasses import fields
from typing import Any, NamedTuple

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as _Async
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler as _Sync

from specsim.core.errors import ConfigError
from specsim.core.step import StepLoad
from specsim.reality.clock import Clock
from specsim.reality.vllm.at_work import Rows
from specsim.reality.vllm.control import VARIABLE, Control, Controller, Engine, told

_LOOKUPS = {"ngram", "ngram_gpu", "suffix"}
_FIELD = "num_spec_tokens_to_schedule"

_log = logging.getLogger("vllm.specsim")  # vLLM shows what is logged below its own name


class _Awaited(NamedTuple):
    output: Any  # what vLLM said of it, which comes back when it has ended
    load: StepLoad
    k: int
    scheduled_at: float


class _Controlled:
    """What both schedulers do beside vLLM's work."""

    controller: Controller | None = None
    """None once a decision has failed: a server must not fall with it."""
    clock: Clock  # of what steps take; may be replaced

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        control, engine = _control(vllm_config), _engine(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]
        rank = vllm_config.parallel_config.data_parallel_index
        self.controller = Controller(control, engine, rank)
        self.clock = Clock()
        _log.info("specsim: policy '%s' decides how much is drafted", control.policy)
        self._numbers: dict[str, int] = {}
        self._num_requests = 0
        self._steps: deque[_Awaited] = deque()
        self._ended_at = 0.0

    def add_request(self, request: Any) -> None:
        super().add_request(request)  # type: ignore[misc]
        if request.request_id not in self._numbers:
            self._numbers[request.request_id] = self._num_requests
            self._num_requests += 1

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        # Before vLLM does: it moves the positions on, and lays out room for the drafts.
        if self.controller is not None:
            try:
                self._decide(scheduler_output, self.controller)
            except Exception as error:  # whatever it is: the server must go on
                self._give_up(error)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def _decide(self, output: Any, controller: Controller) -> None:
        if controller.constant is not None:
            output.num_spec_tokens_to_schedule = controller.constant
            return
        now = self.clock.now()
        rows = self._rows(output)
        pool = self.kv_cache_manager.block_pool  # type: ignore[attr-defined]
        free_slots = pool.get_num_free_blocks() * self.block_size  # type: ignore[attr-defined]
        k, load = controller.decide(rows, now, len(self.running), free_slots)  # type: ignore[attr-defined]
        output.num_spec_tokens_to_schedule = k
        self._steps.append(_Awaited(output, load, k, now))

    def _rows(self, output: Any) -> Rows:
        """Return its sequences, each with the fields of `Scheduled`."""
        requests, drafts = self.requests, output.scheduled_spec_decode_tokens  # type: ignore[attr-defined]
        rows: Rows = []
        for request_id, count in output.num_scheduled_tokens.items():
            request = requests[request_id]
            computed = request.num_computed_tokens
            known = request.num_tokens
            rows += (
                self._numbers[request_id],
                request.num_prompt_tokens,
                known,
                computed + count < known + request.num_output_placeholders,
                computed,
                count,
                len(drafts.get(request_id, ())),
            )
        return rows

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if self.controller is not None:
            try:
                self._observe(scheduler_output, model_runner_output, self.controller)
            except Exception as error:
                self._give_up(error)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _observe(self, output: Any, made: Any, controller: Controller) -> None:
        while self._steps and self._steps[0].output is not output:
            self._steps.popleft()
        if not self._steps:
            return
        now = self.clock.now()
        step = self._steps.popleft()
        seconds = now - max(step.scheduled_at, self._ended_at)
        self._ended_at = now
        if not step.load.num_requests:
            return
        drafts, sampled = output.scheduled_spec_decode_tokens, made.sampled_token_ids
        rows: Rows = []
        for request_id in output.num_scheduled_tokens:
            tokens = sampled[made.req_id_to_index[request_id]] if sampled else ()
            if len(tokens):
                verified = len(drafts.get(request_id, ()))
                rows += (self._numbers[request_id], verified, len(tokens) - 1, len(tokens))
        controller.observe(step.load, step.k, seconds, rows)
        if len(self._numbers) > 2 * len(self.requests) + 64:  # type: ignore[attr-defined]
            known = {each for step in self._steps for each in step.output.num_scheduled_tokens}
            known |= self.requests.keys()  # type: ignore[attr-defined]
            self._numbers = {each: n for each, n in self._numbers.items() if each in known}

    def _give_up(self, error: Exception) -> None:
        self.controller = None
        is_own = isinstance(error, ConfigError)
        _log.error(
            "specsim: the policy decides no more, and drafts have the configured length: %s",
            error,
            exc_info=not is_own,
        )

    def shutdown(self) -> None:
        if self.controller is not None:
            self.controller.close()
        super().shutdown()  # type: ignore[misc]


class Scheduler(_Controlled, _Sync):  # type: ignore[misc]
    """vLLM's synchronous scheduler; a policy of specsim says how much is drafted."""


class AsyncScheduler(_Controlled, _Async):  # type: ignore[misc]
    """vLLM's asynchronous scheduler; a policy of specsim says how much is drafted."""


def _control(config: Any) -> Control:
    """Return who decides; a ConfigError if that is not said, or vLLM cannot be told."""
    if _FIELD not in {field.name for field in fields(SchedulerOutput)}:
        raise ConfigError(
            f"vLLM {vllm.__version__} drafts equally much in every step (no {_FIELD}); use 0.32"
        )
    if config.speculative_config is None:
        raise ConfigError("a policy needs a drafter; add --speculative-config")
    found = told(config.additional_config)
    if found is None:
        raise ConfigError(
            'no policy is named; add --additional-config \'{"specsim": {"policy": "goodput"}}\', '
            f"or set {VARIABLE}"
        )
    return found


def _engine(config: Any) -> Engine:
    speculation = config.speculative_config
    return Engine(
        method=speculation.method,
        num_speculative_tokens=speculation.num_speculative_tokens,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        drafts_by_model=speculation.method not in _LOOKUPS,
    )
