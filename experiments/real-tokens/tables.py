from collections.abc import Iterator

from readme import Row, one, read

DATASETS = ("bird_sql", "swe_agent", "instructcoder", "sharegpt", "gsm8k", "cnn")
DRAFTERS = {
    "n-gram 5..5 k=5": "n-gram 5..5, k = 5 (vLLM's default)",
    "n-gram 1..6 k=5": "n-gram 1..6, k = 5 (best of the grid)",
    "n-gram 1..6 k=24": "n-gram 1..6, k = 24 (best of the grid)",
    "sssd, input only, k=8": "SSSD, input only, k = 8",
    "suffix, own text only": "suffix, own text only",
    "suffix": "suffix",
    "suffix, tree drafts": "suffix, tree drafts",
    "suffix, tree drafts, 64 deep, factor 2": "suffix, tree drafts, 64 deep, factor 2",
    "EAGLE k=3": "EAGLE as recorded, k = 3",
    "EAGLE k=5": "EAGLE as recorded, k = 5",
    "EAGLE k=8": "EAGLE as recorded, k = 8",
    "hybrid k=5 tau=1": "hybrid suffix + EAGLE k = 5, tau = 1",
    "hybrid k=5 tau=2": "the same, tau = 2",
    "hybrid k=5 tau=5": "the same, tau = 5",
    "hybrid k=5 adaptive": "the same, no tau (adaptive)",
}


def _cell(row: Row) -> str:
    return f"{float(row['tokens_per_step']):.2f} ({100 * float(row['acceptance']):.0f} %)"


def who_pays() -> Iterator[list[str]]:
    yield ["drafter", *DATASETS]
    rows = {(row["dataset"], row["drafter"]): row for row in read("real-tokens/drafters.csv")}
    for drafter, name in DRAFTERS.items():
        mine = [rows.get((dataset, drafter)) for dataset in DATASETS]
        yield [name, *(_cell(row) if row else "" for row in mine)]


def trees() -> Iterator[list[str]]:
    yield ["chains", *DATASETS]
    rows = read("real-tokens/trees.csv", drafts="chain")
    names = {"global": "global only", "local": "own text only", "both": "both"}
    for tree, name in names.items():
        mine = [one(rows, trees=tree, dataset=dataset) for dataset in DATASETS]
        yield [name, *(f"{float(row['tokens_per_step']):.2f}" for row in mine)]


GROWTH = (
    *(("bird_sql", "shuffled"), ("bird_sql", "file"), ("swe_agent", "file")),
    *(("instructcoder", "shuffled"), ("sharegpt", "shuffled")),
)


def cache() -> Iterator[list[str]]:
    yield ["cached answers", "0", "10", "50", "100", "400", "all"]
    for dataset, order in GROWTH:
        mine = read("real-tokens/cache.csv", dataset=dataset, order=order)
        by_size = {row["cached_answers"]: _cell(row) for row in mine}
        cells = [by_size.get(size, "") for size in ("0", "10", "50", "100", "400")]
        head = f"{dataset}, {'file order' if order == 'file' else order}"
        yield [head, *cells, _cell(mine[-1])]


def sssd() -> Iterator[list[str]]:
    yield ["", *DATASETS]
    kept = [_gains("halves", source) for source in ("input", "datastore", "both", "REST")]
    alone, store, both, rest = kept
    yield ["input", *(f"{gain:.2f}" for gain in alone)]
    yield ["datastore", *(f"{gain:.2f}" for gain in store)]
    yield ["both", *(f"{gain:.2f}" for gain in both)]
    shares = [b / (a + s) for a, s, b in zip(alone, store, both, strict=True)]
    yield ["both / sum", *(f"{share:.2f}" for share in shares)]
    yield ["REST", *(f"{gain:.2f}" for gain in rest)]
    every_other = [_gains("alternate", source) for source in ("datastore", "both")]
    yield ["datastore of every other answer", *(f"{gain:.2f}" for gain in every_other[0])]
    yield ["both, with that one", *(f"{gain:.2f}" for gain in every_other[1])]


def _gains(split: str, source: str) -> list[float]:
    rows = read("real-tokens/sssd.csv", split=split, drafts="chain", source=source)
    return [float(one(rows, dataset=dataset)["tokens_per_step"]) - 1 for dataset in DATASETS]


def calibration() -> Iterator[list[str]]:
    both, own = (_deciles(trees) for trees in ("both", "local"))
    yield ["stated, mean of decile", *(f"{stated:.2f}" for stated, _, _ in both)]
    yield ["accepted, both trees", *(f"{accepted:.2f}" for _, accepted, _ in both)]
    yield ["accepted, own text only", *(f"{accepted:.2f}" for _, accepted, _ in own)]
    yield ["share of draft tokens, both", *(f"{100 * share:.0f} %" for _, _, share in both)]


def _deciles(trees: str) -> list[tuple[float, float, float]]:
    """Over all datasets: stated, accepted, share of the draft tokens."""
    rows = read("real-tokens/calibration.csv", trees=trees)
    total = sum(int(row["draft_tokens"]) for row in rows)
    found = []
    for decile in dict.fromkeys(row["decile"] for row in rows):
        mine = [row for row in rows if row["decile"] == decile]
        counts = [int(row["draft_tokens"]) for row in mine]
        means = [
            sum(n * float(row[name]) for n, row in zip(counts, mine, strict=True)) / sum(counts)
            for name in ("stated", "accepted")
        ]
        found.append((means[0], means[1], sum(counts) / total))
    return found


def one_in_two() -> Iterator[list[str]]:
    yield ["draft of (tokens)", "1", "2", "3-4", "5-8", "9-16"]
    rows = read("real-tokens/one_in_two.csv", by="draft_len")
    for dataset in DATASETS:
        mine = [row for row in rows if row["dataset"] == dataset]
        yield [dataset, *(f"{float(row['accepted']):.2f}" for row in mine)]


NAMES = {
    "bird_sql": "SQL (BIRD, GPT-4)",
    "swe_agent": "agent edits (SWE-agent)",
    "instructcoder": "code edits (InstructCoder)",
    "sharegpt": "chat (ShareGPT)",
    "cnn": "summaries (CNN/DailyMail)",
    "gsm8k": "mathematics (GSM8K)",
}
COLUMNS = {
    "n-gram, vLLM's 5..5": "n-gram 5..5 k=5",
    "n-gram, 2..4": "n-gram 2..4 k=5",
    "suffix": "suffix",
    "suffix, own text only": "suffix, own text only",
    "EAGLE, k = 5": "EAGLE k=5",
    "hybrid, tau = 2": "hybrid k=5 tau=2",
}


def datasets() -> Iterator[list[str]]:
    """Of docs/how-to/real-tokens.md."""
    yield ["", *COLUMNS]
    rows = {(row["dataset"], row["drafter"]): row for row in read("real-tokens/drafters.csv")}
    for dataset, name in NAMES.items():
        mine = [rows.get((dataset, drafter)) for drafter in COLUMNS.values()]
        yield [name, *(f"{float(row['tokens_per_step']):.2f}" if row else "-" for row in mine)]
