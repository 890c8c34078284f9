"""What a decision costs: every policy on a full batch, by itself.

    python benchmarks/policies.py            # two minutes; writes policies.csv
    python experiments/readme.py             # and takes it over into the scoreboard's README

A step of 256 decoding sequences with up to 8 drafts each, on the costs of h100/llama-3.1-8b with
eagle3 (medusa_tree: a100/llama-7b with three heads; lookups: h100/llama-3.1-8b with ngram). Counted
is all that the policy adds to a step: its views, `drops`, `verify_lens`, `observe`, `draft_lens`
and `stop_len`. The median CPU time over many steps, of the least disturbed of five repeats.
"""

import argparse
import csv
import platform
import statistics
from dataclasses import replace
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np

from specsim.acceptance import Oracle
from specsim.core.step import BatchView, DraftView, StepLoad, StepOutcome
from specsim.core.trees import Tree
from specsim.policies import (
    POLICIES,
    ModelView,
    OraclePolicy,
    Policy,
    ServerView,
    quick_step_time,
    quick_step_times,
)
from specsim.profile import StepCosts, load_profile

HERE = Path(__file__).parent
BATCH = 256
LONGEST = 8
STEPS = 400
WARM_UP = 50
REPEATS = 5
PROMPT, OUTPUT = 450, 400
CASES: dict[str, tuple[Any, str]] = {
    "off": ("off", "eagle3"),
    "static": ("static", "eagle3"),
    "schedule": ("schedule:ranges=[[1, 8, 8], [9, 64, 4], [65, 512, 1]]", "eagle3"),
    "step_controller": ("step_controller", "eagle3"),
    "cached_step_controller": ("cached_step_controller", "eagle3"),
    "q_learning": ("q_learning", "eagle3"),
    "window_opt": ("window_opt", "eagle3"),
    "goodput": ("goodput", "eagle3"),
    "goodput, per request": ("goodput:granularity=request", "eagle3"),
    "goodput_exact": ("goodput_exact", "eagle3"),
    "turbospec": ("turbospec", "eagle3"),
    "turbospec, ngram": ("turbospec", "ngram"),
    "confidence": ("confidence", "eagle3"),
    "adaptive_verification": ("adaptive_verification", "eagle3"),
    "draft_goodput": ("draft_goodput", "eagle3"),
    "joint": ("joint", "eagle3"),
    "joint, ngram": ("joint", "ngram"),
    "bayes": ("bayes", "eagle3"),
    "medusa_tree": ("medusa_tree", "medusa"),
    "ema_tiers": ("ema_tiers", "eagle3"),
    "acceptance_target": ("acceptance_target", "eagle3"),
    "bandit, ucb1": ("bandit:algorithm=ucb1", "eagle3"),
    "bandit, thompson": ("bandit:algorithm=thompson", "eagle3"),
    "slo_aware": ("slo_aware:tpot_ms=20", "eagle3"),
    "oracle": ("oracle", "eagle3"),
    "random": ("random", "eagle3"),
    "acceptance_gate": ("acceptance_gate:acceptance_window=5", "eagle3"),
    "acceptance_rate_gate": ("acceptance_rate_gate:acceptance_rate_window_size=5", "eagle3"),
    "adaptive_k": ("adaptive_k", "eagle3"),
    "throughput_tiers": ("throughput_tiers", "eagle3"),
    "ucbspec": ("ucbspec", "eagle3"),
    "nightjar": ("nightjar", "eagle3"),
    "tapout": ("tapout", "eagle3"),
    "dsde": ("dsde", "eagle3"),
    "spec_serve": ("spec_serve", "eagle3"),
    "disco": ("disco", "eagle3"),
    "specdec_pp": ("specdec_pp", "eagle3"),
    "adaedl": ("adaedl", "eagle3"),
}


def costs(method: str) -> StepCosts:
    profile = load_profile("a100/llama-7b" if method == "medusa" else "h100/llama-3.1-8b")
    return StepCosts(profile.target, (profile.drafts[method],), profile.overhead)


def samples(policy: str, method: str, batch: int) -> list[float]:
    """Microseconds of each step of so many sequences."""
    rng = np.random.default_rng(1)
    step_costs, parsed = costs(method), POLICIES.parse(policy)
    longest = parsed.max_draft_len(3 if method == "medusa" else LONGEST)
    lens = (rng.geometric(0.3, (batch, OUTPUT)) - 1).clip(0, LONGEST).astype(np.uint8)
    oracle = Oracle(lens.ravel(), np.arange(0, lens.size + 1, OUTPUT))
    plain_time = quick_step_time(replace(step_costs, drafts=()))
    server = ServerView(
        longest,
        quick_step_time(step_costs),
        quick_step_times(step_costs),
        drafts_by_model=method != "ngram",
        prompt_token_ids=lambda request: range(PROMPT),
        oracle=oracle if isinstance(parsed, OraclePolicy) else None,
        model=ModelView(
            lambda requests, output_lens: (
                np.full((len(requests), longest), 0.7),
                np.full((len(requests), longest), 0.5),
            ),
            1.0 / 11.0,
        ),
        drafts_at_one_cost=step_costs.drafts_at_one_cost,
        plain_time=lambda load: plain_time(load, 0),
        has_confidences=method != "ngram",
    )
    memory = parsed.start(server)
    # The engine's own columns, gathered by its loop, of which a policy sees a copy.
    requests, prompt_lens = np.arange(batch), np.full(batch, PROMPT)
    known_lens = prompt_lens + rng.integers(1, 200, batch)
    gathered = np.stack([requests, prompt_lens, known_lens, np.zeros(batch, dtype=np.int64)])
    context = int(known_lens.sum())

    def view(load: StepLoad, now: float) -> BatchView:
        columns = gathered.copy()
        decodes = StepLoad(context - batch, batch, batch)
        return BatchView(*columns[:3], columns[3] == 1, load, now=now, decodes=decodes)

    asked: Any = LONGEST
    taken = []
    for step in range(STEPS):
        is_tree = isinstance(asked, Tree)
        nodes = asked.num_nodes if is_tree else asked
        drafts = np.full(batch, nodes) if isinstance(nodes, int) else nodes
        load = StepLoad(context, batch + int(drafts.sum()), batch)
        confidences = rng.random((batch, drafts.max()), dtype=np.float32) ** np.float32(0.3)
        found = DraftView(drafts, confidences)
        limit = asked.depth if is_tree else LONGEST
        survived = (rng.geometric(0.3, batch) - 1).clip(0, limit)
        tokens = [rng.integers(0, 30_000, n + 1).tolist() for n in survived]

        began = thread_time_ns()
        if parsed.overrides(Policy.drops) and parsed.drops_now(memory):
            parsed.drops(view(load, 0.03 * step), memory)
        if parsed.overrides(Policy.verify_lens):
            drafts = parsed.verify_lens(view(load, 0.03 * step), found, memory)
        spent = thread_time_ns() - began
        accepted = np.minimum(survived, drafts)
        output = StepOutcome(
            requests=requests,
            draft_lens=drafts,
            accepted_lens=accepted,
            load=load,
            output_tokens=int(accepted.sum()) + batch,
            target_time=0.02,
            draft_time=0.003,
            overhead_time=0.001,
            trees=[asked if is_tree else None] * batch,
            paths=[(1,) * n for n in accepted.tolist()],
            token_ids=[t[: n + 1] for t, n in zip(tokens, accepted.tolist(), strict=True)],
        )
        began = thread_time_ns()
        if parsed.overrides(Policy.observe):
            parsed.observe(output, memory)
        if parsed.is_dynamic:
            seen = view(load, 0.03 * step)
            asked = parsed.draft_lens(seen, memory)
            if parsed.overrides(Policy.alpha_estimate):
                parsed.alpha_estimate(memory)
            if parsed.overrides(Policy.stop_len):
                parsed.stop_len(seen, found, memory)
        spent += thread_time_ns() - began
        taken.append(spent / 1e3)
    return taken[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a decision costs; see above.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--batch", type=int, default=BATCH, help="sequences of a step")
    options = parser.parse_args()
    rows, names = [], options.names or list(CASES)
    for name in names:
        repeats = [samples(*CASES[name], options.batch) for _ in range(REPEATS)]
        taken = min(repeats, key=statistics.median)
        rows.append((name, statistics.median(taken), statistics.quantiles(taken, n=20)[-1]))
        print(f"{name:28} {rows[-1][1]:8.1f} us, 95 %: {rows[-1][2]:8.1f} us", flush=True)
    if not options.names and options.batch == BATCH:
        with (HERE / "policies.csv").open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["policy", "median_us", "p95_us"])
            writer.writerows([name, f"{median:.1f}", f"{p95:.1f}"] for name, median, p95 in rows)
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
