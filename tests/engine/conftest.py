"""Fixtures of the engine's tests."""

import pytest
import yaml


@pytest.fixture(scope="module")
def every_method(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a profile that has costs for every way to draft."""
    costs = {"kind": "linear", "alpha_ns": 1, "gamma_us": 1, "delta_ms": 1}
    methods = ("eagle3", "ngram", "draft_model", "mtp", "suffix")
    profile = {
        "model": "llama-3.1-8b", "gpu": "h100",
        "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
        "target": {"kind": "linear", "alpha_ns": 40, "gamma_us": 20, "delta_ms": 5},
        "valid_range": {"context_tokens": 10**6, "batched_tokens": 10**6},
        "drafts": {method: {"latency": costs} for method in methods},
    }  # fmt: skip
    path = tmp_path_factory.mktemp("profiles") / "every-method.yaml"
    path.write_text(yaml.safe_dump(profile))
    return str(path)
