"""Files from outside cost an error, not the machine."""

import re
import struct
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import TypeAdapter

from specsim.core import reading
from specsim.core.columns import opened_parquet, parquet_table
from specsim.core.errors import ConfigError
from specsim.core.reading import parse_yaml
from specsim.core.settings import Settings, load_mapping, nearest, overridden, validated

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


MARKS = (
    *(
        "!!map",
        "!!str",
        "!!int",
        "!!float",
        "!!bool",
        "!!null",
        "!!timestamp",
        "!!set",
        "!<x>",
        "!",
    ),
    *("&a", "&-b", "*a", "*-b", "<<:", "=:", "?", ":", "-", "[", "]", "{", "}", ",", "\n", "\n  "),
    *("a", "b:", "1", "1_", "0x", "0x_", "1e3", ".inf", "2020-01-01", "1:99", "0b", "+", "~", "<<"),
    *(" ", " ", " ", '"', "'", "|\n", ">-\n", "%TAG ! x\n", "---\n", "...\n", "#", "\t", "\x00"),
)
DEEP = "nest"  # "nested more than 100 levels deep"; libyaml has words of its own since PyYAML 6.0.4
MANY = "stands, with its aliases, for more than 1,000,000 values"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]", "the alias '*a' holds itself"),
        (BOMB, MANY),
        (re.sub(r"([&*])(\w)", r"\1-\2", BOMB), MANY),
        ("- " * 40000 + "1", "nested more than 100 levels deep"),
        ("a:\n" + "".join(" " * i + "-\n" for i in range(200)), "nested more than 100 levels deep"),
        ("? " * 40000 + "1", "nested more than 100 levels deep"),
        ("a: " + "[!<x>]\n " * 40000 + "1", "did not find expected whitespace"),
        ("a: " + "[!<x]> \n " * 40000 + "1", "nested more than 100 levels deep"),
        ("a: " + "['#]' , \n" * 40000, "nested more than 100 levels deep"),
        ("a: !!map [1]", "is marked as map and is none"),
        ("a: !!int [1]", "is marked as int and is none"),
        ("a: !!timestamp {=: [1]}", "is marked as timestamp and is none"),
        ("a: !!int ''", "is no int"),
        ("a: !!float ''", "is no float"),
        ("a: !!bool maybe", "is no bool"),
        ("a: " + "[" * 2000 + "]" * 2000, DEEP),
        ("a: " + "[" * 30000 + "]" * 30000, DEEP),
        ("a: # ]]]\n" + "  [ # ]\n" * 30000 + "]" * 30000, DEEP),
        ("!!binary aGVsbG8=: 1", "a key must be a text"),
        ("a: !!binary aGVsbG8=", "of no use here"),
        ("? [1]\n: 2", "a key must be a text"),
        ("a: 2020-13-45", "is no timestamp"),
        ("a: " + "9" * 4300, "a number of 4,300 digits"),
        ("a: " + "9" * 5000, "a number of 5,000 digits"),
    ],
)
def test_a_text_that_means_too_much_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    begun_at = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_mapping(path, ConfigError)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.process_time() - begun_at < 15


def test_values_are_counted_without_aliases_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_NODES", 1000)
    path = tmp_path / "a.yaml"
    path.write_text("a: [" + "1," * 997 + "]")  # beside the mapping, its key and the list
    assert len(load_mapping(path, ConfigError)["a"]) == 997
    path.write_text("a: [" + "1," * 998 + "]")
    with pytest.raises(ConfigError, match="stands, with its aliases, for more than 1,000 values"):
        load_mapping(path, ConfigError)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 2000 + "]" * 2000,
        '{"a":' * 2000 + "1" + "}" * 2000,
        '[1,{"b":"[","a":' * 60 + "1" + "}]" * 60,
    ],
)
def test_nested_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="nested more than 100 levels deep"):
        load_mapping(path, ConfigError)


@pytest.mark.parametrize("text", ['["\\ud800"]', '{"\\uDFFF x": 1}', '{"a": ["\\udc00\\ud800"]}'])
def test_half_a_character_is_refused_in_json(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="half of a surrogate pair"):
        load_mapping(path, ConfigError)


def test_whole_characters_and_written_escapes_are_read_in_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": "\\ud83d\\ude00", "b": "\\\\ud800"}')
    assert load_mapping(path, ConfigError) == {"a": "\N{GRINNING FACE}", "b": "\\ud800"}


def test_a_value_that_lacks_half_a_character_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"--set name=.*: cannot read the value: .*half of a"):
        overridden({}, ["name=\udc80"])


def test_a_text_of_any_marks_has_a_value_or_is_no_yaml() -> None:
    values = 0
    for number in range(20_000):
        rng = Random(number)
        text = "".join(rng.choices(MARKS, k=rng.randrange(1, 30)))
        with suppress(yaml.YAMLError):
            parse_yaml(text)
            values += 1
    assert 0 < values < 20_000


def test_a_device_is_no_file() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: is no ordinary file"):
        load_mapping(Path("/dev/zero"), ConfigError)


@pytest.mark.parametrize("length", [0, 5, 2**31, 2**32 - 1])
def test_a_broken_footer_never_reaches_the_reader(length: int, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1" + struct.pack("<I", length) + b"PAR1")
    with (
        pytest.raises(ConfigError, match="is not a complete Parquet file"),
        opened_parquet(path, ConfigError),
    ):
        raise AssertionError


def _changed(path: Path, rng: Random) -> None:
    """Change a file in one to four bytes, in its footer or its data."""
    data = bytearray(path.read_bytes())
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(rng.choice((1, 1, 2, 4))):
        begin, end = (footer, len(data) - 8) if rng.random() < 0.6 else (4, footer)
        data[rng.randrange(begin, end)] = rng.randrange(256)
    path.write_bytes(data)


def _kind(path: Path) -> str:
    try:
        table = parquet_table(path, ConfigError)
    except ConfigError as error:
        return "error" if str(error).startswith(f"{path}: ") and "\n" not in str(error) else "long"
    table.to_pylist()
    return "read"


def test_a_corrupt_table_is_one_error_or_readable_to_the_last_value(tmp_path: Path) -> None:
    columns = {
        "id": [f"request {n}" for n in range(40)],
        "tokens": [list(range(n % 9)) for n in range(40)],
        "policy": pa.array(["off", "goodput"] * 20).dictionary_encode(),
    }
    path, kinds = tmp_path / "a.parquet", set()
    for case in range(300):
        rng = Random(case)
        pq.write_table(pa.table(columns), path, compression=rng.choice(("none", "zstd")))
        _changed(path, rng)
        kinds.add(_kind(path))
    assert kinds == {"error", "read"}


class Inner(Settings):
    x: int


class Outer(Settings):
    inner: Inner
    y: int


def test_every_problem_has_a_line() -> None:
    data: dict[str, Any] = {"inner": {"x": "one", "z": 1}, "yy": 2}
    with pytest.raises(ConfigError) as caught, validated("a.yaml", ConfigError):
        Outer.model_validate(data)
    assert str(caught.value).splitlines() == [
        "a.yaml: unknown field 'yy'; did you mean 'y'?",
        "a.yaml: inner: unknown field 'z'; choose from x",
        "a.yaml: inner.x = 'one': should be an integer, in digits alone",
        "a.yaml: 'y' is missing",
    ]


def test_of_a_file_of_another_kind_a_few_unknown_fields_are_said() -> None:
    data = {"inner": {"x": 1}, "y": 2, **{f"far_{n}": n for n in range(30)}}
    with pytest.raises(ConfigError) as caught, validated("a.json", ConfigError):
        Outer.model_validate(data)
    *said, last = str(caught.value).splitlines()
    assert said == [f"a.json: unknown field 'far_{n}'; choose from inner, y" for n in range(4)]
    assert last == "a.json: and 26 more unknown fields: is this a file of another kind?"


def test_many_problems_are_told_to_a_limit() -> None:
    with pytest.raises(ConfigError) as caught, validated("a.json", ConfigError):
        TypeAdapter(list[int]).validate_python(["a"] * 50)
    *told, last = str(caught.value).splitlines()
    assert (len(told), last) == (20, "a.json: and 30 more such problems")


def test_long_lists_of_names_are_cut() -> None:
    known = [f"name{n:03d}" for n in range(100)]
    assert nearest("name012!", known) == "did you mean 'name012'?"
    assert nearest("!", known) == f"choose from {', '.join(known[:40])} and 60 more"
