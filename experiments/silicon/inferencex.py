"""How the servers of silicon_sample.csv were started, as far as anybody says.

What benchmarks/*.sh of github.com/SemiAnalysisAI/InferenceX (70b_fp8_h100_slurm.sh,
gptoss_fp4_h200.sh, dsr1_fp8_b200.sh, qwen3.5_fp8_b200.sh, minimaxm2.5_fp8_h200.sh, glm5_fp8_b200.sh
and their like) set: a KV cache of 8 bits, VLLM_MXFP4_USE_MARLIN=1, FlashInfer's fused all-reduce
(TensorRT-LLM's kernel), tokens of a step, everywhere asynchronous scheduling.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Server(NamedTuple):
    """One way to serve a model; hashable, so that rows of one server share a profile."""

    model: str
    dtype: str
    tp: int
    dp: int
    is_expert_parallel: bool
    kv_dtype: str
    tables: str
    own_kernels: tuple[tuple[str, str], ...]
    tokens: int  # of a step, at most
    is_sglang: bool
    polls: int  # steps after which it looks for new requests

    @property
    def kernels(self) -> dict[str, str]:
        return dict(self.own_kernels)

    @property
    def engine(self) -> dict[str, Any]:
        """Options of the simulated engine. SGLang runs prompts in steps of their own, and first."""
        options: dict[str, Any] = {}
        if self.is_sglang:  # which starts with a cache that has no room for the longest request
            options |= {"max_model_len": self.tokens}
        if self.dp > 1:
            options |= {"data_parallel_size": self.dp}
            options |= {"enable_expert_parallel": self.is_expert_parallel, "max_model_len": 10240}
        if self.polls > 1:
            options |= {"vllm_version": "0.33", "prefill_schedule_interval": self.polls}
        elif self.overlaps_host:
            options |= {"scheduler": "prefill_first"}
        return options

    @property
    def overlaps_host(self) -> bool:
        """Whether it is the first scheduler of vLLM, whose host would not overlap the GPU.

        Not of layers with a state, which that scheduler does not have.
        """
        return self.is_sglang and self.polls == 1 and "Qwen3.5" not in self.model


# HuggingFace's name, precision: what specsim knows it as, and how its weights are stored.
_MODELS = {
    ("Qwen/Qwen3-32B", ""): ("qwen3-32b", "bfloat16"),
    ("Qwen/Qwen3-32B", "fp8"): ("qwen3-32b", "fp8"),
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): ("Qwen--Qwen3-235B-A22B-FP8", "auto"),
    ("Qwen/Qwen3.5-397B-A17B", "bf16"): ("Qwen--Qwen3.5-397B-A17B", "bfloat16"),
    ("Qwen/Qwen3.5-397B-A17B", "fp8"): ("Qwen--Qwen3.5-397B-A17B", "fp8_block"),
    ("Qwen/Qwen3.5-397B-A17B", "fp4"): ("nvidia--Qwen3.5-397B-A17B-NVFP4", "auto"),
    ("meta-llama/Llama-3.1-70B", "fp8"): ("llama-3.1-70b", "fp8"),
    ("meta-llama/Llama-3.1-70B", "fp4"): ("llama-3.1-70b", "nvfp4"),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"): ("llama-3.1-8b", "fp8"),
    ("meta-llama/Llama-3.1-8B-Instruct", "fp8"): ("llama-3.1-8b", "fp8_block"),
    ("moonshotai/Kimi-K2.5", "fp4"): ("kimi-k2.5", "nvfp4_experts"),
    ("moonshotai/Kimi-K2.5", "int4"): ("kimi-k2.5", "int4_experts"),
    ("openai/gpt-oss-120b", "fp4"): ("gpt-oss-120b", "mxfp4"),
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): ("MiniMaxAI--MiniMax-M2.5", "auto"),
    ("MiniMaxAI/MiniMax-M2.5", "fp4"): ("nvidia--MiniMax-M2.5-NVFP4", "auto"),
    ("deepseek-ai/DeepSeek-R1", "fp8"): ("deepseek-ai--DeepSeek-R1", "auto"),
    ("deepseek-ai/DeepSeek-R1", "fp4"): ("nvidia--DeepSeek-V3.1-NVFP4", "auto"),
    ("deepseek-ai/DeepSeek-V3", "fp8"): ("deepseek-ai--DeepSeek-V3", "auto"),
    ("deepseek-ai/DeepSeek-V3", "fp4"): ("nvidia--DeepSeek-V3.1-NVFP4", "auto"),
    ("zhipuai/GLM-5", "fp8"): ("zai-org--GLM-5-FP8", "auto"),
    ("zhipuai/GLM-5", "fp4"): ("nvidia--GLM-5-NVFP4", "nvfp4,attention=fp8_block"),
}
_KV_OF_8_BITS = {
    *(("Llama-3.1-70B", gpu) for gpu in ("h100", "h200", "b200")),
    *(("DeepSeek-R1", "b200"), ("DeepSeek-V3", "b200"), ("DeepSeek-V3", "b300")),
    *(("GLM-5", "b200"), ("GLM-5", "b300"), ("gpt-oss-120b", "b200"), ("MiniMax-M2.5", "h200")),
    *(("Qwen3.5-397B-A17B", gpu) for gpu in ("h200", "b200", "b300")),
}
_OTHER_DTYPE = {
    ("gpt-oss-120b", "b200"): "mxfp4_mxfp8",
    ("GLM-5", "h200"): "fp8_block,attention=bfloat16",  # as its latent attention was measured
}
_FUSED = {"allreduce": "trtllm"}
_EAGER = {"graphs": "decodes"}
_KERNELS: dict[tuple[str, str, str], dict[str, str]] = {
    ("Qwen3-32B", "h100", ""): {"sampling": "sort"},
    ("Llama-3.1-70B", "b200", "fp8"): {**_FUSED, **_EAGER, "quant": "fused"},
    ("Llama-3.1-70B", "b200", "fp4"): {**_FUSED, **_EAGER},
    ("Kimi-K2.5", "b200", "fp4"): _FUSED,
    ("Kimi-K2.5", "b300", "fp4"): _FUSED,
    ("gpt-oss-120b", "h100", "fp4"): {"moe": "marlin"},
    ("gpt-oss-120b", "h200", "fp4"): {"moe": "marlin"},
    ("gpt-oss-120b", "b200", "fp4"): {"moe": "sglang"},
}
"""Of vLLM. For gpt-oss on B200 FlashInfer's experts with 8-bit inputs
(VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1), measured under SGLang; what they return is cut from 3,072
to 2,880 numbers between all-reduce and norm, so that vLLM cannot fuse these."""
_PLAIN_SGLANG = {"Qwen3-32B", "Qwen3-235B-A22B-FP8", "Llama-3.1-8B-Instruct"}
"""Of AIConfigurator's authors, without the flag for FlashInfer's all-reduce."""
_SGLANG_TOKENS = 32768


def clients_of(row: dict[str, str]) -> int:
    told = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    return int(told[1] if told else row["batch_size"])


def drafting(rows: Iterable[dict[str, str]]) -> set[str]:
    """Return the ids of rows whose servers drafted, of which the sample says nothing.

    By the scripts and lists of loads that PROTOCOL.md names (claim 8).
    """
    of_r1, plain, found = [], set(), set()
    for row in rows:
        split = row["precision"], row["system"], row["tp_size"], row["moe_ep_size"]
        if row["backend"] == "sglang" and split == ("fp8", "b200_sxm", "8", "1"):
            numbers = tuple(round(float(row[f"silicon_{name}_ms"]), 6) for name in ("ttft", "tpot"))
            if "config_id=87;" in row["silicon_data_source"]:
                plain.add(numbers)
            elif row["model_path"] == "deepseek-ai/DeepSeek-R1":
                of_r1.append((row["id"], numbers))
        is_newer = row["backend_version"] == "0.5.10.post1"
        if "Qwen3.5" in row["model_path"] and split[0::2] == ("fp8", "4") and split[3] == "1":
            found |= set() if is_newer else {row["id"]}
    return found | {name for name, numbers in of_r1 if numbers not in plain}


def _polls(row: dict[str, str], clients: int) -> int:
    """Return what InferenceX's scripts for Blackwell say (--scheduler-recv-interval)."""
    is_set = row["system"].startswith("b") and "GLM" not in row["model_path"]
    if row["backend"] != "sglang" or not is_set:
        return 1
    of_fp4 = "Qwen3.5" in row["model_path"] and row["precision"] == "fp4"
    return 30 if clients >= 16 or of_fp4 else 10


def split_of(row: dict[str, str]) -> tuple[int, int, bool]:
    """Return tensor-parallel size, data-parallel size, and whether experts are shared out whole.

    As the sample has it, which counts GPUs of InferenceX's servers twice where their experts are
    shared out: `tp 8, ep 8` of eight GPUs stands there as 64, under vLLM `tp 4` as 4 ranks of 4.
    """
    tp, dp, of_experts, ep = (
        int(row[name] or 0) or 1
        for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    if dp > 1:
        return 1, dp, True
    if ep > 1 and tp == ep * ep:
        return ep, 1, True
    if of_experts * ep > tp:  # ranks that share experts without expert parallelism
        return tp, of_experts * ep // tp, ep > 1
    # Blocks of 128 weights do not divide an eighth of MiniMax's 1,536.
    is_block = row["model_path"] == "MiniMaxAI/MiniMax-M2.5" and row["precision"] == "fp8"
    return tp, 1, ep > 1 or (is_block and tp == 8)


def _started(row: dict[str, str]) -> tuple[int, int, bool]:
    """Return the same as scripts say (PROTOCOL.md, claim 7): ranks that share out experts are none.

    Kimi's in nvfp4 shared out no experts before June 2026.
    """
    tp, dp, is_whole = split_of(row)
    if is_whole and tp == 1 and row["backend"] == "vllm":
        tp, dp = dp, 1
    is_kimi = row["model_path"] == "moonshotai/Kimi-K2.5" and row["precision"] == "fp4"
    return tp, dp, is_whole and not is_kimi


def server_of(row: dict[str, str], folder: Path) -> Server:
    """Return how a row was served."""
    name, dtype = _MODELS[row["model_path"], row["precision"]]
    gpu, is_sglang = row["system"].removesuffix("_sxm"), row["backend"] == "sglang"
    short = row["model_path"].partition("/")[2]
    kernels = _KERNELS.get((short, gpu, row["precision"]), {})
    if is_sglang:  # which captures graphs of decodes alone
        kernels = {**_EAGER, **({} if short in _PLAIN_SGLANG else _FUSED)}
    has_small_kv = (short, gpu) in _KV_OF_8_BITS and row["precision"] != "bf16"
    return Server(
        str(folder.parent / "model_configs" / f"{name}_config.json") if "--" in name else name,
        _OTHER_DTYPE.get((short, gpu), dtype),
        *_started(row),
        "fp8" if has_small_kv else "bfloat16",
        row["backend"],
        tuple(kernels.items()),
        _SGLANG_TOKENS if is_sglang else 8192,
        is_sglang,
        _polls(row, clients_of(row)),
    )
