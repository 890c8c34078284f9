"""Record what the real vLLM scheduler does with KV entries that come from elsewhere.

Like ``record.py``, whose driver it extends, with a KV connector that only says how many tokens
another engine has and how long it takes until they are there, and, of what has ended, how long
its blocks are kept::

    python tests/parity/record_loads.py tests/parity/recorded 0 6
    python tests/parity/record_loads.py tests/parity/recorded 0 6 loras
    python tests/parity/record_loads.py tests/parity/recorded 0 6 groups
    python tests/parity/record_loads.py tests/parity/recorded 0 6 states
    python tests/parity/record_loads.py tests/parity/recorded 0 6 host
    python tests/parity/record_loads.py tests/parity/recorded 0 6 host-groups
    python tests/parity/record_loads.py tests/parity/recorded 0 6 ones
    python tests/parity/record_loads.py tests/parity/recorded 0 6 aborts
    python tests/parity/record_loads.py tests/parity/recorded 0 6 host-aborts
    python tests/parity/record_loads.py tests/parity/recorded 0 6 mixed
    python tests/parity/record_loads.py tests/parity/recorded 0 6 mixed-host

The second writes ``loads-loras-SEED``, whose requests are for LoRA adapters, too; the third
and fourth ``loads-groups-SEED`` and ``loads-states-SEED``, whose layers attend differently, or keep
a state. ``ones`` are the second with many prompts of one token, ``aborts`` and ``host-aborts`` have
clients that go away. Host memory, for vLLM 0.31 to 0.33, is vLLM's own connector and manager of its
blocks; this plays the worker that copies them: it stores at once, and what is loaded takes the
scenario's time.
The last two draw whatever ``record.py mixed`` does besides.
"""

import json
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import record
from record import LACKING, DoesNotEndError, Driver
from to_record import (
    RETENTION,
    random_adapters_scenario,
    random_group_host_scenario,
    random_group_loads_scenario,
    random_host_scenario,
    random_load_aborts_scenario,
    random_loads_scenario,
    random_mixed_host_scenario,
    random_mixed_loads_scenario,
    random_ones_scenario,
    random_state_loads_scenario,
)
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput
from vllm.v1.request import RequestStatus

if record.VERSION >= (0, 31):
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
        OffloadingWorkerMetadata,
    )
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager


class ElsewhereConnector(KVConnectorBase_V1, SupportsHMA):
    """Says what the scenario says, and does nothing."""

    driver: "LoadsDriver"

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        there = self.driver.external.get(request.request_id, 0)
        count = there - num_computed_tokens
        return (count, True) if count > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            del self.driver.external[request.request_id]  # it is read once
            self.driver.begin_load(request.request_id, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        held_ns = self.driver.scenario["loads"]["held_ns"]
        if held_ns is None or request.status == RequestStatus.FINISHED_ABORTED:  # as NIXL's
            return False, None
        self.driver.news.append((self.driver.clock + held_ns, False, request.request_id))
        return True, None

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, *args: Any) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


KVConnectorFactory.register_connector("ElsewhereConnector", __name__, "ElsewhereConnector")


def with_connector(config: VllmConfig, name: str, extra: dict[str, Any]) -> VllmConfig:
    config.kv_transfer_config = KVTransferConfig(
        kv_connector=name, kv_role="kv_both", kv_connector_extra_config=extra
    )
    return config


class LoadsDriver(Driver):
    """A driver on whose clock loads end and blocks have been read."""

    connector = "ElsewhereConnector"

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario, self.plain = scenario, record.vllm_config
        record.vllm_config = self.configured
        super().__init__(scenario)
        record.vllm_config = self.plain
        self.scheduler.connector.driver = self
        self.external = {
            row["id"]: row["external_len"] for row in self.rows if row.get("external_len")
        }
        self.news: list[tuple[int, Any, str]] = []
        self.is_stuck = False

    def configured(self, engine: dict[str, Any]) -> VllmConfig:
        return with_connector(self.plain(engine), self.connector, self.extra(self.scenario))

    def extra(self, scenario: dict[str, Any]) -> dict[str, Any]:
        return {}

    def begin_load(self, name: str, tokens: int) -> None:
        loads = self.scenario["loads"]
        time = loads["base_ns"] + loads["per_token_ns"] * tokens
        self.news.append((self.clock + time, True, name))

    def add_arrivals(self) -> None:
        before = self.next_row
        super().add_arrivals()
        now = [news for news in self.news if news[0] <= self.clock]
        self.news = [news for news in self.news if news[0] > self.clock]
        for _, what, name in sorted(now):
            self.tell(what, name)
        if now or self.next_row > before:
            self.is_stuck = False

    def tell(self, is_load: bool, name: str) -> None:
        kind = "finished_recving" if is_load else "finished_sending"
        self.scheduler._update_from_kv_xfer_finished(KVConnectorOutput(**{kind: {name}}))

    def idle(self) -> None:
        """What the core does once when nobody is left."""

    def next_event(self) -> int | None:
        """When something happens outside; None when that is all."""
        times = [news[0] for news in self.news]
        times += [
            row["abort_ns"]
            for row in self.rows[: self.next_row]
            if row.get("abort_ns", 0) > self.clock and not self.has_ended(row["id"])
        ]
        if self.next_row < len(self.rows):
            times.append(self.rows[self.next_row]["arrival_ns"])
        return min(times, default=None)

    def has_ended(self, name: str) -> bool:
        return name not in self.requests or self.requests[name].is_finished()

    def run_sync(self) -> None:
        while True:
            self.add_arrivals()
            if not self.scheduler.get_num_unfinished_requests():
                self.idle()
                if self.next_event() is None:
                    return
                self.clock = self.next_event()
                continue
            output, step, time = self.schedule()
            self.clock += time
            if not step["sched"] and not step["preempted"]:
                if self.next_event() is None:
                    raise DoesNotEndError  # whoever has loaded keeps the rest from running
                self.clock = self.next_event()
            self.update(output, step)
            if self.engine["spec"]:
                self.offer_drafts(step)

    def run_async(self) -> None:
        in_flight: deque[tuple[Any, dict[str, Any], int]] = deque()
        while True:
            self.add_arrivals()
            if self.may_schedule(in_flight) and len(in_flight) < 1 + len(self.stages):
                output, step, time = self.schedule()
                self.is_stuck = not (step["sched"] or step["preempted"])
                in_flight.append((output, step, self.end_of(step, time)))
                room = len(in_flight) < 1 + len(self.stages)
                if room and (step["sched"] or self.has_work()):
                    continue
            elif not in_flight:
                if self.next_event() is None:
                    if self.scheduler.get_num_unfinished_requests():
                        raise DoesNotEndError
                    return
                self.clock = self.next_event()
                continue
            output, step, done = in_flight.popleft()
            self.clock = max(self.clock, done)
            self.update(output, step)
            if step["sched"]:
                self.is_stuck = False

    def has_work(self) -> bool:
        return bool(self.scheduler.get_num_unfinished_requests() or self.scheduler.finished_req_ids)

    def may_schedule(self, in_flight: Iterable[tuple[Any, dict[str, Any], int]]) -> bool:
        """Schedule unless it would change nothing, as long as nothing happens.

        An empty step, too, takes a place in a pipeline.
        """
        unfinished = self.scheduler.get_num_unfinished_requests()
        fills = len(self.stages) > 1 and any(step["sched"] for _, step, _ in in_flight)
        is_stuck = self.is_stuck and not fills
        return bool((unfinished and not is_stuck) or self.scheduler.finished_req_ids)


class HostDriver(LoadsDriver):
    """A driver that plays the worker of vLLM's OffloadingConnector."""

    connector = "OffloadingConnector"

    def __init__(self, scenario: dict[str, Any]) -> None:
        super().__init__(scenario)
        inner = self.scheduler.connector.scheduler
        inner.manager = CPUOffloadingManager(scenario["loads"]["host_blocks"])
        self.in_order: list[str] = []
        build, free = inner.build_connector_meta, self.scheduler._free_request

        def build_in_order(output: Any) -> Any:
            """Go through those that have ended in that order; vLLM has a set of them."""
            names = output.finished_req_ids
            output.finished_req_ids = [name for name in self.in_order if name in names]
            found = build(output)
            output.finished_req_ids = names
            return found

        def note_end(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.in_order.append(request.request_id)
            return free(request, *args, **kwargs)

        begin = inner.update_state_after_alloc

        def note_load(request: Any, blocks: Any, tokens: int) -> None:
            if tokens:
                self.loaded[request.request_id] = tokens
            begin(request, blocks, tokens)

        self.loaded: dict[str, int] = {}
        inner.update_state_after_alloc = note_load
        inner.build_connector_meta, self.scheduler._free_request = build_in_order, note_end

    def configured(self, engine: dict[str, Any]) -> VllmConfig:
        config = super().configured(engine)
        # Its groups say that of the GPU's cache; the connector asks this.
        config.cache_config.prefix_cache_retention_interval = engine.get(RETENTION, 0)
        return config

    def extra(self, scenario: dict[str, Any]) -> dict[str, Any]:
        prompts = scenario["loads"]["offload_prompt_only"]
        return {"cpu_bytes_to_use": 1 << 30, "offload_prompt_only": prompts}

    def schedule(self) -> tuple[Any, dict[str, Any], int]:
        output, step, time = super().schedule()
        self.begin_jobs(output)
        return output, step, time

    def begin_jobs(self, output: Any) -> None:
        jobs, loads = output.kv_connector_metadata, self.scenario["loads"]
        for number, job in jobs.load_jobs.items():
            tokens = self.loaded.pop(job.req_id)
            time = loads["base_ns"] + loads["per_token_ns"] * tokens
            self.news.append((self.clock + time, number, job.req_id))
        if jobs.store_jobs:
            self.end_jobs(jobs.store_jobs)

    def end_jobs(self, numbers: Iterable[int], name: str | None = None) -> None:
        done = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(numbers, 1))
        loaded = None if name is None else {name}
        self.scheduler._update_from_kv_xfer_finished(
            KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=done)
        )

    def tell(self, number: int, name: str) -> None:
        self.end_jobs([number], name)

    def idle(self) -> None:
        if self.scheduler.finished_req_ids:
            output = self.scheduler.schedule()
            self.begin_jobs(output)
            self.scheduler.update_from_output(output, EMPTY_MODEL_RUNNER_OUTPUT)


KINDS = {
    "aborts": (lambda seed: random_load_aborts_scenario(seed, record.needs_of), LoadsDriver),
    "host-aborts": (
        lambda seed: random_load_aborts_scenario(seed, record.needs_of, has_host=True),
        HostDriver,
    ),
    "groups": (lambda seed: random_group_loads_scenario(seed, record.needs_of), LoadsDriver),
    "states": (lambda seed: random_state_loads_scenario(seed, record.needs_of), LoadsDriver),
    "loras": (random_adapters_scenario, LoadsDriver),
    "ones": (random_ones_scenario, LoadsDriver),
    "host": (random_host_scenario, HostDriver),
    "mixed": (
        lambda seed: random_mixed_loads_scenario(seed, record.needs_of, record.VERSION),
        LoadsDriver,
    ),
    "mixed-host": (
        lambda seed: random_mixed_host_scenario(seed, record.needs_of, record.VERSION),
        HostDriver,
    ),
    "host-groups": (lambda seed: random_group_host_scenario(seed, record.needs_of), HostDriver),
}


def main() -> None:
    target, *seeds = sys.argv[1:]
    drawn, driver = KINDS[seeds[2]] if seeds[2:] else (random_loads_scenario, LoadsDriver)
    if driver is HostDriver and record.VERSION < (0, 31):
        print("host memory is followed from 0.31 on")
        return
    for seed in range(*map(int, seeds[:2])):
        try:
            scenario = drawn(seed)
        except NotImplementedError as error:  # layers that 0.28 does not group
            print(f"{seeds[2]}, seed {seed}: {error}")
            continue
        if scenario is None:
            continue
        scenario["engine"] |= LACKING
        if driver is HostDriver:
            scenario["engine"]["vllm_version"] = ".".join(map(str, record.VERSION))
        path = Path(target) / f"{scenario['name']}.scenario.json"
        try:
            log = driver(scenario).log()
        except DoesNotEndError:
            print(f"{scenario['name']} does not end")
            continue
        except (AssertionError, ValueError) as error:  # of releases before 0.33, rarely
            print(f"{scenario['name']}: the scheduler fails: {error!r}")
            continue
        text = json.dumps(log, separators=(",", ":"))
        path.with_name(path.name.replace(".scenario.", ".log.")).write_text(text + "\n")
        path.write_text(json.dumps(scenario, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
