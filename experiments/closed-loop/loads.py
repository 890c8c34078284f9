"""What is served, by a real server and by a simulated one: loads that cross saturation."""

from random import Random
from typing import NamedTuple

POLICIES = ("off", "static:k=1", "static:k=2", "goodput", "joint", "turbospec")
STATIC = POLICIES[:3]
LONGEST = 4  # draft that a policy may ask for, tokens
PLAIN, STATIC_LONGEST = "plain vLLM", f"static:k={LONGEST}"  # of throughput.csv
KINDS = {"easy": (2, 2048), "hard": (2048, 4096)}  # words of each kind, as models.py has them
MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 320


class Cell(NamedTuple):
    """A load; the server manages some 12 requests/s of 50 tokens without speculation."""

    name: str
    rates: tuple[float, ...]  # requests/s, for as long each
    seconds: float  # of each
    before: str  # kind of the first half of the requests
    after: str
    outputs: tuple[int, int]  # tokens, least and most
    prompts: tuple[int, int] = (10, 40)


CELLS = (
    Cell("rising, easy to hard", (4, 12, 20), 1.2, "easy", "hard", (20, 80)),
    Cell("rising, hard to easy", (4, 12, 20), 1.2, "hard", "easy", (20, 80)),
    Cell("wave, easy to hard", (4, 20, 8, 4), 1.2, "easy", "hard", (20, 80)),
    Cell("falling, hard to easy", (20, 12, 4), 1.2, "hard", "easy", (20, 80)),
    Cell("rising, long answers, hard to easy", (3, 8, 14), 1.2, "hard", "easy", (60, 140)),
)
RECORDED = Cell("recorded", (4, 10, 20, 30, 2), 1.6, "easy", "hard", (20, 80))


class Asked(NamedTuple):
    """A request; times in seconds after the start, lengths in tokens."""

    at: float
    kind: str
    prompt: list[int]
    output_len: int


def requests_of(cell: Cell, repetition: int) -> list[Asked]:
    """Return the requests of a repetition: Poisson arrivals, half of them of each kind."""
    rng = Random(f"{cell.name} {repetition}")
    arrivals, start = [], 0.0
    for rate in cell.rates:
        now = start + rng.expovariate(rate)
        while now < start + cell.seconds:
            arrivals.append(now)
            now += rng.expovariate(rate)
        start += cell.seconds
    asked = []
    for number, at in enumerate(arrivals):
        kind = cell.before if number < changes_at(len(arrivals)) else cell.after
        prompt = [rng.randrange(*KINDS[kind]) for _ in range(rng.randint(*cell.prompts))]
        asked.append(Asked(at, kind, prompt, rng.randint(*cell.outputs)))
    return asked


def changes_at(num_requests: int) -> int:
    """Return the first request of the second kind."""
    return num_requests // 2
