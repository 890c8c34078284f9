"""Settings: what a file says is read once and whole, or one line names the place and the reason."""

from pathlib import Path

import pytest
from conftest import tiny_config

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping, overridden, parse_yaml
from specsim.run.experiment import Experiment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2024-13-45\n", "line 2: not YAML: '2024-13-45' is no timestamp: month must be"),
        ("a: 1\nb: " + "9" * 5000, "line 2: not YAML: a number of 5,000 digits; at most 400"),
        ("a: 1\nb: 2\na: 3\n", "line 3: not YAML: the key 'a' stands here twice; leave one"),
        ("a: {b: 1, b: 2}", "line 1: not YAML: the key 'b' stands here twice; leave one"),
        ("5", "holds a number; a mapping of fields is expected"),
        ("- 5", "holds a list; a mapping of fields is expected"),
        ("yes", "holds true or false; a mapping of fields is expected"),
    ],
)
def test_a_file_that_cannot_be_read_as_meant_is_one_line(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_mapping(path, ConfigError)
    assert "\n" not in str(caught.value)


def test_a_value_of_an_option_that_cannot_be_read_is_one_line() -> None:
    with pytest.raises(ConfigError, match="--set a=2024-13-45: the value is not YAML"):
        overridden({}, ["a=2024-13-45"])


def test_a_shared_text_is_parsed_once_and_one_that_has_changed_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: [1]")
    first = load_mapping(path, ConfigError, is_shared=True)
    assert load_mapping(path, ConfigError, is_shared=True) is first
    assert load_mapping(path, ConfigError) is not first
    path.write_text("a: [2]")
    assert load_mapping(path, ConfigError, is_shared=True) == {"a": [2]}


def test_the_same_key_may_stand_in_several_mappings() -> None:
    assert parse_yaml("x: {a: 1}\ny: {a: 2}") == {"x": {"a": 1}, "y": {"a": 2}}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("workload", "5", "workload = 5: should be a mapping of fields"),
        ("replicas", "2e2", "replicas = '2e2': should be an integer, in digits alone"),
    ],
)
def test_a_value_of_another_type_is_told_in_plain_words(
    field: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Experiment.parse(overridden(tiny_config(), [f"{field}={value}"]), "e")
