"""One engine, a few requests with recorded acceptance, round step times."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml

from specsim.core.request import Request
from specsim.profile import find_profile
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate

CHEAP = {
    "eagle3": {"basis": "draft", "latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0,
                                             "delta_ms": 31.25}},
    "draft_model": {"basis": "pass", "latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0,
                                                 "delta_ms": 62.5}},
    "medusa": {"basis": "heads", "latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0,
                                             "delta_ms": 31.25}},
    "ngram": {"target_share": 0.0},
}  # fmt: skip


@pytest.fixture
def serve(constant_step: Callable[..., str]) -> Callable[..., Run]:
    """Serve requests (arrival, prompt, output) whose drafts survive as `tables` say."""

    def run(
        policy: Any,
        rows: list[tuple[float, int, int]],
        tables: list[list[int]] | None = None,
        *,
        speculative: tuple[str, int] = ("eagle3", 3),
        costs: Any = None,
        tokens: list[tuple[list[int], list[int]]] | None = None,
        seed: int = 0,
        check: bool = True,
        **engine: Any,
    ) -> Run:
        method, longest = speculative
        config = {
            "workload": {
                "arrivals": {"kind": "burst"},
                "lengths": {"kind": "constant", "prompt": 1, "output": 1},
                "num_requests": len(rows),
            },
            "engine": {
                "num_gpu_blocks": 400,
                "max_model_len": 128,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 256,
                "async_scheduling": False,
                "enable_prefix_caching": False,
                "speculative_config": {"method": method, "num_speculative_tokens": longest},
                **engine,
            },
            "policy": policy,
            "acceptance": (
                {"kind": "bernoulli", "alpha": 1.0}
                if tables is None
                else {"kind": "recorded", "proposer": "x"}
            ),
            "profile": constant_step(**{"delta_ms": 250, "drafts": CHEAP, **(costs or {})}),
            "seed": seed,
        }
        requests = []
        for i, (at, prompt, output) in enumerate(rows):
            ids = [np.array(row) for row in tokens[i]] if tokens else [None, None]
            record = {} if tables is None else {"x": bytes(tables[i])}
            requests.append(
                Request(
                    index=i,
                    arrived_at=at,
                    prompt_len=prompt,
                    output_len=output,
                    prompt_token_ids=ids[0],
                    output_token_ids=ids[1],
                    recorded_lens=record,
                )
            )
        return simulate(Experiment.parse(config, "timeline"), requests=requests, check=check)

    return run


@pytest.fixture
def steps() -> Callable[..., list[Any]]:
    """Return columns of the steps of a run."""

    def columns(run: Run, *names: str) -> list[Any]:
        table = run.replicas[0].steps
        if len(names) == 1:
            return [float(value) for value in table[names[0]]]
        return [tuple(float(row[name]) for name in names) for row in table]

    return columns


@pytest.fixture(scope="session")
def in_graphs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a profile whose draft model is launched at once, as where CUDA graphs hold it.

    Then it is worth its time, and reading prompts is what a drafter that is not costs.
    """
    path = find_profile("h100/llama-3.1-8b-kernels")
    fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    for launches in ("prompts_at_least_us", "decodes_at_least_us"):
        del fields["drafts"]["draft_model"]["latency"][launches]
    made = tmp_path_factory.mktemp("profiles") / "in-graphs.yaml"
    made.write_text(yaml.safe_dump(fields), encoding="utf-8")
    return str(made)
