"""What a policy in a real vLLM adds to a step: `Controller` on a full batch, by itself.

    python benchmarks/control.py             # ten seconds

64 decoding sequences, each with up to four drafts; without what `specsim.vllm` takes to read rows
from vLLM's objects. CPU time of `load_of`, `decide` and `observe` of a step, the median over many,
of the least disturbed of five repeats; once with a profile, and once with learned step times.
"""

from random import Random
from statistics import median
from time import thread_time_ns

from specsim.reality.vllm.control import Control, Controller, Engine, load_of

ENGINE = Engine(method="eagle3", num_speculative_tokens=4, max_num_seqs=64)
POLICIES = ("static:k=4", "goodput", "joint")
PROFILES = ("h100/llama-3.1-8b", None)
STEPS, WARM_UP, REPEATS = 400, 100, 5


def microseconds(policy: str, profile: str | None) -> float:
    """Return what a step takes, CPU time."""
    controller, rng = Controller(Control(policy=policy, profile=profile), ENGINE), Random(0)
    known, k, taken = [300] * ENGINE.max_num_seqs, 0, []
    for step in range(WARM_UP + STEPS):
        drafted = k
        rows = [(i, 250, n, False, n - 1, 1 + drafted, drafted) for i, n in enumerate(known)]
        accepted = [rng.randint(0, drafted) for _ in rows]
        emitted = [(i, drafted, len_, len_ + 1) for i, len_ in enumerate(accepted)]
        begun = thread_time_ns()
        load = load_of(rows)
        k = controller.decide(rows, load, 0.02 * step, len(rows), 100_000)
        controller.observe(load, k, 0.015 + 0.002 * k, emitted)
        taken.append(thread_time_ns() - begun)
        known = [300 + (n + len_ + 1) % 400 for n, len_ in zip(known, accepted, strict=True)]
    return median(taken[WARM_UP:]) / 1e3


def main() -> None:
    for policy in POLICIES:
        for profile in PROFILES:
            best = min(microseconds(policy, profile) for _ in range(REPEATS))
            print(f"{policy:12} {profile or 'learned':18} {best:6.0f} us")


if __name__ == "__main__":
    main()
