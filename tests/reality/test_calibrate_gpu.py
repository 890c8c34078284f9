"""`make gpu`, rehearsed on a CPU: vLLM as a simulation, and the engine of our own as it is."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT, Run
from test_calibrate_vllm import FakeVllm

from specsim.profile import load_profile
from specsim.reality.calibration import Load, torch_subject, vllm_subject


@pytest.fixture
def script() -> ModuleType:
    path = ROOT / "experiments" / "calibration-gpu" / "run.py"
    spec = importlib.util.spec_from_file_location("calibration_gpu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rehearse(script: ModuleType, cli: Run, folder: Path, engine: str) -> Path:
    """Return where what is worth keeping lies afterwards."""

    def run(arguments: Sequence[str]) -> int:
        code, _, error = cli(*arguments)
        assert code in (0, 1), error
        return code

    out, keep = folder / "out", folder / "kept"
    script.main(
        ["--device", "cpu", "--engine", engine, "--out", str(out), "--keep", str(keep)], run
    )
    return keep


@pytest.mark.slow
def test_vllm_leaves_one_profile_for_all_k(
    script: ModuleType, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = vllm_subject.plan_for("cpu", quick=True)
    plan = replace(plan, loads=tuple(replace(load, seconds=2.0) for load in plan.loads))
    monkeypatch.setattr(vllm_subject, "plan_for", lambda *_, **__: plan)
    monkeypatch.setattr(vllm_subject, "record_runs", FakeVllm({}).record_runs)
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv("SPECSIM_VLLM_PYTHON", str(python))
    kept = rehearse(script, cli, tmp_path, "vllm")
    parts = kept / "experiments" / "calibration-cpu" / "vllm" / "profiles"
    profile = load_profile(str(kept / "profiles" / "cpu" / "llama-7m-vllm.yaml"))
    assert profile.model == "llama-7m"
    assert profile.only_draft_lens is None
    assert "draft_model" in profile.drafts
    assert len(list(parts.iterdir())) == 4
    errors = (kept / "experiments" / "calibration-cpu" / "errors.md").read_text()
    assert errors.count("| vllm |") == 4 * 2


@pytest.mark.extras
def test_our_own_engine_leaves_profile_and_errors(
    script: ModuleType, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    grid = replace(
        torch_subject.QUICK.grid, num_decodes=(1, 4), context_lens=(32, 96), chunk_lens=(16, 64)
    )
    plan = replace(
        torch_subject.QUICK,
        grid=replace(grid, draft_lens=(0, 1, 3), chunk_decodes=(0, 4), rounds=2),
        loads=(Load("low", 0.25, 1.0),),
        repetitions=1,
        policies=("off", "static:k=3"),
        real_loads=(),
    )
    monkeypatch.setattr(torch_subject, "QUICK", plan)
    kept = rehearse(script, cli, tmp_path, "torch") / "experiments" / "calibration-cpu"
    assert load_profile(str(kept / "torch" / "profile.yaml")).model == "llama-7m"
    assert (kept / "errors.md").read_text().count("| torch |") == 2
