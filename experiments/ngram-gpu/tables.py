from collections.abc import Iterator

from readme import read

WAYS = {
    "none": ("ngram", "off"),
    "host, k = 5": ("ngram", "static"),
    "GPU, k = 5": ("ngram_gpu", "static"),
    "host, goodput": ("ngram", "goodput"),
    "GPU, goodput": ("ngram_gpu", "goodput"),
}


def loads() -> Iterator[list[str]]:
    """Mean end-to-end latency, ms."""
    found = {
        (row["requests"], row["rate"], row["method"], row["policy"]): float(row["mean_e2el_ms"])
        for row in read("ngram-gpu/results.csv")
    }
    yield ["", *WAYS]
    for requests, rate in dict.fromkeys(key[:2] for key in found):
        cells = (found[requests, rate, *way] for way in WAYS.values())
        yield [f"{requests}, {rate} requests/s", *(format(each, ",.0f") for each in cells)]


def drafts() -> Iterator[list[str]]:
    """Draft tokens, and how many were accepted, with a fixed length."""
    yield ["", "drafted", "accepted"]
    for row in read("ngram-gpu/results.csv"):
        if (row["rate"], row["policy"]) == ("2", "static"):
            place = "GPU" if row["method"] == "ngram_gpu" else "host"
            counts = (format(int(row[name]), ",") for name in ("draft_tokens", "accepted_tokens"))
            yield [f"{row['requests']}, {place}", *counts]
