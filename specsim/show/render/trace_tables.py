"""Tables of traces, token traces, draft evaluations and acceptance models."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from specsim.core.figures import figures, percent
from specsim.show.render import new_table

if TYPE_CHECKING:
    from specsim.tokens.describe import TokenDescription
    from specsim.tokens.draft_eval import Combination, DraftEval
    from specsim.workload.trace import TraceDescription


def trace_table(description: "TraceDescription", title: str) -> Table:
    """Return the table of ``specsim trace describe``."""
    rows = {
        "format": description.format,
        "requests": f"{description.num_requests:,}",
        "failed requests left out": f"{description.num_dropped:,}",
        "sessions": "-" if description.num_sessions is None else f"{description.num_sessions:,}",
        "duration, s": _number(description.duration),
        "mean rate, requests/s": _number(description.mean_rate),
        "peak rate over 10 s, requests/s": _number(description.peak_rate),
        "burstiness (1 = Poisson, less = burstier)": _number(description.burstiness),
        "reused prefix, share of prompt tokens": _number(description.reused_prefix_share),
        "recorded acceptance": escape(", ".join(description.recorded_acceptance) or "-"),
    }
    table = new_table(title, ["", "value"], rows.items())
    if description.note:  # a sentence would widen the column of numbers
        table.caption, table.caption_justify = escape(description.note), "left"
    for name, lens in (("prompt", description.prompt), ("output", description.output)):
        table.add_section()
        table.add_row(f"{name} tokens in all", f"{lens.total:,}")
        table.add_row(f"{name} length, mean ± std", f"{lens.mean:,.1f} ± {lens.std:,.1f}")
        quantiles = "  ".join(f"{key} {value:,.0f}" for key, value in lens.quantiles.items())
        table.add_row(f"{name} length, quantiles", quantiles)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else figures(value)


def token_tables(description: "TokenDescription", title: str) -> list[Table]:
    """Return the tables of ``specsim tokens describe``."""
    return [_sizes(description, title), _overlaps(description), _drafters(description)]


def _sizes(description: "TokenDescription", title: str) -> Table:
    counts = {
        "requests": description.num_requests,
        "of them without a recorded prompt": description.num_unrecorded_prompts,
        "of them the same as an earlier one": description.num_repeated,
        "prompt tokens": description.prompt_tokens,
        "output tokens": description.output_tokens,
        "distinct tokens": description.distinct_tokens,
        "distinct tokens in outputs": description.distinct_output_tokens,
    }
    table = new_table(title, ["", "value"], ([name, f"{n:,}"] for name, n in counts.items()))
    entropy, by_len = description.entropy, description.entropy.by_context_len
    bits = {
        f"empirical entropy of {description.num_sampled:,} outputs, bits": entropy.bits,
        "  only of contexts that stand at least twice, bits": entropy.repeated,
        **{
            f"  of the next token after {context_len} tokens, bits": by_len[context_len]
            for context_len in (0, 1, 2, 4, 8)
            if context_len < len(by_len)
        },
    }
    table.add_section()
    for name, value in bits.items():
        table.add_row(name, f"{value:.3f}")
    return table


def _overlaps(description: "TokenDescription") -> Table:
    columns = [f"{overlap.n}-grams" for overlap in description.overlaps]
    table = new_table("output tokens in n-grams seen before", ["", *columns])
    for name, field in (
        ("in the own prompt", "own_prompt"),
        ("earlier in the same output", "own_output"),
        ("in outputs of earlier requests", "earlier_outputs"),
        ("in any of these", "anywhere"),
        ("new", "new"),
    ):
        shares = (getattr(overlap, field) for overlap in description.overlaps)
        table.add_row(name, *("-" if share is None else percent(share) for share in shares))
    return table


def _drafters(description: "TokenDescription") -> Table:
    replayed = f"the first {description.num_replayed:,} requests"
    if description.num_replayed == description.num_requests:
        replayed = "all requests"
    columns = ["", "longest draft", "tokens per step", "acceptance", "draft tokens per step"]
    rows = (
        [
            each.method,
            f"{each.num_speculative_tokens}",
            f"{each.tokens_per_step:.3f}",
            percent(each.acceptance),
            f"{each.drafted_per_step:.2f}",
        ]
        for each in description.drafters
    )
    return new_table(f"drafters replayed on {replayed}", columns, rows)


def draft_eval_table(result: "DraftEval", title: str) -> Table:
    """Return the totals of a draft evaluation."""
    total, num_requests = result.total, len(result.per_request)
    rows = {
        "requests": f"{num_requests:,}",
        "output tokens": f"{total.output_tokens:,}",
        "steps": f"{total.steps:,}",
        "draft tokens": f"{total.drafted:,}",
        "accepted tokens": f"{total.accepted:,}",
        "tokens per step": f"{result.tokens_per_step:.3f}",
        "acceptance": percent(result.acceptance),
        "host time per step": f"{result.step_us:.1f} us",
        "host time per prompt": f"{1e6 * result.prompt_time / num_requests:,.0f} us",
        "memory of the lookup": f"{result.memory_bytes / 2**20:.1f} MiB",
    }
    return new_table(title, ["", "all requests"], rows.items())


def draft_grid_table(combinations: Sequence["Combination"], title: str) -> Table:
    """Return one line for each combination of a grid, at least one, in the order given."""
    names = list(combinations[0].options)
    counts = ["tokens per step", "acceptance", "drafted", "host us per step"]
    rows = (
        [
            *(escape(str(options[name])) for name in names),
            f"{totals['tokens_per_step']:.3f}",
            percent(totals["acceptance"]),
            f"{totals['drafted']:,}",
            f"{step_us:.1f}",
        ]
        for options, totals, step_us in combinations
    )
    return new_table(title, [*names, *counts], rows)


def distances_table(fits: dict[str, dict[str, float]], title: str) -> Table:
    """Return the `specsim.reality.acceptance_fit.Distances` of acceptance models, by name."""
    columns = ["distance to the held-out half", "per step", "per request", "per 8 steps"]
    rows = (
        [
            escape(name),
            *(f"{fit[field]:.3f}" for field in ("per_step", "per_request", "per_window")),
            percent(fit["steps_error"], sign=True),
        ]
        for name, fit in fits.items()
    )
    return new_table(title, [*columns, "total steps"], rows)
