"""A drafter on GPUs of its own, and one that overlaps: what closed forms say they bring."""

from typing import Any

import pytest

from specsim.profile import Profile
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

TARGET_MS = 20.0


def profile(speed_ratio: float, draft_ms_per_token: float = 0.0) -> Profile:
    """A target whose passes take 20 ms whatever they hold; its drafter is so many times faster."""
    constant = {"kind": "linear", "alpha_ns": 0.0, "gamma_us": 0.0}
    drafter = {**constant, "delta_ms": TARGET_MS / speed_ratio}
    return Profile.model_validate(
        {
            "model": "llama-7m",
            "gpu": "cpu",
            "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
            "target": {**constant, "delta_ms": TARGET_MS},
            "drafts": {"draft_model": {"latency": drafter}},
            "overhead": {"step_ms": 0.0, "request_us": 0.0},
            "valid_range": {"context_tokens": 10**6, "batched_tokens": 10**6},
        }
    )


def served(alpha: float, k: int, speed_ratio: float, **own_gpus: Any) -> Summary:
    spec = {"method": "draft_model", "num_speculative_tokens": k, "own_gpus": own_gpus}
    experiment = Experiment.parse(
        {
            "workload": {
                "arrivals": {"kind": "closed_loop", "concurrency": 1},
                "lengths": {"kind": "constant", "prompt": 4, "output": 4000},
                "num_requests": 6,
            },
            "engine": {"speculative_config": spec, "max_model_len": 8192, "num_gpu_blocks": 2000},
            "acceptance": {"kind": "bernoulli", "alpha": alpha},
            "policy": "static",
            "profile": "h100/llama-3.1-8b",
        },
        "a test",
    )
    return Summary(simulate(experiment, profile=profile(speed_ratio), keeps_steps=False))


def speed_up(summary: Summary) -> float:
    """Over the target alone, which takes a pass for each token."""
    return float(TARGET_MS / summary.statistics["tpot"]["mean"])


def separate(alpha: float, k: int, speed_ratio: float, link: float = 0.0) -> float:
    """Leviathan et al. (2023), theorem 3.8; a step waits for the drafter and for both ways."""
    tokens = k + 1 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)
    return tokens / (1 + k / speed_ratio + 2 * link)


def overlapped(alpha: float, k: int, speed_ratio: float, link: float = 0.0) -> float:
    """Two states, of Liu et al. (2025), "PEARL", algorithm 2: pre-verify and post-verify.

    A step of the first emits one token, and goes on to the second if it was guessed. One of the
    second emits what is accepted of k - 1 drafts and one more, and stays there if all k were
    guessed, that one included.
    """
    tokens = k if alpha == 1 else (1 - alpha**k) / (1 - alpha)
    share = alpha / (alpha + 1 - alpha**k)  # of steps in the second
    return (1 - share + share * tokens) / max(1, k / speed_ratio + 2 * link)


@pytest.mark.parametrize(
    ("alpha", "k", "speed_ratio", "link"),
    [(0.5, 3, 4.0, 0.0), (0.8, 5, 5.0, 0.0), (0.9, 4, 10.0, 0.1), (0.0, 4, 8.0, 0.0),
     (1.0, 6, 6.0, 0.0), (0.7, 8, 4.0, 0.05), (0.95, 10, 10.0, 0.0), (0.6, 1, 3.0, 0.0)],
)  # fmt: skip
def test_speed_ups_are_those_of_closed_forms(
    alpha: float, k: int, speed_ratio: float, link: float
) -> None:
    latency_ms = link * TARGET_MS
    alone = served(alpha, k, speed_ratio, latency_ms=latency_ms)
    beside = served(alpha, k, speed_ratio, latency_ms=latency_ms, overlaps=True)
    assert speed_up(alone) == pytest.approx(separate(alpha, k, speed_ratio, link), rel=0.02)
    assert speed_up(beside) == pytest.approx(overlapped(alpha, k, speed_ratio, link), rel=0.02)


def test_the_best_draft_takes_as_long_as_the_target() -> None:
    """PEARL, section 4: the best length is the ratio of the speeds; sure drafts bring all of it."""
    ups = {k: speed_up(served(0.8, k, 5.0, overlaps=True)) for k in (3, 4, 5, 6, 8)}
    assert max(ups, key=ups.__getitem__) == 5
    assert speed_up(served(1.0, 5, 5.0, overlaps=True)) == pytest.approx(5.0, rel=0.01)
