"""Command lines of vLLM and SGLang, read as an engine's settings."""

import csv
import json
import re
from pathlib import Path

import pytest
from conftest import ROOT

from specsim.core.errors import ConfigError
from specsim.engine.config import EngineConfig
from specsim.study.plan.command import read_command
from specsim.study.plan.flags import FLAGS
from specsim.study.plan.question import question_of

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


@pytest.mark.parametrize("passed", ['"$@"', "$*", '"${@}"', "${EXTRA[@]}", '"${MORE_ARGS[*]}"'])
def test_what_a_script_passes_on_is_no_model(passed: str) -> None:
    for typed in (f"vllm serve m -tp 2 {passed}", f"exec vllm serve {passed} m -tp 2"):
        command = read_command(typed, "vllm")
        assert (command.model, command.tensor_parallel_size) == ("m", 2)
        assert command.words == ("m", "-tp", "2")
        word = passed.strip('"')
        assert command.notes == [f"{word}: what a script passes on is not known, and left out"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("m --api-key s3cret other -tp 2", "m --api-key YOUR-API-KEY -tp 2"),
        (
            "m --api_key=s3cret --hf-token s3cret",
            "m --api_key YOUR-API-KEY --hf-token YOUR-HF-TOKEN",
        ),
        ("--hf-token s3cret m", "--hf-token YOUR-HF-TOKEN m"),
    ],
)
def test_secrets_of_a_command_are_not_kept(typed: str, words: str) -> None:
    command = read_command(f"VLLM_API_KEY=s3cret vllm serve {typed}", "vllm")
    assert " ".join(command.words) == words
    assert "s3cret" not in repr(command)
    assert any("YOUR-... in place of a secret" in note for note in command.notes)


def test_a_server_that_is_not_simulated_is_named() -> None:
    with pytest.raises(ConfigError, match="'text-generation-launcher' starts a server that is not"):
        read_command("text-generation-launcher --model-id m", "vllm")


def test_a_dotted_field_of_a_drafter_is_json_or_text() -> None:
    typed = "vllm serve m -sc.method eagle3 -sc.model a/7b -sc.enable_adaptive_verification=false"
    drafts = {"method": "eagle3", "model": "a/7b", "enable_adaptive_verification": False}
    assert read_command(typed, "vllm").speculation == drafts


@pytest.mark.parametrize(
    ("drafts", "method"),
    [
        ({"method": "qwen3_next_mtp"}, "mtp"),
        ({"method": "deepseek_mtp"}, "mtp"),
        ({"model": "google/gemma-4-31B-it-assistant"}, "mtp"),
        ({"model": "a/Model"}, "mtp"),  # the target's own layers
        ({"model": "[ngram]"}, "ngram_gpu"),
        ({"method": "ngram"}, "ngram_gpu"),
        ({"model": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B"}, "eagle"),
        ({"model": "AngelSlim/Qwen3-8B_eagle3"}, "eagle3"),
        ({"method": "draft_model", "model": "z-lab/Qwen3-8B-DFlash-b16"}, "dflash"),
        ({"model": "Qwen/Qwen3-0.6B"}, "draft_model"),
    ],
)
def test_a_drafter_is_the_one_that_vllm_takes(drafts: dict[str, str], method: str) -> None:
    typed = json.dumps({**drafts, "num_speculative_tokens": 2})
    command = read_command(f"vllm serve a/Model --speculative-config '{typed}'", "vllm")
    assert (command.speculation or {})["method"] == method


def test_the_short_flags_of_a_drafter_say_it() -> None:
    typed = "vllm serve m --spec-method eagle3 --spec-model a/head --spec-tokens 3"
    command = read_command(typed, "vllm")
    assert command.speculation == json.loads(EAGLE)
    assert "--spec-" not in command.with_options(1, None)


def test_a_file_of_flags_says_what_the_command_line_does_not(tmp_path: Path) -> None:
    (tmp_path / "flags.yaml").write_text(
        "tensor-parallel-size: 4\nmax-num-seqs: 64\nenable-prefix-caching: false\n"
        "no-async-scheduling: true\ncompilation-config: {mode: 3}\nmiddleware: [a, b]\n"
        "seed: null\nspeculative-config: " + EAGLE
    )
    typed = f"vllm serve m --max_num_seqs 8 --config {tmp_path}/flags.yaml --port 9"
    command = read_command(typed, "vllm")
    assert (command.model, command.tensor_parallel_size) == ("m", 4)
    assert command.engine == {
        "max_num_seqs": 8, "enable_prefix_caching": False, "async_scheduling": False,
    }  # fmt: skip
    assert command.speculation == json.loads(EAGLE)
    assert "mode" not in str(command.engine)
    assert "--compilation-config" in command.notes[0]
    # What is written down to be run needs no file, and has no drafts where none are taken.
    assert read_command(command.with_options(2, None), "vllm").engine == command.engine
    assert "eagle3" not in command.with_options(2, None)


@pytest.mark.parametrize(
    "line",
    [
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.32.0 m -tp 2",
        "docker run -e A=b vllm/vllm-openai --model m -tp 2",
        "docker run rocm/vllm:latest vllm serve m -tp 2",
        "cd /srv && vllm serve m -tp 2 > log.txt 2>&1 &",
        "vllm serve m -tp 2 | tee log",
        "vllm serve m -tp 2 2>&1 | tee - log",
        "vllm serve m -tp 2 &> log.txt",
        "vllm serve m -tp 2 >> log.txt |& tee -a log",
        "vllm serve m -tp 2; echo done",
        "vllm serve m -tp 2& sleep 60",
        "vllm serve m -tp 2 < /dev/null",
        "bash -c 'vllm serve m -tp 2'",
        "docker run image sh -lc 'cd /srv && exec vllm serve m -tp 2 | tee log'",
        "python -m vllm.entrypoints.api_server --model m -tp 2",
        "vllm serve m \\  \n -tp 2",
        "vllm serve m \\\r\n -tp 2",
        "set -e\nvllm serve m -tp 2\necho done\n",
        "vllm serve\nm\n\n-tp\n2\n",
        "vllm serve m\n --tensor-parallel-size\n   2\n \nwait $!\nexit 0",
        "export MODEL=m SIZE=2;\nvllm serve $MODEL -tp ${SIZE}",
        "M=m; bash -c 'T=2; vllm serve ${M:-x} -tp $T'",
        "vllm serve ${MODEL:-m} -tp ${T-2}",
    ],
)
def test_what_a_shell_has_around_it_is_left_out(line: str) -> None:
    command = read_command(line, "vllm")
    assert (command.model, command.tensor_parallel_size, command.notes) == ("m", 2, [])


@pytest.mark.parametrize(
    "text",
    [
        '["vllm", "serve", "m", "-tp", "2"]',
        "- --model\n- m\n- --tensor-parallel-size\n- 2",
        "args:\n  - --model=m\n  - --tensor-parallel-size=2",
        "args: [--model, m, -tp, 2]",
        '# ours\n{"args": ["--model", "m", "-tp", "2"]}',
        "command: [vllm, serve]\nargs: [m, -tp, '2']",
        "args: [m, -tp, '2']\ncommand: [vllm, serve]",
        "command: [bash, -c]\nargs:\n- |\n  # on two\n  vllm serve m \\\n    -tp 2\n",
        'args: ["vllm serve m -tp 2"]',
        "image: vllm/vllm-openai:v0.33.0\nentrypoint: vllm serve\ncommand: m -tp 2",
        "services: {a: {image: redis, command: redis-server}, b: {command: vllm serve m -tp 2}}",
        "services: {a: {image: vllm, command: m -tp 2}, b: {image: vllm, command: m -tp 2}}",
        "args: [--model, $(M), -tp, $(T)]\nenv: [{name: M, value: m}, {name: T, value: 2}, "
        "{name: KEY, valueFrom: {secretKeyRef: {name: k}}}]",
        "leader: {image: vllm, args: [sh, -c, 'x.sh; vllm serve m -tp 2']}\n"
        "worker: {image: vllm, args: [sh, -c, x.sh worker]}",
        "containers:\n- name: proxy\n  image: envoy\n  args: [-c, x]\n- name: llm\n"
        "  image: vllm/vllm-openai\n  args: [m, -tp, 2]\n"
        "  livenessProbe: {exec: {command: [curl, localhost]}}\n"
        "initContainers: [{image: vllm/vllm-openai, command: [hf, download, m]}]",
    ],
)
def test_a_container_s_words_are_read_as_yaml_or_json_has_them(text: str) -> None:
    command = read_command(text, "vllm")
    assert (command.model, command.tensor_parallel_size, command.notes) == ("m", 2, [])


@pytest.mark.parametrize(
    "text",
    [
        "A=1 VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve m",
        "docker run -e VLLM_ATTENTION_BACKEND=X vllm/vllm-openai --model m",
        "bash -c 'export VLLM_ATTENTION_BACKEND=X\nvllm serve m'",
        "args: [--model, m]\nenv: [{name: VLLM_ATTENTION_BACKEND, value: X}, {name: B, value: 1}]",
        "command: --model m\nenvironment: {VLLM_ATTENTION_BACKEND: X}",
        "command: --model m\nenvironment: [VLLM_ATTENTION_BACKEND=X]",
    ],
)
def test_variables_of_a_server_are_not_ignored_in_silence(text: str) -> None:
    command = read_command(text, "vllm")
    said = "variables are not looked at, and some change speed: VLLM_ATTENTION_BACKEND"
    assert (command.model, command.words[-1], command.notes) == ("m", "m", [said])


def test_no_flag_is_lost_where_a_list_has_a_line_for_each_of_its_values() -> None:
    text = "vllm serve m\n--served-model-name\n  a\n  b\n--max-num-seqs\n  8"
    assert read_command(text, "vllm").engine == {"max_num_seqs": 8}


def test_what_is_an_object_in_a_container_s_words_is_json() -> None:
    text = f"args: [--model, m, --speculative-config, {EAGLE}, --enable-prefix-caching=false]"
    command = read_command(text, "vllm")
    assert command.speculation == json.loads(EAGLE)
    assert command.engine == {"enable_prefix_caching": False}
    assert (
        read_command("args: [--model, m, --revision, 2026-01-01]", "vllm").words[-1] == "2026-01-01"
    )
    text = "command: [python3, -m, sglang.launch_server]\nargs: [--model-path, m, --tp, 2]"
    assert read_command(text, "sglang").tensor_parallel_size == 2


def test_values_of_vllms_helm_chart_are_a_command(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "servingEngineSpec:\n  modelSpec:\n  - name: glm\n    repository: vllm/vllm-openai\n"
        "    modelURL: zai-org/GLM-5-FP8\n    requestGPU: 8\n    vllmConfig:\n"
        "      enablePrefixCaching: false\n      maxModelLen: 32768\n      tensorParallelSize: 8\n"
        f"      v1: 1\n      extraArgs: [--speculative-config, '{EAGLE}']\n"
    )
    command = read_command(str(values), "vllm")
    assert (command.model, command.tensor_parallel_size) == ("zai-org/GLM-5-FP8", 8)
    assert command.engine == {"enable_prefix_caching": False, "max_model_len": 32768}
    assert (command.speculation, command.notes) == (json.loads(EAGLE), [])


def test_what_is_an_object_in_a_chart_is_json_and_a_number_may_be_a_name() -> None:
    chart = "modelSpec:\n- modelURL: m\n  vllmConfig: {%s}\n"
    command = read_command(chart % f"speculativeConfig: {EAGLE}, maxNumSeqs: null", "vllm")
    assert (command.speculation, command.engine) == (json.loads(EAGLE), {})
    assert "--7" in str(read_command(chart % "7: 3", "vllm").notes)


def test_a_manifest_may_be_a_file_of_several_documents(tmp_path: Path) -> None:
    path = tmp_path / "kubernetes.yaml"
    path.write_text(
        "# ours\nkind: Service\nspec: {ports: [80]}\n---\nkind: Deployment\nspec: {template: "
        "{spec: {containers: [{name: llm, args: [--model, m, --max-num-seqs, 8]}], "
        "volumes: [{secret: {defaultMode: 0644}}]}}}\n"
    )
    assert read_command(str(path), "vllm").engine == {"max_num_seqs": 8}


_SAID_OTHERWISE = {  # by other flags, by the answer itself, or not on vLLM's command line
    "model", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "decode_context_parallel_size",
    "vllm_version", "scheduler", "num_gpu_blocks", "kv_groups", "kv_offload",
    "drafter_serves_all", "lora_config", "speculative_config",
}  # fmt: skip


@pytest.mark.parametrize("field", sorted(EngineConfig.model_fields.keys() - _SAID_OTHERWISE))
def test_no_flag_is_lost_that_the_engine_has(field: str) -> None:
    values = {"scheduling_policy": "=fcfs", "gpu_memory_utilization": "=0.5", "watermark": "=0.5"}
    is_switch = "bool" in str(EngineConfig.model_fields[field].annotation)
    value = "" if is_switch else values.get(field, "=8")
    command = read_command(f"vllm serve m --{field.replace('_', '-')}{value}", "vllm")
    said = any(field.replace("_", "-") in note for note in command.notes)
    assert command.engine.keys() == {field} or (said and "speed" in command.notes[0])


def test_the_line_to_run_keeps_what_was_typed() -> None:
    typed = f"vllm serve m -tp 2 --port 9 --speculative-config '{EAGLE}' --trust-remote-code"
    command = read_command(typed, "vllm")
    line = "vllm serve m --port 9 --trust-remote-code --tensor-parallel-size 4"
    assert command.with_options(4, None) == line
    again = read_command(command.with_options(4, json.loads(EAGLE)), "vllm")
    assert (again.speculation, again.tensor_parallel_size) == (json.loads(EAGLE), 4)


@pytest.mark.parametrize(
    "typed",
    [
        "vllm serve m -tp 2 # don't: -tp 8",
        "# on two\nvllm serve m -tp 2",
        "#\nvllm serve m \\\n -tp 2 #",
    ],
)
def test_comments_of_a_shell_say_nothing(typed: str) -> None:
    command = read_command(typed, "vllm")
    assert (command.words, command.notes) == (("m", "-tp", "2"), [])


def test_what_is_quoted_or_in_a_word_is_no_comment() -> None:
    typed = """vllm serve 'a #b' --host "x #y" --root-path /#c --chat-template a\\'b -tp 2"""
    command = read_command(typed, "vllm")
    words = ("a #b", "--host", "x #y", "--root-path", "/#c", "--chat-template", "a'b", "-tp", "2")
    assert command.words == words


def test_flags_that_vllm_adds_up_may_stand_twice() -> None:
    command = read_command("vllm serve m --middleware a.B --middleware=c.D", "vllm")
    assert command.notes == ["without effect on the answer: --middleware"]
    assert command.with_options(1, None).count("--middleware") == 2


def test_what_changes_speed_and_is_not_simulated_is_named() -> None:
    command = read_command("vllm serve m --enable-dbo --kv-cache-dtype nvfp4 -dp 2", "vllm")
    assert command.notes[0] == "--kv-cache-dtype nvfp4: the KV cache is counted in 16 bits"
    assert "--enable-dbo" in command.notes[1]
    assert len(command.notes) == 2
    assert command.ranks == 2


@pytest.mark.parametrize("cache", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_a_cache_in_eight_bits_and_stages_are_read_and_kept_in_the_command(cache: str) -> None:
    typed = f"vllm serve m -tp 2 -pp 4 --kv-cache-dtype {cache}"
    command = read_command(typed, "vllm")
    assert (command.stages, command.kv_dtype, command.notes) == (4, "fp8", [])
    again = read_command(command.with_options(2, None), "vllm")
    assert (again.stages, again.kv_dtype) == (4, "fp8")


def test_gpus_that_share_kv_blocks_are_read_and_kept_in_the_command() -> None:
    command = read_command("vllm serve m -tp 8 -dcp 4 --dcp-comm-backend a2a", "vllm")
    assert (command.shares, command.tensor_parallel_size) == (4, 8)
    [said] = command.notes
    assert "--dcp-comm-backend" in said
    assert "speed" in said
    assert read_command(command.with_options(8, None), "vllm").shares == 4


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
        ("vllm serve m --gpu-memory-utilization nan", "utilization nan: must be above 0, at most"),
        ("vllm serve m --gpu-memory-utilization 0", "utilization 0: must be above 0, at most 1"),
        ("vllm serve m -tp 0", "--tensor-parallel-size 0: must be at least 1"),
        ("vllm serve m --max-model-len 0", "--max-model-len 0: must be at least 1, or auto"),
        ("vllm serve m --max-num-batched-tokens 1.5K", "should be a whole number"),
        ("vllm serve m -pp 0", "--pipeline-parallel-size 0: must be at least 1"),
        ("vllm serve m -dcp 0", "--decode-context-parallel-size 0: must be at least 1"),
        ("vllm serve m -pp 2 -dp 2", "-pipeline-parallel-size 2: stages with data-parallel ranks"),
        (
            "vllm serve m -pp 2 -sc.method suffix",
            "-pipeline-parallel-size 2: method 'suffix', which",
        ),
        ("vllm serve m-bnb-4bit", "weights in bnb"),
        ("vllm serve m-4bit", "weights in 4bit"),
        ("vllm serve m-4bits", "weights in 4bits"),
        ("vllm serve m-MXFP4-Preview", "weights in mxfp4"),
        ("vllm serve m-quantized.w8a8", "weights in w8a8"),
        ("vllm serve a/m-speculator.eagle3", "name that target"),
        ("vllm serve 'm\n' n", r"'m\\n' and 'n' both stand where the model does; leave one out"),
        ("vllm serve m n", "'m' and 'n' both stand where the model does; leave one out"),
        ("docker run mine --model m", "nothing before them starts a server; .* vllm serve MODEL"),
        ("vllm serve m\n- --block-size\n- 32", "begins an item of YAML; give it as a shell"),
        ("args: [--model, m", "line 1: not YAML: did not find expected"),
        ("args: [--model, ]\nargs: []", "line 2: not YAML"),
        ("args:\n- --model\n-\n", "a list of words has an empty one; quote it"),
        ("apiVersion: v1\nkind: Service", "is YAML, in which nothing has args, a command, or"),
        ("[]", "is YAML, in which nothing has args, a command, or"),
        ("vllm serve $MODEL", r"\$MODEL: nothing there says what this variable is; write it out"),
        ("vllm serve m\n\u2013tp 2", "a dash of print; type two hyphens"),
        ("no.yaml", "no.yaml: cannot be read: No such file"),
        (
            "- {name: a, args: [--model, m]}\n- {args: [--model, n]}",
            "2 containers may start the server: a, one without a name; paste the args of one",
        ),
        ("vllm serve m \u2013tp 2", "a dash of print; type two hyphens"),
        ("vllm serve m --tp 2", "--tp: there is no such flag; did you mean -tp?"),
        ("vllm serve m --speculative-model d", "say it in --speculative-config"),
        ("vllm serve m --num-speculative-tokens 5", "say it in --speculative-config"),
        ("vllm serve m -tp2", "did you mean -tp 2"),
        ("vllm serve m --config no.yaml", "no.yaml: cannot be read"),
        ("vllm serve m --performance-mode throughput", "--max-num-seqs"),
        ("vllm serve m --quantization-config.linear mxfp8", "say in --quantization how most"),
        ("vllm serve m --enable-lora", "--enable-lora True: .*lora_config, or"),
        ("vllm serve m --lora-modules a=/x b=/y", "--lora-modules a=/x b=/y: .*lora_config, or"),
        ("vllm serve m --quantization gptq", "weights in gptq: of how many bits is not said"),
        ("vllm serve m-GPTQ-Int8", "weights in gptq: .* name a folder with the model's"),
        ("vllm serve m --dtype float32", "profiles are of 16 bits"),
        ("vllm serve m --speculative-config '{'", "not JSON"),
        ("vllm serve m --speculative-config 3", "should be a JSON object"),
        (
            "vllm serve m --speculative-config.method draft_model "
            "--speculative-config.own_gpus true",
            "ask specsim capacity",
        ),
        ("vllm serve m -sc.method suffix -sc.num_speculative_tokens 0", "a whole number of at"),
        ("vllm serve m -sc.method suffix -sc.num_speculative_tokens x", "= 'x': should be a"),
        ("vllm serve m --enable-prefix-caching=maybe", "should be true or false"),
        ("vllm serve 'm", "quote it as in a shell"),
        ("""bash -c "vllm serve 'm" """, "quote it as in a shell"),
        ("python -m sglang.launch_server --model m", "^--vllm: 'sglang.* use --sglang$"),
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
        ("m-FP8 --quantization modelopt", "fp8"),
        ("m-NVFP4 --quantization modelopt_fp4", "nvfp4"),
        ("m-w4a16 --quantization compressed-tensors", "int4"),
        ("m-quantized.w4a16", "int4"),
        ("m-FP4", "nvfp4"),
        ("m-fp8.v2", "fp8"),
        ("gpt-oss-20b-BF16", "bfloat16"),
        ("gpt-oss-20b-mxfp4", None),
        ("fp8m/m4bits", None),  # parts of other words
    ],
)
def test_how_weights_are_stored_follows_from_names(typed: str, stored: str | None) -> None:
    assert read_command(f"vllm serve {typed}", "vllm").weights == stored


def test_flags_that_ask_for_nothing_are_taken() -> None:
    typed = "vllm serve m --pipeline-parallel-size 1 --quantization fp8 --dtype half"
    assert read_command(typed, "vllm").weights == "fp8"


@pytest.mark.parametrize(
    ("typed", "engine"),
    [
        ("m --served-model-name a b --block-size 32", {"block_size": 32}),
        ("m --cudagraph-capture-sizes 1 2 4 --block-size 32", {"block_size": 32}),
        ("--enable-log-outputs m -dph --block-size 32", {"block_size": 32}),
        ("m --device-memory-utilization 0.5", {"gpu_memory_utilization": 0.5}),
        ("m --max-model-len 25.6k", {"max_model_len": 25_600}),
        ("m --max-num-batched-tokens 1K", {"max_num_batched_tokens": 1024}),
        ("m --kv-cache-memory-bytes 9G", {"kv_cache_memory_bytes": 9 << 30}),
        ("m --max-model-len auto", {"max_model_len": -1}),
        ("m --max-model-len -1", {"max_model_len": -1}),
    ],
)
def test_values_are_taken_as_vllm_takes_them(typed: str, engine: dict[str, object]) -> None:
    command = read_command(f"vllm serve {typed}", "vllm")
    assert (command.model, command.engine) == ("m", engine)


@pytest.mark.parametrize("level", ["-O3 m", "m -O 3", "m -O=3", "m --optimization-level 3"])
def test_short_forms_are_those_of_vllm(level: str) -> None:
    command = read_command(f"vllm serve {level} -ep -cc.mode 3 -ac.backend x --seed 1", "vllm")
    assert (command.model, command.engine) == ("m", {"enable_expert_parallel": True})
    said, rest = command.notes
    assert set(said.removeprefix("not simulated, though it changes speed: ").split(", ")) == {
        "--optimization-level", "--compilation-config.mode", "--attention-config.backend",
    }  # fmt: skip
    assert rest == "without effect on the answer: --seed"


def test_newer_flags_that_change_a_step_are_said() -> None:
    typed = "--prefix-match-unit 32 --stream-interval 10 --monokernel --nnodes 2"
    command = read_command(f"vllm serve {typed} m", "vllm")
    said, *rest = command.notes
    named = ", ".join(word for word in typed.split() if word.startswith("--"))
    assert (said, rest) == (f"not simulated, though it changes speed: {named}", [])


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


@pytest.mark.parametrize("algorithm", ["NEXTN", "EAGLE"])
def test_sglang_s_own_layers_are_mtp(algorithm: str) -> None:
    typed = f"sglang serve --model m --speculative-algorithm {algorithm} --speculative-num-steps 2"
    command = read_command(typed, "sglang")
    assert command.speculation == {"method": "mtp", "num_speculative_tokens": 2}
    line = command.with_options(1, command.speculation)
    assert read_command(line, "sglang").speculation == command.speculation


def test_sglang_s_flags_have_shorter_names_and_none_is_lost() -> None:
    command = read_command(
        "sglang serve --model m --mem-fraction 0.7 --speculative-algo EAGLE --speculative-draft d "
        "--speculative-num-steps 2 --speculative-token-map t --cuda-graph-bs 1 2",
        "sglang",
    )
    assert command.engine == {"gpu_memory_utilization": 0.7}
    assert command.speculation == {"method": "eagle", "num_speculative_tokens": 2, "model": "d"}
    [note] = [note for note in command.notes if "changes speed" in note]
    assert note.endswith("--cuda-graph-bs, --speculative-token-map")


def test_sglang_reads_a_file_of_flags(tmp_path: Path) -> None:
    (tmp_path / "flags.yaml").write_text(
        "model-path: m\ntensor-parallel-size: 2\nmax-running-requests: 7\nenable-metrics: false\n"
    )
    command = read_command(f"sglang serve --config {tmp_path}/flags.yaml --tp 4", "sglang")
    assert (command.model, command.tensor_parallel_size) == ("m", 4)
    assert command.engine == {"max_num_seqs": 7}
    assert "metrics" not in command.with_options(4, None)  # SGLang has no --no-enable-metrics


@pytest.mark.parametrize(
    "flag",
    ["--max-total-tokens 1000", "--enable-mixed-chunk", "--ep-size 2", "--enable-two-batch-overlap",
     "--enable-hierarchical-cache", "--moe-a2a-backend deepep", "--torchao-config int4wo-128"],
)  # fmt: skip
def test_what_changes_sglang_s_speed_is_not_said_to_have_no_effect(flag: str) -> None:
    notes = " ".join(read_command(f"sglang serve --model m {flag}", "sglang").notes)
    assert "not simulated, though it changes speed" in notes
    assert "without effect" not in notes


def test_sglang_s_drafts_need_an_algorithm() -> None:
    with pytest.raises(ConfigError, match="nothing is drafted without --speculative-algorithm"):
        read_command("sglang serve --model m --speculative-num-steps 3", "sglang")


def test_sglang_trees_are_refused() -> None:
    with pytest.raises(ConfigError, match="trees"):
        read_command("sglang serve --model m --speculative-algorithm EAGLE "
                     "--speculative-eagle-topk 4", "sglang")  # fmt: skip


@pytest.mark.parametrize(
    "slip",
    ["--tensor-paralel-size 2", "--max-num-seq 64", "--blok-size 32", "--tensor-parallel 2",
     "--gpu-memory-util 0.9", "--speculative {}"],
)  # fmt: skip
def test_a_slip_in_a_flag_that_counts_is_refused(slip: str) -> None:
    with pytest.raises(ConfigError, match="no such flag; did you mean --"):
        read_command(f"vllm serve Qwen/Qwen3-8B {slip}", "vllm")


def test_a_slip_in_sglang_s_drafts_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean --speculative-num-steps"):
        read_command("sglang serve --model m --speculative-num-step 2", "sglang")


def test_flags_that_are_alike_are_no_slips() -> None:
    known = "--max-num-partial-prefills 2 --max-long-partial-prefills 2"
    notes = read_command(f"vllm serve Qwen/Qwen3-8B {known} --max-logprobs 5", "vllm").notes
    assert any("--max-logprobs" in note for note in notes)


def _offloading(extra: str) -> str:
    config = f'{{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {extra}}}'
    return f"--kv-transfer-config '{config}'"


@pytest.mark.parametrize(
    "flags",
    [
        "--kv-offloading-size 10",
        "--kv-offloading-size=10 --kv-offloading-backend native",
        _offloading('{"cpu_bytes_to_use": 10737418240}'),
        "--kv-transfer-config.kv_connector OffloadingConnector "
        "--kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use 10737418240",
    ],
)
def test_host_memory_for_kv_blocks_is_simulated(flags: str) -> None:
    command = read_command(f"vllm serve m {flags}", "vllm")
    assert command.engine == {"kv_offload": {"gib": 10}}
    assert command.notes == ["KV blocks in 10 GiB of host memory come back at 50 GB/s"]
    assert EngineConfig.model_validate(command.engine).kv_offload is not None


def test_outputs_are_offloaded_where_the_command_says_so() -> None:
    extra = '{"cpu_bytes_to_use": 1073741824, "offload_prompt_only": false}'
    command = read_command(f"vllm serve m {_offloading(extra)}", "vllm")
    assert command.engine == {"kv_offload": {"gib": 1, "offload_prompt_only": False}}
    wrong = _offloading(extra.replace("false", "0"))
    with pytest.raises(ConfigError, match="offload_prompt_only = 0: should be true or false"):
        read_command(f"vllm serve m {wrong}", "vllm")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--kv-offloading-size ten", "--kv-offloading-size ten: should be a number of GiB"),
        ("--kv-offloading-size nan", "should be a number above 0"),
        ("--kv-offloading-size 10 --kv-offloading-backend lmcache", "'lmcache' moves are not"),
        ("--kv-transfer-config.kv_connector NixlConnector", "'NixlConnector' moves are not"),
        ("--kv-transfer-config 3", "should be a JSON object"),
        ("--kv-transfer-config '{\"a\": 1}' --kv-transfer-config.a.b 2", "a is no object"),
        (_offloading("{}"), "should be a number above 0"),
        (_offloading("7"), "kv_connector_extra_config: is not"),
        (_offloading('{"block_size": 64}'), "block_size: is not"),
        (_offloading('{"spec_name": "TieringOffloadingSpec"}'), "host memory alone is planned for"),
    ],
)
def test_other_places_of_kv_entries_are_refused(flags: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_command(f"vllm serve m {flags}", "vllm")


def test_flags_of_settings_that_an_engine_has_are_its_settings() -> None:
    """A setting of the engine's that this list does not know would be left out in silence."""
    known = {*FLAGS["engine"], *FLAGS["other"]}
    own = {"vllm_version", "scheduler", "num_gpu_blocks", "kv_groups", "kv_offload",
           "drafter_serves_all", "lora_config"}  # fmt: skip
    assert {
        name.replace("_", "-") for name in EngineConfig.model_fields if name not in own
    } <= known
    command = read_command("vllm serve m --prefill-schedule-interval 4", "vllm")
    assert (command.engine, command.notes) == ({"prefill_schedule_interval": 4}, [])


@pytest.mark.parametrize(
    ("drafter", "flags", "said"),
    [
        ("JackFram/llama-68m", "", True),
        ("JackFram/llama-68m", "--max-model-len 2048", False),
        ("JackFram/llama-68m", "--max-model-len auto", True),
        ("meta-llama/Llama-3.2-1B", "", False),
        ("a/draft-model-that-nobody-knows", "", False),
    ],
)
def test_a_short_draft_model_limits_what_vllm_serves(drafter: str, flags: str, said: bool) -> None:
    spec = f'{{"method": "draft_model", "model": "{drafter}", "num_speculative_tokens": 3}}'
    command = f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags} --speculative-config '{spec}'"
    notes = [note for note in question_of(vllm=command).notes if "takes no request of over" in note]
    assert notes == [
        "vLLM 0.33 takes no request of over 2,048 tokens beside JackFram/llama-68m, which has no "
        "more positions; here longer ones are served"
    ] * said  # fmt: skip
