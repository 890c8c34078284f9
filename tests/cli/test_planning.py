"""``plan``, ``init``, ``demo``, and what all commands say of themselves."""

import contextlib
import io
import json
import re
import shlex
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from conftest import ROOT, Run
from planned import plan_of

from specsim.__main__ import main
from specsim.cli import EXAMPLES, app, app_of
from specsim.core.resources import find_resource
from specsim.profile import load_profile
from specsim.run.experiment import Experiment


def all_commands(command: Any, path: str = "") -> dict[str, Any]:
    members = getattr(command, "commands", None)
    if members is None:
        return {path: command}
    found: dict[str, Any] = {}
    for name, member in members.items():
        found |= all_commands(member, f"{path} {name}".strip())
    return found


COMMANDS = all_commands(typer.main.get_command(app))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_its_options_allow(name: str) -> None:
    words = shlex.split(EXAMPLES[name])
    command = COMMANDS[name]
    assert command.epilog == f"Example: specsim {name} {EXAMPLES[name]}"
    said = ""
    try:
        command.make_context(name, [] if words[0] == ">" else words)
    except Exception as error:
        said = str(error)
    assert not said or "does not exist" in said  # the file, not an option


def told(command: Any) -> tuple[Any, ...]:
    options = [(each.opts, each.required, getattr(each, "help", "")) for each in command.params]
    return command.help, command.epilog, options


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_made_alone_is_the_same(name: str) -> None:
    first, *rest = name.split()
    made = all_commands(typer.main.get_command(app_of(["--force", first, *rest, "--seed", "run"])))
    assert set(made) == {each for each in COMMANDS if first in {each, each.partition(" ")[0]}}
    assert told(made[name]) == told(COMMANDS[name])


NUMBERS = [
    (name, option.opts[0])
    for name, command in COMMANDS.items()
    for option in command.params
    if option.metavar in ("NUMBER", "COUNT")
]


@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_every_number_is_refused_under_its_own_name(name: str, option: str, cli: Run) -> None:
    code, _, err = cli(*name.split(), option, "many")
    assert code == 2
    assert re.fullmatch(rf"error: {option} many: should be a (whole )?number, such as 1?0.+\n", err)


def test_all_numbers_of_all_commands_are_read_by_one_rule() -> None:
    assert len(NUMBERS) > 60
    assert {name for name, _ in NUMBERS} >= {"plan", "capacity", "trace synth", "profile build"}


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--attainment", "99", "should be a number, such as 0.9 or 90%, at most 1"),
        ("--attainment", "101%", "should be a number, such as 0.9 or 90%, at most 1"),
        ("--attainment", "nan", "should be a number, such as 0.9 or 90%"),
        ("--qps", "1k", "should be a number, such as 1000 or 1,000"),
        ("--qps", "90%", "should be a number, such as 1000 or 1,000"),
        ("--qps", "1,00", "should be a number, such as 1000 or 1,000"),
        ("--seed", "1.5", "should be a whole number, such as 1000 or 1,000"),
        ("--workers", "0", "should be a whole number, such as 1000 or 1,000, at least 1"),
    ],
)
def test_a_number_that_is_none_is_one_line_with_the_remedy(
    option: str, text: str, message: str, cli: Run
) -> None:
    assert cli("plan", option, text)[::2] == (2, f"error: {option} {text}: {message}\n")


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("attainment", "90%", 0.9), ("attainment", "99.9 %", 0.999), ("attainment", " 0.5", 0.5),
        ("qps", "1,000", 1000.0), ("qps", "12,345.5", 12345.5), ("qps", "1e3", 1000.0),
        ("seed", "9,007,199,254,740,993", 9007199254740993),
    ],
)  # fmt: skip
def test_numbers_may_be_written_as_they_are_printed(option: str, text: str, value: float) -> None:
    context = COMMANDS["plan"].make_context("plan", [f"--{option}", text])
    assert context.params[option] == value


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["runn", "run"]])
def test_all_commands_are_made_where_none_is_named(words: list[str]) -> None:
    assert app_of(words) is app


def test_commands_stand_in_groups(cli: Run) -> None:
    code, out, _ = cli("--help")
    assert code == 0
    panels = ("Answer", "Simulate", "Look", "Real engines", "Inputs", "Reference")
    assert [out.find(f"─ {panel} ─") for panel in panels] == sorted(
        out.find(f"─ {panel} ─") for panel in panels
    )
    assert all(f"─ {panel} ─" in out for panel in panels)


SERVER = (
    "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 1 --max-num-seqs 32 --port 9 "
    """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'"""
)
ASKED = ("--vllm", SERVER, "--traffic", "math", "--qps", 20, "--slo", "ttft:500,tpot:50")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """Ask for a plan, once, with runs that say enough of what it writes."""
    folder = tmp_path_factory.mktemp("plan") / "out"
    out, err = io.StringIO(), io.StringIO()
    words = ["plan", *map(str, ASKED), "--gpus", "h100", "--workers", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["specsim", *words, "--out", str(folder)])
        patch.setattr("specsim.study.plan.REQUESTS", 1000)
        patch.setattr("specsim.study.plan.LONGEST", 4000)
        patch.setattr("specsim.study.plan.candidates.SHORT_REQUESTS", 500)
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
    assert ended.value.code == 0, err.getvalue()
    return out.getvalue(), err.getvalue(), folder


@pytest.mark.slow
def test_a_plan_answers_in_one_line_and_a_table(planned: tuple[str, str, Path]) -> None:
    out, err, _ = planned
    lines = out.splitlines()
    assert lines[1].startswith("Rent ")
    assert "USD per hour. " in lines[1]
    assert max(map(len, (out + err).splitlines())) < 400
    assert "static:k=" not in out
    assert "preset llama-3.1-8b/eagle/gsm8k, fitted to drafts of eagle" in out
    assert "without effect on the answer: --port" in err
    stages = [line for line in err.splitlines() if line.endswith(" ...")]
    assert [stage.partition(" of ")[0] for stage in stages[:2]] == ["short runs", "short runs"]
    assert stages[2].startswith("long runs of ")


def test_only_files_that_are_there_are_named(
    tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    apart = {
        name: replace(option, hardware=option.in_pools(1, 1).hardware)
        for name, option in found.options.items()
    }
    monkeypatch.setattr("specsim.study.plan.plan", lambda **_: replace(found, options=apart))
    _, out, _ = cli("plan", "--vllm", SERVER, "--out", tmp_path)
    assert out.splitlines()[-1].endswith("(report.html, serve.sh, experiment.yaml)")


@pytest.mark.slow
def test_its_files_are_what_they_say(planned: tuple[str, str, Path]) -> None:
    _, _, folder = planned
    answer = json.loads((folder / "plan.json").read_text())
    taken = answer["choices"][answer["taken"]]
    experiment = Experiment.load(folder / "experiment.yaml")
    assert experiment.replicas == taken["servers"]
    assert experiment.engine.max_num_seqs == 32
    line = (folder / "serve.sh").read_text().splitlines()[-1]
    assert line.startswith("exec vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 32")
    assert ("--speculative-config" in line) == (answer["speculative_config"] is not None)
    services = yaml.safe_load((folder / "docker-compose.yaml").read_text())["services"]
    assert len(services) == min(taken["servers"], 8 // taken["gpus_per_server"])
    deployment, service = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    assert deployment["spec"]["replicas"] == taken["servers"]
    assert service["kind"] == "Service"
    assert "<html" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_its_experiment_runs_as_it_is(planned: tuple[str, str, Path], cli: Run) -> None:
    experiment = planned[2] / "experiment.yaml"
    code, out, _ = cli("run", experiment, "--set", "workload.num_requests=50")
    assert code == 0
    assert "TTFT" in out
    short = ("--num-requests", 100, "--replications", 1, "--tolerance", 0.5, "--workers", 1)
    assert cli("capacity", experiment, *short)[0] == 0


@pytest.mark.slow
def test_a_plan_may_be_written_again_but_replaces_nobody_s_file(
    planned: tuple[str, str, Path], cli: Run, tmp_path: Path
) -> None:
    (tmp_path / "serve.sh").write_text("mine\n")
    code, _, err = cli("plan", *ASKED, "--gpus", "h100", "--out", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "serve.sh: was not written by specsim" in err
    assert (tmp_path / "serve.sh").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"--qps": "0"}, "--qps 0.0: must be above 0 and at most 1,000,000"),
        ({"--slo": "ttft"}, "is not METRIC:MILLISECONDS"),
        ({"--traffic": "chta"}, "did you mean 'chat'?"),
        ({"--traffic": ""}, "--traffic '': is no kind of traffic and no file; choose from"),
        ({"--gpus": "h1000"}, "no GPU 'h1000'"),
        ({"--gpus": "gb300"}, "has no price"),
        ({"--gpus": "h100,h100"}, "given twice"),
        ({"--vllm": "vllm serve someone/Llama-9-8B"}, "did you mean"),
        ({"--vllm": "vllm serve Qwen/Qwen3-8B --enable-expert-parallel"}, "has no experts"),
        (
            {"--vllm": "vllm serve Qwen/Qwen3-8B --max-num-seqs 0"},
            "max_num_seqs = 0: should be greater than 0",
        ),
        ({"--vllm": "vllm serve Qwen/Qwen3-8B --speculative-config '{}'"}, "names no method"),
        (
            {"--vllm": 'vllm serve Qwen/Qwen3-8B --speculative-config \'{"method": "mtp"}\''},
            "no drafting cost of 'mtp' (there is: eagle3, draft_model, ngram_gpu, suffix); name",
        ),
        (
            {"--vllm": 'vllm serve Qwen/Qwen3-8B --speculative-config \'{"method": "egle3"}\''},
            "--vllm: --speculative-config: no method 'egle3'; did you mean 'eagle3'?",
        ),
        ({"--vllm": "vllm serve ./none"}, "model ./none: no config.json is there"),
        ({"--vllm": "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 1"}, "h100"),
        ({"--acceptance": "bernoulli:alpha=2"}, "alpha"),
        ({"--attainment": "2"}, "--attainment 2: "),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    options: dict[str, str], said: str, cli: Run
) -> None:
    asked = dict(zip(ASKED[::2], ASKED[1::2], strict=True)) | {"--gpus": "h100"} | options
    code, _, err = cli("plan", *(word for pair in asked.items() for word in pair))
    assert (code, err.count("\n")) == (2, 1), err
    assert said in err


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_init_takes_answers_from_a_pipe(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, f"{SERVER}\ncode\n30\n\nl40s\n")
    code, out, err = cli("init", "my.yaml")
    assert (code, err) == (0, "")
    assert "specsim capacity my.yaml --qps 30" in out
    text = (tmp_path / "my.yaml").read_text()
    assert text.count("# ") > 5
    experiment = Experiment.load(tmp_path / "my.yaml")
    assert (experiment.profile, experiment.max_draft_len) == ("l40s/llama-3.1-8b", 3)
    assert experiment.slo is not None
    assert experiment.slo.tpot_ms == 50.0


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="no kernel tables")
def test_init_writes_the_profile_that_none_is_shipped_of(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, "vllm serve meta-llama/Llama-3.1-8B-Instruct --kv-cache-dtype fp8\n")
    code, out, _ = cli("init", "my.yaml")
    assert (code, out.splitlines()[0]) == (0, "profile: my-profile.yaml")
    profile = load_profile(tmp_path / "my-profile.yaml")
    assert profile.kv_bytes_per_token == 65536  # two bytes less for each of 32,768 numbers
    assert cli("run", "my.yaml", "--set", "workload.num_requests=20")[0] == 0


def test_what_init_writes_beside_a_model_moves_with_it(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "mine").mkdir(parents=True)
    shape = json.loads(find_resource("profiles", "qwen3-8b.json").read_text())
    (tmp_path / "here" / "mine" / "config.json").write_text(json.dumps(shape))
    piped(monkeypatch, "vllm serve here/mine\n")
    assert cli("init", "here/my.yaml")[0] == 0
    (tmp_path / "here").rename(tmp_path / "there")
    for folder in (tmp_path, tmp_path / "there"):
        monkeypatch.chdir(folder)
        written = tmp_path / "there" / "my.yaml"
        assert cli("run", written, "--set", "workload.num_requests=20")[0] == 0


def test_init_needs_no_price(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, "vllm serve Qwen/Qwen3-8B\n\n\n\ngb300\n")
    assert cli("init", "my.yaml")[0] == 0
    assert "gb300/qwen3-8b" in (tmp_path / "my.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no terminal to ask at"), ("vllm serve nothing\n", "model nothing"),
     ("\n\nmany\n", "--qps many: should be a number"),
     ("\n\n1e308\n", "--qps 1e+308: must be above 0 and at most 1,000,000")],
)  # fmt: skip
def test_init_says_what_is_wrong_and_writes_nothing(
    text: str, said: str, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, text)
    code, _, err = cli("init", "my.yaml")
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert not (tmp_path / "my.yaml").exists()


def test_the_demo_is_what_make_demo_runs(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "specsim.cli.simulation.compare", lambda *args, **options: asked.append((args, options))
    )
    assert cli("demo", "--out", "somewhere", "--workers", 1)[0] == 0
    [((config, policies), options)] = asked
    assert config.read_text() == (ROOT / "experiments/demo/demo.yaml").read_text()
    assert (policies, options["replications"]) == (["off", "static:k=3"], 1)
    assert "specsim demo --out results/demo" in (ROOT / "Makefile").read_text()
    shipped = (ROOT / "pyproject.toml").read_text()
    assert '"experiments/demo" = "specsim/_shipped/experiments/demo"' in shipped


@pytest.mark.parametrize("command", ["run", "capacity", "tune", "sweep", "compare"])
@pytest.mark.parametrize("given", ["vllm serve a/Model -tp 2", "meta-llama/Llama-3.1-8B"])
def test_a_server_in_place_of_an_experiment_is_told_where_to_go(
    command: str, given: str, cli: Run
) -> None:
    more = ("--policies", "off") if command == "compare" else ()
    code, _, err = cli(command, given, *more)
    assert code == 2
    assert err.startswith(f"error: {given}: there is no such file; specsim init writes an exp")
