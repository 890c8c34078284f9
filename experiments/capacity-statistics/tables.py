from collections.abc import Iterator

from readme import read

BINDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "end-to-end latency"}
RESOURCES = {"step_time": "step time"}


def answers() -> Iterator[list[str]]:
    yield [
        *("workload", "policy", "answer", "interval", "what binds", "long runs", "off by"),
        *("holds it", "settled", "CPU s"),
    ]
    for row in read("capacity-statistics/results.csv"):
        yield [
            *(row["workload"], row["policy"], row["answer"], f"{row['low']} – {row['high']}"),
            f"{BINDS[row['binds']]} ({RESOURCES.get(row['resource'], row['resource'])})",
            f"{row['long']} ({row['long_low']} – {row['long_high']})",
            f"{row['off_by_percent']} %",
            *("yes" if row[name] == "True" else "no" for name in ("covers", "settled")),
            row["cpu_seconds"],
        ]


def alarms() -> Iterator[list[str]]:
    yield ["system", "load", "first length", "second", "third"]
    rows = read("capacity-statistics/false_alarms.csv")
    for system, load in dict.fromkeys((row["system"], row["load"]) for row in rows):
        mine = [row for row in rows if (row["system"], row["load"]) == (system, load)]
        shares = (f"{100 * float(row['called_overloaded']):.1f} %" for row in mine)
        yield [system, load, *shares]
