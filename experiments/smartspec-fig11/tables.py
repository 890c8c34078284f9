import math
from collections.abc import Iterator
from itertools import pairwise

from readme import Rows, read, script

TARGETS = {
    "7B": "Vicuna-7B, 1, Llama-160M",
    "33B": "Vicuna-33B, 4, Llama-160M",
    "70B": "Llama-2-70B, 8, TinyLlama-1.1B",
    "Mistral-7B": "Mistral-7B, 1, prompt lookup",
}
DATASETS = {
    "arena": "Arena", "sharegpt": "ShareGPT", "spider": "Spider",
    "cnn_dailymail": "CNN/DailyMail", "hagrid": "HAGRID",
}  # fmt: skip
KS = (1, 3, 5)


def panels() -> Iterator[list[str]]:
    yield [
        *("target, GPUs, drafter", "dataset", "acceptance", "lowest rate: k = 1, 3, 5", "goodput"),
        *("k = 1, 3, 5 stop paying at, requests/s", "k = 5 at worst"),
        "goodput at the highest rate",
    ]
    before = ""
    for (target, dataset), rate in script("smartspec-fig11/run").PANELS.items():
        rows = read("smartspec-fig11/results.csv", target=target, dataset=dataset)
        head = TARGETS[target] if target != before else ""
        yield [head, DATASETS[dataset], str(rate), *_shown(rows)]
        before = target


def _shown(rows: Rows) -> list[str]:
    lines = {
        name: [
            (float(row["rate"]), float(row["speed_up"])) for row in rows if row["policy"] == name
        ]
        for name in ("static:k=1", "static:k=3", "static:k=5", "goodput")
    }
    fixed = [lines[f"static:k={k}"] for k in KS]
    ends = [_crossing(line) for line in fixed]
    top, last = lines["goodput"][-1]
    return [
        ", ".join(f"{line[0][1]:.2f}" for line in fixed),
        f"{lines['goodput'][0][1]:.2f}",
        ends[0] if len(set(ends)) == 1 else ", ".join(ends),
        f"{min(gain for _, gain in fixed[-1]):.2f}",
        f"{last:.2f} ({top:g}/s)",
    ]


def _crossing(line: list[tuple[float, float]]) -> str:
    """Where the speed-up falls through 1, interpolated on its logarithm."""
    for (left, above), (right, below) in pairwise(line):
        if above > 1 >= below:
            share = math.log(above) / (math.log(above) - math.log(below))
            return f"{left + (right - left) * share:.1f}"
    return f"> {line[-1][0]:g}"
