from collections.abc import Callable, Iterator

from readme import Row, one, read

POLICIES = ("static:k=5", "goodput", "joint")


def worst_bin() -> Iterator[list[str]]:
    yield ["acceptance", "drafter", *(f"`{policy}`" for policy in POLICIES)]
    yield from _each(lambda before, after: [_gap(before, after)], POLICIES)


def means() -> Iterator[list[str]]:
    yield ["acceptance", "drafter", "stated", "accepted", "AUC"]
    yield from _each(_means, POLICIES[:1])


def _each(cells: Callable[[Row, Row], list[str]], policies: tuple[str, ...]) -> Iterator[list[str]]:
    before, after = (read(f"confidence-reliability/{name}.csv") for name in ("before", "results"))
    for acceptance, drafter in dict.fromkeys((row["acceptance"], row["drafter"]) for row in after):
        found = [acceptance, drafter]
        for policy in policies:
            where = {"acceptance": acceptance, "drafter": drafter, "policy": policy}
            found += cells(one(before, **where), one(after, **where))
        yield found


def _gap(before: Row, after: Row) -> str:
    if after["worst_gap"] == "nan":
        return "–"
    was = "–" if before["worst_gap"] == "nan" else f"{abs(float(before['worst_gap'])):.3f}"
    gap, error = (abs(float(after[name])) for name in ("worst_gap", "two_errors"))
    return f"{was} → {gap:.3f} ± {error:.3f}"


def _means(before: Row, after: Row) -> list[str]:
    return [
        f"{float(before[name]):.3f} → {float(after[name]):.3f}"
        for name in ("stated", "accepted", "auc")
    ]
