"""Make what is committed of what measure.py wrote: runs.csv, steps.csv.gz and the folder replayed.

    python experiments/vllm-h200/keep.py OUT

OUT is the folder that measure.py was given.
"""

import argparse
import csv
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

HERE = Path(__file__).parent
COMPILED = (0.3, 600)  # no step of fewer tokens takes as many seconds, unless kernels are compiled
REPLAYED = "poisson"  # whose clients wait for nothing
STEP = ("context_tokens", "batched_tokens", "num_requests", "prefill_tokens", "draft_tokens")

Row = dict[str, Any]


def lines_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured(engine: str, out: Path) -> Any:
    """Return what the clients of an engine saw."""
    with gzip.open(out / f"{engine}.json.gz", "rt") as stream:
        return json.load(stream)


def load_of(request_id: str) -> str:
    """Return the load of a request: vLLM writes LOAD:NUMBER-LUCK."""
    return request_id.rpartition("-")[0].partition(":")[0]


def latencies(requests: list[Row]) -> Row:
    """Return what a load generator prints, milliseconds."""
    times = [np.array(each["token_times"]) for each in requests]
    sent = np.array([each["sent_at"] for each in requests])
    lens = np.array([sum(each["token_counts"]) for each in requests])
    first = np.array([each[0] for each in times]) - sent
    end = np.array([each[-1] for each in times]) - sent
    duration = float((end + sent).max() - sent.min())
    samples = {"ttft": first, "tpot": (end - first) / (lens - 1), "e2e": end}
    samples["itl"] = np.concatenate([np.diff(each) for each in times])
    row: Row = {"duration_s": round(duration, 4)}
    row["output_tok_s"] = round(float(lens.sum()) / duration, 2)
    for name, seconds in samples.items():
        values = {"mean": seconds.mean(), "p50": np.median(seconds)}
        values["p99"] = np.percentile(seconds, 99)
        row |= {f"{name}_{of}_ms": round(1e3 * float(each), 3) for of, each in values.items()}
    return row


def accepted(recorded: list[Row], k: int) -> Row:
    """Return how many drafts there were, and the share whose first, second, ... was accepted."""
    if not k:
        return {"accept_rate_per_pos": "", "num_drafts": ""}
    lens = np.array([n for each in recorded for _, d, n in each.get("accepted", []) if d == k])
    rates = [f"{(lens >= place).mean():.4f}" for place in range(1, k + 1)]
    return {"accept_rate_per_pos": ";".join(rates), "num_drafts": len(lens)}


def compiled_seconds(recorded: list[Row], steps: list[Row]) -> float:
    """Return what steps took in which vLLM still compiled kernels."""
    numbers = {each["number"] for each in recorded}
    least, tokens = COMPILED
    return sum(
        float(step["seconds"])
        for step in steps
        if step["seconds"] > least and step["batched_tokens"] < tokens
        if numbers.intersection(step["requests"])
    )


def runs_of(engine: str, out: Path) -> Iterator[Row]:
    """Yield a row of each load, in the columns that `specsim validate` reads."""
    seen = measured(engine, out)
    steps = lines_of(out / engine / "steps.jsonl")
    meta = json.loads((out / engine / "meta.json").read_text())
    recorded, asked = defaultdict(list), defaultdict(list)
    for each in lines_of(out / engine / "requests.jsonl"):
        recorded[load_of(each["request_id"])].append(each)
    for each in seen["requests"]:
        asked[each["name"].partition(":")[0]].append(each)
    options, k = meta["engine_kwargs"], len(seen["rates"])
    for load in seen["loads"][1:]:  # the first one warms the server up
        name = load["name"]
        compiled = compiled_seconds(recorded[name], steps)
        yield {
            "run_id": f"{engine}/{name}",
            "model": "Llama-3.1-8B-Instruct",
            "gpu": "H200",
            "tp": 1,
            "engine_version": meta["vllm_version"],
            "method": options.get("speculative_config", {}).get("method", "none"),
            "num_speculative_tokens": k,
            **accepted(recorded[name], k),
            "acceptance_spread": "inf" if k else "",
            "isl": "uniform {}..{}".format(*load["prompt_lens"]),
            "osl": "uniform {}..{}".format(*load["output_lens"]),
            "ignore_eos": "yes",
            "num_prompts": len(asked[name]),
            "concurrency": load["clients"] or "",
            "request_rate": load["rate"] or "",
            **{f"max_{of}": options[f"max_{of}"] for of in ("num_batched_tokens", "num_seqs")},
            "max_model_len": options["max_model_len"],
            "num_gpu_blocks": meta["kv_cache"]["num_gpu_blocks"],
            "async_scheduling": "yes" if options["async_scheduling"] else "no",
            "compiled_s": round(compiled, 3) if compiled else "",
            **latencies(asked[name]),
        }


def steps_of(engine: str, out: Path) -> Iterator[Row]:
    """Yield the steps of all loads; each belongs to the load of its first known request."""
    loads = {
        each["number"]: load_of(each["request_id"])
        for each in lines_of(out / engine / "requests.jsonl")
    }
    known = {load["name"] for load in measured(engine, out)["loads"][1:]}
    for step in lines_of(out / engine / "steps.jsonl"):
        load = next((loads[number] for number in step["requests"] if number >= 0), "")
        if load in known:
            numbers = {name: step[name] for name in STEP}
            yield {"engine": engine, "load": load, **numbers, "seconds": round(step["seconds"], 6)}


def keep_replayed(engine: str, out: Path) -> None:
    """Write the requests of one load as `specsim validate` reads a recording: all drafts, no steps.

    Models are named as profiles/ has them.
    """
    rows = [
        each
        for each in lines_of(out / engine / "requests.jsonl")
        if load_of(each["request_id"]) == REPLAYED
    ]
    rows.sort(key=lambda each: each["queued_ts"])
    folder = HERE / "replayed" / engine
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(folder / "requests.jsonl.gz", "wb", mtime=0) as packed:
        lines = (json.dumps(each | {"number": number}) for number, each in enumerate(rows))
        packed.write("".join(f"{line}\n" for line in lines).encode())
    meta = json.loads((out / engine / "meta.json").read_text())
    options = meta["engine_kwargs"]
    for part in (options, options.get("speculative_config", {})):
        if "model" in part:
            part["model"] = Path(part["model"]).name
    meta = {name: value for name, value in meta.items() if name != "recorder"}
    meta |= {"num_requests": len(rows), "complete": True}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def write(stream: TextIO, rows: list[Row]) -> None:
    with stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Write all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    engines = sorted(path.name.partition(".")[0] for path in out.glob("*.json.gz"))
    runs = (HERE / "runs.csv").open("w", newline="")
    write(runs, [row for engine in engines for row in runs_of(engine, out)])
    with gzip.GzipFile(HERE / "steps.csv.gz", "wb", mtime=0) as packed:
        steps = io.TextIOWrapper(packed, newline="")
        write(steps, [row for engine in engines for row in steps_of(engine, out)])
    for engine in engines:
        keep_replayed(engine, out)


if __name__ == "__main__":
    main()
