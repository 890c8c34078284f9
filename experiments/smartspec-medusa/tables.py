from collections.abc import Iterator

from readme import numbers, one, read

POLICIES = ("off", "top 1", "top 2", "top 3", "goodput")


def acceptance(alpha: float, rates: tuple[float, ...]) -> Iterator[list[str]]:
    yield ["requests/s", *POLICIES]
    rows = read("smartspec-medusa/results.csv", alpha=alpha)
    for rate in rates:
        cells = [numbers(one(rows, rate=rate, policy=policy)) for policy in POLICIES]
        yield [
            str(rate),
            *(
                "{mean_e2el_ms:,.0f} / {tokens_per_step:,.0f} / ".format(**cell)
                + f"{cell['tokens_per_request']:.{1 if name == 'goodput' else 0}f}"
                for name, cell in zip(POLICIES, cells, strict=True)
            ),
        ]


def at_80_percent() -> Iterator[list[str]]:
    return acceptance(0.8, (0.5, 2, 4, 8, 12, 16, 24))


def at_60_percent() -> Iterator[list[str]]:
    return acceptance(0.6, (0.5, 4, 8, 12, 16, 24))
