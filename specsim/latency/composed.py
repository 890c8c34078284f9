"""Step times composed from kernels that were measured on a GPU, in a form that loops evaluate."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf
from typing import Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from specsim.core.compiled import as_records
from specsim.core.errors import ProfileError
from specsim.core.settings import Settings
from specsim.core.step import StepLoad
from specsim.hardware.cuda_graphs import USUAL_LARGEST, capture_sizes
from specsim.latency import LatencyModel
from specsim.latency.form import COMPOSED, GROUP_LEN, HEAD_LEN, NO_WINDOW, Form, composed_time
from specsim.latency.measured import check_rising, check_table

Times = NDArray[np.float64]

_ENTRY = np.dtype(
    [(name, "i8") for name in ("start", "scheduled_len", "draft_len", "verified_len")]
)


class Curve(Settings):
    """Times on a rising axis: linear between points, with the last slope beyond the last one."""

    at: tuple[PositiveInt, ...] = Field(min_length=2)
    times_us: tuple[NonNegativeFloat, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_rising("at", self.at)
        if len(self.times_us) != len(self.at):
            raise ValueError(f"times_us: has {len(self.times_us)} values for {len(self.at)} points")
        return self

    def times_at(self, places: Sequence[float]) -> list[float]:
        (start, end), (first, last) = self.at[-2:], self.times_us[-2:]
        beyond = np.maximum(np.array(places) - end, 0.0)
        times = np.interp(places, *self._points) + beyond * (last - first) / (end - start)
        found: list[float] = times.tolist()
        return found

    @cached_property
    def _points(self) -> tuple[Times, Times]:
        return np.array(self.at, dtype=np.float64), np.array(self.times_us)


class AttentionLayers(Settings):
    """Attention of the layers that are alike: how many, their window, and measured times."""

    num_layers: int = Field(gt=0)
    window: int | None = Field(default=None, gt=0)
    """Tokens of context that a query attends to; None: all."""
    tile: int = Field(default=64, gt=0)
    """Query tokens of a sequence that the kernel computes at once, used or not. 64 in
    FlashAttention 2, which gives each query head rows of its own; 128 over the query heads per
    key-value head in FlashAttention 3, which packs them."""
    context_tokens: tuple[PositiveInt, ...] = Field(min_length=2)
    """Context tokens per sequence, rising: the row axis of `decode_us`."""
    sequences: tuple[PositiveInt, ...] = Field(min_length=2)
    """Sequences in the step, rising: the column axis of `decode_us`."""
    decode_us: tuple[tuple[NonNegativeFloat, ...], ...]
    """Time of one layer's attention in decodes, by context tokens (rows) and sequences."""
    prompt: Curve
    """Time of one layer's attention over a whole prompt, by its tokens."""
    decode_pair_us: NonNegativeFloat | None = None
    """Time per pair of query and key where drafts are verified, one layer; by default that of a
    long prompt."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_table(self, "context_tokens", "sequences", "decode_us")
        if self.prompt.at[-1] <= (self.window or 0):
            raise ValueError(
                f"prompt.at ends at {self.prompt.at[-1]}, within the window of {self.window} "
                "tokens; measure a longer prompt"
            )
        return self

    @property
    def pair_us(self) -> float:
        """Time per pair of query and key in a long prompt, one layer, microseconds."""
        ends = np.array(self.prompt.at[-2:], dtype=float)
        start, end = self.prompt.times_us[-2:]
        if self.window is None:
            return float(max(0.0, end - start) * 2 / (ends[1] ** 2 - ends[0] ** 2))
        return float(max(0.0, end - start) / ((ends[1] - ends[0]) * self.window))


EAGER_LAYER_US = 800.0
"""Host time to launch the kernels of an uncompiled layer one by one; experiments/silicon."""


@final
class Composed(LatencyModel):
    """The sum of a step's kernels: matrices by batched tokens, attention sequence by sequence.

    Matrices, norms, all-reduces and experts depend on the batched tokens only, the LM head on the
    tokens that are sampled after. Attention of decodes is measured on a grid of sequences and their
    mean context, that of prompts on whole ones; all prompts of a step are launched once. A chunk of
    a prompt takes as long as a prompt that ends with it less one that ends before it, and no less
    than a prompt of its length.

    Drafts are verified as several query tokens on a long context: that takes as long as reading the
    context does, or as computing the kernel's tiles, of which the few query tokens fill a part.
    `specsim profile build` makes it from kernel tables.
    """

    kind: Literal["composed"] = "composed"
    examples = (
        {
            "batched_tokens": [1, 256, 8192],
            "read_us": [6000, 6000, 6000],
            "compute_us": [0, 1500, 90_000],
            "head": {"at": [1, 256], "times_us": [300, 400]},
            "attention": [
                {
                    "num_layers": 32,
                    "context_tokens": [1, 1024, 8192],
                    "sequences": [1, 64],
                    "decode_us": [[8, 10], [9, 110], [15, 900]],
                    "prompt": {"at": [16, 1024, 8192], "times_us": [8, 60, 3000]},
                }
            ],
        },
    )
    batched_tokens: tuple[PositiveInt, ...] = Field(min_length=2)
    """Batched tokens of a step, rising: the axis of `read_us` and `compute_us`."""
    read_us: tuple[NonNegativeFloat, ...]
    """Time to read weights, all layers: the time of a step with one token, plus that of further
    experts."""
    compute_us: tuple[NonNegativeFloat, ...]
    """Further time that depends on the batched tokens, all layers."""
    head: Curve
    """Time of LM head and sampling, by the number of positions whose logits are computed."""
    attention: tuple[AttentionLayers, ...] = Field(min_length=1)
    data_parallel_size: int = Field(default=1, gt=0)
    """Ranks that share the experts, for which the times were composed, with equal tokens each."""
    enable_expert_parallel: bool = False
    """Whether the times were composed for whole experts on each GPU."""
    shared: Curve | None = None
    """Part of `read_us` and `compute_us` that depends on the tokens of all ranks (experts, and the
    exchange of tokens with them), by the tokens of one rank if all have as many."""
    samples_drafts: bool = True
    """Whether logits are computed at every token of a decode, as a target does to verify drafts;
    False: at the last token of each sequence only, as a drafter does."""
    capture_sizes: tuple[PositiveInt, ...] | None = None
    """Sizes of the CUDA graphs, tokens, to which a step is padded; by default those of the engine
    if `eager_at_least_us` is known, else vLLM's up to 512. Empty: no graphs are captured."""
    fixed_us: NonNegativeFloat = 0.0
    """Time of each pass besides its kernels."""
    prompts_at_least_us: NonNegativeFloat = 0.0
    """Host time to launch the kernels of a pass with prompts one by one, if CUDA graphs were
    captured for decodes only; the pass takes at least that."""
    decodes_at_least_us: NonNegativeFloat = 0.0
    """Host time to launch a pass without prompts, if no CUDA graphs were captured, likewise."""
    eager_at_least_us: NonNegativeFloat = 0.0
    """Host time to launch a pass larger than the largest of `capture_sizes`, likewise."""
    read_factor: PositiveFloat = 1.0
    """Factor on `read_us`; like all factors 1 unless fitted to runs."""
    expert_factor: PositiveFloat = 1.0
    """Factor on the part of `read_us` for further experts, since their number and reading speed in
    real runs differ from the measurement."""
    compute_factor: PositiveFloat = 1.0
    """Factor on `compute_us`."""
    decode_factor: PositiveFloat = 1.0
    """Factor on attention of decodes."""
    verify_factor: PositiveFloat = 1.0
    """Factor on the tiles that verify drafts."""
    prompt_factor: PositiveFloat = 1.0
    """Factor on attention of prompts."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_rising("batched_tokens", self.batched_tokens)
        for name in ("read_us", "compute_us"):
            if len(getattr(self, name)) != len(self.batched_tokens):
                raise ValueError(f"{name}: must have one time per number of batched_tokens")
        check_rising("capture_sizes", self.capture_sizes or ())
        if not self.read_us[0] + self.compute_us[0]:
            raise ValueError("read_us and compute_us both begin with 0: a pass must take time")
        return self

    @property
    def uses_pieces(self) -> bool:
        return True

    def in_lock_step(self, data_parallel_size: int, *, expert_parallel: bool) -> Self:
        """Return the model unchanged; a ProfileError if it was composed for other ranks."""
        own = (self.data_parallel_size, self.enable_expert_parallel)
        if own != (data_parallel_size, expert_parallel):
            raise ProfileError(
                f"engine.data_parallel_size = {data_parallel_size}, enable_expert_parallel = "
                f"{expert_parallel}: the profile was composed for {own[0]}, {own[1]}; build it "
                "anew (specsim profile build --dp, --ep)"
            )
        return self

    def time_of_ranks(self, times: Sequence[float], tokens: Sequence[int]) -> float:
        """Return the time of the slowest rank, each with its share of the tokens of all.

        Where there is a CUDA graph for the most tokens, all ranks are padded to them, as the times
        have it; else none is padded (vLLM 0.32.0 ``v1/worker/dp_utils.py``), and experts serve only
        the tokens that there are, and the host launches the kernels of each.
        """
        if self.shared is None or max(tokens) <= self.slowest_up_to:
            return max(times)
        places = [sum(tokens) / len(tokens), *tokens]
        mean, *own = self._shared_times(self.shared, places)
        least = 1e-6 * self.eager_at_least_us
        # A pass of that many hides kernels behind the host, of which is not known how many.
        pairs = ((time, us) for time, us in zip(times, own, strict=True) if time != least)
        return max([least, *(time + 1e-6 * (mean - us) for time, us in pairs)])

    @property
    def slowest_up_to(self) -> float:
        return inf if self.shared is None else max(self._sizes, default=0)

    def _shared_times(self, shared: Curve, places: list[float]) -> list[float]:
        """Return `shared` at some places, with the factors, up to a constant.

        The rise of `read_us` in it is the reading of further experts; the rest is computing.
        """
        compute, read = self.compute_factor, self.read_factor * self.expert_factor
        times = shared.times_at(places)
        if read == compute:
            return [compute * time for time in times]
        pairs = zip(times, self._reads.times_at(places), strict=True)
        return [compute * time + (read - compute) * expert for time, expert in pairs]

    @cached_property
    def _reads(self) -> Curve:
        return Curve(at=self.batched_tokens, times_us=self.read_us)

    @property
    def knows_graphs(self) -> bool:
        return True

    @property
    def leaves_graphs(self) -> bool:
        return self.capture_sizes is None and self.eager_at_least_us > 0

    def in_graphs(self, sizes: tuple[int, ...] | None, default: tuple[int, ...]) -> LatencyModel:
        if sizes == ():
            num_layers = sum(layers.num_layers for layers in self.attention)
            least = max(self.eager_at_least_us, EAGER_LAYER_US * num_layers)
            return self.model_copy(update={"capture_sizes": (), "eager_at_least_us": least})
        if sizes is None:
            found = default if self.leaves_graphs else self.capture_sizes
            return self.model_copy(update={"capture_sizes": found})
        if not self.eager_at_least_us:
            return super().in_graphs(sizes, default)
        return self.model_copy(update={"capture_sizes": sizes})

    def as_drafter(self) -> LatencyModel:
        """Return the model with the LM head run on the last token of each sequence only."""
        return self.model_copy(update={"samples_drafts": False})

    def forward_time(self, load: StepLoad) -> float:
        """Return the sum of the kernels.

        Without `load.pieces`, all contexts are the mean and prefill tokens are one chunk.
        """
        if load.pieces is None:
            return super().forward_time(load)
        entries = np.zeros((1, load.num_requests), dtype=_ENTRY)
        entries["scheduled_len"], entries["start"] = load.pieces
        tokens = (load.batched_tokens, load.prefill_tokens)
        return composed_time(self.listed_form, *tokens, as_records(entries), 0, load.num_requests)

    def form(self) -> Form:
        """Return all tables, with the factors applied and the padding in the axis of tokens."""
        tables: list[float] = []
        first = HEAD_LEN + GROUP_LEN * len(self.attention)

        def add(columns: Sequence[float], times: Times, rows: Sequence[float] = (0,)) -> float:
            """Return where a table begins that is added: its axes, and its times row by row."""
            place = first + len(tables)
            tables.extend([len(rows), len(columns), *rows, *columns, *times.ravel().tolist()])
            return float(place)

        matrices = add(*self._padded_matrices())
        head = add(self.head.at, np.array(self.head.times_us) * 1e-6)
        groups: list[float] = []
        for layers in self.attention:
            count = layers.num_layers * 1e-6
            prompts = np.array(layers.prompt.times_us) * count * self.prompt_factor
            decodes = np.array(layers.decode_us) * count * self.decode_factor
            window = NO_WINDOW if layers.window is None else float(layers.window)
            pair = layers.pair_us * count * self.prompt_factor * self.verify_factor
            if layers.decode_pair_us is not None:
                pair = layers.decode_pair_us * count * self.decode_factor
            grid = add(layers.sequences, decodes, layers.context_tokens)
            groups += [window, layers.tile, pair, decodes[0, 0], grid]
            # Attention to everything rises with the square of the prompt, within a window with it.
            power = 2 if layers.window is None else 1
            reaches = [float(tokens) ** power for tokens in layers.prompt.at]
            kept = _hull(reaches, prompts.tolist())
            groups.append(add([reaches[place] for place in kept], prompts[kept]))
            groups.append(add(reaches, np.maximum.accumulate(prompts)))
        start = [COMPOSED, self.fixed_us * 1e-6, float(self.samples_drafts), matrices, head]
        start += [len(self.attention), self.prompts_at_least_us * 1e-6]
        start += [self.decodes_at_least_us * 1e-6, self.eager_at_least_us * 1e-6]
        start += [float(max(self._sizes, default=0))]
        return np.array([*start, *groups, *tables], dtype=np.float64)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return capture_sizes(USUAL_LARGEST) if self.capture_sizes is None else self.capture_sizes

    def _padded_matrices(self) -> tuple[list[float], Times]:
        """Return batched tokens and matrix times, with one stair per CUDA-graph size."""
        axis = np.array(self.batched_tokens, dtype=float)
        read = np.array(self.read_us)
        read = self.read_factor * (read[0] + self.expert_factor * (read - read[0]))
        times = (read + self.compute_factor * np.array(self.compute_us)) * 1e-6
        sizes = self._sizes
        if not sizes:
            return axis.tolist(), times
        points = [*(float(end) for _, end in _of_stairs(sizes)), *axis[axis > sizes[-1]].tolist()]
        padded = [size for size, _ in _of_stairs(sizes)] + axis[axis > sizes[-1]].tolist()
        return points, np.interp(padded, axis, times)


def _hull(at: Sequence[float], times: Sequence[float]) -> list[int]:
    """Return the points of the lower convex hull: no chunk is shorter for having more context."""
    kept: list[int] = []
    for place in range(len(at)):
        while len(kept) > 1:
            first, last = kept[-2:]
            rise = (times[last] - times[first]) * (at[place] - at[first])
            if rise <= (times[place] - times[first]) * (at[last] - at[first]):
                break
            kept.pop()
        kept.append(place)
    return kept


def _of_stairs(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the size, and both ends, of each stair."""
    below = 0
    for size in sizes:
        if size > below + 1:
            yield size, below + 1
        yield size, size
        below = size
