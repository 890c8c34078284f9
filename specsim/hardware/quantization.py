"""How the weights of a model are stored, as the quantization block of its ``config.json`` says.

In the words of ``profile build --dtype``: one, of the experts or of all, and what differs from it
in attention and in dense MLPs: ``nvfp4,attention=bfloat16``.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

OTHER = "other"
_ALGORITHMS = {
    "fp8": "fp8",
    "fp8_pb_wo": "fp8_block",
    "fp8_pc_pt": "fp8",
    "mxfp8": "fp8_block",  # the nearest that was measured: scales of 32 numbers, not of 128
    "nvfp4": "nvfp4",
    "w4a16_nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "w4a16_awq": "int4",
    "int4_awq": "int4",
    "modelopt_fp4": "nvfp4",
}  # fmt: skip
_PARTS = {
    "experts": re.compile(r"(?<!shared_)experts(?!_proj)"),
    "attention": re.compile(r"attn|attention|mixer\W+(?:in|out|[qkvo])_proj"),
    "mlp": re.compile(r"mlp|shared_expert|ffn|feed_forward"),
}
_SMALL = re.compile(r"gate$|router|norm|indexer|bias|conv1d|^mtp|vision|visual")
"""Modules that nobody stores in fewer bits, or that are not of the layers."""
_BITS_8, _BITS_4, _BLOCK_OF_MXFP4 = 8, 4, 32


def precision(data: Mapping[str, Any], num_layers: int, *, has_experts: bool) -> str | None:
    """Return how weights are stored; None if as ``torch_dtype`` says, `OTHER` if in unknown ways.

    Args:
        data: Of ``quantization_config``, or of ``hf_quant_config.json``, and ``expert_dtype``.
    """
    base = _whole(data)
    parts = dict.fromkeys(_PARTS, base)
    listed = data.get("quantized_layers")
    if isinstance(listed, dict) and listed:
        parts |= _by_layer(listed, "bfloat16" if base == OTHER else base)
    elif base != "mxfp4":  # whose word says that only experts are
        ignored = _texts(data, "ignore", "exclude_modules", "modules_to_not_convert")
        parts |= dict.fromkeys(_left_out(ignored, num_layers), "bfloat16")
        if base == "fp8_block" and "quantized_layers" not in data:
            parts["experts"] = {"fp4": "mxfp4_mxfp8"}.get(data.get("expert_dtype", ""), base)
    kept = parts if has_experts else {name: parts[name] for name in ("mlp", "attention")}
    if OTHER in kept.values():
        return OTHER
    first = next(iter(kept.values()))
    others = [f",{name}={word}" for name, word in kept.items() if word != first]
    return None if {*kept.values()} == {"bfloat16"} else first + "".join(others)


def _whole(data: Mapping[str, Any]) -> str:
    method, algorithm = (
        str(data.get(name) or OTHER).lower() for name in ("quant_method", "quant_algo")
    )
    if method == "fp8":
        return "fp8_block" if data.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq", "auto-round") and data.get("bits", data.get("w_bit")) == _BITS_4:
        return "int4"
    if method == "bitsandbytes" and data.get("load_in_4bit"):
        return "int4"
    if algorithm in _ALGORITHMS:
        return _ALGORITHMS[algorithm]
    groups = data.get("config_groups")
    if isinstance(groups, dict) and groups and algorithm != "mixed_precision":
        words = {_of_group(group, str(data.get("format"))) for group in groups.values()}
        return words.pop() if len(words) == 1 else OTHER
    return _ALGORITHMS.get(method, OTHER)


def _of_group(group: Any, form: str) -> str:
    """Return the word of a group of compressed-tensors."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        return OTHER
    bits, kind, form = weights.get("num_bits"), weights.get("type"), group.get("format") or form
    if (bits, kind) == (_BITS_8, "float"):
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if (bits, kind) == (_BITS_4, "float"):
        is_mx = "mxfp4" in form or weights.get("group_size") == _BLOCK_OF_MXFP4
        return "mxfp4" if is_mx else "nvfp4"
    return "int4" if (bits, kind) == (_BITS_4, "int") else OTHER


def _by_layer(listed: Mapping[str, Any], rest: str) -> dict[str, str]:
    """Return what most modules of each part are stored in, where they are listed one by one."""
    words: dict[str, Counter[str]] = {name: Counter() for name in _PARTS}
    for module, said in listed.items():
        algorithm = str(said.get("quant_algo") if isinstance(said, dict) else said).lower()
        if (part := _part_of(module)) is not None:
            words[part][_ALGORITHMS.get(algorithm, OTHER)] += 1
    return {name: each.most_common(1)[0][0] if each else rest for name, each in words.items()}


def _left_out(ignored: Iterable[str], num_layers: int) -> list[str]:
    """Return the parts that most layers do not have in fewer bits."""
    layers: dict[str, set[str]] = {name: set() for name in _PARTS}
    whole = set()
    for module in ignored:
        part, number = _part_of(module), re.search(r"layers\.(\d+)\.", module)
        if part is not None and number is None:
            whole.add(part)
        elif part is not None and number is not None:
            layers[part].add(number[1])
    return [part for part in _PARTS if part in whole or 2 * len(layers[part]) > num_layers]


def _part_of(module: str) -> str | None:
    plain = module.rstrip("*.")
    if _SMALL.search(plain):
        return None
    return next((name for name, words in _PARTS.items() if words.search(plain)), None)


def _texts(data: Mapping[str, Any], *names: str) -> list[str]:
    found = (data.get(name) for name in names)
    return [str(each) for listed in found if isinstance(listed, list) for each in listed]
