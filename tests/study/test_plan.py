"""Plan: which options there are, which are searched to the end, and which is taken."""

import json
import random
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import tiny_config
from planned import EAGLE, asked, found_of, of_two_gpus, plan_of, run_at
from rich.console import Console
from rich.table import Table

from specsim.acceptance.nested import preset_names
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.processes import LocalProcesses
from specsim.core.resources import resource_names
from specsim.core.runner import Runner
from specsim.hardware import GIB, ModelShape, load_gpu, load_model
from specsim.hardware.specs import known_model
from specsim.latency.composed import Composed
from specsim.policies.static import Off
from specsim.profile import BLOCK_SIZE, load_profile, memory_plan
from specsim.profile.kernel_tables import published_configs
from specsim.proposers.models import Mtp
from specsim.results.metrics import Slo
from specsim.results.stability import UNKNOWN
from specsim.run.experiment import Experiment
from specsim.run.validity import Beyond
from specsim.show.render import WideTable
from specsim.show.render.plan_tables import plan_lines, plan_tables
from specsim.show.report import load_study, page_data
from specsim.study.capacity import Contender, Found, parse_slo, searched
from specsim.study.capacity.limits import LatencyLimits
from specsim.study.capacity.probe import ALL, LoadProbe, Promise
from specsim.study.capacity.search import Answer, Asked, Bracket, explore, refine
from specsim.study.loads import Loads
from specsim.study.plan import Option, Plan, Question, question_of
from specsim.study.plan import plan as make_plan
from specsim.study.plan.advice import Advice
from specsim.study.plan.candidates import (
    SHORT_REQUESTS,
    first_option,
    goal_of,
    later_policies,
    offered,
    with_replicas,
)
from specsim.study.plan.command import read_command
from specsim.study.plan.day import read_day
from specsim.study.plan.files import commented, save_plan
from specsim.study.plan.hardware import measured_alike
from specsim.study.plan.names import NAMES, context_of, model_of, shape_note, weights_of
from specsim.study.plan.question import KINDS, find_traffic
from specsim.study.plan.what_if import day_advice, latency_at, slower_from
from specsim.study.plan.words import day_table, headline, notes
from specsim.workload import WorkloadConfig

needs_tables = pytest.mark.skipif(
    find_spec("aiconfigurator_core") is None, reason="the extra 'tables' is not installed"
)


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.profile.kernel_tables.find_spec", lambda name: None)


def test_a_model_that_is_not_modelled_is_refused_with_what_it_has() -> None:
    message = "DeepSeek-V4.1-Flash: has keys and choices of tokens that layers share, and embed"
    with pytest.raises(ConfigError, match=message):
        model_of("deepseek-ai/DeepSeek-V4.1-Flash")


@pytest.mark.parametrize(
    ("name", "said", "found"),
    [
        ("nvidia/GLM-5.3-Flash-NVFP4", "nvfp4", None),  # whose attention has 16 bits
        ("zai-org/GLM-5.3-Flash-FP8", "fp8", None),
        ("someone/GLM-5.3-Flash-AWQ", "int4", "int4"),
        ("Qwen/Qwen3-8B-FP8", "fp8", "fp8"),
    ],
)
def test_a_shape_that_says_more_of_its_weights_than_a_name_is_believed(
    name: str, said: str, found: str | None
) -> None:
    assert weights_of(name, said) == found


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"),
        ("/models/openai/gpt-oss-120b/", "gpt-oss-120b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2.5"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1-distill-qwen-7b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.2-24b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("zai-org/GLM-4.6-FP8", "glm-4.6"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5-FP8", "llama-3_3-nemotron-super-49b-v1"),
        ("cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit", "kimi-linear-48b-a3b"),
        ("tiiuae/Falcon-H1-1.5B-Deep-Instruct", "falcon-h1-1.5b-deep"),
        ("ai21labs/AI21-Jamba-1.5-Large", "ai21-jamba-large"),
        ("huihui-ai/Huihui-Qwen3-30B-A3B-Instruct-2507-abliterated", "qwen3-30b-a3b"),
        ("openai/gpt-oss-safeguard-120b", "gpt-oss-120b"),
        ("zai-org/GLM-4.6V-Flash", "glm-4-9b-0414"),
        ("zai-org/GLM-4.6V-FP8", "glm-4.5v"),
    ],
)
def test_names_of_huggingface_lead_to_shapes(name: str, shape: str) -> None:
    assert model_of(name) == shape


def test_an_unknown_model_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'qwen3-8b'"):
        model_of("Qwen/Qwen33-8B")


@pytest.mark.usefixtures("no_tables")
def test_a_folder_with_a_config_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"name a folder with its config.json \(./my-model\)"):
        model_of("./tuned")
    config = {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "vocab_size": 151936,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
    }  # fmt: skip
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned/config.json").write_text(json.dumps(config))
    options = offered(asked("./tuned"), ("off",)).options
    assert [option.name for option in options] == ["h100 off"]
    model = options[0].hardware.profile.model
    assert model == str(tmp_path / "tuned/config.json")


@pytest.mark.parametrize(
    "name",
    [
        "tiiuae/Falcon-H2-34B-Instruct",
        "deepseek-ai/DeepSeek-V3.9",
        "microsoft/Phi-4-multimodal-instruct",
        "moonshotai/Kimi-VL-A3B-Instruct",
        "Qwen/Qwen2.5-Omni-7B",
        "nvidia/Mistral-NeMo-Minitron-8B-Instruct",
        "google/gemma-3n-E4B-it",
    ],
)
def test_a_name_that_begins_like_another_models_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(ConfigError, match="no shape of it"):
        model_of(name)


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "0.10.2"),
        ("MiniMaxAI/MiniMax-M1-80k", "0.23.0"),
        ("xai-org/grok-2", "0.24.0"),
    ],
)
def test_a_model_that_vllm_no_longer_has_is_told_its_last_version(name: str, last: str) -> None:
    with pytest.raises(ConfigError, match=f"the last vLLM that serves it is {last}; name a model"):
        model_of(name)


@needs_tables
def test_a_model_whose_states_cannot_be_taken_back_is_planned_without_drafts() -> None:
    found = offered(asked("ai21labs/AI21-Jamba-Mini-1.6 -tp 4", gpus="h100"), ("off", "goodput"))
    assert all(option.is_off for option in found.options)
    assert any("suffix: vLLM's kernels of the first Mamba keep no" in why for why in found.left_out)


def test_words_of_a_name_come_before_the_config_that_it_leads_to() -> None:
    pytest.importorskip("aiconfigurator_core", reason="the extra 'tables' is not installed")
    assert asked("RedHatAI/Kimi-K2-Instruct-quantized.w4a16").weights == "int4"
    assert asked("moonshotai/Kimi-K2-Instruct").weights == "fp8_block"


@pytest.mark.parametrize(
    "name",
    [
        *("Qwen/Qwen3-Embedding-8B", "Qwen/Qwen3-Reranker-4B", "BAAI/bge-m3"),
        *("nvidia/Llama-3.1-Nemotron-70B-Reward-HF", "intfloat/e5-mistral-7b-instruct"),
    ],
)
def test_a_model_that_writes_no_text_is_not_planned(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model .*: '\w+' says that it embeds, ranks or rates"):
        model_of(name)


def test_a_folder_may_be_called_as_it_likes(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "vocab_size": 151936,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
    }  # fmt: skip
    folder = tmp_path / "my-rm"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    assert model_of(str(folder)) == str(folder / "config.json")


def test_a_known_name_may_have_the_shape_of_a_measured_model_and_a_shorter_context() -> None:
    name = "meta-llama/Meta-Llama-3-8B-Instruct"
    assert context_of(name) == {"max_model_len": 8192}
    assert shape_note(name) == f"step times and drafters of llama-3.1-8b, whose shape {name} has"


def test_a_known_name_may_have_a_longer_context_than_the_model_of_its_shape() -> None:
    assert model_of("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8") == model_of("Qwen/Qwen3-30B-A3B")
    assert context_of("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8") == {"max_model_len": 262_144}
    assert context_of("Qwen/Qwen3-30B-A3B") == {}


@pytest.mark.parametrize(
    ("name", "config", "weights"),
    [
        ("Qwen/Qwen3-235B-A22B", "Qwen--Qwen3-235B-A22B", None),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen--Qwen3-235B-A22B", None),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen--Qwen3-235B-A22B-FP8", None),
        ("Qwen/Qwen3.5-122B-A10B-FP8", "Qwen--Qwen3.5-122B-A10B", "fp8"),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "nvidia--Qwen3-235B-A22B-NVFP4", None),
        ("nvidia/Qwen3.6-27B-NVFP4", "nvidia--Qwen3.6-27B-NVFP4", None),
        (
            "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
            "meta-llama--Llama-4-Scout-17B-16E-Instruct",
            "fp8",
        ),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-ai--DeepSeek-V3.2", None),
        ("QuantTrio/DeepSeek-V3.2-AWQ", "deepseek-ai--DeepSeek-V3.2", "int4"),
        ("unsloth/DeepSeek-V3.2-BF16", "deepseek-ai--DeepSeek-V3.2", "bfloat16"),
        (
            "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
            "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
            "bfloat16",
        ),
        ("moonshotai/Kimi-K3", "moonshotai--Kimi-K3", None),
    ],
)
def test_a_model_without_a_shape_here_has_its_published_config(
    name: str, config: str, weights: str | None
) -> None:
    pytest.importorskip("aiconfigurator_core", reason="the extra 'tables' is not installed")
    question = asked(name)
    assert Path(question.model).name == f"{config}_config.json"
    assert question.weights == weights
    assert (
        shape_note(name) == f"{name} has the shape of {config}_config.json in aiconfigurator-core"
    )


def test_without_published_configs_it_is_said_what_brings_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specsim.study.plan.names.published_configs", dict)
    with pytest.raises(ConfigError, match=r"'llm-specsim\[tables\]' brings those of some 50 more"):
        model_of("Qwen/Qwen9-1T-A1B")


def test_so_many_are_brought_that_have_no_shape_here() -> None:
    pytest.importorskip("aiconfigurator_core", reason="the extra 'tables' is not installed")
    assert round(sum(known_model(name) is None for name in published_configs()), -1) == 50


TUNED = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128264,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize(
    ("changes", "hardware"),
    [
        ({}, "llama-3.1-8b-kernels"),
        ({"quantization_config": {"quant_method": "fp8"}}, "llama-3.1-8b-fp8"),
        ({"intermediate_size": 14208}, None),
        ({"vocab_size": 151936}, None),
    ],
)
def test_a_fine_tune_in_a_folder_has_the_profiles_of_its_base(
    tmp_path: Path, changes: dict[str, Any], hardware: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TUNED | changes))
    option = offered(asked(str(tmp_path)), ("off",)).options[0]
    assert option.hardware.is_measured is (hardware is not None)
    if hardware is not None:
        assert option.experiment.profile == f"h100/{hardware}"
        assert option.experiment.engine.max_model_len == 32768
        assert shape_note(str(tmp_path)) == (
            f"step times and drafters of llama-3.1-8b, whose shape {tmp_path} has"
        )


def test_step_times_that_a_plan_rests_on_reach_up_to_a_full_server() -> None:
    found = offered(asked("meta-llama/Llama-3.1-8B-Instruct -tp 1", gpus="h100,l40s"), ("off",))
    assert {option.hardware.profile.gpu for option in found.options} == {"h100", "l40s"}
    for option in found.options:
        profile = option.hardware.profile
        memory = memory_plan(profile, load_model(profile.model), load_gpu(profile.gpu), [])
        most = (memory.num_blocks() - 1) * BLOCK_SIZE  # vLLM keeps one block for itself
        assert profile.valid_range.context_tokens >= most


@needs_tables
def test_where_tables_are_installed_a_folder_is_composed_and_else_a_roofline(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TUNED | {"num_hidden_layers": 24}))
    found = offered(asked(str(tmp_path), gpus="h100,l4"), ("off",)).options
    kinds = {o.hardware.profile.gpu: o.hardware.profile.target.kind for o in found}
    assert kinds == {"h100": "composed", "l4": "roofline"}


MIMO = {
    "model_type": "mimo", "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 151680,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "head_dim": 128,
}  # fmt: skip


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize("layers", [36, 30])  # a shape in profiles/, and none
def test_a_folders_own_mtp_layers_draft(tmp_path: Path, layers: int) -> None:
    config = MIMO | {"num_hidden_layers": layers, "num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = offered(asked(str(tmp_path)), ("off", "static:k=3"))
    (option,) = (each for each in found.options if each.label == "mtp static:k=3")
    assert option.speculation == {"method": "mtp", "num_speculative_tokens": 3}
    assert option.hardware.is_measured is (layers == 36)
    cost = option.hardware.profile.drafts["mtp"]
    assert (round(cost.weights_gib, 2), cost.kv_bytes_per_token) == (0.39, 4096)
    assert found.left_out == []
    # Several modules are passed by each in turn, as on a server, which reads their number itself.
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 2}))
    option = next(o for o in offered(asked(str(tmp_path)), ("static:k=3",)).options)
    assert option.experiment.engine.speculative_config == Mtp(
        num_speculative_tokens=3, num_nextn_predict_layers=2
    )
    assert option.speculation is not None
    assert "num_nextn_predict_layers" not in option.speculation


@pytest.mark.parametrize(
    ("changes", "why", "is_said"),
    [
        ({}, "has no MTP layers", False),
        ({"num_hidden_layers": 30}, "has no MTP layers", False),
        ({"model_type": "mimo_x", "num_hidden_layers": 30, "num_nextn_predict_layers": 3},
         "has MTP layers of another kind than its last; write the shape of one in the form of "
         "profiles/deepseek-v3-mtp.json", True),
    ],
)  # fmt: skip
def test_mtp_layers_that_are_not_there_or_not_known_are_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], why: str, is_said: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIMO | changes))
    found = offered(asked(str(tmp_path)), ("off", "static:k=3"))
    assert [each.label for each in found.options if "mtp" in each.label] == []
    assert any(why in text for text in found.left_out) is is_said
    mtp = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'"""
    remedy = ".*specsim profile build --draft mtp=SHAPE" if is_said else "; name no drafter"
    with pytest.raises(ConfigError, match=f"{why}.*{remedy}"):
        offered(asked(f"{tmp_path} {mtp}"), ("off",))


@needs_tables
@pytest.mark.parametrize(
    ("command", "sizes", "drafters"),
    [
        ("Qwen/Qwen3-8B-AWQ", [1, 2], {"eagle3", "ngram_gpu", "suffix"}),
        ("Qwen/Qwen3-8B --quantization awq_marlin -tp 2", [2], {"eagle3", "ngram_gpu", "suffix"}),
        ("Qwen/Qwen3-30B-A3B -ep", [1, 2, 4], {"eagle3", "draft_model", "ngram_gpu", "suffix"}),
        ("deepseek-ai/DeepSeek-R1 -tp 8 -ep", [8], {"mtp", "ngram_gpu", "suffix"}),
    ],
)
def test_what_no_shipped_profile_is_of_is_composed(
    command: str, sizes: list[int], drafters: set[str]
) -> None:
    found = offered(asked(command, gpus="b200"), ("off", "static:k=3"))
    hardware = {option.hardware.profile.tensor_parallel_size: option for option in found.options}
    assert list(hardware) == sizes
    assert {o.label.partition(" ")[0] for o in found.options} - {"off"} == drafters
    for size, option in hardware.items():
        assert option.hardware.is_measured
        spread = option.experiment.engine.enable_expert_parallel
        assert spread is (True if "-ep" in command and size > 1 else None)
        target = option.hardware.profile.target
        assert isinstance(target, Composed)
        assert target.enable_expert_parallel is bool(spread)


@needs_tables
def test_a_fine_tune_in_four_bits_has_the_shape_of_its_base(tmp_path: Path) -> None:
    quantized = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(TUNED | quantized))
    plain, small = (
        offered(asked(f"{model} -tp 1"), ("off",)).options[0].hardware.profile
        for model in ("meta-llama/Llama-3.1-8B", str(tmp_path))
    )
    assert (small.model, "eagle3" in small.drafts) == ("llama-3.1-8b", True)
    assert small.weights_gib is not None
    assert small.weights_gib < 0.4 * load_model(plain.model).weight_bytes / GIB


def test_what_cannot_be_composed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.profile.kernel_tables.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"h100: no profile of mistral-7b in int4.*\[tables\]"):
        offered(asked("mistralai/Mistral-7B-AWQ"), ("off",))


@needs_tables
@pytest.mark.parametrize("spread", ["", "-ep"])
def test_ranks_that_share_experts_are_one_server(tmp_path: Path, spread: str) -> None:
    question = asked(f"deepseek-ai/DeepSeek-R1 -dp 8 {spread}", gpus="h200", qps=10.0)
    found = offered(question, ("off", "static:k=3"))
    assert {option.hardware.label for option in found.options} == {"h200-dp8"}
    assert {option.label.partition(" ")[0] for option in found.options} == {
        "off",
        "mtp",
        "ngram_gpu",
        "suffix",
    }
    option = found.options[0]
    drafter = option.hardware.profile.drafts["mtp"].latency
    assert isinstance(drafter, Composed)  # its layer has experts, which the same ranks share
    assert (drafter.data_parallel_size, drafter.enable_expert_parallel) == (8, bool(spread))
    assert (option.hardware.gpus_per_replica, option.experiment.num_engines) == (8, 8)
    assert bool(option.experiment.engine.enable_expert_parallel) is bool(spread)
    assert "data-parallel ranks: of 15 measured loads" in "; ".join(question.notes)
    # A service of several such servers is not simulated, but one with its share.
    one = with_replicas(option, question, 4)
    assert (one.replicas, one.workload.arrivals.rate) == (1, 2.5)
    own = found_of(option, question, 3.0, (2.9, 3.1), 1000.0)
    plan = Plan(question, [], {option.name: option}, searched={option.name: own})
    assert plan_lines(plan)[1].startswith("Rent 32 H200: 4 servers of 8 GPUs")
    save_plan(plan, tmp_path)
    assert f"{spread} --tensor-parallel-size 1 --data-parallel-size 8\n" in (
        tmp_path / "serve.sh"
    ).read_text("utf-8")


SHAPE_FIELDS = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "vocab_size", "max_position_embeddings", "torch_dtype"),
)


@needs_tables
def test_keys_and_values_of_eight_bits_are_twice_as_many() -> None:
    model = "meta-llama/Llama-3.1-8B-Instruct"
    plain, small = (
        {option.name: option.hardware.profile for option in offered(question, ("off",)).options}
        for question in (
            asked(f"{model} {flag}", gpus="h100,l40s") for flag in ("", "--kv-cache-dtype fp8")
        )
    )
    assert list(small) == list(plain)
    for name, profile in plain.items():
        halved, whole = small[name].kv_bytes_per_token, profile.kv_bytes_per_token
        assert halved is not None
        assert whole is not None
        assert halved == whole / 2


@needs_tables
def test_keys_and_values_are_stored_as_the_checkpoint_says(tmp_path: Path) -> None:
    fields = load_model("llama-3.1-8b").model_dump(include=set(SHAPE_FIELDS))
    said = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    config = {**fields, "model_type": "llama", "quantization_config": said}
    (tmp_path / "config.json").write_text(json.dumps(config))
    folder = str(tmp_path)
    for flag, expected in (("", 65_536), ("--kv-cache-dtype bfloat16", 131_072)):
        found = offered(asked(f"{folder} -tp 1 {flag}", gpus="h100"), ("off",)).options
        assert {option.hardware.profile.kv_bytes_per_token for option in found} == {expected}


@pytest.mark.usefixtures("no_tables")
def test_where_eight_bits_cannot_be_composed_the_cache_is_counted_in_sixteen() -> None:
    found = offered(asked("Qwen/Qwen3-8B --kv-cache-dtype fp8"), ("off",))
    assert [option.name for option in found.options] == ["h100 off"]
    (said,) = found.left_out
    assert "no profile of qwen3-8b with a KV cache in 8 bits" in said
    assert said.endswith("its KV cache is counted in 16 bits")


@needs_tables
def test_why_nothing_can_be_composed_is_said_once_and_with_what_to_ask() -> None:
    """A GB200 has four GPUs in a machine; in 8 bits and in 16 it is for one reason."""
    command = "deepseek-ai/DeepSeek-V3.2 -tp 8 -ep --kv-cache-dtype fp8"
    with pytest.raises(ConfigError, match="num_gpus = 8") as error:
        offered(asked(command, gpus="gb200"), ("off",))
    assert str(error.value).count("no profile of") == 1
    assert "; plan smaller servers, such as --tensor-parallel-size 4, or name" in str(error.value)


@needs_tables
def test_a_pipeline_is_planned_with_the_drafters_that_its_last_stage_can_have(
    tmp_path: Path,
) -> None:
    question = asked("meta-llama/Llama-3.1-70B-Instruct -tp 2 -pp 4", gpus="l40s")
    found = offered(question, ("off", "static:k=3"))
    options = {option.name: option for option in found.options}
    label = "l40s-tp2-pp4"
    drafters = [f"{label} eagle3 static:k=3", f"{label} ngram_gpu static:k=3"]
    assert [*options] == [f"{label} off", *drafters]
    assert not question.notes
    assert [why.partition(":")[0] for why in found.left_out] == ["suffix"]
    drafting = options[drafters[0]]
    assert drafting.hardware.gpus_per_replica == 8
    profile, head = drafting.hardware.profile, load_model("eagle3-llama-3.1-70b")
    embedding = 128256 * 8192 * 2  # which the first stage has
    weights = profile.drafts["eagle3"].weights_gib * GIB * 2  # of two GPUs
    assert weights == pytest.approx(embedding + head.weight_bytes, rel=1e-3)
    own = found_of(drafting, question, 30.0, (29.0, 31.0), 1000.0)
    save_plan(
        Plan(question, [], {drafting.name: drafting}, searched={drafting.name: own}), tmp_path
    )
    script = (tmp_path / "serve.sh").read_text("utf-8")
    assert "on 8 L40S" in script
    assert "-pp 4 --tensor-parallel-size 2" in script
    assert '"method": "eagle3"' in script


@needs_tables
def test_where_nothing_drafts_no_other_draft_length_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = asked("meta-llama/Llama-3.2-1B-Instruct -tp 1 -pp 2")
    monkeypatch.setattr("specsim.study.plan.candidates.METHODS", {"vllm": ()})

    def known(plan: Plan, options: list[Option], _: Runner) -> Plan:
        found = {o.name: found_of(o, question, 9.0, (8.0, 10.0), 1000.0) for o in options}
        return replace(plan, options={o.name: o for o in options}, screened=found)

    monkeypatch.setattr("specsim.study.plan.with_short_runs", known)
    monkeypatch.setattr("specsim.study.plan.with_long_runs", lambda plan, names, _: plan)
    told: list[str] = []
    assert list(make_plan(question, workers=1, on_stage=told.append).options) == ["h100-pp2 off"]
    assert told == ["short runs of 1 options", "long runs of H100, no speculation (2 GPUs)"]


def test_of_draft_lengths_that_long_runs_put_back_the_next_best_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By short runs one server with k = 1 carries all; by long ones two do, and k = 2 is faster."""
    question = asked(qps=100.0, gpus="h100")
    short = {"off": (60, 1800), "static:k=1": (104, 1200), "static:k=2": (96, 1100)}
    long = {"off": (60, 1800), "static:k=1": (97, 1210), "static:k=2": (88, 1110)}

    def known(rates: dict[str, tuple[int, int]], option: Option) -> Found:
        rate, latency = rates.get(option.label, (40, 2000))
        return found_of(option, question, rate, (rate * 0.98, rate * 1.02), latency)

    def tried(plan: Plan, options: list[Option], _: Runner) -> Plan:
        new = {option.name: option for option in options}
        found = {name: known(short, option) for name, option in new.items()}
        return replace(plan, options=plan.options | new, screened=plan.screened | found)

    def found_by(
        rates: dict[str, tuple[int, int]], candidates: list[Contender], *_: object
    ) -> list[Found]:
        return [known(rates, plan_options[each.label]) for each in candidates]

    plan_options = {o.label: o for o in offered(question, tuple(long)).options}
    monkeypatch.setattr("specsim.study.plan.with_short_runs", tried)
    monkeypatch.setattr("specsim.study.plan.refined", partial(found_by, long))
    monkeypatch.setattr("specsim.study.plan.searched", partial(found_by, short))
    plan = make_plan(question, workers=1)
    assert {name.split()[-1] for name in plan.searched} == set(long)
    assert plan.taken == "h100 static:k=2"


@needs_tables
def test_more_ranks_than_were_measured_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^h100: .* 16 data-par.*--data-parallel-size 8, or"):
        offered(asked("Qwen/Qwen3-30B-A3B -dp 16 -ep"), ("off",))


def test_what_ranks_cannot_be_tried_with_is_said() -> None:
    command = "Qwen/Qwen3-30B-A3B -dp 2 -ep"
    day = "0:20,8:100"
    notes = "; ".join(question_of(vllm=command, traffic="chat", daily=day, pools=True).notes)
    assert "--pools: data-parallel ranks are not" in notes
    assert "--daily: data-parallel ranks are not" in notes


def test_ranks_of_a_dense_model_are_replicas() -> None:
    question = asked("Qwen/Qwen3-8B -dp 4")
    assert (question.ranks, question.notes[0][:31]) == (1, "--data-parallel-size: left out,")
    assert asked("Qwen/Qwen3-8B -dp 1").notes == []
    with pytest.raises(ConfigError, match=r"--data-parallel-size 0: must be at least 1"):
        asked("Qwen/Qwen3-8B -dp 0")


def test_gpus_may_be_written_as_answers_have_them() -> None:
    assert asked(gpus="H100, A100 80GB").gpus == ("h100", "a100-80gb")
    assert asked(gpus="NVIDIA H100 80GB HBM3,RTX 4090").gpus == ("h100", "rtx4090")
    with pytest.raises(ConfigError, match="specsim list names those that are") as error:
        model_of("nobody/knows")
    assert not {"eagle", "mtp", "dflash"} & set(re.findall(r"\w+", str(error.value)))


@pytest.mark.usefixtures("no_tables")
def test_of_a_gpu_that_cannot_hold_the_model_the_largest_size_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIMO | {"num_hidden_layers": 700}))
    found = offered(asked(str(tmp_path), gpus="l4,b200"), ("off",))
    assert [option.name for option in found.options] == ["b200-tp2 off"]
    (said,) = found.left_out
    assert said.startswith("l4-tp8: no profile of ")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_traffic_has_an_acceptance_preset(kind: str) -> None:
    traffic = find_traffic(kind)
    for method in ("eagle3", "ngram", "draft_model"):
        found, said = traffic.acceptance_for(method, "mistral-7b")
        assert found["name"] in said
        assert "of another family" in said


def test_the_nearest_preset_is_of_the_traffic_and_the_drafter() -> None:
    code = find_traffic("code").acceptance_for("eagle3", "llama-3.1-8b")
    assert code[1] == "preset llama-3.1-8b/eagle/instructcoder, fitted to drafts of eagle"
    alike = find_traffic("code").acceptance_for("eagle3", "qwen3-8b")
    assert alike[1] == "preset qwen3-8b/eagle3/humaneval, fitted to data set humaneval"
    exact = find_traffic("math").acceptance_for("ngram", "llama-3.1-8b")
    assert exact[1] == "preset llama-3.1-8b/ngram/gsm8k"
    rag = find_traffic("rag").acceptance_for("ngram", "llama-3.1-8b")[1]
    assert "fitted to data set" in rag


@pytest.mark.parametrize(
    ("model", "method", "said"),
    [
        ("kimi-k2.5", "eagle3", "kimi-k2.5/eagle3/speed-bench-coding, fitted to data set speed-"),
        ("kimi-k2.5", "ngram", "llama-3.1-8b/ngram/sharegpt, fitted to model llama-3.1-8b of"),
        ("deepseek-v3", "mtp", "deepseek-v3/mtp/chat-code-math, fitted to data set chat-code-math"),
        ("mimo-7b", "mtp", "llama-3.1-8b/eagle/sharegpt, fitted to drafts of eagle and model"),
        (
            "qwen3-32b",
            "eagle3",
            "qwen3-30b-a3b/eagle3/speculator-benchmarks, fitted to model qwen3-30b-a3b of the same "
            "family and data set speculator-benchmarks",
        ),
        ("gpt-oss-120b", "eagle3", "gpt-oss-120b/eagle3/mt-bench, fitted to data set mt-bench"),
        (
            "mistral-7b",
            "eagle3",
            "llama-3.1-8b/eagle/sharegpt, fitted to drafts of eagle and model",
        ),
    ],
)
def test_a_preset_of_the_models_own_drafter_comes_before_any_other(
    model: str, method: str, said: str
) -> None:
    assert find_traffic("chat").acceptance_for(method, model)[1].startswith(f"preset {said}")


@pytest.mark.parametrize(("scale", "resolution"), [(1, 1.0), (60, 60.0), (0.25, None)])
def test_a_log_of_a_coarse_clock_is_spread(
    scale: float, resolution: float | None, tmp_path: Path
) -> None:
    rows = [f"{scale * (number // 3)},100,20" for number in range(90)]
    rows[-1] = f"{scale * 100},100,20"
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["created,prompt_len,output_len", *rows]))
    traffic = find_traffic(str(path))
    assert traffic.workload["arrivals"].get("resolution") == resolution
    assert ("spread over theirs" in traffic.note) is (resolution is not None)


MODELS = [name for name in resource_names("profiles", "*.json") if not load_model(name).is_head]


@pytest.mark.parametrize("method", sorted(chain(*NAMES["drafters"].values())))
def test_a_preset_is_of_the_same_kind_of_drafter_and_of_the_nearest_model(method: str) -> None:
    kind = next(own for own in NAMES["drafters"].values() if method in own)
    presets = preset_names()
    for traffic in map(find_traffic, ("chat", "code", "math", "summarise")):
        for model in [*MODELS, *{name.split("/")[0] for name in presets}]:
            config, said = traffic.acceptance_for(method, model)
            fitted, drafter, _ = config["name"].split("/")
            assert drafter in kind or (drafter.startswith("eagle") and "eagle" in kind)
            own = [name for name in presets if name.startswith(f"{model}/{method}/")]
            assert not own or config["name"] in own
            assert (f"drafts of {drafter}" in said) is (drafter != method)
            assert ("family" in said) is not f"{model}-".startswith(f"{fitted}-")


@pytest.mark.parametrize(
    ("folder", "model_type", "method", "said"),
    [
        ("Qwen3.5-27B", "qwen3_5", "mtp", "qwen3.5-397b-a17b/mtp/speed-bench-coding"),
        ("mine", "qwen3_5_moe", "mtp", "qwen3.5-397b-a17b/mtp/speed-bench-coding"),
        ("mine", "qwen3_next", "mtp", "qwen3.5-397b-a17b/mtp/speed-bench-coding"),
        ("DeepSeek-V4-Pro", "deepseek_v4", "mtp", "deepseek-v4-pro/mtp/speed-bench-coding"),
        ("mine", "glm4_moe", "mtp", "glm-5.2/mtp/speed-bench-coding"),
        ("mine", "minimax_m2", "eagle3", "minimax-m3/eagle3/speed-bench-coding"),
        ("Kimi-K3", "kimi_k3", "dspark", "kimi-k3/dspark/speed-bench-coding"),
        ("mine", "exaone_moe", "mtp", "llama-3.1-8b/eagle/sharegpt"),
    ],
)
def test_which_family_a_folder_has_its_config_says(
    tmp_path: Path, folder: str, model_type: str, method: str, said: str
) -> None:
    config = tmp_path / folder / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps({"model_type": model_type}))
    assert find_traffic("chat").acceptance_for(method, str(config))[0]["name"] == said


def test_acceptance_may_be_that_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.safe_dump({"acceptance": {"kind": "per_position", "conditional_rates": [0.7, 0.5]}})
    )
    found = find_traffic("chat", str(path)).acceptance_for("eagle3", "llama-3.1-8b")
    assert (found[0]["conditional_rates"], found[1]) == ([0.7, 0.5], "as given")
    path.write_text("acceptance: {kind: bernouli}\n")
    with pytest.raises(ConfigError, match=r"mine.yaml: .*did you mean 'bernoulli'\?"):
        find_traffic("chat", str(path))
    path.write_text("provenance: {}\n")
    with pytest.raises(ConfigError, match="has no field acceptance; give a file that"):
        find_traffic("chat", str(path))


def test_a_number_alone_is_no_acceptance() -> None:
    with pytest.raises(ConfigError, match=r"--acceptance 0.7: give bernoulli:alpha=0.7 if"):
        find_traffic("chat", "0.7")


def test_traffic_is_known_however_it_is_capitalised() -> None:
    for name, dataset in (
        ("ShareGPT", "sharegpt"),
        ("Chat", "sharegpt"),
        ("Code", "instructcoder"),
    ):
        assert find_traffic(name).dataset == dataset


def test_traffic_may_be_a_trace_or_an_experiment(tmp_path: Path) -> None:
    trace = find_traffic("traces/summarisation.parquet")
    assert "gaps of the trace's 7,255 requests" in trace.note
    assert trace.dataset == "cnn_dailymail"
    assert trace.at(3.0, 10)["arrivals"]["rate"] == 3.0
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(tiny_config()))
    own = find_traffic(str(path))
    assert own.acceptance_for("eagle3", "x") == ({"kind": "bernoulli", "alpha": 0.7}, "as given")
    assert "its acceptance for drafts of eagle3 alone" in own.note
    # What a head's drafts are worth says nothing of a lookup, which costs next to nothing.
    assert own.acceptance_for("ngram", "x")[0]["kind"] == "preset"
    said = find_traffic(str(path), "bernoulli:alpha=0.4")
    assert (said.acceptance_for("ngram", "x")[0]["alpha"], said.method) == (0.4, None)
    assert own.at(3.0, 10)["lengths"]["prompt"] == [1, 200]
    closed = tiny_config()
    closed["workload"]["arrivals"] = {"kind": "closed_loop", "concurrency": 3}
    path.write_text(yaml.safe_dump(closed))
    with pytest.raises(ConfigError, match="has no rate to be varied"):
        find_traffic(str(path))


@pytest.mark.parametrize(
    ("head", "first", "note"),
    [
        ("", "", "Poisson arrivals"),
        ("time,", "3,", "Poisson arrivals, for there all arrive at once"),
    ],
)
def test_a_short_table_without_gaps_has_poisson_arrivals(
    tmp_path: Path, head: str, first: str, note: str
) -> None:
    (tmp_path / "log.csv").write_text(f"{head}prompt_len,output_len\n{first}100,10\n{first}50,20\n")
    traffic = find_traffic(str(tmp_path / "log.csv"))
    assert traffic.note.startswith(f"lengths of the trace's 2 requests, {note} (")
    requests = WorkloadConfig.model_validate(traffic.at(5.0, 500)).build(0)
    assert {*requests.prompt_lens.tolist()} == {50, 100}
    assert len(requests) == 500


def test_what_a_short_table_says_beyond_lengths_is_refused_or_said_to_be_lost(
    tmp_path: Path,
) -> None:
    row = {"prompt_len": 100, "output_len": 10}
    path = tmp_path / "own.jsonl"
    path.write_text(f"{json.dumps({**row, 'adapter': 1})}\n" * 2)
    with pytest.raises(ConfigError, match="LoRA adapters"):
        find_traffic(str(path))
    shared = {"session": "a", "prefix_hash_ids": [1], "prefix_block_size": 16}
    path.write_text(f"{json.dumps({**row, **shared})}\n" * 2)
    note = find_traffic(str(path)).note
    assert "Poisson arrivals, without its sessions and shared prefixes" in note


def test_an_experiment_of_a_log_has_no_more_requests_than_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{number / 2},{100 + number},20" for number in range(50)]
    path.write_text("\n".join(["arrival_time,prompt_len,output_len", *rows]))
    question = asked(traffic=str(path), qps=3.0)
    experiment = with_replicas(first_option(question), question, 1)
    assert experiment.workload.num_requests == 50
    assert len(experiment.workload.build(0)) == 50
    many = asked(traffic="chat", qps=3.0)
    assert with_replicas(first_option(many), many, 1).workload.num_requests == 2000


def test_a_request_that_does_not_fit_is_named_not_a_limit_that_nobody_gave(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("prompt_len,output_len\n100,20\n2000000,20\n")
    with pytest.raises(SpecsimError, match=r"longest request of the traffic has 2,000,020 tokens"):
        offered(asked(traffic=str(path)), ("off",))


def test_a_model_is_the_folder_of_a_config(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    with pytest.raises(ConfigError, match="is a file; name the folder"):
        offered(asked(f"{config}"), ("off",))
    config.unlink()
    with pytest.raises(ConfigError, match=r"no config\.json is there"):
        offered(asked(f"{tmp_path}"), ("off",))


def test_a_table_of_requests_is_traffic_and_it_is_said_how_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("arrival_time,prompt_len,output_len,user\n0,50,9,a\n2,60,8,b\n3,70,7,c\n")
    traffic = find_traffic(str(path))
    assert traffic.workload["arrivals"]["kind"] == "trace"
    assert "arrival_time is the arrival, in seconds; ignored: user" in traffic.note


def names(question: Question, *policies: str) -> list[str]:
    return [option.name for option in offered(question, policies).options]


def test_the_size_in_the_command_is_the_only_one() -> None:
    assert names(asked("meta-llama/Llama-3.1-70B-Instruct -tp 4"), "off") == ["h100-tp4 off"]
    every = names(asked("meta-llama/Llama-3.1-70B-Instruct"), "off")
    assert every == ["h100-tp4 off", "h100-tp8 off"]  # two hold the weights, and no long request


def test_options_have_the_drafter_that_is_given_or_all() -> None:
    assert names(asked(), "off", "static:k=1") == [
        "h100 off", "h100 static:k=3", "h100 static:k=1",
    ]  # fmt: skip
    every = names(asked("Qwen/Qwen3-8B"), "static:k=3")
    drafters = ("eagle3", "draft_model", "ngram_gpu", "suffix")
    assert every == [f"h100 {drafter} static:k=3" for drafter in drafters]


def test_what_vllm_is_told_names_the_head_and_keeps_what_was_given() -> None:
    command = "meta-llama/Llama-3.1-8B-Instruct -tp 1 --speculative-config.method eagle3"
    question = asked(f"{command} --speculative-config.draft_tensor_parallel_size 1")
    fixed, policy = offered(question, ("static:k=5", "goodput")).options
    assert fixed.speculation == {
        "method": "eagle3", "draft_tensor_parallel_size": 1, "num_speculative_tokens": 5,
        "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    }  # fmt: skip
    assert (policy.speculation, policy.needs_a_policy) == (None, True)
    [note] = question.command.notes  # it does change speed under vLLM
    assert note == "not simulated: draft_tensor_parallel_size of the drafter"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "method", "weights"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "eagle3", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"),
        ("meta-llama/Llama-3.1-70B-Instruct", "eagle3", "YOUR-EAGLE3"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "eagle3", "YOUR-EAGLE3"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "draft_model",
         "meta-llama/Llama-3.2-1B-Instruct"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "eagle3",
         "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3"),
        ("google/gemma-4-31B-it", "mtp", "google/gemma-4-31B-it-assistant"),
        ("deepseek-ai/DeepSeek-V3", "mtp", None),
        ("Qwen/Qwen3-8B", "ngram", None),
    ],
)  # fmt: skip
def test_drafters_are_those_of_the_very_model_or_left_to_be_filled_in(
    model: str, method: str, weights: str | None
) -> None:
    flag = f"--speculative-config.method {method} --speculative-config.num_speculative_tokens 2"
    options = offered(asked(f"{model} {flag}", gpus="h200,b200,h100"), ("static:k=2",)).options
    assert {(option.speculation or {}).get("model") for option in options} == {weights}


def test_a_gpu_without_a_profile_falls_back_to_a_roofline_and_that_is_known() -> None:
    [option] = offered(asked("Qwen/Qwen3-8B --max-model-len 8192", gpus="l4"), ("off",)).options
    assert not option.hardware.is_measured
    assert option.hardware.profile.overhead.front_ms == 3.0
    assert option.experiment.profile == "profile.yaml"


def test_no_roofline_stands_in_for_quantized_weights() -> None:
    found = offered(asked("openai/gpt-oss-20b", gpus="a100-80gb,h100"), ("off",))
    assert {option.hardware.profile.gpu for option in found.options} == {"h100"}
    said = "a100-80gb: no profile of gpt-oss-20b in mxfp4, and none can be composed: "
    assert said in found.left_out[0]


def test_sizes_over_which_heads_cannot_be_spread_are_no_reason() -> None:
    """Ten key-value heads of Phi-4 go over neither four nor eight GPUs, which hides nothing."""
    with pytest.raises(ConfigError, match=r"^rtx4090: no profile of phi-4, .* no peak_tflops"):
        offered(asked("microsoft/phi-4", gpus="rtx4090"), ("off",))
    with pytest.raises(ConfigError, match="10 key-value heads"):
        offered(asked("microsoft/phi-4 -tp 4", gpus="h100"), ("off",))


def test_what_does_not_fit_is_left_out_with_its_reason() -> None:
    found = offered(asked("meta-llama/Llama-3.1-70B-Instruct", gpus="l4,h100"), ("off",))
    assert {option.hardware.profile.gpu for option in found.options} == {"h100"}
    assert any(reason.startswith("l4") for reason in found.left_out)
    with pytest.raises(ConfigError, match="no KV block fits"):
        offered(asked("meta-llama/Llama-3.1-70B-Instruct -tp 1", gpus="l4"), ("off",))


@pytest.mark.parametrize("has_tables", [False, pytest.param(True, marks=needs_tables)])
def test_a_server_that_may_take_more_of_its_memory_holds_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tables: bool
) -> None:
    if not has_tables:
        monkeypatch.setattr("specsim.profile.kernel_tables.find_spec", lambda name: None)
    shape = load_model("llama-3.1-8b").model_dump(exclude_none=True)
    holds = load_gpu("l40s").memory_gib * GIB
    config = tmp_path / f"model-{has_tables}" / "config.json"
    config.parent.mkdir()
    for layers in range(32, 200):  # more of them, until the usual share of the memory is too little
        shape |= {"num_hidden_layers": layers, "max_position_embeddings": 2048}
        config.write_text(json.dumps(shape))
        if ModelShape.model_validate(shape).weight_bytes > 0.93 * holds:
            break
    for share in (0.92, 0.995):
        typed = f"{config.parent} -tp 1 --max-model-len 1024 --gpu-memory-utilization {share}"
        question = asked(typed, gpus="l40s")
        question = replace(question, traffic=replace(question.traffic, longest=100))
        if share > 0.95:
            assert offered(question, ("off",)).options
        else:
            with pytest.raises(ConfigError, match=f"usable {share * holds / GIB:.1f} GiB"):
                offered(question, ("off",))


@needs_tables
def test_weights_in_16_bits_are_those_of_a_shape_that_has_them_or_are_composed() -> None:
    assert asked("meta-llama/Llama-3.1-8B-BF16").weights is None
    question = asked("unsloth/gpt-oss-20b-BF16 -tp 1", gpus="h100")
    assert question.weights == "bfloat16"
    [option] = offered(question, ("off",)).options
    weights = option.hardware.profile.weights_gib
    assert weights == pytest.approx(2 * 20.9e9 / GIB, rel=0.03)


def test_drafters_that_are_tried_on_some_gpus_alone_are_said() -> None:
    gpus = ("h100-nvl", "rtx-pro-6000")
    prices = ",".join(f"{gpu}:2" for gpu in gpus)
    for model in ("google/gemma-4-31B-it", "Qwen/Qwen3-8B"):
        found = offered(
            question_of(
                vllm=f"vllm serve {model} -tp 1 --max-model-len 8192", gpus=gpus, prices=prices
            ),
            ("off", "static:k=3"),
        )
        tried: dict[str, set[str]] = {gpu: set() for gpu in gpus}
        for option in found.options:
            tried[option.hardware.profile.gpu] |= {option.name.split()[1]}
        assert [text.partition(":")[0] for text in found.left_out] == [
            gpu for gpu in gpus if set.union(*tried.values()) - tried[gpu]
        ]


@pytest.mark.parametrize("attainment", [0.99, 0.9, 0.9999999])
@pytest.mark.parametrize(
    "slo", ["ttft:500,tpot:40", "ttft:p95<2s,tpot:40.5", "ttft:p99.9<1s,e2el:p90<20s,tpot:p50<30"]
)
def test_capacity_is_told_to_hold_what_the_plan_holds(slo: str, attainment: float) -> None:
    question = question_of(vllm="Qwen/Qwen3-8B", slo=slo, attainment=attainment)
    said = shlex.split(question.shares_as_options)
    options = dict(zip(said[::2], said[1::2], strict=True))
    assert float(options.get("--attainment", 0.99)) == attainment
    if question.limit_shares:
        limits = parse_slo(options["--slo"])
        assert limits.slo == question.slo
        assert limits.shares == pytest.approx(dict(question.limit_shares))
    else:
        assert "--slo" not in options


def test_shares_are_said_as_they_were_given() -> None:
    limits, shares = {"ttft_ms": 500.0, "tpot_ms": 50.0}, {"tpot_ms": 0.29}
    found = LatencyLimits(limits, 0.999999, shares)
    assert found.words == (
        "99.9999 % of the requests within TTFT 500 ms, 29 % of the requests within TPOT 50 ms"
    )
    assert found.percentile_of("ttft_ms") == "p99.9999"


@pytest.mark.parametrize("share", [0.57, 0.9, 0.93, 0.99])
def test_a_limit_that_just_enough_requests_keep_is_kept(share: float) -> None:
    limits = LatencyLimits({"ttft_ms": 500.0}, share, {})
    kept = [limits.promises({"ttft_ms": np.arange(100) < round(100 - 100 * share) + more})["all"]
            for more in (0, 1)]  # fmt: skip
    assert [each.is_kept for each in kept] == [True, False]


def test_drafters_that_vllm_refuses_beside_a_flag_are_not_tried() -> None:
    command = "vllm serve openai/gpt-oss-120b -tp 1 --async-scheduling"
    found = offered(question_of(vllm=command, gpus="h200"), ("off", "static:k=3"))
    assert [option.method for option in found.options] == [None, "eagle3", "ngram_gpu"]
    assert {text.partition(":")[0] for text in found.left_out} == {"suffix"}


def test_what_is_tried_for_sglang_can_be_started_there() -> None:
    question = question_of(sglang="sglang serve --model meta-llama/Llama-3.1-8B-Instruct --tp 1")
    found = offered(question, ("off", "static:k=3"))
    assert found.left_out == ["suffix: SGLang does not draft so"]
    for option in found.options:
        line = question.command.with_options(1, option.speculation)
        again = read_command(line, "sglang").speculation
        assert (again or {}).get("method") == (option.speculation or {}).get("method")


def test_a_server_that_takes_the_longest_context_that_fits_has_room_for_the_requests() -> None:
    question = asked("Qwen/Qwen3-8B --max-model-len auto")
    [option] = offered(question, ("off",)).options
    assert (option.experiment.engine.max_model_len or 0) > question.traffic.longest


def test_requests_longer_than_the_limit_are_simulated() -> None:
    question = asked("Qwen/Qwen3-8B --max-model-len 2048", traffic="summarise")
    [option] = offered(question, ("off",)).options
    assert (option.experiment.engine.max_model_len or 0) > question.traffic.longest > 2048


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--max-model-len 150", "33 % of the requests have more than the 150 tokens"),
        ("--max-model-len 32k", None),
        ("--max-model-len auto", "33 % of the requests have more than the 40,960 tokens"),
        ("", "33 % of the requests have more than the 40,960 tokens"),
    ],
)
def test_how_many_requests_a_server_would_refuse_is_said(
    tmp_path: Path, flag: str, said: str | None
) -> None:
    path = tmp_path / "log.csv"
    longest = {"--max-model-len 150": 200, "--max-model-len 32k": 1000}.get(flag, 50_000)
    path.write_text(f"arrival_time,prompt_len,output_len\n0,90,10\n1,90,10\n3,{longest},10\n")
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    question = asked(f"Qwen/Qwen3-8B {flag} {EAGLE}", traffic=str(path))
    found = [t for t in replace(plan, question=question).warnings if "of the requests" in t]
    assert [t.partition(" that the server")[0] for t in found] == ([said] if said else [])


def test_the_cheaper_is_taken() -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    assert plan.taken == "h100 static:k=3"
    assert plan.found[plan.taken].cost_per_hour == 6.0
    assert plan.ties == []
    assert not plan.capacity.cheapest.others[0].value < 8.0


def test_of_one_cost_the_faster_is_taken() -> None:
    fast = plan_of((26.0, 25.5, 27.0, 900.0), (27.0, 26.0, 28.0, 600.0))
    assert fast.taken == "h100 static:k=3"
    slow = plan_of((26.0, 25.5, 27.0, 900.0), (27.0, 26.0, 28.0, 950.0))
    assert slow.taken == "h100 off"


def test_costs_whose_intervals_overlap_are_not_ordered() -> None:
    plan = plan_of((26.0, 24.0, 27.0, 900.0), (33.0, 32.0, 35.0, 950.0))
    assert plan.taken == "h100 off"  # 4 or 5 replicas, and the other 3 or 4
    assert plan.ties == []
    plan = plan_of((24.5, 24.0, 26.0, 900.0), (26.0, 24.5, 27.0, 950.0))
    assert plan.taken == "h100 static:k=3"
    assert plan.ties == ["h100 off"]


def test_what_may_be_as_cheap_is_named_with_its_size() -> None:
    both = (24.5, 24.0, 26.0, 900.0), (26.0, 24.5, 27.0, 950.0)
    plan = plan_of(*both, command=f"Qwen/Qwen3-8B {EAGLE} --tensor-parallel-size 2")
    said = "Not shown to be cheaper than H100, no speculation (2 GPUs)."
    assert said in notes(plan.advice)


def test_the_answer_counts_whole_servers_and_says_what_speculation_saves() -> None:
    advice = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0)).advice
    assert [(c.servers, c.gpus, c.cost_per_hour) for c in advice.choices] == [
        (4, 4, 8.0), (3, 3, 6.0),
    ]  # fmt: skip
    said = headline(advice)
    assert said.startswith("Rent 3 H100: 3 servers of 1 GPU, 6.00 USD per hour. Speculation (EAGLE")
    assert "take 1.06 times as long (95 %: 1.06 to 1.06)" in said
    assert "25 % less cost on servers of the same kind" in said


@pytest.mark.parametrize(("cost", "is_told"), [(7.0, True), (9.0, False)])
def test_where_no_speculation_is_cheaper_on_other_servers_is_said(
    cost: float, is_told: bool
) -> None:
    """What speculation saves on the servers taken, where none costs 8, is not what it saves."""
    advice = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0)).advice
    off = next(each for each in advice.tried if each.policy == "off")
    larger = off.model_copy(update={"hardware": "h100-tp2", "cost_per_hour": cost})
    said = notes(advice.model_copy(update={"tried": [*advice.tried, larger]}))
    text = "Without speculation servers of h100-tp2 are the cheapest: 7.00 USD per hour."
    assert (text in said) == is_told
    assert not any(each.startswith("Without speculation servers") for each in notes(advice))


def test_every_gpu_that_was_asked_for_is_in_the_table() -> None:
    advice = of_two_gpus().advice
    assert [(c.hardware, c.speculation, c.state) for c in advice.choices] == [
        ("h100", "no speculation", "estimated"),
        ("h100", "EAGLE-3, fixed draft length 3", "searched"),
        ("l40s", "no speculation", "estimated"),
        ("l40s", "EAGLE-3, fixed draft length 3", "estimated"),
        ("rtx4090", "-", "impossible"),
    ]
    assert advice.choices[-1].why == "rtx4090: no profile of qwen3-8b"


def test_how_long_requests_are_is_said() -> None:
    said = of_two_gpus().advice.assumptions[0]
    assert said == (
        "lengths of sharegpt, Poisson arrivals; 223 prompt and 257 output tokens in the mean"
    )


def test_speculation_is_compared_with_none_on_the_same_hardware() -> None:
    advice = of_two_gpus().advice
    found = {c.hardware: c.against_none for c in advice.choices if c.against_none is not None}
    assert found["h100"].times_as_fast == pytest.approx(1.5)
    assert found["l40s"].times_as_fast == pytest.approx(7 / 3)
    assert found["l40s"].times_the_cost == pytest.approx(9 / 12)
    assert (found["l40s"].low, found["l40s"].is_searched) == (None, False)
    assert "about 1.50 times as fast" in headline(advice)


def test_speculation_on_more_servers_than_none_has_is_named() -> None:
    """Of the speed of twice the servers, the drafts are a part that nobody can tell."""
    plan = plan_of((51.0, 50.5, 52.0, 900.0), (49.0, 48.5, 49.5, 600.0))
    text = "H100, EAGLE-3, fixed draft length 3, has 3 where no speculation has 2."
    (said,) = [each for each in notes(plan.advice) if each.startswith("Times as fast is with")]
    assert said.endswith(text)
    fewer = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0)).advice
    assert not any(each.startswith("Times as fast") for each in notes(fewer))


def test_above_which_load_speculation_is_slower_is_said() -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (27.0, 26.0, 28.0, 600.0))
    none, found = (plan.found[f"h100 {label}"] for label in ("off", "static:k=3"))

    def with_latencies(each: Found, latencies: dict[float, float], rate: float) -> Found:
        probes = [LoadProbe((run_at(x, ms, 0.0, 0.0),)) for x, ms in latencies.items()]
        answer = replace(each.answer, probes=probes, bracket=Bracket(rate, rate * 2))
        return replace(each, answer=answer)

    flat = with_latencies(none, {8.0: 100.0, 16.0: 100.0, 32.0: 100.0}, 32.0)
    steep = with_latencies(found, {8.0: 50.0, 16.0: 80.0, 32.0: 125.0}, 32.0)
    assert slower_from(flat, steep) == pytest.approx(22.63, abs=0.01)
    assert slower_from(flat, with_latencies(found, {8.0: 50.0, 32.0: 90.0}, 32.0)) is None


def test_the_cliff_and_a_safe_load_are_said() -> None:
    said = notes(plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0)).advice)
    assert (
        "Beyond: at 34.68 requests/s 50 % of the requests are within; TTFT is missed most." in said
    )
    assert any(text.startswith("Plan for at most 33.5 requests/s per server") for text in said)
    alone = plan_of((126.0, 125.5, 127.0, 900.0), (134.0, 133.5, 135.0, 950.0)).advice
    carried = [text for text in notes(alone) if text.startswith("One server carries all")]
    assert (len(carried), any("carries all" in text for text in said)) == (1, False)


def test_beyond_the_capacity_each_limit_with_a_percentile_of_its_own_is_said() -> None:
    rates = (26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0)
    plan = plan_of(*rates, slo="ttft:p90<800,tpot:50")
    assert (
        "Beyond: at 34.68 requests/s 50 % of the requests are within TPOT 50 ms (99 % must be), "
        "90 % of the requests are within TTFT 800 ms (90 % must be)."
    ) in notes(plan.advice)


@pytest.mark.parametrize("slo", ["ttft:500,tpot:50", "ttft:p99<800,tpot:50"])
def test_what_misses_its_share_by_little_does_not_read_as_if_it_was_kept(slo: str) -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0), slo=slo)
    kept = {"ttft_ms": 0.98998, "all": 0.98998} if "p99" in slo else {}
    best = plan.advice.best
    assert best is not None
    near = best.model_copy(update={"beyond": (34.68, 0.98998), "beyond_kept": kept})
    choices = [near if each is best else each for each in plan.advice.choices]
    [said] = [
        text
        for text in notes(plan.advice.model_copy(update={"choices": choices}))
        if text.startswith("Beyond")
    ]
    assert ("98.99 %" in said, " 99 % of" in said) == (True, False)


@pytest.mark.parametrize("split", ["", "-tp2", "-dp4", "-tp2-pp2", "-pp2", "-tp2-dcp2"])
def test_why_a_gpu_is_impossible_is_said_of_that_gpu(split: str) -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    question = replace(plan.question, gpus=(*plan.question.gpus, "l40s"))
    plan = replace(plan, question=question, left_out=[f"l40s{split}: too small"])
    [impossible] = [each for each in plan.advice.choices if each.state == "impossible"]
    assert impossible.why == f"l40s{split}: too small"
    assert not any("too small" in text for text in plan.warnings)


def test_beyond_the_capacity_the_queue_grows_where_all_limits_are_kept() -> None:
    rates = (26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0)
    for slo in ("ttft:800,tpot:50", "ttft:p90<800,tpot:p95<50"):
        advice = plan_of(*rates, slo=slo).advice
        assert advice.taken is not None
        best = advice.choices[advice.taken].model_copy(update={"binds": "backlog"})
        choices = [*advice.choices[: advice.taken], best, *advice.choices[advice.taken + 1 :]]
        [said] = [
            text
            for text in notes(advice.model_copy(update={"choices": choices}))
            if text.startswith("Beyond: ")
        ]
        assert said.endswith(", and the queue grows.")


def test_files_of_servers_start_or_say_what_to_fill_in(tmp_path: Path) -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    name = plan.taken or ""
    unknown = {**(plan.options[name].speculation or {}), "model": "YOUR-EAGLE3"}
    options = {**plan.options, name: replace(plan.options[name], speculation=unknown)}
    plan = replace(plan, options=options)
    assert "replace YOUR-EAGLE3 by the name of the drafter's weights" in plan.warnings[0]
    save_plan(plan, tmp_path)
    command = ["sh", str(tmp_path / "serve.sh")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, "replace YOUR-EAGLE3" in found.stderr) == (2, True)
    deployment = next(yaml.safe_load_all((tmp_path / "kubernetes.yaml").read_text()))
    [server] = deployment["spec"]["template"]["spec"]["containers"]
    version = plan.options[name].experiment.engine.vllm_version
    assert server["image"] == f"vllm/vllm-openai:v{version}.0"
    probes = [server[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert probes == [{"path": "/health", "port": 8000}] * 3
    assert server["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "hf-token"
    known = {**unknown, "model": "someone/eagle3"}
    options[name] = replace(options[name], speculation=known)
    save_plan(replace(plan, options=options), tmp_path)
    assert "exit 2" not in (tmp_path / "serve.sh").read_text()


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize("is_shape", [False, True])
def test_the_folder_of_a_plan_can_be_moved(tmp_path: Path, is_shape: bool) -> None:
    """A profile that is composed for a model's folder needs neither that folder nor this one."""
    model, first, second = (tmp_path / name for name in ("model", "first", "second"))
    model.mkdir()
    first.mkdir()
    config = model / "config.json"
    config.write_text(json.dumps(MIMO | {"num_hidden_layers": 30, "_name_or_path": str(model)}))
    if is_shape:
        config.write_text(load_model(str(config)).model_dump_json())
    question = asked(str(model), gpus="h100", qps=10.0)
    option = offered(question, ("off",)).options[0]
    found = found_of(option, question, 12.0, (11.0, 13.0), 900.0)
    save_plan(Plan(question, [], {option.name: option}, searched={option.name: found}), first)
    shutil.rmtree(model)
    first.rename(second)
    profile = load_profile(second / "profile.yaml")
    assert load_model(profile.model).name == str(model)
    assert profile.target.model == profile.model == str(second / "model-config.json")


@pytest.mark.slow
def test_console_page_json_and_api_say_the_same(tmp_path: Path) -> None:
    rng = random.Random(5)
    for number in range(50):
        given = []
        for _ in range(2):
            rate = rng.uniform(5, 120)
            given.append((rate, rate * 0.97, rate * rng.uniform(1.0, 1.1), rng.uniform(100, 2000)))
        plan = plan_of(*given) if number % 5 else of_two_gpus()
        plan = replace(plan, left_out=[f"gb300: reason {number}"])
        folder = tmp_path / str(number)
        folder.mkdir()
        save_plan(plan, folder)
        read = Advice.model_validate_json((folder / "plan.json").read_text())
        assert read == plan.advice
        page = page_data(load_study(folder))
        assert page["warnings"] == plan.warnings
        assert f"not tried: gb300: reason {number}" in plan.warnings
        shown = page["plan"]
        console = [*plan_lines(plan), *notes(plan.advice)]
        assert [shown["asked"].removesuffix("."), shown["headline"], *shown["notes"]] == console
        [choices] = plan_tables(plan)
        assert cells_of(choices) == [shown["heads"], *shown["rows"]]


def cells_of(shown: WideTable | Table) -> list[list[str]]:
    assert isinstance(shown, WideTable)
    columns = [[str(column.header), *map(str, column.cells)] for column in shown.whole.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def test_tokens_cost_what_the_servers_cost_however_long_the_answers_of_a_run() -> None:
    plan = of_two_gpus()
    for run in (run for found in plan.searched.values() for p in found.probes for run in p.runs):
        object.__setattr__(run, "mean_output_len", 110.0)
    tokens_per_hour = 100.0 * plan.question.traffic.mean_lens[1] * 3600
    costs = [(c.cost_per_hour, c.cost_per_million_tokens) for c in plan.advice.choices if c.gpus]
    assert len(costs) == 4
    for per_hour, per_million in costs:
        assert per_million == pytest.approx(1e6 * per_hour / tokens_per_hour)


@pytest.mark.parametrize(("width", "tables"), [(140, 1), (80, 2)])
def test_the_table_fits_the_terminal(width: int, tables: int) -> None:
    console = Console(width=width, file=StringIO())
    [choices] = plan_tables(of_two_gpus())
    with console.capture() as shown:
        console.print(choices, crop=False)
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("speculation" in line and "GPU" in line for line in lines) == tables
    assert all(cell in shown.get() for row in cells_of(choices)[1:] for cell in row[2:])


def refined(
    held: int,
    is_enough: bool,
    *,
    first: int = 2000,
    asked_for: list[Asked] | None = None,
    stable_from: int = 0,
) -> Answer:
    goal = replace(goal_of(asked(qps=10.2)), max_requests=64_000, tolerance=0.04)
    search = refine(10.0, goal, first, lambda _: is_enough)
    wanted = next(search)
    for _ in range(60):
        if asked_for is not None:
            asked_for.append(wanted)
        missed = min(1.0, 0.01 * (wanted.load / 10.3) ** 80)
        run = replace(run_at(wanted.load, 1.0, 0.0, missed, held), num_requests=1)
        if wanted.num_requests < stable_from:
            run = replace(run, balance=UNKNOWN)
        shifted = [replace(run, missed=missed * (1 + s / 50)) for s in range(-2, 3)]
        try:
            wanted = search.send(LoadProbe(tuple(shifted)))
        except StopIteration as stop:
            return stop.value
    raise AssertionError("the search does not end")


@pytest.mark.parametrize(("held", "is_enough", "length"), [(100, True, 2000), (1000, True, 8000),
                                                           (100, False, 8000)])  # fmt: skip
def test_runs_grow_until_they_fill_the_server_and_the_answer_is_enough(
    held: int, is_enough: bool, length: int
) -> None:
    found = refined(held, is_enough)
    assert found.num_requests == length
    assert found.interval is not None
    assert found.interval.low < 10.3 < found.interval.high


@pytest.mark.parametrize(("stable_from", "length"), [(0, 2000), (3000, 8000)])
def test_what_is_not_seen_to_be_stable_is_not_enough(stable_from: int, length: int) -> None:
    """A server fills on near its capacity, and so keeps its limits in runs that are too short."""
    assert refined(100, True, stable_from=stable_from).num_requests == length


@pytest.mark.parametrize(
    ("held", "first", "lengths"),
    [(2000, 20_000, [20_000]), (3000, 20_000, [20_000, 64_000]), (4000, 40_000, [16_000, 64_000])],
)
def test_runs_of_servers_that_hold_many_begin_with_as_many_as_fill_them(
    held: int, first: int, lengths: list[int]
) -> None:
    asked_for: list[Asked] = []
    refined(held, True, first=first, asked_for=asked_for)
    seen = [each.num_requests for each in asked_for if each.load != pytest.approx(10.2)]
    assert list(dict.fromkeys(seen)) == lengths


def test_short_runs_that_grow_are_fewer() -> None:
    goal = goal_of(asked())
    assert [goal.num_runs(length) for length in (2000, 3999, 4000, 8000)] == [2, 1, 1, 1]
    assert replace(goal, is_rough=False).num_runs(8000) == 2
    option = offered(asked(), ("off",)).options[0]
    tasks = option.contender(goal).at(Asked(5.0, 6000))
    assert [each.trial.experiment.workload.num_requests for each in tasks] == [6000]


@pytest.mark.parametrize("held", [8, 400, 900, 1900])
@pytest.mark.parametrize("capacity", [3.0, 10.0, 40.0])
def test_short_runs_are_long_enough_for_a_server_that_holds_many(
    held: int, capacity: float
) -> None:
    """By Little's law a server that holds n requests tells nothing in a run of less than 4 n."""
    search = explore(10.0, goal_of(asked()), SHORT_REQUESTS)
    wanted, found, lengths = next(search), None, []
    while found is None:
        lengths.append(wanted.num_requests)
        own = round(held * wanted.load / capacity)
        run = run_at(wanted.load, 1.0, 0.0, missed=float(wanted.load > capacity), held=own)
        run = replace(run, is_too_short=wanted.num_requests < 4 * own)
        try:
            wanted = search.send(LoadProbe((run, run)))
        except StopIteration as stop:
            found = stop.value
    assert found.bracket.sustained is not None
    assert capacity / 1.11 <= found.bracket.sustained <= capacity
    assert (max(lengths) == SHORT_REQUESTS) is (held <= 400)


def test_loads_near_the_capacity_are_looked_at_in_runs_of_full_length() -> None:
    asked_for: list[Asked] = []
    refined(1000, True, asked_for=asked_for)
    assert asked_for[-1].load == pytest.approx(10.2)  # one replica at the target
    assert asked_for[-1].num_requests == 8000


@pytest.mark.slow
def test_the_answer_does_not_depend_on_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.study.plan.REQUESTS", 150)
    monkeypatch.setattr("specsim.study.plan.LONGEST", 500)
    monkeypatch.setattr("specsim.study.plan.candidates.SHORT_REQUESTS", 150)
    question = asked(f"Qwen/Qwen3-8B --max-num-seqs 64 {EAGLE}", qps=30.0, traffic="math")
    one, two = (make_plan(question, workers=n).to_dict() for n in (1, 2))
    assert one == two
    assert one["taken"] is not None
    assert one["answer"].startswith("Rent ")


@pytest.mark.slow
def test_limits_that_nothing_keeps_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.study.plan.candidates.SHORT_REQUESTS", 150)
    question = replace(asked(f"Qwen/Qwen3-8B --max-num-seqs 2 {EAGLE}"), slo=Slo(ttft_ms=1.0))
    with pytest.raises(SpecsimError, match="keeps the limits") as error:
        make_plan(question, workers=1)
    form = r"TTFT p99 ([\d.]+) ms \(limit 1 ms\) at ([\d.]+) requests/s"
    said = re.search(form, str(error.value))
    assert said
    assert float(said[1]) > 1
    with_room = replace(question, slo=Slo(ttft_ms=1.2 * float(said[1])))  # as the message promises
    goal = goal_of(with_room)
    options = offered(with_room, ("off", "static:k=3")).options
    with Runner(LocalProcesses(1), None) as runner:
        found = searched([o.contender(goal) for o in options], runner)
    assert any(each.rate and each.rate >= 0.5 * float(said[2]) for each in found)


def test_agents_come_in_sessions_at_a_rate_of_requests() -> None:
    traffic = find_traffic("agents")
    workload = traffic.at(20.0, 8000)
    built = WorkloadConfig.model_validate(workload).build(1)
    assert built.num_sessions == pytest.approx(8000 / traffic.turns, rel=0.05)
    assert built.arrived_at is not None
    assert len(built) / built.arrived_at[-1] == pytest.approx(20.0, rel=0.1)
    assert traffic.acceptance_for("eagle3", "llama-3.1-8b")[0]["name"].endswith("/instructcoder")


def test_loads_of_sessions_are_requests_per_second() -> None:
    experiment = Experiment.parse(
        {
            "workload": find_traffic("agents").at(5.0, 100),
            "engine": {"max_model_len": 40960},
            "profile": "h100/llama-3.1-8b",
        },
        "agents",
    )
    assert "arrivals.rate is of the whole service, sessions/s" in commented(experiment, "", Path())
    loads = Loads(experiment, 1)
    assert loads.own == pytest.approx(5.0, rel=0.01)
    (trial,) = loads.trials(Off(), 5.0, 100)
    assert trial.experiment.workload.num_requests > 300  # five times as long as a session thinks
    assert trial.experiment.workload.arrivals.rate == pytest.approx(5.0 / loads.turns)
    with pytest.raises(ConfigError, match="hold no batch at a size"):
        loads.check_batches()
    scaled = experiment.replace(autoscaling="target_queue:target=1,max_replicas=2")
    with pytest.raises(ConfigError, match="while replicas come and go"):
        Loads(scaled, 1)


def moved_plan(changes: dict[float, float], latency: float = 900.0) -> Plan:
    """Make a plan whose speculation sustains so many times as much with acceptance moved.

    Args:
        latency: Without speculation, milliseconds; with it 950.
    """
    plan = plan_of((26.0, 25.5, 27.0, latency), (34.0, 33.5, 35.0, 950.0))
    name = "h100 static:k=3"
    short = plan.found[name]
    option, question = plan.options[name], plan.question
    moved = {
        change: {name: found_of(option, question, 34.0 * times, (1.0, 2.0), 950.0)}
        for change, times in changes.items()
    }
    return replace(plan, screened={name: short, "h100 off": plan.found["h100 off"]}, moved=moved)


def test_what_acceptance_decides_is_said() -> None:
    plan = moved_plan({-0.1: 0.7, 0.1: 1.5})
    assert plan.taken == "h100 static:k=3"
    low, high = (each for each in plan.advice.what_ifs if each.kind == "acceptance")
    # 100 requests/s: 34 a server, with 23.8 five servers, for which none at 26 takes four.
    assert (low.policy, low.gpus, low.is_other) == ("off", 4, True)
    assert (high.policy, high.gpus, high.is_other) == ("static:k=3", 2, False)
    said = notes(plan.advice)
    assert "With acceptance 0.1 lower: 4 H100, no speculation, 8.00 USD per hour." in said


def test_more_accepted_drafts_need_no_more_servers_whatever_short_runs_say() -> None:
    plan = moved_plan({-0.1: 1.4, 0.1: 0.7})
    low, high = (each for each in plan.advice.what_ifs if each.kind == "acceptance")
    assert (low.gpus, high.gpus) == (3, 3)  # as with acceptance as it is


def test_how_fast_speculation_is_with_other_acceptance_is_said() -> None:
    plan = moved_plan({-0.1: 0.99, 0.1: 1.01}, latency=1425.0)
    low = next(each for each in plan.advice.what_ifs if each.kind == "acceptance")
    assert (low.is_other, low.times_as_fast) == (False, pytest.approx(1.5))
    assert "acceptance 0.1 lower (then 1.50 times as fast)" in " ".join(notes(plan.advice))
    advice = plan.advice
    worlds = [each.model_copy(update={"times_as_fast": 0.96}) for each in advice.what_ifs]
    said = " ".join(notes(advice.model_copy(update={"what_ifs": worlds})))
    assert said.count("(then 4.2 % slower than without speculation)") == len(worlds)


def test_a_load_that_one_short_run_alone_has_tried_tells_nothing_of_acceptance() -> None:
    plan = moved_plan({-0.1: 0.99}, latency=1425.0)
    [(name, moved)] = plan.moved[-0.1].items()
    light = found_of(plan.options[name], replace(plan.question, rate=10.0), 34.0, (1.0, 2.0), 300.0)
    both = replace(moved.answer, probes=[light.probes[0], *moved.probes])
    short = plan.screened[name]
    near = replace(short, answer=replace(short.answer, probes=short.probes[-2:]))
    question = replace(plan.question, rate=60.0)
    for screened, known in ((short, both), (near, both)):
        other = replace(moved, answer=known)
        crowded = replace(
            plan, question=question, screened={**plan.screened, name: screened},
            moved={-0.1: {name: other}},
        )  # fmt: skip
        low = next(each for each in crowded.advice.what_ifs if each.kind == "acceptance")
        assert low.times_as_fast == pytest.approx(1.5)


def test_an_api_is_weighed_against_what_is_rented() -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    traffic = replace(plan.question.traffic, mean_lens=(1000.0, 200.0))
    question = replace(plan.question, traffic=traffic, api_price=(0.5, 2.5))
    advice = replace(plan, question=question).advice
    assert advice.api is not None
    # A request costs 0.001 USD: at 100 requests/s 360 an hour; 3 H100 at 2 are paid by 1.67.
    assert advice.api.cost_per_hour == pytest.approx(360)
    assert advice.api.same_cost_at == pytest.approx(6 / 3.6)
    said = next(text for text in notes(advice) if text.startswith("An API at 0.5 USD"))
    assert "360.00 per hour" in said
    assert "60 times what is rented, and as much as that at 1.67 requests/s" in said
    # Half of the day nobody asks: an API costs 4,320, and 3 servers 14 h and 1 else 104.
    question = replace(question, day=read_day("0:100,12:100,12.001:0,23.999:0"))
    said = next(t for t in notes(replace(plan, question=question).advice) if "An API" in t)
    assert "360.00 per hour at the highest load, 4,3" in said
    assert "41 times the cheapest day of servers, and as much as what is rented for" in said


@pytest.mark.parametrize("text", ["0.5", "a,b", "1,0", "-1,2", "1,inf", "1,2,3", ""])
def test_what_is_no_price_of_an_api_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--api-price .*such as 0\.6,1\.2$"):
        asked(api_price=text)


@pytest.mark.parametrize(
    ("ratio", "said"), [(1.0, "the same cost."), (251 / 250, "0.4 % more"), (0.67, "33 % less")]
)
def test_a_server_more_of_many_is_not_said_to_cost_nothing(ratio: float, said: str) -> None:
    advice = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 600.0)).advice
    best = advice.best
    assert best is not None
    assert best.against_none is not None
    over = best.against_none.model_copy(update={"times_the_cost": ratio})
    moved = best.model_copy(update={"against_none": over})
    choices = [moved if each is best else each for each in advice.choices]
    assert f" at {said}" in headline(advice.model_copy(update={"choices": choices}))


def test_an_answer_on_the_edge_says_so() -> None:
    plan = plan_of((20.0, 19.9, 20.1, 900.0), (34.0, 32.0, 35.0, 600.0))
    assert "That is on the edge: 4 servers may be needed." in headline(plan.advice)


def test_a_policy_that_the_server_has_not_is_to_be_filled_in(tmp_path: Path) -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    name = plan.taken or ""
    options = {**plan.options, name: replace(plan.options[name], speculation=None)}
    plan = replace(plan, options=options)
    wanted = "YOUR-SCHEDULE by what `specsim tune experiment.yaml --emit vllm` prints"
    assert wanted in plan.warnings[0]
    save_plan(plan, tmp_path)
    script = ["sh", str(tmp_path / "serve.sh")]
    found = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (found.returncode, wanted in found.stderr) == (2, True)
    for file in STARTING:
        text = (tmp_path / file).read_text()
        assert ("--speculative-config" in text, "YOUR-SCHEDULE" in text) == (True, True)


@pytest.mark.parametrize(
    ("slo", "missed", "why"),
    [
        ("ttft:500,tpot:50", 0.0132,
         "98.68 % of the requests are within TTFT 500 ms and TPOT 50 ms (99 % must be) even"),
        ("ttft:p50<60,tpot:30", 0.53,
         "47 % of the requests are within TTFT 60 ms (50 % must be) even"),
        ("ttft:p50<60,tpot:30", 0.0, "runs were too short to tell even"),
    ],
)  # fmt: skip
def test_why_no_load_is_sustained_is_told_by_the_promises(
    slo: str, missed: float, why: str
) -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0), slo=slo)
    run = run_at(0.5, 900.0, 0.0, missed)
    shares = plan.question.limit_shares
    if shares:
        own = {name: Promise(missed, share) for name, share in shares.items()}
        run = replace(run, promises={**own, ALL: Promise(0.0, 0.99)})
    found = plan.found["h100 off"]
    none = Answer(Bracket(None, 0.5), None, True, 4000, [LoadProbe((run,))])
    lost = Found(found.hardware, found.policy, none, found.goal)
    plan = replace(plan, searched={**plan.searched, "h100 off": lost})
    [choice] = [each for each in plan.advice.choices if each.policy == "off"]
    assert (choice.state, choice.why) == ("impossible", f"{why} at 0.5 requests/s")


@pytest.mark.parametrize(
    ("program", "started", "image"),
    [
        ("vllm", "vllm serve", "vllm/vllm-openai-rocm:v0.33.0"),
        ("sglang", "sglang.launch_server --model-path", "lmsysorg/sglang-rocm:YOUR-TAG"),
    ],
)
def test_containers_get_gpus_of_amd_as_docker_and_kubernetes_call_them(
    tmp_path: Path, program: str, started: str, image: str
) -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0), gpus="mi300x")
    command = read_command(f"{started} Qwen/Qwen3-8B", program)
    save_plan(replace(plan, question=replace(plan.question, command=command)), tmp_path)
    services = yaml.safe_load((tmp_path / "docker-compose.yaml").read_text())["services"]
    for number, service in enumerate(services.values()):
        assert (service["image"], "deploy" in service) == (image, False)
        assert service["devices"] == ["/dev/kfd", "/dev/dri"]
        assert service["environment"]["HIP_VISIBLE_DEVICES"] == str(number)
    pods = next(yaml.safe_load_all((tmp_path / "kubernetes.yaml").read_text()))
    server = pods["spec"]["template"]["spec"]["containers"][0]
    assert (server["image"], server["resources"]) == (image, {"limits": {"amd.com/gpu": 1}})


def test_what_suffix_lookup_needs_beside_vllm_is_said(tmp_path: Path) -> None:
    drafts = """--speculative-config '{"method": "suffix", "num_speculative_tokens": 3}'"""
    question = asked(f"Qwen/Qwen3-8B {drafts}", qps=100.0)
    options = {o.name: o for o in offered(question, ("off", "static:k=3")).options}
    searched_ = {
        name: found_of(option, question, 34.0, (33.5, 35.0), 900.0 if option.is_off else 600.0)
        for name, option in options.items()
    }
    plan = Plan(question, [], options, searched=searched_)
    assert plan.options[plan.taken or ""].method == "suffix"
    save_plan(plan, tmp_path)
    said = [*plan.warnings, *((tmp_path / name).read_text() for name in STARTING)]
    assert sum("pip install arctic-inference==0.1.1" in text for text in said) == 4


def test_a_server_of_sglang_listens_where_its_container_says(tmp_path: Path) -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    command = read_command("sglang.launch_server --model-path Qwen/Qwen3-8B --port 30001", "sglang")
    save_plan(replace(plan, question=replace(plan.question, command=command)), tmp_path)
    services = yaml.safe_load((tmp_path / "docker-compose.yaml").read_text())["services"]
    words = services["llm-0"]["command"]
    assert (words.count("--port"), words[-4:]) == (1, ["--host", "0.0.0.0", "--port", "8000"])
    assert "8000" not in (tmp_path / "serve.sh").read_text()


STARTING = ("serve.sh", "docker-compose.yaml", "kubernetes.yaml")


def test_containers_find_the_folder_of_a_model_and_listen_where_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    Path("own").mkdir()
    typed = "vllm serve own --port 8001 --host=127.0.0.1 --served-model-name own "
    typed += f"--max-model-len 8192 {EAGLE}"
    question = replace(plan.question, command=read_command(typed, "vllm"))
    save_plan(replace(plan, question=question), tmp_path)
    own = str(tmp_path / "own")
    script = (tmp_path / "serve.sh").read_text()
    assert "vllm serve own --port 8001 --host=127.0.0.1 --served-model-name own" in script
    read = [read_command(str(tmp_path / name), "vllm") for name in STARTING]
    assert len({str((each.tensor_parallel_size, each.speculation)) for each in read}) == 1
    services = yaml.safe_load((tmp_path / "docker-compose.yaml").read_text())["services"]
    for service in services.values():
        assert service["command"][:3] == [own, "--served-model-name", "own"]
        assert service["volumes"] == [f"{own}:{own}:ro"]
    deployment, _ = yaml.safe_load_all((tmp_path / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][:3] == [own, "--served-model-name", "own"]
    assert own in [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]]
    assert own in [each.get("hostPath", {}).get("path") for each in pod["volumes"]]


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("drafter", ["./drafter", "drafter"])
def test_containers_find_the_drafters_folder_and_a_chat_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafter: str, dotted: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    Path("drafter").mkdir()
    Path("chat.jinja").write_text("")
    drafts = {"method": "eagle3", "model": drafter, "num_speculative_tokens": 3}
    given = " ".join(f"--speculative-config.{name} {value}" for name, value in drafts.items())
    given = given if dotted else f"--speculative-config '{json.dumps(drafts)}'"
    typed = "vllm serve Qwen/Qwen3-8B --chat-template=./chat.jinja --tokenizer drafter "
    typed += f"--allowed-local-media-path / --download-dir {tmp_path} {given}"
    drafting = {n: replace(o, speculation=drafts) for n, o in plan.options.items() if not o.is_off}
    question = replace(plan.question, command=read_command(typed, "vllm"))
    save_plan(replace(plan, question=question, options=plan.options | drafting), tmp_path)
    paths = [str(tmp_path / "drafter"), str(tmp_path / "chat.jinja")]
    services = yaml.safe_load((tmp_path / "docker-compose.yaml").read_text())["services"]
    for service in services.values():
        model, template, _, tokenizer, *_, speculation = service["command"]
        assert tokenizer == paths[0]
        assert (model, template) == ("Qwen/Qwen3-8B", f"--chat-template={paths[1]}")
        assert json.loads(speculation) == {**drafts, "model": paths[0]}
        assert service["volumes"] == [f"{path}:{path}:ro" for path in paths]
    deployment, _ = yaml.safe_load_all((tmp_path / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    mounted = [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]]
    assert [path for path in paths if path not in mounted] == []
    kinds = {each["hostPath"]["path"]: each["hostPath"]["type"] for each in pod["volumes"][1:]}
    assert kinds == dict(zip(paths, ("Directory", "File"), strict=True))


@pytest.mark.parametrize(("redundancy", "servers"), [("n", (4, 4, 5, 31)), ("n+1", (5, 5, 5, 31))])
def test_a_load_costs_what_the_servers_do_that_have_it_at_most(
    redundancy: str, servers: tuple[int, ...]
) -> None:
    both = (26.0, 25.5, 27.0, 900.0)
    found = plan_of(both, both, redundancy=redundancy).found["h100 off"]
    assert found.replicas == servers[0]
    tokens_per_hour = 100.0 * 100.0 * 3600
    for load, count in zip((26.0, 25.0, 20.0, 100 / 31), servers, strict=True):
        cost = found.tried(LoadProbe((run_at(load, 900.0, 0.0, 0.0),))).compared_cost
        assert cost == pytest.approx(1e6 * 2.0 * count / tokens_per_hour)


def test_what_the_load_decides_is_counted_by_the_capacities_that_were_found() -> None:
    advice = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0)).advice
    loads = {each.what: each.gpus for each in advice.what_ifs if each.kind == "load"}
    assert loads == {"80 requests/s (-20 %)": 3, "120 requests/s (+20 %)": 4}


@pytest.mark.slow
def test_steps_that_take_longer_need_no_fewer_servers() -> None:
    rng = random.Random(3)
    for _ in range(40):
        rates = sorted(rng.uniform(8, 90) for _ in range(2))
        plan = plan_of(*((r, r * 0.98, r * 1.02, rng.uniform(300, 900)) for r in rates))
        known = [each for each in plan.advice.what_ifs if each.kind == "step times"]
        fast, slow = (each.cost_per_hour or 0.0 for each in known) if known else (0.0, 0.0)
        best = plan.advice.best
        assert best is not None
        assert fast <= (best.cost_per_hour or 0.0) <= slow or not known


def test_at_which_price_another_gpu_is_cheaper_is_said() -> None:
    plan = of_two_gpus()
    [other] = plan.advice.other_prices
    taken = plan.advice.best
    assert taken is not None
    assert other.gpu == "l40s"
    gpus = next(c.gpus for c in plan.advice.choices if c.gpu == "l40s" and c.policy != "off")
    assert other.cheaper_below * (gpus or 0) == pytest.approx(taken.cost_per_hour)
    assert other.cheaper_below < other.now


@pytest.mark.parametrize(
    ("more", "faster", "is_said"), [(1.01, 3, True), (1.2, 3, False), (1.01, 1.1, False)]
)
def test_what_costs_little_more_and_answers_much_faster_is_said(
    more: float, faster: float, is_said: bool
) -> None:
    advice = of_two_gpus().advice
    assert advice.best is not None
    assert advice.best.cost_per_hour is not None
    assert advice.best.mean_latency_ms is not None
    changes = {
        "cost_per_hour": more * advice.best.cost_per_hour,
        "mean_latency_ms": advice.best.mean_latency_ms / faster,
    }
    choices = [c.model_copy(update=changes) if c.gpu == "l40s" else c for c in advice.choices]
    said = " ".join(notes(advice.model_copy(update={"choices": choices})))
    wanted = "L40S, no speculation, answer about 3.00 times as fast for 1.0 % more."
    assert (wanted in said, "times as fast for" in said) == (is_said, is_said)


def test_servers_in_reserve_are_counted_and_share_the_load() -> None:
    question = asked(qps=100.0, redundancy="n+1")
    option = offered(question, ("off",)).options[0]
    found = found_of(option, question, 26.0, (25.5, 27.0), 900.0)
    assert found.replicas == 5
    assert goal_of(question).looked_at(26.0) == [20.0]
    assert found.cost_per_hour == 10.0
    with pytest.raises(ConfigError, match=r"--redundancy 2n: should be n, n\+1"):
        asked(redundancy="2n")


def test_every_draft_length_up_to_the_commands_is_tried() -> None:
    seven = asked("Qwen/Qwen3-8B " + EAGLE.replace(": 3}", ": 7}"))
    for question, others in ((seven, (1, 2, 4, 5, 6, 7)), (asked("Qwen/Qwen3-8B"), (1, 2, 4, 5))):
        assert later_policies(question)[:-1] == tuple(f"static:k={k}" for k in others)


class _Interrupting:
    """Raises KeyboardInterrupt as Ctrl-C does, when a stage begins."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.seen: list[str] = []

    def __call__(self, stage: str) -> None:
        self.seen.append(stage)
        if stage.startswith(self.at):
            raise KeyboardInterrupt


def test_nothing_to_search_for_is_found_at_once() -> None:
    # As where no drafter that was asked for fits hardware that is worth renting.
    with Runner(LocalProcesses(1)) as runner:
        assert searched([], runner) == []


@pytest.mark.usefixtures("no_tables")
def test_a_gpu_with_a_namesake_that_was_measured_says_so() -> None:
    (option,) = offered(asked("Qwen/Qwen3-8B", gpus="a100"), ("off",)).options
    assert measured_alike(option.hardware.profile) == " (there is one for a100-80gb: --gpus)"
    (option,) = offered(asked("Qwen/Qwen3-8B -tp 1", gpus="b200"), ("off",)).options
    assert measured_alike(option.hardware.profile) == ""


@pytest.mark.slow
def test_ctrl_c_leaves_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.study.plan.candidates.SHORT_REQUESTS", 150)
    server = f"Qwen/Qwen3-8B --max-num-seqs 64 {EAGLE}"
    question = asked(server, qps=25.0, traffic="math", gpus="h100,b200")
    stop = _Interrupting("long runs")
    plan = make_plan(question, on_stage=stop)
    assert stop.seen[0] == "short runs of 4 options"
    assert plan.advice.best is not None
    assert {choice.state for choice in plan.advice.choices} == {"estimated"}
    assert plan.warnings[0].startswith("interrupted: ")
    with pytest.raises(KeyboardInterrupt):
        make_plan(question, on_stage=_Interrupting("short runs of 4"))
    # A GPU that cannot win has its best draft length in its row, too.
    tried = {t.policy: t for t in plan.advice.tried if t.hardware == "b200" and t.policy != "off"}
    assert set(tried) == {f"static:k={k}" for k in (1, 2, 3, 4, 5)}
    best = min(tried.values(), key=lambda each: (each.cost_per_hour, each.mean_e2el_ms))
    assert [c.policy for c in plan.advice.choices if c.gpu == "b200"] == ["off", best.policy]


def test_a_plan_of_a_day_says_what_each_way_costs_and_can_be_run(tmp_path: Path) -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    plan = replace(plan, question=replace(plan.question, day=read_day("0:20,12:100")))
    day = plan.advice.day
    assert day is not None
    fixed, scheduled, scaled = day.fleets
    assert fixed.cost_per_day == 24 * 6.0
    assert max(scheduled.cost_per_day, scaled.cost_per_day) < fixed.cost_per_day
    assert f" A day costs 144.00 fixed, {scheduled.cost_per_day:.2f} by" in headline(plan.advice)
    alike = replace(plan.question, day=read_day("0:20,12:21"))
    one_way = headline(replace(plan, question=alike).advice)
    assert " A day costs 48.00 USD, however servers come and go." in one_way
    assert [row[0] for row in day_table(plan.advice)[1]] == [each.way for each in day.fleets]
    assert any(text.startswith("The day has 5,184,000 requests") for text in notes(plan.advice))
    # 969 ms in the mean, at any load: by Little's law.
    assert day.requests_per_server == pytest.approx(34.0 / day.headroom * 0.969)
    save_plan(plan, tmp_path)
    written = Experiment.load(tmp_path / "day.yaml")
    assert written.workload.expected_requests == pytest.approx(day.requests, rel=1e-3)
    assert written.autoscaling is not None
    assert written.autoscaling.max_replicas == scaled.most_servers
    assert page_data(load_study(tmp_path))["plan"]["day_rows"] == day_table(plan.advice)[1]


def test_of_pools_no_day_is_written_that_could_not_be_run(tmp_path: Path) -> None:
    plan = plan_of((10.0, 9.8, 10.2, 900.0), (12.0, 11.8, 12.2, 600.0))
    question = replace(plan.question, day=read_day("0:20,12:100"), pools=True)
    pools = plan.options["h100 static:k=3"].in_pools(1, 2)
    found = found_of(pools, question, 60.0, (59.0, 61.0), 500.0)
    options, searched = {**plan.options, pools.name: pools}, {**plan.searched, pools.name: found}
    plan = replace(plan, question=question, options=options, searched=searched)
    assert plan.taken == pools.name
    save_plan(plan, tmp_path)
    assert (tmp_path / "serve.sh").exists()
    assert not (tmp_path / "day.yaml").exists()
    assert any("no day.yaml where they are taken" in text for text in plan.warnings)


RATES = {"h100 off": 26.0, "h100 static:k=3": 34.0, "h100 2p+1d off": 130.0}


def test_prefill_and_decode_apart_compete_with_servers_that_do_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = asked(f"Qwen/Qwen3-8B -tp 1 {EAGLE}", qps=100.0, pools=True)
    screened: list[str] = []

    def searched(contenders: list[Contender], *_: object) -> list[Found]:
        found = []
        for each in contenders:
            option = Option(each.hardware, each.loads.experiment, each.label)
            screened.append(option.name)
            rate = RATES.get(option.name, 20.0)
            found.append(found_of(option, question, rate, (rate * 0.98, rate * 1.02), 900.0))
        return found

    monkeypatch.setattr("specsim.study.plan.searched", searched)
    monkeypatch.setattr("specsim.study.plan.refined", searched)
    plan = make_plan(question)
    # The queue grows for prefill, so that more servers get that.
    splits = {name.split()[1] for name in screened if "p+" in name}
    assert splits == {"1p+1d", "2p+1d", "3p+1d"}
    assert (plan.taken, plan.found["h100 2p+1d off"].cost_per_hour) == ("h100 2p+1d off", 6.0)
    shown = [(choice.pools, choice.policy) for choice in plan.advice.choices]
    assert shown[0] == (None, "off")
    assert ((2, 1), "off") in shown
    said = headline(plan.advice)
    assert said.startswith(
        "Rent 3 H100: 1 unit of 3 GPUs, 6.00 USD per hour. In each unit 2 prefill"
    )
    save_plan(plan, tmp_path)
    script = (tmp_path / "serve.sh").read_text()
    assert "One of 2 servers that prefill and 1 that decode, on 1 H100 each: all" in script
    assert '--kv-transfer-config \'{"kv_connector": "NixlConnector"' in script
    assert not (tmp_path / "kubernetes.yaml").exists()
    pools = Experiment.load(tmp_path / "experiment.yaml").pools
    assert pools is not None
    assert (pools.prefill.replicas, pools.decode.replicas) == (2, 1)


def test_pools_are_of_vllm() -> None:
    with pytest.raises(ConfigError, match="--pools: is of vLLM"):
        question_of(sglang="--model-path Qwen/Qwen3-8B", pools=True)
    with pytest.raises(ConfigError, match="--pools: KV blocks in host memory are not planned"):
        question_of(vllm="vllm serve Qwen/Qwen3-8B --kv-offloading-size 10", pools=True)


def test_an_autoscaler_does_not_give_up_a_server_that_it_will_want_back() -> None:
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0))
    name = "h100 static:k=3"
    found = plan.found[name]
    # At half the load answers are four times as fast, so that few requests are in two servers.
    probes = [LoadProbe((run_at(x, ms, 0.0, 0.0),)) for x, ms in ((8.0, 250.0), (34.0, 1000.0))]
    steep = replace(found, answer=replace(found.answer, probes=probes))
    question = replace(plan.question, day=read_day("0:20,12:60"))
    options, searched = {name: plan.options[name]}, {name: steep}
    day = day_advice(replace(plan, question=question, options=options, searched=searched))
    assert day is not None
    load = 34.0 / day.headroom
    half = load / 2
    assert day.requests_per_server == pytest.approx(2 * half * latency_at(steep, half) / 1e3)
    assert day.requests_per_server < 0.6 * load * latency_at(steep, load) / 1e3


def test_warnings_name_options_as_the_table_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Beyond, "warnings", lambda *_: ["far"])
    warnings = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0)).warnings
    assert warnings[-2:] == [
        "H100, no speculation: far", "H100, EAGLE-3, fixed draft length 3: far",
    ]  # fmt: skip


@pytest.mark.parametrize("head", ["eagle3-llama-3.1-8b", "dflash-qwen3-8b", "deepseek-v3-mtp"])
def test_a_head_serves_nobody(head: str) -> None:
    with pytest.raises(ConfigError, match=f"^model {head}: is a head, .* --speculative-config"):
        model_of(head)


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("openai/gpt-oss-120b", "h100: 5.4 GiB of each GPU are left"),
        ("openai/gpt-oss-120b --kv-cache-memory-bytes 4000000000", None),
        ("openai/gpt-oss-20b", None),
    ],
)
def test_where_little_memory_is_left_for_kv_blocks_that_is_said(
    command: str, left: str | None
) -> None:
    command = f"vllm serve {command} --tensor-parallel-size 1 --max-model-len 8192 {EAGLE}"
    plan = plan_of((26.0, 25.5, 27.0, 900.0), (34.0, 33.5, 35.0, 950.0), vllm=command)
    said = [text for text in plan.warnings if "left for KV blocks" in text]
    assert [text.startswith(left or "") for text in said] == ([True] if left else [])
