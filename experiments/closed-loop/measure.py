"""Serve the loads on a real vLLM; then `run.py` simulates the same.

    python experiments/closed-loop/measure.py --minutes 20
    python experiments/closed-loop/measure.py --own-time 3    # prints the plug-in's alone

Needs a vLLM 0.33: SPECSIM_VLLM_PYTHON names the Python that has it (tests/vllm/install.sh makes
one). Records runs of static draft lengths, which give a profile and what is accepted of drafts of
each kind; then policies take turns, load by load, until the minutes are over. Writes server.json,
profile.yaml, believed.yaml, measured.csv and throughput.csv.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from loads import (
    CELLS,
    KINDS,
    LONGEST,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    PLAIN,
    POLICIES,
    RECORDED,
    Asked,
    changes_at,
    requests_of,
)

from specsim.profile import Profile
from specsim.reality.calibration import write_profile
from specsim.reality.profile_fit import fit_and_test, fitted_profile, measured_steps
from specsim.reality.vllm import vllm_python

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = "experiments/closed-loop/target.json"  # from the top folder
RECORDED_LENS = (0, 1, 2, LONGEST)
BELIEVED = HERE / "believed.yaml"
OWN_TIMED = (
    *("static:k=4", "goodput", "joint", "ema_tiers:tiers=[4]", "bandit", "q_learning"),
    "turbospec",
)
TIMED = ("goodput", "joint")  # what else the plug-in's own time is measured of


class Server:
    """A real vLLM that does what it is asked, one run after another; see serve.py."""

    def __init__(self, scratch: Path) -> None:
        models, engine = scratch / "models", scratch / "engine.json"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        python = vllm_python()
        subprocess.run([python, HERE / "models.py", models], check=True, env=environment)
        self.config = (models / "target" / "config.json").read_text()
        self.engine = {
            "dtype": "bfloat16",
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": MAX_NUM_SEQS,
            "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
            "num_gpu_blocks_override": 600,
            "block_size": 32,
            "enable_prefix_caching": False,
            "async_scheduling": True,
        }
        speculation = {
            "method": "draft_model",
            "model": str(models / "draft"),
            "num_speculative_tokens": LONGEST,
        }
        others = {"skip_tokenizer_init": True, "disable_log_stats": True, "seed": 0}
        given = {**self.engine, **others, "model": str(models / "target")}
        engine.write_text(json.dumps({**given, "speculative_config": speculation}))
        self._process = subprocess.Popen(
            [python, str(HERE / "serve.py"), str(engine)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip

    def run(self, policy: str | None, requests: list[Asked], **how: str) -> dict[str, Any]:
        """Serve requests under a policy, or by plain vLLM; return what serve.py says of it."""
        asked = [each._asdict() for each in requests]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"policy": policy, "requests": asked, **how}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit("vLLM has ended")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def policy_of(k: int) -> str:
    """Return the short form of a draft length."""
    return f"static:k={k}" if k else "off"


def recorded(server: Server, scratch: Path) -> list[Path]:
    """Return run folders of static draft lengths, each as if the server had only that one.

    The first is of a server without drafts.
    """
    folders = []
    for number, k in enumerate(RECORDED_LENS):
        folder = scratch / f"recorded-{number}"
        server.run(policy_of(k), requests_of(RECORDED, number), record=str(folder))
        path = folder / "meta.json"
        meta = json.loads(path.read_text())
        speculation = {**meta["engine_kwargs"].pop("speculative_config")}
        if k:  # what the policy asked for, not what the server would allow
            speculation["num_speculative_tokens"] = k
            meta["engine_kwargs"]["speculative_config"] = speculation
        path.write_text(json.dumps(meta))
        folders.append(folder)
    return folders


def accepted_rates(folders: list[Path]) -> dict[str, list[float]]:
    """Return per kind P(token j of a draft is accepted | all before it were)."""
    tried = {kind: [0] * LONGEST for kind in KINDS}
    kept = {kind: [0] * LONGEST for kind in KINDS}
    for folder in folders:
        rows = [json.loads(line) for line in (folder / "requests.jsonl").open()]
        ended = {row["number"]: row for row in rows}.values()
        for row in ended:
            is_first = row["number"] < changes_at(len(ended))
            kind = RECORDED.before if is_first else RECORDED.after
            for _, draft_len, accepted_len in row.get("accepted", ()):
                for place in range(min(draft_len, accepted_len + 1)):
                    tried[kind][place] += 1
                    kept[kind][place] += place < accepted_len
    return {
        kind: [round(k / t, 4) for k, t in zip(kept[kind], tried[kind], strict=True)]
        for kind in KINDS
    }


def fit(folders: list[Path], out: Path) -> None:
    """Fit profiles to the recorded steps: what policies are told, and what steps take.

    The latter knows that vLLM runs the drafter's first pass also where k is 0, so every recorded
    step drafts; the former is what `specsim profile fit` makes of the folders.
    """
    write_profile(_fitted(folders), out / "believed.yaml")
    first, second = (folder / "meta.json" for folder in folders[:2])
    first.write_text(second.read_text())
    profile = _fitted(folders)
    write_profile(profile.model_copy(update={"only_draft_lens": None}), out / "profile.yaml")


def _fitted(folders: list[Path]) -> Profile:
    names = f"{len(folders)} runs of static draft lengths"
    points, origin = measured_steps(
        folders, MODEL, "cpu", 1, max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
    )  # fmt: skip
    found = fit_and_test(points, "two_regime", 0, names, keeps_sum=True)
    return fitted_profile(found, points, origin, "closed-loop/measure.py")


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a table."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def full_batch(seed: int) -> list[Asked]:
    """Return as many requests as the server runs, all there at once."""
    rng = Random(seed)
    return [
        Asked(0.0, kind, [rng.randrange(*KINDS[kind]) for _ in range(20)], 32)
        for kind in KINDS for _ in range(MAX_NUM_SEQS // 2)
    ]  # fmt: skip


def own_time(server: Server, rounds: int) -> None:
    """Print what all that the plug-in does in a step takes, policies in turn, medians."""
    cases = [(policy, how) for policy in OWN_TIMED for how in ({}, {"profile": str(BELIEVED)})]
    taken: dict[int, list[float]] = {}
    for number in range(rounds):
        for place, (policy, how) in enumerate(cases):
            found = server.run(policy, full_batch(number), **how)
            taken.setdefault(place, []).append(found["own_us_per_step"])
    for place, (policy, how) in enumerate(cases):
        times = "of a profile" if how else "learned"
        print(f"{policy:20} step times {times:12} {median(taken[place]):6.0f} us per step")


def throughput(server: Server, pairs: int, out: Path) -> None:
    """Serve full batches by plain vLLM and by the plug-in in turn; both draft equally much."""
    rows = []
    for pair in range(pairs):
        batch = full_batch(pair)
        order: list[str | None] = [None, policy_of(LONGEST)]
        for policy in order if pair % 2 else reversed(order):
            found = server.run(policy, batch)
            rows.append(_speed(pair, policy or PLAIN, batch, found))
        if pair < 3:
            for policy in TIMED:
                how = {"profile": str(out / "believed.yaml")}
                rows.append(_speed(pair, policy, batch, server.run(policy, batch, **how)))
    save(out / "throughput.csv", rows)


def _speed(pair: int, policy: str, batch: list[Asked], found: dict[str, Any]) -> dict[str, Any]:
    tokens = sum(each.output_len for each in batch)
    return {
        "pair": pair,
        "scheduler": policy,
        "tokens_per_s": f"{tokens / found['seconds']:.2f}",
        "own_us_per_step": f"{found['own_us_per_step']:.1f}",
    }


def measure(server: Server, ends_at: float, out: Path) -> None:
    """Serve every load under every policy, in turn, as often as there is time for."""
    rows: list[dict[str, Any]] = []
    repetition, took = 0, 0.0
    for policy in POLICIES:  # some are compiled where they are first used
        server.run(policy, requests_of(RECORDED, 0)[:20], profile=str(out / "believed.yaml"))
    while monotonic() + took < ends_at or repetition < 2:
        begun, mine = monotonic(), []
        for cell in CELLS:
            requests = requests_of(cell, repetition)
            for policy in Random(f"{cell.name} {repetition}").sample(POLICIES, len(POLICIES)):
                found = server.run(policy, requests, profile=str(out / "believed.yaml"))
                mean_ms = 1e3 * sum(found["latencies"]) / len(requests)
                mine.append(
                    {
                        "cell": cell.name,
                        "repetition": repetition,
                        "policy": policy,
                        "mean_e2el_ms": f"{mean_ms:.3f}",
                        "mean_k": f"{found['mean_k']:.3f}",
                    }
                )
        rows += mine
        save(out / "measured.csv", rows)
        repetition, took = repetition + 1, monotonic() - begun
        print(f"repetition {repetition}: {took:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=40, help="of batches, for the throughput")
    parser.add_argument("--own-time", type=int, metavar="ROUNDS", help="print that, nothing else")
    parser.add_argument("--out", type=Path, default=HERE)
    given = parser.parse_args()
    out, begun = given.out.resolve(), monotonic()
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="closed-loop-") as name:
        server = Server(Path(name))
        if given.own_time:
            own_time(server, given.own_time)
            server.close()
            return
        (HERE / "target.json").write_text(server.config + "\n")
        for k in (1, LONGEST):  # warms up, and shows how fast the machine is
            server.run(policy_of(k), requests_of(RECORDED, 100 + k), settles="yes")
        folders = recorded(server, Path(name))
        fit(folders, out)
        said = {
            "engine": server.engine,
            "conditional_rates": accepted_rates(folders),
            "machine": platform.processor() or platform.machine(),
            "num_cpus": os.cpu_count(),
            "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        }
        (out / "server.json").write_text(json.dumps(said, indent=1) + "\n")
        print(f"{monotonic() - begun:.0f} s: {said['conditional_rates']}", flush=True)
        throughput(server, given.pairs, out)
        print(f"{monotonic() - begun:.0f} s: throughput", flush=True)
        measure(server, begun + 60 * given.minutes, out)
        server.close()


if __name__ == "__main__":
    main()
