"""What every acceptance model promises."""

from operator import le
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.acceptance import ACCEPTANCE, Oracle
from specsim.acceptance.base import run_lengths
from specsim.core.errors import TraceError
from specsim.core.request import Request
from specsim.core.rng import Luck

MODELS = [
    pytest.param(ACCEPTANCE.parse({"kind": name, **example}), id=f"{name}-{number}")
    for name, member in ACCEPTANCE.members.items()
    for number, example in enumerate(member.examples)
]
LUCK = Luck(5, 6)
RECORD = {"eagle": bytes([0, 3, 2, 1, 0, 9, 254] * 12)}
REQUESTS = [
    Request(index=i, prompt_len=4, output_len=length, recorded_lens=RECORD)
    for i, length in enumerate([1, 60, 7, 84])
]


@pytest.mark.parametrize("model", MODELS)
def test_tables_have_one_entry_per_output_position_within_the_limit(model: Any) -> None:
    for request, table in zip(REQUESTS, model.survival_lens(REQUESTS, LUCK, 5), strict=True):
        assert len(table) == request.output_len
        assert max(table) <= 5


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shorter", [1, 2, 4])
def test_a_shorter_draft_survives_as_far_as_it_reaches(model: Any, shorter: int) -> None:
    # The same luck at the same position, whatever the policy asks for.
    for long, short in zip(
        model.survival_lens(REQUESTS, LUCK, 5),
        model.survival_lens(REQUESTS, LUCK, shorter),
        strict=True,
    ):
        reached = [min(shorter, length) for length in long]
        if model.kind == "fly":  # which looks ahead, but no further than the draft
            assert all(map(le, short, reached))
        else:
            assert list(short) == reached


@pytest.mark.parametrize("model", MODELS)
def test_tables_do_not_depend_on_who_is_asked_about_together(model: Any) -> None:
    together = model.survival_lens(REQUESTS, LUCK, 5)
    alone = [model.survival_lens([request], LUCK, 5)[0] for request in REQUESTS]
    assert together == alone


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6))
def test_run_lengths_count_successes_in_a_row(successes: list[bool], limit: int) -> None:
    expected = []
    for start in range(len(successes)):
        run = 0
        while run < limit and start + run < len(successes) and successes[start + run]:
            run += 1
        expected.append(run)
    assert run_lengths(np.array(successes, dtype=bool), limit).tolist() == expected


def frequencies(model: Any, k: int) -> np.ndarray:
    requests = [Request(index=i, prompt_len=1, output_len=500) for i in range(400)]
    tables = np.frombuffer(b"".join(model.survival_lens(requests, LUCK, k)), dtype=np.uint8)
    return np.array([(tables >= j).mean() for j in range(1, k + 1)])


def test_bernoulli_survives_with_powers_of_alpha() -> None:
    measured = frequencies(ACCEPTANCE.parse("bernoulli:alpha=0.7"), 4)
    assert measured == pytest.approx([0.7, 0.49, 0.343, 0.2401], abs=0.006)


def test_conditional_and_unconditional_rates_mean_what_they_say() -> None:
    conditional = frequencies(
        ACCEPTANCE.parse("per_position:conditional_rates=[0.8, 0.5, 0.25]"), 4
    )
    assert conditional == pytest.approx([0.8, 0.4, 0.1, 0.0], abs=0.006)
    unconditional = frequencies(
        ACCEPTANCE.parse("per_position:unconditional_rates=[0.8, 0.4, 0.1]"), 4
    )
    assert np.array_equal(conditional, unconditional)


def test_a_record_is_replayed_and_ends_where_it_ends() -> None:
    request = Request(
        index=0, prompt_len=1, output_len=5, recorded_lens={"eagle": bytes([0, 4, 2])}
    )
    [table] = ACCEPTANCE.parse("recorded:proposer=eagle").survival_lens([request], LUCK, 3)
    assert list(table) == [0, 3, 2, 0, 0]


def test_a_missing_record_names_those_that_are_there() -> None:
    request = Request(
        index=0, prompt_len=1, output_len=5, recorded_lens={"eagle": b"", "ngram": b""}
    )
    with pytest.raises(TraceError, match=r"acc_medusa.*eagle, ngram"):
        ACCEPTANCE.parse("recorded:proposer=medusa").survival_lens([request], LUCK, 3)


def test_the_oracle_reads_the_tables() -> None:
    oracle = Oracle.of([b"\1\2\0\0", b"\3\1\0"])
    requests, positions = np.array([0, 0, 1, 1]), np.array([1, 3, 0, 9])
    assert oracle.survival_lens(requests, positions).tolist() == [2, 0, 3, 0]
    assert oracle.useful_lens(requests, positions).tolist() == [2, 0, 2, 0]  # the end is near
