"""SmartSpec fig. 5: the best proposed length falls with the batch size.

    python experiments/run.py smartspec-fig5

Writes closed_form.csv, results.csv and plot.png beside this file and prints both tables.
"""

import csv
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from specsim.api import Experiment, Profile, compare, load_profile, parse_policies
from specsim.core.step import StepLoad

HERE = Path(__file__).parent
SIZES = tuple(2**power for power in range(10))
ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
ALPHA = 0.7
LONGEST = 8
CONTEXTS = (0, 96, 256, 1024)
"""Context tokens of each request; the paper does not say which it took."""
VERIFICATIONS = ("one pass", "batch expansion")
"""How drafts are verified: the context is read once, or, as in vLLM of 2024, by each token."""
ENGINE_SIZES = (1, 4, 16, 64, 256, 512)
ENGINES = {
    "one pass": {},
    "batch expansion": {"scheduler": "prefill_first", "disable_mqa_scorer": True},
}


def expected_len(alpha: float, k: int) -> float:
    """Eq. 8."""
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def goodput(
    profile: Profile, size: int, alpha: float, k: int, context: int, verification: str
) -> float:
    """Tokens per second of one step by eq. 4 to 8: k draft passes, then the target's."""
    draft = profile.drafts["draft_model"].latency
    assert draft is not None
    reads = k + 1 if verification == "batch expansion" else 1
    time = profile.target.forward_time(StepLoad(size * context * reads, size * (k + 1), size))
    time += sum(
        draft.forward_time(StepLoad(size * (context + done), size, size)) for done in range(k)
    )
    return size * expected_len(alpha, k) / time


def best_k(profile: Profile, size: int, alpha: float, context: int, verification: str) -> int:
    rates = [
        goodput(profile, size, alpha, k, context, verification) for k in range(2 * LONGEST + 1)
    ]
    return rates.index(max(rates))


def dearest_pass(profile: Profile, alpha: float, k: int) -> float:
    """The draft pass, milliseconds, up to which k + 1 beats k for one request."""
    draft = profile.drafts["draft_model"]
    low, high = 0.0, 100.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        latency = draft.latency.model_copy(update={"delta_ms": middle})
        changed = draft.model_copy(update={"latency": latency})
        trial = profile.model_copy(update={"drafts": {"draft_model": changed}})
        if best_k(trial, 1, alpha, CONTEXTS[1], "one pass") > k:
            low = middle
        else:
            high = middle
    return low


def closed_form(profile: Profile) -> list[dict]:
    return [
        {
            "verification": verification,
            "context": context,
            "alpha": alpha,
            **{f"B={size}": best_k(profile, size, alpha, context, verification) for size in SIZES},
        }
        for verification in VERIFICATIONS
        for context in CONTEXTS
        for alpha in ALPHAS
    ]


def engine(base: Experiment, sizes: tuple[int, ...], rounds: int) -> list[dict]:
    """The same through the engine: `size` clients, each of whom sends `rounds` requests."""
    policies = parse_policies(
        [*(f"static:k={k}" for k in range(1, LONGEST + 1)), "goodput", "turbospec"]
    )
    rows = []
    for verification, settings in ENGINES.items():
        config = {name: value for name, value in settings.items() if name == "scheduler"}
        spec = base.engine.speculative_config
        assert spec is not None
        spec = spec.model_copy(
            update={name: value for name, value in settings.items() if name != "scheduler"}
        )
        for size in sizes:
            workload = {
                **base.workload.model_dump(mode="json"),
                "arrivals": {"kind": "closed_loop", "concurrency": size},
                "num_requests": max(size * rounds, 8 * rounds),
            }
            server = base.engine.model_copy(update={**config, "speculative_config": spec})
            comparison = compare(
                base.replace(workload=workload, engine=server), policies, replications=1, workers=2
            )
            rows += [
                {
                    "verification": verification,
                    "batch_size": size,
                    "policy": result.label,
                    "tokens_per_s": round(result.mean("output_throughput"), 1),
                    "mean_k": round(mean_k(result.summaries[0]), 2),
                }
                for result in comparison.results
            ]
    return rows


def mean_k(summary: dict) -> float:
    """Drafts per sequence and step."""
    accepted = summary.get("spec_decode_accepted_tokens", 0)
    return summary.get("spec_decode_draft_tokens", 0) / (summary["total_output_tokens"] - accepted)


def main(out: Path = HERE, sizes: tuple[int, ...] = ENGINE_SIZES, rounds: int = 4) -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    profile = load_profile(base.profile)
    table = closed_form(profile)
    write(table, out / "closed_form.csv")
    for row in table:
        print(
            " ".join(
                f"{value!s:>15}" if n == 0 else f"{value!s:>5}"
                for n, value in enumerate(row.values())
            )
        )
    print(
        f"k > 4 at batch size 1 needs a draft pass below {dearest_pass(profile, ALPHA, 4):.2f} ms"
    )
    rows = engine(base, sizes, rounds)
    write(rows, out / "results.csv")
    print_engine(rows)
    draw(profile, out)


def print_engine(rows: list[dict]) -> None:
    keys = dict.fromkeys((row["verification"], row["batch_size"]) for row in rows)
    for key in keys:
        mine = [row for row in rows if (row["verification"], row["batch_size"]) == key]
        *fixed, adaptive = mine
        best = max(fixed, key=lambda row: row["tokens_per_s"])
        print(
            f"{key[0]}, {key[1]} requests: best {best['policy']} {best['tokens_per_s']:,.0f} "
            f"tokens/s, goodput {adaptive['tokens_per_s']:,.0f} "
            f"({adaptive['tokens_per_s'] / best['tokens_per_s']:.3f}; "
            f"mean k {adaptive['mean_k']}), off {mine[0]['tokens_per_s']:,.0f}"
        )


def write(rows: list[dict], path: Path) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(profile: Profile, out: Path) -> None:
    """Goodput over that of k = 0, by batch size and proposed length, and the best length."""
    mpl.use("Agg")
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, constrained_layout=True)
    lens = range(LONGEST + 1)
    for axis, verification in zip(axes, VERIFICATIONS, strict=True):
        rates = [
            [goodput(profile, size, ALPHA, k, CONTEXTS[1], verification) for size in SIZES]
            for k in lens
        ]
        relative = [[rate / off for rate, off in zip(row, rates[0], strict=True)] for row in rates]
        image = axis.imshow(relative, origin="lower", aspect="auto", cmap="viridis", vmin=0, vmax=2)
        best = [best_k(profile, size, ALPHA, CONTEXTS[1], verification) for size in SIZES]
        axis.plot(range(len(SIZES)), best, "r-o")
        axis.set_xticks(range(len(SIZES)), [str(size) for size in SIZES])
        axis.set_xlabel("batch size")
        axis.set_title(verification)
    axes[0].set_ylabel("proposed length")
    figure.colorbar(image, ax=axes, label="goodput over that of k = 0")
    figure.savefig(out / "plot.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
