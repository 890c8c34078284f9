"""What drafts were worth."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from specsim.show.render.tables import new_table
from specsim.tokens.draft_eval import DraftEval
from specsim.tokens.draft_grid import Combination

__all__ = ["draft_eval_table", "draft_grid_table"]


def draft_eval_table(result: DraftEval, title: str) -> Table:
    """Return the totals of a draft evaluation."""
    total = result.total
    table = new_table(title, ["", "all requests"])
    table.add_row("requests", f"{len(result.per_request):,}")
    table.add_row("output tokens", f"{total.output_tokens:,}")
    table.add_row("steps", f"{total.steps:,}")
    table.add_row("draft tokens", f"{total.drafted:,}")
    table.add_row("accepted tokens", f"{total.accepted:,}")
    table.add_row("tokens per step", f"{result.tokens_per_step:.3f}")
    table.add_row("acceptance", f"{100 * result.acceptance:.1f} %")
    table.add_row("host time per step", f"{result.step_us:.1f} us")
    table.add_row(
        "host time per prompt", f"{1e6 * result.prompt_time / len(result.per_request):,.0f} us"
    )
    table.add_row("memory of the lookup", f"{result.memory_bytes / 2**20:.1f} MiB")
    return table


def draft_grid_table(combinations: Sequence[Combination], title: str) -> Table:
    """Return one line for each combination of a grid, in the order given.

    Args:
        combinations: Of the same options; not empty.
    """
    names = list(combinations[0].options)
    counts = ["tokens per step", "acceptance", "drafted", "host us per step"]
    table = new_table(title, [*names, *counts])
    for options, totals, step_us in combinations:
        table.add_row(
            *(escape(str(options[name])) for name in names),
            f"{totals['tokens_per_step']:.3f}",
            f"{100 * totals['acceptance']:.1f} %",
            f"{totals['drafted']:,}",
            f"{step_us:.1f}",
        )
    return table
