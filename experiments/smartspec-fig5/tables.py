from collections.abc import Iterator

from readme import Row, Rows, read


def closed_form() -> Iterator[list[str]]:
    yield ["verification", "context per request", "B = 1", *(str(2**n) for n in range(1, 10))]
    shown = [("one pass", n) for n in (0, 96, 1024)] + [("batch expansion", n) for n in (96, 1024)]
    for verification, context in shown:
        where = {"verification": verification, "context": context, "alpha": 0.7}
        [row] = read("smartspec-fig5/closed_form.csv", **where)
        best = [text for name, text in row.items() if name.startswith("B=")]
        yield [verification, f"{context:,}", *best]


def engine() -> Iterator[list[str]]:
    yield ["verification", "B", "off", "best fixed k", "goodput", "its mean k", "over the best"]
    rows = read("smartspec-fig5/results.csv")
    for key in dict.fromkeys((row["verification"], row["batch_size"]) for row in rows):
        mine = [row for row in rows if (row["verification"], row["batch_size"]) == key]
        yield [*key, *_shown(mine)]


def _shown(rows: Rows) -> list[str]:
    by_policy = {row["policy"]: row for row in rows}
    fixed = {"0": "off", **{str(k): f"static:k={k}" for k in range(1, 9)}}
    best = max(fixed, key=lambda k: speed(by_policy[fixed[k]]))
    goodput, most = by_policy["goodput"], speed(by_policy[fixed[best]])
    return [
        f"{speed(by_policy['off']):,.0f}",
        f"{most:,.0f} ({best})",
        f"{speed(goodput):,.0f}",
        f"{float(goodput['mean_k']):.2f}",
        f"{100 * (speed(goodput) / most - 1):+.1f} %",
    ]


def speed(row: Row) -> float:
    return float(row["tokens_per_s"])
