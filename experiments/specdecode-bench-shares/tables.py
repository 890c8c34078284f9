from collections.abc import Iterator

from readme import one, read


def shares() -> Iterator[list[str]]:
    yield ["B", "EAGLE, k = 5", "n-gram, k = 5"]
    rows = read("specdecode-bench-shares/results.csv", k=5)
    for size in dict.fromkeys(row["batch_size"] for row in rows):
        mine = [one(rows, batch_size=size, method=method) for method in ("eagle3", "ngram")]
        parts = [
            [100 * float(row[name]) for name in ("verification", "draft", "overhead")]
            for row in mine
        ]
        yield [size, *(" / ".join(f"{part:.1f}" for part in each) for each in parts)]
