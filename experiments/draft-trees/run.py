"""Trees: 1,000 random ones against their closed form, Medusa's and EAGLE-2's against measured ones.

    python experiments/run.py draft-trees

Writes random_trees.csv, medusa.csv, factors.csv and eagle.csv beside this file.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import brentq
from scipy.stats import norm

from specsim.api import Experiment, Summary, Tree, simulate
from specsim.core.trees import rank_rates

HERE = Path(__file__).parent
PUBLISHED = yaml.safe_load((HERE / "published.yaml").read_text())
NUM_TREES = 1000
LEVEL = 0.999


def lens(policy: dict, acceptance: dict, depth: int, output: int, seed: int = 0) -> np.ndarray:
    """Return the tokens of every step of one answer but the last, which ends in its draft."""
    config: dict[str, Any] = {
        "workload": {
            "arrivals": {"kind": "burst"},
            "lengths": {"kind": "constant", "prompt": 16, "output": output},
            "num_requests": 1,
        },
        "engine": {
            "speculative_config": {"method": "eagle3", "num_speculative_tokens": depth},
            "max_model_len": 16 + output,
            "max_num_batched_tokens": 4096,
        },
        "profile": "h100/llama-3.1-8b",
        "policy": policy,
        "acceptance": acceptance,
        "seed": seed,
    }
    run = simulate(Experiment.parse(config, "draft-trees"), keeps_deliveries=True)
    counts = Summary(run).tables.requests["deliveries"]
    drafted, accepted = (run.deliveries.column(name, counts) for name in ("drafted", "accepted"))
    return 1.0 + accepted[drafted > 0][:-1]


def tree_of(children: dict[str, int]) -> Tree:
    """Return the tree in which the nodes with these paths have so many children."""
    paths = [(*map(int, path), rank) for path, num in children.items() for rank in range(num)]
    return Tree.of_paths(tuple(rank + 1 for rank in path) for path in paths)


def choices(tree: Tree) -> dict[str, Any]:
    """Return the policy that drafts a tree."""
    return {"kind": "static_tree", "choices": [[rank - 1 for rank in p] for p in tree.paths]}


def random_trees(number: int, output: int) -> Iterator[dict]:
    """Yield what random trees emit in the whole engine, beside their closed form."""
    for seed in range(number):
        rng = np.random.default_rng(seed)
        num_nodes = int(rng.integers(1, 40))
        tree = Tree(tuple(int(rng.integers(-1, node)) for node in range(num_nodes)))
        alpha = round(float(rng.uniform(0.05, 0.95)), 3)
        factors = rng.uniform(0.0, 1.0, size=rng.integers(0, 7)).round(3).tolist()
        acceptance = {"kind": "bernoulli", "alpha": alpha, "rank_factors": factors}
        found = lens(choices(tree), acceptance, tree.depth, output, seed)
        theory = tree.expected_len(rank_rates([alpha, *(alpha * factor for factor in factors)]))
        half_width = norm.ppf(0.5 + LEVEL / 2) * found.std(ddof=1) / len(found) ** 0.5
        yield {
            "seed": seed,
            "nodes": tree.num_nodes,
            "depth": tree.depth,
            "alpha": alpha,
            "closed_form": round(theory, 5),
            "mean": round(float(found.mean()), 5),
            "half_width": round(float(half_width), 5),
            "is_inside": bool(abs(found.mean() - theory) <= half_width),
        }


def factors_of(heads: list[list[float]]) -> np.ndarray:
    """Return the factors of ranks 2 to 5 of each head, by how often its first ones are right."""
    among = np.array(heads)
    conditional = np.diff(among, axis=1) / (1.0 - among[:, :-1])
    return conditional / among[:, :1]


def continued(factors: np.ndarray) -> list[float]:
    """Return factors of ranks 2 to 10: beyond the fifth, which was not recorded, as 1 / rank."""
    return [*factors.tolist(), *(factors[-1] * 5.0 / rank for rank in range(6, 11))]


def medusa(output: int) -> Iterator[dict]:
    """Yield what Medusa's tree emits by the rates of its heads."""
    published = PUBLISHED["medusa"]
    tree = tree_of(published["children"])
    for model, heads in published["heads"].items():
        factors = continued(factors_of(heads[:3]).mean(axis=0))
        acceptance = {
            "kind": "per_position",
            "conditional_rates": [head[0] for head in heads],
            "rank_factors": [round(factor, 4) for factor in factors],
        }
        found = lens(choices(tree), acceptance, tree.depth, output).mean()
        measured = published["measured"][model]
        yield {
            "model": model,
            "nodes": tree.num_nodes,
            "predicted": round(float(found), 3),
            "measured": measured,
            "error_percent": round(100 * (float(found) / measured - 1), 1),
        }


def eagle(output: int) -> Iterator[dict]:
    """Yield what EAGLE-2 emits if EAGLE's static tree emits what was measured."""
    published = PUBLISHED["eagle"]
    tree, heads = tree_of(published["children"]), PUBLISHED["medusa"]["heads"].values()
    factors = continued(np.mean([factors_of(each[:3]) for each in heads], axis=(0, 1)))
    measured, shape = published["measured"], published["eagle2"]
    depth = shape["depth"]

    def too_long(alpha: float) -> float:
        chances = rank_rates([alpha, *(alpha * factor for factor in factors)])
        return tree.expected_len(chances) - measured["eagle"]

    alpha = round(brentq(too_long, 0.1, 0.99), 4)
    grown = {"kind": "eagle2_tree", **{name: shape[name] for name in ("top_k", "total_tokens")}}
    fixed = {"kind": "sequoia_tree", "num_nodes": shape["total_tokens"], "max_width": 10}
    cases = [("EAGLE, 25 nodes (fitted)", choices(tree), 1.0, measured["eagle"])]
    cases += [("best fixed tree, 60 nodes", fixed, 1.0, "")]
    cases += [("EAGLE-2, 60 nodes", grown, each, measured["eagle2"]) for each in (0.25, 1, 4, 16)]
    for name, policy, concentration, known in cases:
        acceptance = {
            "kind": "bernoulli",
            "alpha": alpha,
            "rank_factors": [round(factor, 4) for factor in factors],
            "confidence_concentration": concentration,
        }
        found = float(lens(policy, acceptance, depth, output).mean())
        error = round(100 * (found / known - 1), 1) if known else ""
        yield {
            "tree": name,
            "alpha": alpha,
            "confidence_concentration": concentration,
            "predicted": round(found, 3),
            "measured": known,
            "error_percent": error,
        }


def factor_rows() -> Iterator[dict]:
    """Yield the factors of every head."""
    for model, heads in PUBLISHED["medusa"]["heads"].items():
        for number, factors in enumerate(factors_of(heads), 1):
            yield {
                "model": model,
                "head": number,
                **{f"rank_{rank}": round(float(f), 3) for rank, f in enumerate(factors, 2)},
            }


def main(out: Path = HERE, number: int = NUM_TREES, output: int = 6000) -> None:
    tables = {
        "factors": factor_rows(),
        "medusa": medusa(16 * output),
        "eagle": eagle(8 * output),
        "random_trees": random_trees(number, output),
    }
    for name, rows in tables.items():
        kept = list(rows)
        with (out / f"{name}.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, kept[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
        if name != "random_trees":
            print(*kept, sep="\n")
    inside = sum(row["is_inside"] for row in kept)
    print(f"{inside} of {len(kept)} random trees inside their {100 * LEVEL:g} % intervals")


if __name__ == "__main__":
    main()
