"""Acceptance moved as a whole: what a plan asks, were drafts accepted more or less often."""

from typing import Any

import numpy as np
import pytest

from specsim.acceptance import ACCEPTANCE
from specsim.acceptance.nested import preset_names
from specsim.core.request import Request
from specsim.core.rng import Luck

REQUESTS = [Request(index=i, prompt_len=4, output_len=400) for i in range(60)]
MODELS = [
    pytest.param(ACCEPTANCE.parse({"kind": name, **example}), id=f"{name}-{number}")
    for name, member in ACCEPTANCE.members.items()
    for number, example in enumerate(member.examples)
    if name not in ("recorded", "token_match")
]
PRESETS = [
    pytest.param(ACCEPTANCE.parse({"kind": "preset", "name": name}), id=name)
    for name in preset_names()
]


def first_rate(model: Any) -> float:
    """Return the share of drafts of which the first token is accepted."""
    tables = model.survival_lens(REQUESTS, Luck(5, 6), 1)
    return float(np.frombuffer(b"".join(tables), dtype=np.uint8).mean())


@pytest.mark.parametrize("model", [*MODELS, *PRESETS])
def test_chances_move_by_what_was_asked(model: Any) -> None:
    usual = first_rate(model)
    for change in (-0.1, 0.1):
        moved = first_rate(model.shifted(change))
        wanted = min(max(usual + change, 0.0), 1.0)
        assert moved == pytest.approx(wanted, abs=0.035)
        assert (moved - usual) * change > 0


@pytest.mark.parametrize("model", MODELS)
def test_what_was_moved_can_be_written_and_read(model: Any) -> None:
    moved = model.shifted(0.05)
    assert ACCEPTANCE.parse(moved.model_dump(mode="json", exclude_none=True)) == moved


@pytest.mark.parametrize("model", MODELS)
def test_fates_move_one_way(model: Any) -> None:
    # The same luck: a draft that survives survives with higher chances, too.
    low, high = (
        model.shifted(change).survival_lens(REQUESTS[:9], Luck(5, 6), 4) for change in (-0.1, 0.1)
    )
    assert sum(map(sum, low)) < sum(map(sum, high))
    if model.kind == "fly":  # whose windows have luck of their own, if there is one
        return
    for less, more in zip(low, high, strict=True):
        assert all(a <= b for a, b in zip(less, more, strict=True))


@pytest.mark.parametrize("kind", ["recorded", "token_match"])
def test_records_are_what_they_are(kind: str) -> None:
    fields = {"kind": kind, **ACCEPTANCE.members[kind].examples[0]} if kind == "recorded" else kind
    assert ACCEPTANCE.parse(fields).shifted(0.1) is None


def test_a_first_token_that_is_never_accepted_cannot_be_moved() -> None:
    given = {"kind": "beta_position", "a": 6.0, "b": 2.0, "factors": [0.0, 0.5]}
    assert ACCEPTANCE.parse(given).shifted(0.1) is None
