"""Compare predictions of the same runs of real servers: specsim's, and AISimulate's.

    SPECSIM_DATA=FOLDER python experiments/aisimulate/run.py
    SPECSIM_DATA=FOLDER python experiments/aisimulate/run.py --questions questions.jsonl

Reads answers.csv, which their_answers.py makes of the questions, and writes results.csv and
decisions.csv. The servers are those of gpu-runs and vllm-h200 whose GPU AISimulate knows, with all
their loads, and the loads of silicon that were drawn there; of the latter what specsim says stands
in silicon/results.csv.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.hardware.specs import load_model
from specsim.profile import load_profile
from specsim.profile.kernel_tables import tables_folder
from specsim.profile.profile import Profile
from specsim.reality.validation import MeasuredRun, Prediction, TableErrors, predict, read_table
from specsim.reality.validation.measured_run import METRICS as MEASURED
from specsim.reality.validation.table_replay import compose_row

sys.path.insert(0, str(Path(__file__).parents[1]))
from readme import script

HERE = Path(__file__).parent
SHIPPED = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "zhipuai/GLM-5": "zai-org/GLM-5-FP8",
}
"""Whose shapes it has without the network."""
SYSTEMS = {"a100-80gb": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm"}
FORMATS = {
    "": {"gemm_quant_mode": "bfloat16"},
    "fp8": {"gemm_quant_mode": "fp8"},
    "int4": {"gemm_quant_mode": "int4_wo"},
    "mxfp4": {"moe_quant_mode": "w4a16_mxfp4"},
}
MODELLED = ("eagle3", "draft_model")
METRICS = ("output_tok_s", "tpot_mean_ms", "ttft_mean_ms", "ttft_p50_ms", "e2e_mean_ms")
OF_SILICON = {"ttft_mean_ms": "ttft", "tpot_mean_ms": "tpot"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A server's runs, and what a question says of the server."""

    name: str
    runs: Sequence[MeasuredRun]
    server: Row
    heads: dict[str, str]
    profile: Profile
    metrics: tuple[str, ...]
    """What counts: where a server compiled in the middle of runs, TPOT alone."""

    @classmethod
    def of(cls, server: Any, loads: Any) -> "Asked":
        """Of gpu-runs; runs whose drafts are looked up in the text are left out."""
        build, runs = server.build, loads.runs_of(server)
        said = {
            "model": SHIPPED[build["model"]],
            "hardware": SYSTEMS[build["gpu"]],
            "tensor": build.get("tensor_parallel_size", 1),
            "formats": FORMATS[build.get("dtype", "")]
            | {"kvcache_quant_mode": "fp8" if server.name.endswith("kv-fp8") else "bfloat16"},
        }
        kept = [run for run in runs if run.method in (None, "", *MODELLED)]
        names = {"tpot_mean_ms": "tpot_or_itl_mean_ms"}
        counted = tuple(each for each in METRICS if names.get(each, each) in server.metrics)
        profile = loads.built(server, tables_folder())
        return cls(server.name, kept, said, build.get("drafts", {}), profile, counted)

    def questions(self) -> Iterator[Row]:
        for run in self.runs:
            yield question_of(self.name, run, self.server) | {"speculation": self._drafts(run)}

    def _drafts(self, run: MeasuredRun) -> Row | None:
        """Return the drafter; of acceptance it takes the mean number per draft, no more."""
        if not run.num_speculative_tokens:
            return None
        shape = load_model(self.heads[run.method])
        names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
        more = ("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings")
        config = {name: getattr(shape, name) for name in (*names, *more, "tie_word_embeddings")}
        return {
            "kind": run.method,
            "params": {"num_speculative_tokens": run.num_speculative_tokens},
            "draft_config": {
                **config,
                "draft_vocab_size": config["vocab_size"],
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
            },
            "expected_accepted_tokens": sum(run.rates),
        }


def question_of(name: str, run: MeasuredRun, server: Row) -> Row:
    """Return what is asked of a run: the very requests that are simulated here."""
    row = compose_row(run)
    requests, engine = row.requests, row.experiment.engine
    arrived = requests.arrived_at if requests.arrived_at is not None else ()
    return {
        "set": name,
        "id": run.run_id,
        "as_published": False,
        "backend": "vllm",
        "data": 1,
        "experts": 1,
        **server,
        "requests": [
            [int(prompt), int(output)]
            for prompt, output in zip(requests.prompt_lens, requests.output_lens, strict=True)
        ],
        "shared_tokens": run.prompt.shared if run.prompt is not None else 0,
        "arrived_ms": [1e3 * float(each) for each in arrived] if run.request_rate else None,
        "clients": run.concurrency or len(requests.prompt_lens),
        "max_batched_tokens": engine.max_num_batched_tokens or 8192,
        "max_sequences": max(engine.max_num_seqs or 256, run.concurrency or 0),
        "prefix_caching": engine.enable_prefix_caching,
        "blocks": run.kv_tokens // 16 if run.kv_tokens else engine.num_gpu_blocks,
        "speculation": None,
    }


def of_silicon() -> Iterator[tuple[Row, MeasuredRun]]:
    """Yield questions of the loads that were drawn in silicon, and what was measured."""
    silicon, folder = script("silicon/run"), tables_folder()
    for row in silicon.drawn(silicon.rows_of(folder)):
        server = silicon.server_of(row, folder)
        [run] = silicon.runs_of([row], server)
        gpus = server.tp * server.dp
        formats = {name: row[name] for name in ("gemm_quant_mode", "moe_quant_mode") if row[name]}
        said = {
            "model": SHIPPED.get(row["model_path"], row["model_path"]),
            "hardware": row["system"],
            "as_published": True,
            "backend": row["backend"],
            "tensor": server.tp,
            "data": server.dp,
            "experts": gpus if server.is_expert_parallel else 1,
            "formats": formats | {"kvcache_quant_mode": server.kv_dtype},
        }
        yield question_of("silicon", run, said), run


def servers() -> Iterator[Asked]:
    loads = script("gpu-runs/measured_loads")
    for server in (*loads.SERVERS, *loads.OTHERS):
        if server.build["gpu"] in SYSTEMS:
            yield Asked.of(server, loads)
    runs = read_table(HERE.parent / "vllm-h200" / "runs.csv")
    yield Asked(
        "h200-llama-3.1-8b",
        [run for run in runs if not run.cells["compiled_s"]],
        {
            "model": SHIPPED["llama-3.1-8b"],
            "hardware": "h200_sxm",
            "tensor": 1,
            "formats": FORMATS[""] | {"kvcache_quant_mode": "bfloat16"},
        },
        {"eagle3": "eagle3-llama-3.1-8b", "draft_model": "llama-3.2-1b"},
        load_profile("h200/llama-3.1-8b"),
        METRICS,
    )


def answers() -> dict[tuple[str, str], Row]:
    with (HERE / "answers.csv").open(newline="", encoding="utf-8") as file:
        return {(row["set"], row["id"]): row for row in csv.DictReader(file)}


def theirs(ours: Sequence[Prediction], said: dict[tuple[str, str], Row], name: str) -> Any:
    """Return what AISimulate says of the same runs, as far as it answered."""
    for each in ours:
        row = said[name, each.run.run_id]
        if not row["refused"]:
            known = {metric: float(row[metric]) for metric in METRICS}
            yield Prediction(each.run, {**dict.fromkeys(MEASURED, 0.0), **known})


def errors_of(
    asked: Asked, ours: Sequence[Prediction], others: Sequence[Prediction]
) -> Iterator[Row]:
    """Yield errors of both, as shares of what was measured."""
    by_run = {id(each.run): each for each in others}
    for mine in ours:
        run, other = mine.run, by_run.get(id(mine.run))
        for metric in asked.metrics:
            if run.measured.get(metric):
                yield {
                    "set": asked.name,
                    "id": run.run_id,
                    "method": run.method or "none",
                    "k": run.num_speculative_tokens,
                    "metric": metric,
                    "specsim": f"{mine.error(metric):.4f}",
                    "aisimulate": "" if other is None else f"{other.error(metric):.4f}",
                }


def decisions_of(name: str, who: str, found: Iterable[Prediction], speed: str) -> Iterator[Row]:
    """Yield how far speed-ups are off, and what the choice of k costs."""
    errors = TableErrors.of(list(found), speed)
    for up in errors.speed_ups:
        yield {
            "set": name,
            "of": who,
            "what": f"speed-up of {up.choice}",
            "off": f"{up.predicted / up.measured - 1:.4f}",
            "right": int(up.agrees),
        }
    for best in errors.best:
        yield {
            "set": name,
            "of": who,
            "what": "best k",
            "off": f"{best.loss:.4f}",
            "right": int(best.loss == 0),
        }


def silicon_errors(said: dict[tuple[str, str], Row]) -> Iterator[Row]:
    with (HERE.parent / "silicon" / "results.csv").open(newline="", encoding="utf-8") as file:
        ours = {row["id"]: row for row in csv.DictReader(file)}
    for question, run in of_silicon():
        mine, other = ours.get(run.run_id), said["silicon", run.run_id]
        if mine is None:
            continue
        line = f"{question['backend']} {mine['model'].partition('/')[2]} {mine['gpu']}"
        for metric, short in OF_SILICON.items():
            off = "" if other["refused"] else float(other[metric]) / run.measured[metric] - 1
            yield {
                "set": line,
                "id": run.run_id,
                "method": "none",
                "k": 0,
                "metric": metric,
                "specsim": mine[f"error_{short}"],
                "aisimulate": off if off == "" else f"{off:.4f}",
            }


def write(name: str, rows: list[Row]) -> None:
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path, help="write what is asked, no more")
    args = parser.parse_args()
    if args.questions is not None:
        with args.questions.open("w", encoding="utf-8") as file:
            for asked in servers():
                file.writelines(json.dumps(each) + "\n" for each in asked.questions())
            file.writelines(json.dumps(question) + "\n" for question, _ in of_silicon())
        return
    said, errors, decisions = answers(), [], []
    for asked in servers():
        ours = predict(asked.runs, asked.profile)
        others = list(theirs(ours, said, asked.name))
        errors += errors_of(asked, ours, others)
        answered = {id(each.run) for each in others}
        both = [each for each in ours if id(each.run) in answered]
        speed = next(each for each in ("output_tok_s", "tpot_mean_ms") if each in asked.metrics)
        for who, found in (("specsim", both), ("aisimulate", others)):
            decisions += decisions_of(asked.name, who, found, speed)
        print(asked.name, len(asked.runs), "runs,", len(others), "answered by both", flush=True)
    write("results.csv", [*errors, *silicon_errors(said)])
    write("decisions.csv", decisions)


if __name__ == "__main__":
    main()
