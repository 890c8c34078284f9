from collections.abc import Iterator

from readme import numbers, read


def factors() -> Iterator[list[str]]:
    ranks = [f"rank_{rank}" for rank in range(2, 6)]
    yield ["model", "head", *(f"rank {rank}" for rank in range(2, 6))]
    for row in read("draft-trees/factors.csv"):
        yield [row["model"], row["head"], *(f"{float(row[rank]):.2f}" for rank in ranks)]


def medusa() -> Iterator[list[str]]:
    yield ["model", "predicted", "measured", "error"]
    for row in map(numbers, read("draft-trees/medusa.csv")):
        yield [
            row["model"],
            f"{row['predicted']:.2f}",
            f"{row['measured']:.2f}",
            f"{row['error_percent']:+.0f} %",
        ]


def eagle() -> Iterator[list[str]]:
    yield ["tree", "confidence_concentration", "predicted", "measured", "error"]
    for row in map(numbers, read("draft-trees/eagle.csv")):
        measured = f"{row['measured']:.2f}" if row["measured"] else "–"
        error = f"{row['error_percent']:+.0f} %" if row["measured"] else "–"
        yield [
            row["tree"],
            f"{row['confidence_concentration']:g}" if "EAGLE-2" in row["tree"] else "–",
            *(f"{row['predicted']:.2f}", measured, error),
        ]
