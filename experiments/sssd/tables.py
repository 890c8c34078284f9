from collections.abc import Iterator

from readme import Rows, one, read

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PUBLISHED = "**published, 46 / 1,800 / 3,400 tokens**"


def speed_ups() -> Iterator[list[str]]:
    rows = read("sssd/results.csv")
    yield ["batch", *map(str, BATCHES)]
    free = [one(rows, dataset="gsm8k", policy="free budget", batch=batch) for batch in BATCHES]
    yield ["s_q", *(row["s_q"] for row in free)]
    lens = {row["dataset"]: row["mean_prompt"] for row in rows}
    for dataset, context in lens.items():
        of = f", prompts of {context} tokens" if dataset == "gsm8k" else f", {context}"
        yield [dataset + of, *_gains(rows, dataset, "free budget")]
    yield [PUBLISHED, "2.05 to 2.61", *[""] * 5, "1.37 to 1.80"]
    for dataset in lens:
        yield [f"PIA's budget, {dataset}", *_gains(rows, dataset, "PIA's budget")]


def _gains(rows: Rows, dataset: str, policy: str) -> list[str]:
    """In brackets: memory holds fewer sequences than that, so that it is the run before."""
    mine = [one(rows, dataset=dataset, policy=policy, batch=batch) for batch in BATCHES]
    gains = [f"{float(row['speed_up']):.2f}" for row in mine]
    is_full = mine[-1]["tokens_per_step"] == mine[-2]["tokens_per_step"]
    return [*gains[:-1], f"({gains[-1]})" if is_full and dataset == "cnn" else gains[-1]]
