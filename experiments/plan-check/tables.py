from collections.abc import Iterator

from readme import read


def options(question: str) -> Iterator[list[str]]:
    yield ["option", "searched", "requests/s", "95 % interval", "dense", "USD/h", "dense USD/h"]
    for row in read("plan-check/results.csv", question=question):
        is_whole = row["searched_to_the_end"] == "True"
        yield [
            *(row["option"], "to the end" if is_whole else "in short runs"),
            row["requests_per_second"],
            f"{row['low']} – {row['high']}" if is_whole else "short runs",
            row["dense"],
            *(f"{float(row[name]):.2f}" for name in ("usd_per_hour", "dense_usd_per_hour")),
        ]


def chat_8b() -> Iterator[list[str]]:
    return options("chat-8b")


def code_8b() -> Iterator[list[str]]:
    return options("code-8b")


def summarise_70b() -> Iterator[list[str]]:
    return options("summarise-70b")
