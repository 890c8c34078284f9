"""What a step passes through: functions and files of one quiet decode step.

    python benchmarks/step.py            # a second

W2, uncompiled, so that every call can be seen: a step in which nobody arrives, ends or needs a
block, from one `schedule` to the next.
"""

import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

os.environ["NUMBA_DISABLE_JIT"] = "1"

from specsim.engine.schedule import schedule
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate

HERE = Path(__file__).parent
ROOT = str(HERE.parent / "specsim")


def quiet_step(steps: list[list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Return the calls of the shortest step that delivered something."""
    return min((step for step in steps if any(name == "_settle" for _, name in step)), key=len)


def traced(run: Callable[[], Any]) -> list[list[tuple[str, str]]]:
    """Run something; return the calls (file, function) of each step."""
    steps: list[list[tuple[str, str]]] = [[]]

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT):
            return
        if code is schedule.__code__:
            steps.append([])
        steps[-1].append((code.co_filename[len(ROOT) + 1 :], code.co_name))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return steps[1:-1]


def main() -> None:
    for settings in ({"policy": "off"}, {"policy": "static:k=3"}, {"policy": "goodput"}):
        experiment = Experiment.load(HERE / "w2.yaml", [])
        experiment = experiment.replace(
            workload={**experiment.model_dump()["workload"], "num_requests": 40}, **settings
        )
        step = quiet_step(traced(lambda experiment=experiment: simulate(experiment)))
        functions, files = set(step), [file for file, _ in step]
        changes = sum(one != other for one, other in pairwise(files))
        print(
            f"{settings['policy']:12} {len(functions)} functions in {len(set(files))} files, "
            f"{len(step)} calls, {changes} changes of file"
        )
        if "-v" in sys.argv:
            print(*sorted(f"    {file}: {name}" for file, name in functions), sep="\n")


if __name__ == "__main__":
    main()
