"""What each of several drafters has to read and to draft after a step."""

from collections.abc import Container

from specsim.engine.plan import StepPlan
from specsim.step import StepLoad

__all__ = ["loads_by_drafter", "loads_with_fallback"]


def loads_by_drafter(
    plan: StepPlan, draft_lens: list[int], left_out: Container[int]
) -> list[tuple[int, StepLoad, list[int]]]:
    """Return the loads of drafters that share out the requests among them.

    Parameters
    ----------
    plan : StepPlan
    draft_lens : list of int, tokens
        Of each sequence of the plan.
    left_out : container of int
        Indices of requests that no drafter serves.

    Returns
    -------
    list of (int, StepLoad, list of int)
        Drafter, what it reads, and the lengths that it drafts.
    """
    rows: dict[int, list[tuple[int, int, int, int]]] = {}
    # The drafter does not read what was trimmed, nor, in vLLM V0, what it has yet to draft.
    kept_lens = [0] * len(draft_lens) if plan.drafts_on_top else plan.verified_lens
    for sequence, scheduled_len, drafted_len, kept_len, draft_len in zip(
        plan.sequences, plan.scheduled_lens, plan.draft_lens, kept_lens, draft_lens, strict=True
    ):
        if sequence.index not in left_out:
            cut = drafted_len - kept_len
            prefill_len = plan.prefill_lens.get(sequence, 0)
            row = (sequence.computed_len - cut, scheduled_len - cut, prefill_len, draft_len)
            rows.setdefault(sequence.drafter, []).append(row)
    return [(drafter, *_load_of(rows[drafter])) for drafter in sorted(rows)]


def loads_with_fallback(
    plan: StepPlan, draft_lens: list[int], found_lens: list[int]
) -> list[tuple[int, StepLoad, list[int]]]:
    """Return the load of a lookup, which serves all requests, and of the model behind it.

    The model reads every prompt, and the step's tokens of the sequences that it drafts for. What it
    left out while the lookup drafted it would have to read as well; its cost per token read is so
    small beside its cost per pass that this is not charged.

    Parameters
    ----------
    plan : StepPlan
    draft_lens : list of int, tokens
        Of each sequence of the plan, whoever drafted.
    found_lens : list of int, tokens
        What the lookup found for each of them, whether or not it is used.

    Returns
    -------
    list of (int, StepLoad, list of int)
        Drafter, what it reads, and the lengths that it drafts.
    """
    rows = []
    for sequence, scheduled_len, draft_len in zip(
        plan.sequences, plan.scheduled_lens, draft_lens, strict=True
    ):
        prefill_len = plan.prefill_lens.get(sequence, 0)
        if sequence.drafter == 1 or prefill_len:
            model_len = draft_len if sequence.drafter == 1 else 0
            rows.append((sequence.computed_len, scheduled_len, prefill_len, model_len))
    loads = [(0, plan.load, found_lens)]
    return [*loads, (1, *_load_of(rows))] if rows else loads


def _load_of(rows: list[tuple[int, int, int, int]]) -> tuple[StepLoad, list[int]]:
    """Return the load and the draft lengths of (computed, scheduled, prefill, draft) lengths."""
    ends, scheduled_lens, prefill_lens, draft_lens = zip(*rows, strict=True)
    batched_tokens = sum(scheduled_lens)
    load = StepLoad(sum(ends) - batched_tokens, batched_tokens, len(rows), sum(prefill_lens))
    return load, list(draft_lens)
