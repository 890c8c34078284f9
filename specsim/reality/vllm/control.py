"""A policy of specsim in a real engine: what it sees of each step, and what it observes.

The engine's side is `specsim.vllm`; this module needs no vLLM, so that logs of decisions can be
replayed anywhere. vLLM fixes the draft length when it schedules a step, so the policy decides as in
a simulation with asynchronous scheduling: one length for all sequences, before the outcome of the
running step is known, and without confidences.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic_core import to_json

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.settings import Settings, validated
from specsim.core.step import StepLoad
from specsim.decisions.policy import (
    DraftsTrees,
    PicksDrafter,
    PicksPrefix,
    PicksSource,
    Policy,
    ServerView,
    has_async_form,
    is_bound,
)
from specsim.policies import POLICIES
from specsim.profile import load_profile
from specsim.reality.vllm.at_work import (
    MOST_RUNNING,
    AtWork,
    Columns,
    Count,
    LearnedTimes,
    Scheduled,
)
from specsim.run.deployment import Deployment
from specsim.run.drafting import server_view
from specsim.run.experiment import Experiment

MOST = 32
"""Most events (decisions and ended steps) that are not yet written."""


class Decision(Settings):
    """A decision, and what was known of the step when it was scheduled."""

    event: Literal["decide"] = "decide"
    step: Count
    now: float
    num_running: Count
    free_slots: Count
    rows: tuple[Scheduled, ...]
    k: Count

    @property
    def columns(self) -> Columns:
        return [*chain(*zip(*self.rows, strict=True))]


class Ended(Settings):
    """The outcome of a step: its time, and the tokens that each row emitted."""

    event: Literal["observe"] = "observe"
    step: Count
    seconds: Annotated[float, Field(ge=0)]
    output_lens: tuple[Count, ...]


class DecisionLog:
    """Log of a policy in a server, one JSON line per event, in a new file.

    Lines are written for several steps at once, because after each step a model has emptied the
    caches. A kill (SIGKILL) loses at most `MOST` events; a server that is asked to end, or is idle,
    has written all. Raises an OSError if the file exists, or cannot be created.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self._file = path.open("xb", buffering=0)
        self._lines: list[tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]] = []
        self._file.write(to_json(head) + b"\n")

    def decided(self, *facts: Any) -> None:
        """Log a decision: the arguments of `AtWork.decide`, and k."""
        self._lines.append((_decision, facts))
        if len(self._lines) > MOST:  # steps in which nothing is scheduled end without a report
            self.write()

    def ended(self, step: int, seconds: float, output_lens: Sequence[int]) -> None:
        self._lines.append((_ended, (step, seconds, output_lens)))
        if len(self._lines) >= MOST:
            self.write()

    def write(self) -> None:
        """Write the logged events, all or nothing: half a line would break a replay."""
        text = b"".join([to_json(make(*facts)) + b"\n" for make, facts in self._lines])
        start = self._file.tell()
        try:
            while text:  # a full disk takes a part, and the rest is an error
                text = text[self._file.write(text) :]
        except OSError:
            self._file.seek(start)
            self._file.truncate()
            raise
        self._lines.clear()

    def close(self) -> None:
        """Write the logged events, and close the file."""
        try:
            self.write()
        finally:
            self._file.close()


def _decision(
    step: int, columns: Columns, now: float, num_running: int, free_slots: int, k: int
) -> dict[str, Any]:
    num = len(columns) // len(Scheduled._fields)
    fields = [columns[start : start + num] for start in range(0, len(columns), max(num, 1))]
    return {
        "event": "decide", "step": step, "now": now, "num_running": num_running,
        "free_slots": free_slots, "rows": list(zip(*fields, strict=True)), "k": k,
    }  # fmt: skip


def _ended(step: int, seconds: float, output_lens: Sequence[int]) -> dict[str, Any]:
    return {"event": "observe", "step": step, "seconds": seconds, "output_lens": output_lens}


def events_of(path: Path, kinds: Mapping[str, type[Settings]]) -> Iterator[tuple[int, Settings]]:
    """Return the events of a log, each with its line number.

    Args:
        kinds: Classes of the events, by name.

    Raises:
        ConfigError: The file cannot be read, is empty, or has an unknown event.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not a UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {why}; name a log of decisions") from error
    if not lines:
        raise ConfigError(f"{path}: is empty; name a file that specsim.vllm has written")
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
            event = kinds[found["event"]].model_validate(found)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = str(error).splitlines()[0]
            raise ConfigError(
                f"{path}: line {number}: is no event of a log of decisions ({why}); name a file "
                "that specsim.vllm has written"
            ) from error
        yield number, event


VARIABLE = "SPECSIM_CONTROL"
"""Environment variable with the content of "specsim" in ``--additional-config``, as JSON."""
NO_POLICY = (
    'no policy is named; add --additional-config \'{"specsim": {"policy": "goodput"}}\', or set '
    f"{VARIABLE}"
)
_SOURCE = "--additional-config specsim"
_ANY = "h100/llama-3.1-8b"


class Control(Settings):
    """Which policy decides in a vLLM server: ``--additional-config '{"specsim": {...}}'``."""

    policy: str
    """Policy as in ``specsim compare --policies``: a short form, or ``FILE.py:CLASS``."""
    profile: str | None = None
    """Profile with step times, as in `Experiment.profile`; by default they are learned while
    serving."""
    log: str | None = None
    """New file for the log of decisions, one JSON line per event; it must not exist."""


def told(additional_config: Any) -> Control | None:
    """Return the control in the config, or in `VARIABLE`; None without; a ConfigError if wrong."""
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
    """Raise a SpecsimError if policy, profile or log are wrong for any server."""
    policy = POLICIES.given(f"{_SOURCE}.policy = {control.policy}", control.policy)
    _check_policy(policy, control)
    if control.profile is not None:
        try:
            load_profile(control.profile)
        except SpecsimError as error:
            raise ConfigError(f"{_SOURCE}.profile = {control.profile}: {error}") from error
    if control.log is not None:
        _opened(control.log, 0, {}).close()
        Path(control.log).unlink()


def _check_policy(policy: Policy, control: Control) -> None:
    if (why := _refused(policy)) is not None:
        raise ConfigError(f"{_SOURCE}.policy = {control.policy}: {why}")


class Engine(Settings):
    """The description of a server when it starts."""

    method: str
    num_speculative_tokens: Annotated[int, Field(ge=1)]
    max_num_seqs: Annotated[int, Field(ge=1)]
    drafts_by_model: bool = True


class Head(Settings):
    """The first line of a log."""

    event: Literal["start"] = "start"
    control: Control
    engine: Engine
    rank: Count = 0


class Controller:
    """Asks a policy for one draft length per step, and reports outcomes to it.

    Args:
        rank: Data-parallel rank; each rank draws its own luck.

    Raises:
        ConfigError: The policy does not exist, or cannot decide under vLLM; the profile does not
            exist, or knows no drafter of this method; or the log exists.
    """

    def __init__(self, control: Control, engine: Engine, rank: int = 0) -> None:
        experiment = Experiment.parse(_experiment(control, engine), _SOURCE)
        policy = experiment.effective_policy
        _check_policy(policy, control)
        self._policy = policy
        self._learned = LearnedTimes() if control.profile is None else None
        server = self._server(experiment, engine, rank)
        if type(policy).__module__.startswith("specsim."):  # others may write to their view
            _rehearse(AtWork(policy, replace(server, rng=np.random.default_rng(0)), 1))
        self._max_draft_len = server.max_draft_len
        self._asked = AtWork(policy, server, engine.max_num_seqs, self._learned)
        self._num_steps = 0
        self._log = None
        if control.log is not None:
            head = Head(control=control, engine=engine, rank=rank).model_dump()
            self._log = _opened(control.log, rank, head)
        matters = policy.is_dynamic or policy.overrides(Policy.observe) or self._log is not None
        self.constant = None if matters else server.max_draft_len
        """The constant decision of a policy that uses nothing of a step; None for other
        policies."""

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
        self, columns: Columns, now: float, num_running: int, free_slots: int
    ) -> tuple[int, int]:
        """Return the draft length for the end of a scheduled step, and the step's number."""
        step = self._num_steps
        self._num_steps += 1
        k = self._asked.decide(step, columns, now, num_running, free_slots)
        if not 0 <= k <= self._max_draft_len:
            raise ConfigError(
                f"policy '{self._policy.kind}' asked for {k} tokens; a draft has 0 to "
                f"{self._max_draft_len}"
            )
        if self._log is not None:
            self._log.decided(step, columns, now, num_running, free_slots, k)
        return k, step

    def observe(self, step: int, k: int, seconds: float, output_lens: Sequence[int]) -> None:
        """Observe a step that has ended.

        Args:
            step: Its number.
            k: The draft length decided for it.
            seconds: Its time, drafting included.
            output_lens: Tokens that each of its sequences emitted.
        """
        if self._num_steps - step > MOST_RUNNING:
            raise ConfigError(f"more than {MOST_RUNNING} steps run at once; use a shorter pipeline")
        self._asked.observe(step, k, seconds, output_lens)
        if self._log is not None:
            self._log.ended(step, seconds, output_lens)

    def rest(self) -> None:
        """Write the log, since the server is idle."""
        if self._log is not None:
            self._log.write()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _rehearse(asked: AtWork) -> None:
    """Let a policy decide once before requests come, because loops are compiled at first use."""
    for step in range(2):  # a step is reported when the next one is decided
        k = asked.decide(step, [*Scheduled(0, 1, 1, 0, 1, 1)], 0.0, 1, 1000)
        asked.observe(step, k, 0.01, [1])


class Disagreement(NamedTuple):
    """A decision in a log that a replay does not repeat."""

    line: int
    logged: int
    replayed: int


def replay(path: Path | str) -> tuple[int, list[Disagreement]]:
    """Return the number of decisions in a log, and those that the policy does not repeat.

    Raises:
        ConfigError: The file is no such log, or its policy does not exist here.
    """
    events = events_of(Path(path), _EVENTS)
    head = next(events)[1]
    if not isinstance(head, Head):
        raise ConfigError(f"{path}: does not begin with 'start'; name a file of specsim.vllm")
    control = Controller(head.control.model_copy(update={"log": None}), head.engine, head.rank)
    differences: list[Disagreement] = []
    made: list[tuple[int, int]] = []  # k, and the number of rows
    for number, event in events:
        if (odd := _oddity(event, made, head.engine)) is not None:
            raise ConfigError(f"{path}: line {number}: {odd}; name a file as specsim.vllm wrote it")
        if isinstance(event, Decision):
            now, num_running, free_slots = event.now, event.num_running, event.free_slots
            k, _ = control.decide(event.columns, now, num_running, free_slots)
            if k != event.k:
                differences.append(Disagreement(number, event.k, k))
            made.append((event.k, len(event.rows)))
        elif isinstance(event, Ended):
            k, _ = made[event.step]
            control.observe(event.step, k, event.seconds, event.output_lens)
    return len(made), differences


def _oddity(event: Settings, made: Sequence[tuple[int, int]], engine: Engine) -> str | None:
    """Return why an event cannot follow the decisions before it; None if it can."""
    if isinstance(event, Decision):
        if event.step != len(made):
            return f"step {event.step} is decided where {len(made)} comes next"
        if len(event.rows) > engine.max_num_seqs:
            return f"{len(event.rows)} rows, but max_num_seqs is {engine.max_num_seqs}"
    elif isinstance(event, Ended):
        if event.step >= len(made):
            return f"step {event.step} has ended before it was decided"
        if len(event.output_lens) != made[event.step][1]:
            return f"outputs of {len(event.output_lens)} rows, but step {event.step} has others"
    else:
        return "a second start"
    return None


_EVENTS: dict[str, type[Settings]] = {"start": Head, "decide": Decision, "observe": Ended}


def _opened(named: str, rank: int, head: Mapping[str, Any]) -> DecisionLog:
    path = Path(f"{named}-replica-{rank}" if rank else named)
    try:
        return DecisionLog(path, head)
    except OSError as error:
        raise ConfigError(f"{_SOURCE}.log = {path}: {error.strerror}; name a new file") from error


def _experiment(control: Control, engine: Engine) -> dict[str, Any]:
    """Return an experiment with this server, whose workload is not used."""
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
        "profile": control.profile or _ANY,  # without one its times are not used
    }


def _refused(policy: Policy) -> str | None:
    """Return why a policy cannot decide under vLLM, and a remedy; None if it can."""
    if is_bound(policy):
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
