"""Real clients: OpenAI's package, a Prometheus scraper, `specsim observe`, `vllm bench serve`."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from serving import Served, serving, word_tokenizer
from tiny_model import NEEDS_VLLM, PYTHON

from specsim.reality.observe import Options as ObserveOptions
from specsim.reality.observe import load_workload, observe
from specsim.serve import ServeOptions

_BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""  # what `vllm bench serve` does, which wants to know the version of a package of another name


def test_openai_package(served: Served) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        (model,) = client.models.list().data
        said = [{"role": "user", "content": "hello"}]
        whole = client.chat.completions.create(model=model.id, messages=said, max_tokens=7)
        assert whole.usage.completion_tokens <= 7
        assert whole.choices[0].message.role == "assistant"
        stream = client.chat.completions.create(
            model=model.id,
            messages=said,
            max_completion_tokens=7,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        *chunks, last = list(stream)
        assert last.usage.completion_tokens == 7
        assert chunks[-1].choices[0].finish_reason == "length"
        plain = client.completions.create(model=model.id, prompt="hello", max_tokens=3)
        assert plain.choices[0].text
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.completions.create(model="gpt-4", prompt="hello")
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            client.completions.create(model=model.id, prompt="hello", logprobs=2)


def test_prometheus_scraper() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    asked = {"prompt": list(range(40)), "max_tokens": 20, "ignore_eos": True}
    with serving() as served:
        for _ in range(3):
            assert served.ask("/v1/completions", asked)[0] == 200
        page = served.ask("/metrics")[1]
    families = {each.name: each for each in parser.text_string_to_metric_families(page)}
    samples = {
        (each.name, *sorted(each.labels.items())): each.value
        for family in families.values()
        for each in family.samples
    }
    own = (("engine", "0"), ("model_name", "llama-3.1-8b"))
    assert samples["vllm:generation_tokens_total", *own] == 60
    assert samples["vllm:prompt_tokens_total", *own] == 120
    assert samples["vllm:prefix_cache_queries_total", *own] == 120
    assert samples["vllm:prefix_cache_hits_total", *own] > 0
    assert samples["vllm:request_success_total", own[0], ("finished_reason", "length"), own[1]] == 3
    assert samples["vllm:num_requests_running", *own] == 0
    assert samples["vllm:kv_cache_usage_perc", *own] == 0
    drafts = samples["vllm:spec_decode_num_drafts_total", *own]
    accepted = samples["vllm:spec_decode_num_accepted_tokens_total", *own]
    assert samples["vllm:spec_decode_num_draft_tokens_total", *own] == 3 * drafts
    per_position = [
        samples["vllm:spec_decode_num_accepted_tokens_per_pos_total", *own, ("position", str(k))]
        for k in range(3)
    ]
    assert sum(per_position) == accepted
    assert per_position == sorted(per_position, reverse=True)
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
        assert families[f"vllm:{name}"].type == "histogram"
        assert samples[f"vllm:{name}_count", *own] == 3
        assert samples[f"vllm:{name}_bucket", own[0], ("le", "+Inf"), own[1]] == 3
    gaps = samples["vllm:inter_token_latency_seconds_count", *own]
    assert 3 * 20 / 4 - 3 <= gaps < 3 * 20


def test_observe_measures_it(served: Served, tmp_path: Path) -> None:
    workload = tmp_path / "workload.yaml"
    workload.write_text(
        "workload:\n  arrivals: {kind: poisson, rate: 40}\n"
        "  lengths: {kind: constant, prompt: 30, output: 12}\n  num_requests: 10\n"
    )
    planned = load_workload(workload, [])
    found = observe(served.url, planned, tmp_path / "run", options=ObserveOptions(num_warm_up=1))
    assert not found.errors
    rows = [json.loads(line) for line in (tmp_path / "run/requests.jsonl").read_text().splitlines()]
    assert [row["output_toks"] for row in rows] == [12] * 10


@NEEDS_VLLM
@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_vllm_bench_serve(backend: str, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "model")
    path = "chat/completions" if backend == "openai-chat" else "completions"
    with serving(ServeOptions(port=0, speed=2.0, grace=0.5, tokenizer=tokenizer)) as served:
        command = [
            PYTHON, "-c", _BENCH, "--backend", backend,
            "--base-url", served.url, "--endpoint", f"/v1/{path}", "--model", "llama-3.1-8b",
            "--tokenizer", str(tokenizer.parent), "--dataset-name", "random", "--random-input-len",
            "50", "--random-output-len", "20", "--num-prompts", "20", "--request-rate", "40",
            "--ignore-eos", "--save-result", "--result-filename", str(tmp_path / "result.json"),
        ]  # fmt: skip
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
        ran = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=180, env=environment
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == 20
    assert result["total_output_tokens"] == 400
    assert result["mean_ttft_ms"] > 0 < result["mean_itl_ms"]
    assert result["spec_decode_acceptance_length"] > 1  # of /metrics
