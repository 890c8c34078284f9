from collections.abc import Iterator

from readme import one, read

RATES = (1, 5, 10, 20, 30, 40)
POLICIES = (
    *("off", "static", "static:k=5", "static:k=2", "goodput", "turbospec"),
    *("adaptive_verification", "draft_goodput:calibrate=false", "draft_goodput", "oracle"),
)


def loads(host: str) -> Iterator[list[str]]:
    yield [f"policy, {host}", *map(str, RATES)]
    rows = read("real-tokens-serving/loads.csv", workload="mix", host=host)
    for policy in POLICIES:
        mine = [one(rows, policy=policy, rate=rate) for rate in RATES]
        cells = [
            f"{float(row['mean_e2el_ms']) / 1e3:.2f} ({float(row['mean_tpot_ms']):.1f})"
            for row in mine
        ]
        yield [f"**`{policy}`**" if policy == "draft_goodput" else f"`{policy}`", *cells]


def loads_at_4_us() -> Iterator[list[str]]:
    return loads("4 us")


def loads_at_20_us() -> Iterator[list[str]]:
    return loads("20 us")


TAUS = {
    "off": "off",
    "suffix": "suffix alone (tau = 0)",
    "EAGLE": "EAGLE alone",
    **{f"tau={tau}": f"tau = {tau}" for tau in ("0.5", "1", "1.5", "2", "3", "5", "1000")},
    "adaptive": "no tau (adaptive)",
}


def tau() -> Iterator[list[str]]:
    places = [(k, rate) for k in (3, 5) for rate in (1, 20)]
    yield ["", *(f"k = {k}, {rate}/s" for k, rate in places)]
    rows = read("real-tokens-serving/tau.csv")
    swept = [row for row in rows if row["drafter"].startswith("tau=")]
    for drafter, name in TAUS.items():
        cells = []
        for k, rate in places:
            row = one(rows, drafter=drafter, eagle_k=k, rate=rate)
            alike = [
                each for each in swept if (each["eagle_k"], each["rate"]) == (str(k), str(rate))
            ]
            least = min(float(each["mean_tpot_ms"]) for each in alike)
            text = f"{float(row['mean_tpot_ms']):.2f}"
            text = f"**{text}**" if row in alike and float(row["mean_tpot_ms"]) == least else text
            with_tokens = rate == 1 and drafter != "off"
            cells.append(text + (f" ({float(row['tokens_per_step']):.2f})" if with_tokens else ""))
        yield [name, *cells]
