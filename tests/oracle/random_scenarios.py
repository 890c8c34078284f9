"""Scenarios of which everything is drawn that an engine accepts; small, and full of ties."""

from random import Random

from specsim.reality.parity.scenario import (
    AcceptanceScript,
    CostScript,
    DraftScript,
    EngineScript,
    RequestScript,
    Scenario,
    SpecScript,
)

__all__ = ["random_scenario"]


def random_scenario(number: int, *, prefill_first: bool = False) -> Scenario:
    """Return the scenario of a number, always the same.

    Parameters
    ----------
    number : int
    prefill_first : bool
        Only with what vLLM V0 has.

    Returns
    -------
    Scenario
    """
    rng = Random(number)
    spec = _spec(rng)
    engine = _engine(rng, spec, prefill_first=prefill_first)
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
        requests=_requests(rng, engine, cost),
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
        long_prefill_token_threshold=0 if prefill_first else rng.choice([0, 0, 3, 10]),
        long_prefill_token_threshold_adaptive=rng.random() < 0.3,
        scheduler_reserve_full_isl=rng.random() < 0.5,
        watermark=rng.choice([0.0, 0.0, 0.05, 0.3]),
        async_scheduling=is_async,
        spec=spec,
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
