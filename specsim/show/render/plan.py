"""Plan: the answer in ten lines."""

from typing import TYPE_CHECKING

from specsim.show.render.capacity import binding

if TYPE_CHECKING:
    from specsim.study.plan import Plan
    from specsim.study.plan.answer import CostPoint

_ROWS = 3
_WIDTH = 24


def plan_lines(plan: "Plan") -> list[str]:
    """Return the answer, what it rests on, and a chart of cost and latency."""
    question = plan.question
    limits = ", ".join(
        f"{name.removesuffix('_ms').upper()} {limit:g} ms"
        for name, limit in question.slo.model_dump(exclude_none=True).items()
    )
    head = (
        f"{question.rate:g} requests/s of {question.traffic.name} to {question.command.model}, "
        f"{question.attainment:.4g} within {limits}"
    )
    return [head, *_answers(plan), f"assumes  {'; '.join(plan.assumptions)}", *_chart(plan)]


def _answers(plan: "Plan") -> list[str]:
    taken = plan.taken
    if taken is None:
        return ["none: no option keeps the limits at any load; raise --slo or lower --attainment"]
    found, between = plan.found[taken], plan.found[taken].interval
    lines = [f"take     {_offer(plan, taken)}"]
    for title, is_off in (("without", True), ("with", False)):
        name = plan.best(is_off=is_off)
        said = "no such option keeps the limits" if name is None else _offer(plan, name)
        lines.append(f"{title:8} {said}{_latencies(plan, name)}")
    lines.append(
        f"binds    {binding(found)} beyond {found.rate:.4g} requests/s per replica; each gets "
        f"{question_rate(plan, taken):.4g}"
    )
    if between is None or found.replicas_interval is None:
        sure = "one replication says nothing about that"
    else:
        fewest, most = found.replicas_interval
        count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        per_replica = f"{between.low:.4g} - {between.high:.4g} requests/s per replica (95 %)"
        sure = f"{per_replica}: {count} replicas"
    if plan.ties:
        sure += f"; not shown to be cheaper than {', '.join(plan.ties)}"
    return [*lines, f"sure     {sure}"]


def question_rate(plan: "Plan", name: str) -> float:
    """Return what each replica is asked for, requests/s."""
    return plan.question.rate / (plan.found[name].replicas or 1)


def _offer(plan: "Plan", name: str) -> str:
    found, option = plan.found[name], plan.options[name]
    size, gpu = found.hardware.gpus_per_replica, found.hardware.profile.gpu
    replicas, cost = found.replicas or 0, found.cost_per_hour or 0.0
    drafts = "no speculation" if option.is_off else _drafts(plan, name)
    roofline = "" if found.hardware.is_measured else " (roofline)"
    return (
        f"{replicas * size} {gpu}{roofline} ({replicas} x tp {size}), "
        f"{cost:,.2f} {plan.capacity.prices.currency}/h, {drafts}"
    )


def _drafts(plan: "Plan", name: str) -> str:
    option = plan.options[name]
    proposer = option.experiment.engine.speculative_config
    assert proposer is not None
    policy = option.label.removeprefix(f"{proposer.method} ").removeprefix("static:")
    return f"{proposer.method} {policy}"


def _latencies(plan: "Plan", name: str | None) -> str:
    probe = None if name is None else plan.found[name].at_target
    if probe is None:
        return ""
    ms, gain = probe.latencies_ms, plan.gain
    said = (
        f"; TTFT p99 {ms['p99_ttft_ms']:,.0f} ms, TPOT p99 {ms['p99_tpot_ms']:,.1f} ms, "
        f"mean latency {ms['mean_e2el_ms']:,.0f} ms"
    )
    if name != plan.best(is_off=False) or gain is None or gain.low is None or gain.high is None:
        return said
    if gain.low < 1 < gain.high:
        return f"{said}, no difference shown"
    return f"{said}, {gain.mean:.2f} times as fast ({gain.low:.2f} - {gain.high:.2f})"


def _chart(plan: "Plan") -> list[str]:
    """Return the front of cost and latency; a tilde marks short runs."""
    front = plan.front[:_ROWS]
    if not front:
        return []
    longest = max(point.latency_ms for point in front)
    currency = plan.capacity.prices.currency
    lines = [f"{currency + '/h':>9}  mean latency at that cost; none cheaper is as fast"]
    return [*lines, *(_bar(point, longest) for point in front)]


def _bar(point: "CostPoint", longest: float) -> str:
    bar = "#" * max(1, round(_WIDTH * point.latency_ms / longest))
    about = "" if point.is_sure else "~"
    return (
        f"{about + format(point.cost, ',.2f'):>9}  {bar:{_WIDTH}} {point.latency_ms:,.0f} ms  "
        f"{point.gpus} GPUs: {point.replicas} x {point.name}"
    )
