"""TorchEngine: a model in memory that can be profiled and can serve experiments.

Experiments are served on the wall clock by the engine and policies of a simulation.
"""

import gc
import logging
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from specsim.core.errors import CapacityError, ConfigError, InvariantError
from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.engine.order import CHARGE_DRAFTS, CHARGE_FORWARD, TAKE_IN, VERIFY, WAIT
from specsim.engine.replica import Replica
from specsim.engine.setup import Wiring
from specsim.engine.table import FINISHED, WAITING
from specsim.engine.view import StepView
from specsim.hardware import GIB, ModelShape
from specsim.profile import Profile
from specsim.reality.calibration.torch_subject import Served, TorchPlan
from specsim.reality.profile_fit.grid import GridPoint, Sample
from specsim.reality.torch_engine.attention import Span
from specsim.reality.torch_engine.model import (
    Llama,
    PassShape,
    Recipe,
    Record,
    batch_sizes,
    check_shape,
    cuda_graphs,
    out_of_memory,
    random_weights,
)
from specsim.reality.torch_engine.model_runner import ModelRunner, PassRow, measure
from specsim.reality.torch_engine.speed_probe import Timing, keep_kernels
from specsim.results.records import Deliveries, ReplicaRecords
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.experiment import Experiment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheRoom:
    """The room in the KV caches."""

    max_num_seqs: int
    max_model_len: int
    max_draft_len: int

    @property
    def slot_len(self) -> int:
        """Length of a sequence's row, tokens: its text, and drafts beyond its end."""
        return self.max_model_len + 2 * self.max_draft_len + 1

    @property
    def target_shapes(self) -> list[PassShape]:
        """Passes of the target in steps without prefill, with drafts of equal length."""
        return [
            PassShape(num, span_len, span_len)
            for span_len in range(1, self.max_draft_len + 2)
            for num in batch_sizes(self.max_num_seqs)
        ]

    @property
    def draft_shapes(self) -> list[PassShape]:
        """Passes of the draft model: after such a step, drafting or not, then token by token."""
        return [
            PassShape(num, span_len, num_asked)
            for span_len in range(1, self.max_draft_len + 2)
            for num_asked in (0, 1)
            for num in batch_sizes(self.max_num_seqs)
        ]


class TorchEngine:
    """A target and a draft model on one device, with room for a number of sequences.

    The seed of the weights' recipe also draws the prompts.
    """

    def __init__(
        self,
        shape: ModelShape,
        device: torch.device,
        dtype: torch.dtype,
        limits: CacheRoom,
        recipe: Recipe,
    ) -> None:
        self.shape, self.device, self.limits = shape, device, limits
        self._dtype, self._recipe = dtype, recipe
        self._weights = weights = random_weights(shape, recipe, device, dtype)
        room = {"num_slots": limits.max_num_seqs, "slot_len": limits.slot_len}
        self.target = Llama(shape, weights, **room)
        first = weights.layers[: recipe.num_draft_layers]
        self.draft = Llama(shape, replace(weights, layers=first), **room)
        self._timing = Timing.of(device, shape, dtype)
        self._recorded = self.record(cuda_graphs(device)) if device.type == "cuda" else {}

    def record(self, record: Record) -> dict[str, str]:
        """Record passes of both models; return how many are used, for `description`."""
        models = ((self.target, self.limits.target_shapes), (self.draft, self.limits.draft_shapes))
        try:
            for model, shapes in models:
                if model.can_be_recorded:
                    model.record(shapes, record, self._timing.timer)
        except torch.OutOfMemoryError:
            log.warning("memory ends while passes are recorded; the rest runs unrecorded")
        except RuntimeError as error:
            log.warning("a pass cannot be recorded, nor will others be: %s", str(error)[:120])
        kept = sum(model.recordings.num_kept for model, _ in models)
        asked = sum(len(shapes) for _, shapes in models)
        return {"recorded_passes": f"{kept} of {asked} shapes; the others run unrecorded"}

    @property
    def description(self) -> dict[str, Any]:
        """The engine and its device, for ``meta.json``."""
        return {
            "engine": f"specsim torch engine, PyTorch {torch.__version__}",
            "model": self.shape.name,
            "hardware": {
                "device": str(self.device),
                "device_name": _device_name(self.device),
                "threads": torch.get_num_threads(),
                "num_cpus": os.cpu_count(),
            },
            "dtype": str(self._dtype).removeprefix("torch."),
            "draft": f"the first {self._recipe.num_draft_layers} of {self.shape.num_hidden_layers} "
            f"layers; the deeper ones write {self._recipe.deep_scale:g} times as much",
            **self._recorded,
        }

    @property
    def drafter_kv_bytes(self) -> float:
        """KV cache of the draft model, bytes per token; its weights are the target's."""
        shape = self.shape
        width = shape.num_key_value_heads * shape.head_dim * self._dtype.itemsize
        return float(2 * self._recipe.num_draft_layers * width)

    def warm_up(self, max_batched_tokens: int) -> None:
        """Run a pass of every number of tokens; see `keep_kernels`."""
        layers = self._weights.layers[:1]  # all layers have matrices of the same shapes
        layer = replace(self._weights, layers=layers)
        model = Llama(self.shape, layer, num_slots=1, slot_len=max_batched_tokens)
        most_asked = self.limits.max_num_seqs * (self.limits.max_draft_len + 1)
        for num in range(1, max_batched_tokens + 1):
            asked = range(num if num <= most_asked else 0)
            model.next_tokens([Span(0, 0, np.zeros(num, np.int64), asked)])

    def prompt(self, request: Request) -> NDArray[np.int64]:
        """Return the prompt of a request: as recorded, or random tokens of its own."""
        if request.prompt_token_ids is not None:
            return request.prompt_token_ids
        rng = generator(self._recipe.seed, "prompt", str(request.index))
        return rng.integers(0, self.shape.vocab_size, request.prompt_len)

    def serve(
        self,
        experiment: Experiment,
        profile: Profile,
        requests: list[Request],
        *,
        is_synthetic: bool,
    ) -> Served:
        """Serve what `specsim.run.simulate.simulate` simulates, with the same arguments.

        Args:
            experiment: One replica, synchronous, method ``draft_model`` or none.
            profile: The step times that a policy believes in.
            requests: In order of arrival, by index.
            is_synthetic: Whether drafts are accepted by ``experiment.acceptance``, with the luck of
                a simulation with the same seed; otherwise the target decides.
        """
        deployment = Deployment.of(experiment, profile)
        drafting, synthetic = Drafting(experiment, deployment, requests), is_synthetic
        runner, timing = self._runner(), self._timing
        server = WallClockServer(runner, deployment, drafting, timing, is_synthetic=synthetic)
        with out_of_memory(f"serving {len(requests):,} requests", self.device):
            return server.serve(requests, self.prompt)

    def measure(self, points: Iterable[GridPoint]) -> Iterator[Sample]:
        runner, probe = self._runner(), self._timing.probe
        for point in points:
            probed_at, seconds = probe.run() if probe is not None else (0.0, 0.0)
            with out_of_memory(f"a step of {point.load.batched_tokens} tokens", self.device):
                sample = measure(runner, point, self.shape.vocab_size)
            yield sample._replace(probed_at=probed_at, probe_seconds=seconds)

    def _runner(self) -> ModelRunner:
        room = {"num_slots": self.limits.max_num_seqs, "slot_len": self.limits.slot_len}
        return ModelRunner(self.target, self.draft, self._timing.timer, **room)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


_REPEATS = 20


def build_engine(
    shape: ModelShape, device_name: str, plan: TorchPlan, *, threads: int, seed: int
) -> TorchEngine:
    """Return an engine with random weights on ``cpu``, with `threads` threads, or on ``cuda``.

    A quarter of the layers are the draft model; there is room for what the plan needs. Raises a
    ConfigError if there is no such device, or the engine does not support a part of the model; a
    CapacityError if the model does not fit.
    """
    check_shape(shape)
    if device_name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: PyTorch sees no GPU here; install a CUDA build of it on a machine with "
            "one, or use --device cpu"
        )
    keep_kernels()
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    dtype = torch.bfloat16 if device_name == "cuda" else _faster_dtype(shape)
    limits = CacheRoom(plan.max_num_seqs, plan.max_model_len, plan.max_draft_len)
    recipe = Recipe(num_draft_layers=max(1, shape.num_hidden_layers // 4), seed=seed)
    if device_name == "cpu":
        _check_memory(shape, dtype)
    engine = TorchEngine(shape, device, dtype, limits, recipe)
    if device_name == "cpu":
        engine.warm_up(plan.grid.max_batched_tokens)
    return engine


def _check_memory(shape: ModelShape, dtype: torch.dtype) -> None:
    """Raise an error for models that Linux would accept and then kill the process for."""
    needed = shape.num_parameters * dtype.itemsize
    left = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > left:
        raise CapacityError(
            f"--model {shape.name}: its weights take {needed / GIB:.1f} GiB and this machine has "
            f"{left / GIB:.1f} GiB left; choose a smaller model"
        )


def _faster_dtype(shape: ModelShape) -> torch.dtype:
    """Return the dtype in which this CPU multiplies weights by 16 tokens faster."""
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        weights = torch.ones(shape.intermediate_size, shape.hidden_size, dtype=dtype)
        tokens = torch.ones(16, shape.hidden_size, dtype=dtype)
        for repeat in range(_REPEATS):
            if repeat == _REPEATS // 4:
                started_at = perf_counter()
            functional.linear(tokens, weights)
        times[dtype] = perf_counter() - started_at
    return min(times, key=lambda dtype: times[dtype])


_SPIN = 1e-3  # seconds of watching the clock before an arrival, since sleeping is inexact


class WallClockServer:
    """One run of one engine; steps are scheduled one after another.

    The engine is that of a simulation. Where it would compute a duration, the server does the work
    and reads the clock. Drafting chooses draft lengths and, if acceptance is synthetic, what is
    accepted, whatever the models compute. Runner and drafting must be new.
    """

    def __init__(
        self,
        runner: ModelRunner,
        deployment: Deployment,
        drafting: Drafting,
        timing: Timing,
        *,
        is_synthetic: bool,
    ) -> None:
        self._runner = runner
        self._speculates = deployment.proposer is not None
        self._clock, self._probe = timing.clock, timing.probe
        self._requests: list[Request] = []
        self._prompts: list[NDArray[np.int64]] = []
        self._agreed_lens: list[int] = []
        self._start = self._probed_at = self._overhead = 0.0
        self.served = Served()
        self._deliveries = Deliveries.room_for(drafting.facts.rows["output_len"])
        wiring = Wiring(
            facts=drafting.facts,
            records=ReplicaRecords(deployment.max_draft_len),
            fates=drafting.survival_lens if len(drafting.survival_lens) else None,
            offers=drafting.offers,
            deliveries=self._deliveries,
            observers=[self],
        )
        verbs = {
            TAKE_IN: self._take_in,
            CHARGE_FORWARD: self._run_target,
            CHARGE_DRAFTS: self._run_draft,
            WAIT: self._wait,
        }
        if not is_synthetic:
            verbs[VERIFY] = self._verify
        self._replica = Replica(
            deployment.setup, deployment.costs, drafting.start(0), wiring, verbs=verbs
        )

    def serve(
        self, requests: list[Request], prompt: Callable[[Request], NDArray[np.int64]]
    ) -> Served:
        """Serve the requests of `drafting` as they arrive, in seconds after the call."""
        self._requests = requests
        self._prompts = [prompt(request) for request in requests]  # before the clock runs
        replica = self._replica
        arrived_at = np.array([request.arrived_at for request in requests], dtype=np.float64)
        replica.submit_all(np.arange(len(requests)), arrived_at)
        gc.collect()
        gc.disable()  # no garbage collection during a step
        try:
            self._start = self._clock.now()
            replica.advance(inf)
        finally:
            gc.enable()
        return self.served

    def _now(self) -> float:
        return self._clock.now() - self._start

    def _see_speed(self, now: float) -> None:
        """Probe the machine's speed, if due, with the clock stopped."""
        if self._probe is not None and now - self._probed_at > self._probe.every:
            at, seconds = self._probe.run()
            self._probed_at = at - self._start
            self.served.probes.append((self._probed_at, seconds))

    def _wait_until(self, instant: float) -> None:
        while (left := instant - self._now()) > 0:
            if left > _SPIN:
                sleep(left - _SPIN)

    # The verbs that take time replace the engine's own below.

    def _take_in(self) -> None:
        replica = self._replica
        self._wait_until(replica.now)  # the next arrival, if there is nothing to do before
        replica.now = now = self._now()
        if replica.next_arrival_at <= now:
            replica.verbs.take_in()
        if replica.has_unfinished:
            self._see_speed(now)
        replica.now = self._now()

    def _run_target(self) -> None:
        step = self._replica.step
        self._release_preempted(step)
        if not step.size:
            return
        for request in step.requests[step["is_admitted"] == 1].tolist():
            self._runner.add(request, self._prompts[request])
        self._agreed_lens = self._runner.verify(_rows(step))
        step.record["target_time"] = self._runner.target_time
        step.record["overhead_time"] = self._overhead  # of the previous step; its own is not over

    def _release_preempted(self, step: StepView) -> None:
        if step.record["preemptions"]:
            sequences: Any = self._replica.table.sequences
            is_mine = sequences["status"] == WAITING
            is_mine &= sequences["preempted_in"] == step.record["index"]
            for request in sequences["request"][is_mine].tolist():
                self._runner.release(request)

    def _verify(self) -> None:
        self._replica.step["accepted_len"][:] = self._agreed_lens

    def _run_draft(self) -> None:
        step = self._replica.step
        if not step.size:
            return
        accepted_lens = step["accepted_len"].tolist()
        self._runner.accept(accepted_lens)
        if not self._speculates:
            return
        self._runner.draft(accepted_lens, step["asked_len"].tolist())
        step.record["draft_time"] = self._runner.draft_time

    def _wait(self) -> None:
        replica, step = self._replica, self._replica.step
        if not (step.size or step.record["preemptions"]):
            # Nothing can run before the next arrival.
            if replica.next_arrival_at == inf:
                raise InvariantError("requests are left that can never run")
            self._wait_until(replica.next_arrival_at)
        replica.now = self._now()

    # As an observer it records what has been served.

    def scheduled(self, step: StepView) -> None:
        """Do nothing: the server ran this step itself."""

    def delivered(self, step: StepView) -> None:
        """Record a step that has come back, and the requests that ended in it."""
        if not step.size:
            return
        sequences: Any = step.table.sequences
        for row in step.rows[step.of_sequences("status") == FINISHED].tolist():
            self._note_request(sequences[row])
        self._note_step(step)

    def _note_request(self, sequence: Any) -> None:
        request = self._requests[int(sequence["request"])]
        prompt_len, known_len = int(sequence["prompt_len"]), int(sequence["known_len"])
        answer = self._runner.end(request.index, prompt_len, known_len)
        made = self._deliveries
        first = made.starts[request.index]
        mine = slice(first, first + sequence["deliveries"])
        columns = (made.at, made.lens, made.drafted, made.accepted)
        times, lens, drafted, accepted = (column[mine].tolist() for column in columns)
        drafts = zip(accumulate(lens, initial=0), drafted, accepted, strict=False)
        self.served.requests.append(
            {
                "request_id": f"request-{request.index}",
                "input_toks": prompt_len,
                "output_toks": len(answer),
                "arrival_time": request.arrived_at,
                "queued_ts": request.arrived_at,
                "scheduled_ts": float(sequence["first_scheduled_at"]),
                "first_token_ts": times[0],
                "last_token_ts": times[-1],
                "deliveries": list(zip(times, lens, strict=True)),
                "accepted": [draft for draft in drafts if draft[1]],
                "preemptions": int(sequence["preemptions"]),
                "output_tok_ids": answer,
            }
        )

    def _note_step(self, step: StepView) -> None:
        record, load = step.record, step.load
        scheduled_at, target_time, draft_time = (
            float(record[name]) for name in ("scheduled_at", "target_time", "draft_time")
        )
        ended_at = self._now()  # includes recording: a server's answers take time as well
        seconds = ended_at - scheduled_at
        self._overhead = seconds - target_time - draft_time
        self.served.target_seconds.append(target_time)
        self.served.steps.append(
            {
                "started_at": scheduled_at,
                "seconds": seconds,
                "context_tokens": load.context_tokens,
                "batched_tokens": load.batched_tokens,
                "num_requests": load.num_requests,
                "prefill_tokens": load.prefill_tokens,
                "draft_tokens": int(step["verified_len"].sum()),
                "accepted_tokens": int(step["accepted_len"].sum()),
                "num_waiting": int(record["num_waiting"]),
                "free_blocks": int(record["free_blocks"]),
                "draft_seconds": draft_time,
                "made_drafts": int(step["asked_len"].max()),
            }
        )


def _rows(step: StepView) -> list[PassRow]:
    """Return what the sequences of a step read, without trimmed drafts."""
    trimmed_lens = step["draft_len"] - step["verified_len"]
    columns = (
        step["request"],
        step["start"],
        step["start"] + step["scheduled_len"] - trimmed_lens,
        step.of_sequences("known_len"),
        step["verified_len"],
        step["is_partial"] == 1,
        step["is_padded"] == 1,
    )
    return [PassRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
