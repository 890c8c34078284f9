"""What policies of one's own cost a whole run: those of the tutorial beside `static`.

    python benchmarks/own_policies.py        # a minute

CPU time of 10,000 requests of the tutorial's experiment, the least of seven runs in turn.
"""

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from specsim.api import Experiment, simulate

PAGE = Path(__file__).parent.parent / "docs" / "tutorial" / "own-policy.md"
POLICIES = ("static:k=3", "following:FollowInLoop", "in_batch:InBatch", "learning:Follow")
REPEATS = 7


def main() -> None:
    with TemporaryDirectory() as folder:
        blocks = re.findall(r'```\w+ title="(.*?)"\n(.*?)```', PAGE.read_text(), re.DOTALL)
        for name, text in blocks:
            Path(folder, name).write_text(text)
        sys.path.insert(0, folder)
        path, changes = Path(folder, "experiment.yaml"), {"workload.num_requests": 10_000}
        experiments = [Experiment.load(path, {**changes, "policy": each}) for each in POLICIES]
        for experiment in experiments:
            simulate(experiment)  # compiled, and everything read
        times = [[seconds(each) for each in experiments] for _ in range(REPEATS)]
    least = [min(column) for column in zip(*times, strict=True)]
    for policy, each in zip(POLICIES, least, strict=True):
        print(f"{policy:24} {each:.3f} s, {each / least[0]:.2f} times static")


def seconds(experiment: Experiment) -> float:
    began = process_time()
    simulate(experiment)
    return process_time() - began


if __name__ == "__main__":
    main()
