"""The recorder for vLLM: schedulers of its own that also write down what they do.

    SPECSIM_RECORD_DIR=run vllm serve MODEL \
        --scheduler-cls specsim.reality.vllm.scheduler.recording_scheduler

or offline ``LLM(..., scheduler_cls=...)`` with the same name. Decisions are vLLM's;
what is recorded is read from what its public methods take and return (vLLM 0.32.0
``v1/core/sched/interface.py``). Needs nothing but vLLM and the standard library.
"""

import atexit
import logging
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import vllm
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specsim.core.errors import ConfigError
from specsim.reality.clock import Clock
from specsim.reality.vllm.recorder import Recorder

FOLDER_VARIABLE = "SPECSIM_RECORD_DIR"  # environment variable: where the run is written
TOKENS_VARIABLE = "SPECSIM_RECORD_TOKENS"
"""Environment variable: 1 also writes token ids, which prefix hits need."""

_OF_SCHEDULER = (
    *("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens"),
    *("enable_chunked_prefill", "async_scheduling", "long_prefill_token_threshold"),
    *("long_prefill_token_threshold_adaptive", "scheduler_reserve_full_isl", "watermark"),
)
_OF_PARALLELISM = ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size")
_OF_LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")
_OF_SPECULATION = (
    *("method", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "model"),
    *_OF_LOOKUP,
)

_log = logging.getLogger("vllm.specsim")  # vLLM shows logs of names below its own


class RecordingScheduler(Scheduler):
    """vLLM's synchronous scheduler, recorded."""

    recorder: Recorder | None  # None after recording failed, which must not stop the server
    clock: Clock  # of all recorded times; may be replaced before a run

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        folder = _folder(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)
        self._meta = _run_meta(vllm_config)
        self.clock = Clock()
        self.recorder = None
        self.start_run(folder)
        atexit.register(self.stop_run)  # an offline engine may end without a shutdown

    def start_run(self, folder: Path) -> None:
        """Stop the current recording, if any, and record into a new folder."""
        self.stop_run()
        is_async = isinstance(self, AsyncScheduler)
        has_tokens = os.environ.get(TOKENS_VARIABLE) == "1"
        self.recorder = Recorder(
            folder, self._meta, is_async=is_async, has_tokens=has_tokens, clock=self.clock
        )

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        self._record("arrived", request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        now = self.clock.now()
        output = super().schedule(*args, **kwargs)
        self._record("scheduled", self, output, now)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        # Before vLLM's own method, which cuts tokens in place and advances positions.
        self._record("verified", self, scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._record("updated", self)
        return outputs

    def finish_requests(self, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        ended = super().finish_requests(request_ids, *args, **kwargs)
        self._record("ended", [request.request_id for request in ended])
        if request_ids is None:
            # All requests: after a SIGTERM, when the engine is killed before its `shutdown`.
            self._record("settle")
        return ended

    def shutdown(self) -> None:
        self.stop_run()
        super().shutdown()

    def stop_run(self) -> None:
        """Stop recording: the run folder is complete, and nothing is recorded until `start_run`."""
        self._record("close")
        self.recorder = None

    def _record(self, what: str, *args: Any) -> None:
        """Call the recorder's method of this name, if there is a recorder."""
        if self.recorder is None:
            return
        try:
            getattr(self.recorder, what)(*args)
        except Exception as error:  # any error: the server must go on
            self.recorder = None
            is_own = isinstance(error, ConfigError)
            _log.error("specsim: recording has stopped: %s", error, exc_info=not is_own)


class RecordingAsyncScheduler(RecordingScheduler, AsyncScheduler):
    """vLLM's asynchronous scheduler, recorded."""


def recording_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> RecordingScheduler:
    """Return vLLM's own choice of scheduler with recording: for ``--scheduler-cls``.

    Raises a ConfigError if ``SPECSIM_RECORD_DIR`` is not set, or names a folder with a run.
    """
    is_async = vllm_config.scheduler_config.async_scheduling
    chosen = RecordingAsyncScheduler if is_async else RecordingScheduler
    return chosen(vllm_config, *args, **kwargs)


def _folder(vllm_config: Any) -> Path:
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        raise ConfigError(
            f"{FOLDER_VARIABLE} is not set: name the folder to record the run into, such as "
            f"{FOLDER_VARIABLE}=run-1"
        )
    replica = vllm_config.parallel_config.data_parallel_index
    return Path(f"{named}-replica-{replica}" if replica else named)


def _run_meta(config: Any) -> dict[str, Any]:
    """Return ``meta.json``: resolved options of an engine whose KV blocks are known."""
    cache, model, parallel = config.cache_config, config.model_config, config.parallel_config
    scheduler = config.scheduler_config  # older versions have fewer fields
    engine = {name: getattr(scheduler, name) for name in _OF_SCHEDULER if hasattr(scheduler, name)}
    engine |= {
        "model": str(model.model),
        "max_model_len": model.max_model_len,
        "dtype": str(model.dtype).removeprefix("torch."),
        "enforce_eager": model.enforce_eager,
        # These change no times here; `specsim validate` reports that they are ignored.
        "quantization": model.quantization,
        "kv_cache_dtype": str(cache.cache_dtype),
        "enable_lora": config.lora_config is not None,
        "scheduling_policy": str(config.scheduler_config.policy),
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        **{name: getattr(parallel, name, 1) for name in _OF_PARALLELISM},
    }
    if config.speculative_config is not None:
        engine["speculative_config"] = _speculation(config.speculative_config)
    sizes = config.compilation_config.cudagraph_capture_sizes
    return {
        "vllm_version": vllm.__version__,
        "engine_kwargs": engine,
        "kv_cache": {"num_gpu_blocks": cache.num_gpu_blocks, "block_size": cache.block_size},
        "resolved_config": {"compilation_config": {"cudagraph_capture_sizes": list(sizes or [])}},
        "hardware": {
            "device_name": current_platform.get_device_name(),
            "machine": platform.machine(),
            "num_cpus": os.cpu_count(),
        },
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _speculation(speculative_config: Any) -> dict[str, Any]:
    fields = {name: getattr(speculative_config, name, None) for name in _OF_SPECULATION}
    if fields["method"] not in ("ngram", "ngram_gpu"):
        fields |= dict.fromkeys(_OF_LOOKUP)
    return {name: value for name, value in fields.items() if value is not None}
