"""Comparisons: paired, reproducible, and fair."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specsim.compare import compare, folder_name, parse_policies, speed_up
from specsim.errors import ConfigError
from specsim.experiment import Experiment


def test_speed_up_is_the_geometric_mean_with_a_paired_interval() -> None:
    value = speed_up([2.0, 8.0], [1.0, 2.0])
    assert value.mean == pytest.approx(8**0.5)
    # t(1, 97.5 %) = 12.706; logs are ln 2 and ln 4, their standard error ln 2 / 2.
    assert value.high == pytest.approx(8**0.5 * 2 ** (12.706 / 2), rel=1e-3)
    assert value.low == pytest.approx(8**0.5 / 2 ** (12.706 / 2), rel=1e-3)


def test_a_single_replication_has_no_interval() -> None:
    assert speed_up([2.0], [1.0]).low is None


def test_the_baseline_is_always_there(tiny: Callable[..., Experiment]) -> None:
    result = compare(tiny(), parse_policies(["static:k=2"]), replications=2)
    assert [policy.label for policy in result.results] == ["off", "static:k=2"]
    assert result.results[0].speed_up.mean == 1.0


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_processes_changes_nothing(
    workers: int, tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    policies = parse_policies(["static:k=1", "static:k=3"])
    alone = compare(tiny(), policies, replications=2, folder=tmp_path / "alone")
    together = compare(
        tiny(), policies, replications=2, workers=workers, folder=tmp_path / "together"
    )
    assert alone.to_dict() == together.to_dict()
    for label in policies:
        for name in ("summary.json", "requests.parquet", "steps.parquet"):
            file = f"{folder_name(label)}/{name}"
            assert (tmp_path / "alone" / file).read_bytes() == (
                tmp_path / "together" / file
            ).read_bytes()


def test_all_policies_meet_the_same_requests(tiny: Callable[..., Experiment]) -> None:
    result = compare(tiny(), parse_policies(["static:k=3"]), replications=1)
    totals = {policy.summaries[0]["total_output_tokens"] for policy in result.results}
    assert len(totals) == 1


def test_one_policy_that_needs_synchronous_steps_makes_all_synchronous(
    tiny: Callable[..., Experiment],
) -> None:
    result = compare(tiny(), parse_policies(["static:k=3", "oracle"]), replications=1)
    assert not any(policy.summaries[0]["specsim"]["is_async"] for policy in result.results)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("statik", "did you mean 'static'"),
        ("static:k=0", r"k = 0"),
        ("static:j=1", "unknown field 'j'"),
    ],
)
def test_bad_policies_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_policies([text])
