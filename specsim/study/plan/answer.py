"""Plan: the answer, and the findings behind it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import inf
from typing import Any, TypeVar

from specsim.core.figures import figures
from specsim.core.version import __version__
from specsim.hardware import GIB
from specsim.run.deployment import Deployment
from specsim.run.validity import ROOFLINE
from specsim.study.capacity import Capacity, Found, hardware_notes
from specsim.study.loads import few_rows
from specsim.study.plan.advice import (
    Advice,
    AgainstNone,
    ApiAdvice,
    Choice,
    Tried,
    against,
    why_not,
)
from specsim.study.plan.candidates import Option
from specsim.study.plan.hardware import measured_alike
from specsim.study.plan.names import shape_note
from specsim.study.plan.question import Question
from specsim.study.plan.what_if import WORTH, day_advice, other_prices, slower_from, what_ifs
from specsim.study.plan.words import headline, in_words

K = TypeVar("K")

SHORT = 1.15
"""Ratio within which short runs give the capacity of long ones; see experiments/plan-check."""
_LITTLE = 8 * GIB  # for KV blocks: servers differ by 2 GiB, which is a quarter of it
_NEXT = 2  # options searched next, with and without speculation, if the best had no long runs
_WORTHWHILE = 0.98  # of the latency of the best: smaller gains do not count
_MOST = 3  # kinds of hardware with long runs, each with and without speculation


@dataclass(frozen=True)
class Plan:
    """How many GPUs of which kind at what cost, and how sure that is, at some stage."""

    question: Question
    left_out: list[str]  # what could not be tried, and why
    options: dict[str, Option] = field(default_factory=dict)
    """All options that were tried, by hardware and label."""
    screened: dict[str, Found] = field(default_factory=dict)  # results of short runs
    searched: dict[str, Found] = field(default_factory=dict)
    """Results of long runs; without any, the answer is estimated from short runs."""
    moved: dict[float, dict[str, Found]] = field(default_factory=dict)
    """Results of short runs with the chance of each draft token moved, by how much."""
    is_interrupted: bool = False  # by Ctrl-C

    @cached_property
    def found(self) -> dict[str, Found]:
        """The findings among which the answer is chosen."""
        return self.searched or {name: self.screened[name] for name in self.finalists()}

    @cached_property
    def capacity(self) -> Capacity:
        found = list(self.found.values())
        experiment = self.options[found[0].name].experiment
        goal, words = found[0].goal, lambda each: self.options[each.name].words
        notes = few_rows(experiment.workload, goal.tolerance) + hardware_notes(found, words)
        return Capacity(experiment, goal, found, notes)

    def known(self, name: str) -> Found:
        """Return the finding of an option, from long runs if it has any."""
        return self.searched.get(name) or self.screened[name]

    def cost(self, name: str, factor: float = 1.0) -> float:
        """Return the cost per hour for the target rate if capacity were `factor` times as high."""
        cost = self.known(name).cost_if(factor)
        return inf if cost is None else cost

    def least(self, names: Iterable[str], factor: float) -> float:
        return min((self.cost(name, factor) for name in names), default=inf)

    def by_hardware(self, names: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self.options[name].hardware.label, []).append(name)
        return found

    def ranked(self, names: Iterable[str]) -> list[str]:
        """Return options, the best first; those with long runs before the others."""
        return sorted(names, key=self._rank)

    def leaders(self, kind: Callable[[Option], K | None]) -> dict[K, Option]:
        """Return the best option of each kind, the best first, without options of kind None."""
        found: dict[K, Option] = {}
        for option in (self.options[name] for name in self.ranked(self.options)):
            if (own := kind(option)) is not None:
                found.setdefault(own, option)
        return found

    def _rank(self, name: str) -> tuple[bool, float, bool, float]:
        # At equal cost, a policy of vLLM's own comes first.
        needs_a_policy = self.options[name].needs_a_policy
        return name not in self.searched, self.cost(name), needs_a_policy, self._latency(name)

    def _latency(self, name: str) -> float:
        """Return the mean latency at the target rate, ms; infinite if the limits are missed."""
        probe = self.known(name).at_target
        return inf if probe is None else probe.latencies_ms["mean_e2el_ms"]

    def cheapest(self, names: Iterable[str]) -> str | None:
        """Return the best of some options; None if none keeps the limits."""
        return next((name for name in self.ranked(names) if self.cost(name) < inf), None)

    def finalists(self) -> list[str]:
        """Return the options for long runs, the likely best first."""
        chosen: list[str] = []
        for is_off in (True, False):
            names = self.ranked(self._those(self.options, is_off=is_off))
            apart = [name for name in names if self.options[name].pools]
            chosen += self._of_kind([name for name in names if name not in apart[1:]])
        return self.ranked(chosen)

    def _of_kind(self, names: list[str]) -> list[str]:
        """Return, of options in order, those of each hardware that may be the cheapest.

        These are its best one, and its one of highest capacity if that may need fewer replicas.
        """
        bound = self.least(names, 1 / SHORT)
        likely = self.by_hardware(name for name in names if inf > self.cost(name, SHORT) <= bound)
        chosen: list[str] = []
        for own in list(likely.values())[:_MOST]:
            strongest = max(own, key=lambda name: self.screened[name].rate or 0.0)
            may_be_cheaper = self.cost(strongest, SHORT) < self.cost(own[0])
            chosen += [own[0], strongest] if may_be_cheaper and strongest != own[0] else [own[0]]
        return chosen

    def overtaking(self) -> list[str]:
        """Return options without long runs that would rank above the best one with long runs.

        Long runs may lower the result of the best by short runs, so that another becomes the best.
        """
        chosen: list[str] = []
        for is_off in (True, False):
            best = self.best(is_off=is_off)
            if best is None:
                continue
            cost, latency = self.cost(best), _WORTHWHILE * self._latency(best)
            left = (name for name in self.options if name not in self.searched)
            names = self.ranked(self._those(left, is_off=is_off))
            chosen += [
                name
                for name in names
                if self.cost(name) < cost
                or (
                    self.cost(name) == cost
                    and self._latency(name) < latency
                    and not self.options[name].needs_a_policy
                )
            ][:_NEXT]
        return chosen

    def best(self, *, is_off: bool) -> str | None:
        """Return the best option without or with speculation; None if none keeps the limits."""
        return self.cheapest(self._those(self.found, is_off=is_off))

    def _those(self, names: Iterable[str], *, is_off: bool) -> list[str]:
        return [name for name in names if self.options[name].is_off is is_off]

    @cached_property
    def taken(self) -> str | None:
        """The option of least cost; at equal costs, speculation if it is shown to be faster."""
        without, using = self.best(is_off=True), self.best(is_off=False)
        if without is None or using is None:
            return without or using
        costs = self.cost(without), self.cost(using)
        if costs[0] != costs[1]:
            return using if costs[1] < costs[0] else without
        gain = against(self.found[without], self.found[using], is_searched=True)
        return using if gain is not None and gain.low is not None and gain.low > 1 else without

    @property
    def ties(self) -> list[str]:
        """Options at another cost than the chosen one that are not shown to be more expensive."""
        leaders = [f"{each.hardware} {each.policy}" for each in self.capacity.cheapest.leaders]
        if self.taken is None or self.taken not in leaders:
            return leaders
        return [name for name in leaders if self.cost(name) != self.cost(self.taken)]

    @property
    def _rented(self) -> Option | None:
        return None if self.taken is None else self.options[self.taken]

    @cached_property
    def advice(self) -> Advice:
        question, names = self.question, self._shown
        choices = [self._choice(name) for name in names]
        taken = None if self.taken is None else names.index(self.taken)
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
            not_shown_cheaper_than=[self.options[name].sized_words for name in self.ties],
            what_ifs=what_ifs(self),
            other_prices=other_prices(self),
            day=day_advice(self),
            api=self._api(),
            assumptions=self._assumptions(names),
            tried=[self._tried(name) for name in self.options],
            warnings=self.warnings,
        )

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
        """Options with speculation that are rented, or may be if more drafts were accepted."""
        if self.taken is None:
            return []
        drafting = (name for name, option in self.options.items() if not option.is_off)
        best = (self.cheapest(own) for own in self.by_hardware(drafting).values())
        return [n for n in best if n and self.cost(n, WORTH) <= self.cost(self.taken)]

    @cached_property
    def _shown(self) -> list[str]:
        """Options to show: for each GPU the best without speculation and the best with it.

        Both are on the best hardware of the GPU, so that they can be compared.
        """
        shown: list[str] = []
        for gpu, is_apart in product(self.question.gpus, (False, True)):  # prefill and decode
            own = [
                name
                for name, option in self.options.items()
                if option.hardware.profile.gpu == gpu and bool(option.pools) is is_apart
            ]
            leader = self.taken if self.taken in own else self.cheapest(own)
            if leader is None:
                shown += own[:1]
                continue
            beside = self.by_hardware(own)[self.options[leader].hardware.label]
            for names in (self._those(beside, is_off=is_off) for is_off in (True, False)):
                best = self.taken if self.taken in names else self.cheapest(names)
                shown += [best] if best is not None else names[:1]
        return shown

    def _none_beside(self, name: str) -> str | None:
        """Return the option without drafts on the same hardware; None for itself, or not tried."""
        none = f"{self.options[name].hardware.label} off"
        return none if none in self.options and none != name else None

    def _over_none(self, name: str) -> AgainstNone | None:
        none = self._none_beside(name)
        if none is None:
            return None
        are_searched = none in self.searched and name in self.searched
        return against(self.known(none), self.known(name), is_searched=are_searched)

    def _choice(self, name: str) -> Choice:
        """Return the choice for an option."""
        option, found, is_searched = self.options[name], self.known(name), name in self.searched
        hardware, probe = option.hardware, found.at_target
        head = {
            "gpu": hardware.profile.gpu,
            "hardware": hardware.label,
            "policy": option.label,
            "speculation": option.speculation_words,
            "gpus_per_server": hardware.gpus_per_replica,
            "pools": option.pools,
            "ranks": hardware.ranks,
            "is_measured": hardware.is_measured,
        }
        if found.rate is None or found.replicas is None or probe is None:
            return Choice(**head, state="impossible", why=why_not(found))
        cost, by_model, between = found.cost_per_hour, found.model_interval, found.interval
        beyond, has_own = found.beyond_capacity, bool(found.goal.limit_shares)
        promises = beyond.promises if beyond is not None and has_own else {}
        # Of all rows alike, because each run draws its own requests.
        tokens_per_hour = self.question.rate * self.question.traffic.mean_lens[1] * 3600
        return Choice(
            **head,
            state="searched" if is_searched else "estimated",
            servers=found.replicas,
            servers_interval=found.replicas_interval if is_searched else None,
            gpus=found.replicas * hardware.gpus_per_replica,
            cost_per_hour=cost,
            cost_per_million_tokens=None if cost is None else 1e6 * cost / tokens_per_hour,
            capacity=found.rate,
            capacity_interval=(between.low, between.high) if between and is_searched else None,
            capacity_by_model=by_model,
            servers_by_model=by_model and found.goal.replicas_between(*by_model),
            beyond=None if beyond is None else (beyond.load, beyond.attainment),
            binds=found.binds,
            beyond_kept={name: 1.0 - each.missed for name, each in promises.items()},
            spare=1.0 - probe.load / found.rate,
            reached_ms=probe.reached_ms,
            mean_latency_ms=probe.latencies_ms["mean_e2el_ms"],
            against_none=self._over_none(name),
        )

    def _off_from(self) -> float | None:
        none = None if self.taken is None else self._none_beside(self.taken)
        if self.taken is None or none is None:
            return None
        return slower_from(self.known(none), self.found[self.taken])

    def _impossible(self) -> list[Choice]:
        """Return the GPUs on which no option could be tried."""
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
            if option.acceptance and (drafter := option.drafter):
                presets.setdefault(option.acceptance, []).append(drafter)
        shape = shape_note(self.question.command.model)
        acceptance = [
            f"acceptance of {in_words([*dict.fromkeys(drafters)])}: {said}"
            for said, drafters in presets.items()
        ]
        traffic = self.question.traffic
        prompt, output = (figures(length, 3) for length in traffic.mean_lens)
        lengths = f"{traffic.note}; {prompt} prompt and {output} output tokens in the mean"
        return [lengths, *([shape] if shape else []), *acceptance]

    @property
    def warnings(self) -> list[str]:
        question = self.question
        rooflines = {
            option.hardware.label: measured_alike(option.hardware.profile)
            for option in self.options.values()
            if not option.hardware.is_measured
        }
        others = [
            text
            for text in self.left_out
            if not any(_is_of(c.gpu, text) for c in self._impossible())
        ]
        said, rented = [], self._rented
        if self.is_interrupted:
            said.append(
                "interrupted: this is what was known by then, from short runs where it says "
                "estimated"
            )
        if rented is not None and rented.missing is not None:
            said.append("in the files, replace {} by {}".format(*rented.missing))
        if rented is not None and rented.needs is not None:
            said.append(rented.needs)
        if rented is not None and rented.pools:
            said.append("prefill and decode apart: behind a proxy that knows both (see serve.sh)")
        return [
            *said,
            *(
                f"{label}: no profile{alike}; {ROOFLINE}"
                for label, alike in sorted(rooflines.items())
            ),
            *self._too_long(),
            *question.notes,
            *self._little_memory(),
            *(note for note in self.capacity.notes if ROOFLINE not in note),
            *(f"not tried: {text}" for text in others),
        ]

    def _too_long(self) -> list[str]:
        """Return a warning for requests longer than the server accepts."""
        traffic, limit = self.question.traffic, self.question.longest_served
        if traffic.longest <= limit:
            return []
        return [
            f"{figures(100 * traffic.share_beyond(limit), 2)} % of the requests have more than the "
            f"{limit:,} tokens that the server takes (--max-model-len, or the model's own): it "
            "refuses these or cuts them short; here they are served whole"
        ]

    def _little_memory(self) -> list[str]:
        """Return a warning if little memory is left for KV blocks, where that decides."""
        option = self._rented
        if option is None or option.pools:
            return []
        engine = option.experiment.engine
        if engine.num_gpu_blocks or engine.kv_cache_memory_bytes:
            return []
        memory = Deployment.of(option.experiment, option.hardware.profile).memory
        left = memory.usable_bytes - memory.taken_bytes
        if left > _LITTLE:
            return []
        return [
            f"{option.hardware.label}: {left / GIB:.1f} GiB of each GPU are left for KV blocks, if "
            f"{memory.reserved_bytes / GIB:.3g} are set aside for activations and CUDA graphs; it "
            "may be 1 to 2 more: give what a server's log says by --kv-cache-memory-bytes"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values; ``capacity.json`` has the findings behind it."""
        question, taken = self.question, self.taken
        return {
            "specsim_version": __version__,
            "seed": question.seed,
            "answer": headline(self.advice),
            **self.advice.model_dump(mode="json"),
            "speculative_config": taken and self.options[taken].speculation,
            "prices": question.prices.model_dump(),
            "left_out": self.left_out,
        }

    def _tried(self, name: str) -> Tried:
        found = self.known(name)
        probe = found.at_target
        return Tried(
            hardware=found.hardware.label,
            policy=found.policy,
            speculation=self.options[name].speculation_words,
            is_searched=name in self.searched,
            requests_per_second=found.rate,
            cost_per_hour=found.cost_per_hour,
            mean_e2el_ms=None if probe is None else probe.latencies_ms["mean_e2el_ms"],
        )


def _is_of(gpu: str, text: str) -> bool:
    """Return whether a text about hardware that could not be tried is about this GPU."""
    return re.match(rf"{re.escape(gpu)}(-(tp|pp|dp|dcp)\d+)*[: ]", text) is not None
