"""Tuning: which k to set, at which batch size and load, and what that gains.

Three questions, each answered by simulating this experiment's own profile, workload and acceptance:

- `batch`: which k serves each batch size fastest. The answer is vLLM's
  ``num_speculative_tokens_per_batch_size``.
- `crossover`: up to which load a server with a fixed k is better than one without speculation.
- `check`: what the schedule gains over the best fixed k, and how much of the oracle's gain that is.

All trials of one replication meet the same requests and the same luck, so every comparison is
paired.
"""

from specsim.study.tune.tuning import Tuning, tune

__all__ = ["Tuning", "tune"]
