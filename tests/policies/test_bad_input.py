"""Settings that make no sense: one line, exit code 2, nothing written."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import tiny_config

from specsim.__main__ import main

MEDUSA = {"method": "medusa", "num_speculative_tokens": 3}
ON_MEDUSA = {
    "profile": "a100/llama-7b",
    "engine": {**tiny_config()["engine"], "speculative_config": MEDUSA},
}
TOKENS = "needs token ids, which request"


def engine(method: str, longest: int = 3, **others: Any) -> dict[str, Any]:
    spec = {"method": method, "num_speculative_tokens": longest, **others}
    return {"engine": {**tiny_config()["engine"], "speculative_config": spec}}


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "k below zero": ("static:k=-1", {}, "policy.k = -1"),
    "k of zero": ("static:k=0", {}, "policy.k = 0: should be at least 1; policy off"),
    "k beyond the limit": ("static:k=9", {}, "policy.k = 9 exceeds"),
    "k_start below zero": ("step_controller:k_start=-1", {}, "policy.k_start = -1"),
    "negative k in a range": ("schedule:ranges=[[1, 4, -2]]", {}, "k must be at least 0"),
    "ranges that overlap": ("schedule:ranges=[[1, 4, 3], [4, 9, 1]]", {}, "overlaps the one that"),
    "ranges that start late": ("schedule:ranges=[[2, 4, 3]]", {}, "the first must start at 1"),
    "range upside down": ("schedule:ranges=[[4, 1, 3]]", {}, "first must not exceed last"),
    "no ranges": ("schedule:ranges=[]", {}, "policy.ranges"),
    "vLLM's ranges overlap": (
        None,
        engine("eagle3", num_speculative_tokens_per_batch_size=[[1, 4, 3], [4, 9, 1]]),
        "overlaps the one that",
    ),
    "trees of a lookup": (
        "medusa_tree", engine("ngram"), "'medusa_tree' drafts trees, which method 'ngram'"
    ),
    "a tree of two shapes": (
        {"kind": "static_tree", "widths": [2], "choices": [[0]]}, {}, "give either widths or"
    ),
    "a tree of no shape": ("static_tree", {}, "give either widths or choices"),
    "a tree deeper than drafts": ("static_tree:widths=[2,1,1,1]", {}, "is 4 tokens deep, more"),
    "a fixed tree of too many nodes": ("static_tree:widths=[9,9,9]", {}, "has 819 nodes"),
    "a rank below zero": ("static_tree:choices=[[0],[-1]]", {}, "each must be a path of ranks"),
    "trees and asynchronous scheduling": (
        "static_tree:widths=[2]",
        {"engine": {**tiny_config()["engine"], "async_scheduling": True}},
        "must see each step's outcome",
    ),
    "more widths than heads": ("medusa_tree:widths=[2,2,2,2]", ON_MEDUSA, "names 4 heads"),
    "width of zero": ("medusa_tree:widths=[2,0]", ON_MEDUSA, "each must be at least 1"),
    "no widths": ("medusa_tree:widths=[]", ON_MEDUSA, "policy.widths"),
    "tree of too many nodes": ("medusa_tree:widths=[9,9,9]", ON_MEDUSA, "has 819 nodes"),
    "max_width that makes too many": ("medusa_tree:max_width=7", ON_MEDUSA, "has 399 nodes"),
    "max_width of zero": ("medusa_tree:max_width=0", ON_MEDUSA, "policy.max_width = 0"),
    "confidence of a lookup": ("confidence", engine("ngram"), "method 'ngram' does not know"),
    "adaptive verification of a lookup": (
        "adaptive_verification", engine("ngram"), "method 'ngram' does not know"
    ),
    "confidence and asynchronous scheduling": (
        "confidence",
        {"engine": {**tiny_config()["engine"], "async_scheduling": True}},
        "must see each step's outcome",
    ),
    "threshold above one": ("confidence:threshold=1.5", {}, "policy.threshold = 1.5"),
    "threshold below zero": ("confidence:threshold=-0.1", {}, "policy.threshold = -0.1"),
    "threshold that is no number": (
        {"kind": "confidence", "threshold": float("nan")}, {}, "policy.threshold = nan"
    ),
    "target above one": ("acceptance_target:target=1.01", {}, "policy.target = 1.01"),
    "target below zero": ("acceptance_target:target=-1", {}, "policy.target = -1"),
    "tiers that fall": ("ema_tiers:tiers=[3, 1]", {}, "tiers [3, 1] must be at least 0 and rising"),
    "tiers that repeat": ("ema_tiers:tiers=[1, 1]", {}, "must be at least 0 and rising"),
    "tiers below zero": ("ema_tiers:tiers=[-1, 3]", {}, "must be at least 0 and rising"),
    "no tiers": ("ema_tiers:tiers=[]", {}, "policy.tiers"),
    "hysteresis that is no number": (
        {"kind": "ema_tiers", "down_hysteresis": float("nan")}, {}, "policy.down_hysteresis = nan"
    ),
    "smoothing of zero": ("ema_tiers:smoothing=0", {}, "policy.smoothing = 0"),
    "tokens that are not there": ("cached_step_controller", {}, TOKENS),
    "unknown granularity": ("goodput:granularity=batch", {}, "policy.granularity"),
    "unknown algorithm": ("bandit:algorithm=exp3", {}, "policy.algorithm"),
    "alpha_max of one": ("window_opt:alpha_max=1", {}, "policy.alpha_max = 1"),
    "discount of one": ("q_learning:discount=1", {}, "policy.discount = 1"),
    "reset_steps of zero": ("turbospec:reset_steps=0", {}, "policy.reset_steps = 0"),
    "limit of zero": ("slo_aware:tpot_ms=0", {}, "policy.tpot_ms = 0"),
    "unknown field": ("slo_aware:tpot=3", {}, "tpot"),
    **{
        f"{kind} with a window of zero": (f"{kind}:window=0", changes, "policy.window = 0")
        for kind, changes in [
            *((kind, {}) for kind in ("acceptance_target", "goodput", "goodput_exact")),
            *((kind, {}) for kind in ("slo_aware", "turbospec", "window_opt")),
            ("medusa_tree", ON_MEDUSA),
        ]
    },
    **{
        f"{kind} with a prior above one": (f"{kind}:prior=1.1", changes, "policy.prior = 1.1")
        for kind, changes in [
            *((kind, {}) for kind in ("goodput", "goodput_exact", "slo_aware", "turbospec")),
            ("window_opt", {}),
            ("medusa_tree", ON_MEDUSA),
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_one_line_exit_code_2_and_nothing_written(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, changes, message = BAD[case]
    config = tiny_config(**changes, **({} if policy is None else {"policy": policy}))
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["specsim", "run", "exp.yaml", "--out", "results"])
    with pytest.raises(SystemExit) as stop:
        main()
    output = capsys.readouterr()
    assert (stop.value.code, output.out) == (2, "")
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert message in output.err
    assert [path.name for path in tmp_path.iterdir()] == ["exp.yaml"]
