"""Proposing by what trimming leaves, verifying at the price of a second, letting a drafter go."""

import dataclasses
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import server_view
from driving import batch, outcome, started, sure_drafts
from numpy.typing import NDArray

from specsim.core.compiled import as_records
from specsim.core.errors import PluginError
from specsim.core.step import StepLoad
from specsim.decisions.loops import row_of
from specsim.decisions.policy import pricing_of
from specsim.policies import POLICIES, KnowsModel, Policy
from specsim.policies.parts.exchange import known_rate, note_step, put_outcome, trade_desk
from specsim.policies.parts.prospects import (
    LEVELS,
    foresee,
    note_course,
    note_firsts,
    prospects,
    take_in,
)
from specsim.policies.parts.upkeep import JointState, admit, no_lives, pay_back, share_of
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary, summarized

UNIFORM = {"kind": "uniform", "prompt": [50, 300], "output": [50, 250]}


def latency(policy: str, rate: float, alpha: float, **changes: Any) -> float:
    """Mean end-to-end latency of a draft model that pays per pass, milliseconds."""
    spec = {"method": "draft_model", "num_speculative_tokens": 7}
    config: dict[str, Any] = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate": rate},
            "lengths": UNIFORM,
            "num_requests": 150,
        },
        "engine": {"async_scheduling": False, "speculative_config": spec},
        "acceptance": {"kind": "bernoulli", "alpha": alpha},
        "profile": "a100/llama-7b",
        "policy": policy,
        **changes,
    }
    value: float = Summary(simulate(Experiment.parse(config, policy))).data["mean_e2el_ms"]
    return value


def total(policy: str, alpha: float, seeds: int, **changes: Any) -> float:
    """The same of several seeds, added up."""
    return sum(latency(policy, 0.0, alpha, seed=seed, **changes) for seed in range(seeds))


def test_a_useless_draft_model_costs_next_to_nothing() -> None:
    off = latency("off", 8.0, 0.02)
    assert latency("joint", 8.0, 0.02) < 1.01 * off
    assert latency("static:k=1", 8.0, 0.02) > 1.05 * off  # the cost that is saved


@pytest.mark.parametrize("rate", [2.0, 12.0])
def test_a_draft_model_of_half_its_tokens_is_asked_for_what_pays(rate: float) -> None:
    joint = latency("joint", rate, 0.5)
    assert joint < 1.003 * latency("goodput", rate, 0.5)
    assert joint < 0.8 * latency("draft_goodput", rate, 0.5)  # which drafts seven tokens always


def test_the_drafter_stops_where_one_more_pass_is_not_worth_its_time() -> None:
    """A pass takes a tenth of a step, so it is to add a tenth of what that emits."""

    def stopped(confidences: list[float]) -> int | None:
        policy, memory = started("joint", 5, lambda load, lens: 1.0 + 0.1 * np.max(lens),
                                 plain_time=lambda load: 1.0)  # fmt: skip
        policy.observe(outcome([0], [0], load=StepLoad(1, 1), target_time=1.0), memory)
        assert policy.draft_lens(batch(0), memory) == [5]
        found: int | None = policy.stop_len(batch(0), sure_drafts(confidences), memory)
        return found

    assert stopped([0.9] * 5) == 5
    assert stopped([0.9, 0.02, 0.9, 0.9, 0.9]) == 2
    # What would come after is not known by then.
    assert stopped([0.02, 0.9, 0.9, 0.9, 0.9]) == stopped([0.02] * 5) == 1


@pytest.mark.parametrize(("dearer_until", "stop"), [(2, 5), (5, 1)])
def test_the_drafter_goes_on_if_many_tokens_pay_though_the_next_does_not(
    dearer_until: int, stop: int
) -> None:
    """The first tokens that are verified take half a step each, the others nothing."""

    def step_time(load: StepLoad, lens: Any) -> float:
        dearer = min(load.batched_tokens - 1, dearer_until)
        return float(1.0 + 0.5 * dearer + 0.02 * np.max(lens))

    policy, memory = started("joint", 5, step_time, plain_time=lambda load: 1.0)
    policy.observe(outcome([0], [0], load=StepLoad(1, 1), target_time=1.0), memory)
    assert policy.draft_lens(batch(0), memory) == [5]
    assert policy.stop_len(batch(0), sure_drafts([0.45, 0.9, 0.9, 0.9, 0.9]), memory) == stop


def test_reading_prompts_is_borne_by_all_steps_that_gain_from_it() -> None:
    lives = as_records(no_lives())[0]
    assert share_of(lives, 0, 0.0, 0) == 0.0
    admit(lives, 10, 0.5)
    # While nobody has ended, a request is taken to decode for 100 steps.
    assert share_of(lives, 10, 10.0, 10) == pytest.approx(10 * 0.05 / 100)
    for _ in range(19):
        share_of(lives, 10, 10.0, 10)
    # Two end after 20 steps; five that were expected to live for 100 are still counted.
    share = share_of(lives, 8, 8.0, 8)
    assert share == pytest.approx(8 * 0.05 / ((5 * 100 + 2 * 20) / (5 + 2)), rel=0.01)


def test_a_draft_model_that_pays_is_not_given_up_in_a_burst(in_graphs: str) -> None:
    lengths = {"kind": "uniform", "prompt": [600, 1200], "output": [150, 500]}
    arrivals = {"kind": "poisson", "rate": 52.0}
    workload = {"arrivals": arrivals, "lengths": lengths, "num_requests": 60}
    joint, goodput = (
        latency(policy, 0.0, 0.7, workload=workload, profile=in_graphs)
        for policy in ("joint", "goodput")
    )
    assert joint < 1.01 * goodput


def test_the_drafter_reads_nothing_of_whom_it_has_let_go() -> None:
    config = {
        "workload": {"arrivals": {"kind": "poisson", "rate": 6.0}, "lengths": UNIFORM,
                     "num_requests": 60},
        "engine": {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 5}},
        "acceptance": {"kind": "bernoulli", "alpha": 0.01},
        "profile": "a100/llama-7b",
        "policy": "joint",
    }  # fmt: skip
    result = simulate(Experiment.parse(config, "joint"), check=True, keeps_steps=True)
    assert (result.replicas[0].steps["draft_time"][-200:] == 0.0).mean() > 0.9


@pytest.mark.parametrize(
    ("method", "behind"),
    [("eagle3", 1.0), ("draft_model", 1.08)],
    ids=["nothing where k is 0", "a pass where k is 0"],
)
def test_a_drafter_that_was_given_up_is_tried_again(
    in_graphs: str, method: str, behind: float
) -> None:
    """It comes to pay after 50 requests, most of which it was not worth drafting for.

    One that reads what the target reads is tried the more rarely, by what a try costs.
    """
    profile = {"eagle3": "h100/llama-3.1-8b", "draft_model": in_graphs}[method]

    def after(alpha: float, policy: str) -> float:
        before, now = ({"kind": "bernoulli", "alpha": each} for each in (0.15, alpha))
        return latency(
            policy, 0.0, 0.0,
            workload={
                "arrivals": {"kind": "poisson", "rate": 8.0},
                "lengths": UNIFORM,
                "num_requests": 600,
            },
            engine={
                "async_scheduling": False,
                "speculative_config": {"method": method, "num_speculative_tokens": 5},
            },
            acceptance={"kind": "shift", "at_request": 50, "before": before, "after": now},
            profile=profile,
        )  # fmt: skip

    assert after(0.7, "joint") < behind * after(0.7, "goodput") < 0.8 * after(0.7, "off")
    assert after(0.15, "joint") < 1.005 * after(0.15, "off")


@pytest.mark.parametrize("method", ["mtp", "draft_model"])
def test_a_try_ends_with_its_requests(in_graphs: str, method: str) -> None:
    """These are over before as much was drafted for them as was meant to be."""
    profile = {"mtp": "h100/mimo-7b", "draft_model": in_graphs}[method]
    before, after = ({"kind": "bernoulli", "alpha": each} for each in (0.02, 0.9))
    found = {
        policy: latency(
            policy, 0.0, 0.0,
            workload={
                "arrivals": {"kind": "poisson", "rate": 20.0},
                "lengths": {"kind": "uniform", "prompt": [20, 60], "output": [6, 12]},
                "num_requests": 400,
            },
            engine={"speculative_config": {"method": method, "num_speculative_tokens": 4}},
            acceptance={"kind": "shift", "at_request": 50, "before": before, "after": after},
            profile=profile,
        )
        for policy in ("off", "joint", "goodput")
    }  # fmt: skip
    gained, possible = (found["off"] - found[policy] for policy in ("joint", "goodput"))
    assert gained > 0.5 * possible > 0.0


def test_a_try_comes_the_sooner_the_more_it_may_gain() -> None:
    """Of 100 requests the first 20 are hard to draft for, and those after them easy."""
    spec = {"method": "draft_model", "num_speculative_tokens": 8}
    before, after = ({"kind": "bernoulli", "alpha": each} for each in (0.1, 0.9))
    changes: dict[str, Any] = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 5.0},
            "lengths": {"kind": "uniform", "prompt": [600, 1600], "output": [10, 40]},
            "num_requests": 100,
        },
        "engine": {"speculative_config": spec},
        "acceptance": {"kind": "shift", "at_request": 20, "before": before, "after": after},
    }

    assert total("joint", 0.0, 6, **changes) < total("goodput", 0.0, 6, **changes)


def test_asynchronously_a_try_of_one_request_tells_that_drafting_pays_for_all(
    in_graphs: str,
) -> None:
    """Of some ten that decode it is one, with four tokens; many of before were rejected."""
    spec = {"method": "draft_model", "num_speculative_tokens": 5}
    before, after = ({"kind": "bernoulli", "alpha": each} for each in (0.05, 0.8))
    changes: dict[str, Any] = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 12.0},
            "lengths": {"kind": "uniform", "prompt": [20, 60], "output": [50, 150]},
            "num_requests": 100,
        },
        "engine": {"async_scheduling": True, "speculative_config": spec},
        "acceptance": {"kind": "shift", "at_request": 36, "before": before, "after": after},
        "profile": in_graphs,
    }

    off, joint, best = (
        total(policy, 0.0, 4, **changes) for policy in ("off", "joint", "static:k=1")
    )
    assert off - joint > off - best > 0.0


@pytest.mark.parametrize(
    ("spent", "is_closed", "gain", "left"),
    [(2.0, 0, 0.5, 1.5), (2.0, 0, -0.5, 2.5), (0.3, 0, 0.5, 0.0), (0.0, 0, -0.5, 0.0),
     (2.0, 1, 0.5, 2.0)],
    ids=["gained", "lost", "made up for", "of no try", "given up"],
)  # fmt: skip
def test_what_came_of_a_try_counts_as_its_cost(
    spent: float, is_closed: int, gain: float, left: float
) -> None:
    state = as_records(row_of(JointState, spent=spent, is_closed=is_closed))[0]
    pay_back(state, gain)
    assert state.spent == left


@pytest.mark.parametrize(("pass_ms", "least", "most"), [(2100, 0, 1), (1500, 16, 100)])
def test_a_drafter_that_no_draft_could_make_pay_is_not_tried_out(
    serve: Callable[..., Any], steps: Callable[..., Any], pass_ms: float, least: int, most: int
) -> None:
    """All of five tokens are accepted; a pass might take half of what the profile says."""
    latency = {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": pass_ms}
    costs = {"delta_ms": 1000, "drafts": {"draft_model": {"basis": "pass", "latency": latency}}}
    run = serve("joint", [(0, 10, 100), (300, 10, 100)], speculative=("draft_model", 5),
                costs=costs)  # fmt: skip
    assert least <= sum(steps(run, "drafts")) <= most


def test_who_comes_after_a_request_that_is_hard_to_draft_for_is_served() -> None:
    """Mostly one request decodes at a time, and one of five is let go of, since it is hard."""
    found = {
        policy: latency(
            policy, 0.0, 0.0,
            workload={
                "arrivals": {"kind": "poisson", "rate": 0.5},
                "lengths": {"kind": "uniform", "prompt": [100, 500], "output": [100, 350]},
                "num_requests": 200,
            },
            engine={"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}},
            acceptance={"kind": "beta", "a": 0.4, "b": 0.1},
            profile="rtx-pro-6000/gpt-oss-20b",
        )
        for policy in ("off", "joint", "goodput")
    }  # fmt: skip
    gained, possible = (found["off"] - found[policy] for policy in ("joint", "goodput"))
    assert gained > 0.6 * possible > 0.0


def test_drafts_are_priced_by_the_prompts_that_steps_read() -> None:
    """Beyond 100 tokens, as where prompts are read, each takes as long as a step of one."""

    def step_time(load: StepLoad, lens: Any) -> float:
        return 1.0 + max(load.batched_tokens - 100, 0) + 0.01 * float(np.max(lens))

    policy, memory = started("joint", 5, step_time, plain_time=lambda load: 1.0)
    policy.observe(outcome([0], [0], load=StepLoad(1, 1), target_time=1.0), memory)
    assert policy.draft_lens(batch(0), memory) == [5]
    reading = dataclasses.replace(batch(0), load=StepLoad(1, 501, 2, 500))
    for _ in range(60):
        policy.draft_lens(reading, memory)
    assert policy.draft_lens(batch(0), memory) == [0]


def test_under_v0_the_drafter_is_charged_for_prompts_read_by_themselves() -> None:
    """It reads them in steps in which nobody decodes, each with a pass of its own."""
    spec = {"method": "draft_model", "num_speculative_tokens": 7}
    changes: dict[str, Any] = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 30.0},
            "lengths": {"kind": "uniform", "prompt": [80, 160], "output": [30, 140]},
            "num_requests": 100,
        },
        "engine": {"scheduler": "prefill_first", "speculative_config": spec},
        "profile": "h100/llama-3.1-8b-kernels",
    }

    off, joint, static = (
        total(policy, 0.75, 4, **changes) for policy in ("off", "joint", "static:k=1")
    )
    assert joint < 1.02 * off < static


def test_drafts_that_have_become_poor_are_soon_known_to_be() -> None:
    """A thousand good ones before them say nothing of them."""
    before, after = ({"kind": "bernoulli", "alpha": each} for each in (0.45, 0.05))
    workload = {
        "arrivals": {"kind": "poisson", "rate": 26.0},
        "lengths": {"kind": "uniform", "prompt": [100, 450], "output": [10, 80]},
        "num_requests": 200,
    }
    spec = {"method": "eagle3", "num_speculative_tokens": 7}
    joint, goodput = (
        latency(
            policy, 0.0, 0.0, workload=workload, profile="h100/llama-3.1-8b",
            engine={"async_scheduling": False, "speculative_config": spec},
            acceptance={"kind": "shift", "at_request": 100, "before": before, "after": after},
        )
        for policy in ("joint", "goodput")
    )  # fmt: skip
    assert joint < goodput


@pytest.mark.parametrize(("num", "is_forgotten"), [(10, True), (1, False)])
def test_what_was_foretold_is_forgotten_if_it_was_wrong_of_many_requests(
    num: int, is_forgotten: bool
) -> None:
    """Forty drafts, of as many requests as draft at a time; each decodes for 100 steps."""
    seen = as_records(prospects(2, 0.7).fit(2 * num))
    seen.sizes[0], seen.nums[:], seen.course[0].foretold = num, 100.0, 0.7
    for _ in range(40 // num):
        seen.survival[: 2 * num] = 0.1
        note_course(seen, 100.0)
    assert (seen.nums.sum() < 33.0) == is_forgotten


def test_asynchronously_all_sequences_draft_alike_and_most_of_the_gain_is_kept() -> None:
    engine = {
        "async_scheduling": True,
        "speculative_config": {"method": "draft_model", "num_speculative_tokens": 7},
    }
    config = {
        "workload": {"arrivals": {"kind": "poisson", "rate": 2.0}, "lengths": UNIFORM,
                     "num_requests": 60},
        "engine": engine,
        "acceptance": {"kind": "beta", "a": 2.0, "b": 1.0},
        "profile": "a100/llama-7b",
        "policy": "joint",
    }  # fmt: skip
    result = simulate(Experiment.parse(config, "joint"), keeps_steps=True)
    steps = result.replicas[0].steps
    assert (steps["asked_draft_len"] == np.rint(steps["asked_draft_len"])).all()
    assert steps["asked_draft_len"].max() > 1
    best = latency("static:k=3", 2.0, 0.7, engine=engine)
    assert latency("joint", 2.0, 0.7, engine=engine) < 1.01 * best


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_what_drafts_really_take_is_learned(times: float) -> None:
    """Drafting takes so many times as long as was said, and all else half more."""
    policy, memory = started("joint", 5, lambda load, lens: 1.0 + 0.1 * np.max(lens),
                             plain_time=lambda load: 1.0)  # fmt: skip
    for _ in range(200):
        [k] = policy.draft_lens(batch(0), memory)
        drafting = 0.1 * k * times
        came = outcome([k], [k], load=StepLoad(1, 1), target_time=1.5, draft_time=drafting)
        policy.observe(came, memory)
    learned = memory.desk.arrays.trade.learned[0]
    assert learned["target"] == pytest.approx(1.5, rel=0.03)
    assert learned["drafting"] == pytest.approx(times / 1.5, rel=0.06)


class DropsTooFew(Policy):
    """Names nobody, in an array of the wrong length."""

    kind: str = "drops_too_few"

    def draft_lens(self, batch: Any, memory: Any) -> int:
        return 1

    def drops(self, batch: Any, memory: Any) -> Any:
        return np.zeros(batch.size + 1, dtype=bool)


class LooksAt(Policy):
    """Takes the first token of every draft that it is shown."""

    kind: str = "looks_at"
    uses_confidences = True
    needs_sync = True

    def draft_lens(self, batch: Any, memory: Any) -> Any:
        assert batch.drafts.confidences[~batch.in_prefill].shape[1:] == (5,)
        assert (batch.drafts.draft_lens == np.where(batch.in_prefill, 0, 5)).all()
        return np.minimum(batch.drafts.draft_lens, 1)


def test_a_lookup_shows_its_drafts_also_where_their_acceptance_comes_from_a_model() -> None:
    config = {
        "workload": {"arrivals": {"kind": "burst"}, "lengths": UNIFORM, "num_requests": 6},
        "engine": {
            "async_scheduling": False,
            "max_num_batched_tokens": 10_000,
            "speculative_config": {"method": "suffix", "num_speculative_tokens": 5},
        },
        "acceptance": {"kind": "bernoulli", "alpha": 0.5},
        "profile": "h100/llama-3.1-8b",
        "policy": LooksAt(),
    }
    steps = simulate(Experiment.parse(config, "test"), keeps_steps=True).replicas[0].steps
    # It pays for what it takes, 20 us a token.
    assert steps["draft_time"] == pytest.approx(20e-6 * steps["num_requests"])


class DropsAll(Policy):
    """Lets go of everyone at once, or of nobody."""

    kind: str = "drops_all"
    now: bool = True

    def draft_lens(self, batch: Any, memory: Any) -> int:
        return 0

    def drops_now(self, memory: Any) -> bool:
        return self.now

    def drops(self, batch: Any, memory: Any) -> Any:
        return np.ones(batch.size, dtype=bool) if self.now else None


@pytest.mark.parametrize("policy", ["schedule", "keeps", "drops", "may not drop"])
def test_v0_runs_the_drafter_where_k_is_0_but_not_for_whom_it_has_let_go(policy: str) -> None:
    policies = {
        "schedule": {"kind": "schedule", "ranges": [[1, 256, 0]]},
        "keeps": DropsAll(now=False),
        "drops": DropsAll(),
        "may not drop": DropsAll(),
    }
    config = {
        "workload": {"arrivals": {"kind": "burst"}, "lengths": UNIFORM, "num_requests": 3},
        "engine": {
            "scheduler": "prefill_first",
            "speculative_config": {"method": "draft_model", "num_speculative_tokens": 5},
            "drafter_serves_all": policy == "may not drop",
        },
        "acceptance": {"kind": "bernoulli", "alpha": 0.5},
        "profile": "a100/llama-7b",
        "policy": policies[policy],
    }
    run = simulate(Experiment.parse(config, "test"), keeps_steps=True)
    steps = run.replicas[0].steps
    assert steps["draft_tokens"].sum() == 0
    one_pass = 1e-3 + 1.73e-6 * steps["batched_tokens"] + 23.8e-9 * steps["context_tokens"]
    expected = 0.0 if policy == "drops" else one_pass
    assert steps["draft_time"] == pytest.approx(expected)


@pytest.mark.parametrize("policy", ["goodput", "joint", "turbospec", DropsAll()])
def test_a_drafter_that_serves_all_reads_what_no_policy_drafts_for(policy: Any) -> None:
    found = {}
    for serves_all in (False, True):
        config = {
            "workload": {"arrivals": {"kind": "burst"}, "lengths": UNIFORM, "num_requests": 60},
            "engine": {
                "max_num_seqs": 8,
                "speculative_config": {"method": "draft_model", "num_speculative_tokens": 5},
                "drafter_serves_all": serves_all,
            },
            "acceptance": {"kind": "bernoulli", "alpha": 0.02},
            "profile": "h100/llama-3.1-8b-kernels",
            "policy": policy,
        }
        found[serves_all] = summarized(Experiment.parse(config, "test"))
    assert 0 < found[False].tables.totals["let_go"] <= 60
    assert "let go of" in found[False].warnings[-1]
    assert found[True].tables.totals["let_go"] == 0
    assert not any("let go of" in each for each in found[True].warnings)
    drafting = {key: float(each.tables.totals["draft_time"]) for key, each in found.items()}
    assert drafting[True] > 2 * drafting[False]


def test_who_is_let_go_of_is_checked() -> None:
    config = {
        "workload": {"arrivals": {"kind": "burst"}, "lengths": UNIFORM, "num_requests": 3},
        "engine": {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 5}},
        "acceptance": {"kind": "bernoulli", "alpha": 0.5},
        "profile": "a100/llama-7b",
        "policy": DropsTooFew(),
    }
    with pytest.raises(PluginError, match="drops returned"):
        simulate(Experiment.parse(config, "test"))


def step(load: StepLoad, lens: Any) -> float:
    """A step of 8 ms that takes 0.5 ms per batched token, and 1 ms per pass of the drafter."""
    longest = lens if isinstance(lens, int) else max(lens, default=0)
    return 8e-3 + 0.5e-3 * load.batched_tokens + 1e-3 * longest


def emitting(policy: Any, memory: Any, tokens: int, time: float) -> None:
    """Let steps of two sequences emit so many tokens in so many seconds each."""
    for _ in range(5):
        policy.observe(
            outcome([0, 0], [0, 0], output_tokens=tokens, target_time=time, load=StepLoad(0, 2, 2)),
            memory,
        )


@pytest.mark.parametrize("rate", [100.0, 400.0, 900.0])
def test_what_is_verified_is_worth_most_at_the_price_of_a_second(rate: float) -> None:
    policy, memory = started("joint", 4, step)
    emitting(policy, memory, 2, 2 / rate)
    view = sure_drafts([0.9, 0.7, 0.5, 0.4], [0.6, 0.9, 0.2, 0.9])
    lens = policy.verify_lens(batch(0, 1, drafts=8), view, memory)
    gains = memory.desk.arrays.gains[:8].reshape(4, 2).T.copy()

    def worth(first: int, second: int) -> float:
        time = step(StepLoad(0, 2 + first + second, 2), 0)
        return float(2 + gains[0, :first].sum() + gains[1, :second].sum()) - rate * time

    assert worth(*lens) == pytest.approx(max(worth(*each) for each in product(range(5), range(5))))


def test_a_second_is_worth_what_decoding_yields_in_it() -> None:
    server = server_view(4, step)
    desk = trade_desk(server, 50, pricing=pricing_of(server)).fit(8)
    assert known_rate(desk, 3) == 0.0
    load = StepLoad(0, 4, 2)
    seen = outcome([1, 1], [1, 0], target_time=0.01, draft_time=0.005, load=load)
    put_outcome(desk, seen)
    note_step(as_records(desk))
    assert known_rate(desk, 2) == pytest.approx(3 / 0.015)
    assert known_rate(desk, 4) == pytest.approx(6 / 0.015)  # as much for each sequence
    # A prompt of 496 tokens beside them, half a millisecond each, is left out.
    mixed, time = StepLoad(0, 500, 3, 496), 0.015 + 496 * 0.5e-3
    put_outcome(desk, outcome([1, 1], [1, 0], target_time=time, load=mixed))
    note_step(as_records(desk))
    assert known_rate(desk, 2) == pytest.approx(3 / 0.015)
    # Drafts made before its prompts were read can leave less than a step takes: that is no rate.
    put_outcome(desk, outcome([1, 1], [1, 0], target_time=time - 0.014, load=mixed))
    note_step(as_records(desk))
    assert known_rate(desk, 2) == pytest.approx(3 / 0.015)


def foreseen(longest: int, drafts: Iterable[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """What drafts of 1, 2, ... tokens come to after such drafts: verified tokens and accepted."""
    desk = prospects(longest, 0.5).fit(1000)
    for rows in drafts:
        num, width = rows.shape
        desk.survival[: num * longest].reshape(num, longest)[:, :width] = rows
        desk.taken_lens[:num], desk.classes[:num], desk.sizes[0] = width, 0, num
        note_firsts(desk)
        take_in(desk)
    desk.classes[0], desk.sizes[0] = 0, 1
    foresee(desk)
    size = longest * LEVELS
    return [each[:size].reshape(longest, LEVELS) for each in (desk.tokens, desk.gained)]


def test_prospects_are_what_drafts_showed() -> None:
    rng = np.random.default_rng(0)
    survival = np.cumprod(rng.beta(0.5, 0.5, (3000, 2)), axis=1)
    tokens, gained = foreseen(2, np.split(survival, 100))
    for price in (0.25, 0.5, 0.75):
        left_out = int(price * 32)  # levels below the price
        for longest in (1, 2):
            rows = survival[:, :longest]
            is_worth = rows >= price
            found = tokens[longest - 1, -1 - left_out], gained[longest - 1, -1 - left_out]
            assert found[0] == pytest.approx(is_worth.sum() / len(rows), abs=0.05)
            assert found[1] == pytest.approx((rows * is_worth).sum() / len(rows), abs=0.05)


def test_short_drafts_are_continued_by_the_first_tokens_of_others() -> None:
    rng = np.random.default_rng(0)
    gained = foreseen(3, [rng.beta(0.5, 0.5, (30, 1)) for _ in range(100)])[1]
    assert gained[:, -1] == pytest.approx([0.5, 0.75, 0.875], abs=0.04)


def test_without_confidences_it_goes_by_past_acceptance() -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 5}
    engine = {"async_scheduling": False, "speculative_config": spec}
    mine, exact = (
        latency(policy, 8.0, 0.6, engine=engine) for policy in ("joint", "goodput_exact")
    )
    assert mine < 1.005 * exact


def test_bayes_with_confidences_is_ahead_of_bayes_without() -> None:
    with_them, without, joint = (
        latency(policy, 12.0, 0.6, acceptance={"kind": "beta", "a": 3.0, "b": 2.0})
        for policy in ("bayes", "bayes:confidences=false", "joint")
    )
    assert with_them < without
    assert with_them < 1.005 * joint
    assert isinstance(POLICIES.parse("bayes"), KnowsModel)
