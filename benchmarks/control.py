"""What a policy in a real vLLM adds to a step, part by part: `specsim.vllm` without a model.

    PYTHONPATH=. VLLM_PYTHON benchmarks/control.py                # five minutes
    PYTHONPATH=. VLLM_PYTHON benchmarks/control.py goodput joint

Runs in the Python of a vLLM 0.32 (CPU build). vLLM's own asynchronous scheduler, 64 requests with
up to four drafts each, that end and are followed by others; steps that hold all 64 count. Between
steps either nothing happens ("warm"), or 50 MB of weights are multiplied with, as a model would
("cold"): what a server's caches are like. Time of the clock, medians over steps, microseconds;
step times are learned, and where a log is written, that is on disk. "plain" is vLLM without a
policy: "vllm" is what its own work takes, which may be more where something else uses the caches.
"""

import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "parity"))
os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import record
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

import specsim.vllm
from specsim.reality.vllm.control import VARIABLE

PLAIN = "plain"
COLUMNS = ("columns", "decide", "outcome", "observe", "python", "log", "rest", "all", "vllm")
POLICIES = (
    *(PLAIN, "static:k=4", "goodput", "ema_tiers:tiers=[4]", "bandit", "q_learning", "turbospec"),
    "joint",
)
SIZE, K, STEPS, ALPHA = 64, 4, 500, 0.6
WIDTH, LAYERS = 512, 100
ENGINE = {
    "max_model_len": 4096, "max_num_seqs": SIZE, "max_num_batched_tokens": 2048,
    "enable_chunked_prefill": True, "policy": "fcfs", "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False, "scheduler_reserve_full_isl": True,
    "watermark": 0.0, "async_scheduling": True, "max_num_active_seqs": None, "block_size": 32,
    "enable_prefix_caching": False, "num_blocks": 2000,
    "spec": {"method": "draft_model", "k": K},
}  # fmt: skip


class Parts:
    """What parts of a step took, each without those that it calls."""

    def __init__(self) -> None:
        self.took: Counter[str] = Counter()  # nanoseconds
        self._inner: list[int] = []

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Count a function of an object or class as part of a step."""
        setattr(owner, name, self.watched(getattr(owner, name), part))

    def watched(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return the function, counted as part of a step."""

        def timed(*args: Any) -> Any:
            self._inner.append(0)
            begun = perf_counter_ns()
            try:
                return function(*args)
            finally:
                took = perf_counter_ns() - begun
                self.took[part] += took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return timed


class Model:
    """Empties the caches."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        shape = (WIDTH, WIDTH)
        self._weights = [torch.randn(*shape, dtype=torch.bfloat16) for _ in range(LAYERS)]
        self._tokens = torch.randn(SIZE * (1 + K), WIDTH, dtype=torch.bfloat16)

    def run(self) -> None:
        """Do a model's work of a step."""
        tokens = self._tokens
        for weight in self._weights:
            active = torch.nn.functional.silu(tokens @ weight)
            tokens = torch.nn.functional.layer_norm(active, (WIDTH,))


class Server:
    """vLLM's scheduler with a policy in it, and nobody to run what it schedules."""

    def __init__(self, policy: str | None, log: str | None) -> None:
        os.environ[VARIABLE] = json.dumps({"policy": policy, "log": log})
        record.AsyncScheduler = specsim.vllm.AsyncScheduler if policy else AsyncScheduler
        self.scheduler: Any = record.make_scheduler(ENGINE)
        self._rng, self._num_requests, self._steps = Random(0), 0, deque[tuple[Any, set[str]]]()

    def schedule(self) -> bool:
        """Schedule a step; tell whether all decode in it."""
        scheduler = self.scheduler
        while scheduler.get_num_unfinished_requests() < SIZE:
            params = SamplingParams(max_tokens=self._rng.randint(100, 400), ignore_eos=True)
            prompt = [7] * self._rng.randint(200, 300)
            scheduler.add_request(Request(f"r{self._num_requests}", prompt, params, None))
            self._num_requests += 1
        output = scheduler.schedule()
        names = set(output.num_scheduled_tokens)
        emits = {name for name in names if not scheduler.requests[name].is_prefill_chunk}
        self._steps.append((output, emits))
        return len(output.scheduled_spec_decode_tokens) == SIZE

    def update(self) -> None:
        """Tell it what came of the step before."""
        if len(self._steps) < 2:
            return
        output, emits = self._steps.popleft()
        names = list(output.num_scheduled_tokens)
        sampled = [[1000] * self._emitted(output, name) if name in emits else [] for name in names]
        index = {name: place for place, name in enumerate(names)}
        made = ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=sampled)
        self.scheduler.update_from_output(output, made)

    def _emitted(self, output: Any, name: str) -> int:
        draft_len, emitted = len(output.scheduled_spec_decode_tokens.get(name, ())), 1
        while emitted <= draft_len and self._rng.random() < ALPHA:
            emitted += 1
        return emitted


def measured(policy: str | None, model: Model | None, log: str | None) -> dict[str, float]:
    """Return the microseconds of each part of a step; without a policy, of vLLM's own scheduler."""
    server, parts = Server(policy, log), Parts()
    scheduler = server.scheduler
    for name in ("schedule", "update_from_output"):
        parts.watch(scheduler, name, "vllm")
    kept = [_watch_plugin(scheduler, parts)] if policy else []
    taken = []
    for step in range(STEPS):
        parts.took.clear()
        is_full = server.schedule()
        if model is not None:
            model.run()
        server.update()
        if is_full and step > STEPS // 4:
            own = parts.took.total() - parts.took["vllm"]
            taken.append({**parts.took, "all": own})
    for restore in kept:
        restore()
    return {name: median(each.get(name, 0) for each in taken) / 1e3 for name in COLUMNS}


def _watch_plugin(scheduler: Any, parts: Parts) -> Callable[[], None]:
    """Count the parts of the plug-in; return what ends that."""
    controller = scheduler.controller
    parts.watch(scheduler, "_or_give_up", "rest")
    parts.watch(scheduler, "_columns", "columns")
    parts.watch(scheduler, "_sampled", "outcome")
    parts.watch(controller._asked, "decide", "decide")
    parts.watch(controller._asked, "observe", "observe")
    policy_of = type(controller._policy)
    kept = policy_of.draft_lens, policy_of.observe
    parts.watch(policy_of, "draft_lens", "python")
    parts.watch(policy_of, "observe", "python")
    if controller._log is not None:
        for name in ("decided", "ended"):
            parts.watch(controller._log, name, "log")

    def restore() -> None:
        assert scheduler.controller is not None
        policy_of.draft_lens, policy_of.observe = kept
        controller.close()

    return restore


def main() -> None:
    print(f"{'policy':20} {'caches':6} " + " ".join(f"{name:>8}" for name in COLUMNS))
    for policy in sys.argv[1:] or POLICIES:
        for model in (None, Model()):
            for has_log in (False, True) if policy != PLAIN else (False,):
                with TemporaryDirectory() as folder:
                    log = f"{folder}/log" if has_log else None
                    found = measured(None if policy == PLAIN else policy, model, log)
                caches = "cold" if model else "warm"
                print(f"{policy:20} {caches:6} " + " ".join(f"{found[n]:8.0f}" for n in COLUMNS))


if __name__ == "__main__":
    main()
