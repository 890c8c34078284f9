"""`plan`, `tune` and `capacity` asked of one server: the same k, and the same capacity."""

import pytest

from specsim.study.capacity import capacity
from specsim.study.plan import plan as make_plan
from specsim.study.plan import question_of
from specsim.study.plan.candidates import with_replicas
from specsim.study.tune import tune

_EQUAL = 0.98  # of the speed-up of the best k: k = 4 and 5 differ by less


@pytest.mark.slow
def test_plan_and_tune_and_capacity_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.study.plan.REQUESTS", 500)
    monkeypatch.setattr("specsim.study.plan.LONGEST", 2000)
    monkeypatch.setattr("specsim.study.plan.candidates.SHORT_REQUESTS", 500)
    command = "Qwen/Qwen3-8B -tp 1 --max-num-seqs 32 --speculative-config.method eagle3"
    question = question_of(vllm=command, traffic="chat", qps=14.0)
    plan = make_plan(question)
    fixed = [each for each in plan.advice.tried if each.policy.startswith("static")]
    best = min(fixed, key=lambda each: (each.cost_per_hour or 0.0, each.mean_e2el_ms or 0.0))
    option = plan.options[f"{best.hardware} {best.policy}"]
    service = with_replicas(option, question, plan.screened[option.name].replicas or 1)
    workload = service.workload.model_copy(update={"num_requests": 200})
    tuned = tune(service.replace(workload=workload), max_k=5, replications=2)
    own = next(load for load in tuned.check.loads if load.name == "own")
    assert own.load == 14.0
    gains = [own.speed_up(group).mean for group in own.fixed]
    assert gains[option.experiment.max_draft_len] >= _EQUAL * max(gains)
    found = plan.found[plan.taken or ""]
    policy = plan.options[plan.taken or ""].experiment.effective_policy
    one = service.replace(replicas=1, workload=workload, policy=policy)
    [again] = capacity(one, replications=2, num_requests=1000, tolerance=0.04).found
    assert again.interval is not None
    assert found.interval is not None
    assert again.interval.low < found.interval.high
    assert found.interval.low < again.interval.high
