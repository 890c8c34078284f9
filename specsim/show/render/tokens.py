"""Token traces described."""

from rich.table import Table

from specsim.show.render.tables import new_table
from specsim.tokens.describe import TokenDescription

__all__ = ["token_tables"]


def token_tables(description: TokenDescription, title: str) -> list[Table]:
    """Return the tables of ``specsim tokens describe``."""
    return [_sizes(description, title), _overlaps(description), _drafters(description)]


def _sizes(description: TokenDescription, title: str) -> Table:
    entropy, sampled = description.entropy, f"{description.num_sampled:,}"
    table = new_table(title, ["", "value"])
    table.add_row("requests", f"{description.num_requests:,}")
    table.add_row("of them without a recorded prompt", f"{description.num_unrecorded_prompts:,}")
    table.add_row("prompt tokens", f"{description.prompt_tokens:,}")
    table.add_row("output tokens", f"{description.output_tokens:,}")
    table.add_row("distinct tokens", f"{description.distinct_tokens:,}")
    table.add_row("distinct tokens in outputs", f"{description.distinct_output_tokens:,}")
    table.add_section()
    table.add_row(f"empirical entropy of {sampled} outputs, bits", f"{entropy.bits:.3f}")
    name = "  only of contexts that stand at least twice, bits"
    table.add_row(name, f"{entropy.repeated:.3f}")
    for context_len in (0, 1, 2, 4, 8):
        if context_len < len(entropy.by_context_len):
            name = f"  of the next token after {context_len} tokens, bits"
            table.add_row(name, f"{entropy.by_context_len[context_len]:.3f}")
    return table


def _overlaps(description: TokenDescription) -> Table:
    columns = [f"{overlap.n}-grams" for overlap in description.overlaps]
    table = new_table("output tokens in n-grams seen before", ["", *columns])
    for name, field in (
        ("in the own prompt", "own_prompt"),
        ("earlier in the same output", "own_output"),
        ("in outputs of earlier requests", "earlier_outputs"),
        ("in any of these", "anywhere"),
        ("new", "new"),
    ):
        shares = [getattr(overlap, field) for overlap in description.overlaps]
        cells = ["-" if share is None else f"{100 * share:.1f} %" for share in shares]
        table.add_row(name, *cells)
    return table


def _drafters(description: TokenDescription) -> Table:
    replayed = f"the first {description.num_replayed:,} requests"
    if description.num_replayed == description.num_requests:
        replayed = "all requests"
    columns = ["", "longest draft", "tokens per step", "acceptance", "draft tokens per step"]
    table = new_table(f"drafters replayed on {replayed}", columns)
    for drafter in description.drafters:
        table.add_row(
            drafter.method,
            f"{drafter.num_speculative_tokens}",
            f"{drafter.tokens_per_step:.3f}",
            f"{100 * drafter.acceptance:.1f} %",
            f"{drafter.drafted_per_step:.2f}",
        )
    return table
