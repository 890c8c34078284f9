"""A policy of specsim in a real engine: what it is shown of each step, and what it is told of it.

The engine's side is `specsim.vllm`; here nothing of vLLM is needed, so that a log of decisions can
be replayed anywhere. vLLM settles how long the drafts of a step are when it schedules the step, so
the policy decides as in a simulation with asynchronous scheduling: one length for all sequences,
before anything is known of the running step's outcome, and nobody's confidences.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.errors import ConfigError
from specsim.core.settings import Settings, validated
from specsim.core.step import BatchView, StepLoad, StepOutcome
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


class Scheduled(NamedTuple):
    """A sequence of a step that has been scheduled; lengths in tokens."""

    number: int
    """Requests are counted as they come, and a number is not used again."""
    prompt_len: int
    known_len: int
    """Prompt and output that are known when the step is scheduled."""
    in_prefill: bool
    context_len: int
    batched_len: int
    draft_len: int
    """Drafts that the step verifies, of the batched tokens."""


class Emitted(NamedTuple):
    """What came of a sequence in a step; lengths in tokens."""

    number: int
    draft_len: int
    accepted_len: int
    output_len: int


Rows = Sequence[tuple[Any, ...]]
"""Of a step: a server makes plain tuples of so many, which takes a seventh of the time."""


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
        self._times = LearnedTimes()
        self._learns = control.profile is None
        server = self._server(experiment, engine, rank)
        self._max_draft_len = server.max_draft_len
        self._step_time = server.step_time
        self._plain_time = server.plain_time or (lambda load: server.step_time(load, 0))
        self._last_draft_time = 0.0
        self._memory = policy.start(server)
        self._log = None if control.log is None else _opened(control.log, rank)
        self._write(Head(control=control, engine=engine, rank=rank))

    def _server(self, experiment: Experiment, engine: Engine, rank: int) -> ServerView:
        if not self._learns:
            known = server_view(experiment, Deployment.of(experiment), rank)
            return replace(known, has_confidences=False, drafts_alike=True)
        times = self._times
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
        )

    def decide(
        self, rows: Rows, load: StepLoad, now: float, num_running: int, free_slots: int
    ) -> int:
        """Return how much to draft for every sequence at the end of a scheduled step, tokens.

        Args:
            rows: Its sequences, with the fields of `Scheduled`.
            load: What it holds, by `load_of`.
        """
        numbers, prompt_lens, known_lens, in_prefill, _, _, draft_lens = _columns(rows, Scheduled)
        batch = BatchView(
            numbers,
            prompt_lens,
            known_lens,
            in_prefill.astype(bool),
            load,
            now=now,
            free_slots=free_slots,
            num_running=num_running,
            draft_lens=draft_lens,
        )
        k = 0
        if rows:
            lens = np.asarray(self._policy.draft_lens(batch, self._memory))
            k = common_len(lens[~batch.in_prefill]) if lens.ndim else int(lens)
        if not 0 <= k <= self._max_draft_len:
            raise ConfigError(
                f"policy '{self._policy.kind}' asked for {k} tokens; a draft has 0 to "
                f"{self._max_draft_len}"
            )
        if self._log is not None:
            self._write(
                Decision(
                    now=now, num_running=num_running, free_slots=free_slots, rows=tuple(rows), k=k
                )
            )
        return k

    def observe(self, load: StepLoad, k: int, seconds: float, rows: Rows) -> None:
        """Learn from a step that has ended.

        Args:
            load: What it held.
            k: What was decided for it: so much was drafted at its end.
            seconds: What it took, drafting included.
            rows: The sequences that emitted tokens, with the fields of `Emitted`.
        """
        if self._learns and seconds > 0:
            self._times.observe(load, k, seconds)
        numbers, draft_lens, accepted_lens, output_lens = _columns(rows, Emitted)
        outcome = StepOutcome(numbers, draft_lens, accepted_lens, load, int(output_lens.sum()))
        target_time = seconds * self._target_share(load, k)
        outcome = outcome._replace(target_time=target_time, draft_time=self._last_draft_time)
        self._last_draft_time = seconds - target_time
        self._policy.observe(outcome, self._memory)
        if self._log is not None:
            self._write(Told(seconds=seconds, load=load[:4], k=k, rows=tuple(rows)))

    def _target_share(self, load: StepLoad, k: int) -> float:
        """Return what share of a step the target takes, as it is believed: vLLM tells the whole."""
        return min(1.0, self._plain_time(load) / self._step_time(load, k)) if k else 1.0

    def close(self) -> None:
        """Write what is left of the log."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _write(self, line: Settings) -> None:
        if self._log is not None:
            self._log.write(line.model_dump_json() + "\n")


def common_len(lens: NDArray[np.int64]) -> int:
    """Return what is nearest to one length per sequence: their mean; at least 1 if any drafts."""
    if not lens.any():
        return 0
    return max(1, (2 * int(lens.sum()) + len(lens)) // (2 * len(lens)))


def _columns(rows: Rows, kind: type[Scheduled] | type[Emitted]) -> NDArray[np.int64]:
    width = len(kind._fields)
    values = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * width)
    return values.reshape(-1, width).T


def load_of(rows: Rows) -> StepLoad:
    """Return the size of a step; its sequences have the fields of `Scheduled`."""
    contexts = batched = prefills = 0
    for _, prompt_len, _, _, context_len, batched_len, draft_len in rows:
        contexts += context_len
        batched += batched_len
        if context_len < prompt_len or batched_len > 1 + draft_len:
            prefills += batched_len
    return StepLoad(contexts, batched, len(rows), prefills)


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
            rows = event.rows
            k = control.decide(rows, load_of(rows), event.now, event.num_running, event.free_slots)
            if k != event.k:
                differences.append(Disagreement(number, event.k, k))
        elif isinstance(event, Told):
            control.observe(StepLoad(*event.load), event.k, event.seconds, event.rows)
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
        return path.open("x", encoding="utf-8", buffering=1)  # by line: a server may be killed
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
