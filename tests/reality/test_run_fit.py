"""`specsim profile fit --start`: known factors come back, and what cannot be fitted is refused."""

import csv
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from composed_profile import START, TRUE, row, simulated_table, truth, write_table
from conftest import Run

from specsim.cli.options import write_profile
from specsim.core.step import StepLoad
from specsim.profile import Profile, load_profile
from specsim.reality.profile_fit.run_fit import RunFit, changed, fit_runs, parameters_of
from specsim.reality.validation import read_table, table_replay

pytestmark = pytest.mark.slow

FITTED = [
    row("c1", 1, 0),
    row("c16", 16, 0),
    row("c2long", 2, 0, isl="6000"),
    row("c1k1", 1, 1),
    row("c16k3", 16, 3),
    row("c48k5", 48, 5),
]
HELD_OUT = [row("c4k3", 4, 3), row("c32", 32, 0), row("c32k1", 32, 1), row("c8k5", 8, 5)]


@pytest.fixture(scope="module", autouse=True)
def _simulated_once() -> Iterator[None]:
    """Remember what rows measure under a profile: all fits begin at the same start.

    One draw tells of rows that were themselves simulated, with the same luck.
    """
    known: dict[bytes, dict[str, float]] = {}
    simulate_row = table_replay.simulate_row

    def remembered(profile: Profile, row: table_replay.ReplayedRow) -> dict[str, float]:
        key = pickle.dumps((profile.model_dump_json(), row))
        if key not in known:
            known[key] = simulate_row(profile, row)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_replay, "simulate_row", remembered)
        patch.setattr(table_replay, "DRAWS", 1)
        yield


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    return simulated_table(path, [*FITTED, *HELD_OUT], truth())


@pytest.fixture(scope="module")
def found(table: Path) -> RunFit:
    runs = read_table(table)
    return fit_runs(START, runs[: len(FITTED)], runs[len(FITTED) :])


@pytest.fixture
def start(tmp_path: Path) -> Path:
    path = tmp_path / "start.yaml"
    write_profile(path, START)
    return path


def test_known_factors_come_back(found: RunFit) -> None:
    values = {each.name: each for each in found.estimates}
    for path in TRUE:
        each = values[".".join(path)]
        # Six cells tell the time of a drafting step, but not how much of it is in each pass.
        assert each.is_told or path[-2:] == ("latency", "fixed_us"), each
        assert each.low <= TRUE[path] <= each.high, each
    for name in ("compute_factor", "read_factor", "verify_factor"):
        # What is not told stays as built, so that the others make up for it.
        assert values[f"target.{name}"].value == pytest.approx(TRUE["target", name], rel=0.1)


def test_held_out_runs_of_every_length_are_predicted(found: RunFit) -> None:
    before, after = (found.to_dict()["errors"]["held_out"][when] for when in ("before", "after"))
    assert max(each["median_abs"] for each in before) > 0.1
    assert {each["metric"] for each in after} >= {"output_tok_s", "ttft_p50_ms", "engine_steps"}
    for each in after:
        # Shrunk to a start that is far off, six cells leave some of its error.
        assert each["worst_abs"] < 0.05, each


def test_what_the_runs_cannot_tell_is_named(found: RunFit) -> None:
    values = {each.name: each for each in found.estimates}
    # Hidden behind the GPU, for the server schedules ahead.
    hidden = values["overhead.request_us"]
    assert not hidden.is_told
    assert hidden.high - hidden.low > 9
    assert "overhead.request_us" in found.profile.provenance.notes.split("do not tell")[1]


def test_what_the_runs_cannot_tell_stays_as_built(found: RunFit) -> None:
    untold = [each for each in found.estimates if not each.is_told]
    assert untold
    assert [each.value for each in untold] == [each.start for each in untold]


def test_a_fit_is_checked_on_each_load_in_turn(found: RunFit) -> None:
    assert found.left_out is not None
    assert len(found.left_out.before) == len(FITTED)
    assert 3 * sum(found.left_out.after) < sum(found.left_out.before)
    assert found.is_kept
    assert "less off on that one than as built" in found.profile.provenance.notes
    known = found.profile.valid_range
    assert known.context_lens is not None
    assert known.context_lens[1] > 6000
    assert [known.is_known(each) for each in (known.context_lens[0], 20_000)] == [True, False]


def test_loads_that_contradict_each_other_leave_the_profile_as_built(
    tmp_path: Path, start: Path, cli: Run
) -> None:
    """One load is a third slower than built, another a third faster: neither says of the other."""
    path = simulated_table(tmp_path / "t.csv", [row("a", 1, 0), row("b", 1, 0, isl="220")], START)
    scales = {"a": 1.5, "b": 1 / 1.5}
    rows = [
        {
            name: str(float(cell) * scales[each["run_id"]] ** sign)
            if (sign := {"output_tok_s": -1}.get(name, 1 if name.endswith("_ms") else 0)) and cell
            else cell
            for name, cell in each.items()
        }
        for each in csv.DictReader(path.read_text().splitlines())
    ]
    write_table(path, rows)
    options = ("--start", start, "--out", "new.yaml", "--json", "fit.json", "--workers", "1")
    code, output, errors = cli("profile", "fit", path, *options)
    assert code == 0
    assert "not fitted to 2 rows" in output
    assert "the profile stays as built" in errors
    written = load_profile("new.yaml")
    assert written.target == START.target
    assert written.valid_range.context_lens is None
    assert "no better on that one than as built, of 2 loads for 2" in written.provenance.notes
    assert not json.loads(Path("fit.json").read_text())["is_kept"]


def test_without_drafts_nothing_of_drafting_is_fitted(table: Path) -> None:
    plain = [run for run in read_table(table) if not run.num_speculative_tokens]
    names = {each.name for each in parameters_of(START, plain)}
    assert not {name for name in names if "draft" in name or "verify" in name}
    drafting = [run for run in read_table(table) if run.num_speculative_tokens]
    assert "target.fixed_us" in names
    assert "target.fixed_us" not in {each.name for each in parameters_of(START, drafting)}


def test_repetitions_weigh_as_much_as_one_run(table: Path) -> None:
    runs = [run for run in read_table(table) if run.run_id in ("c1", "c16")]
    once = fit_runs(START, runs)
    thrice = fit_runs(START, [*runs, runs[0], runs[0]])
    assert once.estimates
    for one, other in zip(once.estimates, thrice.estimates, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-3, abs=1e-3)


def test_a_fit_that_gains_little_stays_out(table: Path, start: Path, cli: Run) -> None:
    choice = [each for name in ("c16", "c1k1") for each in ("--fit-rows", f"run_id={name}")]
    code, _, errors = cli(
        *("profile", "fit", table, "--start", start, *choice, "--out", "new.yaml"),
        *("--workers", "1"),
    )
    assert code == 0
    assert "the profile stays as built: what all loads but one say is" in errors
    assert "(at least 50 % is wanted); fit other loads, or more" in errors
    assert load_profile("new.yaml").target == load_profile(str(start)).target


def test_a_changed_profile_computes_anew() -> None:
    load = StepLoad(1000, 1, 1)
    before = START.target.forward_time(load)
    slower = changed(START, {("target", "read_factor"): 2.0})
    assert slower.target.forward_time(load) == pytest.approx(before + 6e-3)
    assert START.target.forward_time(load) == before


def test_the_command_writes_a_profile_that_says_what_was_fitted(
    table: Path, start: Path, cli: Run
) -> None:
    choice = [each for row in FITTED for each in ("--fit-rows", f"run_id={row['run_id']}")]
    code, output, errors = cli(
        *("profile", "fit", table, "--start", start, *choice, "--out", "new.yaml"),
        *("--json", "fit.json", "--workers", "1"),
    )
    assert (code, errors) == (0, "")
    assert "the runs cannot tell" in output
    assert "held-out rows" in output
    told = load_profile("new.yaml").provenance
    assert "fitted to 6 rows of runs.csv" in told.source
    assert "6 rows of runs.csv (k = 0, 1, 3, 5), 4 held out" in told.notes
    assert "vllm 0.24.0" in told.engine
    code, output, _ = cli("validate", table, "--profile", "new.yaml", "--workers", "1")
    assert code == 0
    assert "speed-up over no speculation" in output


def refused(cli: Run, *arguments: object) -> str:
    code, output, errors = cli("profile", "fit", *arguments, "--out", "new.yaml", "--workers", "1")
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert not Path("new.yaml").exists()
    return errors


@pytest.mark.parametrize("column", ["quantisation", "engine_version", "tp", "model", "gpu"])
def test_two_servers_are_refused(tmp_path: Path, start: Path, cli: Run, column: str) -> None:
    cells = {"tp": "2", "model": "Llama-3.1-8B", "gpu": "NVIDIA H100 80GB"}
    other = row("b", 8, 0, **{column: cells.get(column, "other")})
    rows = [{**each, "output_tok_s": "1"} for each in (row("a", 1, 0), other)]
    errors = refused(cli, write_table(tmp_path / "t.csv", rows), "--start", start)
    assert f"t.csv, line 3 (b): {column} = '{other[column]}', but" in errors
    assert f"--rows '{column}={row('a', 1, 0)[column]}'" in errors


def test_two_heads_are_refused(tmp_path: Path, start: Path, cli: Run) -> None:
    rows = [row(name, 1, 3, draft_model=name, output_tok_s="1") for name in ("a", "b")]
    errors = refused(cli, write_table(tmp_path / "t.csv", rows), "--start", start)
    assert "line 3 (b): draft_model = 'b'" in errors


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        ({"accept_rate_per_pos": ""}, (), "no acceptance for num_speculative_tokens = 3"),
        ({}, ("--rows", "run_id=x"), "--rows: leaves none of 1 rows"),
        ({}, ("--fit-rows", "run_id=x"), "--fit-rows: leaves none of 1 rows"),
        ({}, ("--fit-rows", "run=x"), "no table has a column 'run'"),
        ({}, ("--metric", "speed"), "--metric speed: must be one of output_tok_s"),
        ({}, ("--metric", "itl_p50_ms"), "has none of itl_p50_ms"),
        ({}, ("--set", "gpu=A100"), "--set fills empty cells only"),
        ({}, ("--set", "gpus=A100"), "--set gpus=A100: no such column; did you mean 'gpu'"),
        ({"method": "mtp"}, (), "method = 'mtp', but --start has no cost of it (it has: eagle3)"),
    ],
)
def test_bad_rows_are_refused(
    tmp_path: Path, start: Path, cli: Run, cells: dict[str, str], options: tuple[str, ...],
    message: str,
) -> None:  # fmt: skip
    table = write_table(tmp_path / "t.csv", [{**row("a", 1, 3), "output_tok_s": "1", **cells}])
    assert message in refused(cli, table, "--start", start, *options)


def test_a_start_that_is_not_composed_is_refused(table: Path, cli: Run) -> None:
    errors = refused(cli, table, "--start", "h100/llama-3.1-8b")
    assert "--start: its target is of kind 'linear', must be composed" in errors
    assert "specsim profile build --model llama-3.1-8b --gpu h100" in errors


def test_a_start_says_what_it_is_of(table: Path, start: Path, cli: Run) -> None:
    errors = refused(cli, table, "--start", start, "--gpu", "h100")
    assert "--gpu: is said by the profile" in errors


def test_options_of_runs_need_a_start(table: Path, cli: Run) -> None:
    assert "name a --start" in refused(cli, table, "--rows", "run_id=a")
    assert "--start" in refused(cli, table, "--model", "llama-3.1-8b", "--gpu", "h100")
