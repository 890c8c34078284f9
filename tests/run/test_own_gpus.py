"""Drafters on GPUs of their own: what is kept of a draft, what is counted, what is refused."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from deliveries import of_request
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from specsim.core.errors import ConfigError, ProfileError
from specsim.core.request import Request
from specsim.core.step import StepLoad
from specsim.latency.composed import Composed
from specsim.profile import load_profile
from specsim.profile.from_roofline import RooflineOptions, RooflineProfile
from specsim.profile.model_error import TERMS, known_spreads
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.show.render.run_tables import comparison_table
from specsim.study.capacity import capacity
from specsim.study.compare import compare

OWN = {"profile": "h100/llama-3.2-1b"}
DRAFTER = {"method": "draft_model", "num_speculative_tokens": 3}
CONSTANT = {"kind": "linear", "alpha_ns": 0, "gamma_us": 0}


def experiment(k: int = 4, engine: Any = (), **changes: Any) -> Experiment:
    """Return an experiment whose drafter overlaps."""
    spec = {"method": "draft_model", "num_speculative_tokens": k}
    spec["own_gpus"] = {**OWN, "overlaps": True}
    config = {
        "workload": {
            "arrivals": "burst",
            "lengths": {"kind": "uniform", "prompt": [1, 50], "output": [5, 60]},
            "num_requests": 12,
        },
        "engine": {"speculative_config": spec, **dict(engine)},
        "acceptance": {"kind": "bernoulli", "alpha": 0.7},
        "policy": "static",
        "profile": "h100/llama-3.1-8b",
        **changes,
    }
    return Experiment.parse(config, "a test")


def replayed(lens: list[int], k: int) -> list[tuple[int, int, int]]:
    """Return what each step of a request emits, verifies and accepts, worked out by hand.

    Args:
        lens: How long a draft would survive that begins at each output position.
    """
    at, draft_len, steps = 0, 0, []
    while at < len(lens):
        accepted_len = min(draft_len, lens[at - 1] - 1) if draft_len else 0
        emitted_len = min(accepted_len + 1, len(lens) - at)
        steps.append((emitted_len, draft_len, accepted_len))
        # Meanwhile the drafter has begun where those drafts end, with what the target adds.
        began, is_right = at + draft_len, accepted_len == draft_len
        at += emitted_len
        draft_len = k - 1 if at < len(lens) and is_right and lens[began] else 0
    return steps


def test_its_share_of_the_time_begins_with_the_first_request() -> None:
    """Replicas that neither come nor go are fixed ones, however long nobody asks."""
    workload = {
        "arrivals": {"kind": "piecewise", "segments": [[20, 0], [1, 20.0]]},
        "lengths": {"kind": "uniform", "prompt": [1, 50], "output": [5, 60]},
    }
    scaler = {"kind": "target_queue", "target": 1, "min_replicas": 2, "max_replicas": 2}
    fixed, scaled = (
        Summary(simulate(experiment(workload=workload, **fields))).data["specsim"]["drafter"]
        for fields in ({"replicas": 2}, {"autoscaling": scaler})
    )
    assert scaled["busy_share"] == pytest.approx(fixed["busy_share"])


FATES = st.lists(st.integers(0, 9), min_size=1, max_size=60)


@pytest.mark.slow
@given(fates=st.lists(FATES, min_size=1, max_size=5), k=st.integers(1, 7))
def test_what_is_kept_is_what_a_replay_by_hand_keeps(fates: list[list[int]], k: int) -> None:
    requests = [
        Request(index=i, prompt_len=3 + i, output_len=len(lens), recorded_lens={"a": bytes(lens)})
        for i, lens in enumerate(fates)
    ]
    recorded = experiment(k, acceptance={"kind": "recorded", "proposer": "a"})
    run = simulate(recorded, requests=requests, keeps_deliveries=True)
    for request, lens in enumerate(fates):
        mine = of_request(run, request)
        rows = zip(
            *(each.tolist() for each in (mine.lens, mine.drafted, mine.accepted)), strict=True
        )
        assert list(rows) == replayed(lens, k)


def test_what_a_drafter_does_and_how_many_gpus_it_has_are_told() -> None:
    run = simulate(experiment())
    own, steps = Summary(run).data["specsim"]["drafter"], Summary(run).tables.steps
    asked = (steps["asked_draft_len"] * steps["num_requests"]).sum()
    assert own["drafted_tokens"] == pytest.approx(asked)
    assert 0 < own["busy_share"] < 1
    assert own["gpus"] == load_profile(OWN["profile"]).tensor_parallel_size
    assert "drafter" not in Summary(simulate(experiment(policy="off"))).data["specsim"]


@pytest.mark.parametrize("hidden_ms", [0, 4])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_drafter_is_busy_while_it_drafts(
    constant_step: Callable[..., str], replicas: int, hidden_ms: float
) -> None:
    """Passes of 1 ms, three to a step; requests that come far apart leave servers idle."""
    drafts = {"draft_model": {"latency": {**CONSTANT, "delta_ms": 1}}}
    overhead = {"step_ms": hidden_ms}
    workload = {"arrivals": {"kind": "constant", "rate": 1.0}, "num_requests": 20,
                "lengths": {"kind": "constant", "prompt": 10, "output": 40}}  # fmt: skip
    found = Summary(
        simulate(
            experiment(
                k=3,
                engine={"speculative_config": {**DRAFTER, "own_gpus": {}}},
                profile=constant_step(delta_ms=8, drafts=drafts, overhead=overhead),
                workload=workload,
                replicas=replicas,
            )
        )
    )
    busy, steps = found.data["specsim"]["drafter"]["busy_share"], found.tables.steps
    seconds = 1e-3 * 3 * len(steps)
    assert busy == pytest.approx(seconds / replicas / found.data["duration"], rel=1e-3)
    assert 0.01 < busy < 0.1


@pytest.mark.parametrize("overlaps", [False, True])
def test_times_are_off_by_the_drafter_that_there_is(overlaps: bool) -> None:
    """Not by that of the target's profile, which has another, or none."""
    name = "h200/llama-3.1-8b"
    whole = load_profile(name)
    bare = whole.model_copy(update={"drafts": {}})
    spec = {**DRAFTER, "own_gpus": {"profile": "h200/llama-3.2-1b", "overlaps": overlaps}}
    given = experiment(profile=name, engine={"speculative_config": spec})
    found = [Summary(simulate(given, profile=each)).time_error for each in (whole, bare)]
    assert found[0] == found[1]
    assert found[0] is not None
    drafting = found[0].terms[TERMS.index("drafting")]
    assert drafting == 0 if overlaps else drafting > 0.1 * known_spreads().terms["drafting"]


def test_a_drafter_does_not_draft_for_itself(constant_step: Callable[..., str]) -> None:
    """Steps that were fitted to runs of k = 3 include what it took to draft."""
    for lens, is_known in (([3], False), ([0, 3], True), (None, True)):
        own = {"profile": constant_step(delta_ms=1, only_draft_lens=lens)}
        given = experiment(engine={"speculative_config": {**DRAFTER, "own_gpus": own}})
        if is_known:
            assert Deployment.of(given).drafter is not None
        else:
            with pytest.raises(ProfileError, match="include drafting of its own"):
                Deployment.of(given)


def test_a_composed_drafter_samples_after_the_last_token_of_each_sequence() -> None:
    """Its head does not run on the drafts that it reads again, which a target verifies."""
    name = "h200/llama-3.1-8b"
    spec = {**DRAFTER, "own_gpus": {"profile": name}}
    found = Deployment.of(experiment(profile=name, engine={"speculative_config": spec}))
    drafter = found.costs.drafts[0].latency
    assert drafter is not None
    load = StepLoad(64 * 600, 64 * 4, 64)
    target = found.profile.target
    saved = target.forward_time(load) - drafter.forward_time(load)
    assert isinstance(target, Composed)
    of_all, of_last = target.head.times_at([64 * 4, 64])
    assert saved == pytest.approx(1e-6 * (of_all - of_last), rel=1e-3)
    assert saved > 0


@pytest.mark.parametrize("others", [[], ["static:k=2", "static:k=3", "goodput"]])
def test_a_comparison_counts_its_gpus(others: list[str]) -> None:
    found = compare(experiment(replicas=2), ["off", "static:k=1", *others], replications=1)
    console = Console(file=StringIO(), width=300)
    console.print(comparison_table(found, "a test"))
    text = console.file.getvalue().replace("│", " ")
    lines = [line.split() for line in text.splitlines()]
    if others:
        column = next(line.index("GPUs") for line in lines if "GPUs" in line)
        counts = {line[1]: line[column] for line in lines if len(line) > 9 and line[0].isdigit()}
        assert counts == {"off": "2", **dict.fromkeys(["static:k=1", *others], "4")}
    else:
        assert ["GPUs", "2", "4"] in lines
        rates = [result.mean("output_throughput") / gpus for result, gpus in
                 zip(found.results, (2, 4), strict=True)]  # fmt: skip
        assert [f"{rate:,.0f}" for rate in rates] in [line[-2:] for line in lines]


def test_its_gpus_are_paid_for_where_replicas_are() -> None:
    scaler = {"kind": "target_concurrency", "target": 4, "max_replicas": 2, "interval_s": 1}
    hours = [
        Summary(simulate(experiment(policy=policy, autoscaling=scaler))).data["specsim"][
            "autoscaling"
        ]
        for policy in ("static", "off")
    ]
    for each, gpus in zip(hours, (2, 1), strict=True):
        assert each["gpu_hours"] == pytest.approx(gpus * each["replica_seconds"] / 3600)


def test_the_target_has_the_memory_that_the_drafter_would_take() -> None:
    free = simulate(experiment()).deployment.engine.num_gpu_blocks
    assert free == simulate(experiment(policy="off")).deployment.engine.num_gpu_blocks


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"engine": {"async_scheduling": True}}, "own_gpus.overlaps"),
     ({"engine": {"scheduler": "prefill_first"}}, "own_gpus.overlaps"),
     ({"policy": "confidence"}, "own_gpus.overlaps"),
     ({"policy": "eagle2_tree"}, "own_gpus.overlaps"),
     ({"pools": {}}, "own_gpus with pools")],
)  # fmt: skip
def test_what_is_not_simulated_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        experiment(**changes)


def test_a_drafter_whose_times_are_a_roofline_is_said_to_be(
    constant_step: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "drafter.yaml"
    guessed = RooflineProfile.of(RooflineOptions("llama-3.2-1b", "h100", {}, 1))
    path.write_text(yaml.safe_dump(guessed.fields))
    spec = {**DRAFTER, "own_gpus": {"profile": str(path)}}
    made = experiment(engine={"speculative_config": spec}, profile=constant_step(delta_ms=8))
    said = "llama-3.2-1b on h100: steps as the roofline says"
    assert any(text.startswith(said) for text in Summary(simulate(made)).warnings)
    poisson = {**made.to_dict()["workload"], "arrivals": {"kind": "poisson", "rate": 5.0}}
    found = capacity(
        made.replace(workload=poisson),
        slo="tpot:100", policies=["static", "off"], num_requests=50, replications=1, tolerance=0.5,
    )  # fmt: skip
    assert [each["step_times"] for each in found.to_dict()["results"]] == ["roofline", "fitted"]
    assert any(text.startswith("h100: steps as the roofline says") for text in found.notes)
