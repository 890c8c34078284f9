"""An engine whose costs are known, because it is a simulation: what it would have recorded."""

from dataclasses import dataclass

import numpy as np
from deliveries import of_request

from specsim.core.request import Request
from specsim.engine.incidents import Slowdown
from specsim.profile import Profile
from specsim.reality.run_writer import RequestRow, StepRow
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

TRUTH = Profile.model_validate(
    {
        "model": "llama-7m",
        "gpu": "cpu",
        "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
        "target": {
            "kind": "two_regime",
            "decode": {"alpha_ns": 400, "gamma_us": 90, "delta_ms": 4.0},
            "mixed": {"alpha_ns": 700, "gamma_us": 100, "delta_ms": 4.5},
        },
        "drafts": {
            "draft_model": {
                "latency": {"kind": "linear", "alpha_ns": 100, "gamma_us": 20, "delta_ms": 0.8},
                "token_us": 30.0,
            }
        },
        "overhead": {"step_ms": 0.3, "request_us": 50.0},
        "valid_range": {"context_tokens": 10**6, "batched_tokens": 10**6},
    }
)


@dataclass(frozen=True)
class Host:
    """A machine that does not always have the same speed."""

    factors: tuple[float, ...] = (1.0,)
    """How many times as long as usual everything takes, in turn for half a second each."""
    tells: bool = True
    """Whether probes show it."""

    def run(self, experiment: Experiment, requests: list[Request]) -> Run:
        """Serve on it; policies are not told."""
        slowdowns = (
            Slowdown(replica=0, at=half / 2, until=(half + 1) / 2, factor=self.factor(half / 2))
            for half in range(400)
        )
        there = experiment.model_copy(update={"incidents": tuple(slowdowns)})
        return simulate(there, requests=requests, profile=TRUTH, keeps_deliveries=True)

    def factor(self, at: float) -> float:
        """At some instant."""
        return self.factors[int(2 * at) % len(self.factors)]

    def probes(self, until: float) -> list[tuple[float, float]]:
        """From the start on, fifty a second, that usually take 4 ms."""
        instants = [number / 50 for number in range(int(50 * until) + 1)]
        return [(at, 0.004 * (self.factor(at) if self.tells else 1.0)) for at in instants]


def request_rows(run: Run) -> list[RequestRow]:
    """The requests of a simulated run."""
    rows: list[RequestRow] = []
    for row in Summary(run).tables.requests:
        arrived_at = float(row["arrived_at"])
        mine = of_request(run, int(row["request"]))
        lens = mine.lens.astype(int)
        before = (np.cumsum(lens) - lens).tolist()
        drafts = [mine.drafted.tolist(), mine.accepted.tolist()]
        rows.append(
            {
                "request_id": f"request-{row['request']}",
                "input_toks": int(row["prompt_len"]),
                "output_toks": int(row["output_len"]),
                "arrival_time": arrived_at,
                "queued_ts": arrived_at,
                "scheduled_ts": arrived_at,
                "first_token_ts": float(row["first_token_at"]),
                "last_token_ts": float(row["ended_at"]),
                "accepted": [row for row in zip(before, *drafts, strict=True) if row[1]],
            }
        )
    return rows


def step_rows(run: Run) -> list[StepRow]:
    """The steps of such a run."""
    [records] = run.replicas
    return [
        {
            "started_at": float(step["scheduled_at"]),
            "seconds": float(step["ended_at"] - step["scheduled_at"]),
            "context_tokens": int(step["context_tokens"]),
            "batched_tokens": int(step["batched_tokens"]),
            "num_requests": int(step["num_requests"]),
            "prefill_tokens": int(step["prefill_tokens"]),
            "draft_tokens": int(step["draft_tokens"]),
            "accepted_tokens": int(step["accepted_tokens"]),
            "num_waiting": int(step["num_waiting"]),
            "free_blocks": int(step["free_blocks"]),
            "made_drafts": int(step["asked_draft_len"]),
        }
        for step in records.steps
    ]
