"""`specsim profile fit` on the steps of measured runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from made_up_points import DECODE, MIXED, coefficients, made_up

from specsim.core.step import StepLoad
from specsim.latency.measured import Linear, TwoRegime
from specsim.profile import load_profile

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def write_run(
    folder: Path, config: dict[str, Any] | None = None, count: int = 400, **options: Any
) -> Path:
    """Write a run folder whose steps have known costs."""
    points = made_up(count)
    folder.mkdir()
    columns = (points.seconds, points.context_tokens, points.batched_tokens, points.num_requests)
    rows = zip(*(column.tolist() for column in (*columns, points.mixed)), strict=True)
    names = ("seconds", "context_tokens", "batched_tokens", "num_requests", "prefill_tokens")
    lines = [{**dict(zip(names, row, strict=True)), "scheduled": [1]} for row in rows]
    for line in lines:
        line["prefill_tokens"] = int(line["prefill_tokens"])
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    meta = {"engine_kwargs": {"speculative_config": config, **options}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def fit(cli: Run, *folders: Path | str) -> tuple[int, str, str]:
    names = ("--model", "llama-3.1-8b", "--gpu", "h100", "--out", "p.yaml")
    return cli("profile", "fit", *folders, *names)


def test_several_runs_give_one_profile(tmp_path: Path, cli: Run) -> None:
    folders = [write_run(tmp_path / name, NGRAM) for name in ("low", "high")]
    code, output, errors = fit(cli, *folders)
    assert (code, errors) == (0, "")
    assert "low, high, 800 steps" in output
    profile = load_profile("p.yaml")
    assert isinstance(profile.target, TwoRegime)
    assert coefficients(profile.target.decode) == pytest.approx(DECODE, rel=1e-6)
    assert coefficients(profile.target.mixed) == pytest.approx(MIXED, rel=1e-6)
    assert "ngram, 3 draft tokens, drafting included" in profile.provenance.notes
    assert list(profile.drafts) == ["ngram"]


def test_a_run_of_another_model_or_gpu_is_doubted(tmp_path: Path, cli: Run) -> None:
    run = write_run(tmp_path / "run", model="meta-llama/Llama-3.1-8B-Instruct")
    assert fit(cli, run)[2] == ""
    other = write_run(tmp_path / "other", model="Qwen/Qwen3-32B", quantization="fp8")
    meta = json.loads((other / "meta.json").read_text())
    device = {"device_name": "NVIDIA A100-SXM4-80GB"}
    (other / "meta.json").write_text(json.dumps({**meta, "hardware": device}))
    code, _, errors = fit(cli, other)
    assert code == 0
    for words in (
        "is of model 'Qwen/Qwen3-32B', the profile of 'llama-3.1-8b'",
        "was measured on 'NVIDIA A100-SXM4-80GB', the profile is of 'h100'",
        "quantization = 'fp8': the profile is of such steps",
    ):
        assert words in errors


def test_drafts_that_no_method_is_known_of_are_not_taken_for_the_target(
    tmp_path: Path, cli: Run
) -> None:
    run = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    for place, path in ((None, tmp_path / "none.jsonl"), (5, tmp_path / "some.jsonl")):
        steps = [{**line, "draft_tokens": 3 * (n == place)} for n, line in enumerate(lines)]
        path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert fit(cli, tmp_path / "none.jsonl")[0] == 0
    code, _, errors = fit(cli, tmp_path / "some.jsonl")
    assert code == 2
    assert "some.jsonl, line 6: draft_tokens = 3, but no meta.json beside it says" in errors


def test_steps_that_include_drafting_are_said_to_where_a_profile_has_none(
    tmp_path: Path, cli: Run
) -> None:
    drafted, plain = write_run(tmp_path / "drafted", NGRAM), write_run(tmp_path / "plain")
    assert fit(cli, drafted)[0] == 0
    shipped = "h100/llama-3.1-8b"
    for profile, steps, is_said in (
        (shipped, drafted, True), (shipped, plain, False), ("p.yaml", drafted, False),
    ):  # fmt: skip
        code, _, errors = cli("profile", "show", profile, "--steps", steps)
        assert (code, "include drafting (ngram, k = 3)" in errors) == (0, is_said)


def test_a_run_is_fitted_as_its_server_held_the_model(tmp_path: Path, cli: Run) -> None:
    two = write_run(tmp_path / "two", tensor_parallel_size=2, pipeline_parallel_size=1)
    code, _, errors = fit(cli, two)
    assert code == 2
    assert "tensor_parallel_size = 2, but --tp is 1; give --tp 2" in errors
    assert fit(cli, two, "--tp", "2")[0] == 0
    assert load_profile("p.yaml").num_gpus == 2
    staged = write_run(tmp_path / "staged", pipeline_parallel_size=2)
    code, _, errors = fit(cli, staged)
    assert code == 2
    assert "pipeline_parallel_size = 2: steps of a pipeline overlap" in errors


def test_without_speculation_there_is_no_drafter(tmp_path: Path, cli: Run) -> None:
    assert fit(cli, write_run(tmp_path / "run"))[0] == 0
    profile = load_profile("p.yaml")
    assert not profile.drafts
    assert "drafting" not in profile.provenance.notes


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({**NGRAM, "method": "eagle3"}, "the runs drafted by several methods: ngram ("),
        (
            {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 16, 1]]},
            "its draft length changed with the batch",
        ),
        ({**NGRAM, "num_speculative_tokens": "many"}, "num_speculative_tokens = 'many' must be"),
        ({**NGRAM, "method": ["ngram"]}, "method = ['ngram'] and"),
    ],
)
def test_runs_that_cannot_be_fitted_together_are_refused(
    tmp_path: Path, cli: Run, other: dict[str, Any] | None, message: str
) -> None:
    one, two = write_run(tmp_path / "one", NGRAM), write_run(tmp_path / "two", other)
    code, output, errors = fit(cli, one, two)
    assert (code, output) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not Path("p.yaml").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"seconds": 1, "context', "line 2: is not JSON; it may have been cut off: remove it"),
        ("[1, 2]", "line 2: must be a mapping of names to values"),
        ('{"seconds": 1}', "line 2: context_tokens = '' must be a number"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, cli: Run, text: str, message: str) -> None:
    folder = write_run(tmp_path / "run", count=20)
    path = folder / "steps.jsonl"
    first = path.read_text().splitlines()[0]
    path.write_text(f"{first}\n{text}\n")
    code, _, errors = fit(cli, folder)
    assert code == 2
    assert message in errors


def test_a_result_of_a_benchmark_has_no_steps(cli: Run) -> None:
    Path("c8.json").write_text("{}")
    code, _, errors = fit(cli, Path("c8.json"))
    assert code == 2
    assert "name the profile to begin with (--start)" in errors


def test_a_folder_without_steps_among_several_is_refused(tmp_path: Path, cli: Run) -> None:
    (tmp_path / "empty").mkdir()
    code, _, errors = fit(cli, write_run(tmp_path / "run"), tmp_path / "empty")
    assert code == 2
    assert "empty: has no steps.jsonl" in errors


def test_a_run_observed_from_outside_has_no_steps(tmp_path: Path, cli: Run) -> None:
    """It was taken for a folder of kernel tables that lacks dense.csv."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "requests.jsonl").write_text("{}\n")
    code, _, errors = fit(cli, tmp_path / "run")
    assert code == 2
    assert "run: has no steps.jsonl, for a run that was observed from outside" in errors
    assert errors.count("run:") == 1


def write_lengths(tmp_path: Path, lens: tuple[int, ...]) -> list[Path]:
    """Write a run per draft length: a step that drafts takes 1 ms, each pass 0.5 ms."""
    folders = []
    for k in lens:
        config = {**NGRAM, "num_speculative_tokens": k} if k else None
        folder = write_run(tmp_path / f"k{k}", config)
        steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        for step in steps:
            step["seconds"] += (1e-3 + 0.5e-3 * k) * (k > 0)
        (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
        folders.append(folder)
    return folders


def test_runs_of_several_lengths_give_one_profile(tmp_path: Path, cli: Run) -> None:
    code, _, errors = fit(cli, *write_lengths(tmp_path, (0, 1, 3)))
    assert (code, errors) == (0, "")
    profile = load_profile("p.yaml")
    assert isinstance(profile.target, TwoRegime)
    assert coefficients(profile.target.decode) == pytest.approx(DECODE, rel=1e-3)
    cost = profile.drafts["ngram"]
    assert cost.step_ms == pytest.approx(1.0, rel=1e-3)
    load = StepLoad(1000, 4, 4)
    assert cost.draft_time(load, 3, 0.01) == pytest.approx(2.5e-3, rel=1e-3)
    assert profile.only_draft_lens is None
    assert "ngram, 0, 1, 3 draft tokens: what drafting takes" in profile.provenance.notes


@pytest.mark.parametrize(("lens", "known"), [((0, 3), (0, 3)), ((1, 3), (1, 3)), ((3,), (3,))])
def test_too_few_lengths_are_all_that_a_profile_knows(
    tmp_path: Path, cli: Run, lens: tuple[int, ...], known: tuple[int, ...]
) -> None:
    assert fit(cli, *write_lengths(tmp_path, lens))[0] == 0
    profile = load_profile("p.yaml")
    assert profile.only_draft_lens == known
    load = StepLoad(50_000, 256, 64)
    for k in lens:
        drafting = profile.drafts["ngram"].draft_time(load, k, 0.01) if k else 0.0
        whole = profile.target.forward_time(load) + drafting
        decode = Linear(**dict(zip(("alpha_ns", "gamma_us", "delta_ms"), DECODE, strict=True)))
        wanted = decode.forward_time(load) + (1e-3 + 0.5e-3 * k) * (k > 0)
        assert whole == pytest.approx(wanted, rel=2e-3)


def test_lengths_at_one_load_cannot_be_told_apart(tmp_path: Path, cli: Run) -> None:
    folders = write_lengths(tmp_path, (0, 1, 3))
    for folder, k in zip(folders, (0, 1, 3), strict=True):
        lines = (folder / "steps.jsonl").read_text().splitlines()
        steps = [json.loads(line) | {"batched_tokens": 8 * (k + 1)} for line in lines]
        plain = [json.dumps(step | {"prefill_tokens": 0}) for step in steps]
        (folder / "steps.jsonl").write_text("\n".join(plain) + "\n")
    code, _, errors = fit(cli, *folders)
    assert code == 2
    assert "draft length and batch are collinear" in errors
    assert "measure each length at two loads" in errors
    assert not Path("p.yaml").exists()
