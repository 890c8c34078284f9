"""Draw the settings, once, before anything is measured: settings.csv.

    python experiments/random-settings/draw.py

Everything is drawn from one seed. What a server manages without speculation, of which its load is a
share, is measured: 300 requests at once.
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from random_settings import COLUMNS, PROFILES, Setting, saturation

HERE = Path(__file__).parent
SEED, SETTINGS = 20261125, 300
WORLDS = ("stationary", "drift", "switch", "bursts", "classes")
BELIEFS = ((1.0, 1.0), (1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.7), (1.0, 1.5))
"""By what drafting and the target's passes take, over what the policy is told."""


def drawn(number: int) -> dict[str, Any]:
    rng = np.random.default_rng([SEED, number])
    drafter = str(rng.choice(list(PROFILES)))
    drafting, target = BELIEFS[rng.integers(len(BELIEFS))]
    prompt, output = int(np.exp(rng.uniform(3.5, 7.5))), int(np.exp(rng.uniform(3.0, 5.7)))
    return {
        "setting": number,
        "half": "held back" if number % 2 else "tuned on",
        "drafter": drafter,
        "profile": str(rng.choice(PROFILES[drafter])),
        "longest": int(rng.integers(3, 9)),
        "scheduling": str(rng.choice(["async", "sync"])),
        "world": str(rng.choice(WORLDS)),
        "alpha": round(float(rng.uniform(0.02, 0.95)), 3),
        "alpha_after": round(float(rng.uniform(0.02, 0.95)), 3),
        "changes_at": round(float(rng.uniform(0.1, 0.7)), 2),
        "drafting_factor": drafting,
        "target_factor": target,
        "load": round(float(np.exp(rng.uniform(np.log(0.05), np.log(1.2)))), 3),
        "prompt": prompt,
        "output": output,
        "requests": int(rng.choice([100, 200, 400])),
    }


def main() -> None:
    rows = []
    for number in range(SETTINGS):
        row = drawn(number)
        row["rate"] = 1.0
        rate = row["load"] * saturation(Setting(**row))
        rows.append({**row, "rate": float(f"{rate:.4g}")})
    with (HERE / "settings.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
