"""A policy of specsim in a real engine: what it is shown of each step, and what it is told of it.

The engine's side is `specsim.vllm`; here nothing of vLLM is needed, so that a log of decisions can
be replayed anywhere. vLLM settles how long the drafts of a step are when it schedules the step, so
the policy decides as in a simulation with asynchronous scheduling: one length for all sequences,
before anything is known of the running step's outcome, and nobody's confidences.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic_core import to_json

from specsim.core.errors import ConfigError
from specsim.core.settings import Settings, validated
from specsim.core.step import StepLoad
from specsim.decisions.policy import (
    DraftsTrees,
    KnowsModel,
    OraclePolicy,
    PicksDrafter,
    PicksPrefix,
    PicksSource,
    Policy,
    ServerView,
    has_async_form,
)
from specsim.policies import POLICIES
from specsim.profile import load_profile
from specsim.reality.vllm.at_work import AtWork, Emitted, Rows, Scheduled, in_rows
from specsim.reality.vllm.learned_times import LearnedTimes
from specsim.run.deployment import Deployment
from specsim.run.drafting import server_view
from specsim.run.experiment import Experiment

Count = Annotated[int, Field(ge=0)]


VARIABLE = "SPECSIM_CONTROL"
"""Environment variable for what would stand under "specsim" of ``--additional-config``, in JSON."""
_SOURCE = "--additional-config specsim"
_ANY = "h100/llama-3.1-8b"


class Control(Settings):
    """Who decides how much a vLLM server drafts: ``--additional-config '{"specsim": {...}}'``."""

    policy: str
    """As ``specsim compare --policies`` takes it: a short form, or ``FILE.py:CLASS``."""
    profile: str | None = None
    """What steps take, as `Experiment.profile`; by default that is learned while it serves."""
    log: str | None = None
    """File into which every decision is written, a JSON line per event; it must not exist."""


def told(additional_config: Any) -> Control | None:
    """Return what a server is told there, or by `VARIABLE`; None if nothing; else a ConfigError."""
    found = additional_config.get("specsim") if isinstance(additional_config, dict) else None
    text = os.environ.get(VARIABLE)
    if found is None and text:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{VARIABLE} = {text}: is not JSON ({error}); quote it") from error
    if found is None:
        return None
    with validated(_SOURCE, ConfigError):
        return Control.model_validate(found)


def check(control: Control) -> None:
    """Raise a SpecsimError for what is wrong whatever the server: policy, profile or log."""
    with validated(f"{_SOURCE}.policy", ConfigError):
        policy = POLICIES.parse(control.policy)
    _check_policy(policy, control)
    if control.profile is not None:
        load_profile(control.profile)
    if control.log is not None:
        _opened(control.log, 0).close()
        Path(control.log).unlink()


def _check_policy(policy: Policy, control: Control) -> None:
    if (why := _refused(policy)) is not None:
        raise ConfigError(f"{_SOURCE}.policy = {control.policy}: {why}")


class Engine(Settings):
    """What a server says of itself when it starts."""

    method: str
    num_speculative_tokens: Annotated[int, Field(ge=1)]
    max_num_seqs: Annotated[int, Field(ge=1)]
    drafts_by_model: bool = True


class Decision(Settings):
    """A step's events, as they are logged: what was known, and what followed from it."""

    event: Literal["decide"] = "decide"
    now: float
    num_running: Count
    free_slots: Count
    rows: tuple[Scheduled, ...]
    k: Count


class Told(Settings):
    """What a policy was told of a step that has ended."""

    event: Literal["observe"] = "observe"
    seconds: Annotated[float, Field(ge=0)]
    load: tuple[Count, Count, Count, Count]
    k: Count
    rows: tuple[Emitted, ...]


class Head(Settings):
    """First line of a log."""

    event: Literal["start"] = "start"
    control: Control
    engine: Engine
    rank: Count = 0


class Controller:
    """Asks a policy for one draft length per step, and tells it what came.

    Args:
        rank: Of a data-parallel server: each draws luck of its own.

    Raises:
        ConfigError: The policy is none, or cannot decide under vLLM; or the profile is none, or
            knows no drafter of this method; or the log exists.
    """

    def __init__(self, control: Control, engine: Engine, rank: int = 0) -> None:
        experiment = Experiment.parse(_experiment(control, engine), _SOURCE)
        policy = experiment.effective_policy
        _check_policy(policy, control)
        self._policy = policy
        self._learned = LearnedTimes() if control.profile is None else None
        server = self._server(experiment, engine, rank)
        if type(policy).__module__.startswith("specsim."):  # others may write what they are told
            _rehearse(AtWork(policy, replace(server, rng=np.random.default_rng(0)), 1))
        self._max_draft_len = server.max_draft_len
        self._asked = AtWork(policy, server, engine.max_num_seqs)
        self._log = None if control.log is None else _opened(control.log, rank)
        self._lines = b""
        self._write(Head(control=control, engine=engine, rank=rank).model_dump())
        matters = policy.is_dynamic or policy.overrides(Policy.observe) or self._log is not None
        self.constant = None if matters else server.max_draft_len
        """What it always decides, where nothing that it could be told matters; None: that does."""

    def _server(self, experiment: Experiment, engine: Engine, rank: int) -> ServerView:
        times = self._learned
        if times is None:
            known = server_view(experiment, Deployment.of(experiment), rank)
            return replace(known, has_confidences=False, drafts_alike=True)
        return ServerView(
            max_draft_len=self._policy.max_draft_len(engine.num_speculative_tokens),
            step_time=times.step_time,  # type: ignore[arg-type]  # vLLM drafts no trees
            step_times=times.step_times,
            verify_time=times.step_time(StepLoad(512, 1, 1), 0),
            pass_times=(times.draft_time(2) - times.draft_time(1),),
            drafts_by_model=engine.drafts_by_model,
            rng=np.random.default_rng(rank),
            plain_time=lambda load: times.step_time(load, 0),
            has_confidences=False,
            drafts_alike=True,
            answers=times.answers,
        )

    def decide(
        self, rows: Rows, now: float, num_running: int, free_slots: int
    ) -> tuple[int, StepLoad]:
        """Return how much to draft for every sequence at the end of a scheduled step, tokens.

        And what the step holds.
        """
        k, load = self._asked.decide(rows, now, num_running, free_slots)
        if not 0 <= k <= self._max_draft_len:
            raise ConfigError(
                f"policy '{self._policy.kind}' asked for {k} tokens; a draft has 0 to "
                f"{self._max_draft_len}"
            )
        if self._log is not None:
            event = {"event": "decide", "now": now, "num_running": num_running}
            event |= {"free_slots": free_slots, "rows": in_rows(rows, len(Scheduled._fields))}
            self._write({**event, "k": k})
        return k, load

    def observe(self, load: StepLoad, k: int, seconds: float, rows: Rows) -> None:
        """Learn from a step that has ended.

        Args:
            load: What it held.
            k: What was decided for it: so much was drafted at its end.
            seconds: What it took, drafting included.
            rows: The sequences that emitted tokens.
        """
        if self._learned is not None and seconds > 0:
            self._learned.observe(load, k, seconds)
        self._asked.observe(load, k, seconds, rows)
        if self._log is not None:
            told = {"event": "observe", "seconds": seconds, "load": load[:4], "k": k}
            self._write({**told, "rows": in_rows(rows, len(Emitted._fields))})

    def close(self) -> None:
        """Write what is left of the log."""
        if self._log is not None:
            self._log.write(self._lines)
            self._log.close()
            self._log = None

    def _write(self, event: dict[str, Any]) -> None:
        """Log an event: a decision together with the next step that ends, in one write."""
        if self._log is not None:
            self._lines += to_json(event) + b"\n"
            if event["event"] != "decide":
                self._log.write(self._lines)
                self._lines = b""


def _rehearse(asked: AtWork) -> None:
    """Let a policy decide once before anybody waits: loops are compiled where first used."""
    k, load = asked.decide([*Scheduled(0, 1, 2, False, 1, 1, 0)], 0.0, 1, 1000)
    asked.observe(load, k, 0.01, [*Emitted(0, 0, 0, 1)])


class Disagreement(NamedTuple):
    """A decision of a log that a replay does not make."""

    line: int
    logged: int
    replayed: int


def replay(path: Path | str) -> tuple[int, list[Disagreement]]:
    """Return how many decisions a log holds, and those that the same policy does not make again.

    Raises:
        ConfigError: It is no such log, or its policy is none here.
    """
    events = _events(Path(path))
    head = next(events)[1]
    if not isinstance(head, Head):
        raise ConfigError(f"{path}: does not begin with 'start'; name a file of specsim.vllm")
    control = Controller(head.control.model_copy(update={"log": None}), head.engine, head.rank)
    differences, decisions = [], 0
    for number, event in events:
        if isinstance(event, Decision):
            decisions += 1
            rows = [*chain(*event.rows)]
            k, _ = control.decide(rows, event.now, event.num_running, event.free_slots)
            if k != event.k:
                differences.append(Disagreement(number, event.k, k))
        elif isinstance(event, Told):
            rows = [*chain(*event.rows)]
            control.observe(StepLoad(*event.load), event.k, event.seconds, rows)
    return decisions, differences


_EVENTS: dict[str, type[Settings]] = {"start": Head, "decide": Decision, "observe": Told}


def _events(path: Path) -> Iterator[tuple[int, Settings]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; name a log of decisions") from error
    if not lines:
        raise ConfigError(f"{path}: is empty; name a file that specsim.vllm has written")
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
            event = _EVENTS[found["event"]].model_validate(found)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = str(error).splitlines()[0]
            raise ConfigError(
                f"{path}: line {number}: is no event of a log of decisions ({why}); name a file "
                "that specsim.vllm has written"
            ) from error
        yield number, event


def _opened(named: str, rank: int) -> Any:
    path = Path(f"{named}-replica-{rank}" if rank else named)
    try:
        return path.open("xb", buffering=0)  # a server may be killed
    except OSError as error:
        raise ConfigError(f"{_SOURCE}.log = {path}: {error.strerror}; name a new file") from error


def _experiment(control: Control, engine: Engine) -> dict[str, Any]:
    """Return an experiment with such a server; its workload is never asked for."""
    lengths = {"kind": "uniform", "prompt": [1, 2], "output": [1, 2]}
    speculation: dict[str, Any] = {
        "method": engine.method,
        "num_speculative_tokens": engine.num_speculative_tokens,
    }
    return {
        "engine": {
            "max_num_seqs": engine.max_num_seqs,
            "async_scheduling": False,
            "speculative_config": speculation,
        },
        "acceptance": {"kind": "bernoulli", "alpha": 0.7},
        "policy": control.policy,
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 1.0},
            "num_requests": 1,
            "lengths": lengths,
        },
        "profile": control.profile or _ANY,  # without one its times are never asked for
    }


def _refused(policy: Policy) -> str | None:
    """Return why a policy cannot decide under vLLM, and what to do about it; None if it can."""
    if isinstance(policy, OraclePolicy | KnowsModel):
        return "knows the future or the acceptance model, as no server can; use another"
    if isinstance(policy, DraftsTrees | PicksDrafter | PicksSource):
        return "drafts trees or has several drafters, which vLLM has not; use another"
    if isinstance(policy, PicksPrefix) and policy.picks_prefix:
        return "leaves running sequences out of steps, which vLLM does not; use another form of it"
    if policy.uses_tokens:
        return "wants to see token ids, which it is not shown here; use another"
    if not has_async_form(policy):
        return (
            "needs confidences, or the outcome of the running step, before it decides, and vLLM "
            "decides when it schedules the step; use joint, goodput, or another"
        )
    return None
