"""Attention of composed profiles against the tables it comes from, where points are hidden.

python experiments/built-profiles/held_out.py     # needs the extra `tables`; three minutes

Of every table of every GPU, engine and version, up to 25 kinds (heads, data types, kernels):
decodes with the larger half of tokens hidden, and several prompts in one step from single ones.
Prints the median error of each table, and the mean of those.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from specsim.core.step import Pieces, StepLoad
from specsim.latency.composed import Composed
from specsim.latency.form import MOST_VERIFIED
from specsim.profile.kernel_tables import Values, tables_folder
from specsim.profile.kernel_times import HeadTimes

AXES = {"batch_size", "isl", "step", "latency", "framework", "version", "device", "op_name"}
MOST_KINDS = 25
GROUPS = {"up to 128": 128, "up to 1,024": 1024, "more": 1 << 40}  # tokens of a prompt
SPARSE_OR_LATENT = ("mla", "dsa", "dsv4")


def kinds(path: Path) -> Iterator[tuple[dict[str, object], Values]]:
    """Yield what is said of some rows, and batch, new and earlier tokens, and microseconds."""
    groups = defaultdict(list)
    for row in pq.read_table(path).to_pylist():
        point = row["batch_size"], row["isl"], row.get("step") or 0, 1e3 * row["latency"]
        named = {name: row[name] for name in row if name not in AXES and "power" not in name}
        groups[tuple(named.items())].append(point)
    found = list(groups.items())
    for named, points in found[:: max(1, len(found) // MOST_KINDS)]:
        yield dict(named), np.array(points, dtype=float).T


def hidden_decodes(path: Path) -> list[float]:
    """Return errors of decodes with more than half of the most tokens, from the others."""
    errors: list[float] = []
    for _, (batch, isl, step, us) in kinds(path):
        lens = isl + step
        shown = 2 * batch * lens <= (batch * lens).max()
        if len(set(lens[shown])) < 2 or len(set(batch[shown])) < 2:
            continue
        contexts, sequences, grid = HeadTimes(batch[shown], lens[shown], us[shown]).grid()
        tested = ~shown & np.isin(lens, contexts) & np.isin(batch, sequences)
        rows, columns = (
            np.searchsorted(axis, each[tested])
            for axis, each in ((contexts, lens), (sequences, batch))
        )
        errors += (grid[rows, columns] / us[tested] - 1).tolist()
    return errors


def shared_steps(path: Path) -> Iterator[tuple[str, float]]:
    """Yield groups of lengths, and errors of several whole prompts in a step, from single ones."""
    for named, (batch, isl, step, us) in kinds(path):
        single = (batch == 1) & (step == 0)
        if named.get("window_size") or len(set(isl[single])) < 2:
            continue
        at, times = HeadTimes(batch[single], isl[single], us[single]).prompts()
        target = attention_alone(at, times)
        several = (batch > 1) & (step == 0) & (isl > MOST_VERIFIED) & np.isin(isl, at)
        for size, length, measured in zip(batch[several], isl[several], us[several], strict=True):
            chunks = [int(length)] * int(size)
            load = StepLoad(
                0, sum(chunks), len(chunks), sum(chunks), Pieces(chunks, [0] * len(chunks))
            )
            group = next(name for name, most in GROUPS.items() if length <= most)
            yield group, (1e6 * target.forward_time(load) - 1) / measured - 1


def attention_alone(at: Values, times: Values) -> Composed:
    """Return steps of one layer; all else takes a microsecond."""
    prompt = {"at": at.astype(int).tolist(), "times_us": times.tolist()}
    layer = {"num_layers": 1, "context_tokens": [1, 2], "sequences": [1, 2], "prompt": prompt}
    layer |= {"decode_us": [[0, 0], [0, 0]], "decode_pair_us": 0}
    fields = {"batched_tokens": [1, 2], "read_us": [1, 1], "compute_us": [0, 0]}
    head = {"at": [1, 2], "times_us": [0, 0]}
    return Composed.model_validate({**fields, "head": head, "attention": [layer]})


def main() -> None:
    folder, medians = tables_folder() / "data", defaultdict(list)

    def told(what: str, path: Path, errors: list[float]) -> None:
        if errors:
            away, bias = np.median(np.abs(errors)), np.median(errors)
            medians[what].append(away)
            name = path.relative_to(folder)
            print(f"{what}: {name}: {len(errors)} points, {away:.1%} ({bias:+.1%})", flush=True)

    for path in sorted(folder.rglob("*generation*_perf.parquet")):
        is_other = any(name in path.name for name in SPARSE_OR_LATENT)
        if is_other or path.name.startswith("generation_attention"):
            what = "latent and sparse attention" if is_other else "attention"
            told(f"hidden decodes, {what}", path, hidden_decodes(path))
    for path in sorted(folder.rglob("context_attention_perf.parquet")):
        by_group = defaultdict(list)
        for group, error in shared_steps(path):
            by_group[group].append(error)
        for group, errors in by_group.items():
            told(f"prompts of {group} tokens that share a step", path, errors)
    for what, each in medians.items():
        print(f"{what}: {np.mean(each):.1%}, mean of {len(each)} tables' medians")


if __name__ == "__main__":
    main()
