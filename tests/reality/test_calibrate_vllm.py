"""`specsim calibrate --engine vllm` on a simulation; on the real one: make test-vllm."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from made_up import Host, request_rows, step_rows

from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.profile import load_profile
from specsim.reality.calibration import Calibration, Load, calibrate, vllm_subject
from specsim.reality.calibration.vllm_subject import COMPARED, ORDER, VllmSubject, load_of, plan_for
from specsim.reality.run_writer import RunWriter
from specsim.reality.validation import load_run
from specsim.reality.vllm import VllmRun
from specsim.run.experiment import Experiment
from specsim.show.render.reality_tables import calibration_tables, calibration_verdict, error_tables

pytestmark = pytest.mark.slow

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "vocab_size": 500,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
}


@dataclass
class FakeVllm:
    """Writes the run folders of simulations."""

    hosts: Mapping[str, Host]
    """What runs are on, by their name; others take as long as `TRUTH` says."""
    drafts: bool = True
    dies_at: str = ""
    device_name: str = "cpu"

    def record_runs(
        self,
        runs: Sequence[VllmRun],
        engine_kwargs: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        probes: bool,
        timeout_s: float,
    ) -> None:
        assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
        assert timeout_s > 600
        assert probes
        assert engine_kwargs["load_format"] == "dummy"
        names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")
        engine = {name: engine_kwargs[name] for name in names}
        engine["num_gpu_blocks"] = engine_kwargs["num_gpu_blocks_override"]
        engine |= {"async_scheduling": False, "enable_prefix_caching": False}
        speculation = dict(engine_kwargs.get("speculative_config") or {})
        method = {name: value for name, value in speculation.items() if name != "model"}
        for run in runs:
            meta = {
                "vllm_version": "0.32.0",
                "engine_kwargs": {**engine, "speculative_config": method or None},
                "hardware": {"device_name": self.device_name},
            }
            host = self.hosts.get(run.folder.name, Host())
            with RunWriter(run.folder, meta) as writer:
                if self.dies_at and self.dies_at in str(run.folder):
                    raise ConfigError("vLLM failed: out of memory")
                self._write(run, {**engine, **self._speculation(method)}, writer, host)

    def _speculation(self, method: dict[str, Any]) -> dict[str, Any]:
        return {"speculative_config": method} if method and self.drafts else {}

    def _write(self, run: VllmRun, engine: dict[str, Any], writer: RunWriter, host: Host) -> None:
        given: dict[str, Any] = {
            "workload": {"arrivals": {"kind": "poisson", "rate": 1.0}, "num_requests": 1},
            "engine": engine,
            "profile": "profile.yaml",
        }
        if "speculative_config" in engine:
            rates = [0.75, 0.7, 0.65, 0.6, 0.55]
            given["acceptance"] = {"kind": "per_position", "conditional_rates": rates}
        given["workload"]["lengths"] = {"kind": "uniform", "prompt": [1, 2], "output": [1, 2]}
        requests = [
            Request(number, len(prompt), output_len, arrived_at)
            for number, (arrived_at, prompt, output_len) in enumerate(
                zip(run.arrivals, run.prompts, run.output_lens, strict=True)
            )
        ]
        done = host.run(Experiment.parse(given, "fake"), requests)
        for request in request_rows(done):
            writer.add_request(request)
        for step in step_rows(done):
            writer.add_step(step)
        for at, seconds in host.probes(float(done.replicas[0].steps["ended_at"].max())):
            writer.add_probe(at, seconds)


def model(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


SHARES = {"fit-low": 0.2, "low": 0.35, "fit-high": 0.7, "high": 0.55}


def calibrated(
    folder: Path,
    fake: FakeVllm,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_draft: bool = True,
    draft_lens: tuple[int, ...] = (1,),
) -> Calibration:
    monkeypatch.setattr(vllm_subject, "DRAFT_LENS", draft_lens)
    monkeypatch.setattr(vllm_subject, "record_runs", fake.record_runs)
    draft = model(folder / "draft", num_hidden_layers=1) if has_draft else None
    plan = replace(plan_for("cpu"), loads=tuple(Load(n, s, 2.0) for n, s in SHARES.items()))
    subject = VllmSubject.of(model(folder / "model"), draft, plan, "cpu", stated_error=0.05)
    return calibrate(subject, folder / "out", lambda line: None)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Calibration, Path]:
    folder = tmp_path_factory.mktemp("vllm")
    with pytest.MonkeyPatch.context() as patch:
        return calibrated(folder, FakeVllm({}), patch, draft_lens=(1, 3, 5)), folder / "out"


def test_a_known_vllm_is_found_again(exact: tuple[Calibration, Path]) -> None:
    found, folder = exact
    assert [each.case.policy for each in found.results[:4]] == [
        "off",
        "static:k=1",
        "static:k=3",
        "static:k=5",
    ]
    assert all(each.mean_error < 0.03 for each in found.results)
    assert all(each.mean_spread < 1e-6 for each in found.results)  # the same requests again
    assert found.is_validated
    for engine in found.parts:
        profile = load_profile(str(folder / "profiles" / f"{engine.name}.yaml"))
        assert profile == engine.profile
        assert profile.provenance.status == "validated"
    assert json.loads((folder / "meta.json").read_text())["complete"] is True
    assert json.loads((folder / "calibration.json").read_text())["complete"] is True


def test_the_folder_holds_all_runs(exact: tuple[Calibration, Path]) -> None:
    _, folder = exact
    assert {path.name for path in (folder / "runs" / "draft-3").iterdir()} == set(ORDER)
    assert len(load_run(folder / "runs" / "off" / "low").runs) == 2
    assert (folder / "capacity" / "requests.jsonl").exists()


def test_what_is_compared_stands_between_what_is_fitted() -> None:
    for name in COMPARED:
        place = ORDER.index(name)
        beside = (ORDER[place - 1], ORDER[place + 1])
        assert {load_of(each) for each in beside} == {"fit-low", "fit-high"}


def test_it_is_told(exact: tuple[Calibration, Path]) -> None:
    found, _ = exact
    assert [table.row_count for table in error_tables(found)] == [16, 16]
    assert calibration_tables(found)[0].row_count == len(found.results)
    assert calibration_verdict(found)[0].startswith("profile: off validated, draft-1 validated")


def test_a_vllm_that_changes_leaves_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = FakeVllm(dict.fromkeys(("high", "high-2"), Host((1.3,), tells=False)))
    found = calibrated(tmp_path, slow, monkeypatch)
    assert {each.case.load.name for each in found.failed} == {"high"}
    assert {each.profile.provenance.status for each in found.parts} == {"candidate"}
    assert all(each.statistic("latency", "mean").error < -0.1 for each in found.failed)


def test_a_machine_that_changes_its_speed_and_tells_is_replayed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = {name: Host((0.85, 1.15)) for name in ORDER if name.startswith("fit")}
    slow = FakeVllm({**hosts, "low": Host((1.5, 1.1)), "low-2": Host((1.0, 0.8))})
    found = calibrated(tmp_path, slow, monkeypatch)
    assert found.parts
    for engine in found.parts:
        first = engine.replays[0]
        assert (first.name, first.slowness) == ("low", pytest.approx(1.3, abs=0.1))
        assert first.validation.mean_error > 0.15
        # Speeds are means over a quarter of a second, which begins where it may.
        assert first.at_speed.mean_error < 0.06
        assert engine.results[0].mean_error_at_speed < 0.06


def test_lookup_that_finds_nothing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = calibrated(tmp_path, FakeVllm({}, drafts=False), monkeypatch, has_draft=False)
    assert "drafted nothing" in found.left_out["ngram-3"]
    assert not found.is_validated
    assert [each.name for each in found.parts] == ["off"]
    assert found.parts[0].profile.provenance.status == "validated"
    assert not (tmp_path / "out" / "profiles" / "ngram-3.yaml").exists()
    assert any(line.startswith("left out: ngram-3") for line in calibration_verdict(found))


def test_what_was_measured_before_vllm_died_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="out of memory"):
        calibrated(tmp_path, FakeVllm({}, dies_at="draft-1/low"), monkeypatch)
    out = tmp_path / "out"
    kept = json.loads((out / "calibration.json").read_text())
    assert kept["complete"] is False
    assert len(kept["cases"]) == 2
    assert json.loads((out / "meta.json").read_text())["complete"] is False
    assert load_profile(str(out / "profiles" / "off.yaml")).provenance.status == "candidate"


def test_another_device_is_found_before_much_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="say --device cuda"):
        calibrated(tmp_path, FakeVllm({}, device_name="NVIDIA H200"), monkeypatch)
    assert not (tmp_path / "out" / "runs").exists()


def test_wrong_folders_are_found_before_vllm_starts(
    tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv("SPECSIM_VLLM_PYTHON", str(python))
    target = model(tmp_path / "target")
    (tmp_path / "empty").mkdir()
    for options, expected in (
        ([], "name with --model the folder of a model"),
        (["--model", tmp_path / "empty"], "has no config.json"),
        (["--model", model(tmp_path / "short", max_position_embeddings=256)], "is less than"),
        (["--model", target, "--draft-model", tmp_path / "empty"], "has no config.json"),
        (
            ["--model", target, "--draft-model", model(tmp_path / "other", vocab_size=400)],
            "give a draft model with the same tokens",
        ),
        (["--model", target, "--out", tmp_path], "is there already and not empty"),
    ):
        code, _, error = cli(
            "calibrate", "--engine", "vllm", "--out", str(tmp_path / "out"), *map(str, options)
        )
        assert code == 2
        assert expected in error
        assert error.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_without_vllm_it_says_what_to_install(
    tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPECSIM_VLLM_PYTHON", raising=False)
    target = str(model(tmp_path / "target"))
    given = ("--model", target, "--out", str(tmp_path / "out"))
    code, _, error = cli("calibrate", "--engine", "vllm", *given)
    assert code == 2
    assert "vLLM is not installed here" in error


def test_a_draft_model_is_for_vllm(cli: Run) -> None:
    code, _, error = cli("calibrate", "--engine", "torch", "--draft-model", "draft", "--out", "out")
    assert code == 2
    assert "--draft-model: is for --engine vllm" in error
