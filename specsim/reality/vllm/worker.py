"""Runs workloads on vLLM, in vLLM's own Python; see `specsim.reality.vllm.record_runs`."""

import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # keeps the scheduler in this process

from vllm import EngineArgs, LLMEngine, SamplingParams

from specsim.hardware import load_model
from specsim.reality.clock import MachineClock
from specsim.reality.torch_engine.speed_probe import Probe, keep_kernels
from specsim.reality.vllm.scheduler import FOLDER_VARIABLE

_WARM_UP_REQUESTS, _WARM_UP_TOKENS, _WARM_UP_STEPS = 6, 24, 3


def main(path: Path) -> None:
    """Run the workloads in a file that `record_runs` wrote."""
    spec = json.loads(path.read_text(encoding="utf-8"))
    scratch = Path(tempfile.mkdtemp(prefix="specsim-warm-up-"))
    os.environ[FOLDER_VARIABLE] = str(scratch / "run")
    fixed = {
        "scheduler_cls": "specsim.reality.vllm.scheduler.recording_scheduler",
        "disable_log_stats": True,
        "skip_tokenizer_init": True,
    }
    try:
        keep_kernels()
        engine = LLMEngine.from_engine_args(EngineArgs(**{**fixed, **spec["engine_kwargs"]}))
        scheduler = engine.engine_core.engine_core.scheduler
        probe = None
        if spec["probes"]:
            scheduler.clock = MachineClock()
            shape = load_model(f"{spec['engine_kwargs']['model']}/config.json")
            probe = Probe(scheduler.clock, shape, engine.model_config.dtype)
        prompts = max((run["prompts"] for run in spec["runs"]), key=len)
        count = _WARM_UP_REQUESTS
        arrivals = [0.02 * number for number in range(count)]
        serve(engine, arrivals, prompts[:count], [_WARM_UP_TOKENS] * count)
        if spec["probes"]:
            run_every_size(engine, prompts)
        for run in spec["runs"]:
            engine.reset_prefix_cache()
            scheduler.start_run(Path(run["folder"]))
            serve(engine, run["arrivals"], run["prompts"], run["output_lens"], probe)
            scheduler.stop_run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def serve(
    engine: Any,
    arrivals: list[float],
    prompts: list[list[int]],
    output_lens: list[int],
    probe: Probe | None = None,
) -> None:
    """Send requests at their arrival times, s, and step the engine until all have ended.

    Probes run between steps, while the clock of the run stands still.
    """
    scheduler = engine.engine_core.engine_core.scheduler
    clock, number, probed_at = scheduler.clock, 0, 0.0
    start = clock.now() + 0.05  # seconds between the start of a run and its first arrival
    while number < len(prompts) or engine.has_unfinished_requests():
        now = clock.now() - start
        while number < len(prompts) and arrivals[number] <= now:
            due = time.time() - (clock.now() - start - arrivals[number])
            _add(engine, number, prompts[number], output_lens[number], due)
            number += 1
        if engine.has_unfinished_requests():
            engine.step()
            if probe is not None and clock.now() - probed_at > probe.every:
                probed_at, seconds = probe.run()
                if scheduler.recorder is not None:
                    scheduler.recorder.probed(probed_at, seconds)
        elif number < len(prompts):
            time.sleep(max(0.0, start + arrivals[number] - clock.now()))


def run_every_size(engine: Any, prompts: list[list[int]]) -> None:
    """Run a step of every number of tokens and of sequences; see `keep_kernels`."""
    scheduler = engine.engine_core.engine_core.scheduler
    tokens = [token for prompt in prompts for token in prompt]
    most = min(scheduler.max_num_scheduled_tokens, scheduler.max_model_len - 1)
    for num in range(1, most + 1):
        # With different tokens, so that no prefix is cached.
        _run_together(engine, [random.Random(num).choices(tokens, k=num)], 1)
    for num in range(2, scheduler.max_num_running_reqs + 1):
        short = [random.Random(place).choices(tokens, k=2) for place in range(num)]
        _run_together(engine, short, _WARM_UP_STEPS)


def _run_together(engine: Any, prompts: list[list[int]], output_len: int) -> None:
    for number, prompt in enumerate(prompts):
        _add(engine, number, prompt, output_len, time.time())
    while engine.has_unfinished_requests():
        engine.step()


def _add(engine: Any, number: int, prompt: list[int], output_len: int, arrived_at: float) -> None:
    params = SamplingParams(
        temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False
    )
    engine.add_request(str(number), {"prompt_token_ids": prompt}, params, arrival_time=arrived_at)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
