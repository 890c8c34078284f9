"""Settings: what a file says is read once and whole, or one line names the place and the reason."""

from pathlib import Path

import pytest
from conftest import tiny_config

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping, nearest, overridden, parse_yaml
from specsim.run.experiment import Experiment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2024-13-45\n", "line 2: not YAML: '2024-13-45' is no timestamp: month must be"),
        ("a: 1\nb: " + "9" * 5000, "line 2: not YAML: a number of 5,000 digits; at most 400"),
        ("a: 1\nb: 2\na: 3\n", "line 3: not YAML: the key 'a' stands here twice; leave one"),
        (
            "a: 010",
            "line 1: not YAML: 010 is 8 in YAML 1.1; write the number that is meant, or a text",
        ),
        ("a: -1:30", "line 1: not YAML: -1:30 is -90 in YAML 1.1; write the number that is meant"),
        (
            "a: 1:30.5",
            "line 1: not YAML: 1:30.5 is 90.5 in YAML 1.1; write the number that is meant",
        ),
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
    with pytest.raises(ConfigError, match="--set a=2024-13-45: cannot read the value"):
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
        ("replicas", "on", "replicas = 'true': should be an integer, in digits alone"),
        ("workload.arrivals.rate", "true", "rate = 'true': should be a valid number"),
        ("policy", "static:k=yes", "k = 'true': should be an integer, in digits alone"),
        ("policy", "static:k=03", "'k=03': cannot read the value: 03 is 3 in YAML 1.1; write the"),
        ("policy", "static:k=", "'static:k=': 'k=': the value is missing; write null for none"),
        ("policy", "", "--set policy=: the value is missing; write null for none"),
        ("replicas", " ", "--set replicas= : the value is missing; write null for none"),
        (
            "policy",
            "{kind: static_tree, widths: []}",
            r"policy.widths = \[\]: should have at least 1",
        ),
    ],
)
def test_a_value_of_another_type_is_told_in_plain_words(
    field: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Experiment.parse(overridden(tiny_config(), [f"{field}={value}"]), "e")


@pytest.mark.parametrize("good", [0, 1, 3])
def test_a_list_with_a_wrong_entry_is_told_of_that_entry_alone(good: int) -> None:
    arrivals = {"kind": "piecewise", "segments": [[1, 2]] * good + [[1, "x"]]}
    config = overridden(tiny_config(), {"workload.arrivals": arrivals})
    with pytest.raises(ConfigError) as caught:
        Experiment.parse(config, "e")
    told = f"e: workload.arrivals.segments.{good}.1 = 'x': should be a valid number"
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("policy", ["static", "static:k=1", {"kind": "static", "k": 1}])
def test_a_field_of_a_member_can_be_replaced_however_the_member_is_written(policy: object) -> None:
    config = {**tiny_config(), "policy": policy}
    found = Experiment.parse(overridden(config, ["policy.k=2"]), "e")
    given = Experiment.parse({**config, "policy": {"kind": "static", "k": 2}}, "e")
    assert found.policy == given.policy


def test_a_field_of_a_text_that_names_no_member_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"--set profile\.gpu=x: 'profile' is not a mapping"):
        overridden({"profile": "h100/llama-3.1-8b"}, ["profile.gpu=x"])


def test_the_beginning_of_one_known_word_is_taken_for_it() -> None:
    assert nearest("at", ["at_request", "after", "kind"]) == "did you mean 'at_request'?"
    assert nearest("a", ["at_request", "after"]) == "choose from after, at_request"
    assert nearest("k", ["kind", "fading"]) == "choose from fading, kind"
    assert nearest("", ["one"]) == "choose from one"
    # As papers write it, and in another order.
    assert nearest("AdaEDL", ["adaedl", "disco"]) == "did you mean 'adaedl'?"
    assert nearest("SpecDec++", ["specdec_pp", "disco"]) == "did you mean 'specdec_pp'?"
    assert nearest("tpot_p99", ["p99_tpot_ms", "p99_ttft_ms"]) == "did you mean 'p99_tpot_ms'?"
