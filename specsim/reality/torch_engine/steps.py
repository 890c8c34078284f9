"""Made-up steps of the torch engine, for a grid: the same work as in a run, without the waiting."""

from specsim.core.rng import generator
from specsim.reality.calibration.grid import GridPoint, Sample
from specsim.reality.torch_engine.runner import Row, Runner

__all__ = ["measure"]


def measure(runner: Runner, point: GridPoint, vocab_size: int) -> Sample:
    """Run one step and time both models, as the server does.

    Args:
        runner: With as many free slots as the step has sequences.
        vocab_size: Tokens are drawn from it.
    """
    rows = _rows(point)
    for row in rows:
        text = generator(0, "grid", str(row.request)).integers(0, vocab_size, row.end)
        runner.add(row.request, text)
    for row in rows[: point.num_decodes]:
        runner.assume_read(row.request, row.known_len)
    runner.verify(rows)
    nothing = [0] * len(rows)
    runner.accept(nothing)
    runner.draft(nothing, [point.draft_len] * len(rows))
    for row in rows:
        runner.end(row.request, row.end, row.end)
    return Sample(point, runner.target_time, runner.draft_time)


def _rows(point: GridPoint) -> list[Row]:
    # The last known token of each answer is read now, and the drafts behind it.
    start, known_len = point.context_len, point.context_len + 1
    rows = [
        Row(
            request=number,
            start=start,
            end=known_len + point.draft_len,
            known_len=known_len,
            draft_len=point.draft_len,
            is_partial=False,
            is_padded=False,
        )
        for number in range(point.num_decodes)
    ]
    if point.chunk_len:
        end = point.chunk_len
        rows.append(Row(point.num_decodes, 0, end, end, 0, is_partial=False, is_padded=False))
    return rows
