"""Attention of prompts, composed: several in one step, and chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.core.step import Pieces, StepLoad
from specsim.latency.composed import Composed

LENS = (16, 128, 1024, 8192)
BESIDE_US = 1.0  # a pass takes some time besides attention
MATRICES = {"batched_tokens": [1, 8192], "read_us": [BESIDE_US] * 2, "compute_us": [0, 0]}


def attention_only(times_us: list[float], window: int | None = None) -> Composed:
    """Steps of one layer whose prompts of `LENS` take so long; decodes take a microsecond."""
    layers = {
        "num_layers": 1,
        "window": window,
        "context_tokens": [1, 8192],
        "sequences": [1, 64],
        "decode_us": [[1, 1], [1, 1]],
        "decode_pair_us": 0,
        "prompt": {"at": LENS, "times_us": times_us},
    }
    head = {"at": [1, 64], "times_us": [0, 0]}
    return Composed.model_validate({**MATRICES, "head": head, "attention": [layers]})


def time_us(target: Composed, chunks: list[int], contexts: list[int]) -> float:
    pieces = Pieces(chunks, contexts)
    load = StepLoad(sum(contexts), sum(chunks), len(chunks), sum(chunks), pieces)
    return 1e6 * target.forward_time(load) - BESIDE_US


def test_prompts_of_a_step_are_launched_once() -> None:
    target = attention_only([10, 14, 110, 6000])
    assert time_us(target, [1024], [0]) == pytest.approx(110)
    assert time_us(target, [1024] * 4, [0] * 4) == pytest.approx(10 + 4 * 100)
    assert time_us(target, [128] * 16, [0] * 16) == pytest.approx(10 + 16 * 4)
    assert time_us(target, [128, 1024], [0, 0]) == pytest.approx(10 + 4 + 100)
    alike = StepLoad(0, 4 * 1024, 4, 4 * 1024)
    assert 1e6 * target.forward_time(alike) == pytest.approx(BESIDE_US + 10 + 4 * 100)


def test_whole_prompts_take_as_long_as_measured_however_their_times_rise() -> None:
    """As where a short one does not fill the GPU: 1,024 tokens take half as long as 8,192."""
    times = [10.0, 200, 500, 1000]
    target = attention_only(times)
    assert [time_us(target, [n], [0]) for n in LENS[1:]] == pytest.approx(times[1:])


curves = st.lists(st.floats(1, 1000), min_size=4, max_size=4).map(sorted)
chunk_lens = st.integers(65, 4096)


@given(curves, st.sampled_from([None, 512]), chunk_lens, st.integers(0, 8192), st.integers(1, 4096))
def test_no_chunk_is_shorter_for_more_context(
    times: list[float], window: int | None, chunk: int, context: int, more: int
) -> None:
    target = attention_only(times, window)
    short, long = (time_us(target, [chunk], [each]) for each in (context, context + more))
    assert time_us(target, [chunk], [0]) <= short * (1 + 1e-9)
    assert short <= long * (1 + 1e-9)


@given(curves, st.lists(st.tuples(chunk_lens, st.integers(0, 8192)), min_size=1, max_size=8))
def test_a_step_takes_no_longer_than_its_prompts_one_by_one(
    times: list[float], each: list[tuple[int, int]]
) -> None:
    target = attention_only(times)
    chunks, contexts = map(list, zip(*each, strict=True))
    alone = [time_us(target, [chunk], [context]) for chunk, context in each]
    together = time_us(target, chunks, contexts)
    assert together == pytest.approx(sum(alone) - (len(alone) - 1) * times[0])
    assert together >= max(alone) * (1 - 1e-9)
