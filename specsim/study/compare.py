"""Compare policies on identical luck.

Every policy meets the same requests at the same times, and a draft token at a given output
position survives for all of them or for none. So the difference between two policies is paired,
replication by replication, and its confidence interval is narrow.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.processes import LocalProcesses
from specsim.core.runner import Runner
from specsim.engine.config import EngineConfig
from specsim.policies import POLICIES, Policy, has_async_form, is_bound
from specsim.policies.static import Off
from specsim.profile import load_profile
from specsim.profile.model_error import TimeError
from specsim.results.stability import Stability, stability_of, together
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.paired import Regret, SpeedUp, regret, replicated, speed_up
from specsim.study.sweep import labels

REFERENCES = {"oracle": "oracle", "bayes": "bayes", "best_static": "static"}
"""Policies that serve as references, and the kind of each."""


@dataclass(frozen=True)
class PolicyResult:
    """The results of one policy over all replications."""

    label: str
    policy: Policy
    summaries: list[dict[str, Any]] = field(repr=False)
    """Contents of ``summary.json``, one per replication."""
    speed_up: SpeedUp  # of the mean end-to-end latency over no speculation

    def mean(self, field: str) -> float:
        """Return the mean of a field of the summaries or of their block ``specsim``; else NaN."""
        values = [{**s["specsim"], **s}.get(field) for s in self.summaries]
        return fmean(float("nan") if value is None else value for value in values)

    @property
    def latencies(self) -> list[float]:
        """Mean end-to-end latency of each replication, milliseconds."""
        return [summary["mean_e2el_ms"] for summary in self.summaries]

    @property
    def stability(self) -> Stability:
        """Whether the server kept up with what arrived."""
        return together(stability_of(summary["specsim"]) for summary in self.summaries)

    @property
    def warnings(self) -> list[str]:
        """Warnings of the first replication."""
        return list(self.summaries[0]["specsim"]["warnings"])


@dataclass(frozen=True)
class Standing:
    """The rank of one policy among all."""

    rank: int | None  # 1 is the highest speed-up; None for a bound, which no server can run
    result: PolicyResult
    is_tied: bool | None
    """Whether the paired 95 % interval of the difference to the rank above includes 0. None for the
    first rank, for bounds, and with a single replication."""
    regrets: dict[str, Regret]
    """Regret against ``oracle``, ``bayes`` and ``best_static`` (the best fixed k in hindsight), if
    these take part."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "tied_with_rank_above": self.is_tied,
            "stability": self.result.stability,
            "speed_up": asdict(self.result.speed_up),
            **{f"regret_{name}": None for name in REFERENCES},
            **{f"regret_{name}": asdict(each) for name, each in self.regrets.items()},
            "summaries": self.result.summaries,
        }


@dataclass(frozen=True)
class Comparison:
    """The results of all policies, the baseline first."""

    results: list[PolicyResult]
    num_replications: int
    notes: list[str] = field(default_factory=list)
    """Changes to the experiment that were made for all policies."""

    @property
    def warnings(self) -> list[str]:
        every = {each.label: each.warnings for each in self.results}
        common = set.intersection(*map(set, every.values()))
        own = [f"{label}: {text}" for label, some in every.items() for text in some]
        return [
            *self.notes,
            *sorted(common),
            *(text for text in own if text.partition(": ")[2] not in common),
        ]

    @property
    def standings(self) -> list[Standing]:
        ranked = sorted(self.results, key=lambda result: -result.speed_up.mean)
        references = {
            name: next((result for result in ranked if result.policy.kind == kind), None)
            for name, kind in REFERENCES.items()
        }
        real = [result for result in ranked if not is_bound(result.policy)]
        places = {result.label: rank for rank, result in enumerate(real, 1)}
        above = {result.label: higher for higher, result in pairwise(real)}
        return [
            Standing(
                places.get(result.label),
                result,
                _is_tied(above[result.label], result) if result.label in above else None,
                {
                    name: regret(each.latencies, result.latencies, each.label)
                    for name, each in references.items()
                    if each is not None
                },
            )
            for result in ranked
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: of each policy its standing and all its summaries."""
        standings = {standing.result.label: standing.to_dict() for standing in self.standings}
        return {
            result.label: {**standings[result.label], "warnings": [*self.notes, *result.warnings]}
            for result in self.results
        }


def _is_tied(above: PolicyResult, result: PolicyResult) -> bool | None:
    ratio = speed_up(above.latencies, result.latencies)
    if ratio.low is None or ratio.high is None:
        return None
    return ratio.low <= 1.0 <= ratio.high


def parse_policies(policies: Sequence[str]) -> dict[str, Policy]:
    """Return policies by their short form, ``off`` first; a ConfigError if one is wrong."""
    policies = [policies] if isinstance(policies, str) else list(policies)
    for text, count in Counter(policies).items():
        if count > 1:
            raise ConfigError(f"--policies {text}: is given {count} times; leave one")
    found: dict[str, Policy] = {"off": Off()}
    for text in policies:
        first, *others = re.split("[, ]+", text, maxsplit=1)
        if others and first in POLICIES.members:
            raise ConfigError(
                f"--policies {text}: names several as one; set them apart by spaces, unquoted: "
                f"{first} {others[0]}"
            )
        found[text] = POLICIES.given(f"--policies {text}", text)
    return found


def labelled(policies: Mapping[str, Policy | str] | Sequence[str]) -> dict[str, Policy]:
    """Return policies by label, parsed where given in short form; a ConfigError if one is wrong."""
    if not isinstance(policies, Mapping):
        return parse_policies(policies)
    found = {}
    for label, policy in policies.items():
        source = f"policies: {label}"
        found[label] = policy if isinstance(policy, Policy) else POLICIES.given(source, policy)
    return found


def chosen_policies(policies: Sequence[str] | None, own: Policy) -> dict[str, Policy]:
    """Return the policies asked for, by label; without any, the experiment's own."""
    if policies:
        labels_given = [policies] if isinstance(policies, str) else list(policies)
        parsed = parse_policies(labels_given)
        return {label: parsed[label] for label in labels_given}
    fields = own.model_dump(mode="json", exclude_defaults=True) | {"kind": own.kind}
    return dict(zip(labels([fields]), [own], strict=True))


def compare(
    experiment: Experiment,
    policies: Mapping[str, Policy | str] | Sequence[str],
    *,
    replications: int = 3,
    workers: int = 1,
    folder: Path | str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Run every policy on the same requests and the same luck.

    A SpecsimError if a policy cannot be run with this experiment.

    Args:
        experiment: Its policy is replaced; replication i runs with seed ``experiment.seed +
            i``. If a policy needs synchronous scheduling, all of them run with it.
        policies: In short form, or by label; ``off``, the baseline, must be among the labels.
        folder: Where to save the results of replication 0, one folder per policy.
    """
    policies = labelled(policies)
    if "off" not in policies:
        raise ConfigError("policies: 'off', which speed-ups are over, is missing; add it")
    experiment, notes = on_one_engine(experiment, policies)
    tasks = []
    for label, policy in policies.items():
        runs = replicated(experiment, replications, f"--policies {label}", policy=policy)
        kept_in = Path(folder, folder_name(label)) if folder is not None else None
        tasks.append([(run, None if number else kept_in) for number, run in enumerate(runs)])
    with Runner(LocalProcesses(workers), on_progress) as runner:
        groups = dict(zip(policies, runner.run(_run_one, tasks), strict=True))
    results = []
    for label, policy in policies.items():
        off, own = ([each["mean_e2el_ms"] for each, _ in groups[n]] for n in ("off", label))
        gain = speed_up(off, own, (groups["off"][0][1], groups[label][0][1]))
        results.append(PolicyResult(label, policy, [data for data, _ in groups[label]], gain))
    return Comparison(results, replications, notes + _told_of_copies(results))


def _told_of_copies(results: list[PolicyResult]) -> list[str]:
    """Return a warning if all replications of ``off``, and of a policy, are the same run."""
    runs = {result.label: result.latencies for result in results}
    alike = [label for label, each in runs.items() if len(each) > 1 and len({*each}) == 1]
    if "off" not in alike or alike == ["off"]:
        return []
    return [
        f"all replications of {', '.join(alike)} are the same, for nothing in them "
        "is drawn: an interval of no width says nothing of other requests; draw rows "
        "(lengths of kind empirical), or look at other parts of the trace (arrivals.window)"
    ]


def on_one_engine(
    experiment: Experiment, policies: Mapping[str, Policy]
) -> tuple[Experiment, list[str]]:
    """Return the experiment in the form that all policies can run, and notes of what was changed.

    vLLM's own schedule of k is removed, since it is a policy itself, and asynchronous scheduling if
    a policy must see each step's outcome. A pipeline has no synchronous form, so that is a
    ConfigError.
    """
    notes, proposer = [], experiment.engine.speculative_config
    own = proposer and proposer.num_speculative_tokens_per_batch_size
    if proposer and own:
        plain = proposer.model_copy(update={"num_speculative_tokens_per_batch_size": None})
        experiment = experiment.with_engine(speculative_config=plain)
        ranges = str([list(each) for each in own]).replace(" ", "")
        notes.append(
            f"vLLM's schedule of k is left out; as a policy it is schedule:ranges={ranges}"
        )
    has_stages = len(load_profile(experiment.serving.profile).stage_shares) > 1
    if has_stages and experiment.serving.engine.async_scheduling is None:
        experiment = _scheduled(experiment, is_async=True)
    is_async = experiment.serving.engine.async_scheduling
    needing = [
        label
        for label, policy in policies.items()
        if policy.needs_sync and not (is_async and has_async_form(policy))
    ]
    if not needing:
        return experiment, notes
    would_be_async = any(
        experiment.replace(f"--policies {label}", policy=policy).serving.is_async
        for label, policy in policies.items()
        if not policy.needs_sync
    )
    if has_stages:
        raise ConfigError(
            f"{', '.join(needing)}: must see each step's outcome before the next, and stages of a "
            "pipeline are simulated asynchronously; leave it out, or take a profile of one stage"
        )
    names = f"{' and '.join(needing)} need{'s' if len(needing) == 1 else ''} it"
    if would_be_async:
        notes.append(f"synchronous scheduling for all, because {names}")
    return _scheduled(experiment, is_async=False), notes


def _scheduled(experiment: Experiment, *, is_async: bool) -> Experiment:
    """Return the experiment with `is_async` scheduling where policies act: the decode pool."""
    changes, pools = {"async_scheduling": is_async}, experiment.pools
    if pools is None:
        return experiment.with_engine(**changes)
    engine = (pools.decode.engine or EngineConfig()).model_copy(update=changes)
    decode = pools.decode.model_copy(update={"engine": engine})
    return experiment.replace(pools=pools.model_copy(update={"decode": decode}))


_SIMPLE = re.compile(r"[a-z0-9_]+:[A-Za-z0-9.=_]+")
"""Labels in which only the colon becomes a dash: ``static:k=3`` is ``static-k=3``."""


def folder_name(label: str) -> str:
    """Return a folder name for the label of a policy, different for each label."""
    name = re.sub(r"[^A-Za-z0-9.=_-]+", "-", label)
    if name == label or _SIMPLE.fullmatch(label):
        return name
    return f"{name}-{sha256(label.encode()).hexdigest()[:6]}"


def _run_one(task: tuple[Experiment, Path | None]) -> tuple[dict[str, Any], TimeError | None]:
    experiment, folder = task
    keeps = folder is not None
    summary = Summary(simulate(experiment, keeps_steps=keeps, keeps_deliveries=keeps))
    if folder is not None:
        summary.save(folder)
    return summary.data, summary.time_error
