from collections.abc import Iterator

from readme import one, read

NAMES = {
    "n-gram": "n-gram (vLLM's default)",
    "n-gram 1..6, k = 24": "n-gram 1..6, k = 24",
    "suffix, own text only": "suffix, own text only",
    "suffix": "suffix (vLLM's settings)",
    "suffix, trees, factor 4": "suffix, trees, 64 deep, factor 4",
}
BEST, NGRAM = "suffix, trees, factor 4", "n-gram"


def sql() -> Iterator[list[str]]:
    columns = ("tokens_per_step", "ms_per_token", "speed_up")
    yield ["drafter", "tokens per step", "ms per token", "speed-up", "published, AgenticSQL"]
    rows = read("agent-loop/sql.csv")
    for drafter, name in NAMES.items():
        cells = [f"{float(one(rows, drafter=drafter)[column]):.2f}" for column in columns]
        if drafter == BEST:
            yield [name, *cells[:2], f"**{cells[2]}**", "**5.3** (6.3 tokens per step)"]
        else:
            yield [name, *cells, ""]


def sessions() -> Iterator[list[str]]:
    yield ["drafter", "one worker", "one worker, tools 5 s", "16 workers", "published"]
    for drafter, name in NAMES.items():
        alone, tools, crowd = (_gain(drafter, *setting) for setting in SETTINGS)
        published = "**1.8 to 4.5** by task" if drafter == BEST else ""
        yield [name, alone, tools.partition(" ")[0], crowd, published]
    over = [_speed_up(BEST, *each) / _speed_up(NGRAM, *each) for each in SETTINGS]
    yield ["the last over vLLM's n-gram", *(f"{ratio:.2f}" for ratio in over), "1.3 to 3"]


SETTINGS = ((1, 0.0), (1, 5.0), (16, 0.0))


def _speed_up(drafter: str, workers: int, tool_s: float) -> float:
    rows = read("agent-loop/loops.csv", workers=workers, tool_s=tool_s, drafter=drafter)
    return float(rows[0]["speed_up"])


def _gain(drafter: str, workers: int, tool_s: float) -> str:
    rows = read("agent-loop/loops.csv", workers=workers, tool_s=tool_s, drafter=drafter)
    if not rows:
        return ""
    gain, least, most = (float(rows[0][name]) for name in ("speed_up", "least", "most"))
    return f"{gain:.2f} ({least:.2f} to {most:.{1 if most >= 10 else 2}f})"
