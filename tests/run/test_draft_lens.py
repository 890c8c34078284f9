"""A profile that knows some draft lengths refuses the others, when a run begins."""

from typing import Any

import pytest
import yaml
from conftest import Run, tiny_config

from specsim.core.errors import ProfileError
from specsim.profile import Profile, load_profile
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment

STATIC = {"kind": "static"}


def knowing(*lens: int) -> Profile:
    profile = load_profile("h100/llama-3.1-8b")
    return profile.model_copy(update={"only_draft_lens": lens})


@pytest.mark.parametrize(
    ("lens", "policy"),
    [((3,), STATIC), ((0, 3), {"kind": "off"}), ((0, 1, 2, 3), {"kind": "goodput"})],
)
def test_known_lengths_are_served(lens: tuple[int, ...], policy: dict[str, Any]) -> None:
    experiment = Experiment.parse(tiny_config(policy=policy), "tiny")
    assert Deployment.of(experiment, knowing(*lens)).profile.only_draft_lens == lens


@pytest.mark.parametrize(
    ("lens", "policy", "message"),
    [
        ((3,), {"kind": "off"}, "policy 'off' may draft 0 tokens, but"),
        ((3,), {"kind": "static", "k": 2}, "policy 'static' may draft 2 tokens"),
        ((3,), {"kind": "goodput"}, "policy 'goodput' may draft 0 tokens"),
        ((0, 3), {"kind": "goodput"}, "policy 'goodput' may draft 1 tokens"),
        ((0,), STATIC, "knows the draft lengths 0 only"),
    ],
)
def test_others_are_refused(lens: tuple[int, ...], policy: dict[str, Any], message: str) -> None:
    experiment = Experiment.parse(tiny_config(policy=policy), "tiny")
    with pytest.raises(ProfileError) as error:
        Deployment.of(experiment, knowing(*lens))
    assert message in str(error.value)
    assert "of several lengths, 0 among them" in str(error.value)


def test_a_comparison_with_off_is_refused_in_one_line(tmp_path: Any, cli: Run) -> None:
    fields = knowing(3).model_dump(mode="json", exclude_none=True)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(fields))
    config = tiny_config(profile=str(tmp_path / "p.yaml"))
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(config))
    policies = ("--policies", "off", "static:k=3")
    code, output, errors = cli("compare", tmp_path / "e.yaml", *policies, "--workers", "1")
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert "policy 'off' may draft 0 tokens" in errors


def test_an_overview_shows_known_lengths_only(tmp_path: Any, cli: Run) -> None:
    fields = knowing(2).model_dump(mode="json", exclude_none=True)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(fields))
    code, output, _ = cli("profile", "show", tmp_path / "p.yaml")
    assert code == 0
    assert "k = 2, eagle3" in output
    assert "k = 0" not in output
    assert "k = 5" not in output
