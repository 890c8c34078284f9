"""simulate: run an experiment, and return what was recorded."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from typing import Any

import numpy as np

from specsim.core.blame import blamed, is_whole
from specsim.core.errors import CapacityError, ConfigError
from specsim.core.reading import short
from specsim.core.request import Columns, Request
from specsim.core.runner import Backend
from specsim.engine.fleet import Scaling
from specsim.engine.transfer import Offload
from specsim.profile import Profile
from specsim.results.records import EveryDelivery, ReplicaRecords
from specsim.run.cells import Kept, run_cells, why_whole
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment, check_size
from specsim.run.whole import PoolServers, PoolSystem, Whole
from specsim.workload.trace import TraceRequests


@dataclass(frozen=True)
class Run:
    """What a run recorded, with its experiment, deployment and requests.

    Two runs are equal if their experiments and the records of their replicas are; kept steps do not
    count.
    """

    experiment: Experiment
    deployment: Deployment = field(repr=False, compare=False)  # holds caches of step times
    requests: Sequence[Request] = field(repr=False, compare=False)
    replicas: list[ReplicaRecords] = field(repr=False)
    deliveries: EveryDelivery | None = field(default=None, repr=False, compare=False)
    scalings: dict[str | None, Scaling] = field(default_factory=dict, repr=False, compare=False)
    """The history of each autoscaler, by name of the pool; the key is None without pools."""
    offload: Offload | None = field(default=None, repr=False, compare=False)
    """The loads of KV blocks from host memory and disk."""
    pools: PoolSystem | None = field(default=None, repr=False, compare=False)
    """Where each request was prefilled, and how its KV entries were transferred."""


@blamed()
def simulate(
    experiment: Experiment,
    *,
    requests: Sequence[Request] | None = None,
    profile: Profile | None = None,
    believed: Profile | None = None,
    check: bool = False,
    keeps_steps: bool = True,
    keeps_deliveries: bool = False,
    on_progress: Callable[[int], None] | None = None,
    backend: Backend | None = None,
) -> Run:
    """Run an experiment to its end; a SpecsimError if it cannot be run, before anything is written.

    Args:
        requests, profile: Used in place of those of the experiment.
        believed: The profile whose step times the policy is given, in place of the true ones.
        check: Check every invariant after every step, which is some ten times slower.
        on_progress: Called at the end of each request with the number of requests that have ended.
        backend: Where to start processes for replicas that do not affect one another; None: this
            process. The results are the same.
    """
    _check_given(requests, profile, believed)
    deployment = Deployment.of(experiment.serving, profile, believed)
    pools = PoolServers.of(experiment, deployment)
    if requests is None:
        check_size(experiment)
        requests = TraceRequests(experiment.workload.build(experiment.seed))
    if not len(requests):
        raise ConfigError(
            "workload: no request arrives; raise its rate or its duration, or give num_requests"
        )
    if not isinstance(requests, TraceRequests):
        _check_each(requests)
    columns = Columns.of(requests)
    why = why_whole(experiment, deployment, requests)
    _check_indices(columns, in_order=why is not None)
    for server in (deployment, pools.prefill) if pools else (deployment,):
        _check_requests(requests, columns, server)
    kept = Kept(keeps_steps, keeps_deliveries, check)
    if why is None:
        found = run_cells(
            experiment, deployment, requests, kept, backend=backend, on_progress=on_progress
        )
        return Run(experiment, deployment, requests, *found)
    whole = Whole(experiment, deployment, pools, list(requests), kept, on_progress)
    whole.run()
    beside = (whole.scalings, whole.offload, whole.pools)
    return Run(experiment, deployment, requests, whole.records, whole.deliveries, *beside)


def _check_given(requests: Any, *profiles: object) -> None:
    """Raise a ConfigError if an argument of `simulate` has the wrong type."""
    for profile in profiles:
        if profile is not None and not isinstance(profile, Profile):
            raise ConfigError(
                f"profile = {short(profile)}: should be a Profile; load_profile(NAME) reads one"
            )
    is_list = isinstance(requests, Sequence)
    is_list = is_list and all(isinstance(each, Request) for each in islice(requests, 1))
    if requests is not None and not is_list:
        raise ConfigError(
            f"requests = {short(requests)}: should be a list of Request; "
            "list(trace.requests()) makes one of a Trace"
        )


def _check_indices(columns: Columns, *, in_order: bool) -> None:
    """Raise a ConfigError if indices repeat or, with `in_order`, are not 0 to n - 1 in order."""
    indices = columns.indices
    misplaced = np.flatnonzero(indices != np.arange(len(indices)))
    if not len(misplaced):
        return
    if in_order:
        place = int(misplaced[0])
        raise ConfigError(
            f"requests: request {place}: index = {indices[place]} must be {place}: where replicas "
            "affect one another, they are numbered from 0, in the order of the list"
        )
    values, counts = np.unique(indices, return_counts=True)
    if len(values) < len(indices):
        raise ConfigError(
            f"requests: index = {values[counts.argmax()]} is that of {counts.max()} requests, "
            "which would have the same luck and share their prompts; give each its own"
        )


def _check_each(requests: Sequence[Request]) -> None:
    """Raise a ConfigError for the first request whose fields contradict each other."""
    num_turns = Counter[int | None]()
    for place, each in enumerate(requests):
        fault = next(chain(_wrong_fields(each), _contradictions(each, num_turns)), None)
        if fault is not None:
            raise ConfigError(f"requests: request {place}: {fault}")
        num_turns[each.session] += 1


_MOST = 2**31 - 1  # the largest value in a trace file as well
_WHOLE = {
    "index": 0, "prompt_len": 1, "output_len": 1, "max_tokens": 1, "priority": -(2**31),
    "adapter": 0, "session": 0, "turn": 1, "shared_len": 0,
}  # fmt: skip
"""The smallest value of each integer field of a request."""
_OPTIONAL = ("max_tokens", "session", "shared_len")


def _wrong_fields(request: Request) -> Iterator[str]:
    for name, least in _WHOLE.items():
        value = getattr(request, name)
        if name in _OPTIONAL and value is None:
            continue
        if not is_whole(value) or not least <= value <= _MOST:
            is_large = is_whole(value) and value > least
            rule = "at most 2**31 - 1" if is_large else f"at least {least}"
            yield f"{name} = {short(value)} must be a whole number of {rule}"
    for name in ("arrived_at", "think_time"):
        time: Any = getattr(request, name)
        if not isinstance(time, float | int | np.number) or not 0 <= time < inf:
            yield f"{name} = {short(time)} must be a number of seconds, at least 0"


def _contradictions(request: Request, num_turns: Counter[int | None]) -> Iterator[str]:
    """Yield contradictions of a request; `num_turns` counts earlier turns by session."""
    for name in ("prompt", "output"):
        ids, length = (getattr(request, f"{name}_{what}") for what in ("token_ids", "len"))
        if ids is None:
            continue
        if np.ndim(ids) != 1 or np.asarray(ids).dtype.kind not in "iu":
            yield f"{name}_token_ids = {short(ids)} must be a list of whole numbers"
        elif len(ids) != length:
            yield f"{len(ids)} {name}_token_ids, but {name}_len = {length}; give as many"
    after: Any = request.after_turns or ()
    is_list = isinstance(after, Sequence) and all(map(is_whole, after))
    if not is_list or not all(1 <= turn <= num_turns[request.session] for turn in after):
        yield f"after_turns = {short(after)} must be earlier turns of its session, from 1"


def _check_requests(requests: Sequence[Request], columns: Columns, deployment: Deployment) -> None:
    adapters = columns.adapters
    if deployment.engine.lora_config is None and adapters.any():
        first = requests[int(np.flatnonzero(adapters)[0])]
        raise ConfigError(
            f"request {first.id or first.index} is for LoRA adapter {first.adapter}, which the "
            "engine does not serve; set engine.lora_config, such as {max_loras: 4}"
        )
    max_model_len = deployment.engine.max_model_len
    assert max_model_len is not None
    too_long = np.flatnonzero(columns.prompt_lens >= max_model_len)
    if len(too_long):
        request = requests[int(too_long[0])]
        raise CapacityError(
            f"request {request.id or request.index}: its prompt of {request.prompt_len} tokens "
            f"must be shorter than engine.max_model_len = {max_model_len}; raise that, "
            "shorten the prompts, or remove the request"
        )
