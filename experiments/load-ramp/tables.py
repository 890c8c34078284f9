from collections.abc import Iterator

from readme import one, read

FIXED = {"off": "off", **{f"static:k={k}": f"k = {k}" for k in range(1, 6)}}


def loads() -> Iterator[list[str]]:
    ratios = ("goodput over best fixed", "goodput over off", "acceptance_target over off")
    yield ["requests/s", "best fixed", "its latency, ms", *ratios, "its throughput over off"]
    rows = read("load-ramp/loads.csv", mean_output_len=128)
    for rate in dict.fromkeys(row["rate"] for row in rows):
        mine = {row["policy"]: row for row in rows if row["rate"] == rate}
        best = min(FIXED, key=lambda name: float(mine[name]["mean_e2el_ms"]))
        goodput, blind = mine["goodput"], mine["acceptance_target"]
        over = float(blind["latency_over_off"])
        yield [
            *(rate, FIXED[best], f"{float(mine[best]['mean_e2el_ms']):,.0f}"),
            *(f"{float(goodput[name]):.3f}" for name in ("latency_over_best", "latency_over_off")),
            *(f"**{over:.3f}**" if over > 1 else f"{over:.3f}",),
            f"{float(blind['throughput_over_off']):.3f}",
        ]


def ramp() -> Iterator[list[str]]:
    yield ["requests/s", "off", "goodput", "its k", "acceptance_target", "its k"]
    rows = read("load-ramp/ramp.csv")
    for rate in dict.fromkeys(row["rate"] for row in rows):
        mine = [
            one(rows, rate=rate, policy=name) for name in ("off", "goodput", "acceptance_target")
        ]
        times = [f"{float(row['mean_e2el_ms']):,.0f}" for row in mine]
        if float(mine[2]["mean_e2el_ms"]) > 1.001 * float(mine[0]["mean_e2el_ms"]):
            times[2] = f"**{times[2]}**"
        lens = [f"{float(row['mean_k']):.1f}" for row in mine]
        yield [rate, times[0], times[1], lens[1], times[2], lens[2]]
