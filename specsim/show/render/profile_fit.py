"""Fits of latency models, as tables."""

from rich.table import Table

from specsim.reality.profile_fit import ModelFit
from specsim.show.render.tables import new_table

__all__ = ["KINDS", "study_tables"]

KINDS = {"all": "all steps", "decode": "decode only", "mixed": "with prefill"}
"""Kinds of steps as a reader would say them."""


def study_tables(studies: list[ModelFit], title: str) -> list[Table]:
    """Return the tables of fits of several kinds to the same steps.

    Returns:
        Errors on held-out steps, and by number of points.
    """
    held_out = new_table(
        f"{title}: error of held-out steps", ["", "steps", "median", "mean", "90th percentile"]
    )
    for study in studies:
        for name, error in study.held_out.items():
            numbers = (error.median, error.mean, error.p90)
            held_out.add_row(study.kind, KINDS[name], *(f"{number:.2%}" for number in numbers))
    kinds = [study.kind for study in studies]
    curve = new_table("median error by number of points fitted", ["points", *kinds])
    curves = [dict(study.learning_curve) for study in studies]
    for size in sorted(set().union(*curves)):
        shown = (f"{each[size]:.2%}" if size in each else "-" for each in curves)
        curve.add_row(f"{size:,}", *shown)
    return [held_out, curve]
