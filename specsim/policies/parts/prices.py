"""What a step really takes: measured times correct those of the profile, drafting and all else."""

from specsim.core.compiled import inner
from specsim.policies.parts.exchange import Trade, set_load
from specsim.profile.step_time import priced_plain

_KEPT = 0.99  # share of what is known of earlier steps that a step leaves
_SOON = 20.0  # steps after which one in so many is compared: it takes time to do so
_ONE_OF = 8
_MOST_OFF = 4.0  # times, either way, that a step is believed to take


@inner
def note_asked(desk: Trade, longest: int, tokens: int, is_comparable: bool) -> None:
    """Note what the running step's drafts take by the profile: so long, and so many tokens."""
    learned, limits, times = desk.learned[0], desk.limits[0], desk.times[0]
    drafting = desk.drafting[longest]
    if not (limits.by_model or limits.one_cost) and longest:
        drafting = desk.drafting[1] * tokens / desk.decodes[2]
    drafting += times.running - times.running_plain
    desk.stated[learned.asked % len(desk.stated)] = drafting / learned.drafting * is_comparable
    learned.asked += 1


@inner
def restate(desk: Trade, longest: int) -> None:
    """Note that the drafter has stopped there."""
    desk.learned[0].asked -= 1
    note_asked(desk, longest, 0, True)


@inner
def learn_prices(desk: Trade) -> None:
    """Compare what the step `running` took with what the profile says."""
    learned, limits, outcome = desk.learned[0], desk.limits[0], desk.outcome
    if not limits.has_plain:
        return
    if learned.target_steps < _SOON or learned.asked % _ONE_OF == 0:
        set_load(desk.spending, desk.running, 0)
        plain = priced_plain(desk.spending.pricing, desk.running[1])
        ratio = _bounded((outcome[2] - outcome[3]) / plain)
        learned.target_ratios = _KEPT * learned.target_ratios + ratio
        learned.target_steps = _KEPT * learned.target_steps + 1.0
    if learned.answered < learned.asked:
        stated = 0.0 if learned.answered < 0 else desk.stated[learned.answered % len(desk.stated)]
        learned.answered += 1
        if stated > 0.0 and outcome[3] > 0.0:
            ratio = _bounded(outcome[3] / stated)
            learned.drafting_ratios = _KEPT * learned.drafting_ratios + ratio
            learned.drafting_steps = _KEPT * learned.drafting_steps + 1.0
    learned.target = learned.target_ratios / learned.target_steps
    learned.drafting = learned.drafting_ratios / learned.drafting_steps / learned.target


@inner
def _bounded(ratio: float) -> float:
    return min(max(ratio, 1.0 / _MOST_OFF), _MOST_OFF)
