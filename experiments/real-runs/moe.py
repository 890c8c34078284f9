"""What each part of the mixture of experts does to the error of its measured run.

SPECSIM_DATA=... python experiments/real-runs/moe.py     # writes moe.csv beside it
"""

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from specsim.latency.cuda_graph import CudaGraph
from specsim.latency.kernels import Kernels
from specsim.profile import Profile
from specsim.reality.validation import Replaced, Replay, compose, load_run, replay

RUN = Path(os.environ["SPECSIM_DATA"]) / "real-runs/RTXPRO6000-qwen3-30b-a3b-dp2-ep2"
FREE = {"collectives": lambda us: us * 1e-9}
EXPERTS = {"data_parallel_size": 2, "enable_expert_parallel": True}


def of_kernels(profile: Profile, **fields: Any) -> Profile:
    """Return the profile with other fields of its kernels."""
    assert isinstance(profile.target, CudaGraph)
    inner = profile.target.inner
    assert isinstance(inner, Kernels)
    old = {name: getattr(inner, name) for name in Kernels.model_fields}
    if change := fields.pop("collectives", None):
        fields["collectives"] = [
            each.model_copy(update={"us": tuple(change(np.array(each.us)))})
            for each in inner.collectives
        ]
    target = profile.target.model_copy(update={"inner": Kernels(**{**old, **fields})})
    return profile.model_copy(update={"target": target})


def changed(replay_of: Replay, *, coupled: bool = True, **fields: Any) -> Replay:
    """Return a run with other kernels, and, if it is not coupled, with ranks by themselves."""
    experiment = replay_of.experiment
    if not coupled:
        alone = {"data_parallel_size": None, "enable_expert_parallel": None}
        engine = experiment.engine.model_copy(update=alone)
        experiment = experiment.replace(engine=engine, replicas=2)
    return replace(
        replay_of, experiment=experiment, profile=of_kernels(replay_of.profile, **fields)
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "two servers by themselves, all experts on each": {"coupled": False, "zero_writes": None},
    "+ experts of both ranks shared out, as if both had the same step": {
        "coupled": False, "zero_writes": None, **EXPERTS, **FREE,
    },
    "+ lock-step, padded to the larger batch": {"zero_writes": None, **FREE},
    "+ all-gather and reduce-scatter": {"zero_writes": None},
    "+ zeros for the other GPU's experts (vLLM before 0.32): all": {},
    "all, without the start-up of collectives": {"collectives": lambda us: us - us[0] + 1e-9},
    "all, at half the bandwidth between GPUs": {"collectives": lambda us: 2 * us - us[0]},
    "all, busiest GPU with 1.1 times the mean": {"expert_imbalance": 1.1},
}  # fmt: skip


def main() -> None:
    """Run all variants."""
    run = load_run(RUN)
    whole = compose(run, Replaced())
    with Path(__file__).with_name("moe.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["variant", "mean_abs_error", "ttft_mean", "tpot_mean", "latency_mean"])
        for name, fields in VARIANTS.items():
            found = replay(run, changed(whole, **fields))
            means = {each.metric: each.error for each in found.statistics if each.name == "mean"}
            row = [found.mean_error, means["ttft"], means["tpot"], means["latency"]]
            writer.writerow([name, *(f"{value:.4f}" for value in row)])
            print(name, *(f"{value:+.2%}" for value in row))


if __name__ == "__main__":
    main()
