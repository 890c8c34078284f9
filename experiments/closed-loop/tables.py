from collections.abc import Iterator
from statistics import median

from readme import Row, numbers, one, read

from specsim.study.paired import speed_up

HERE, PLAIN = "closed-loop", "plain vLLM"
ADAPTIVE = ("goodput", "joint", "turbospec")


def _best(cell: str) -> Row:
    """Return the row of the policy that adapts and was measured to be fastest."""
    rows = [r for r in read(f"{HERE}/gains.csv", cell=cell) if r["policy"] in ADAPTIVE]
    return min(rows, key=lambda row: float(row["measured_ms"]))


def _line(row: Row) -> list[str]:
    found = numbers(row)
    inside = found["simulated_low"] <= found["measured"] <= found["simulated_high"]
    apart = found["measured_low"] > found["simulated_high"]
    apart = apart or found["measured_high"] < found["simulated_low"]
    return [
        row["cell"], row["policy"], row["over"],
        "{measured:.3f} ({measured_low:.2f} to {measured_high:.2f})".format(**found),
        "{simulated:.3f} ({simulated_low:.3f} to {simulated_high:.3f})".format(**found),
        "yes" if inside else "no", "no" if apart else "yes",
        "{measured_ms:,.0f}".format(**found), "{simulated_ms:,.0f}".format(**found),
    ]  # fmt: skip


_HEADER = ["load", "policy", "over", "measured", "simulated", "inside", "intervals meet",
           "measured, ms", "simulated, ms"]  # fmt: skip


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
    for name in dict.fromkeys(row["scheduler"] for row in rows if row["scheduler"] != PLAIN):
        mine = [row for row in rows if row["scheduler"] == name]
        beside = [one(rows, pair=row["pair"], scheduler=PLAIN) for row in mine]
        ours, theirs = ([float(row["tokens_per_s"]) for row in each] for each in (mine, beside))
        over = speed_up(ours, theirs)
        ratio = f"{over.mean:.3f} ({over.low:.3f} to {over.high:.3f})"
        own = median(float(row["own_us_per_step"]) for row in mine)
        yield [name, ratio if name.startswith("static") else "", f"{own:.0f}"]
