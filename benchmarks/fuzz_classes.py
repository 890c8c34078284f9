"""Classes of the user's, with methods that answer something odd."""

import random
from pathlib import Path

from fuzz_catalogue import QUICK
from fuzz_files import written
from fuzz_values import HOOKS


def a_class(rng: random.Random) -> list[str]:
    """Make a class of the user's, with some methods, some of which answer something odd."""
    name = f"fuzzed_{rng.randrange(10**12)}"
    family, base, given = rng.choice(
        (
            ("policy", "specsim.decisions.policy:Policy", "policies"),
            ("routing", "specsim.routing:Router", "routing"),
            ("acceptance", "specsim.acceptance.base:Acceptance", "acceptance"),
            ("autoscaling", "specsim.autoscaling:Autoscaler", "autoscaling"),
        )
    )
    module, _, parent = base.partition(":")
    lines = [f"import numpy as np\nfrom {module} import *\nfrom {module} import {parent}"]
    lines.append(f"class P({rng.choice(('object', *[parent] * 9))}):")
    lines.append(f"    kind: str = {rng.choice(('1', *[repr('p')] * 9))}")
    hooks = [rng.choice(HOOKS[given]) for _ in range(rng.randrange(4))]
    for hook in (HOOKS[given][0], *hooks):
        arguments = rng.choice(("self, *given, **named", "self, *given, **named", "self", "*given"))
        lines.append(f"    def {hook}({arguments}):\n        return {rng.choice(ANSWERS_OF_HOOKS)}")
    lines.append(rng.choice(("", "", "", "", "    needs_sync: bool = 1", "    x: int")))
    Path(f"{name}.py").write_text("\n".join(lines) + "\n")
    if family == "policy" and rng.random() < 0.05:
        return ["policy", "check", f"{name}.py:P"]
    config = {**QUICK, "replicas": 2}
    if family == "autoscaling":
        del config["replicas"]
    fields = {"max_replicas": 3} if family == "autoscaling" else {}
    config[family] = {"kind": f"{name}:P", **fields}
    Path("e.yaml").write_bytes(written("e.yaml", config))
    return ["run", "e.yaml"]


ANSWERS_OF_HOOKS = (
    "-1",
    "0",
    "1",
    "99",
    "None",
    "'a'",
    "1.5",
    "True",
    "[1]",
    "[]",
    "{}",
    "1 // 0",
    "given",
    "given[0]",
    "given[-1]",
    "self",
    "float('nan')",
    "np.ones(3)",
    "np.zeros(1, int)",
    "2**70",
    "np.array(2)",
    "iter([1])",
    "type",
    "lambda *x: 1",
    "[None] * 3",
    "b'x'",
    "exit()",
    "super().x",
)
