"""Made-up steps of the torch engine, for a grid: the same work as in a run, without the waiting."""

from specsim.calibration.grid import GridPoint, Sample
from specsim.calibration.torch_engine.runner import Runner
from specsim.engine.plan import StepPlan
from specsim.engine.sequence import Sequence
from specsim.request import Request
from specsim.rng import generator

__all__ = ["measure"]


def measure(runner: Runner, point: GridPoint, vocab_size: int) -> Sample:
    """Run one step and time both models, as the server does.

    Parameters
    ----------
    runner : Runner
        With as many free slots as the step has sequences.
    point : GridPoint
    vocab_size : int
        Tokens are drawn from it.

    Returns
    -------
    Sample
    """
    plan = StepPlan(0, tokens_left=0, inputs_left=0, piece_limit=0)
    for number in range(point.num_decodes):
        # Its last known token is read now, and the drafts behind it.
        known_len, end = point.context_len + 1, point.context_len + 1 + point.draft_len
        sequence = _sequence(runner, number, known_len, end, vocab_size)
        runner.assume_read(sequence, known_len)
        _add(plan, sequence, end - point.context_len, point.draft_len)
    if point.chunk_len:
        number, end = point.num_decodes, point.chunk_len
        sequence = _sequence(runner, number, end, end, vocab_size)
        plan.prefill_lens[sequence] = end
        _add(plan, sequence, end, 0)
    plan.count_tokens()
    runner.verify(plan)
    nothing = [0] * len(plan.sequences)
    runner.accept(nothing)
    runner.draft(nothing, point.draft_len)
    for sequence in plan.sequences:
        runner.end(sequence)
    return Sample(point, runner.target_time, runner.draft_time)


def _sequence(runner: Runner, number: int, known_len: int, end: int, vocab_size: int) -> Sequence:
    sequence = Sequence(Request(number, known_len, 1), 0.0, known_len + 1)
    sequence.computed_len = end
    text = generator(0, "grid", str(number)).integers(0, vocab_size, end)
    runner.add(sequence, text)
    return sequence


def _add(plan: StepPlan, sequence: Sequence, scheduled_len: int, draft_len: int) -> None:
    plan.sequences.append(sequence)
    plan.scheduled_lens.append(scheduled_len)
    plan.draft_lens.append(draft_len)
