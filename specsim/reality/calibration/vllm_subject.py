"""Calibration of a local vLLM: one engine per kind of speculation, recorded and replayed."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.settings import load_mapping
from specsim.hardware import GIB, ModelShape, find_gpu, load_model
from specsim.profile import Profile
from specsim.reality.calibration import (
    Calibration,
    CaseResult,
    Label,
    Load,
    Part,
    Tell,
    with_status,
    write_profile,
)
from specsim.reality.host_speed import HostSpeed
from specsim.reality.profile_fit import fit_and_test, fitted_profile, measured_steps
from specsim.reality.run_writer import add_repetition
from specsim.reality.validation import Replaced, Validation, compose, load_run, replay
from specsim.reality.vllm import VllmRun, record_runs

ORDER = (
    *("fit-low", "low", "fit-high", "high"),
    *("fit-low-2", "low-2", "fit-high-2", "high-2", "fit-low-3"),
)
"""Runs of one engine. A machine may drift, so each compared run is between two fitted runs, one of
either load."""
FITTED = tuple(name for name in ORDER if name.startswith("fit"))
COMPARED = tuple(name for name in ORDER if name not in FITTED)
DRAFT_LENS = (1, 3, 5)
_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"  # GiB
_TIMEOUT = 1800.0  # least time limit of one engine, seconds, starting and compiling included


def load_of(run: str) -> str:
    """Return the load of a run or of its repetition: ``low`` of ``low-2``."""
    return run.rstrip("-0123456789")


@dataclass(frozen=True)
class VllmSpeculation:
    """The speculation of one engine."""

    name: str  # for folders
    draft_len: int = 0
    config: Mapping[str, Any] | None = None  # vLLM's ``speculative_config``; None: no speculation

    @property
    def policy(self) -> str:
        """The policy in the form of ``specsim compare --policies``."""
        return f"static:k={self.draft_len}" if self.config else "off"

    @classmethod
    def draft_model(cls, folder: Path, draft_len: int) -> "VllmSpeculation":
        return cls._of("draft", draft_len, method="draft_model", model=str(folder.resolve()))

    @classmethod
    def ngram(cls, draft_len: int) -> "VllmSpeculation":
        lookup = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
        return cls._of("ngram", draft_len, method="ngram", **lookup)

    @classmethod
    def _of(cls, name: str, draft_len: int, **config: Any) -> "VllmSpeculation":
        config["num_speculative_tokens"] = draft_len
        return cls(f"{name}-{draft_len}", draft_len, config)


_OFF = VllmSpeculation("off")


@dataclass(frozen=True)
class VllmPlan:
    """The settings of one calibration of a local vLLM."""

    loads: tuple[Load, ...]  # those of `ORDER`: fit-low, low, fit-high, high
    prompt_lens: tuple[int, int]  # least and most, uniform; likewise `output_lens`
    output_lens: tuple[int, int]
    engine: Mapping[str, Any]  # options of ``vllm.LLM``
    environment: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 40.0  # estimated start and warm-up of an engine

    def load(self, name: str) -> Load:
        return next(load for load in self.loads if load.name == name)

    def minutes(self, num_parts: int) -> int:
        """Return the estimated minutes for `num_parts` engines; small machines take longer."""
        serving = sum(self.load(load_of(name)).seconds for name in ORDER)
        # Answers end after the last arrival, and the fits take a moment, too.
        per_part = self.start_seconds + 1.2 * serving + 10.0
        return ceil((2 * self.start_seconds + num_parts * per_part) / 60)

    def runs(
        self, folder: Path, rates: Mapping[str, float], vocab_size: int, seed: int
    ) -> list[VllmRun]:
        """Return the runs of one engine, in the order of `ORDER`, each with a folder of its own.

        Requests are made up and arrive as a Poisson process at the rate of the load; a repetition
        has the same requests as the first run.
        """
        runs = []
        for name in ORDER:
            load = self.load(load_of(name))
            rate, own_seed = rates[load.name], seed + 1 + self.loads.index(load)
            count = load.num_requests(rate)
            runs.append(self._requests(folder / name, rate, count, vocab_size, own_seed))
        return runs

    def rush(self, folder: Path, vocab_size: int, seed: int) -> VllmRun:
        """Return requests that all come at once, twice as many as are served at a time."""
        num_requests = 2 * int(self.engine["max_num_seqs"])
        return self._requests(folder, 1e6, num_requests, vocab_size, seed)

    def _requests(
        self, folder: Path, rate: float, num_requests: int, vocab_size: int, seed: int
    ) -> VllmRun:
        draw, now = random.Random(seed), 0.0
        arrivals, prompts, output_lens = [], [], []
        for _ in range(num_requests):
            now += draw.expovariate(rate)
            arrivals.append(now)
            prompt_len = draw.randint(*self.prompt_lens)
            prompts.append([draw.randrange(2, vocab_size) for _ in range(prompt_len)])
            output_lens.append(draw.randint(*self.output_lens))
        return VllmRun(folder, arrivals, prompts, output_lens)


def plan_for(device: str, *, quick: bool = False, threads: int = 1) -> VllmPlan:
    """Return the plan for a device, ``cpu`` or ``cuda``; `threads` are for a CPU."""
    fields = load_mapping(Path(__file__).with_name("vllm_plans.yaml"), ConfigError)
    plan = dict(fields[device])
    seconds = plan.pop("seconds")["quick" if quick else "full"]
    loads = tuple(Load(name, share, seconds) for name, share in fields["loads"].items())
    if device == "cpu":
        names = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
        plan["environment"] = dict.fromkeys(names, str(threads))
    return TypeAdapter(VllmPlan).validate_python({**plan, "loads": loads})


@dataclass(frozen=True)
class Replayed:
    """One run that the profile was not fitted to."""

    name: str
    validation: Validation
    at_speed: Validation  # with the machine's speed simulated, if it was probed
    slowness: float | None  # mean of the machine, relative to the fitted runs


@dataclass(frozen=True)
class VllmPart(Part):
    """One engine."""

    replays: list[Replayed]  # in the order of their measurement


@dataclass
class VllmSubject:
    """A model to calibrate on a local vLLM, with its kinds of speculation."""

    model: Path  # folder with ``config.json``
    plan: VllmPlan
    speculations: tuple[VllmSpeculation, ...]
    device: str  # ``cpu`` or ``cuda``
    stated_error: float
    seed: int = 0
    is_dummy: bool = False  # whether vLLM makes up the weights
    _folder: Path = field(default=Path(), init=False)
    _rates: Mapping[str, float] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls, model: Path, draft: Path | None, plan: VllmPlan, device: str, **others: Any
    ) -> "VllmSubject":
        """Return the subject of a model: no speculation, and a draft model or n-gram.

        Weights are made up if one of the folders, both with ``config.json``, has none. `others` are
        ``stated_error`` and ``seed``. Raises a SpecsimError if a folder has no model, or the models
        do not fit together.
        """
        shape = _checked_shape(model, "--model", plan)
        if draft is None:
            kinds = [VllmSpeculation.ngram(3)]
        else:
            vocab_size = _checked_shape(draft, "--draft-model", plan).vocab_size
            if vocab_size != shape.vocab_size:
                raise ConfigError(
                    f"--draft-model {draft}: vocab_size = {vocab_size}, but {model} has "
                    f"{shape.vocab_size}; give a draft model with the same tokens"
                )
            kinds = [VllmSpeculation.draft_model(draft, length) for length in DRAFT_LENS]
        is_dummy = not all(
            any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin", "*.pt"))
            for folder in (model, draft or model)
        )
        return cls(model, plan, (_OFF, *kinds), device, is_dummy=is_dummy, **others)

    @property
    def shape(self) -> ModelShape:
        return load_model(str(self.model / "config.json"))

    def engine_kwargs(self, speculation: VllmSpeculation) -> dict[str, Any]:
        """Return the options of ``vllm.LLM``."""
        kwargs = {"model": str(self.model.resolve()), "seed": self.seed, **self.plan.engine}
        if self.is_dummy:
            kwargs["load_format"] = "dummy"
        if speculation.config is not None:
            kwargs["speculative_config"] = dict(speculation.config)
        return kwargs

    @property
    def description(self) -> dict[str, Any]:
        return {
            "engine": "vllm",
            "model": str(self.model),
            "engine_kwargs": self.engine_kwargs(_OFF),
        }

    @property
    def loads(self) -> tuple[Load, ...]:
        return self.plan.loads

    @property
    def profiles(self) -> dict[str, str]:
        return {each.name: f"profiles/{each.name}.yaml" for each in self.speculations}

    def start(self, folder: Path, tell: Tell) -> tuple[float, dict[str, Any]]:
        self._folder = folder
        run = self.plan.rush(folder / "capacity", self.shape.vocab_size, self.seed)
        self._record(_OFF, [run])
        recorded = load_run(run.folder)
        hardware = recorded.section("hardware")
        self._gpu(hardware)  # fails early on another device
        [measured] = recorded.runs
        seconds = float(measured["ended_at"].max() - measured["arrived_at"].min())
        capacity = len(run.prompts) / seconds
        tell(f"without speculation it serves {capacity:.2f} requests/s when it is never idle")
        return capacity, {"hardware": hardware}

    def run(self, part: str, rates: dict[str, float], tell: Tell) -> None:
        tell(f"{part}: {len(ORDER)} runs")
        self._rates = rates
        self.record(self._speculation(part), self._folder / "runs" / part, rates)

    def compare(self, part: str) -> VllmPart:
        runs, profile = self._folder / "runs" / part, self._folder / self.profiles[part]
        try:
            return self.replay(self._speculation(part), runs, self._rates, profile)
        except SpecsimError:
            profile.unlink(missing_ok=True)  # no statement of its quality remains
            raise

    def findings(self, found: Calibration) -> dict[str, Any]:
        return {"left_out": found.left_out, "capacity": found.capacity, "rates": found.rates}

    def record(
        self, speculation: VllmSpeculation, folder: Path, rates: Mapping[str, float]
    ) -> None:
        """Measure all loads on one engine, into one run folder per name in `ORDER`.

        The folder of a first run also holds the requests of its repetition.
        """
        self._record(speculation, self.plan.runs(folder, rates, self.shape.vocab_size, self.seed))
        for name in COMPARED:
            if (first := load_of(name)) != name:
                add_repetition(folder / first, folder / name)

    def replay(
        self, speculation: VllmSpeculation, folder: Path, rates: Mapping[str, float], path: Path
    ) -> VllmPart:
        """Fit a profile to the runs in a folder, and replay those that are compared.

        The profile is written to `path`, as a candidate. Raises a SpecsimError if a run cannot be
        read, fitted or simulated, or nothing was drafted in one.
        """
        fitted = [folder / name for name in FITTED]
        profile = self._fitted(fitted)
        write_profile(profile, path)
        usual = HostSpeed.usual(map(HostSpeed.of_run, fitted))
        replays = [_replayed(folder / name, speculation, path, usual) for name in COMPARED]
        results = []
        for load in dict.fromkeys(load_of(name) for name in COMPARED):
            mine = [each for each in replays if load_of(each.name) == load]
            result = CaseResult.of(
                Label("recorded", self.plan.load(load), speculation.policy, rates[load]),
                [each.validation.measured for each in mine],
                [each.validation.simulated for each in mine],
                [each.slowness for each in mine if each.slowness is not None],
                [each.at_speed.simulated for each in mine],
            )
            results.append(result)
        return VllmPart(speculation.name, profile, results, replays)

    def _speculation(self, part: str) -> VllmSpeculation:
        return next(each for each in self.speculations if each.name == part)

    def _record(self, speculation: VllmSpeculation, runs: list[VllmRun]) -> None:
        arriving = sum(run.arrivals[-1] for run in runs)
        record_runs(
            runs,
            self.engine_kwargs(speculation),
            environment=self._environment(speculation),
            probes=self.device == "cpu",
            timeout_s=_TIMEOUT + 10 * arriving,
        )
        for run in runs:
            recorded = load_run(run.folder)
            ended = len(recorded.rows)
            if not recorded.meta.get("complete") or ended != len(run.prompts):
                raise ConfigError(
                    f"{run.folder}: {ended} of {len(run.prompts)} requests were recorded to their "
                    "end; look for vLLM's error and measure again"
                )

    def _environment(self, speculation: VllmSpeculation) -> dict[str, str]:
        """Return additional environment variables: on a CPU, memory for the KV blocks alone."""
        variables, engine = dict(self.plan.environment), self.plan.engine
        if self.device == "cpu" and _CACHE_VARIABLE not in variables:
            shapes = [self.shape]
            if draft := (speculation.config or {}).get("model"):
                shapes.append(load_model(str(Path(draft) / "config.json")))
            tokens = engine["num_gpu_blocks_override"] * engine["block_size"]
            taken = tokens * sum(shape.kv_bytes_per_token for shape in shapes)
            variables[_CACHE_VARIABLE] = str(ceil(taken / GIB))
        return variables

    def _gpu(self, hardware: Mapping[str, Any]) -> str:
        """Return the profile's name of the device that vLLM ran on; an error for another device."""
        found = str(hardware.get("device_name"))
        if (found == "cpu") != (self.device == "cpu"):
            other = "cpu" if found == "cpu" else "cuda"
            raise ConfigError(f"--device {self.device}: vLLM runs on {found}; say --device {other}")
        return "cpu" if found == "cpu" else find_gpu([found], "--device cuda")

    def _fitted(self, runs: Sequence[Path]) -> Profile:
        meta = load_mapping(runs[0] / "meta.json", ConfigError)
        names = ", ".join(run.name for run in runs)
        points, origin = measured_steps(
            runs,
            str(self.model / "config.json"),
            self._gpu(meta.get("hardware", {})),
            1,
            max_num_seqs=int(self.plan.engine["max_num_seqs"]),
            max_num_batched_tokens=int(self.plan.engine["max_num_batched_tokens"]),
        )
        fit = fit_and_test(points, "two_regime", 0, names, keeps_sum=True)
        profile = fitted_profile(fit, points, origin, f"specsim calibrate: {names}")
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        known = {"engine": f"vLLM {meta.get('vllm_version')}", "date": today}
        return with_status(profile, is_validated=False, stated_error=self.stated_error, **known)


def _replayed(
    folder: Path, speculation: VllmSpeculation, profile: Path, usual: float | None
) -> Replayed:
    run = load_run(folder)
    if speculation.config is not None and not any(run.accepted):
        raise ConfigError(
            f"{run.path}: vLLM drafted nothing: prompt lookup found nothing that repeats; "
            "give a --draft-model"
        )
    composed = compose(run, Replaced(profile=str(profile)))
    validation, speed = replay(run, composed), HostSpeed.of_run(folder)
    if speed is None or usual is None:
        return Replayed(folder.name, validation, validation, None)
    slow = {"incidents": speed.slowdowns(usual, run.started_at)}
    told = composed.experiment.model_copy(update=slow)
    at_speed = replay(run, replace(composed, experiment=told))
    return Replayed(folder.name, validation, at_speed, speed.mean_slowness(usual))


def _checked_shape(folder: Path, option: str, plan: VllmPlan) -> ModelShape:
    """Return the shape of the model in a folder, named by `option`, if its context is enough."""
    if not (path := folder / "config.json").is_file():
        raise ConfigError(
            f"{option} {folder}: has no config.json; give the folder of a model (weights may be "
            "missing, then vLLM makes them up)"
        )
    shape = load_model(str(path))
    if shape.max_position_embeddings < (longest := int(plan.engine["max_model_len"])):
        raise ConfigError(
            f"{path}: max_position_embeddings = {shape.max_position_embeddings} is less than the "
            f"{longest} tokens of the longest request; calibrate a model with more"
        )
    return shape
