from collections.abc import Callable, Iterator

from readme import Row, read

POLICIES = ("static:k=5", "goodput", "joint")


def worst_bin() -> Iterator[list[str]]:
    yield ["acceptance", "drafter", *(f"`{policy}`" for policy in POLICIES)]
    yield from _each(lambda before, after: [_gap(before, after)], POLICIES)


def means() -> Iterator[list[str]]:
    yield ["acceptance", "drafter", "stated", "accepted", "AUC"]
    yield from _each(_means, POLICIES[:1])


def _each(
    cells: Callable[[Row | None, Row], list[str]], policies: tuple[str, ...]
) -> Iterator[list[str]]:
    before, after = (
        {
            (row["acceptance"], row["drafter"], row["policy"]): row
            for row in read(f"confidence-reliability/{name}.csv")
        }
        for name in ("before", "results")
    )
    for acceptance, drafter in dict.fromkeys(case[:2] for case in after):
        found = [acceptance, drafter]
        for policy in policies:
            case = acceptance, drafter, policy
            found += cells(before.get(case), after[case])
        yield found


def _gap(before: Row | None, after: Row) -> str:
    if after["worst_gap"] == "nan":
        return "–"
    gap, error = (abs(float(after[name])) for name in ("worst_gap", "two_errors"))
    found = f"{gap:.3f} ± {error:.3f}"
    if before is None:
        return found
    was = "–" if before["worst_gap"] == "nan" else f"{abs(float(before['worst_gap'])):.3f}"
    return f"{was} → {found}"


def _means(before: Row | None, after: Row) -> list[str]:
    return [
        " → ".join(f"{float(row[name]):.3f}" for row in (before, after) if row is not None)
        for name in ("stated", "accepted", "auc")
    ]
