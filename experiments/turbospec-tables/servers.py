"""The servers of TurboSpec's tables 4 and 5 as experiments: what run.py fits and predicts."""

import csv
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from stretches import ACCEPTED, HITS, acceptance

from specsim.api import Experiment, Profile, Summary, Trace, simulate
from specsim.core.rng import generator
from specsim.hardware import GIB, ModelShape, load_gpu, load_model

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "papers"
DURATION = 110.0
"""Seconds during which requests arrive; those that are left are served to the end."""
CONFIGS = ("Org", "k=1", "k=3", "k=5", "k=7", "TS")
LOOKUP = "CNN-DailyMail"
"""The dataset that is served with prompt lookup in place of a draft model."""
LONGEST = 7
"""Longest draft of TurboSpec, tokens: that of fig. 10."""
PASS_MS, PROPOSE_MS = 0.37, 0.83
"""Of a draft pass beside weights and arithmetic, and of a proposal; from the shares in fig. 16."""
REACHED_BYTES, REACHED_FLOPS = 0.84, 0.6
"""Of the data sheets' bandwidth and FLOP/s, by the measured kernels of the targets."""
STEP_MS = 2.0
"""Host time of vLLM V0 per step."""
SEEDS = 3
"""Runs that a prediction is the mean of; the fit uses the first."""


SINGLE = ("compute", "memory", "host_us", "request_us", "hit")
"""Parameters that are not of one dataset."""


class Server(NamedTuple):
    """One target of table 1."""

    hardware: str
    target: str
    model: str
    gpu: str
    tensor_parallel_size: int
    draft: str
    max_model_len: int


SERVERS = (
    Server("L40S", "Vicuna-7B", "vicuna-7b", "l40s", 1, "llama-160m", 4096),
    Server("L40S", "Vicuna-13B", "vicuna-13b", "l40s", 1, "llama-160m", 4096),
    Server("H100", "Vicuna-33B", "vicuna-33b", "h100", 2, "llama-160m", 2048),
    Server("H100", "Llama3-70B", "llama-3.1-70b", "h100", 4, "llama-3.2-1b", 4096),
)


BESIDE = tuple(
    Server(gpu.upper(), "Llama-2-7B", "llama-2-7b", gpu, 1, "vicuna-160m", 4096)
    for gpu in ("l40s", "h100")
)
"""Those of experiments/turbospec-adaptation."""


class Cell(NamedTuple):
    """One number of the tables."""

    dataset: str
    qps: str
    config: str


def method(cell: Cell) -> str:
    """Return what the tables call the way of drafting."""
    return "PLD" if cell.dataset == LOOKUP else "Draft-based"


@dataclass(frozen=True)
class Parameters:
    """What is fitted of one target."""

    compute: float = 0.9
    """Speed of computing, times that of the measured kernels."""
    memory: float = 1.0
    """The same of reading; of the draft model, which no kernels were measured for, as well."""
    scale: dict[str, float] = field(default_factory=dict)
    """Output lengths over those of table 2, by dataset."""
    host_us: float = 30.0
    """Host time of a step per sequence."""
    request_us: float = 100.0
    """Of a speculative step with k = 1 beyond that, per sequence."""
    hit: float = HITS[1]
    """P(prompt lookup finds a match) with k = 1."""

    def row(self) -> dict[str, float]:
        scales = {f"scale_{dataset}": value for dataset, value in self.scale.items()}
        single = {name: getattr(self, name) for name in SINGLE}
        return {name: float(f"{value:.4g}") for name, value in {**single, **scales}.items()}

    def rounded(self) -> "Parameters":
        """Return what a row of parameters.csv holds, so that it is all that predictions rest on."""
        return self.of_row(self.row())

    @classmethod
    def of_row(cls, row: dict[str, float]) -> "Parameters":
        scale = {name[6:]: value for name, value in row.items() if name.startswith("scale_")}
        single = {name: value for name, value in row.items() if not name.startswith("scale_")}
        return cls(**single, scale=scale)


def read(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((DATA / name).read_text().splitlines()))


def measured() -> dict[str, dict[Cell, float]]:
    """Return the published latencies at hand, seconds, by target."""
    found: dict[str, dict[Cell, float]] = {server.target: {} for server in SERVERS}
    for row in read("turbospec_table4.csv") + read("turbospec_table5_org_k1.csv"):
        cell = Cell(row["dataset"], row["qps"], row["config"])
        found[row["target"]][cell] = float(row["latency_s"])
    return found


def saturated(known: dict[Cell, float]) -> dict[tuple[str, str], bool]:
    """Return which rows are: Org at 2.5 times its value at the lowest rate, or above."""
    lowest: dict[str, float] = {}
    org = {cell: seconds for cell, seconds in known.items() if cell.config == "Org"}
    for cell, seconds in org.items():  # rates rise within a dataset
        lowest.setdefault(cell.dataset, seconds)
    return {
        (cell.dataset, cell.qps): seconds >= 2.5 * lowest[cell.dataset]
        for cell, seconds in org.items()
    }


def lens(mean: float, std: float, count: int, most: float, rng: np.random.Generator) -> np.ndarray:
    """Return lognormal lengths of just this mean: quantiles at even steps, in random order."""
    variance = math.log(1 + (std / mean) ** 2)
    steps = ndtri((np.arange(count) + 0.5) / count)
    values = np.exp(math.log(mean) - variance / 2 + math.sqrt(variance) * steps)
    for _ in range(20):
        values = np.clip(values * mean / values.mean(), 2, most)
    rng.shuffle(values)
    return np.maximum(1, np.rint(values)).astype(np.int64)


def trace(server: Server, cell: Cell, scale: float, seed: int) -> Trace:
    """Return the requests: as many as are expected, at uniform instants (Poisson, given them)."""
    [stats] = [
        {name: float(row[name]) for name in list(row)[3:]}
        for row in read("turbospec_table2.csv")
        if (row["target"], row["dataset"]) == (server.target, cell.dataset)
    ]
    count, rng = round(float(cell.qps) * DURATION), generator(seed, "turbospec", cell.dataset)
    times = np.sort(rng.uniform(0, DURATION, count))
    limit = server.max_model_len
    prompts = lens(stats["input_mean"], stats["input_std"], count, 0.75 * limit, rng)
    mean, std = scale * stats["output_mean"], scale * stats["output_std"]
    return Trace(prompts, lens(mean, std, count, 0.25 * limit - 1, rng)).at_times(times)


def measured_target(server: Server, found: Parameters) -> dict:
    """Return step times by the measured kernels of matrices, and by the bytes of the KV cache.

    Contexts are read as fast as weights: the tables repeat one layer, whose cache stays in L2.
    """
    lines = (HERE / "kernels.csv").read_text().splitlines()
    key = (server.gpu, server.model, str(server.tensor_parallel_size))
    rows = [row for row in csv.DictReader(lines) if (row["gpu"], row["model"], row["tp"]) == key]
    tokens = [int(row["tokens"]) for row in rows]
    read = [float(row["read_us"]) for row in rows]
    shape, size = load_model(server.model), server.tensor_parallel_size
    weights = shape.bytes_per_weight * read_weights(shape) / size
    context_us = shape.kv_bytes_per_token_and_gpu(size) * read[0] / weights / found.memory
    longest, most = 131_072, 512
    ends = [[context_us * length * count for count in (1, most)] for length in (1, longest)]
    return {
        "kind": "composed",
        "batched_tokens": tokens,
        "read_us": read,
        "compute_us": [float(row["compute_us"]) for row in rows],
        "head": {"at": [1, 2], "times_us": [0.0, 0.0]},  # in the times above
        "attention": [
            {
                "num_layers": 1,
                "context_tokens": [1, longest],
                "sequences": [1, most],
                "decode_us": ends,
                "prompt": {"at": [1, longest], "times_us": [row[0] for row in ends]},
            }
        ],
        "read_factor": 1 / found.memory,
        "compute_factor": 1 / found.compute,
    }


def read_weights(shape: ModelShape) -> int:
    """Return how many weights a step reads: of the embedding it only looks up rows."""
    table = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
    return shape.num_parameters - table


def draft_pass(server: Server, found: Parameters) -> dict:
    """Return TurboSpec's eq. 3 from the data sheet and the share of it that is reached."""
    shape, gpu = load_model(server.draft), load_gpu(server.gpu)
    assert gpu.memory_gb_per_s is not None
    bandwidth = gpu.memory_gb_per_s * 1e9 * found.memory * REACHED_BYTES
    flops = gpu.peak_tflops["float16"] * 1e12 * found.compute * REACHED_FLOPS
    weights = read_weights(shape)
    return {
        "kind": "linear",
        "alpha_ns": shape.kv_bytes_per_token / bandwidth * 1e9,
        "gamma_us": 2 * weights / flops * 1e6,
        "delta_ms": shape.bytes_per_weight * weights / bandwidth * 1e3 + PASS_MS,
    }


def draft_host_us(found: Parameters, draft_len: int) -> float:
    """Return the host time of a sequence with a draft model, beyond a step without; microseconds.

    Half of what it is at k = 1 is once per sequence, half of each place of its draft and the bonus
    token: see PROTOCOL.md.
    """
    return found.request_us * (draft_len + 3) / 4


def lookup_host_us(found: Parameters, draft_len: int) -> float:
    """Return the same with lookups: in proportion to the tokens that a step yields."""

    def emitted(length: int) -> float:
        return 1 + found.hit * HITS[length] / HITS[1] * ACCEPTED[length]

    return found.request_us * emitted(draft_len) / emitted(1)


def profile(server: Server, found: Parameters, lookup_len: int = LONGEST) -> Profile:
    """Return the profile of a server, of which lookups draft this many tokens."""
    size, draft = server.tensor_parallel_size, load_model(server.draft)
    model = {
        "basis": "pass",
        "latency": draft_pass(server, found),
        "weights_gib": draft.weight_bytes / GIB,
        "kv_bytes_per_token": draft.kv_bytes_per_token,
        "step_ms": PROPOSE_MS,
        "request_us": draft_host_us(found, 0),
        "token_us": draft_host_us(found, 1) - draft_host_us(found, 0),
    }
    return Profile.model_validate(
        {
            "model": server.model,
            "gpu": server.gpu,
            "tensor_parallel_size": size,
            "provenance": {
                "engine": "vLLM V0",
                "source": "kernels of vLLM 0.24; Org and k = 1 of TurboSpec's tables",
                "date": "2026-11-23",
            },
            "target": measured_target(server, found),
            "drafts": {
                "draft_model": model,
                "ngram": {"request_us": lookup_host_us(found, lookup_len)},
            },
            "overhead": {"step_ms": STEP_MS, "request_us": found.host_us},
            "valid_range": {"context_tokens": 10**7, "batched_tokens": 10**6},
            "reserved_gib": 1.15,
        }
    )


def longest(cell: Cell) -> int:
    """Return the length of the drafts of a cell, that of TurboSpec's longest; 0 without."""
    lens = {"Org": 0, "TS": LONGEST}
    return lens[cell.config] if cell.config in lens else int(cell.config[2:])


def experiment(server: Server, cell: Cell, found: Parameters, seed: int) -> Experiment:
    base = Experiment.load(HERE / "experiment.yaml")
    engine = base.engine.model_dump(mode="json", exclude_none=True)
    engine["max_model_len"] = server.max_model_len
    if cell.config == "Org":
        return base.replace(engine=engine, seed=seed)
    length = longest(cell)
    drafter = {"method": "draft_model", "num_speculative_tokens": length}
    if cell.dataset == LOOKUP:
        share = found.hit * HITS[length] / HITS[1]
        drafter.update({"method": "ngram", "match_probability": share})
    [rate] = [
        float(row["token_acceptance_rate"])
        for row in read("turbospec_table3.csv")
        if (row["target"], row["dataset"]) == (server.target, cell.dataset)
    ]
    return base.replace(
        engine={**engine, "speculative_config": drafter},
        acceptance=acceptance(rate).model_dump(mode="json"),
        policy={"kind": "turbospec" if cell.config == "TS" else "static"},
        seed=seed,
    )


def latency(server: Server, cell: Cell, found: Parameters, seed: int) -> float:
    """Return the simulated mean latency, seconds."""
    requests = list(trace(server, cell, found.scale[cell.dataset], seed).requests())
    run = simulate(
        experiment(server, cell, found, seed),
        requests=requests,
        profile=profile(server, found, longest(cell) or LONGEST),
    )
    return float(Summary(run).data["mean_e2el_ms"]) / 1e3


def prediction(server: Server, cell: Cell, found: Parameters) -> float:
    """Return the mean over the seeds, seconds."""
    times = [latency(server, cell, found, seed) for seed in range(SEEDS)]
    return round(sum(times) / SEEDS, 3)
