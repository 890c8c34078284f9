"""From what was measured to a profile."""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from specsim.profile import Overhead, Profile
from specsim.reality.calibration.fitting import Costs, Medians
from specsim.reality.calibration.served import CalibratedEngine, Spans
from specsim.reality.profile_fit import robust_fit

__all__ = ["make_profile", "with_overhead", "with_status"]


def make_profile(
    engine: CalibratedEngine, measured: Medians, costs: Costs, *, model: str, gpu: str
) -> Profile:
    """Return a profile of what the grid says; the engine's own overhead is still missing.

    Args:
        costs: Fitted to them.
        model, gpu: As in ``profiles/``.
    """
    loads = [point.load for point in measured.points]
    description = engine.description
    hardware = description["hardware"]
    draft = costs.draft.model_copy(
        update={
            "weights_gib": engine.drafter_gib,
            "kv_bytes_per_token": engine.drafter_kv_bytes,
        }
    )
    target_errors, draft_errors = np.abs(costs.target_errors), np.abs(costs.draft_errors)
    return Profile.model_validate(
        {
            "model": model,
            "gpu": gpu,
            "provenance": {
                "engine": f"{description['engine']}, {description['dtype']}",
                "source": "specsim calibrate",
                "date": datetime.now(UTC).strftime("%Y-%m-%d"),
                "notes": f"on {hardware['device_name']}, {hardware['threads']} thread(s); error of "
                f"a fitted step: target median {np.median(target_errors):.1%}, 90th percentile "
                f"{np.percentile(target_errors, 90):.1%}; draft {np.median(draft_errors):.1%}, "
                f"{np.percentile(draft_errors, 90):.1%}; drift while measuring "
                f"{measured.drift:+.1%}",
            },
            "target": costs.target,
            "drafts": {"draft_model": draft},
            "overhead": {"request_us": costs.request_us},
            "valid_range": {
                "context_tokens": max(load.context_tokens for load in loads),
                "batched_tokens": max(load.batched_tokens for load in loads),
            },
        }
    )


def with_overhead(profile: Profile, spans: Sequence[Spans]) -> Profile:
    """Add what an engine spends outside its forward passes, as measured in real steps."""
    columns = np.array([(1.0, each.num_requests) for each in spans])
    step, request = robust_fit(columns, np.array([each.overhead for each in spans])).tolist()
    overhead = Overhead(
        step_ms=profile.overhead.step_ms + step * 1e3,
        request_us=profile.overhead.request_us + request * 1e6,
    )
    return profile.model_copy(update={"overhead": overhead})


def with_status(profile: Profile, *, is_validated: bool, stated_error: float) -> Profile:
    """Return a profile that says whether it has kept what it promises."""
    update = {
        "status": "validated" if is_validated else "candidate",
        "stated_error": stated_error,
    }
    provenance = profile.provenance.model_copy(update=update)
    return profile.model_copy(update={"provenance": provenance})
