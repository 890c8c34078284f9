"""simulate: run an experiment, and return what was recorded."""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from simpy import Environment

from specsim.acceptance import Acceptance, Oracle
from specsim.deployment import Deployment
from specsim.draft_luck import DraftLuck
from specsim.engine.cluster import ClosedLoopClients, Cluster, replay
from specsim.engine.engine import Engine, Observer
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.sequence import Sequence
from specsim.engine.speculation import Speculation
from specsim.errors import CapacityError, InvariantError, TraceError
from specsim.experiment import Experiment
from specsim.policies import OraclePolicy, Policy, ServerView
from specsim.proposers import Proposer
from specsim.request import Request
from specsim.results.records import Recorder, ReplicaRecords
from specsim.rng import Luck, generator, stream_id
from specsim.workload.arrivals.closed_loop import ClosedLoop

__all__ = ["Run", "simulate"]

_CHUNK = 1024  # requests whose survival tables are made at once: fast, and small next to a run


@dataclass(frozen=True)
class Run:
    """What came of an experiment: its tables, and what they were recorded from."""

    experiment: Experiment
    deployment: Deployment
    requests: list[Request]
    replicas: list[ReplicaRecords]


def simulate(
    experiment: Experiment,
    *,
    requests: list[Request] | None = None,
    check: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Run an experiment to its end.

    Parameters
    ----------
    experiment : Experiment
    requests : list of Request, optional
        Run these in place of ``experiment.workload``.
    check : bool
        Check every invariant after every step; some ten times slower.
    on_progress : callable, optional
        Told the number of requests that have ended, each time one ends.

    Returns
    -------
    Run

    Raises
    ------
    SpecsimError
        The experiment cannot be run; nothing has been written.
    """
    deployment = Deployment.of(experiment)
    if requests is None:
        requests = list(experiment.workload.build(experiment.seed).requests())
    _check_requests(requests, deployment)
    if deployment.policy.uses_tokens:
        _check_tokens(requests, deployment.policy)
    drafting = _Drafting(experiment, deployment, requests)
    env = Environment()
    recorders = [Recorder(deployment.max_draft_len) for _ in range(experiment.replicas)]
    residence = _Residence(env, on_progress)

    def make_engine(number: int, on_end: Callable[[Sequence], None]) -> Engine:
        observers: list[Observer] = [IntegrityCheck()] if check else []
        return Engine(
            env,
            deployment.make_scheduler(),
            drafting.start(number),
            deployment.costs,
            observers=[*observers, recorders[number]],
            on_end=on_end,
        )

    cluster = Cluster(
        env,
        experiment.replicas,
        make_engine,
        router=experiment.routing,
        seed=experiment.seed,
        on_end=residence.end,
    )
    arrivals = experiment.workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        rng = generator(experiment.seed, "think_times")
        think_times = arrivals.think_times(rng, len(requests)).tolist()
        clients = ClosedLoopClients(env, requests, think_times, cluster.submit)
        residence.listeners.append(clients.answered)
        clients.start(arrivals.concurrency)
    else:
        env.process(replay(env, requests, cluster.submit))
    env.run()
    residence.check(len(requests), cluster.request_time)
    return Run(experiment, deployment, requests, [recorder.tables() for recorder in recorders])


class _Residence:
    """Counts what Little's law and the conservation of requests are checked against."""

    def __init__(self, env: Environment, on_progress: Callable[[int], None] | None) -> None:
        self._env = env
        self._on_progress = on_progress
        self._num_ended = 0
        self._time = 0.0
        self.listeners: list[Callable[[], None]] = []

    def end(self, sequence: Sequence) -> None:
        self._num_ended += 1
        self._time += self._env.now - sequence.arrived_at
        for listener in self.listeners:
            listener()
        if self._on_progress is not None:
            self._on_progress(self._num_ended)

    def check(self, num_requests: int, request_time: float) -> None:
        """Raise unless every request ended and L = lambda W holds as the identity that it is."""
        if self._num_ended != num_requests:
            raise InvariantError(
                f"{num_requests - self._num_ended} of {num_requests} requests never ended"
            )
        if abs(request_time - self._time) > 1e-9 * max(1.0, self._time):
            raise InvariantError(
                f"Little's law: integral of requests in the system ({request_time!r} s) != sum of "
                f"their times in it ({self._time!r} s)"
            )


def _check_requests(requests: list[Request], deployment: Deployment) -> None:
    max_model_len = deployment.engine.max_model_len
    assert max_model_len is not None
    for request in requests:
        if request.prompt_len >= max_model_len:
            raise CapacityError(
                f"request {request.id or request.index}: its prompt of {request.prompt_len} tokens "
                f"must be shorter than engine.max_model_len = {max_model_len}; raise that or "
                "remove the request"
            )


def _check_tokens(requests: list[Request], policy: Policy) -> None:
    for request in requests:
        if request.prompt_token_ids is None or request.output_token_ids is None:
            raise TraceError(
                f"policy '{policy.kind}' needs token ids, which request "
                f"{request.id or request.index} does not have; replay a token trace (see "
                "`specsim list workload.readers`) or use another policy"
            )


class _Drafting:
    """The fate of every draft of a run, settled before it begins."""

    def __init__(
        self, experiment: Experiment, deployment: Deployment, requests: list[Request]
    ) -> None:
        self._experiment = experiment
        self._deployment = deployment
        self._requests = requests
        proposer, acceptance = deployment.proposer, experiment.acceptance
        self._tables: list[bytes] = []
        self._draft_luck: DraftLuck | None = None
        self._proposer_memory: Any = None
        if proposer is None or acceptance is None:
            return
        policy, max_draft_len = deployment.policy, deployment.max_draft_len
        luck = self._luck("acceptance", proposer.method)
        for chunk in _chunks(requests):
            self._tables += acceptance.survival_lens(chunk, luck, max_draft_len)
        if policy.drafts_trees:
            self._draft_luck = self._tree_luck(acceptance, luck)
        elif policy.uses_confidences:
            self._draft_luck = self._confidence_luck(acceptance, proposer)
        self._proposer_memory = proposer.start(
            requests, self._luck("proposer", proposer.method), max_draft_len
        )

    def _luck(self, *names: str) -> Luck:
        return Luck(self._experiment.seed, stream_id(*names))

    def _tree_luck(self, acceptance: Acceptance, luck: Luck) -> DraftLuck:
        num_heads = self._experiment.num_speculative_tokens
        rates = acceptance.position_rates(num_heads)
        assert rates is not None  # the experiment has checked it
        uniforms = [
            array("d", luck.uniforms([request.index], [request.output_len + num_heads]))
            for request in self._requests
        ]
        return DraftLuck(candidate_luck=uniforms, rates=rates)

    def _confidence_luck(self, acceptance: Acceptance, proposer: Proposer) -> DraftLuck:
        luck = self._luck("confidence", proposer.method)
        accepted: list[bytes] = []
        rejected: list[bytes] = []
        for start, chunk in zip(count(0, _CHUNK), _chunks(self._requests), strict=False):
            tables = DraftLuck.confidence_tables(
                chunk,
                self._tables[start : start + _CHUNK],
                luck,
                acceptance.confidence_concentration,
                self._deployment.max_draft_len,
            )
            accepted += tables[0]
            rejected += tables[1]
        return DraftLuck(accepted=accepted, rejected=rejected)

    def start(self, replica: int) -> Speculation:
        """Return the speculation of one replica, with fresh memories."""
        experiment, deployment = self._experiment, self._deployment
        policy, slo = deployment.policy, experiment.slo
        server = ServerView(
            max_draft_len=deployment.max_draft_len,
            step_time=deployment.costs.step_time,
            step_times=deployment.costs.step_times,
            drafts_by_model=deployment.proposer is None or deployment.proposer.is_model,
            prompt_token_ids=lambda request: _token_ids(self._requests[request]),
            oracle=Oracle(self._tables) if isinstance(policy, OraclePolicy) else None,
            rng=generator(experiment.seed, "policy", str(replica)),
            tpot_slo=None if slo is None or slo.tpot_ms is None else slo.tpot_ms * 1e-3,
        )
        return Speculation(
            policy=policy,
            memory=policy.start(server),
            max_draft_len=deployment.max_draft_len,
            proposer=deployment.proposer,
            proposer_memory=self._proposer_memory,
            survival_tables=self._tables,
            luck=self._draft_luck,
        )


def _token_ids(request: Request) -> list[int]:
    assert request.prompt_token_ids is not None  # checked before the run
    ids: list[int] = request.prompt_token_ids.tolist()
    return ids


def _chunks(requests: list[Request]) -> Iterator[list[Request]]:
    for start in range(0, len(requests), _CHUNK):
        yield requests[start : start + _CHUNK]
