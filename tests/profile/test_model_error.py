"""How far composed profiles have been off, by what a step consists of."""

from math import hypot

import pytest

from specsim.core.step import StepLoad
from specsim.profile import Profile, load_profile
from specsim.profile.model_error import TERMS, UsualStep, known_spreads, moved, time_error
from specsim.profile.profile import NOT_MEASURED

BUILT = load_profile("h200/llama-3.1-8b")
DECODES, PROMPTS = StepLoad(1024, 1, 1), StepLoad(0, 8192, 16, 8192)
LONG = StepLoad(64 * 50_000, 64, 64)
SPREADS = known_spreads()


def spread(profile: Profile, load: StepLoad) -> float:
    found = time_error(profile, UsualStep(load, 1024, (), 0, is_open=False))
    assert found is not None
    return found.spread


def test_a_step_is_off_by_what_it_consists_of() -> None:
    assert set(SPREADS.terms) == set(TERMS)
    # One sequence reads the weights, short prompts compute, and many long ones attend.
    assert spread(BUILT, DECODES) == pytest.approx(
        hypot(SPREADS.terms["memory"], SPREADS.rest), rel=0.1
    )
    assert spread(BUILT, PROMPTS) == pytest.approx(
        hypot(SPREADS.terms["compute"], SPREADS.rest), rel=0.1
    )
    assert spread(BUILT, LONG) == pytest.approx(
        hypot(SPREADS.terms["attention"], SPREADS.rest), rel=0.1
    )
    drafting = DECODES._replace(batched_tokens=6)
    with_drafts, without = (
        time_error(BUILT, UsualStep(drafting, 1024, names, 5, is_open=False))
        for names in (("eagle3",), ())
    )
    assert with_drafts is not None
    assert without is not None
    place = TERMS.index("drafting")
    assert with_drafts.terms[place] > 0.1 * SPREADS.terms["drafting"] > without.terms[place]


def test_launching_steps_with_prompts_hides_nothing() -> None:
    slow = BUILT.target.model_copy(update={"prompts_at_least_us": 100_000.0})
    few_prompts = StepLoad(1024, 8, 6, 2)  # as an average step has, though most have none
    launched = BUILT.model_copy(update={"target": slow})
    assert spread(launched, few_prompts) == spread(BUILT, few_prompts)


def test_what_the_gpu_hides_is_no_part_of_a_step() -> None:
    own = BUILT.overhead.model_copy(update={"step_ms": 1.0, "sync_step_ms": 2.0, "request_us": 0.0})
    profile = BUILT.model_copy(update={"overhead": own})
    step = UsualStep(LONG, 50_000, (), 0, is_open=False)
    target = profile.target.forward_time(LONG)
    assert target > 1e-3
    assert step.time(profile) == pytest.approx(target)
    assert step._replace(is_async=False).time(profile) == pytest.approx(target + 3e-3)


def test_what_was_fitted_is_off_by_less() -> None:
    told = BUILT.provenance.notes.replace(NOT_MEASURED, "")
    provenance = BUILT.provenance.model_copy(update={"notes": told})
    fitted = BUILT.model_copy(update={"provenance": provenance})
    assert spread(fitted, PROMPTS) == SPREADS.rest < spread(BUILT, PROMPTS)


def test_of_other_kinds_nothing_is_known() -> None:
    step = UsualStep(DECODES, 1024, (), 0, is_open=False)
    assert time_error(load_profile("h100/llama-3.1-8b"), step) is None


@pytest.mark.parametrize("term", TERMS)
def test_each_term_moves_what_it_is_of(term: str) -> None:
    slower, usual = moved(BUILT, term, 0.5), BUILT.target.forward_time(DECODES)

    def ratio(load: StepLoad) -> float:
        return slower.target.forward_time(load) / BUILT.target.forward_time(load)

    drafters = [each.drafts["eagle3"].latency for each in (slower, BUILT)]
    passes = [each.forward_time(DECODES) for each in drafters if each is not None]
    moves = {
        "compute": ratio(PROMPTS) > 1.3,
        "memory": ratio(DECODES) > 1.3,
        "attention": ratio(LONG) > 1.3,
        "host": (ratio(DECODES) - 1) * usual == pytest.approx(50e-6, rel=1e-3),
        "drafting": passes[0] > 1.3 * passes[1],
    }
    assert [name for name, is_moved in moves.items() if is_moved] == [term]
