"""Predict what servers of large models of 2026 took, from kernel tables, nothing fitted.

    SPECSIM_DATA=... python experiments/large-models/run.py        # with llm-specsim[tables]

Of data-parallel ranks measured.csv is what ai-dynamo/aisimulate (Apache-2.0) states in two of its
records: Kimi-K2.5 in NVFP4 under vLLM (benchmarks/evidence/accuracy/replay-evidence.md, revision
305e46b; TPOT alone, and an interval of 4, which that record finds to fit), and DeepSeek-V4-Pro
under SGLang with the model's own MTP layer, k = 3, of whose drafts so many are taken at random that
a pass yields 2.49 tokens (docs/experiments/sglang-fpm-fixed-8k1k, 70dbc5f; means over six runs).
Prompts of 8,192 and answers of 1,024 tokens: exactly under SGLang, uniform from 0.8 of that under
vLLM, as InferenceX draws them. Experts are shared out whole, attention is on one GPU each.

The sessions of agents on four GB300 lie in SPECSIM_DATA: DeepSeek-V4 under vLLM 0.21 and SGLang,
without speculation. Which one it is, is not told: Flash would take half as long. Lengths have the
median that is told and the mean that follows from the rates; what turns find in the prefix cache
is not known, and nothing is taken to be there.

Passes of DeepSeek-V4-Pro on eight B200 under vLLM 0.28, whose ranks verified three drafts of the
MTP layer and drafted as many, took 31.15 ms in the median where nothing else ran in them
(aisimulate, docs/experiments/agentx-deepseek-v4-pro-440246-b200-vllm, 2bc0da0): 6,769 requests of
126,565 tokens of context in 3,629 s, 24.2 s each, are 5.6 at a time on a rank.
"""

import csv
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from specsim.core.step import Pieces, StepLoad
from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import TableOptions
from specsim.profile.profile import Profile
from specsim.reality.validation.measured_run import MeasuredRun
from specsim.reality.validation.measured_table import runs_of_rows
from specsim.reality.validation.table_replay import predict

HERE = Path(__file__).parent
SESSIONS = "gpu-runs/gb300_multiturn_deepseek-v4.csv"
METRICS = {
    "tok_s": ("output_tok_s",),
    "ttft": ("ttft_mean_ms", "ttft_p50_ms"),
    "tpot": ("tpot_mean_ms", "tpot_p50_ms"),
    "e2e": ("e2e_p50_ms",),
}
"""By column of results.csv, whichever a row has."""
CONTEXT, DRAFT_LEN, PASS_MS = 126_565, 3, 31.15
BUILT: dict[str, dict[str, Any]] = {
    "kimi-k2.5": {"dtype": "nvfp4_experts"},
    "deepseek-v4-pro": {
        "dtype": "auto",
        "engine": "sglang",
        "kernels": {"graphs": "decodes"},
        "drafts": {"mtp": "deepseek-v4-pro-mtp"},
    },
}
"""Of ranks, by model."""

Row = dict[str, str]


def of_ranks(row: Row) -> MeasuredRun:
    is_sglang = row["engine"] == "sglang"
    drafting = {"method": "mtp", "num_speculative_tokens": 3, "acceptance_length": 2.49}
    cells = {
        **(drafting if is_sglang else {"method": "none", "num_speculative_tokens": 0}),
        "gpu": row["gpu"].upper(),
        "isl": "8192" if is_sglang else "uniform 6553..8192",
        "osl": "1024" if is_sglang else "uniform 819..1024",
        "concurrency": row["clients"],
        "num_prompts": row["prompts"],
        "num_warmups": row["clients"],
        "prefix_caching": "off",
        "max_num_batched_tokens": 8192,
        **{name: row[name] for name in ("output_tok_s", "ttft_mean_ms", "tpot_mean_ms")},
    }
    [run] = runs_of_rows([cells])
    engine = {"data_parallel_size": int(row["ranks"]), "enable_expert_parallel": True}
    engine |= {"max_model_len": 10240, "prefill_schedule_interval": int(row["interval"])}
    return replace(run, engine={**run.engine, **engine})


def ranks() -> Iterator[tuple[list[str], MeasuredRun, Profile]]:
    """Yield engine, model, GPU, GPUs and clients, the run and its profile."""
    with (HERE / "measured.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    profiles: dict[tuple[str, str], Profile] = {}
    for row in rows:
        names = [row[name] for name in ("engine", "model", "gpu", "ranks", "clients")]
        key = row["model"], row["gpu"]
        if key not in profiles:
            split = {"data_parallel_size": int(row["ranks"]), "enable_expert_parallel": True}
            options = TableOptions(*key, **split, **BUILT[row["model"]])
            profiles[key] = TableProfile.of(options).profile
        yield names, of_ranks(row), profiles[key]


def sessions() -> Iterator[tuple[list[str], MeasuredRun, Profile]]:
    with (Path(os.environ["SPECSIM_DATA"]) / SESSIONS).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    same = {"model": "deepseek-v4-pro"}
    for engine in ("vllm", "sglang"):
        options = TableOptions(
            *("deepseek-v4-pro", "gb300"), engine=engine, dtype="auto", tensor_parallel_size=4
        )
        profile = TableProfile.of(options).profile
        for run in runs_of_rows([row | same for row in rows if row["engine"] == engine]):
            names = [engine, "deepseek-v4-pro", "gb300", "4", run.cells["concurrency"]]
            yield names, run, profile


def pass_ms(sequences: int) -> float:
    """Return what a rank takes to verify three drafts of each sequence, and to draft as many."""
    ranks = {"data_parallel_size": 8, "enable_expert_parallel": True}
    drafts = {"mtp": BUILT["deepseek-v4-pro"]["drafts"]["mtp"]}
    options = TableOptions("deepseek-v4-pro", "b200", **ranks, dtype="auto", drafts=drafts)
    profile = TableProfile.of(options).profile
    tokens, context = [1 + DRAFT_LEN] * sequences, [CONTEXT] * sequences
    load = StepLoad(sum(context), sum(tokens), sequences, 0, Pieces(tokens, context))
    target = profile.target.forward_time(load)
    return 1e3 * (target + profile.drafts["mtp"].draft_time(load, DRAFT_LEN, target))


def main() -> None:
    with (HERE / "passes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["sequences", "pass_ms", "error"])
        for sequences in (5, 6, 7):
            found = pass_ms(sequences)
            writer.writerow([sequences, f"{found:.2f}", f"{found / PASS_MS - 1:.4f}"])
    with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        errors = [f"error_{name}" for name in METRICS]
        writer.writerow(["engine", "model", "gpu", "gpus", "clients", *errors])
        for names, run, profile in (*ranks(), *sessions()):
            [found] = predict([run], profile)
            measured = [next((n for n in own if n in run.measured), "") for own in METRICS.values()]
            writer.writerow([*names, *(name and f"{found.error(name):.4f}" for name in measured)])


if __name__ == "__main__":
    main()
