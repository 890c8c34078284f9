"""Files that are odd in ways that only fuzzing thinks of end a command in one line."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, Run, tiny_config

from specsim.core.resources import find_resource

Refused = Callable[..., str]
_FILE = find_resource("profiles", "llama-3.1-8b.json")
assert _FILE is not None
MODEL = json.loads(_FILE.read_text())
SCENARIO = ROOT / "tests" / "parity" / "recorded" / "random-26.scenario.json"
LOG = SCENARIO.with_name("random-26.log.json")
ON_H100 = ("--model", "llama-3.1-8b", "--gpu", "h100")


@pytest.fixture
def refused(cli: Run) -> Refused:
    """Run a command that ends with exit code 2 and one line."""

    def run(*args: object) -> str:
        code, out, err = cli(*args)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    return run


@pytest.mark.parametrize("number", [5000, 2**63, 2**64, 10**30])
@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_models_larger_than_any(field: str, number: int, cli: Run) -> None:
    Path("m.json").write_text(json.dumps({**MODEL, field: number}))
    code, out, err = cli("profile", "roofline", "--model", "m.json", "--gpu", "h100")
    if number > 2**31 or field == "num_hidden_layers":
        assert (code, out) == (2, "")
        assert f"m.json: {field} = {number}: should be less than or equal to" in err
    else:
        assert code in (0, 2)


@pytest.mark.parametrize(
    "command",
    [
        ("run", "loop"),
        ("gate", "loop", "loop"),
        ("profile", "roofline", *ON_H100, "--out", "loop"),
        ("trace", "convert", "loop", "x.jsonl"),
        ("tokens", "from-text", "loop", "--tokenizer", "loop", "--out", "x.jsonl"),
    ],
)
def test_a_link_to_itself(command: tuple[str, ...], refused: Refused) -> None:
    Path("loop").symlink_to("loop")
    assert "loop" in refused(*command)
    assert Path("loop").is_symlink()


STEPS = [
    {"context_tokens": 500 * n, "batched_tokens": n, "requests": n, "mixed": 0, "seconds": 0.01}
    for n in range(1, 20)
]


@pytest.mark.parametrize(
    ("field", "value"), [("seconds", 1e308), ("seconds", 1e-320), ("context_tokens", 1e300)]
)
def test_steps_beyond_any_measurement(field: str, value: float, refused: Refused) -> None:
    rows = [{**row, field: value} for row in STEPS]
    Path("s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert f"s.jsonl, line 1: {field} = " in refused("profile", "fit", "s.jsonl", *ON_H100)


def test_a_column_of_lists(refused: Refused) -> None:
    columns: dict[str, Any] = {name: [row[name] for row in STEPS] for name in STEPS[0]}
    pq.write_table(pa.table({**columns, "seconds": [[1.0]] * len(STEPS)}), "s.parquet")
    assert "seconds = '[1.0]' must be a number" in refused("profile", "fit", "s.parquet", *ON_H100)


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_ids_that_are_no_numbers(value: float, refused: Refused) -> None:
    row = {"chat_id": value, "timestamp": 0, "input_length": 20, "output_length": 5}
    Path("t.jsonl").write_text(json.dumps({**row, "hash_ids": [1], "parent_chat_id": -1}) + "\n")
    assert "chat_id = " in refused("trace", "describe", "t.jsonl")


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "?"},
        {"type": "BPE", "vocab": {"x": 0}, "merges": [], "unk_token": "?"},
        {"type": "Unigram", "vocab": [], "unk_id": 5},
    ],
)
def test_a_tokenizer_that_breaks_at_its_first_text(model: dict[str, Any], refused: Refused) -> None:
    pytest.importorskip("tokenizers")
    Path("t.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    Path("chat.jsonl").write_text('{"prompt": "a b", "output": "c"}\n')
    command = ("tokens", "from-text", "chat.jsonl", "--tokenizer", "t.json", "--out", "x.jsonl")
    assert "t.json: is not a tokenizer.json that can be read" in refused(*command)
    assert not Path("x.jsonl").exists()


@pytest.mark.parametrize(
    ("field", "value"), [("max_num_seqs", -1), ("max_num_active_seqs", 10**40), ("block_size", 0)]
)
def test_a_scenario_of_no_engine(field: str, value: int, refused: Refused) -> None:
    scenario = json.loads(SCENARIO.read_text())
    scenario["engine"][field] = value
    Path("s.json").write_text(json.dumps(scenario))
    assert "s.json: " in refused("parity", "s.json")


def test_an_experiment_in_place_of_a_scenario(refused: Refused) -> None:
    Path("e.yaml").write_text(yaml.safe_dump(tiny_config()))
    assert "e.yaml: is no recorded scenario" in refused("parity", "e.yaml")


@pytest.mark.parametrize("field", ["prompt_len", "max_tokens", "arrival_ns", "external_len"])
def test_a_scenario_of_requests_without_end(field: str, refused: Refused) -> None:
    scenario = json.loads(SCENARIO.read_text())
    scenario["requests"][0][field] = 2**63
    Path("s.json").write_text(json.dumps(scenario))
    assert f"s.json: requests.0.{field} = " in refused("parity", "s.json")


@pytest.mark.parametrize("row", [1, [], ["r00"], [1] * 9, {}, None, "x"])
@pytest.mark.parametrize("field", ["sched", "out"])
def test_a_log_with_an_odd_row_differs(field: str, row: Any, cli: Run) -> None:
    log = json.loads(LOG.read_text())
    log["steps"][0][field] = [row]
    Path("l.json").write_text(json.dumps(log))
    code, out, err = cli("parity", SCENARIO, "--log", "l.json")
    assert (code, err) == (1, "")
    assert "DIFFERS at step 0" in out


def test_more_heads_of_keys_than_heads(refused: Refused) -> None:
    Path("m.json").write_text(json.dumps({**MODEL, "num_key_value_heads": 33}))
    said = refused("profile", "roofline", "--model", "m.json", "--gpu", "h100")
    assert "m.json: num_key_value_heads = 33: each is shared by at least one of" in said
