"""What every member of every family promises: it can be configured, found and written down."""

from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import create_model

from specsim.core.errors import ConfigError
from specsim.core.families import Family
from specsim.policies import POLICIES, Policy
from specsim.proposers import PROPOSERS
from specsim.show.render.catalogue import FAMILIES

CASES = [
    pytest.param(family, name, example, id=f"{family.name}-{name}-{number}")
    for family in FAMILIES.values()
    for name, member in family.members.items()
    for number, example in enumerate(member.examples)
]


@pytest.mark.parametrize(("family", "name", "example"), CASES)
def test_examples_survive_a_round_trip_through_yaml(
    family: Family[Any], name: str, example: dict[str, Any]
) -> None:
    member = family.parse({family.tag: name, **example})
    text = yaml.safe_dump(member.model_dump(mode="json", exclude_none=True))
    assert family.parse(yaml.safe_load(text)) == member


@pytest.mark.parametrize(("family", "name", "example"), CASES)
def test_a_field_says_what_differs_from_the_defaults_and_the_name(
    family: Family[Any], name: str, example: dict[str, Any]
) -> None:
    member = family.parse({family.tag: name, **example})
    kind = Annotated[Any, family]
    holder = create_model("Holder", held=(kind, ...))(held=member)
    short = holder.model_dump(mode="json", exclude_none=True, exclude_defaults=True)["held"]
    assert next(iter(short)) == family.tag
    defaults = {field: info.default for field, info in type(member).model_fields.items()}
    assert [field for field in short if getattr(member, field) == defaults[field]] == [family.tag]
    assert family.parse(yaml.safe_load(yaml.safe_dump(short))) == member


@pytest.mark.parametrize(("family", "name", "example"), CASES)
def test_members_are_immutable_and_documented(
    family: Family[Any], name: str, example: dict[str, Any]
) -> None:
    member = family.parse({family.tag: name, **example})
    with pytest.raises(ValueError, match="frozen"):
        setattr(member, family.tag, "other")
    assert type(member).__doc__


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_file_of_a_family_holds_a_member(family: Family[Any]) -> None:
    folder = Path(__file__).parents[2] / "specsim" / family.name.replace(".", "/")
    files = {path.stem for path in folder.glob("[!_]*.py")} - {"base", "form"}
    modules = {member.__module__.rsplit(".", 1)[1] for member in family.members.values()}
    assert files == modules


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_name_leads_to_its_member_without_a_look_at_the_others(family: Family[Any]) -> None:
    fresh = Family[Any](family.name, family.base, family.tag)
    assert {name: fresh.find(name) for name in family.members} == family.members
    assert "members" not in vars(fresh)  # which imports all files


KNOWN_TO_VLLM = {
    "method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size",
    "prompt_lookup_max", "prompt_lookup_min", "suffix_decoding_max_spec_factor",
    "suffix_decoding_max_tree_depth", "suffix_decoding_min_token_prob",
    "suffix_decoding_max_cached_requests", "disable_lookahead_block_hashes",
    "rejection_sample_method", "enable_adaptive_verification", "parallel_drafting",
}  # fmt: skip


@pytest.mark.parametrize("name", PROPOSERS.members)
def test_a_proposer_says_which_fields_vllm_does_not_know(name: str) -> None:
    member = PROPOSERS.members[name]
    assert member.own_fields() == set(member.model_fields) - KNOWN_TO_VLLM


def required_fields(family: Family[Any], name: str) -> list[str]:
    fields = family.members[name].model_fields.items()
    return [field for field, info in fields if info.is_required()]


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, id=f"{family.name}-{name}")
        for family in FAMILIES.values()
        for name, member in family.members.items()
        if family is not PROPOSERS  # which work some fields out
        if member.examples and required_fields(family, name)
    ],
)
def test_a_missing_field_is_told_with_how_one_writes_it(family: Family[Any], name: str) -> None:
    required = required_fields(family, name)
    for form in ({family.tag: name}, name):
        with pytest.raises(ConfigError) as caught:
            family.given("here", form)
        told = str(caught.value).splitlines()
        assert [line.partition("' is missing, such as ")[0] for line in told] == [
            f"here: '{field}" for field in required
        ]
        shown = [line.partition(", such as ")[2] for line in told]
        if form == name:
            assert all(each.startswith(f"{name}:") for each in shown)
            fields = ",".join(each.removeprefix(f"{name}:") for each in shown)
            assert family.parse(f"{name}:{fields}")
        else:
            given = [yaml.safe_load(each) for each in shown]
            assert [list(each) for each in given] == [[field] for field in required]
            assert family.parse({family.tag: name} | {k: v for g in given for k, v in g.items()})


def test_unknown_names_answer_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'static'"):
        POLICIES.parse("statik")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("off", {"kind": "off"}),
        ("static:k=3", {"kind": "static", "k": 3}),
        (
            "schedule:ranges=[[1, 8, 3], [9, 9, 0]]",
            {"kind": "schedule", "ranges": [[1, 8, 3], [9, 9, 0]]},
        ),
    ],
)
def test_short_form(text: str, fields: dict[str, Any]) -> None:
    assert POLICIES.parse(text) == POLICIES.parse(fields)


def test_off_needs_no_quotes_in_yaml() -> None:
    # YAML 1.1 reads an unquoted off as False.
    assert POLICIES.parse(yaml.safe_load("{kind: off}")) == POLICIES.parse("off")


OWN_POLICY = '''
from typing import Any, Literal

from specsim.policies import Policy
from specsim.core.step import BatchView


class HalfTheBatch(Policy):
    """Draft only while the batch is small."""

    kind: Literal["half_the_batch"] = "half_the_batch"
    limit: int = 8

    def draft_lens(self, batch: BatchView, memory: Any) -> int:
        return memory.max_draft_len if batch.size <= self.limit else 0


class NotAPolicy:
    pass
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_policies.py").write_text(OWN_POLICY)
    monkeypatch.chdir(tmp_path)
    return "my_policies"


def test_a_class_from_elsewhere_is_named_by_its_path(own_module: str) -> None:
    policy = POLICIES.parse(f"{own_module}:HalfTheBatch:limit=4")
    assert policy.model_dump(warnings=False) == {"kind": f"{own_module}:HalfTheBatch", "limit": 4}
    assert POLICIES.parse(policy.model_dump(warnings=False)) == policy


@pytest.mark.parametrize("path", ["no_such:Policy", "{}:Missing", "{}:NotAPolicy"])
def test_a_bad_path_is_a_clear_error(own_module: str, path: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot load|is not a Policy"):
        POLICIES.parse(path.format(own_module))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("my_policies:HalfTheBach", "no 'HalfTheBach'; did you mean 'HalfTheBatch'?"),
        ("my_policies.HalfTheBatch", "a class of yours is my_policies:HalfTheBatch"),
        ("static:k", "'k' is not field=value, and there is no file static.py"),
    ],
)
def test_a_class_that_is_nearly_named_is_told(own_module: str, name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        POLICIES.parse(name)
    assert str(caught.value).endswith(hint)


@pytest.mark.parametrize(
    ("family", "text", "owner"),
    [(POLICIES, "off:widths=[2]", "static_tree"), (PROPOSERS, "eagle3:own_gpus={}", "draft_model")],
)
def test_a_field_of_another_member_is_told_whose_it_is(
    family: Family[Any], text: str, owner: str
) -> None:
    """Who tries own_gpus with an EAGLE head is not told that there is no such thing."""
    field = text.partition(":")[2].partition("=")[0]
    with pytest.raises(ValueError, match=rf"'{field}' is a field of [\w, ]*{owner}"):
        family.parse(text)


def test_two_members_of_one_name_are_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family[Policy]("policies", Policy)
    monkeypatch.setattr(Family, "name_of", lambda self, member: "static")
    with pytest.raises(ConfigError, match=r"kind 'static' is that of specsim\.policies\.\w+; give"):
        _ = family.members
