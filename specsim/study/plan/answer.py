"""Plan: the answer, what it rests on, and the files that it is written to."""

import shlex
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from specsim.core.errors import ConfigError
from specsim.core.settings import as_yaml, load_mapping
from specsim.core.version import __version__
from specsim.results.folder import write_json
from specsim.run.experiment import Experiment
from specsim.run.summary import ROOFLINE
from specsim.study.capacity import Capacity, Found
from specsim.study.capacity.findings import lower_front
from specsim.study.capacity.probe import LoadProbe
from specsim.study.paired import SpeedUp, speed_up
from specsim.study.plan.candidates import PROFILE_FILE, Option, Question, with_replicas


@dataclass(frozen=True)
class CostPoint:
    """The target rate on so many replicas of an option."""

    name: str  # hardware and label
    replicas: int
    gpus: int
    cost: float  # per hour
    latency_ms: float  # mean, end to end
    ttft_ms: float  # 99th percentile
    tpot_ms: float  # 99th percentile
    is_sure: bool  # False of short runs


@dataclass(frozen=True)
class Plan:
    """How many GPUs of which kind, at what cost, and how sure that is."""

    question: Question
    capacity: Capacity  # of those that were searched to the end
    options: dict[str, Option]  # all that were tried, by hardware and label
    screened: dict[str, Found]  # what short runs showed of those that were not
    left_out: list[str]  # what was not searched to the end, and why

    @cached_property
    def found(self) -> dict[str, Found]:
        return {f"{each.hardware.label} {each.policy}": each for each in self.capacity.found}

    def best(self, *, is_off: bool) -> str | None:
        """Return the best option without or with speculation; None if none keeps the limits."""
        names = [name for name in self.found if self.options[name].is_off is is_off]
        names = [name for name in names if self.found[name].cost_per_hour is not None]
        return min(names, key=self._rank, default=None)

    def _rank(self, name: str) -> tuple[float, bool, float]:
        found = self.found[name]
        probe = found.at_target
        latency = 0.0 if probe is None else probe.latencies_ms["mean_e2el_ms"]
        # Of equal cost, what vLLM does by itself comes first.
        return found.cost_per_hour or 0.0, self.options[name].needs_a_policy, latency

    @cached_property
    def taken(self) -> str | None:
        """The option of least cost; of two with one cost, the faster if that is shown."""
        without, using = self.best(is_off=True), self.best(is_off=False)
        if without is None or using is None:
            return without or using
        costs = [self.found[name].cost_per_hour or 0.0 for name in (without, using)]
        if costs[0] != costs[1]:
            return using if costs[1] < costs[0] else without
        gain = self.gain
        return using if gain is not None and gain.low is not None and gain.low > 1 else without

    @cached_property
    def gain(self) -> SpeedUp | None:
        """How many times as fast the best with speculation answers at the target rate."""
        names = (self.best(is_off=True), self.best(is_off=False))
        probes = [self.found[name].at_target for name in names if name is not None]
        if len(probes) < 2 or probes[0] is None or probes[1] is None:
            return None
        # One of them may have run more often: on the same luck are the first runs of both.
        one, other = (_latencies(probe) for probe in probes if probe is not None)
        common = min(len(one), len(other))
        return speed_up(one[:common], other[:common])

    @property
    def ties(self) -> list[str]:
        """Options of another cost, which is not shown to be higher than that of the one taken."""
        leaders = [f"{each.hardware} {each.policy}" for each in self.capacity.cheapest.leaders]
        if self.taken is None or self.taken not in leaders:
            return leaders
        cost = self.found[self.taken].cost_per_hour
        return [name for name in leaders if self.found[name].cost_per_hour != cost]

    @cached_property
    def front(self) -> list[CostPoint]:
        """The points than which none is both cheaper and faster, by rising cost."""
        everything = [(name, each, True) for name, each in self.found.items()]
        everything += [(name, each, False) for name, each in self.screened.items()]
        points = [point for entry in everything for point in _points(*entry)]
        return lower_front(points, lambda point: (point.cost, point.latency_ms))

    @property
    def assumptions(self) -> list[str]:
        presets = {o.acceptance: None for o in self.options.values() if o.acceptance}
        return [self.question.traffic.note, *(f"acceptance {said}" for said in presets)]

    @property
    def warnings(self) -> list[str]:
        question = self.question
        rooflines = {o.hardware.label for o in self.options.values() if not o.hardware.is_measured}
        limit = question.command.engine.get("max_model_len")
        is_long = limit is not None and question.traffic.longest > limit
        return [
            *(f"{label}: no profile; {ROOFLINE}" for label in sorted(rooflines)),
            *([f"requests beyond --max-model-len {limit} are simulated, too"] if is_long else []),
            *question.command.notes,
            *(note for note in self.capacity.notes if ROOFLINE not in note),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values; ``capacity.json`` has what it rests on."""
        question = self.question
        return {
            "specsim_version": __version__,
            "seed": question.seed,
            "model": question.command.model,
            "traffic": question.traffic.name,
            "requests_per_second": question.rate,
            "attainment": question.attainment,
            "slo": question.slo.model_dump(exclude_none=True),
            "prices": question.prices.model_dump(),
            "taken": self._told(self.taken),
            "without_speculation": self._told(self.best(is_off=True)),
            "with_speculation": self._told(self.best(is_off=False)),
            "speed_up": self.gain and asdict(self.gain),
            "no_difference_shown_from": self.ties,
            "pareto_front": [asdict(point) for point in self.front],
            "short_runs": {name: each.rate for name, each in self.screened.items()},
            "left_out": self.left_out,
            "assumptions": self.assumptions,
            "warnings": self.warnings,
        }

    def _told(self, name: str | None) -> dict[str, Any] | None:
        if name is None:
            return None
        found, option = self.found[name], self.options[name]
        between = found.interval
        return {
            "name": name,
            "gpu": found.hardware.profile.gpu,
            "tensor_parallel_size": found.hardware.gpus_per_replica,
            "is_measured": found.hardware.is_measured,
            "speculative_config": option.speculation,
            "acceptance": option.acceptance,
            "replicas": found.replicas,
            "replicas_interval": found.replicas_interval and list(found.replicas_interval),
            "cost_per_hour": found.cost_per_hour,
            "requests_per_second_and_replica": found.rate,
            "interval": None if between is None else [between.low, between.high],
            "binds": found.binds,
            "resource": found.resource,
            "at_target": found.at_target and found.at_target.latencies_ms,
        }


def _points(name: str, found: Found, is_sure: bool) -> list[CostPoint]:
    goal, target = found.goal, found.goal.target_rate
    if found.bracket.sustained is None or target is None or found.price is None:
        return []
    points = []
    for load in goal.looked_at(found.bracket.sustained):
        probe, replicas = found.answer.at(load), round(target / load)
        if probe is None or not probe.is_sustained(goal.attainment):
            continue
        gpus, ms = replicas * found.hardware.gpus_per_replica, probe.latencies_ms
        latencies = (ms["mean_e2el_ms"], ms["p99_ttft_ms"], ms["p99_tpot_ms"])
        points.append(CostPoint(name, replicas, gpus, gpus * found.price, *latencies, is_sure))
    return points


def _latencies(probe: LoadProbe) -> list[float]:
    return [run.latencies_ms["mean_e2el_ms"] for run in probe.runs]


FILES = (
    "plan.json", "capacity.json", "capacity.parquet", "experiment.yaml", PROFILE_FILE, "serve.sh",
    "docker-compose.yaml", "kubernetes.yaml",
)  # fmt: skip

_IMAGES = {"vllm": "vllm/vllm-openai:latest", "sglang": "lmsysorg/sglang:latest"}
_PORT = 8000
_GPUS_PER_MACHINE = 8
_MARK = f"# specsim_version: {__version__}\n"
_TEXTS = load_mapping(Path(__file__).with_name("servers.yaml"), ConfigError)


def save_plan(plan: Plan, folder: Path) -> None:
    """Write all files of a plan; those of the servers only if there is an answer."""
    write_json(plan.to_dict(), folder / "plan.json")
    plan.capacity.save(folder)
    if plan.taken is None:
        return
    option, replicas = plan.options[plan.taken], plan.found[plan.taken].replicas or 1
    experiment = with_replicas(option, plan.question, replicas)
    about = f"{plan.taken}: specsim run experiment.yaml, specsim capacity experiment.yaml"
    (folder / "experiment.yaml").write_text(commented(experiment, about), encoding="utf-8")
    if not option.hardware.is_measured:
        fields = option.hardware.profile.model_dump(
            mode="json", exclude_none=True, exclude_defaults=True
        )
        _write_yaml(folder / PROFILE_FILE, [fields])
    # Of a policy that vLLM has not, the line is without it.
    size = option.hardware.gpus_per_replica
    line = plan.question.command.with_options(size, option.speculation)
    (folder / "serve.sh").write_text(_script(plan, option, line, replicas), encoding="utf-8")
    _save_servers(shlex.split(line), plan.question.command.program, option, replicas, folder)


def _save_servers(
    words: list[str], program: str, option: Option, replicas: int, folder: Path
) -> None:
    size = option.hardware.gpus_per_replica
    values = {
        "$image": _IMAGES[program],
        "$start": "args" if program == "vllm" else "command",
        "$arguments": words[2:] if words[0] == "vllm" else words,  # after the image's entry point
        "$size": size,
        "$replicas": replicas,
    }
    here = min(replicas, max(1, _GPUS_PER_MACHINE // size))
    services = {f"llm-{number}": _composed(values, number, size) for number in range(here)}
    hosts = f"one machine of {_GPUS_PER_MACHINE} GPUs: {here} of {replicas} servers"
    _write_yaml(folder / "docker-compose.yaml", [{"services": services}], hosts)
    _write_yaml(folder / "kubernetes.yaml", _filled(_TEXTS["kubernetes"], values))


def commented(experiment: Experiment, about: str) -> str:
    """Return an experiment as YAML, with a comment above each field."""
    parts = [f"{_MARK}# {about}\n"]
    fields = experiment.model_dump(
        mode="json", exclude_none=True, exclude_defaults=True, warnings=False
    )
    for name, value in fields.items():
        text = as_yaml({name: value})
        comment = _TEXTS["comments"].get(name)
        parts.append((f"# {comment}\n" if comment else "") + text)
    return "".join(parts)


def _script(plan: Plan, option: Option, line: str, replicas: int) -> str:
    gpu = option.hardware.profile.gpu
    head = (
        f"#!/bin/sh\n{_MARK}# One of {replicas} servers, on {option.hardware.gpus_per_replica} "
        f"{gpu} each, behind a router that prefers the one with the fewest open requests.\n"
    )
    if option.needs_a_policy:
        head += (
            f"# {option.label} is no policy of the server's own; for a schedule that vLLM reads:\n"
            "# specsim tune experiment.yaml --emit vllm\n"
        )
    if "YOUR-" in line:
        head += "# YOUR-...: the name of the drafter's weights.\n"
    return f"{head}exec {line}\n"


def _composed(values: dict[str, Any], number: int, size: int) -> Any:
    gpus = [str(each) for each in range(number * size, (number + 1) * size)]
    own = {"$ports": f"{_PORT + number}:{_PORT}", "$gpus": gpus}
    return _filled(_TEXTS["compose"], {**values, **own})


def _filled(part: Any, values: dict[str, Any]) -> Any:
    if isinstance(part, dict):
        return {values.get(key, key): _filled(each, values) for key, each in part.items()}
    if isinstance(part, list):
        return [_filled(each, values) for each in part]
    return values.get(part, part) if isinstance(part, str) else part


def _write_yaml(path: Path, documents: list[dict[str, Any]], about: str = "") -> None:
    text = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=1000)
    head = f"# {about}\n" if about else ""
    path.write_text(_MARK + head + text, encoding="utf-8")
