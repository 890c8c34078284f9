"""The settings of the scripts beside this file."""

from pathlib import Path

from specsim.api import Experiment

_TRACE = Path(__file__).parents[2] / "traces" / "code.parquet"

WORKLOADS = {
    "chat": {
        "arrivals": {"kind": "poisson", "rate": 8.0},
        "lengths": {"kind": "dataset", "name": "sharegpt"},
    },
    "summaries": {
        "arrivals": {"kind": "poisson", "rate": 8.0},
        "lengths": {"kind": "dataset", "name": "cnn_dailymail"},
    },
    "chat in bursts": {
        "arrivals": {"kind": "gamma", "rate": 8.0, "burstiness": 0.3},
        "lengths": {"kind": "dataset", "name": "sharegpt"},
    },
    "code, from a trace": {"arrivals": {"kind": "trace", "path": str(_TRACE)}},
}
POLICIES = ("off", "static:k=3", "goodput")
SLO = "ttft:500,tpot:50"


def experiment(workload: str, seed: int = 0) -> Experiment:
    """Return README's experiment with another workload."""
    config = {
        "seed": seed,
        "workload": {**WORKLOADS[workload], "num_requests": 200},
        "engine": {
            "max_num_seqs": 256,
            "speculative_config": {"method": "eagle3", "num_speculative_tokens": 5},
        },
        "policy": {"kind": "static", "k": 3},
        "acceptance": {"kind": "bernoulli", "alpha": 0.62},
        "profile": "h100/llama-3.1-8b",
    }
    return Experiment.parse(config, workload)
