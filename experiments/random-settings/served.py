"""What `joint` gains where the drafter reads every request, as in vLLM's V1.

    python experiments/random-settings/served.py

Every fifth setting whose drafter is a model, with `engine.drafter_serves_all` and without. Writes
served.csv: mean end-to-end latencies over all replications.
"""

import csv
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean

from random_settings import Setting, settings
from run import REPLICATIONS, latency

from specsim.api import Policy, parse_policies

METHODS = ("draft_model", "eagle3", "mtp")


def measured(setting: Setting) -> list[object]:
    """Return a row of served.csv."""
    off, joint = setting.experiment(0).policy, parse_policies(["joint"])["joint"]

    def mean(policy: Policy, *, serves_all: bool) -> float:
        seeds = (1000 * number + setting.setting for number in range(REPLICATIONS))
        return fmean(latency(setting, policy, seed, serves_all=serves_all) for seed in seeds)

    runs = ((off, False), (joint, False), (joint, True))
    values = [mean(policy, serves_all=serves_all) for policy, serves_all in runs]
    return [setting.setting, setting.drafter, *(f"{value:.6g}" for value in values)]


def main() -> None:
    asked = [each for each in settings() if each.setting % 5 == 0 and each.drafter in METHODS]
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(measured, asked))
    with (Path(__file__).parent / "served.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["setting", "drafter", "off_ms", "joint_ms", "joint_serves_all_ms"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
