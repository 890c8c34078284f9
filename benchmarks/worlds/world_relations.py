"""What two worlds have to do with one another that differ in one thing: relations between runs."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from world_checks import Broken, demand
from world_making import World

from specsim.core.step import Pieces, StepLoad
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

TIMES = ("arrived_at", "scheduled_at", "first_token_at", "ended_at", "started_at")
DURATIONS = ("target_time", "draft_time", "overhead_time")
_NOT_COMPARED = ("alpha_estimate",)


class Host:
    """Writes worlds into a folder, and runs them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def experiment(self, world: World) -> Experiment:
        """Write a world down, and return what its experiment is read as."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        text, profile = as_text(world["config"]), world["profile"]
        _write_profile(folder / "profile.yaml", profile)
        if "other.yaml" in text:
            _write_profile(folder / "other.yaml", _slower(profile))
        if world["rows"] is not None:
            lines = [as_text(row) for row in world["rows"]]
            (folder / "trace.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "world.yaml").write_text(text)
        return Experiment.load(folder / "world.yaml")

    def run(self, world: World, *, check: bool = False) -> Run:
        """Run a world; as nobody watches, unless it is to be checked."""
        return simulate(self.experiment(world), check=check, keeps_deliveries=True)


def _write_profile(path: Path, profile: dict[str, Any]) -> None:
    write_kernels(path.parent, profile["target"])
    path.write_text(as_text(profile))


_MLP = ("gate_up_proj", "act_fn", "down_proj")
_LAYERS = (
    *("embedding", "final_layernorm", "layernorm", "qkv_proj", "rotary_emb", "o_proj"),
    *_MLP,
)


def write_kernels(folder: Path, latency: dict[str, Any]) -> None:
    """Write the tables that a latency model names: every time is a formula, times its `slow`."""
    name = latency.get("inner", latency).get("path")
    if name is None or (folder / name).exists():
        return
    times, has_experts = 2.0 ** name.count("slow-"), name.endswith("experts")
    layers = _LAYERS[: -len(_MLP)] if has_experts else _LAYERS
    dense = [f"{each},{size},{times * (2 + size / 8)}" for each in layers for size in (1, 16, 256)]
    sampled = [f"{each},{n},{times * 5 * n}" for each in ("lm_head", "sampler") for n in (1, 64)]
    attention = [
        f"{chunk},{prompt},{count},{context},"
        f"{times * (1 + (chunk * (9 + prompt) + count * context) / 999)}"
        for chunk in (0, 16, 128, 1024)
        for prompt in ((0, 512, 4096) if chunk else (0,))
        for count in (0, 1, 8, 64)
        for context in ((16, 512, 4096) if count else (0,))
        if chunk or count
    ]
    experts = [
        f"{size},{number},{times * (number + size / 50)}"
        for size in (1, 64, 512)
        for number in (2, 12)
    ]
    tables = {
        "dense": ["layer,tokens,time_us", *dense],
        "per_sequence": ["layer,sequences,time_us", *sampled],
        "attention": ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *attention],
        **({"moe": ["tokens,activated_experts,time_us", *experts]} if has_experts else {}),
    }
    for place in ("tp1", "tp2") if has_experts else (".",):
        (folder / name / place).mkdir(parents=True)
        for table, lines in tables.items():
            (folder / name / place / f"{table}.csv").write_text("\n".join(lines) + "\n")


_NO_POINT = re.compile(r"(?<![\d.])(\d+)e([-+]\d+)")


def as_text(value: Any) -> str:
    """Return plain values as JSON that is YAML, too: numbers with a power have a point."""
    return _NO_POINT.sub(r"\1.0e\2", json.dumps(value))


def tables_of(run: Run) -> dict[str, np.ndarray[Any, Any]]:
    """Return all that was recorded of requests, deliveries, steps and transfers, by column."""
    tables = Summary(run).tables
    assert run.deliveries is not None
    found = {f"requests.{name}": tables.requests[name] for name in tables.requests.dtype.names}
    found |= {f"steps.{name}": tables.steps[name] for name in tables.steps.dtype.names}
    found["steps.replica"] = tables.step_replicas
    for name in ("at", "lens", "drafted", "accepted"):
        found[f"deliveries.{name}"] = getattr(run.deliveries, name)
    if run.pools is not None:
        transfers = run.pools.pools.transfers
        found |= {f"transfers.{name}": transfers[name] for name in transfers.dtype.names}
    if run.offload is not None:
        found |= {
            f"loads.{name}": run.offload.loads[name] for name in run.offload.loads.dtype.names
        }
    return found


_ARE_TIMES = re.compile(r"(_at|_time|deliveries\.at)$")


def demand_same(
    name: str, base: Run, other: Run, *, factor: float = 1.0, rounding: float = 0.0
) -> None:
    """Raise unless two runs are alike, the times of the second `factor` times as long."""
    others = tables_of(other)
    for column, values in tables_of(base).items():
        if column.endswith(_NOT_COMPARED):
            continue
        theirs = others[column]
        demand(values.shape == theirs.shape, name, f"{column}: {values.shape} != {theirs.shape}")
        expected = values * factor if _ARE_TIMES.search(column) else values
        if rounding and _ARE_TIMES.search(column):
            is_same = np.isclose(expected, theirs, rtol=rounding, atol=1e-12, equal_nan=True)
        else:
            is_same = (expected == theirs) | (np.isnan(expected) & np.isnan(theirs))
        if not is_same.all():
            place = int(np.argmin(is_same))
            raise Broken(f"{name}: {column}[{place}] is {theirs[place]}, not {expected[place]}")


def changed(world: World, **changes: Any) -> World:
    """Return a world with other fields of its experiment; dots lead inside, None leaves out."""
    world = copy.deepcopy(world)
    for path, value in changes.items():
        *parents, name = path.split("__")
        holder = world["config"]
        for parent in parents:
            holder = holder.setdefault(parent, {})
        if value is None:
            holder.pop(name, None)
        else:
            holder[name] = value
    return world


def again(host: Host, world: World, base: Run) -> None:
    """Who reads what was written down gets the same bytes, and whether anybody watches or not."""
    written = Experiment.parse(base.experiment.to_dict(), "again")
    demand_same("again", base, simulate(written, keeps_deliveries=True))


_RATES = (*("rate", "bandwidth_gb_s", "gb_per_s"), *("compute_efficiency", "memory_efficiency"))
_TIMES = ("us", "duration", "resolution")
_DEFAULT_TIMES = {
    "roofline": {
        **{"compute_efficiency": 0.7, "memory_efficiency": 0.8},
        **{"all_reduce_us": 6.6, "hop_us": 0.6},
    },
    "target_concurrency": {"window_s": 60.0},
    "target_slo": {"window_s": 60.0},
}


def _slower(value: Any, name: str = "") -> Any:
    """Return fields with all times doubled, by their names, and all rates halved."""
    if isinstance(value, dict) and value.get("kind") == "piecewise":
        return {**value, "segments": [[2 * t, rate / 2] for t, rate in value["segments"]]}
    if isinstance(value, dict):
        filled = {**_DEFAULT_TIMES.get(str(value.get("kind")), {}), **value}
        slow = {key: _slower(each, key) for key, each in filled.items()}
        return {**slow, "path": f"slow-{slow['path']}"} if slow.get("kind") == "kernels" else slow
    if isinstance(value, list) and value and isinstance(value[0], dict):
        ends = [{key: 2 * each[key] for key in ("at", "until") if key in each} for each in value]
        is_event = name == "incidents"
        return [
            _slower(each) | (end if is_event else {}) for each, end in zip(value, ends, strict=True)
        ]
    if name in _RATES:
        return value / 2
    is_span = name == "window" and isinstance(value, list)
    is_time = name.endswith(("_ms", "_us", "_ns", "_s")) or name in _TIMES or is_span
    return _doubled(value) if is_time else value


def _doubled(value: Any) -> Any:
    if isinstance(value, list):
        return [_doubled(each) for each in value]
    return 2 * value


def doubled(host: Host, world: World, base: Run) -> None:
    """All times doubled double every latency, to the last bit, for 2 is a power of two."""
    slow = copy.deepcopy(world)
    slow["config"] = _slower(slow["config"])
    policy = world["config"].get("policy")
    if policy in ("slo_aware", {"kind": "slo_aware"}) and "slo" not in slow["config"]:
        slow["config"]["policy"] = {"kind": "slo_aware", "tpot_ms": 100.0}  # by default 50
    workload = slow["config"]["workload"]
    for fields in (workload["arrivals"], workload.get("lengths")):
        for name in ("think_time", "tool_time"):
            if isinstance(fields, dict) and name in fields:
                time = fields[name]
                is_spread = isinstance(time, dict)
                fields[name] = {**time, "mean": 2 * time["mean"]} if is_spread else 2 * time
    slow["profile"] = _slower(slow["profile"])
    for row in slow["rows"] or ():
        row |= {name: 2 * row[name] for name in ("arrived_at", "think_time") if name in row}
    demand_same("doubled", base, host.run(slow), factor=2.0)


def cut(host: Host, world: World, base: Run) -> None:
    """Outside events that change nothing change nothing: a run may be cut at them.

    Runs of replicas by themselves are thereby compared with those of all on one clock.
    """
    config, pools = world["config"], world["config"].get("pools")
    if base.experiment.engine.data_parallel_size:
        return
    incidents = list(config.get("incidents") or [])
    end = float(Summary(base).tables.requests["ended_at"].max())
    for name in ("prefill", "decode") if pools else (None,):
        if any(each.get("pool") == name and each["replica"] == 0 for each in incidents):
            continue
        for share in (0.0, 0.21, 0.5, 0.83):
            each = {"kind": "slowdown", "factor": 1.0, "replica": 0, "at": share * end}
            each |= {"until": (share + 0.1) * end}
            incidents.append(each if name is None else {**each, "pool": name})
    demand_same("cut", base, host.run(changed(world, incidents=incidents)))


def python(host: Host, world: World, base: Run) -> None:
    """What the loop does compiled comes out the same in Python."""
    other = copy.deepcopy(world)
    other["profile"]["target"] = {
        "kind": "world_parts:Uncompiled",
        "inner": other["profile"]["target"],
    }
    policy = other["config"].get("policy")
    fields = {"kind": policy} if isinstance(policy, str) else dict(policy or {})
    kind = fields.get("kind")
    if kind in ("goodput", "schedule", "joint"):
        fields["kind"] = f"world_parts:Python{kind.capitalize()}"
        other["config"]["policy"] = fields
    demand_same("python", base, host.run(other), rounding=1e-12)


def _is_simple(run: Run) -> bool:
    """Return whether requests that never meet do not affect one another."""
    experiment, engine = run.experiment, run.experiment.engine
    others = (experiment.pools, experiment.autoscaling, experiment.incidents)
    is_real = experiment.acceptance is not None and experiment.acceptance.kind == "token_match"
    # What a replica holds of adapters depends on who was there before.
    holds_more = engine.kv_offload or engine.lora_config
    is_one = not (any(others) or holds_more or engine.data_parallel_size)
    return is_one and not is_real and experiment.effective_policy.kind in ("off", "static")


def _has_turns_side_by_side(run: Run) -> bool:
    """Return whether a turn of a session does not wait for the one before, as sub-agents do."""
    return any(
        request.turn > 1
        and request.after_turns is not None
        and request.turn - 1 not in request.after_turns
        for request in run.requests
    )


def alone(host: Host, world: World, base: Run) -> None:
    """Who is alone in the world is served alike by one replica and by four."""
    if not _is_simple(base):
        return
    workload = copy.deepcopy(world["config"]["workload"])
    workload.pop("duration", None)
    kind = workload["arrivals"] if isinstance(workload["arrivals"], dict) else {}
    if kind.get("kind") == "trace":
        workload["lengths"] = {"kind": "trace", "path": "trace.jsonl"}
    workload["arrivals"] = {"kind": "closed_loop", "concurrency": 1, "think_time": 0.125}
    one = changed(world, workload=workload, engine__enable_prefix_caching=False, replicas=1)
    # Asynchronously a step may be under way, of one that has ended, where the next turn begins.
    one = changed(one, engine__prefix_cache_retention_interval=None, engine__async_scheduling=False)
    runs = [host.run(changed(one, replicas=count)) for count in (1, 4)]
    if _has_turns_side_by_side(runs[0]):
        return
    first, second = (Summary(run).tables.requests for run in runs)
    for name in first.dtype.names:
        demand(name == "replica" or (first[name] == second[name]).all(), "alone", name)


def room(host: Host, world: World, base: Run) -> None:
    """With an idle replica for each request, none waits longer for its first token.

    One replica more may hurt somebody: it changes who meets whom, and batches with them. With one
    for each, nobody meets anybody, and a router that sees them live sends nobody where someone is.
    """
    is_closed = base.experiment.workload.arrivals.kind == "closed_loop"
    if not _is_simple(base) or base.experiment.engine.enable_prefix_caching or is_closed:
        return
    if any(request.session is not None for request in base.requests):
        return
    ends = (request.max_tokens in (None, request.output_len) for request in base.requests)
    if base.experiment.engine.async_scheduling is not False and not all(ends):
        return  # a step of one that has ended may be under way where another is sent
    roomy = changed(world, replicas=len(base.requests), routing={"kind": "least_outstanding"})
    crowded, lonely = (Summary(run).tables.requests for run in (base, host.run(roomy)))
    waits, least = (rows["first_token_at"] - rows["arrived_at"] for rows in (crowded, lonely))
    worst = int(np.argmin(waits - least))
    demand(
        waits[worst] >= least[worst] - 1e-9 * max(1.0, float(crowded["ended_at"].max())),
        "room",
        f"request {worst} has its first token after {waits[worst]}, alone after {least[worst]}",
    )


_MOST_CELLS = 4000


def table(host: Host, world: World, base: Run) -> None:
    """Where one sequence runs at a time, any latency model equals its tabulated copy."""
    engine, spec = base.deployment.engine, base.experiment.engine.speculative_config
    assert engine.max_model_len is not None
    assert engine.max_num_batched_tokens is not None
    contexts, tokens = engine.max_model_len + 1, engine.max_num_batched_tokens
    expands = spec is not None and spec.disable_mqa_scorer
    if contexts * tokens > _MOST_CELLS or not _is_simple(base) or expands:
        return
    one = changed(world, engine__max_num_seqs=1, engine__max_num_active_seqs=None)
    by_itself = host.run(one)
    model = by_itself.deployment.profile.target

    def times(*, is_prefill: bool) -> dict[str, Any]:
        rows = [
            [
                1e3
                * model.forward_time(
                    StepLoad(context, size, 1, size * is_prefill, Pieces([size], [context]))
                )
                for size in range(1, tokens + 1)
            ]
            for context in range(contexts)
        ]
        axes = {"context_tokens": [*range(contexts)], "batched_tokens": [*range(1, tokens + 1)]}
        return {**axes, "times_ms": rows}

    copied = copy.deepcopy(one)
    copied["profile"]["target"] = {
        "kind": "tabulated",
        "decode": times(is_prefill=False),
        "mixed": times(is_prefill=True),
    }
    for name in ("enforce_eager", "max_cudagraph_capture_size"):  # which the times say
        copied["config"]["engine"].pop(name, None)
    demand_same("table", by_itself, host.run(copied), rounding=1e-9)


RELATIONS: dict[str, Callable[[Host, World, Run], None]] = {
    each.__name__: each for each in (again, doubled, cut, python, alone, room, table)
}
