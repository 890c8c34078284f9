"""What holds in every world, whatever happens in it: oracles that need no expected value."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import SpecsimError
from specsim.results.records import ReplicaRecords
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run
from specsim.run.summary import Summary

Times = NDArray[np.float64]
SLACK = 1e-9  # of a time, as a share of it, where sums are rounded


class Broken(Exception):
    """Something does not hold that must; begins with its name."""


def demand(holds: Any, name: str, what: str = "") -> None:
    """Raise unless something holds."""
    if not np.all(holds):
        raise Broken(f"{name}: {what}" if what else name)


def check_run(run: Run) -> None:
    """Raise if a run, made with ``check`` and ``keeps_deliveries``, contradicts itself."""
    summary = Summary(run)
    _check_experiment(run)
    _check_requests(summary)
    _check_deliveries(summary)
    _check_steps(summary)
    _check_drafter(summary)
    _check_clients(summary)
    _check_tokenizers(summary)
    _check_replicas_at_work(summary)
    _check_incidents(summary)
    for scaling in run.scalings.values():
        for count in scaling.counts:
            demand(min(count[1:]) >= 0, "scaling", f"fewer than no replicas: {count}")
        demand(all(until >= start for start, until in scaling.spans), "scaling", "spans end early")
    try:
        json.dumps(summary.data, allow_nan=False)
    except ValueError as error:
        raise Broken(f"summary: {error}") from error


def _check_experiment(run: Run) -> None:
    given = run.experiment.to_dict()
    demand(
        Experiment.parse(given, "again").to_dict() == given,
        "experiment",
        "read again it is another",
    )


def _check_requests(summary: Summary) -> None:
    rows, run = summary.tables.requests, summary.run
    demand(rows["request"] == np.arange(len(run.requests)), "requests", "not each of them once")
    assert run.deployment.engine.max_model_len is not None
    room = run.deployment.engine.max_model_len
    lens = [(r.prompt_len, min(r.output_len, room - r.prompt_len)) for r in run.requests]
    demand(rows[["prompt_len", "output_len"]].tolist() == lens, "requests", "other lengths")
    demand(rows["cached_len"] < rows["prompt_len"], "requests", "a prompt is cached whole")
    demand(rows["arrived_at"] <= rows["scheduled_at"], "clock", "scheduled before it arrived")
    demand(rows["scheduled_at"] < rows["first_token_at"], "clock", "a first token in no time")
    demand(rows["first_token_at"] <= rows["ended_at"], "clock", "ended before its first token")


def _check_deliveries(summary: Summary) -> None:
    run, rows = summary.run, summary.tables.requests
    assert run.deliveries is not None
    counts = rows["deliveries"]
    names = ("at", "lens", "drafted", "accepted")
    at, lens, drafted, accepted = (run.deliveries.column(name, counts) for name in names)
    lens = lens.astype(np.int64)
    ends = np.cumsum(counts)
    firsts = ends - counts
    demand(np.add.reduceat(lens, firsts) == rows["output_len"], "tokens", "delivered != output")
    demand(at[firsts] == rows["first_token_at"], "clock", "first delivery != first token")
    demand(at[ends - 1] == rows["ended_at"], "clock", "last delivery != end")
    is_first = np.isin(np.arange(len(at)), firsts)
    demand((np.diff(at, prepend=0.0) > 0) | is_first, "clock", "deliveries not in order")
    demand(accepted <= drafted, "tokens", "more drafts accepted than verified")
    demand((lens >= 1) & (lens <= accepted + 1), "tokens", "other than accepted and one more")
    own = np.isin(np.arange(len(at)), ends - 1)
    demand((lens == accepted + 1) | own, "tokens", "some of a draft are lost")


def _last_stage_ends(steps: NDArray[Any], share: float) -> NDArray[np.float64]:
    """Return when each step can have left the last stage at the earliest, in seconds."""
    ends, free_at = [], 0.0
    for step in steps:
        before = (1 - share) * step["target_time"]
        free_at = max(free_at, step["started_at"] + before) + share * step["target_time"]
        free_at += step["draft_time"]
        ends.append(free_at)
    return np.array(ends)


def _check_steps(summary: Summary) -> None:
    steps, rows = summary.tables.steps, summary.tables.requests
    answering = steps
    if summary.run.pools is not None:
        answering = steps[summary.tables.step_replicas < summary.run.experiment.pools.decode.slots]
    emitted = answering["output_tokens"].sum()
    demand(emitted == rows["output_len"].sum(), "tokens", "of steps != output")
    demand(steps["scheduled_at"] <= steps["started_at"], "clock", "a step starts before its time")
    demand(steps["started_at"] < steps["ended_at"], "clock", "a step takes no time")
    shares = summary.run.deployment.profile.stage_shares
    for replica in range(summary.run.experiment.num_engines):
        mine = steps[summary.tables.step_replicas == replica]
        slack = SLACK * mine["ended_at"]
        if len(shares) == 1:
            demand(np.diff(mine["ended_at"]) > 0, "clock", "two steps of a replica end at once")
            gaps = [mine["started_at"][1:] - mine["ended_at"][:-1]]
        else:  # a step has a stage to itself; the host may take several steps at once
            demand(np.diff(mine["ended_at"]) >= 0, "clock", "steps of a replica end out of order")
            gaps = [
                np.diff(mine["started_at"]) - shares[0] * mine["target_time"][:-1],
                mine["ended_at"] - _last_stage_ends(mine, shares[-1]),
            ]
        for gap in gaps:
            demand(gap >= -slack[: len(gap)], "clock", "two passes on one GPU at once")
    run = summary.run
    is_simple = run.pools is None and run.offload is None
    if is_simple and not (rows["preemptions"].any() or rows["requeues"].any()):
        computed = rows["prompt_len"] - rows["cached_len"]
        padding = run.deployment.max_draft_len * int((computed == 1).sum())  # vLLM's, with drafts
        extra = int(steps["prefill_tokens"].sum() - computed.sum())
        demand(0 <= extra <= padding, "tokens", f"prompts not computed once, but {extra} more")


def _check_drafter(summary: Summary) -> None:
    """A drafter beside the target does no more than it has time for, and drafts all there is."""
    own = summary.data["specsim"].get("drafter")
    if own is not None:
        demand(0 <= own["busy_share"] <= 1 + SLACK, "drafter", "works longer than there is time")
        verified = summary.tables.steps["draft_tokens"].sum()
        demand(own["drafted_tokens"] >= verified, "drafter", "more is verified than was drafted")


def _check_clients(summary: Summary) -> None:
    """Arrivals are those of the workload; turns come one after the other, and on time."""
    run, rows = summary.run, summary.tables.requests
    arrivals: Any = run.experiment.workload.arrivals
    said: dict[int, list[int]] = {}
    for request in run.requests:
        place, session = request.index, request.session
        expected: float | None = request.arrived_at
        turns = [] if session is None else said.setdefault(session, [])
        if turns:
            after = (len(turns),) if request.after_turns is None else request.after_turns
            ended_at = max(rows["ended_at"][turns[turn - 1]] for turn in after)
            expected = max(ended_at + request.think_time, expected or 0.0)
        elif arrivals.kind == "closed_loop":
            expected = None
        turns.append(place)
        if expected is not None:
            off = abs(rows["arrived_at"][place] - expected)
            demand(off <= SLACK * max(expected, 1e-3), "arrivals", f"request {place} off by {off}")
    if arrivals.kind == "closed_loop":
        alone = [[each.index] for each in run.requests if each.session is None]
        talks = [*said.values(), *alone]
        inside = [(rows["arrived_at"][talk].min() * (1 + SLACK) + SLACK, 1) for talk in talks]
        inside += [(rows["ended_at"][talk].max(), -1) for talk in talks]
        inside.sort()
        demand(np.cumsum([step for _, step in inside]).max() <= arrivals.concurrency, "closed loop")


def covered(begins: Times, ends: Times, at: Times, servers: int) -> Times:
    """Return how long, up to instants, so many servers have been busy, all of them at once."""
    edges = sorted([(t, 1) for t in begins.tolist()] + [(t, -1) for t in ends.tolist()])
    instants = np.array([t for t, _ in edges] or [0.0])
    busy = np.cumsum([step for _, step in edges] or [0]) >= servers
    until = np.concatenate([[0.0], np.cumsum(np.diff(instants) * busy[:-1])])
    place = np.searchsorted(instants, at, side="right") - 1
    rest = np.where(place >= 0, (at - instants[place]) * busy[place], 0.0)
    found: Times = np.where(place >= 0, until[place], 0.0) + rest
    return found


def _never_idle(
    name: str,
    waits: tuple[Times, Times],
    spans: NDArray[np.void],
    servers: int = 1,
    excused: Times | float = 0.0,
) -> None:
    """Raise if anybody waits, from one instant to another, while one of some servers is idle.

    Args:
        name: Of what does not hold then.
        waits: When each began to wait, and when no longer.
        spans: When servers were busy: ``scheduled_at`` to ``ended_at``.
        servers: How many there are.
        excused: How long each may wait beside an idle server.
    """
    came, begun = waits
    if not len(came):
        return
    begins, ends = spans["scheduled_at"], spans["ended_at"]
    busy = covered(begins, ends, begun, servers) - covered(begins, ends, came, servers)
    idle = (begun - came) - busy - excused
    worst = int(np.argmax(idle))
    slack = (1e-7 + SLACK * len(begins)) * min(float(np.max(ends, initial=1.0)), 1.0)
    what = f"who comes at {came[worst]} waits until {begun[worst]}, idle {idle[worst]}"
    demand(idle[worst] <= slack, name, what)


def _reached(summary: Summary) -> tuple[NDArray[np.void], Times]:
    """Return the requests as they were sent, and how long each took to reach the engine."""
    run = summary.run
    records = run.replicas if run.pools is None else run.pools.records
    rows, delays = zip(*map(_of_replica, records), strict=True)
    return np.concatenate(rows), np.concatenate(delays)


def _of_replica(records: ReplicaRecords) -> tuple[NDArray[np.void], Times]:
    """Return the requests that ended at a replica, or were prefilled there, and their delays."""
    rows = np.concatenate([records.requests[:0], *records.request_chunks])
    if records.delays is None:
        return rows, np.zeros(len(rows))
    places = rows["request"]
    if records.numbers is not None:
        places = np.searchsorted(records.numbers, places)
    return rows, records.delays[places]


def _check_tokenizers(summary: Summary) -> None:
    run = summary.run
    server = run.deployment
    if run.pools is not None:
        servers = run.experiment.pools.prefill.slots if run.experiment.pools else 0
        overhead = run.pools.prefill_profile.overhead
    else:
        servers, overhead = run.experiment.num_engines, server.profile.overhead
    rows, delays = _reached(summary)
    if not overhead.front_token_us:
        demand(np.isclose(delays, overhead.front_ms * 1e-3), "front end", "other delays")
        return
    ready = rows["arrived_at"] + delays - overhead.front_ms * 1e-3
    begun = ready - overhead.front_token_us * 1e-6 * rows["prompt_len"]
    spans = np.rec.fromarrays([begun, ready], names="scheduled_at,ended_at")
    _never_idle("tokenizers", (rows["arrived_at"], begun), spans, servers)


def _check_replicas_at_work(summary: Summary) -> None:
    """No replica stands still while a request waits there that it may run."""
    run = summary.run
    if _has_failures(run):
        return  # steps that were lost are not written down
    if run.pools is not None:
        _check_pools_at_work(summary)
    elif run.offload is None:
        _check_replicas(summary, run.replicas, 0)
    elif _is_roomy(run):
        _check_replicas(summary, run.replicas, 0, run.offload.loads["load_time"])


def _has_failures(run: Run) -> bool:
    return any(each.kind == "failure" for each in run.experiment.incidents or ())


def _is_roomy(run: Run) -> bool:
    """Return whether all requests fit into one replica: none waits for blocks of who is loaded."""
    engine = run.deployment.engine
    assert engine.max_model_len is not None
    assert engine.num_gpu_blocks is not None
    most_len = engine.max_model_len + 2 * run.deployment.max_draft_len + engine.block_size
    free = (1 - engine.watermark) * engine.num_gpu_blocks * engine.block_size
    return len(engine.kv_groups or ()) < 2 and free > len(run.requests) * most_len


def _check_replicas(
    summary: Summary, replicas: Sequence[ReplicaRecords], first: int, loading: Times | None = None
) -> None:
    """Raise if one of some replicas, numbered from `first`, stands still while a request waits.

    It may while that request loads blocks, for so many seconds. Ranks that share experts make every
    step together.
    """
    for number, records in enumerate(replicas, first):
        rows, delays = _of_replica(records)
        if not len(rows):
            continue
        mine = summary.tables.steps
        if not summary.run.deployment.is_lock_step:
            mine = mine[summary.tables.step_replicas == number]
        stays = rows["requeues"] == 0
        rows, delays = rows[stays], delays[stays]
        waits = rows["arrived_at"] + delays, rows["scheduled_at"]
        excused = 0.0 if loading is None else loading[rows["request"]]
        _never_idle("replica", _since_start(summary, waits, mine), mine, excused=excused)


def _since_start(
    summary: Summary, waits: tuple[Times, Times], steps: NDArray[np.void]
) -> tuple[Times, Times]:
    """Return waits from a replica's first step on, if it may not have been there before."""
    if not (summary.run.scalings or summary.run.experiment.incidents):
        return waits
    first = steps["scheduled_at"].min(initial=np.inf)
    return np.maximum(waits[0], first), np.maximum(waits[1], first)


def _check_pools_at_work(summary: Summary) -> None:
    """Neither links nor replicas stand still while a request waits for them."""
    run, pools = summary.run, summary.pools
    assert run.pools is not None
    assert run.experiment.pools is not None
    assert pools is not None
    config, moved = run.experiment.pools, pools.transfers
    answers = summary.tables.requests["replica"]
    if config.transfer.overlap == "none":
        owners = {"decode": answers, "prefill": pools.prefill_replicas, "all": 0 * answers}
        _check_links(run, owners[config.transfer.link], moved)
    if not _is_roomy(run):
        return
    loading = None if run.offload is None else run.offload.loads["load_time"]
    _check_replicas(summary, run.pools.records, config.decode.slots, loading)
    for replica in range(config.decode.slots):
        mine = summary.tables.steps[summary.tables.step_replicas == replica]
        places = (answers == replica) & (moved["transfers"] == 1)
        waits = moved["transfer_ended_at"][places], pools.decode_scheduled_at[places]
        _never_idle("loaded", waits, mine)


def _check_links(run: Run, owners: NDArray[Any], moved: NDArray[np.void]) -> None:
    assert run.experiment.pools is not None
    link = run.experiment.pools.transfer
    assert run.pools is not None
    size, rate = run.pools.pools.size, link.bandwidth_gb_s * 1e9 / link.max_transfers
    for owner in np.unique(owners):
        rows = moved[(owners == owner) & (moved["transfers"] == 1)]
        ends = rows["transfer_ended_at"] - link.latency_ms * 1e-3
        begins = ends - np.array([size.of(tokens) for tokens in rows["transferred_len"]]) / rate
        spans = np.rec.fromarrays([begins, ends], names="scheduled_at,ended_at")
        waits = rows["transfer_began_at"], begins
        demand(begins >= waits[0] - SLACK * (1 + ends), "link", "faster than it can be")
        _never_idle("link", waits, spans, link.max_transfers)


def _check_incidents(summary: Summary) -> None:
    """Nothing comes from a replica that has failed."""
    run = summary.run
    if run.scalings or run.pools is not None:
        return
    steps = summary.tables.steps
    for incident in run.experiment.incidents or ():
        if incident.kind == "failure":
            mine = steps[summary.tables.step_replicas == incident.replica]
            until = float("inf") if incident.until is None else incident.until
            inside = (mine["ended_at"] > incident.at) & (mine["scheduled_at"] < until)
            demand(~inside, "incidents", f"replica {incident.replica} works although it has failed")


def refusal(error: BaseException) -> bool:
    """Return whether an error is what a user is told who asks for what cannot be."""
    return isinstance(error, SpecsimError) and type(error).__name__ in (
        "ConfigError",
        "CapacityError",
        "ProfileError",
        "TraceError",
    )
