"""Autoscalers with a target: as many replicas as keep a metric, per replica, at it."""

from collections import deque
from typing import Any, Literal, final

import numpy as np
from pydantic import Field

from specsim.autoscaling import Autoscaler, PoolView


@final
class TargetQueue(Autoscaler):
    """So many waiting requests per replica (``vllm:num_requests_waiting``, KEDA, AverageValue).

    A queue says nothing of replicas that have none: scale-in stops only where one forms again.
    """

    kind: Literal["target_queue"] = "target_queue"
    examples = ({"target": 5.0, "max_replicas": 4},)
    target: float = Field(gt=0)

    def enough(self, pool: PoolView, memory: Any) -> float:
        waiting = sum(replica.num_waiting for replica in pool.replicas) + pool.num_unrouted
        return waiting / self.target


@final
class TargetKvUse(Autoscaler):
    """Such a share of the KV blocks in use (``vllm:kv_cache_usage_perc``, HPA, mean of the pods).

    Replicas that start count with none, as HPA has it.
    """

    kind: Literal["target_kv_use"] = "target_kv_use"
    examples = ({"target": 0.6, "max_replicas": 4},)
    target: float = Field(gt=0, le=1)

    def enough(self, pool: PoolView, memory: Any) -> float:
        return sum(replica.kv_use for replica in pool.replicas) / self.target


@final
class TargetConcurrency(Autoscaler):
    """So many requests per replica, running and waiting, in the mean of a window.

    Knative's autoscaler in its stable mode, whose window is 60 s ("Configuring concurrency" and
    "stable window", knative.dev); its panic mode is left out.
    """

    kind: Literal["target_concurrency"] = "target_concurrency"
    examples = ({"target": 32.0, "max_replicas": 4},)
    target: float = Field(gt=0)
    window_s: float = Field(default=60.0, ge=0)
    """Seconds over which looks are averaged; 0 for the last one alone."""

    def start(self) -> deque[tuple[float, int]]:
        return deque()

    def enough(self, pool: PoolView, memory: deque[tuple[float, int]]) -> float:
        count = sum(replica.num_running + replica.num_waiting for replica in pool.replicas)
        memory.append((pool.now, count + pool.num_unrouted))
        while memory[0][0] < pool.now - self.window_s:
            memory.popleft()
        return sum(count for _, count in memory) / len(memory) / self.target


@final
class TargetSlo(Autoscaler):
    """Such a share of the requests within all limits of the experiment's `slo`.

    Of the requests that ended in a window, the `target` quantile of the share that each used of its
    limits should be 1: above, replicas are added in proportion, at most doubled at once; below
    `scale_in_below` one is taken away. Latencies rise steeply and late, so that what is left of a
    limit does not say how many replicas could go.
    """

    kind: Literal["target_slo"] = "target_slo"
    examples = ({"target": 0.95, "max_replicas": 4},)
    looks_at_ends = True
    target: float = Field(gt=0, lt=1)
    window_s: float = Field(default=60.0, ge=0)
    """Seconds during which requests have ended that count; 0 for those since the last look."""
    scale_in_below: float = Field(default=0.5, gt=0, lt=1)

    def start(self) -> deque[tuple[float, np.ndarray[Any, Any]]]:
        return deque()

    def enough(self, pool: PoolView, memory: deque[tuple[float, np.ndarray[Any, Any]]]) -> float:
        if len(pool.limit_use):  # in most looks of a long window nothing has ended
            memory.append((pool.now, pool.limit_use))
        while memory and memory[0][0] < pool.now - self.window_s:
            memory.popleft()
        if not memory:
            return float(pool.num_present)
        uses = np.concatenate([uses for _, uses in memory])
        use = float(np.quantile(uses, self.target))
        if use < self.scale_in_below:
            return pool.num_present - 1.0
        return pool.num_present * min(max(use, 1.0), 2.0)
