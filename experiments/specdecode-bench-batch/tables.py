from collections.abc import Iterator

from readme import one, read

COLUMNS = ("specsim", "closed_form_same_requests", "published_all_requests")


def speed_ups() -> Iterator[list[str]]:
    yield ["B", *(cell for k in (1, 3, 5) for cell in (f"k = {k}", "", "")), "oracle"]
    yield ["", *("specsim", "their form", "published") * 3, "specsim"]
    rows = read("specdecode-bench-batch/results.csv")
    for size in dict.fromkeys(row["batch_size"] for row in rows):
        mine = [one(rows, batch_size=size, k=k) for k in (1, 3, 5)]
        cells = [
            f"{float(row[name]):.{2 if name == COLUMNS[2] else 3}f}"
            for row in mine
            for name in COLUMNS
        ]
        yield [size, *cells, f"{float(one(rows, batch_size=size, k='oracle')['specsim']):.3f}"]
