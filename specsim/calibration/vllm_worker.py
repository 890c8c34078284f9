"""Runs workloads on vLLM, in vLLM's own Python; see `specsim.calibration.vllm_runs`."""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler must be within reach

from vllm import EngineArgs, LLMEngine, SamplingParams

from specsim.calibration.clock import MachineClock
from specsim.calibration.probe import PROBE_EVERY, Probe
from specsim.calibration.vllm import FOLDER_VARIABLE

_WARM_UP_REQUESTS = 6
_WARM_UP_TOKENS = 24
_DELAY = 0.05  # seconds between the start of a run and its first arrival


def main(path: Path) -> None:
    """Do what a file says that `record_runs` wrote."""
    spec = json.loads(path.read_text(encoding="utf-8"))
    scratch = Path(tempfile.mkdtemp(prefix="specsim-warm-up-"))
    os.environ[FOLDER_VARIABLE] = str(scratch / "run")
    fixed = {
        "scheduler_cls": "specsim.calibration.vllm.recording_scheduler",
        "disable_log_stats": True,
        "skip_tokenizer_init": True,
    }
    try:
        engine = LLMEngine.from_engine_args(EngineArgs(**{**fixed, **spec["engine_kwargs"]}))
        scheduler = engine.engine_core.engine_core.scheduler
        probe = Probe() if spec["probes"] else None
        if probe is not None:
            scheduler.clock = MachineClock()
        longest = max((run for run in spec["runs"]), key=lambda run: len(run["prompts"]))
        serve(
            engine,
            [0.02 * number for number in range(_WARM_UP_REQUESTS)],
            longest["prompts"][:_WARM_UP_REQUESTS],
            [_WARM_UP_TOKENS] * _WARM_UP_REQUESTS,
        )
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
    """Send requests when they are due, whatever has become of those before, and step till all end.

    Parameters
    ----------
    engine : vllm.LLMEngine
    arrivals : list of float, seconds
    prompts : list of list of int
    output_lens : list of int, tokens
    probe : Probe, optional
        Done between steps, while the clock of the run stands still.
    """
    scheduler = engine.engine_core.engine_core.scheduler
    clock, number, probed_at = scheduler.clock, 0, 0.0
    start = clock.now() + _DELAY
    while number < len(prompts) or engine.has_unfinished_requests():
        now = clock.now() - start
        while number < len(prompts) and arrivals[number] <= now:
            params = SamplingParams(
                temperature=0.0,
                max_tokens=output_lens[number],
                ignore_eos=True,
                detokenize=False,
            )
            prompt = {"prompt_token_ids": prompts[number]}
            due = time.time() - (clock.now() - start - arrivals[number])
            engine.add_request(str(number), prompt, params, arrival_time=due)
            number += 1
        if engine.has_unfinished_requests():
            engine.step()
            if probe is not None and clock.now() - probed_at > PROBE_EVERY:
                probed_at, seconds = probe.run(clock)
                if scheduler.recorder is not None:
                    scheduler.recorder.probed(probed_at, seconds)
        elif number < len(prompts):
            time.sleep(max(0.0, start + arrivals[number] - clock.now()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
