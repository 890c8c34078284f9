"""`specsim profile show`: what a profile says, and how far it is from measured steps."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Run
from kernel_folder import make_kernel_folder, write_csv

from specsim.hardware import GIB
from specsim.profile import load_profile
from specsim.reality.profile_fit import Points, ProfileErrors, measured_steps
from specsim.show.render.profile_tables import Overview

H100 = "h100/llama-3.1-8b"
HEADER = "context_tokens,batched_tokens,requests,mixed,seconds"
LLAMA_LAYERS = 32


def rows(text: str, label: str) -> list[str]:
    """Return the cells of the row that begins so."""
    lines = (line.split("│") for line in text.splitlines() if "│" in line)
    (found,) = [line for line in lines if line[1].strip() == label]
    return [cell.strip() for cell in found[2:-1]]


def test_it_says_what_a_profile_is(cli: Run) -> None:
    code, output, errors = cli("profile", "show", H100)
    assert (code, errors) == (0, "")
    assert rows(output, "date") == ["2025-12-31"]
    assert "28,800 context and 10,880 batched tokens" in rows(output, "valid range")[0]
    assert rows(output, "KV cache") == ["131,072 bytes per token and GPU"]
    assert rows(output, "eagle3")[:2] == ["0.79", "4,096"]
    assert "basis draft, latency (linear: alpha_ns 2.378" in rows(output, "eagle3")[3]


def test_step_times_are_those_of_the_coefficients(cli: Run) -> None:
    _, output, _ = cli("profile", "show", H100)
    context, tokens = 8 * 512, 8 * 6
    target = 39.2645679e-6 * context + 21.0103129e-3 * tokens + 5.88590713
    eagle = 2.37768493e-6 * context + 0.841429603e-3 * tokens + 2.13526175
    assert rows(output, "k = 5, eagle3")[1] == f"{target + eagle:.2f}"
    plain = 39.2645679e-6 * context + 21.0103129e-3 * 8 + 5.88590713
    assert rows(output, "k = 0")[1] == f"{plain:.2f}"
    assert rows(output, "prefill")[0] == f"{21.0103129e-3 * 512 + 5.88590713:.2f}"


@pytest.mark.parametrize(("method", "own"), [("eagle3", 0.0), ("suffix", 0.7 + 8 * 0.02 + 1.2)])
def test_overhead_counts_where_scheduling_does_not_hide_it(
    method: str, own: float, constant_step: Callable[..., str]
) -> None:
    overhead = {"step_ms": 0.7, "request_us": 20.0, "sync_step_ms": 1.2}
    path = constant_step(delta_ms=5.0, drafts={method: {}}, overhead=overhead)
    overview = Overview.of(load_profile(path))
    assert overview.decode_time(8, 100, 3, method).seconds == pytest.approx((5.0 + own) * 1e-3)


def test_what_was_not_fitted_is_marked(cli: Run) -> None:
    cells = rows(cli("profile", "show", H100)[1], "k = 0")
    assert [cell.endswith("*") for cell in cells] == [False, False, False, True, True]


def test_what_does_not_fit_has_no_time(cli: Run, constant_step: Callable[..., str]) -> None:
    path = constant_step(delta_ms=8.0, reserved_gib=50)  # leaves 53,000 tokens or so
    output = cli("profile", "show", path)[1]
    assert rows(output, "k = 0") == ["8.00", "8.00", "8.00", "8.00", "does not fit"]


def test_a_model_too_large_is_shown_nevertheless(
    cli: Run, constant_step: Callable[..., str]
) -> None:
    code, output, _ = cli("profile", "show", constant_step(delta_ms=8.0, model="llama-2-70b"))
    assert code == 0
    assert "none fits" in rows(output, "KV blocks")[0]
    assert set(rows(output, "k = 0")) == {"does not fit"}


def test_a_profile_without_drafters_verifies_only(
    cli: Run, constant_step: Callable[..., str]
) -> None:
    output = cli("profile", "show", constant_step(gamma_us=1000.0))[1]
    assert rows(output, "k = 3, drafts that cost nothing")[:2] == ["4.00", "32.00"]


def test_blocks_are_what_memory_leaves() -> None:
    overview = Overview.of(load_profile(H100))
    plain, eagle = overview.memory(), overview.memory("eagle3")
    assert overview.num_blocks() == int(
        (plain.usable_bytes - plain.weight_bytes - 1.15 * GIB) // (16 * 131_072)
    )
    assert eagle.draft_weight_bytes == 0.79 * GIB
    assert overview.num_blocks("eagle3") < overview.num_blocks()


def write_steps(path: Path, off: float) -> Path:
    """Write steps of the H100 profile: decodes as predicted, those with prefill off by a share."""
    context, batched = np.array([100, 5000, 90_000, 0]), np.array([1, 64, 512, 2048])
    target = load_profile(H100).target
    mixed = np.array([False, False, True, True])
    points = Points(context, batched, np.array([1, 64, 64, 1]), mixed, np.ones(4))
    seconds = target.forward_time(points.load) / np.where(mixed, 1 + off, 1)
    write_csv(path, HEADER, zip(context, batched, points.num_requests, mixed, seconds, strict=True))
    return path


def test_errors_by_kind_of_step(tmp_path: Path, cli: Run) -> None:
    write_steps(tmp_path / "steps.csv", 0.25)
    code, output, errors = cli(
        *("profile", "show", H100, "--steps", "steps.csv", "--plot", "new/both.png")
    )
    assert (code, errors) == (0, "")
    assert rows(output, "decode only") == ["2", *["0.00 %"] * 4]
    assert rows(output, "with prefill") == ["2", *["25.00 %"] * 4]
    assert rows(output, "all steps")[:2] == ["4", "12.50 %"]
    assert "beyond the valid range: 1" in output
    assert (tmp_path / "new" / "both.png").stat().st_size > 10_000


def test_kernel_tables_are_composed(tmp_path: Path, cli: Run) -> None:
    make_kernel_folder(tmp_path / "run" / "profile")
    cli("profile", "fit", "run", "--model", "llama-3.1-8b", "--gpu", "h100", "--out", "mine.yaml")
    code, output, _ = cli("profile", "show", "mine.yaml", "--steps", "run")
    assert code == 0
    assert rows(output, "all steps")[0] == "99"
    assert float(rows(output, "all steps")[2].rstrip("%")) < 20
    smaller = cli("profile", "show", "mine.yaml", "--steps", "run", "--max-num-seqs", 8)[1]
    assert int(rows(smaller, "all steps")[0]) < 99


def test_kernel_tables_agree_with_themselves(
    tmp_path: Path, constant_step: Callable[..., str]
) -> None:
    folder = make_kernel_folder(tmp_path / "kernels")
    target = {"kind": "kernels", "path": str(folder), "num_layers": LLAMA_LAYERS}
    profile = load_profile(constant_step(delta_ms=1.0, target=target))
    points, _ = measured_steps(
        *([folder], profile.model, profile.gpu, 1), max_num_seqs=256, max_num_batched_tokens=2048
    )
    errors = ProfileErrors.of(profile, points, "test").errors
    assert errors["decode"].worst < 1e-6
    # Of chunk and decodes together a step knows the mean length only: exact where there is one.
    alone = ProfileErrors.of(profile, points.take(points.num_requests == 1), "test").errors
    assert alone["mixed"].worst < 1e-6


def test_the_plot_without_steps(tmp_path: Path, cli: Run) -> None:
    code, _, errors = cli("profile", "show", H100, "--plot", "times.svg")
    assert (code, errors) == (0, "")
    assert "k = 5" in (tmp_path / "times.svg").read_text()


def test_a_fit_beside_its_steps_has_no_more_than_its_error(tmp_path: Path, cli: Run) -> None:
    write_csv(
        tmp_path / "steps.csv",
        HEADER,
        [(100 * n * n, n, n, n % 2, 0.01 + 1e-5 * n + 1e-8 * n * n) for n in range(1, 40)],
    )
    options = ("--kind", "linear", "--model", "llama-3.1-8b", "--gpu", "h100")
    cli("profile", "fit", "steps.csv", *options, "--out", "mine.yaml")
    output = cli("profile", "show", "mine.yaml", "--steps", "steps.csv")[1]
    assert rows(output, "all steps") == ["39", *["0.00 %"] * 4]
    assert "valid range" not in output.split("forward pass")[-1]


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no such profile": (("h100/llama-3.1-8",), "did you mean 'h100/llama-3.1-8b'"),
    "no such file": (("mine.yaml",), "mine.yaml"),
    "wrong columns": ((H100, "--steps", "wrong.csv"), "has no column 'context_tokens'"),
    "no such steps": ((H100, "--steps", "nowhere.csv"), "cannot be read"),
    "no steps in it": ((H100, "--steps", "none.csv"), "has no step with tokens"),
    "no kernel tables": ((H100, "--steps", "empty"), "dense"),
    "a plot of no known kind": ((H100, "--plot", "plot.txt"), "a plot must end in"),
    "a plot that is a folder": ((H100, "--plot", "folder.png"), "is a folder"),
    "a plot in a file": ((H100, "--plot", "wrong.csv/plot.png"), "cannot be written"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(tmp_path: Path, cli: Run, case: str) -> None:
    (tmp_path / "wrong.csv").write_text("a,b\n1,2\n")
    (tmp_path / "none.csv").write_text(f"{HEADER}\n5,0,1,0,0.1\n")
    for name in ("empty", "folder.png"):
        (tmp_path / name).mkdir()
    before = sorted(tmp_path.iterdir())
    arguments, message = BAD[case]
    code, output, errors = cli("profile", "show", *arguments)
    assert (code, output) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before
