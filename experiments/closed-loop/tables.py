from collections.abc import Iterator

from readme import Row, numbers, one, read

HERE = "closed-loop"
ADAPTIVE = ("goodput", "joint", "turbospec")


def _best(cell: str) -> Row:
    """Return the row of the policy that adapts and was measured to be fastest."""
    rows = [r for r in read(f"{HERE}/gains.csv", cell=cell) if r["policy"] in ADAPTIVE]
    return min(rows, key=lambda row: float(row["measured_ms"]))


def _line(row: Row) -> list[str]:
    found = numbers(row)
    inside = found["simulated_low"] <= found["measured"] <= found["simulated_high"]
    return [
        row["cell"], row["policy"], row["over"],
        "{measured:.3f} ({measured_low:.2f} to {measured_high:.2f})".format(**found),
        "{simulated:.3f} ({simulated_low:.3f} to {simulated_high:.3f})".format(**found),
        "yes" if inside else "no",
        "{measured_ms:,.0f}".format(**found), "{simulated_ms:,.0f}".format(**found),
    ]  # fmt: skip


_HEADER = ["load", "policy", "over", "measured", "simulated", "inside", "measured, ms",
           "simulated, ms"]  # fmt: skip


def best() -> Iterator[list[str]]:
    yield _HEADER
    for cell in dict.fromkeys(row["cell"] for row in read(f"{HERE}/gains.csv")):
        yield _line(_best(cell))


def gains() -> Iterator[list[str]]:
    yield _HEADER
    for row in read(f"{HERE}/gains.csv"):
        yield _line(row)


def throughput() -> Iterator[list[str]]:
    yield ["scheduler", "tokens/s over plain vLLM's", "own time, us per step"]
    rows = read(f"{HERE}/throughput.csv")
    for name in dict.fromkeys(row["scheduler"] for row in rows):
        mine = [row for row in rows if row["scheduler"] == name]
        own = sorted(float(row["own_us_per_step"]) for row in mine)[len(mine) // 2]
        ratios = [
            float(row["tokens_per_s"])
            / float(one(rows, pair=row["pair"], scheduler="plain vLLM")["tokens_per_s"])
            for row in mine
        ]
        yield [name, f"{sorted(ratios)[len(ratios) // 2]:.3f}", f"{own:.0f}"]
