from collections.abc import Iterator
from itertools import product

from readme import one, read

RATES = (4, 12, 20, 32)


def latencies() -> Iterator[list[str]]:
    yield ["", *(f"{rate}/s" for rate in RATES)]
    rows = read("gpus-policies-loads/results.csv")
    policies = ("off", "static:k=3", "static:k=5", "goodput")
    for gpu, policy in product(("h100", "a100-80gb", "l40s"), policies):
        mine = [one(rows, gpu=gpu, policy=policy, rate=rate) for rate in RATES]
        cells = [
            f"{float(row['mean_e2el_ms']):,.0f} ({100 * float(row['within_limits']):.0f} %)"
            for row in mine
        ]
        yield [f"{gpu}, `{policy}`", *cells]
