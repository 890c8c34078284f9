"""A real vLLM that serves one run after another under policies of specsim; runs in vLLM's Python.

    python serve.py ENGINE.json < runs, a JSON line each > answers, likewise, among vLLM's own lines

One engine serves all, so that policies that take turns meet the same machine within seconds. A run
may be recorded; its policy, which begins without memories, may be None: vLLM's own scheduler.
Where nothing is to be done until the next request, the clock is put on.
"""

import json
import os
import sys
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler must be within reach

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmScheduler

from specsim.hardware import load_model
from specsim.reality.clock import Clock, MachineClock
from specsim.reality.torch_engine.speed_probe import Probe, keep_kernels
from specsim.reality.vllm.control import VARIABLE, Control, Controller, Engine
from specsim.reality.vllm.scheduler import FOLDER_VARIABLE, RecordingAsyncScheduler
from specsim.reality.vllm.worker import run_every_size
from specsim.vllm import AsyncScheduler

_EVERY, _WEIGHT = 0.03, 0.5
"""Seconds from one probe to the next, and what the last one counts."""


class ComputeClock(Clock):
    """Seconds that this process computes, at the machine's usual speed, and those skipped.

    What others do to caches and memory slows a model by up to half, and a probe of the same kind of
    work in the same measure. While it is probed, the clock stands still.
    """

    def __init__(self, config: str, dtype: Any) -> None:
        self._probe = Probe(MachineClock(), load_model(config), dtype)
        self._probes = [self._probed()]
        self._usual = self._probes[0]
        self._slowness = 1.0  # of the last pieces of work, relative to the usual
        self._seconds, self._seen = 0.0, time.process_time()
        self._probed_at = 0.0

    def _probed(self) -> float:
        begun = time.process_time()
        self._probe.work()
        return time.process_time() - begun

    def settle(self) -> None:
        """Take what probes have shown so far for usual."""
        self._usual = median(self._probes)
        self._slowness = 1.0

    def now(self) -> float:
        instant = time.process_time()
        self._seconds += (instant - self._seen) / self._slowness
        self._seen = instant
        return self._seconds

    def wait(self, seconds: float) -> None:
        self._seconds += seconds

    def look(self) -> None:
        """See how fast the machine is, if that was long ago."""
        if self.now() - self._probed_at > _EVERY:
            self._probes.append(self._probed())
            self._slowness += _WEIGHT * (self._probes[-1] / self._usual - self._slowness)
            self._seen, self._probed_at = time.process_time(), self._seconds


class Controlled(RecordingAsyncScheduler, AsyncScheduler):
    """vLLM's asynchronous scheduler, controlled, timed and, now and then, recorded."""

    own_seconds = 0.0  # of all that is not vLLM's
    num_steps = sum_k = 0

    def _decide(self, controller: Any, output: Any) -> None:
        super()._decide(controller, output)
        self.num_steps += 1
        self.sum_k += output.num_spec_tokens_to_schedule

    def _or_give_up(self, *what: Any) -> Any:
        begun = time.thread_time()
        found = super()._or_give_up(*what)
        self.own_seconds += time.thread_time() - begun
        return found


def main(path: Path) -> None:
    given = json.loads(path.read_text())
    os.environ[FOLDER_VARIABLE] = f"{path}-start"
    os.environ[VARIABLE] = json.dumps({"policy": "off"})
    keep_kernels()
    engine = LLMEngine.from_engine_args(EngineArgs(**given, scheduler_cls=Controlled))
    scheduler, limits = engine.engine_core.engine_core.scheduler, _limits(given)
    scheduler.stop_run()
    scheduler.clock = ComputeClock(f"{given['model']}/config.json", engine.model_config.dtype)
    run_every_size(engine, [[Random(0).randrange(2, 4096) for _ in range(512)]])
    for line in sys.stdin:
        run = json.loads(line)
        print(json.dumps(answer(engine, scheduler, limits, run)), flush=True)


def answer(engine: Any, scheduler: Any, limits: Engine, run: dict[str, Any]) -> dict[str, Any]:
    """Return what came of a run: seconds, those of each request, and what the policy took."""
    is_plain, folder = run["policy"] is None, run.get("record")
    scheduler.__class__ = VllmScheduler if is_plain else Controlled
    scheduler.own_seconds, scheduler.num_steps, scheduler.sum_k = 0.0, 0, 0
    if not is_plain:
        control = Control(policy=run["policy"], profile=run.get("profile"))
        scheduler.controller = Controller(control, limits)
    if folder:
        scheduler.start_run(Path(folder))
    found = serve(engine, scheduler.clock, run["requests"])
    if folder:
        scheduler.stop_run()
    if run.get("settles"):
        scheduler.clock.settle()
    if scheduler.controller is None:
        raise SystemExit("the policy failed; see above")
    steps = max(1, scheduler.num_steps)
    own_us = 1e6 * scheduler.own_seconds / steps
    return {**found, "own_us_per_step": own_us, "mean_k": scheduler.sum_k / steps}


def _limits(given: dict[str, Any]) -> Engine:
    speculation = given["speculative_config"]
    return Engine(
        method=speculation["method"],
        num_speculative_tokens=speculation["num_speculative_tokens"],
        max_num_seqs=given["max_num_seqs"],
    )


def serve(engine: Any, clock: ComputeClock, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what each request took, seconds, from when it was due."""
    begun, started_at, computed = clock.now(), time.time(), time.process_time()
    waiting, ends = list(enumerate(requests))[::-1], {}
    while waiting or engine.has_unfinished_requests():
        now = clock.now() - begun
        while waiting and waiting[-1][1]["at"] <= now:
            number, request = waiting.pop()
            params = SamplingParams(
                temperature=0.0, max_tokens=request["output_len"], ignore_eos=True, detokenize=False
            )
            prompt = {"prompt_token_ids": request["prompt"]}
            engine.add_request(f"{started_at}-{number}", prompt, params)
        if not engine.has_unfinished_requests():
            clock.wait(max(0.0, waiting[-1][1]["at"] - now))
            continue
        clock.look()
        for output in engine.step():
            if output.finished:
                number = int(output.request_id.rsplit("-", 1)[1])
                ends[number] = clock.now() - begun - requests[number]["at"]
    computed = time.process_time() - computed
    return {
        "seconds": clock.now() - begun,
        "computed": computed,
        "latencies": [ends[n] for n in sorted(ends)],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
