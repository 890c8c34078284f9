"""Luck that is drawn once for runs that have the same requests."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specsim.acceptance.base import DrawnAcceptance
from specsim.core.request import Request
from specsim.core.rng import Luck


def counting(length: int) -> tuple[DrawnAcceptance, list[int]]:
    """Return a model by which every draft survives so long, and a note of each drawing."""
    drawings = []

    class Constant(DrawnAcceptance):
        kind: str = "constant"

        def drawn_lens(
            self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
        ) -> NDArray[np.uint8]:
            drawings.append(len(indices))
            return np.full(sum(counts), length, dtype=np.uint8)

        def scores(
            self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
        ) -> NDArray[np.float64]:
            return np.full((1, 1), np.inf)

    return Constant(), drawings


def requests(count: int, output_len: int) -> list[Request]:
    return [Request(index=i, prompt_len=1, output_len=output_len) for i in range(count)]


def test_the_same_requests_with_the_same_luck_are_drawn_once() -> None:
    model, drawings = counting(2)
    first = model.survival_lens(requests(3, 5), Luck(1, 2), 4)
    assert first == [bytes([2] * 5)] * 3
    assert model.survival_lens(requests(3, 5), Luck(1, 2), 4) == first
    assert drawings == [3]


@pytest.mark.parametrize("other", [(3, 6, 1, 4), (2, 5, 1, 4), (3, 5, 2, 4), (3, 5, 1, 3)])
def test_others_are_drawn_anew(other: tuple[int, int, int, int]) -> None:
    model, drawings = counting(2)
    model.survival_lens(requests(3, 5), Luck(1, 2), 4)
    count, output_len, seed, longest = other
    model.survival_lens(requests(count, output_len), Luck(seed, 2), longest)
    assert len(drawings) == 2


def test_models_of_one_name_and_form_are_not_mistaken_for_each_other() -> None:
    tables: list[Any] = []
    for length in (1, 2):
        model, _ = counting(length)
        tables += model.survival_lens(requests(1, 3), Luck(1, 2), 4)
    assert tables == [bytes([1] * 3), bytes([2] * 3)]
