"""`specsim profile fit`: known coefficients come back, and what determines none is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import Run, data_folder, needs
from kernel_folder import make_kernel_folder, write_csv
from made_up_points import DECODE, MIXED, coefficients, made_up

from specsim.core.errors import ProfileError
from specsim.core.version import __version__
from specsim.latency.measured import Linear, TwoRegime
from specsim.profile import load_profile
from specsim.reality.profile_fit import Points, fit_model, read_points
from specsim.reality.validation import Replaced, validate

REAL = data_folder() / "real-runs"
HEADER = "context_tokens,batched_tokens,requests,mixed,seconds"


def write_points(path: Path, points: Points) -> Path:
    columns = (points.context_tokens, points.batched_tokens, points.num_requests)
    write_csv(path, HEADER, zip(*columns, points.mixed, points.seconds, strict=True))
    return path


def test_both_regimes_come_back() -> None:
    model = fit_model(made_up(), "two_regime", "test")
    assert isinstance(model, TwoRegime)
    assert coefficients(model.decode) == pytest.approx(DECODE, rel=1e-6)
    assert coefficients(model.mixed) == pytest.approx(MIXED, rel=1e-6)


def test_outliers_do_not_decide() -> None:
    model = fit_model(made_up(noise=0.01, outliers=20), "two_regime", "test")
    assert isinstance(model, TwoRegime)
    assert coefficients(model.decode) == pytest.approx(DECODE, rel=0.05)
    assert coefficients(model.mixed) == pytest.approx(MIXED, rel=0.05)


def test_the_steps_of_a_server_together_last_as_long_as_measured() -> None:
    usual = made_up(noise=0.01)
    slow = np.arange(len(usual)) % 5 == 0
    points = replace(usual, seconds=np.where(slow, 1.5, 1.0) * usual.seconds)
    plain = fit_model(points, "two_regime", "test")
    scaled = fit_model(points, "two_regime", "test", keeps_sum=True)
    for kind in (points.mixed, ~points.mixed):
        steps = points.take(kind)
        assert np.sum(plain.forward_time(steps.load)) < 0.95 * steps.seconds.sum()
        assert np.sum(scaled.forward_time(steps.load)) == pytest.approx(steps.seconds.sum())
    hung = replace(points, seconds=np.where(np.arange(len(points)) == 7, 99.0, points.seconds))
    found = fit_model(hung, "two_regime", "test", keeps_sum=True)
    assert found.forward_time(points.load) == pytest.approx(
        scaled.forward_time(points.load), rel=0.01
    )


def test_no_coefficient_is_negative() -> None:
    points = made_up().take(np.arange(200))
    falling = Points(
        points.context_tokens,
        points.batched_tokens,
        points.num_requests,
        points.mixed,
        1.0 - points.context_tokens * 1e-7,
    )
    model = fit_model(falling, "linear", "test")
    assert isinstance(model, Linear)
    assert model.alpha_ns == 0


def test_tables_are_read_by_their_header(tmp_path: Path) -> None:
    points = made_up(50)
    csv = read_points(write_points(tmp_path / "steps.csv", points))
    own = {  # the names of a simulated run's steps.parquet
        "context_tokens": points.context_tokens,
        "batched_tokens": points.batched_tokens,
        "num_requests": points.num_requests,
        "prefill_tokens": 7 * points.mixed,
        "target_time": points.seconds,
        "replica": np.zeros(50),
    }
    pq.write_table(pa.table(own), tmp_path / "steps.parquet")
    for read in (csv, read_points(tmp_path / "steps.parquet")):
        assert read.seconds == pytest.approx(points.seconds)
        assert (read.mixed == points.mixed).all()


def pass_record(prefill: tuple[int, int, int], decode: tuple[int, int], seconds: float) -> str:
    """Return a forward pass as Dynamo's metrics have it, in JSON."""
    names = ("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens")
    decodes = zip(("num_decode_requests", "sum_decode_kv_tokens"), decode, strict=True)
    done = {**dict(zip(names, prefill, strict=True)), **dict(decodes), "var_decode_kv_tokens": 0.5}
    told = {"worker_id": "a", "wall_time": seconds, "scheduled_requests": done}
    return json.dumps({**told, "queued_requests": {"num_decode_requests": 9}}) + "\n"


def test_forward_passes_are_steps(tmp_path: Path) -> None:
    path = tmp_path / "passes.jsonl"
    idle = pass_record((0, 0, 0), (0, 0), 0.0)
    path.write_text(
        idle + pass_record((1, 512, 100), (3, 3003), 0.02) + pass_record((0, 0, 0), (2, 502), 0.01)
    )
    found = read_points(path)
    assert found.context_tokens.tolist() == [100 + 3000, 500]
    assert found.batched_tokens.tolist() == [515, 2]
    assert found.num_requests.tolist() == [4, 2]
    assert found.mixed.tolist() == [True, False]
    assert found.seconds.tolist() == [0.02, 0.01]
    path.write_text(idle + pass_record((0, 0, 0), (2, 502), 0.0))
    with pytest.raises(ProfileError, match="line 2: wall_time = 0: a step takes time"):
        read_points(path)
    path.write_text(idle + idle.replace('"num_decode_requests": 0', '"num_decode_requests": -1'))
    with pytest.raises(ProfileError, match="num_decode_requests = '-1' must be a number"):
        read_points(path)


def test_the_command_prints_errors_and_writes_a_profile(tmp_path: Path, cli: Run) -> None:
    write_points(tmp_path / "steps.csv", made_up(noise=0.02))
    names = ("--model", "llama-3.1-8b", "--gpu", "h100")
    code, output, errors = cli(
        *("profile", "fit", "steps.csv", *names), *("--out", "mine.yaml", "--json", "fit.json")
    )
    assert (code, errors) == (0, "")
    assert "error of held-out steps" in output
    assert "median error by number of points" in output
    profile = load_profile("mine.yaml")
    assert isinstance(profile.target, TwoRegime)
    assert "held-out" in profile.provenance.notes
    found = json.loads(Path("fit.json").read_text())
    assert found.pop("specsim_version") == __version__
    errors_of = {kind: each["held_out"]["all"]["median"] for kind, each in found.items()}
    assert errors_of["two_regime"] < 0.02 < errors_of["linear"]
    curve = found["two_regime"]["learning_curve"]
    assert curve[-1]["points"] == 320
    assert curve[-1]["median_error"] <= curve[0]["median_error"]


def test_times_in_another_unit_are_doubted(tmp_path: Path, cli: Run) -> None:
    points = made_up()
    write_points(tmp_path / "ms.csv", replace(points, seconds=points.seconds * 1000))
    code, _, errors = cli("profile", "fit", "ms.csv")
    assert code == 0
    assert "are they ms? 'seconds' is in s" in errors


def test_kernel_tables_become_steps(tmp_path: Path, cli: Run) -> None:
    folder = make_kernel_folder(tmp_path / "run" / "profile")
    meta = {"model": "meta-llama/Llama-3.1-8B", "gpu": "NVIDIA H100 80GB"}
    (folder / "meta.yaml").write_text(yaml.safe_dump(meta))
    pairs = [("pure", 0), ("mixed", 128)]
    rows = [(what, pc, 0, n, 512, 1024, 10, 30, 20) for what, pc in pairs for n in (2, 4, 8, 64)]
    header = "regime,pc,kp,n,kv_mean,kv_big,t_mean_us,t_max_us,t_skew_us"
    write_csv(folder / "skew.csv", header, rows)
    code, output, errors = cli("profile", "fit", "run", "--out", "mine.yaml")
    assert (code, errors) == (0, "")
    assert load_profile("mine.yaml").gpu == "h100"
    assert "107 steps" in output  # 99 of the grid, 8 with lengths that differ


BAD: dict[str, tuple[str, str]] = {
    "too few points": (f"{HEADER}\n1,2,1,0,0.1\n", "1 are too few to fit 3 coefficients"),
    "a negative time": (f"{HEADER}\n1,2,1,0,-0.1\n", "line 2: seconds = '-0.1' must be a number"),
    "a time of zero": (f"{HEADER}\n1,2,1,0,0\n", "seconds = 0: a step takes time"),
    "a missing column": ("context_tokens,batched_tokens\n1,2\n", "has no column 'num_requests'"),
    "words": (f"{HEADER}\n1,many,1,0,0.1\n", "batched_tokens = 'many' must be a number"),
    "an empty file": ("", "has no column 'context_tokens' (found: nothing)"),
    "collinear points": (
        HEADER
        + "\n"
        + "\n".join(f"{100 * n},{n},{n},{m},0.1" for m in (0, 1) for n in range(1, 9)),
        "are collinear",
    ),
    "one kind of step only": (
        HEADER + "\n" + "\n".join(f"{n * n},{n},{n},0,0.1" for n in range(1, 40)),
        "fit kind linear if one kind of step is missing",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_one_line_and_leave_nothing(tmp_path: Path, cli: Run, case: str) -> None:
    text, message = BAD[case]
    (tmp_path / "steps.csv").write_text(text)
    code, output, errors = cli("profile", "fit", "steps.csv", "--json", "fit.json")
    assert (code, output) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not Path("fit.json").exists()


def test_options_that_make_no_sense(tmp_path: Path, cli: Run) -> None:
    write_points(tmp_path / "steps.csv", made_up())
    assert "did you mean 'linear'" in cli("profile", "fit", "steps.csv", "--kind", "liner")[2]
    assert "--model and --gpu" in cli("profile", "fit", "steps.csv", "--out", "p.yaml")[2]
    assert "cannot be read" in cli("profile", "fit", "nowhere.csv")[2]
    for model, gpu, said in (("nope", "h100", "no model 'nope'"), ("qwen3-8b", "h10", "'h100'?")):
        args = ("steps.csv", "--model", model, "--gpu", gpu, "--out", "p.yaml")
        code, _, err = cli("profile", "fit", *args)
        assert (code, said in err, (tmp_path / "p.yaml").exists()) == (2, True, False)
    (tmp_path / "empty").mkdir()
    assert "names no model" in cli("profile", "fit", "empty")[2]


def test_linear_needs_points_too() -> None:
    with pytest.raises(ProfileError, match="too few"):
        fit_model(made_up(5), "linear", "test")


@pytest.mark.slow
@needs(REAL)
@pytest.mark.parametrize(
    ("run", "seqs", "limit"),
    [("RTX4090-llama-3.1-8b", 256, 0.01), ("RTXPRO6000-llama-3.1-8b", 128, 0.045)],
)
def test_two_regimes_reproduce_real_runs_and_one_does_not(
    cli: Run, run: str, seqs: int, limit: float
) -> None:
    errors = {}
    for kind in ("two_regime", "linear"):
        options = ("--kind", kind, "--max-num-seqs", seqs, "--out", f"{kind}.yaml")
        assert cli("profile", "fit", REAL / run, *options)[0] == 0
        errors[kind] = validate(REAL / run, Replaced(profile=f"{kind}.yaml")).mean_error
    assert errors["two_regime"] < limit
    assert errors["linear"] > 0.06


def test_steps_of_decodes_alone_are_fitted_by_the_kind_that_is_advised(
    cli: Run, tmp_path: Path
) -> None:
    """By hand: 5 ms a step, 0.1 ms a batched token and 10 ns a context token."""
    sizes = [(100 * batch * (1 + batch % 3), batch) for batch in range(1, 60)]
    rows = [f"{c},{n},{n},0,{5e-3 + 1e-4 * n + 1e-8 * c:.9f}\n" for c, n in sizes]
    header = "context_tokens,batched_tokens,num_requests,mixed,seconds\n"
    (tmp_path / "steps.csv").write_text(header + "".join(rows))
    code, _, errors = cli("profile", "fit", "steps.csv")
    assert (code, "or fit kind linear" in errors) == (2, True)
    code, output, errors = cli("profile", "fit", "steps.csv", "--kind", "linear")
    assert (code, errors) == (0, "")
    found = yaml.safe_load(output.partition("steps:\n")[2])["target"]
    assert found["gamma_us"] == pytest.approx(100, rel=1e-3)
