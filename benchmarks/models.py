"""Which of the models that aiconfigurator-core has configurations of build a profile, and why not.

On H200 or B200, with --tp 1, --tp 8 or --tp 8 --ep: python benchmarks/models.py [PART OF NAME ...]
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from specsim.core.errors import SpecsimError
from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import TableOptions, tables_folder

_SPLITS = ((1, False), (8, False), (8, True))


def _attempts(path: Path) -> Iterator[str]:
    """Yield what came of each attempt, up to the first that built a profile."""
    for gpu in ("h200", "b200"):
        for size, is_whole in _SPLITS:
            options = TableOptions(
                str(path), gpu, dtype="auto", tensor_parallel_size=size,
                enable_expert_parallel=is_whole,
            )  # fmt: skip
            told = f"{gpu} --tp {size}{' --ep' if is_whole else ''}"
            try:
                weights = TableProfile.of(options).profile.weights_gib
            except SpecsimError as error:
                yield f"{told}: {str(error).replace(str(path), path.name)}"
            else:
                yield f"{told}: {weights} GiB of weights per GPU"
                return


def main(parts: list[str]) -> None:
    counts: Counter[str] = Counter()
    for path in sorted((tables_folder().parent / "model_configs").glob("*_config.json")):
        if "hf_quant" in path.name or not all(part in path.name for part in parts):
            continue
        *refused, last = _attempts(path)
        is_built = last.endswith("per GPU")
        counts["built" if is_built else "refused"] += 1
        print(path.name.removesuffix("_config.json"), "|", last)
        for reason in [] if is_built else dict.fromkeys(refused):
            print("   ", reason)
    print(*(f"{count} {what}" for what, count in counts.items()), sep=", ")


if __name__ == "__main__":
    main(sys.argv[1:])
