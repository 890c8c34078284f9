from collections.abc import Iterator
from itertools import product

from readme import numbers, read, script

LABELS = ("colocated", "1p + 3d", "2p + 2d", "3p + 1d")


def sustained() -> Iterator[list[str]]:
    yield ["model, GPU", "policy", *LABELS]
    found = script("disaggregation/run")
    for model, gpu, policy in product(found.MODELS, found.GPUS, found.POLICIES):
        rows = read("disaggregation/results.csv", model=model, gpu=gpu, policy=policy)
        mine = [[numbers(row) for row in rows if row["label"] == label] for label in LABELS]
        rates = [found.sustained(each) for each in mine]
        texts = [f"**{rate:.1f}**" if rate == max(rates) else f"{rate:.1f}" for rate in rates]
        head = f"{model.replace(', TP', ' TP')}, {gpu.upper()}" if policy == "off" else ""
        yield [head, "off" if policy == "off" else "EAGLE-3", *texts]
