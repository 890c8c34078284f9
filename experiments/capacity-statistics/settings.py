"""The settings of the two scripts beside this file."""

from specsim.api import Experiment

WORKLOADS = {
    "chat, Poisson": {
        "arrivals": {"kind": "poisson", "rate": 8.0},
        "lengths": {"kind": "dataset", "name": "sharegpt"},
    },
    "summaries, Poisson": {
        "arrivals": {"kind": "poisson", "rate": 8.0},
        "lengths": {"kind": "dataset", "name": "cnn_dailymail"},
    },
    "chat, bursts": {
        "arrivals": {"kind": "gamma", "rate": 8.0, "burstiness": 0.5},
        "lengths": {"kind": "dataset", "name": "sharegpt"},
    },
    "code, trace": {"arrivals": {"kind": "trace", "path": "traces/code.parquet"}},
}
POLICIES = ("off", "static:k=3", "goodput")
SLO = "ttft:500,tpot:50"


def experiment(workload: str, seed: int = 0, **changes: object) -> Experiment:
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
        **changes,
    }
    return Experiment.parse(config, workload)
