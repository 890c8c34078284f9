from collections.abc import Iterator

from readme import one, read

CHOICES = {
    "selection by: none": "no feature (the better on the probes)",
    "selection by: length": "length",
    "selection by: perplexity": "perplexity",
    "selection by: TF-IDF": "TF-IDF (3 components)",
    "selection by: length, perplexity, TF-IDF": "all three",
    "selection, alpha known": "alpha known",
    "hindsight": "best drafter and window in hindsight",
}
DATASETS = ("gsm8k", "cnn", "instructcoder", "sharegpt")
PLACES = [(dataset, 0.23) for dataset in DATASETS] + [("all four", c) for c in (0.1, 0.23, 0.4)]


def selection() -> Iterator[list[str]]:
    yield ["", *DATASETS, "all four, c = 0.1", "**c = 0.23**", "c = 0.4"]
    rows = read("on-the-fly-selection/selection.csv")
    for choice, name in CHOICES.items():
        gains = [
            float(one(rows, dataset=d, ratio=c, choice=choice)["over_better_fixed_percent"])
            for d, c in PLACES
        ]
        yield [name, *(f"{gain:+.1f}" if abs(gain) >= 0.05 else "0.0" for gain in gains)]


def windows() -> Iterator[list[str]]:
    lens = (1, 2, 3, 4, 5, 8)
    yield ["k", *map(str, lens)]
    for dataset in DATASETS:
        rows = read("on-the-fly-selection/windows.csv", dataset=dataset, drafter="eagle")
        most = max(float(row["speed_up_at_0.23"]) for row in rows)
        cells = []
        for k in lens:
            row = one(rows, window=k)
            gain = f"{float(row['speed_up_at_0.23']):.2f}"
            gain = f"**{gain}**" if float(row["speed_up_at_0.23"]) == most else gain
            cells.append(f"{float(row['tokens_per_step']):.2f} ({gain})")
        yield [dataset, *cells]
