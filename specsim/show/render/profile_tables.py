"""Tables of profiles: their contents, their errors on measured steps, fits, and rooflines."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.markup import escape
from rich.table import Table

from specsim.core.errors import CapacityError
from specsim.core.figures import percent
from specsim.core.step import StepLoad
from specsim.engine.config import EngineConfig
from specsim.hardware import GIB, GpuSpec, MemoryPlan, ModelShape, load_gpu, load_model
from specsim.latency import LatencyModel
from specsim.profile import NO_BLOCK, Profile, StepCosts, default_layout, memory_plan
from specsim.proposers import PROPOSERS
from specsim.show.render import new_table

if TYPE_CHECKING:
    from specsim.profile.from_roofline import RooflineProfile
    from specsim.profile.from_tables import TableProfile
    from specsim.reality.profile_fit import ModelFit, ProfileErrors


@dataclass(frozen=True)
class StepTime:
    """The time of a step, and whether it can be trusted."""

    seconds: float
    fits: bool  # whether the KV cache holds its sequences at once
    in_range: bool  # whether the step is in the profile's valid range


@dataclass(frozen=True)
class Overview:
    """A profile on its GPU, under vLLM's defaults."""

    profile: Profile
    model: ModelShape
    gpu: GpuSpec
    engine: EngineConfig

    @classmethod
    def of(cls, profile: Profile) -> "Overview":
        """Return the overview of a profile; a ProfileError if its model or GPU is not known."""
        return cls(profile, load_model(profile.model), load_gpu(profile.gpu), EngineConfig())

    @property
    def methods(self) -> list[str | None]:
        """Methods with known drafting costs; [None] if there are none."""
        return [*self.profile.drafts] or [None]

    def memory(self, method: str | None = None) -> MemoryPlan:
        """Return the memory plan of one GPU, with the proposer of a method or without."""
        drafts = () if method is None else (self.profile.drafts[method],)
        return memory_plan(self.profile, self.model, self.gpu, drafts)

    def num_blocks(self, method: str | None = None) -> int:
        """Return the KV blocks that fit beside a drafter, vLLM's null block included; or 0."""
        try:
            return self.memory(method).num_blocks()
        except CapacityError:  # the rest of such a profile is still useful
            return 0

    def capacity(self, method: str | None, length: int, in_flight_tokens: int = 0) -> int:
        """Return the tokens that the KV cache holds beside a drafter, in sequences of `length`."""
        drafts = () if method is None else (self.profile.drafts[method],)
        layout = default_layout(self.profile, self.model, drafts)
        return layout.capacity(self.num_blocks(method), length, in_flight_tokens)

    def decode_time(
        self, batch_size: int, context_len: int, draft_len: int, method: str | None = None
    ) -> StepTime:
        """Return the time of a decode step; lengths are tokens per sequence.

        The step verifies `draft_len` tokens and drafts as many. Without a method, drafting costs
        nothing.
        """
        tokens = batch_size * (draft_len + 1)
        load = StepLoad(batch_size * context_len, tokens, batch_size)
        # Without speculation there is no drafter with a first pass.
        return self._step_time(load, draft_len, method if draft_len else None)

    def prefill_time(self, prompt_len: int) -> StepTime:
        """Return the time of a step that computes one whole prompt."""
        return self._step_time(StepLoad(0, prompt_len, 1, prompt_len), 0, None)

    def _step_time(self, load: StepLoad, draft_len: int, method: str | None) -> StepTime:
        profile = self.profile
        drafts = () if method is None else (profile.drafts[method],)
        drafter, block = PROPOSERS.members.get(method or ""), NO_BLOCK
        if method and drafter and drafter.has_own_pass:
            spec = {"method": method, "num_speculative_tokens": draft_len}
            block = PROPOSERS.parse(spec).block(draft_len)
        is_async = drafter is None or drafter.supports_async
        overhead = profile.overhead.of_engine(is_async=is_async)
        costs = StepCosts(profile.target, drafts, overhead, hides_overhead=is_async, block=block)
        valid = profile.valid_range
        size = load.num_requests
        capacity = self.capacity(
            method, (load.context_tokens + load.batched_tokens) // size, load.batched_tokens // size
        )
        return StepTime(
            seconds=float(costs.step_time(load, draft_len)),
            fits=load.context_tokens + load.batched_tokens <= capacity,
            in_range=load.context_tokens <= valid.context_tokens
            and load.batched_tokens <= valid.batched_tokens,
        )


_KINDS = {"all": "all steps", "decode": "decode only", "mixed": "with prefill"}
"""Titles of the kinds of steps."""
_BATCH_SIZES = (1, 8, 32, 64, 256)
_CONTEXT_LEN = 512  # tokens of each sequence
_DRAFT_LENS = (3, 5)
_PROMPT_LENS = (512, 2048, 8192)
_UNIT = "ms, overhead included if the GPU does not hide it (*: beyond the valid range)"

_SIZES = frozenset({"weights_gib", "kv_bytes_per_token"})


def overview_tables(overview: Overview, title: str) -> list[Table]:
    """Return tables of a profile, its drafters, and the times of typical steps."""
    tables = [_facts(overview, title)]
    if overview.profile.drafts:
        tables.append(_drafts(overview))
    return [*tables, _decodes(overview), _prefills(overview)]


def comparison_table(comparison: "ProfileErrors", title: str) -> Table:
    """Return the errors of a profile on measured steps, by kind."""
    columns = ["steps", "number", "mean", "median", "90th percentile", "worst"]
    table = new_table(f"{title}: error of the target's forward pass", columns)
    mixed = int(comparison.points.mixed.sum())
    counts = {"all": len(comparison.points), "mixed": mixed}
    counts["decode"] = counts["all"] - mixed
    for kind, error in comparison.errors.items():
        shares = (error.mean, error.median, error.p90, error.worst)
        table.add_row(_KINDS[kind], f"{counts[kind]:,}", *(percent(share, 2) for share in shares))
    if comparison.num_outside:
        table.caption = f"beyond the valid range: {comparison.num_outside:,}"
    return table


def _facts(overview: Overview, title: str) -> Table:
    profile, memory = overview.profile, overview.memory()
    told, valid = profile.provenance, profile.valid_range
    size = profile.num_gpus
    facts = {
        "model": f"{overview.model.name} ({profile.model})",
        "GPU": f"{size} x {overview.gpu.name} ({profile.gpu})",
        "engine": told.engine,
        "source": told.source,
        "date": told.date,
        "notes": told.notes,
        "target": _described(profile.target),
        "overhead": _described(profile.overhead),
        "draft lengths known": ", ".join(map(str, profile.only_draft_lens or ())),
        "valid range": f"steps of up to {valid.context_tokens:,} context and "
        f"{valid.batched_tokens:,} batched tokens",
        "memory per GPU": f"{memory.total_bytes / GIB:,.2f} GiB, of which vLLM takes "
        f"{memory.usable_bytes / GIB:,.2f}",
        "weights": f"{memory.weight_bytes / GIB:,.2f} GiB per GPU",
        "set aside": f"{memory.reserved_bytes / GIB:,.2f} GiB per GPU",
        "KV cache": f"{memory.block_bytes / memory.block_size:,.0f} bytes per token and GPU",
        "KV blocks": _blocks(overview, None),
    }
    table = Table(title=escape(title), title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts.items():
        if text:
            table.add_row(name, escape(text.strip()))
    return table


def _drafts(overview: Overview) -> Table:
    columns = ["drafter", "weights, GiB", "KV bytes per token", "KV blocks beside it"]
    table = new_table("drafters, per GPU", columns)
    table.add_column("cost of drafting", overflow="fold")
    for method, cost in overview.profile.drafts.items():
        sizes = f"{cost.weights_gib:,.2f}", f"{cost.kv_bytes_per_token:,.0f}"
        # A basis is about latency, which host time has none of.
        sizes_and_basis = _SIZES if cost.latency else _SIZES | {"basis"}
        costs = _described(cost, leave_out=sizes_and_basis)
        blocks = f"{overview.num_blocks(method):,}"
        table.add_row(escape(method), *sizes, blocks, escape(costs))
    return table


def _decodes(overview: Overview) -> Table:
    lens = overview.profile.only_draft_lens or (0, *_DRAFT_LENS)
    rows: list[tuple[str, int, str | None]] = [("k = 0", 0, None)] if 0 in lens else []
    for method in overview.methods:
        label = method or "drafts that cost nothing"
        rows.extend((f"k = {k}, {label}", k, method) for k in lens if k)
    title = f"decode step with {_CONTEXT_LEN} tokens of context each, {_UNIT}"
    table = new_table(title, ["batch size", *map(str, _BATCH_SIZES)])
    for label, k, method in rows:
        times = (overview.decode_time(size, _CONTEXT_LEN, k, method) for size in _BATCH_SIZES)
        table.add_row(escape(label), *map(_shown, times))
    return table


def _prefills(overview: Overview) -> Table:
    names = ["prompt, tokens", *(f"{prompt_len:,}" for prompt_len in _PROMPT_LENS)]
    table = new_table(f"step that reads one prompt, {_UNIT}", names)
    times = (overview.prefill_time(prompt_len) for prompt_len in _PROMPT_LENS)
    table.add_row("prefill", *map(_shown, times))
    return table


def _shown(time: StepTime) -> str:
    if not time.fits:  # such a step never runs, and its time would mislead
        return "does not fit"
    return f"{time.seconds * 1e3:.2f}{'' if time.in_range else ' *'}"


def _blocks(overview: Overview, method: str | None) -> str:
    engine, blocks = overview.engine, overview.num_blocks(method)
    limit = f"at gpu_memory_utilization {engine.gpu_memory_utilization:g}"
    if not blocks:
        return f"none fits {limit}"
    tokens = overview.capacity(method, overview.model.max_position_embeddings)
    size = overview.memory(method).block_size
    return f"{blocks:,} of {size} tokens fit {limit}: {tokens:,} tokens"


def _described(part: BaseModel, leave_out: frozenset[str] = frozenset()) -> str:
    """Return the fields of a part of a profile in one line; tables are given by their size."""
    return _flat(part.model_dump(mode="json", exclude_none=True, exclude=set(leave_out)))


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        kind = f"{value['kind']}: " if "kind" in value else ""
        pairs = (
            f"{name} ({_flat(inner)})" if isinstance(inner, dict) else f"{name} {_flat(inner)}"
            for name, inner in value.items()
            if name != "kind" and inner != 0
        )
        return kind + ", ".join(pairs)
    if isinstance(value, list):
        return f"[{len(value)} values]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def study_tables(studies: list["ModelFit"], title: str) -> list[Table]:
    """Return the errors of several kinds of fits on held-out steps, and by number of points."""
    held_out = new_table(
        f"{title}: error of held-out steps", ["", "steps", "median", "mean", "90th percentile"]
    )
    for study in studies:
        for name, error in study.held_out.items():
            numbers = (error.median, error.mean, error.p90)
            held_out.add_row(study.kind, _KINDS[name], *(percent(number, 2) for number in numbers))
    kinds = [study.kind for study in studies]
    curve = new_table("median error by number of points fitted", ["points", *kinds])
    curves = [dict(study.learning_curve) for study in studies]
    for size in sorted(set().union(*curves)):
        shown = (percent(each[size], 2) if size in each else "-" for each in curves)
        curve.add_row(f"{size:,}", *shown)
    return [held_out, curve]


def roofline_table(made: "RooflineProfile", context_len: int) -> Table:
    """Return a table of memory and of decode step times at `context_len` tokens per sequence."""
    table = _made_table(made, made.roofline, context_len)
    budget = made.roofline.free_budget()
    shown = "no limit" if budget is None else f"{budget:,.0f}"
    table.add_row("free budget, batch size x (k + 1)", shown)
    return table


def built_table(made: "TableProfile", context_len: int) -> Table:
    """Return the same table for a profile from kernel tables, with its sources."""
    table = _made_table(made, made.profile.target, context_len)
    for source in made.sources:
        table.add_row("measured", source)
    return table


def _made_table(
    made: "RooflineProfile | TableProfile", target: LatencyModel, context_len: int
) -> Table:
    model, gpu, size = made.fields["model"], made.fields["gpu"], made.profile.num_gpus
    memory = made.memory
    gpus = f"{size} x {gpu}" if size > 1 else gpu
    table = new_table(f"{model} on {gpus}, per GPU", ("", "value"))
    table.add_row("weights, GiB", f"{memory.weight_bytes / GIB:,.2f}")
    if memory.draft_weight_bytes:
        table.add_row("weights of drafters, GiB", f"{memory.draft_weight_bytes / GIB:,.2f}")
    block_bytes = memory.block_bytes + memory.draft_block_bytes
    table.add_row("KV cache, bytes per token", f"{block_bytes / memory.block_size:,.0f}")
    table.add_row(f"KV blocks of {memory.block_size} tokens that fit", f"{made.num_blocks:,}")
    for batch_size in (1, 8, 64, 256):
        label = f"step at batch {batch_size}, {context_len:,} tokens of context each, ms"
        # A batch that does not fit never runs, and its time would mislead.
        fits = batch_size * (context_len + 1) <= made.fields["valid_range"]["context_tokens"]
        load = StepLoad(batch_size * context_len, batch_size, batch_size)
        shown = f"{target.forward_time(load) * 1e3:.2f}" if fits else "does not fit"
        table.add_row(label, shown)
    return table
