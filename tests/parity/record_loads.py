"""Record what the real vLLM scheduler does with KV entries that come from elsewhere.

Like ``record.py``, whose driver it extends, with a KV connector that only says how many tokens
another engine has and how long it takes until they are there, and, of what has ended, how long
its blocks are kept::

    python tests/parity/record_loads.py tests/parity/recorded 0 6
    python tests/parity/record_loads.py tests/parity/recorded 0 6 loras

The second writes ``loads-loras-SEED``, whose requests are for LoRA adapters, too.
"""

import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

import record
from record import LACKING, DoesNotEndError, Driver
from to_record import random_adapters_scenario, random_loads_scenario
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.outputs import KVConnectorOutput


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
        if held_ns is None:
            return False, None
        self.driver.news.append((self.driver.clock + held_ns, False, request.request_id))
        return True, None

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, *args: Any) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


KVConnectorFactory.register_connector("ElsewhereConnector", __name__, "ElsewhereConnector")


def with_connector(config: VllmConfig) -> VllmConfig:
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="ElsewhereConnector", kv_role="kv_both"
    )
    return config


class LoadsDriver(Driver):
    """A driver on whose clock loads end and blocks have been read."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        plain = record.vllm_config
        record.vllm_config = lambda engine: with_connector(plain(engine))
        super().__init__(scenario)
        record.vllm_config = plain
        self.scheduler.connector.driver = self
        self.external = {
            row["id"]: row["external_len"] for row in self.rows if row.get("external_len")
        }
        self.news: list[tuple[int, bool, str]] = []
        self.is_stuck = False

    def begin_load(self, name: str, tokens: int) -> None:
        loads = self.scenario["loads"]
        time = loads["base_ns"] + loads["per_token_ns"] * tokens
        self.news.append((self.clock + time, True, name))

    def add_arrivals(self) -> None:
        before = self.next_row
        super().add_arrivals()
        now = [news for news in self.news if news[0] <= self.clock]
        self.news = [news for news in self.news if news[0] > self.clock]
        for _, is_load, name in sorted(now):
            kind = "finished_recving" if is_load else "finished_sending"
            self.scheduler._update_from_kv_xfer_finished(KVConnectorOutput(**{kind: {name}}))
        if now or self.next_row > before:
            self.is_stuck = False

    def next_event(self) -> int | None:
        """When something happens outside; None when that is all."""
        times = [news[0] for news in self.news]
        if self.next_row < len(self.rows):
            times.append(self.rows[self.next_row]["arrival_ns"])
        return min(times, default=None)

    def run_sync(self) -> None:
        while True:
            self.add_arrivals()
            if not self.scheduler.get_num_unfinished_requests():
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
        gpu_free_at = 0
        while True:
            self.add_arrivals()
            if self.may_schedule() and len(in_flight) < 2:
                output, step, time = self.schedule()
                self.is_stuck = not (step["sched"] or step["preempted"])
                gpu_free_at = max(self.clock, gpu_free_at) + time
                in_flight.append((output, step, gpu_free_at))
                if len(in_flight) < 2 and (step["sched"] or self.has_work()):
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

    def may_schedule(self) -> bool:
        """Schedule unless it would change nothing, as long as nothing happens."""
        unfinished = self.scheduler.get_num_unfinished_requests()
        return bool((unfinished and not self.is_stuck) or self.scheduler.finished_req_ids)


def main() -> None:
    target, *seeds = sys.argv[1:]
    drawn = random_adapters_scenario if seeds[2:] == ["loras"] else random_loads_scenario
    for seed in range(*map(int, seeds[:2])):
        scenario = drawn(seed)
        scenario["engine"] |= LACKING
        path = Path(target) / f"{scenario['name']}.scenario.json"
        try:
            log = LoadsDriver(scenario).log()
        except DoesNotEndError:
            print(f"{scenario['name']} does not end")
            continue
        text = json.dumps(log, separators=(",", ":"))
        path.with_name(path.name.replace(".scenario.", ".log.")).write_text(text + "\n")
        path.write_text(json.dumps(scenario, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
