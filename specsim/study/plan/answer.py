"""Plan: the answer, and what it rests on."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

from specsim.core.version import __version__
from specsim.run.summary import ROOFLINE
from specsim.study.capacity import Capacity, Found
from specsim.study.plan.advice import (
    Advice,
    ApiAdvice,
    Choice,
    Tried,
    against,
    choice_of,
    drafter_words,
    option_words,
    speculation_words,
)
from specsim.study.plan.candidates import Option, measured_alike
from specsim.study.plan.question import Question, shape_note
from specsim.study.plan.what_if import (
    WORTH,
    Grounds,
    day_advice,
    other_prices,
    slower_from,
    what_ifs,
)
from specsim.study.plan.words import headline, listed


@dataclass(frozen=True)
class Plan:
    """How many GPUs of which kind, at what cost, and how sure that is."""

    question: Question
    capacity: Capacity  # of those that were searched to the end
    options: dict[str, Option]  # all that were tried, by hardware and label
    screened: dict[str, Found]  # what short runs showed
    left_out: list[str]  # what could not be tried, and why
    moved: dict[float, dict[str, Found]] = field(default_factory=dict)
    """What short runs showed with the chance of each draft token moved by so much."""
    is_estimated: bool = False  # by short runs alone
    is_interrupted: bool = False  # by Ctrl-C

    @cached_property
    def found(self) -> dict[str, Found]:
        return {f"{each.hardware.label} {each.policy}": each for each in self.capacity.found}

    def best(self, *, is_off: bool) -> str | None:
        """Return the best option without or with speculation; None if none keeps the limits."""
        names = [name for name in self.found if self.options[name].is_off is is_off]
        return self._cheapest(names)

    def _cheapest(self, names: Iterable[str]) -> str | None:
        """Return the cheapest of some options; those that were searched go first."""
        known = [name for name in names if self._any(name).cost_per_hour is not None]
        return min(known, key=self._rank, default=None)

    def _is_searched(self, name: str) -> bool:
        return name in self.found and not self.is_estimated

    def _any(self, name: str) -> Found:
        return self.found.get(name) or self.screened[name]

    def _rank(self, name: str) -> tuple[bool, float, bool, float]:
        found = self._any(name)
        probe = found.at_target
        latency = 0.0 if probe is None else probe.latencies_ms["mean_e2el_ms"]
        # Of equal cost, what vLLM does by itself comes first.
        is_estimated = not self._is_searched(name)
        return is_estimated, found.cost_per_hour or 0.0, self.options[name].needs_a_policy, latency

    @cached_property
    def taken(self) -> str | None:
        """The option of least cost; of two with one cost, the faster if that is shown."""
        without, using = self.best(is_off=True), self.best(is_off=False)
        if without is None or using is None:
            return without or using
        costs = [self.found[name].cost_per_hour or 0.0 for name in (without, using)]
        if costs[0] != costs[1]:
            return using if costs[1] < costs[0] else without
        gain = against(self.found[without], self.found[using], is_searched=True)
        return using if gain is not None and gain.low is not None and gain.low > 1 else without

    @property
    def ties(self) -> list[str]:
        """Options of another cost, which is not shown to be higher than that of the one taken."""
        leaders = [f"{each.hardware} {each.policy}" for each in self.capacity.cheapest.leaders]
        if self.taken is None or self.taken not in leaders:
            return leaders
        cost = self.found[self.taken].cost_per_hour
        return [name for name in leaders if self.found[name].cost_per_hour != cost]

    @cached_property
    def advice(self) -> Advice:
        question, names = self.question, self._shown
        choices = [self._choice(name) for name in names]
        taken = None if self.taken is None else names.index(self.taken)
        grounds = self._grounds
        return Advice(
            model=question.command.model,
            traffic=question.traffic.name,
            requests_per_second=question.rate,
            attainment=question.attainment,
            spare_servers=question.spare_servers,
            slo=question.slo.model_dump(exclude_none=True),
            limit_shares=dict(question.limit_shares),
            currency=question.prices.currency,
            choices=[*choices, *self._impossible()],
            taken=taken,
            off_from=self._off_from(),
            not_shown_cheaper_than=[option_words(self.options[name]) for name in self.ties],
            what_ifs=[] if grounds is None else what_ifs(grounds),
            other_prices=[] if grounds is None else other_prices(grounds),
            day=day_advice(grounds, question.day) if grounds and question.day else None,
            api=self._api(),
            assumptions=self._assumptions(names),
            tried=[self._tried(name) for name in self.options],
        )

    @property
    def _grounds(self) -> Grounds | None:
        if self.taken is None:
            return None
        tried = {name: (option, self._any(name)) for name, option in self.options.items()}
        searched = frozenset(name for name in self.found if self._is_searched(name))
        return Grounds(self.question, tried, searched, self.screened, self.moved, self.taken)

    def _api(self) -> ApiAdvice | None:
        question = self.question
        if question.api_price is None or self.taken is None:
            return None
        prices, lens = question.api_price, question.traffic.mean_lens
        per_request = sum(price * length for price, length in zip(prices, lens, strict=True)) / 1e6
        rented = self.found[self.taken].cost_per_hour
        return ApiAdvice(
            per_million=prices,
            mean_lens=lens,
            cost_per_hour=per_request * question.rate * 3600,
            cost_per_day=question.day and per_request * question.day.requests,
            same_cost_at=rented and rented / 3600 / per_request,
        )

    @property
    def worth_moving(self) -> list[str]:
        """Options with speculation that are rented, or might be, were more drafts accepted."""
        if self.taken is None:
            return []
        cost = self.found[self.taken].cost_per_hour or 0.0
        best = (self._cheapest(own) for own in self._with_speculation.values())
        return [n for n in best if n and (self._any(n).cost_if(WORTH) or inf) <= cost]

    @property
    def _with_speculation(self) -> dict[str, list[str]]:
        """Options with speculation, by hardware."""
        found: dict[str, list[str]] = {}
        for name, option in self.options.items():
            if not option.is_off:
                found.setdefault(option.hardware.label, []).append(name)
        return found

    @cached_property
    def _shown(self) -> list[str]:
        """Options to show: of each GPU the best without speculation and the best with it.

        Both on the hardware that is best of its GPU, so that they compare.
        """
        shown: list[str] = []
        for gpu in self.question.gpus:
            for is_apart in (False, True):  # prefill and decode
                shown += self._shown_of(gpu, is_apart=is_apart)
        return shown

    def _shown_of(self, gpu: str, *, is_apart: bool) -> list[str]:
        places = {name: option.hardware for name, option in self.options.items()}
        own = [n for n, h in places.items() if h.profile.gpu == gpu and bool(h.pools) == is_apart]
        leader = self.taken if self.taken in own else self._cheapest(own)
        if leader is None:
            return own[:1]
        beside = [name for name in own if places[name].label == places[leader].label]
        shown = []
        for is_off in (True, False):
            names = [name for name in beside if self.options[name].is_off is is_off]
            best = self.taken if self.taken in names else self._cheapest(names)
            shown += [best] if best is not None else names[:1]
        return shown

    def _none_beside(self, name: str) -> str | None:
        """Return no speculation on the same hardware; None of itself, or where it was not tried."""
        none = f"{self.options[name].hardware.label} off"
        return none if none in self.options and none != name else None

    def _choice(self, name: str) -> Choice:
        none, found = self._none_beside(name), self._any(name)
        are_searched = none is not None and self._is_searched(none) and self._is_searched(name)
        over = None if none is None else against(self._any(none), found, is_searched=are_searched)
        is_searched = self._is_searched(name)
        return choice_of(self.options[name], found, is_searched=is_searched, over=over)

    def _off_from(self) -> float | None:
        none = None if self.taken is None else self._none_beside(self.taken)
        if self.taken is None or none is None:
            return None
        return slower_from(self._any(none), self.found[self.taken])

    def _impossible(self) -> list[Choice]:
        """Return the GPUs on which nothing could be tried."""
        tried = {option.hardware.profile.gpu for option in self.options.values()}
        return [
            Choice(
                gpu=gpu,
                hardware=gpu,
                policy=None,
                speculation="-",
                state="impossible",
                why="; ".join(text for text in self.left_out if _is_of(gpu, text)),
            )
            for gpu in self.question.gpus
            if gpu not in tried
        ]

    def _assumptions(self, shown: list[str]) -> list[str]:
        presets: dict[str, list[str]] = {}
        for option in (self.options[name] for name in shown):
            if option.acceptance and (drafter := drafter_words(option)):
                presets.setdefault(option.acceptance, []).append(drafter)
        shape = shape_note(self.question.command.model)
        acceptance = [
            f"acceptance of {listed([*dict.fromkeys(drafters)])}: {said}"
            for said, drafters in presets.items()
        ]
        return [self.question.traffic.note, *([shape] if shape else []), *acceptance]

    @property
    def warnings(self) -> list[str]:
        question = self.question
        rooflines = {
            option.hardware.label: measured_alike(option)
            for option in self.options.values()
            if not option.hardware.is_measured
        }
        limit = question.command.engine.get("max_model_len")
        is_long = limit is not None and question.traffic.longest > limit
        others = [
            text
            for text in self.left_out
            if not any(_is_of(c.gpu, text) for c in self._impossible())
        ]
        missing = None if self.taken is None else self.options[self.taken].missing
        fill_in = "" if missing is None else f"in the files, replace {missing[0]} by {missing[1]}"
        apart = self.taken is not None and bool(self.options[self.taken].hardware.pools)
        by_hand = "prefill and decode apart: behind a proxy that knows both (see serve.sh)"
        cut = "interrupted: this is what was known by then, from short runs where it says estimated"
        return [
            *([cut] if self.is_interrupted else []),
            *([fill_in] if missing else []),
            *([by_hand] if apart else []),
            *(
                f"{label}: no profile{alike}; {ROOFLINE}"
                for label, alike in sorted(rooflines.items())
            ),
            *([f"requests beyond --max-model-len {limit} are simulated, too"] if is_long else []),
            *question.command.notes,
            *(note for note in self.capacity.notes if ROOFLINE not in note),
            *(f"not tried: {text}" for text in others),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values; ``capacity.json`` has what it rests on."""
        question, taken = self.question, self.taken
        return {
            "specsim_version": __version__,
            "seed": question.seed,
            "answer": headline(self.advice),
            **self.advice.model_dump(mode="json"),
            "speculative_config": taken and self.options[taken].speculation,
            "prices": question.prices.model_dump(),
            "left_out": self.left_out,
            "warnings": self.warnings,
        }

    def _tried(self, name: str) -> Tried:
        found = self._any(name)
        probe = found.at_target
        return Tried(
            hardware=found.hardware.label,
            policy=found.policy,
            speculation=speculation_words(self.options[name]),
            is_searched=self._is_searched(name),
            requests_per_second=found.rate,
            cost_per_hour=found.cost_per_hour,
            mean_e2el_ms=None if probe is None else probe.latencies_ms["mean_e2el_ms"],
        )


def _is_of(gpu: str, text: str) -> bool:
    """Return whether a text about hardware that could not be tried is about a GPU."""
    return re.match(rf"{re.escape(gpu)}(-tp\d+)?[: ]", text) is not None
