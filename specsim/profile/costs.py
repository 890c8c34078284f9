"""What a step costs: the target's forward pass, each drafter, LoRA adapters, and the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from math import inf
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.blame import held_to, is_shipped
from specsim.core.settings import Settings
from specsim.core.step import Ints, Pieces, StepLoad
from specsim.core.trees import Tree
from specsim.latency import LATENCY, LatencyModel
from specsim.latency.form import Form
from specsim.profile.step_time import (
    BASES,
    HAS_DRAFTER,
    HIDES_OVERHEAD,
    NO_BLOCK,
    NUM_COSTS,
    OVERLAPS,
    BlockPass,
    DraftLoad,
    draft_time,
    overhead_time,
    step_time,
)

Lens = int | list[int] | Ints
Drafts = Lens | Tree | list[Tree]


class DraftCost(Settings):
    """What it costs to draft with one proposer."""

    basis: Literal["pass", "draft", "heads"] = "pass"
    """What `latency` gives the time of. ``pass``: one forward pass of the drafter, k of which make
    a draft of k tokens (one with parallel drafting). ``draft``: a whole draft of any length.
    ``heads``: all heads, which run once, on the last token of each sequence."""
    latency: Annotated[LatencyModel, LATENCY] | None = None
    target_share: float = Field(default=0.0, ge=0)
    """Host time as a share of the target's forward pass."""
    token_us: float = Field(default=0.0, ge=0)
    """Host time per drafted token, microseconds."""
    step_ms: float = Field(default=0.0, ge=0)
    """Host time of each step that drafts (input, sampling, output), milliseconds."""
    request_us: float = Field(default=0.0, ge=0)
    """Host time per sequence of a step that drafts, with or without a draft, microseconds."""
    weights_gib: float = Field(default=0.0, ge=0)
    """Memory of the drafter's own weights per GPU, GiB."""
    kv_bytes_per_token: float = Field(default=0.0, ge=0)
    """Memory of the drafter's own KV entries per token and GPU, bytes."""

    def of_modules(self, count: int) -> Self:
        """Return the cost of `count` modules that draft in turn: a pass is that of one of them."""
        if count == 1:
            return self
        weights, kept = count * self.weights_gib, count * self.kv_bytes_per_token
        return self.model_copy(update={"weights_gib": weights, "kv_bytes_per_token": kept})

    def numbers(self, block: BlockPass, overhead: Sequence[float] = (0.0, 0.0)) -> list[float]:
        """Return all costs but the passes, in the places of `specsim.profile.step_time`."""
        has_latency, basis = float(self.latency is not None), float(BASES.index(self.basis))
        host = (self.target_share, self.token_us * 1e-6, self.step_ms * 1e-3)
        own = (1.0, has_latency, basis, *host, self.request_us * 1e-6)
        return [*overhead, *own, 0.0, *map(float, block)]

    def draft_time(
        self, load: StepLoad, draft_lens: Drafts, target_time: float, block: BlockPass = NO_BLOCK
    ) -> float:
        """Return how long it takes to draft for every sequence of a step, seconds.

        See `specsim.profile.step_time.draft_time`.

        Args:
            load: Load of the target's forward pass, which takes `target_time` seconds.
            draft_lens: One length for all sequences, or one per sequence, tokens.
            block: The passes of a drafter that drafts all tokens at once.
        """
        made, rows = draft_load(load, draft_lens)
        costs = self.numbers(block)
        time: float = draft_time(costs, self.latency, pass_time, made, rows, target_time)
        return time


def pass_time(
    model: LatencyModel, context: int, batched: int, num_requests: int, prefill: int
) -> float:
    """Return how long a forward pass of a latency model lasts, seconds."""
    return asked_time(model, StepLoad(context, batched, num_requests, prefill))


def asked_time(model: LatencyModel, load: StepLoad) -> float:
    """Return the seconds of a forward pass; a PluginError if a user's class returns no duration."""
    return _held_time(model, "forward_time", model.forward_time(load), load)


def check_constant(model: LatencyModel) -> None:
    """Raise a PluginError if a user's class returns different times for the same load."""
    if not is_shipped(model):
        load = StepLoad(8, 1, 1, 0, Pieces([1], [8]))
        times = [asked_time(model, load) for _ in range(2)]
        rule = "the same for the same load, so that all policies meet the same server"
        held_to(model, "forward_time", times, times[0] == times[1], rule)


def _held_time(
    model: LatencyModel, method: str, time: float, load: StepLoad | None = None
) -> float:
    if isinstance(time, float) and 0.0 <= time < inf:  # nearly always
        return time
    if not is_shipped(model):  # NaN and what is negative would leave the clock where it is
        counts = np.broadcast_shapes(*map(np.shape, load[:4])) if load else ()
        held_to(model, method, time, _are_times(time, counts), "seconds, finite and at least 0")
    return time


def _are_times(given: Any, shape: tuple[int, ...]) -> bool:
    """Tell whether something is one duration, or an array of this shape."""
    if isinstance(given, list | tuple):
        return False
    times = np.asarray(given)
    is_number = times.dtype.kind in "fiu" and times.shape in ((), shape)
    return is_number and bool(np.all((times >= 0) & (times < inf)))


def draft_load(load: StepLoad, draft_lens: Drafts) -> tuple[DraftLoad, list[int]]:
    """Return the load of drafting after a step, and how many sequences draft a 1st, 2nd, ... token.

    Args:
        draft_lens: One length for all sequences, or one per sequence, tokens; or trees.
    """
    if isinstance(draft_lens, Tree):
        return _tree_load(load, [draft_lens] * load.num_requests)
    if isinstance(draft_lens, list) and draft_lens and isinstance(draft_lens[0], Tree):
        return _tree_load(load, draft_lens)
    if isinstance(draft_lens, int):
        rows = [load.num_requests] * draft_lens
        return DraftLoad(*load[:4], draft_lens, draft_lens * load.num_requests), rows
    lens = np.asarray(draft_lens, dtype=np.int64)
    longest = int(lens.max(initial=0))
    rows = [int(np.count_nonzero(lens > place)) for place in range(longest)]
    return DraftLoad(*load[:4], longest, int(lens.sum())), rows


def _tree_load(load: StepLoad, trees: list[Tree]) -> tuple[DraftLoad, list[int]]:
    drafted = [tree for tree in trees if tree.num_nodes]
    reads = [sum(read) for read in zip_longest(*(tree.reads for tree in drafted), fillvalue=0)]
    rows = [len(drafted), *reads] if drafted else []
    num_nodes = sum(tree.num_nodes for tree in drafted)
    return DraftLoad(*load[:4], len(rows), num_nodes), rows


class Overhead(Settings):
    """Time of the engine's own code per step: scheduling, input preparation, output handling."""

    step_ms: float = Field(default=0.0, ge=0)
    request_us: float = Field(default=0.0, ge=0)
    """Time per sequence in the step, microseconds."""
    sync_step_ms: float = Field(default=0.0, ge=0)
    """Further time of each step with synchronous scheduling, when the GPU waits for the host."""
    front_ms: float = Field(default=0.0, ge=0)
    """Delay between client and engine, once per request (HTTP and transfer), milliseconds. It
    occupies no resource."""
    front_token_us: float = Field(default=0.0, ge=0)
    """Tokenization time per prompt token, cached or not, microseconds; prompts are tokenized one
    after another (`specsim.engine.front.Front`)."""

    def of_engine(self, *, is_async: bool) -> "Overhead":
        if is_async or not self.sync_step_ms:
            return self
        return self.model_copy(update={"step_ms": self.step_ms + self.sync_step_ms})

    @property
    def numbers(self) -> list[float]:
        """Seconds per step and per sequence: the first places of `specsim.profile.step_time`."""
        return [self.step_ms * 1e-3, self.request_us * 1e-6]


LORA_STEP, LORA_TOKEN, LORA_LOAD, LORA_READ = range(4)
"""Places in `AdapterCost.numbers`."""


class AdapterCost(Settings):
    """Times that LoRA adapters of one rank add to the target's forward pass.

    Their memory is part of the profile's `reserved_gib`: vLLM reserves room for `max_loras`
    adapters when it starts.
    """

    step_ms: float = Field(default=0.0, ge=0)
    """Time added to a step that serves any adapter: kernel launches and matrix products."""
    token_us: float = Field(default=0.0, ge=0)
    """Time added per batched token of sequences with an adapter."""
    load_ms: float = Field(default=0.0, ge=0)
    """Time to copy an adapter from host memory to the GPU, for which the step waits."""
    read_ms: float = Field(default=0.0, ge=0)
    """Time to read an adapter into host memory, before it is copied to the GPU."""

    @property
    def numbers(self) -> list[float]:
        """The four times in seconds, in the order of `LORA_STEP` to `LORA_READ`."""
        milliseconds = [self.step_ms, self.token_us * 1e-3, self.load_ms, self.read_ms]
        return [value * 1e-3 for value in milliseconds]


@dataclass(frozen=True)
class CompiledCosts:
    """The cost model as numbers, from which loops compute step times."""

    target: Form | None  # None: the latency model is Python
    drafter: Form | None  # None: the drafter's is, or there is none
    numbers: NDArray[np.float64]  # `StepCosts.numbers`
    drafts: bool  # whether loops can compute drafting times from these


@dataclass(frozen=True)
class StepCosts:
    """Target forward pass, drafting and overhead of one step.

    T_batch = T_target + T_draft (Liu et al. 2024, "SmartSpec", eq. 4), plus the engine's overhead.
    """

    target: LatencyModel
    drafts: tuple[DraftCost, ...]  # one for each drafter; empty without speculation
    overhead: Overhead
    adapters: AdapterCost = field(default_factory=AdapterCost)
    expands_batch: bool = False
    """Batch expansion: each draft token is verified as a sequence of its own, with its context."""
    overlaps: bool = False  # whether the drafter runs while the target does
    hides_overhead: bool = False  # whether the engine's overhead passes while the GPU works
    block: BlockPass = NO_BLOCK

    @cached_property
    def numbers(self) -> list[float]:
        """All costs but the forward passes, in the places of `specsim.profile.step_time`."""
        overhead = self.overhead.numbers
        numbers = [*overhead, *[0.0] * (NUM_COSTS - len(overhead))]
        if self.drafts:
            numbers[:HIDES_OVERHEAD] = self.drafts[0].numbers(self.block, overhead)
            numbers[OVERLAPS] = float(self.overlaps)
        numbers[HIDES_OVERHEAD] = float(self.hides_overhead)
        return numbers

    def compiled(self) -> CompiledCosts:
        """Return the numbers for loops; with several drafters, without those of drafting."""
        (target, drafter), numbers = self._forms, np.array(self.numbers)
        is_compiled = len(self.drafts) < 2 and (self._own_latency is None or drafter is not None)
        if len(self.drafts) > 1:
            numbers[HAS_DRAFTER:HIDES_OVERHEAD] = 0.0
        return CompiledCosts(target, drafter, numbers, drafts=is_compiled)

    @property
    def _own_latency(self) -> LatencyModel | None:
        """The latency model of the only drafter."""
        return self.drafts[0].latency if len(self.drafts) == 1 else None

    @cached_property
    def _forms(self) -> tuple[Form | None, Form | None]:
        """The forms of target and drafter, kept since every replica of a run needs them."""
        latency = self._own_latency
        check_constant(self.target)
        return self.target.form(), None if latency is None else latency.form()

    def target_time(self, load: StepLoad) -> float:
        """Return the duration of the target's forward pass, seconds; 0 for an empty step."""
        return asked_time(self.target, load) if load.batched_tokens else 0.0

    def lock_step_time(self, loads: Sequence[StepLoad]) -> float:
        if self.target.waits_for_slowest:  # checked one by one: a maximum would hide NaN
            times = [asked_time(self.target, load) for load in loads]
            return self.time_of_ranks(times, [load.batched_tokens for load in loads])
        return _held_time(self.target, "lock_step_time", self.target.lock_step_time(loads))

    def time_of_ranks(self, times: Sequence[float], tokens: Sequence[int]) -> float:
        return _held_time(self.target, "time_of_ranks", self.target.time_of_ranks(times, tokens))

    def draft_time(
        self, load: StepLoad, draft_lens: Drafts, target_time: float, drafter: int = 0
    ) -> float:
        """Return the duration of drafting after a step, seconds; see `DraftCost.draft_time`.

        Args:
            drafter: Number of the drafter, if there are several.
        """
        if not self.drafts or not load.batched_tokens:
            return 0.0
        return self.drafts[drafter].draft_time(load, draft_lens, target_time, self.block)

    def overhead_time(self, num_requests: int) -> float:
        return overhead_time(self.numbers, num_requests) if num_requests else 0.0

    @property
    def drafts_at_one_cost(self) -> bool:
        """Whether drafting takes the same time whatever the length of the drafts."""
        if not self.drafts:
            return True
        draft = self.drafts[0]
        is_one_pass = draft.latency is None or draft.basis != "pass" or self.block.passes > 0
        return not draft.token_us and is_one_pass

    def step_time(self, load: StepLoad, draft_lens: Drafts) -> float:
        """Return an estimate of the seconds of a step with this load and these drafts.

        `load.context_tokens` counts each sequence's context once. Under batch expansion each
        batched token reads the context of its sequence, which is taken to be of mean length.
        """
        verified = load
        if self.expands_batch and load.num_requests:
            # May be fractional, or an array: see `step_times`.
            reads: Any = load.batched_tokens / load.num_requests
            verified = load._replace(context_tokens=load.context_tokens * reads)
        target_time = asked_time(self.target, verified)
        made, rows = draft_load(load, draft_lens)
        drafter = self.drafts[0].latency if self.drafts else None
        time: float = step_time(self.numbers, drafter, pass_time, made, rows, target_time)
        return time

    def step_times(
        self, load: StepLoad, batched_tokens: Ints, draft_lens: Lens
    ) -> NDArray[np.float64]:
        """Return the seconds of steps that differ from `load` in batched tokens, shape (n,)."""
        # Latency models take arrays in place of numbers (`LatencyModel.forward_time`).
        many: Any = batched_tokens
        loads = load._replace(batched_tokens=many)
        times: NDArray[np.float64] = np.asarray(self.step_time(loads, draft_lens))
        return times
