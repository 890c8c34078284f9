"""Buckets of vLLM's histograms, seconds but for the last.

Source: vLLM 0.32.0 ``v1/metrics/loggers.py``.
"""

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
PER_TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
PREEMPTIONS_BUCKETS = (1, 2, 3, 4, 5, 10, 20)


def token_buckets(longest: int) -> list[float]:
    """Return the bounds of buckets of tokens: 1, 2, 5, 10, ... up to a length."""
    digits = (each * 10**power for power in range(len(str(longest))) for each in (1, 2, 5))
    return [float(bound) for bound in digits if bound <= longest]
