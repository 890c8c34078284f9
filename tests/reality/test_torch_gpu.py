"""What the torch engine does on a GPU, as far as it can be seen without one.

FlashAttention is stood in for by plain attention that is told the same tensors, a CUDA graph by
running the same work on the same tensors again.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from small_engine import CPU, answers, make_engine, serve
from torch import Tensor
from torch.nn import functional

from specsim.reality.torch_engine import attention
from specsim.reality.torch_engine.attention import (
    Batch,
    Span,
    attend_each,
    attend_flash,
    causal_mask,
    choose_attention,
    make_batch,
)
from specsim.reality.torch_engine.engine import TorchEngine
from specsim.reality.torch_engine.model import PassShape, Recordings, Run, batch_sizes

pytestmark = pytest.mark.extras
SLOT_LEN = 64


def flash(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    max_q: int,
    max_k: int,
    dropout: float,
    is_causal: bool,
    _: bool,
    *,
    seqused_k: Tensor,
) -> tuple[Tensor]:
    """Attend as FlashAttention is documented to, from tensors alone."""
    assert is_causal
    assert dropout == 0
    for each in (query_starts, key_starts, seqused_k):
        assert each.dtype == torch.int32
        assert each.is_contiguous()
    assert {each.stride(-1) for each in (queries, keys, values)} == {1}
    assert queries.shape[-1] == keys.shape[-1]
    assert queries.shape[-1] % 8 == 0
    assert len(query_starts) == len(key_starts) == len(seqused_k) + 1
    found = []
    for row, num_keys in enumerate(seqused_k.tolist()):
        start, end = query_starts[row : row + 2].tolist()
        first = int(key_starts[row])
        assert end - start <= max_q
        assert num_keys <= max_k
        mine = queries[start:end].transpose(0, 1)
        theirs = (each[first : first + num_keys].transpose(0, 1) for each in (keys, values))
        key, value = (each.repeat_interleave(len(mine) // len(each), dim=0) for each in theirs)
        sees = torch.ones(end - start, num_keys, dtype=torch.bool).tril(num_keys - (end - start))
        attended = functional.scaled_dot_product_attention(mine, key, value, attn_mask=sees)
        found.append(attended.transpose(0, 1))
    return (torch.cat(found),)


@pytest.fixture
def with_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "flash", flash)


def some_spans() -> list[Span]:
    rng = np.random.default_rng(1)
    sizes = [(0, 4), (30, 4), (7, 1), (50, 1), (20, 13)]
    return [
        Span(slot, start, rng.integers(0, 9, num), range(1))
        for slot, (start, num) in enumerate(sizes)
    ]


def plain(cache: Tensor) -> attention.Attend:
    return partial(attend_each, mask=causal_mask(SLOT_LEN, 2, cache))


@pytest.mark.usefixtures("with_flash")
def test_flash_attention_is_told_what_plain_attention_does() -> None:
    torch.manual_seed(0)
    cache, queries = torch.randn(2, 5, SLOT_LEN, 2, 16), torch.randn(23, 4, 16)
    batch = make_batch(some_spans(), SLOT_LEN, CPU)
    expected = plain(cache)(queries, cache, batch)
    assert torch.allclose(attend_flash(queries, cache, batch), expected, atol=1e-5)


def test_the_kernel_has_these_arguments() -> None:
    cache = torch.empty(2, 5, SLOT_LEN, 2, 16, dtype=torch.bfloat16, device="meta")
    queries = torch.empty(23, 4, 16, dtype=torch.bfloat16, device="meta")
    batch = make_batch(some_spans(), SLOT_LEN, CPU)
    for name in ("query_starts", "key_starts", "key_lens"):
        object.__setattr__(batch, name, getattr(batch, name).to("meta"))
    assert attend_flash(queries, cache, batch).shape == queries.shape


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("no kernel for this GPU\nmore")


def wrong_for(span_len: int) -> Any:
    """Attend right but for spans of one length, whose heads are mixed up."""

    def attend(*args: Any, **kwargs: Any) -> Any:
        [found], starts = flash(*args, **kwargs), args[3].tolist()
        for start, end in pairwise(starts):
            if end - start == span_len:
                found[start:end] = found[start:end].roll(1, dims=1)
        return (found,)

    return attend


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (flash, None),
        (broken, "no kernel for this GPU"),
        (wrong_for(600), "away from plain attention, spans of (600, 1, 4, 1) tokens"),
        (wrong_for(1), "away from plain attention"),
        (wrong_for(4), "away from plain attention"),
    ],
)
def test_a_kernel_that_is_wrong_is_not_used(
    kernel: Any, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "flash", kernel)
    cache = torch.ones(2, 3, 700, 2, 16)
    each = partial(attend_each, mask=causal_mask(700, 2, cache))
    found = attention.disagreement(attend_flash, each, cache, 4)
    assert (found is None) if words is None else (words in str(found))
    assert not cache.any()


def test_a_cpu_attends_one_by_one() -> None:
    assert choose_attention(torch.zeros(2, 3, 8, 2, 16), 4) is not attend_flash


class Countdown:
    """A timer by which what is timed first in a pair takes less, or more, than what is second."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = seconds
        self._calls = 0

    def start(self) -> None:
        self._calls += 1

    def stop(self) -> float:
        return self._seconds[(self._calls - 1) % len(self._seconds)]


FASTER, SLOWER = (1.0, 2.0), (2.0, 1.0)
calls: list[int] = []


def again(run: Run) -> Run:
    """Record by running the same again, as long as its inputs stay where they are."""
    run()

    def replay() -> Tensor:
        calls.append(1)
        return run()

    return replay


def recording(engine: TorchEngine, seconds: tuple[float, float] = FASTER) -> TorchEngine:
    for model, shapes in (
        (engine.target, engine.limits.target_shapes),
        (engine.draft, engine.limits.draft_shapes),
    ):
        model.attend = attend_flash
        model.record(shapes, again, Countdown(*seconds))
    calls.clear()
    return engine


@pytest.mark.usefixtures("with_flash")
@pytest.mark.parametrize("policy", ["off", "static:k=3", "goodput", "random"])
def test_recorded_passes_change_no_answer(policy: str) -> None:
    served = serve(policy, recording(make_engine()))
    assert len(calls) > 0.5 * len(served.steps)
    calls.clear()
    expected = answers(serve("off", make_engine()))
    assert not calls
    assert answers(served) == expected


@pytest.mark.usefixtures("with_flash")
def test_only_alike_spans_are_recorded() -> None:
    recordings = recording(make_engine()).target.recordings
    alike = [Span(slot, 9, np.arange(3), range(3)) for slot in range(3)]
    with torch.inference_mode():
        found = recordings.next_tokens(alike)
        assert found is not None
        assert len(found) == 9
        for spans in (
            [*alike, Span(3, 9, np.arange(2), range(2))],
            [*alike, Span(3, 9, np.arange(3), range(1))],
            [Span(0, 9, np.arange(30), range(30))],
            [Span(slot % 4, 9, np.arange(3), range(3)) for slot in range(5)],
        ):
            assert recordings.next_tokens(spans) is None


@pytest.mark.usefixtures("with_flash")
def test_what_is_no_faster_recorded_is_not_used() -> None:
    engine = recording(make_engine(), SLOWER)
    assert engine.target.recordings.num_kept == 0


def test_every_batch_size_is_compared_with_what_it_will_be_filled_up_to() -> None:
    sizes: list[int] = []

    class Verdicts(Countdown):
        """The second shape is no faster."""

        def stop(self) -> float:
            pair = (self._calls - 1) // (2 * 5)
            return super().stop() if pair != 1 else -super().stop()

    def run(batch: Batch) -> Tensor:
        sizes.append(len(batch.spans))
        return batch.token_ids

    recordings = Recordings(run, SLOT_LEN, 8, CPU)
    shapes = [PassShape(num, 1, 1) for num in (1, 4, 8)]
    recordings.add(shapes, again, Verdicts(*FASTER))
    assert recordings.num_kept == 2
    assert 5 not in sizes
    assert sizes.count(2) > 0


def test_what_says_otherwise_recorded_is_not_used() -> None:
    recordings = Recordings(lambda batch: batch.token_ids, SLOT_LEN, 4, CPU)
    shapes = [PassShape(num, 2, 2) for num in (1, 2, 4)]
    recordings.add(shapes, lambda run: lambda: run() + 1, Countdown(*FASTER))
    assert recordings.num_kept == 0
    recordings.add(shapes, again, Countdown(*FASTER))
    assert recordings.num_kept == 3


def test_a_pass_that_cannot_be_recorded_ends_it(
    caplog: pytest.LogCaptureFixture, with_flash: None
) -> None:
    engine = make_engine()
    engine.target.attend = attend_flash
    said = engine.record(broken)
    assert "no kernel for this GPU" in caplog.text
    assert said["recorded_passes"].startswith("0 of 54 shapes")


def test_sequences_read_one_by_one_are_not_recorded() -> None:
    engine = make_engine()
    assert not engine.target.can_be_recorded
    engine.record(again)
    assert engine.target.recordings.num_kept == 0


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (4, [1, 2, 4]), (9, [1, 2, 4, 8, 9]), (24, [1, 2, 4, 8, 16, 24])]
)
def test_batch_sizes(most: int, sizes: list[int]) -> None:
    assert batch_sizes(most) == sizes
