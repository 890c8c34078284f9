from collections.abc import Iterator

from readme import Rows, numbers, one, read

STATIC = ("k=1", "k=3", "k=5", "k=7")


def _best(rows: Rows) -> float:
    return max(float(row["speed_up"]) for row in rows if row["config"] in STATIC)


def fixed() -> Iterator[list[str]]:
    settings = [(gpu, alpha) for gpu in ("l40s", "h100") for alpha in (0.5, 0.9)]
    heads = [(f"{gpu.upper()}, {alpha}", "best k") for gpu, alpha in settings]
    yield ["batch", *(cell for pair in heads for cell in pair)]
    for batch in (1, 8, 16, 32, 64):
        cells = []
        for gpu, alpha in settings:
            rows = read("turbospec-adaptation/fixed.csv", gpu=gpu, alpha=alpha, batch=batch)
            mine = one(rows, config="TS")
            gain, mean_k, best = (
                f"{float(mine['speed_up']):.2f}",
                float(mine["mean_k"]),
                _best(rows),
            )
            if mean_k < 0.05:  # the drafter is given up
                mark = "**" if float(mine["speed_up"]) > best else "*"
                gain = f"{mark}{gain}{mark}"
            cells += [f"{gain} ({mean_k:.1f})".replace("(0.0)", "(0)"), f"{best:.2f}"]
        yield [str(batch), *cells]


def offline() -> Iterator[list[str]]:
    yield ["", "0.5", "0.7", "0.9", "published"]
    heads = {"l40s": "L40S, 256 / 256, fitted", "h100": "H100, 1,024 / 128, fitted"}
    published = {"l40s": '"up to nearly 2" at 0.9', "h100": "1.1 to 1.5"}
    for gpu, head in heads.items():
        for host in ("fitted", "none"):
            rows = read("turbospec-adaptation/offline.csv", gpu=gpu, host=host)
            cells = []
            for alpha in ("0.5", "0.7", "0.9"):
                mine = [row for row in rows if row["alpha"] == alpha]
                cells.append(f"{_best(mine):.2f} / {float(one(mine, config='TS')['speed_up']):.2f}")
            is_fitted = host == "fitted"
            yield [
                head if is_fitted else f"{gpu.upper()}, none", *cells,
                "" if is_fitted else published[gpu],
            ]  # fmt: skip


def changes() -> Iterator[list[str]]:
    yield ["", "off", "k = 1", "k = 3", "k = 5", "TS"]
    rows = read("turbospec-adaptation/changes.csv")
    for panel in dict.fromkeys(row["panel"] for row in rows):
        mine = [row for row in rows if row["panel"] == panel]
        least = min(float(row["mean_s"]) for row in mine)
        yield [_named(panel), *(_cell(numbers(row), least) for row in mine)]


def _named(panel: str) -> str:
    text = panel.replace(":", "", 1).replace("instructcoder", "InstructCoder")
    return text.replace("sharegpt", "ShareGPT")


def _cell(row: dict[str, float], least: float) -> str:
    mean, median = (f"{row[name]:.{1 if row[name] >= 10 else 2}f}" for name in ("mean_s", "p50_s"))
    mean = f"**{mean}**" if row["mean_s"] == least else mean
    return f"{mean} / {median} / {row['p99_s']:.{0 if row['p99_s'] >= 10 else 1}f}"


def memory() -> Iterator[list[str]]:
    rows = [row for row in read("turbospec-adaptation/memory.csv") if row["batch"] != "2"]
    yield ["batch", *(row["batch"] for row in rows)]
    for label, name in (("of memory in use", "of_memory_in_use"), ("of 80 GB", "of_80_gb")):
        yield [label, *(f"{100 * float(row[name]):.1f} %" for row in rows)]
