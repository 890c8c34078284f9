"""Scenarios of which everything is drawn that an engine accepts; small, and full of ties."""

from random import Random
from typing import Any

from specsim.hardware.kv_groups import KVLayers, as_full_attention, kv_layout
from specsim.reality.parity import (
    AcceptanceScript,
    CostScript,
    DraftScript,
    EngineScript,
    RequestScript,
    Scenario,
    SpecScript,
)

__all__ = ["random_scenario"]


def random_scenario(
    number: int, *, prefill_first: bool = False, has_groups: bool = False
) -> Scenario:
    """Return the scenario of a number, always the same.

    Parameters
    ----------
    number : int
    prefill_first : bool
        Only with what vLLM V0 has.
    has_groups : bool
        With layers that attend differently.

    Returns
    -------
    Scenario
    """
    rng = Random(number)
    spec = _spec(rng)
    engine = _engine(rng, spec, prefill_first=prefill_first)
    if has_groups:
        engine = _with_groups(rng, engine)
    cost = CostScript(
        base_ns=rng.choice([1, 10, 1000, 5_000_000]),
        per_token_ns=rng.choice([0, 0, 1, 20_000]),
        per_ctx_ns=rng.choice([0, 0, 1, 39]),
    )
    mode = "ngram" if spec and rng.random() < 0.3 else "full"
    return Scenario(
        name=f"random-{number}",
        seed=number,
        engine=engine,
        cost=cost,
        acceptance=AcceptanceScript(alpha=rng.choice([0.0, 0.3, 0.7, 0.95, 1.0])),
        drafts=DraftScript(mode=mode, p_zero=rng.choice([0.0, 0.3, 0.9])),
        requests=_stopping(Random(f"stops {number}"), _requests(rng, engine, cost)),
    )


def _stopping(rng: Random, rows: tuple[RequestScript, ...]) -> tuple[RequestScript, ...]:
    """Return requests of which, in every other scenario, some end before all that they ask for."""
    if rng.random() < 0.5:
        return rows
    return tuple(
        row.model_copy(update={"stop_after": rng.randint(1, row.max_tokens)})
        if rng.random() < 0.7
        else row
        for row in rows
    )


def _spec(rng: Random) -> SpecScript | None:
    if rng.random() < 0.25:
        return None
    k = rng.choice([1, 2, 3, 5, 8])
    ranges = None
    if rng.random() < 0.3:
        first, found = 1, []
        for _ in range(rng.randint(1, 3)):
            last = first + rng.randint(0, 4)
            found.append((first, last, rng.randint(0, k + 1)))
            first = last + rng.randint(1, 3)
        ranges = tuple(found)
    method = rng.choice(["draft_model", "eagle", "ngram"])
    return SpecScript(method=method, k=k, per_batch_size=ranges)


def _engine(rng: Random, spec: SpecScript | None, *, prefill_first: bool) -> EngineScript:
    block_size = rng.choice([1, 2, 4, 4, 8, 16])
    max_model_len = rng.choice([20, 40, 64, 100])
    needed = -(-max_model_len // block_size) + 1
    chunked = rng.random() < 0.75 and not prefill_first
    seqs = rng.choice([1, 2, 4, 8])
    # A padded admission, or a draft model's own slot, must not be larger than the budget.
    least = 2 + (spec.k + 1 if spec else 0)
    budget = max(seqs, least, rng.choice([least, 12, 24, 64, 200]))
    if not chunked:
        budget = max(budget, max_model_len + 2)
    is_async = rng.random() < 0.5 and not prefill_first
    return EngineScript(
        block_size=block_size,
        num_blocks=needed + rng.choice([0, 0, 1, 3, 10, 60]),
        max_model_len=max_model_len,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_num_active_seqs=rng.choice([None, None, 1, 3]),
        enable_chunked_prefill=chunked,
        enable_prefix_caching=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "fcfs", "priority"]),
        long_prefill_token_threshold=0 if prefill_first else rng.choice([0, 0, least, 10]),
        long_prefill_token_threshold_adaptive=rng.random() < 0.3,
        scheduler_reserve_full_isl=rng.random() < 0.5,
        watermark=rng.choice([0.0, 0.0, 0.05, 0.3]),
        async_scheduling=is_async,
        spec=spec,
    )


def _with_groups(rng: Random, engine: EngineScript) -> EngineScript:
    """Return an engine with layers that attend differently, and a pool that is hardly enough."""
    kinds: list[dict[str, Any]] = [{"kind": "full_attention"}]
    for _ in range(rng.choice([1, 1, 2, 3])):
        kinds.append({"kind": "sliding_window", "window": rng.choice([1, 2, 3, 5, 8, 9, 17, 40])})
    if rng.random() < 0.2:
        kinds.append({"kind": "chunked_local_attention", "chunk": rng.choice([4, 7, 16, 30])})
    rng.shuffle(kinds)
    if rng.random() < 0.15:
        kinds = kinds[:1]
    # vLLM caches no prefixes in chunks beside blocks of other sizes.
    has_widths = rng.random() < 0.4 and not any("chunk" in each for each in kinds)
    for each in kinds:
        each["layers"] = rng.choice([1, 2, 3, 4, 7])
        if has_widths:
            each["bytes_per_token"] = rng.choice([256, 512, 512, 1024, 768])
    spec = engine.spec
    if spec is not None and spec.method == "eagle" and rng.random() < 0.5:
        spec = spec.model_copy(update={"method": "mtp"})
    layers = tuple(KVLayers(**each) for each in kinds)
    drops = spec is not None and spec.method in ("eagle", "mtp")
    if drops and any(each.chunk for each in layers):
        layers = as_full_attention(layers)
    layout = kv_layout(layers, engine.block_size)
    in_flight_tokens = engine.max_num_batched_tokens * (2 if engine.async_scheduling else 1)
    kept = rng.choice([0, 0, 1, 2, 4, None])
    if not any(each.window for each in layers):
        kept = 0
    most = sum(-(-engine.max_model_len // group.block_size) for group in layout.groups)
    # The least that vLLM wants does not count look-ahead slots, without which it can stand still.
    in_flight_tokens += spec.k if spec else 0
    fewest = max(layout.most_blocks(engine.max_model_len, in_flight_tokens), most // 2) + 1
    return engine.model_copy(
        update={
            "kv_groups": layers,
            "spec": spec,
            "num_blocks": fewest + rng.choice([0, 0, 1, 3, 10, 60]),
            "enable_prefix_caching": rng.random() < 0.75,
            "prefix_cache_retention_interval": None
            if kept is None
            else kept * layout.common_block_size,
        }
    )


def _requests(rng: Random, engine: EngineScript, cost: CostScript) -> tuple[RequestScript, ...]:
    count = rng.randint(1, 14)
    longest = engine.max_model_len - 1
    names = rng.sample([f"{letter}{digit}" for letter in "abcAB" for digit in "0123456789"], count)
    gaps = [0, 0, 1, cost.base_ns, 3 * cost.base_ns, rng.randint(0, 20) * cost.base_ns]
    shared = [rng.choices(range(9), k=longest) for _ in range(2)]
    rows, at = [], rng.choice([0, 0, 5])
    for name in names:
        at += rng.choice(gaps)
        prompt_len = rng.randint(1, rng.choice([3, longest // 2, longest]))
        prompt = None
        if rng.random() < 0.6:
            common = rng.randint(0, prompt_len)
            prompt = (*rng.choice(shared)[:common], *rng.choices(range(9), k=prompt_len - common))
        rows.append(
            RequestScript(
                id=name,
                arrival_ns=at,
                prompt_len=prompt_len,
                max_tokens=rng.randint(1, rng.choice([2, 10, 40])),
                priority=rng.choice([0, 0, 1, 2, -1]),
                alpha=rng.choice([None, None, 0.1, 0.99]),
                prompt_token_ids=prompt,
            )
        )
    return tuple(rows)
