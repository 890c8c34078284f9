"""Command lines of vLLM and SGLang, read as an engine's settings."""

import csv
import json

import pytest
from conftest import ROOT

from specsim.core.errors import ConfigError
from specsim.engine.config import EngineConfig
from specsim.study.plan.command import read_command

EAGLE = '{"method": "eagle3", "model": "a/head", "num_speculative_tokens": 3}'


def test_every_flag_that_matters_reaches_the_engine() -> None:
    command = read_command(
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 "
        "--max-num-seqs 64 --max_num_batched_tokens=4K --max-model-len 32k --block-size 32 "
        "--no-enable-prefix-caching --gpu-memory-utilization .9 --no-async-scheduling "
        "--num-gpu-blocks-override 5000 --scheduling-policy priority \\\n --port 8000",
        "vllm",
    )
    assert command.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert command.tensor_parallel_size == 2
    assert command.engine == {
        "max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_model_len": 32_000,
        "block_size": 32, "enable_prefix_caching": False, "gpu_memory_utilization": 0.9,
        "async_scheduling": False, "num_gpu_blocks": 5000, "scheduling_policy": "priority",
    }  # fmt: skip
    assert EngineConfig.model_validate(command.engine).max_num_seqs == 64
    assert command.notes == ["without effect on the answer: --port"]


@pytest.mark.parametrize(
    "flags",
    [
        f"--speculative-config '{EAGLE}'",
        f"--speculative-config='{EAGLE}'",
        "--speculative-config.method eagle3 --speculative-config.model a/head "
        "--speculative-config.num_speculative_tokens 3",
    ],
)
def test_speculation_in_all_its_forms(flags: str) -> None:
    command = read_command(f"vllm serve m {flags}", "vllm")
    assert command.speculation == json.loads(EAGLE)


def test_the_line_to_run_keeps_what_was_typed() -> None:
    typed = f"vllm serve m -tp 2 --port 9 --speculative-config '{EAGLE}' --trust-remote-code"
    command = read_command(typed, "vllm")
    line = "vllm serve m --port 9 --trust-remote-code --tensor-parallel-size 4"
    assert command.with_options(4, None) == line
    again = read_command(command.with_options(4, json.loads(EAGLE)), "vllm")
    assert (again.speculation, again.tensor_parallel_size) == (json.loads(EAGLE), 4)


def test_what_changes_speed_and_is_not_simulated_is_named() -> None:
    command = read_command("vllm serve m --enable-dbo --kv-cache-dtype fp8 -dp 2", "vllm")
    assert len(command.notes) == 2
    assert "--enable-dbo" in command.notes[1]
    assert command.ranks == 2


def test_what_is_said_of_graphs_reaches_the_engine() -> None:
    typed = "vllm serve m --enforce-eager --max-cudagraph-capture-size 64"
    engine = {"enforce_eager": True, "max_cudagraph_capture_size": 64}
    assert read_command(typed, "vllm").engine == engine
    typed = "python -m sglang.launch_server --model-path m --disable-cuda-graph"
    assert read_command(typed, "sglang").engine == {"enforce_eager": True}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("vllm serve", "names no model"),
        ("vllm serve m --max-num-seqs", "--max-num-seqs needs a value"),
        ("vllm serve m --max-num-seqs many", "should be a whole number"),
        ("vllm serve m --gpu-memory-utilization x", "should be a number"),
        ("vllm serve m -tp 2 --tensor-parallel-size 4", "given twice"),
        ("vllm serve m --pipeline-parallel-size 2", "--pipeline-parallel-size 2: .* --pp"),
        ("vllm serve m --enable-lora", "--enable-lora True: .*lora_config, or"),
        ("vllm serve m --lora-modules a=/x b=/y", "--lora-modules a=/x b=/y: .*lora_config, or"),
        ("vllm serve m --quantization gptq", "weights in gptq: of which bits does not follow"),
        ("vllm serve m-GPTQ-Int8", "weights in gptq: .* name a folder with the model's"),
        ("vllm serve m --dtype float32", "profiles are of 16 bits"),
        ("vllm serve m --speculative-config '{'", "not JSON"),
        ("vllm serve m --speculative-config 3", "should be a JSON object"),
        (
            "vllm serve m --speculative-config.method draft_model "
            "--speculative-config.own_gpus true",
            "ask specsim capacity",
        ),
        ("vllm serve m --enable-prefix-caching=maybe", "should be true or false"),
        ("vllm serve 'm", "quote it as in a shell"),
        ("python -m sglang.launch_server --model m", "use --sglang"),
    ],
)
def test_what_is_wrong_is_one_line(typed: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        read_command(typed, "vllm")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("m-AWQ", "int4"),
        ("m-GPTQ-Int4", "int4"),
        ("m-NVFP4", "nvfp4"),
        ("m-FP8-dynamic", "fp8"),
        ("m --quantization=awq_marlin", "int4"),
        ("m --quantization none", None),
    ],
)
def test_how_weights_are_stored_follows_from_names(typed: str, stored: str | None) -> None:
    assert read_command(f"vllm serve {typed}", "vllm").weights == stored


def test_flags_that_ask_for_nothing_are_taken() -> None:
    typed = "vllm serve m --pipeline-parallel-size 1 --quantization fp8 --dtype half"
    assert read_command(typed, "vllm").weights == "fp8"


@pytest.mark.parametrize("level", ["-O3 m", "m -O 3", "m -O=3", "m --optimization-level 3"])
def test_short_forms_are_those_of_vllm(level: str) -> None:
    command = read_command(f"vllm serve {level} -ep -cc.mode 3 -ac.backend x --seed 1", "vllm")
    assert (command.model, command.engine) == ("m", {"enable_expert_parallel": True})
    said, rest = command.notes
    assert set(said.removeprefix("not simulated, though it changes speed: ").split(", ")) == {
        "--optimization-level", "--compilation-config.mode", "--attention-config.backend",
    }  # fmt: skip
    assert rest == "without effect on the answer: --seed"


def test_sglang_is_read_under_vllm_s_names() -> None:
    command = read_command(
        "python -m sglang.launch_server --model-path m --tp 2 --context-length 8192 "
        "--max-running-requests 32 --chunked-prefill-size 4096 --mem-fraction-static 0.85 "
        "--disable-radix-cache --speculative-algorithm EAGLE3 --speculative-num-steps 3 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "
        "--speculative-draft-model-path a/head",
        "sglang",
    )
    assert (command.model, command.tensor_parallel_size) == ("m", 2)
    assert command.engine == {
        "max_model_len": 8192, "max_num_seqs": 32, "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": 0.85, "enable_prefix_caching": False,
    }  # fmt: skip
    assert command.speculation == {
        "method": "eagle3", "num_speculative_tokens": 3, "model": "a/head",
    }  # fmt: skip
    with (ROOT / "experiments" / "model-error" / "servers.csv").open(newline="") as stream:
        inside = [row["inside"] for row in csv.DictReader(stream) if row["role"] == "other engine"]
    said = f"of {len(inside)} under SGLang, which took no part, {inside.count('1')} were within it"
    [note] = [note for note in command.notes if "scheduled as vLLM does, not as SGLang" in note]
    assert said in note
    line = command.with_options(2, command.speculation)
    assert "--speculative-num-draft-tokens 4" in line
    assert read_command(line, "sglang").speculation == command.speculation


def test_sglang_trees_are_refused() -> None:
    with pytest.raises(ConfigError, match="trees"):
        read_command("sglang serve --model m --speculative-algorithm EAGLE "
                     "--speculative-eagle-topk 4", "sglang")  # fmt: skip


@pytest.mark.parametrize(
    "slip", ["--tensor-paralel-size 2", "--max-num-seq 64", "--blok-size 32", "--tensor-parallel 2"]
)
def test_a_slip_in_a_flag_that_counts_is_refused(slip: str) -> None:
    with pytest.raises(ConfigError, match="no such flag; did you mean --"):
        read_command(f"vllm serve Qwen/Qwen3-8B {slip}", "vllm")


def test_flags_that_are_alike_are_no_slips() -> None:
    known = "--max-num-partial-prefills 2 --max-long-partial-prefills 2 --kv-cache-memory-bytes 9"
    notes = read_command(f"vllm serve Qwen/Qwen3-8B {known} --max-logprobs 5", "vllm").notes
    assert any("--max-logprobs" in note for note in notes)
