"""How well acceptance models fit."""

from rich.markup import escape
from rich.table import Table

from specsim.show.render.tables import new_table

__all__ = ["distances_table"]


def distances_table(rows: dict[str, dict[str, float]], title: str) -> Table:
    """Return the goodness of fit of acceptance models.

    Args:
        rows: Per model the fields of `specsim.reality.acceptance_fit.Distances`.
    """
    table = new_table(
        title,
        ["distance to the held-out half", "per step", "per request", "per 8 steps", "total steps"],
    )
    for name, row in rows.items():
        table.add_row(
            escape(name),
            *(f"{row[field]:.3f}" for field in ("per_step", "per_request", "per_window")),
            f"{100 * row['steps_error']:+.1f} %",
        )
    return table
