from collections.abc import Iterator

from readme import numbers, read, script

PUBLISHED = {
    5: '"when the request rate exceeds 12, proposing 5 tokens offers no performance improvements"',
    3: '"at a request rate greater than 16, proposing 3 tokens yields performance degradation"',
    1: "(not stated)",
}


def crossovers() -> Iterator[list[str]]:
    yield ["k", "crossover here, requests/s", "what the paper's text says"]
    rows = [numbers(row) for row in read("smartspec-fig1/results.csv")]
    for k, text in PUBLISHED.items():
        rate = script("smartspec-fig1/run").crossover(rows, f"static:k={k}")
        yield [str(k), f"{rate:.1f}" if rate else "none", text]
