from collections.abc import Iterator

from readme import Row, Rows, one, read

DATASETS = ("gsm8k", "cnn", "instructcoder", "sharegpt")
POLICIES = (
    *("window_opt", "cached_step_controller", "step_controller", "q_learning", "static", "oracle"),
)
COMMON = 5
"""The limit that is the same for all."""


def best(rows: Rows, policy: str) -> Row:
    """Return the row at the limit that is best in hindsight."""
    mine = [row for row in rows if row["policy"] == policy]
    return max(mine, key=lambda row: float(row["speed_up"]))


def limits() -> Iterator[list[str]]:
    yield ["best limit", *DATASETS, "", f"limit {COMMON}", *DATASETS]
    tables = [read("on-the-fly-fig3/results.csv", dataset=dataset) for dataset in DATASETS]
    for policy in POLICIES:
        alike = [one(rows, policy=policy, limit=COMMON) for rows in tables]
        found = [best(rows, policy) for rows in tables]
        yield [policy, *map(_cell, found), "", "", *map(_cell, alike)]


def _cell(row: Row) -> str:
    share = f"{float(row['acceptance']):.2f}"
    return f"{float(row['speed_up']):.3f} / {'1' if share == '1.00' else share[1:]}"


def passages() -> Iterator[list[str]]:
    names = ("static", "step_controller", "cached_step_controller", "window_opt", "q_learning")
    shown = [name.replace("cached_step_controller", "cached") for name in names]
    yield ["mean length, tokens", *shown]
    for length in (1, 5, 20, 80, 320):
        rows = read("on-the-fly-fig3/results.csv", dataset=f"passages of {length}")
        cells = [f"{float(best(rows, name)['speed_up']):.3f}" for name in names]
        yield [f"{length} (none)" if length == 1 else str(length), *cells]
