from collections.abc import Iterator

from readme import one, read, short

LOADS = (0.1, 0.5, 0.75, 0.9, 1.1, 1.5)


def latencies() -> Iterator[list[str]]:
    yield ["in, out", "service rate, 1/s", "at 0.1", *map(str, LOADS[1:-1]), "1.5 of it"]
    rows = read("smartspec-fig13/results.csv")
    for prompt, output in dict.fromkeys((row["prompt"], row["output"]) for row in rows):
        mine = [one(rows, prompt=prompt, output=output, load=load) for load in LOADS]
        cells = [
            f"{short(row['mean_e2el_s'])} ({float(row['over_half_as_many']):.2f})" for row in mine
        ]
        yield [f"{prompt}, {output}", short(mine[0]["service_rate"]), *cells]
