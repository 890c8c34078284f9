from collections.abc import Iterator

from readme import read


def capacities() -> Iterator[list[str]]:
    yield ["setting", "taken", "plan says", "95 % interval", "capacity", "runs sustain", "not"]
    for row in read("plan-runs/results.csv"):
        yield [
            *(row["setting"], row["option"], row["plan"], row["interval"].replace(" - ", " – ")),
            *(row["capacity"], row["sustained"], row["not_sustained"]),
        ]
