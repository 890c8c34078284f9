"""Verdicts of a gate."""

from rich.table import Table

from specsim.show.render.tables import new_table
from specsim.study.gate.verdict import Comparison, Judgement

__all__ = ["gate_table", "gate_verdict"]

_MARKS = {"same": "=", "within": "", "better": " better", "uncertain": " ?", "worse": " WORSE"}


def gate_table(judgement: Judgement, title: str) -> Table:
    """Return a table of how much worse each metric of each scenario got, in percent."""
    cells = {(each.scenario, each.metric): each for each in judgement.comparisons}
    scenarios, metrics = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    table = new_table(title, ["% worse", *(metric.removesuffix("_ms") for metric in metrics)])
    limits = (cells[scenarios[0], metric].tolerance for metric in metrics)
    table.add_row("tolerance", *(f"{limit:.1%}" for limit in limits), end_section=True)
    for scenario in scenarios:
        table.add_row(scenario, *(_cell(cells[scenario, metric]) for metric in metrics))
    return table


def _cell(comparison: Comparison) -> str:
    mark = _MARKS[comparison.verdict]
    if comparison.verdict == "same":
        return mark
    text = f"{100 * comparison.worsening:+.1f}{mark}"
    styles = {"worse": "bold red", "better": "green", "uncertain": "yellow"}
    style = styles.get(comparison.verdict)
    return f"[{style}]{text}[/]" if style else text


def gate_verdict(judgement: Judgement) -> list[str]:
    """Return the verdict in words: what got worse, and what may have."""
    worse, doubtful = judgement.of_verdict("worse"), judgement.of_verdict("uncertain")
    lines = [f"worse: {each.scenario}: {each.text}" for each in worse]
    lines += [f"uncertain: {each.scenario}: {each.text}" for each in doubtful if each.worsening > 0]
    count, same = len(judgement.comparisons), len(judgement.of_verdict("same"))
    if worse:
        lines.append(f"FAILED: {len(worse)} of {count} comparisons are worse than tolerated")
    elif same == count:
        lines.append(f"passed: all {count} comparisons are the same, seed by seed")
    else:
        lines.append(f"passed: none of {count} comparisons is worse than tolerated ({same} same)")
    return lines
