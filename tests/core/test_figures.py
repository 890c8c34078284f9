"""Numbers in sentences: all whole digits, commas between thousands, never an exponent."""

from random import Random

import pytest

from specsim.core.figures import digits_beside, figures, percent
from specsim.core.reading import number_in


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (10000, 6, "10,000"),
        (12345.6, 4, "12,346"),
        (999.6, 3, "1,000"),
        (0.012345, 3, "0.0123"),
        (1e7, 4, "10,000,000"),
        (7.0, 4, "7"),
    ],
)
def test_the_rule(value: float, digits: int, text: str) -> None:
    assert figures(value, digits) == text


def test_what_is_shown_is_near_and_can_be_read_again() -> None:
    random = Random(5)
    for _ in range(2000):
        value, digits = 10 ** random.uniform(-3, 9), random.randint(2, 6)
        text = figures(value, digits)
        assert "e" not in text
        assert number_in(text) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


@pytest.mark.parametrize(
    ("share", "digits", "sign", "text"),
    [
        (0.414, 1, False, "41.4 %"),
        (0.49, 0, False, "49 %"),
        (-0.2, 0, True, "-20 %"),
        (0.0, 1, True, "+0.0 %"),
    ],
)
def test_a_share_has_a_space_before_its_sign_and_can_be_read_again(
    share: float, digits: int, sign: bool, text: str
) -> None:
    assert percent(share, digits, sign=sign) == text
    assert number_in(text, is_share=True) == share


def test_no_share_is_less_than_nothing_by_nothing() -> None:
    assert [percent(-0.0001), percent(-0.0001, sign=True)] == ["0.0 %", "+0.0 %"]


@pytest.mark.parametrize(
    ("limit", "share", "digits"),
    [
        (0.02, 0.043, 1),
        (0.02, 0.0203, 2),
        (0.02, -0.0203, 2),
        (0.02, 0.02, 1),
        (0.0004, 0.0005, 2),
        (0.0, 0.0, 1),
        (1 / 3, 1.0, 6),
    ],
)
def test_a_share_stands_on_its_side_of_a_limit(limit: float, share: float, digits: int) -> None:
    assert digits_beside(limit, share) == digits
