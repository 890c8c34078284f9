"""An engine whose costs are known, because it is a simulation: what it would have recorded."""

import numpy as np

from specsim.calibration.run_writer import RequestRow, StepRow
from specsim.profile import Profile
from specsim.simulate import Run
from specsim.summary import Summary

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


def slower(profile: Profile, factor: float) -> Profile:
    """A profile in which everything takes so many times as long."""

    def scaled(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            return {key: scaled(each, key) for key, each in value.items()}
        is_time = name.rpartition("_")[2] in {"ns", "us", "ms"}
        return value * factor if is_time and isinstance(value, float | int) else value

    given = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return Profile.model_validate(scaled(given))


def request_rows(run: Run, factor: float = 1.0) -> list[RequestRow]:
    """The requests of a simulated run in which everything takes so many times as long."""
    [records] = run.replicas
    rows: list[RequestRow] = []
    for row in Summary(run).tables.requests:
        arrived_at = float(row["arrived_at"])
        first, last = (
            arrived_at + factor * float(row[name] - arrived_at)
            for name in ("first_token_at", "ended_at")
        )
        mine = records.delivered_to == row["request"]
        lens = records.delivered_lens[mine]
        before = (np.cumsum(lens) - lens).tolist()
        drafts = [[0] * len(before), [0] * len(before)]
        if len(records.drafted_lens):
            drafts = [records.drafted_lens[mine].tolist(), records.accepted_lens[mine].tolist()]
        rows.append(
            {
                "request_id": f"request-{row['request']}",
                "input_toks": int(row["prompt_len"]),
                "output_toks": int(row["output_len"]),
                "arrival_time": arrived_at,
                "queued_ts": arrived_at,
                "scheduled_ts": arrived_at,
                "first_token_ts": first,
                "last_token_ts": last,
                "accepted": [row for row in zip(before, *drafts, strict=True) if row[1]],
            }
        )
    return rows


def step_rows(run: Run, factor: float = 1.0) -> list[StepRow]:
    """The steps of such a run."""
    [records] = run.replicas
    return [
        {
            "started_at": float(step["scheduled_at"]),
            "seconds": factor * float(step["ended_at"] - step["scheduled_at"]),
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
