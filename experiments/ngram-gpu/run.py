"""n-gram drafts where vLLM looks them up on the host, and where on the GPU.

    SPECSIM_DATA=... python experiments/run.py ngram-gpu

Writes results.csv beside this file. The token traces are half of SpecDecode-Bench's requests; they
are never shipped.
"""

import csv
import os
from pathlib import Path

from specsim.api import Experiment, Summary, simulate

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data"))
TRACES = {"code edits": "instructcoder", "chat": "sharegpt"}
RATES = (2, 8, 24)
WAYS = (
    *(("ngram", "off"), ("ngram", "static"), ("ngram_gpu", "static")),
    *(("ngram", "goodput"), ("ngram_gpu", "goodput")),
)


def row_of(trace: str, rate: int, method: str, policy: str) -> dict[str, float]:
    path = DATA / "tokens" / f"llama31_8b_{trace}.jsonl.gz"
    changes = (
        *(f"workload.lengths.path={path}", f"workload.arrivals.rate={rate}"),
        *(f"engine.speculative_config.method={method}", f"policy={policy}"),
    )
    summary = Summary(simulate(Experiment.load(HERE / "experiment.yaml", [*changes])))
    drafts = int(summary.tables.requests["draft_tokens"].sum())
    accepted = int(summary.tables.requests["accepted_tokens"].sum())
    return {
        "draft_tokens": drafts,
        "accepted_tokens": accepted,
        "mean_tpot_ms": round(summary.data["mean_tpot_ms"], 3),
        "mean_e2el_ms": round(summary.data["mean_e2el_ms"], 1),
    }


def main() -> None:
    rows = [
        {"requests": name, "rate": rate, "method": method, "policy": policy}
        | row_of(trace, rate, method, policy)
        for name, trace in TRACES.items()
        for rate in RATES
        for method, policy in WAYS
    ]
    with (HERE / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
