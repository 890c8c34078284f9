from collections.abc import Iterator
from statistics import fmean

from readme import Row, read


def latencies() -> dict[str, dict[str, float]]:
    """Return the mean end-to-end latency, ms, by setting and policy."""
    found: dict[str, dict[str, float]] = {}
    for row in read("random-settings/results.csv"):
        values = [float(value) for name, value in row.items() if name.startswith("mean_e2el_ms")]
        found.setdefault(row["setting"], {})[row["policy"]] = fmean(values)
    return found


def behind(mine: dict[str, float]) -> tuple[float, float, str]:
    """Return by how many percent `joint` is behind `off`, and behind which best other."""
    others = {policy: value for policy, value in mine.items() if policy != "joint"}
    best = min(others, key=others.__getitem__)
    off, other = (100.0 * (mine["joint"] / others[policy] - 1.0) for policy in ("off", best))
    return off, other, best


def halves() -> Iterator[list[str]]:
    counts = ("behind `off` by over 1 %", "at worst", "behind the best by over 2 %", "at worst")
    yield ["half", "settings", *counts]
    known = latencies()
    for half in ("tuned on", "held back"):
        numbers = [row["setting"] for row in read("random-settings/settings.csv", half=half)]
        off, best, _ = zip(*(behind(known[number]) for number in numbers), strict=True)
        yield [
            *(half, str(len(numbers))),
            *(str(sum(value > 1.0 for value in off)), f"{max(off):.1f} %"),
            *(str(sum(value > 2.0 for value in best)), f"{max(best):.1f} %"),
        ]


def served() -> Iterator[list[str]]:
    """Say how far `joint` is behind `off` where the drafter may let go, and where it may not."""
    yield [
        *("drafter", "settings", "joint over 1 % behind `off`", "at worst"),
        *("where it reads every request", "at worst"),
    ]
    names = {"draft_model": "draft model", "eagle3": "head (EAGLE-3)", "mtp": "head (MTP)"}
    for method, name in names.items():
        rows = read("random-settings/served.csv", drafter=method)
        cells = [name, str(len(rows))]
        for column in ("joint_ms", "joint_serves_all_ms"):
            behind_off = [100.0 * (float(row[column]) / float(row["off_ms"]) - 1.0) for row in rows]
            cells += [
                str(sum(value > 1.0 for value in behind_off)), f"{max(0.0, *behind_off):.1f} %"
            ]  # fmt: skip
        yield cells


def furthest() -> Iterator[list[str]]:
    yield [
        *("setting", "half", "drafter, profile", "scheduling", "world", "alpha", "drafts take"),
        *("steps take", "load", "best", "behind it"),
    ]
    known = latencies()
    settings: list[Row] = read("random-settings/settings.csv")
    settings.sort(key=lambda row: -behind(known[row["setting"]])[1])
    for row in settings[:10]:
        _, other, best = behind(known[row["setting"]])
        alpha = f"{float(row['alpha']):.2f}"
        if row["world"] in ("drift", "switch"):
            alpha += f" to {float(row['alpha_after']):.2f}"
        yield [
            *(row["setting"], row["half"], f"{row['drafter']}, {row['profile']}"),
            *(row["scheduling"], row["world"]),
            *(alpha, f"x {row['drafting_factor']}", f"x {row['target_factor']}", row["load"]),
            *(f"`{best}`", f"{other:.1f} %"),
        ]
