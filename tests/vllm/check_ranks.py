"""Compare which rank a request goes to with vLLM's own balancer, in random worlds.

    PYTHONPATH=. "$SPECSIM_VLLM_PYTHON" tests/vllm/check_ranks.py

One API server, whose counts are always up to date.
"""

import random
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

from vllm.v1.engine.core_client import DPLBAsyncMPClient

from specsim.routing.simple import RankBalancer


@dataclass
class Rank:
    num_waiting: int
    num_running: int
    kv_use: float


def main() -> None:
    draw, num_same, num_apart = random.Random(0), 0, 0
    for _ in range(200):
        count = draw.choice([2, 3, 8, 16])
        router = RankBalancer()
        memory = router.start(0)
        client = SimpleNamespace(
            reqs_in_flight={}, streaming_reqs=set(), client_count=1, eng_start_index=0
        )
        client.core_engines = list(range(count))
        for number in range(50):
            most = draw.choice([0, 1, 3, 40])
            ranks = [
                Rank(draw.randint(0, most), draw.randint(0, most), draw.choice([0.2, 0.5, 0.8, 1]))
                for _ in range(count)
            ]
            client.lb_engines = [
                [each.num_waiting, each.num_running, each.kv_use] for each in ranks
            ]
            in_flight = [each.num_waiting + each.num_running for each in ranks]
            client.engine_inflight = Counter(dict(enumerate(in_flight)))
            request = SimpleNamespace(
                request_id=str(number),
                resumable=False,
                data_parallel_rank=None,
                pooling_params=None,
            )
            theirs = DPLBAsyncMPClient.get_core_engine_for_request(client, request)
            ours = router.choose(None, ranks, memory)
            num_same += ours == theirs
            num_apart += ours != theirs
    print(f"ranks: {num_same} of {num_same + num_apart} requests go where vLLM sends them")
    raise SystemExit(num_apart > 0)


if __name__ == "__main__":
    main()
