"""Whether confidences mean what they say: for every preset and drafter, under three policies.

    python experiments/confidence-reliability/run.py     # about two minutes on one core

Writes results.csv, a row per run, and bins.csv, a row per tenth of confidence, beside this file.
Recorded acceptance needs the token traces, which are never shipped (SPECSIM_DATA); without them it
is left out.
"""

import csv
import os
import sys
from collections.abc import Iterator
from math import nan, sqrt
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from specsim.acceptance.nested import preset_names
from specsim.api import Experiment, Policy, parse_policies, simulate

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "tokens"
FEWEST = 1000
"""Tokens of a tenth that counts for the worst gap."""
POLICIES = ("static:k=5", "goodput", "joint")
OTHERS = {
    "bernoulli": {"kind": "bernoulli", "alpha": 0.7},
    "beta": {"kind": "beta", "a": 4.0, "b": 3.0},
    "beta_position": {"kind": "beta_position", "a": 6.0, "b": 2.0, "factors": [1.0, 0.9, 0.8]},
    "markov": {
        "kind": "markov",
        "regimes": [{"weight": 0.7, "alpha": 0.2}, {"weight": 0.3, "alpha": 0.95}],
        "regime_len": 20.0,
    },
}


class Told(NamedTuple):
    """Draft tokens that were verified while all before them were accepted."""

    stated: NDArray[np.float64]
    is_accepted: NDArray[np.bool_]

    @property
    def auc(self) -> float:
        """How likely an accepted token is stated surer than a rejected one."""
        num = int(self.is_accepted.sum())
        ranks = rankdata(self.stated)[self.is_accepted].sum()
        return float((ranks / num - (num + 1) / 2) / max(len(self.stated) - num, 1))

    def bins(self) -> Iterator[tuple[int, int, float, float]]:
        """Yield each tenth that tokens fall into: its number, tokens, stated and accepted."""
        places = np.minimum((self.stated * 10).astype(np.intp), 9)
        for place in np.unique(places).tolist():
            here = places == place
            yield place, int(here.sum()), self.stated[here].mean(), self.is_accepted[here].mean()


def watched(policy: Policy) -> tuple[Policy, list[tuple[NDArray[Any], ...]]]:
    """Return a policy that decides the same, and where it notes what it was told of each draft."""
    kind: Any = type(policy)
    noted: list[tuple[NDArray[Any], ...]] = [(np.zeros(0), np.zeros(0, dtype=bool))]
    rows: dict[int, NDArray[np.float32]] = {}

    class Watched(kind):
        uses_confidences: ClassVar[bool] = True
        is_dynamic: ClassVar[bool] = True

        def lens_by_size(self, largest: int, memory: Any) -> None:
            return None

        def overrides(self, method: Any) -> bool:
            return method.__name__ in ("verify_lens", "observe") or super().overrides(method)

        def verify_lens(self, batch: Any, drafts: Any, memory: Any) -> Any:
            rows.update(zip(batch.requests.tolist(), drafts.confidences.copy(), strict=True))
            if not policy.overrides(Policy.verify_lens):
                return drafts.draft_lens
            return super().verify_lens(batch, drafts, memory)

        def observe(self, outcome: Any, memory: Any) -> None:
            columns = (outcome.requests, outcome.draft_lens, outcome.accepted_lens)
            for request, verified, accepted in zip(*map(np.ndarray.tolist, columns), strict=True):
                if verified:
                    told = rows[request][: min(accepted + 1, verified)]
                    noted.append((told, np.arange(len(told)) < accepted))
            if policy.overrides(Policy.observe):
                super().observe(outcome, memory)

    return Watched(**policy.model_dump(exclude={"kind"})), noted


def told_in(experiment: Experiment, policy: str) -> Told:
    """Return what the drafter said in a run, and what became of it."""
    chosen, noted = watched(parse_policies([policy])[policy])
    simulate(experiment.replace(policy=chosen))
    stated, is_accepted = (np.concatenate(column) for column in zip(*noted, strict=True))
    return Told(stated.astype(float), is_accepted)


def cells(base: Experiment) -> Iterator[tuple[str, str, Experiment]]:
    """Yield every preset, other models and records, with the drafters that they stand for."""
    models = {name: {"kind": "preset", "name": name} for name in preset_names()} | OTHERS
    for name, acceptance in models.items():
        for method in ("suffix",) if "/ngram/" in name else ("eagle3", "draft_model"):
            yield name, method, changed(base, method, acceptance=acceptance)
    for path in sorted(DATA.glob("llama31_8b_*.jsonl.gz")):
        lengths = {"kind": "trace", "path": str(path)}
        workload = {"arrivals": base.workload.arrivals, "lengths": lengths, "num_requests": 149}
        for proposer, method in (("eagle", "eagle3"), ("ngram", "suffix")):
            acceptance = {"kind": "recorded", "proposer": proposer}
            name = f"recorded {proposer}, {path.name.split('.')[0].rpartition('_')[2]}"
            yield name, method, changed(base, method, acceptance=acceptance, workload=workload)


def changed(base: Experiment, method: str, **fields: Any) -> Experiment:
    """Return the experiment with another drafter and other fields."""
    engine = base.engine.model_dump(exclude_unset=True)
    engine["speculative_config"] = {"method": method, "num_speculative_tokens": 5}
    profile = "a100/llama-7b" if method == "draft_model" else base.profile
    return base.replace(engine=engine, profile=profile, **fields)


def summary(told: Told) -> dict[str, Any]:
    """Return the means, the bin whose share differs most from what was stated, and AUC."""
    gaps = [
        (accepted - stated, 2.0 * sqrt(max(stated * (1.0 - stated), 1e-4) / num))
        for _, num, stated, accepted in told.bins()
        if num >= FEWEST
    ]
    gap, error = max(gaps, key=lambda each: abs(each[0]), default=(nan, nan))
    return {
        "tokens": len(told.stated),
        "stated": f"{told.stated.mean():.4f}",
        "accepted": f"{told.is_accepted.mean():.4f}",
        "worst_gap": f"{gap:.4f}",
        "two_errors": f"{error:.4f}",
        "auc": f"{told.auc:.3f}",
    }


def main(wanted: list[str], out: Path = HERE) -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    runs, bins = [], []
    for acceptance, method, experiment in cells(base):
        if wanted and not any(each in acceptance for each in wanted):
            continue
        for policy in POLICIES:
            place = {"acceptance": acceptance, "drafter": method, "policy": policy}
            told = told_in(experiment, policy)
            runs.append(place | summary(told))
            print(*runs[-1].values(), flush=True)
            for tenth, num, stated, accepted in told.bins():
                found = (tenth / 10, num, f"{stated:.4f}", f"{accepted:.4f}")
                bins.append(
                    place | dict(zip(("from", "tokens", "stated", "accepted"), found, strict=True))
                )
    for name, rows in (("results.csv", runs), ("bins.csv", bins)):
        with (out / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
