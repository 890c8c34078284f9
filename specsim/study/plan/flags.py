"""Flags whose values are objects: settings of speculation, and of KV blocks in host memory."""

from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.reading import UnreadableError, parse_json, short
from specsim.core.settings import load_mapping
from specsim.engine.transfer import OffloadConfig
from specsim.proposers import PROPOSERS

_TRANSFER = "kv-transfer-config"
_GIB = 1 << 30
_MOST_BYTES = _GIB << 20


def take_object(flags: dict[str, str], name: str, more: dict[str, str]) -> dict[str, Any] | None:
    """Take the object of a flag and its dotted forms (``--name.field value``); None without them.

    Args:
        more: Fields that have flags of their own, by the flag's name.
    """
    text = flags.pop(name, None)
    dotted = {key: flags.pop(key) for key in list(flags) if key.startswith(f"{name}.")}
    dotted |= {f"{name}.{field}": flags.pop(f) for f, field in more.items() if f in flags}
    if text is None and not dotted:
        return None
    try:
        found = parse_json(text) if text is not None else {}
    except UnreadableError as error:
        raise ConfigError(f"--vllm: --{name} {text:.80}: {error}; quote it: '{{...}}'") from error
    if not isinstance(found, dict):
        raise ConfigError(f"--vllm: --{name} {text:.80}: should be a JSON object")
    for key, value in dotted.items():
        *outer, last = key.replace("-", "_").split(".")[1:]
        place = found
        for each in outer:
            place = place.setdefault(each, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--vllm: --{key} {value:.80}: {each} is no object")
        try:
            place[last] = parse_json(value)
        except UnreadableError:  # vLLM then takes it as text, too
            place[last] = value
    return found


def take_offload(flags: dict[str, str]) -> dict[str, Any] | None:
    """Take the flags of KV blocks in host memory, as ``kv_offload``; None without them.

    Raises a ConfigError if KV entries go elsewhere, or by rules that are not simulated.

    References:
        vLLM 0.33.0 ``config/vllm.py _post_init_kv_transfer_config``, ``v1/kv_offload/cpu/spec.py``.
    """
    size, backend = flags.pop("kv-offloading-size", None), flags.pop("kv-offloading-backend", "")
    transfer = take_object(flags, _TRANSFER, {})
    if size is None and not transfer:
        return None
    if size is not None and backend in ("", "native"):
        transfer = {"kv_connector": "OffloadingConnector"} | (transfer or {})
    connector = (transfer or {}).get("kv_connector", backend)
    if connector != "OffloadingConnector":
        raise ConfigError(
            f"--vllm: KV entries that {short(connector)} moves are not planned for, and change the "
            "answer; leave it out to plan without it, or look at --pools"
        )
    given = (transfer or {}).get("kv_connector_extra_config", {})
    given = given if isinstance(given, dict) else {"kv_connector_extra_config": given}
    num_bytes: Any = given.get("cpu_bytes_to_use") if size is None else _as_bytes(size)
    if strange := sorted(set(given) - {"cpu_bytes_to_use", "spec_name", "offload_prompt_only"}):
        raise ConfigError(
            f"--vllm: --{_TRANSFER}: {', '.join(strange)}: is not simulated; leave it out"
        )
    if given.get("spec_name", "CPUOffloadingSpec") != "CPUOffloadingSpec":
        raise ConfigError(
            f"--vllm: --{_TRANSFER}: spec_name = {short(given['spec_name'])}: host memory alone is "
            "planned for (CPUOffloadingSpec)"
        )
    if type(num_bytes) not in (int, float) or not 0 < num_bytes <= _MOST_BYTES:
        raise ConfigError(
            f"--vllm: host memory for KV blocks = {short(num_bytes)} bytes: should be a number "
            "above 0 (--kv-offloading-size GIB)"
        )
    of_prompts = given.get("offload_prompt_only", True)
    if not isinstance(of_prompts, bool):
        raise ConfigError(
            f"--vllm: --{_TRANSFER}: offload_prompt_only = {short(of_prompts)}: should be true or "
            "false"
        )
    return {"gib": num_bytes / _GIB, **({} if of_prompts else {"offload_prompt_only": False})}


def offload_note(offload: dict[str, Any]) -> str:
    """Return the assumptions on that host memory."""
    rate = OffloadConfig(**offload).bandwidth_gb_s
    return f"KV blocks in {offload['gib']:g} GiB of host memory come back at {rate:g} GB/s"


def _as_bytes(text: str) -> float:
    try:
        return float(text) * _GIB
    except ValueError as error:
        raise ConfigError(
            f"--vllm: --kv-offloading-size {text:.80}: should be a number of GiB"
        ) from error


FLAGS = load_mapping(Path(__file__).with_name("flags.yaml"), ConfigError)
_ALGORITHMS: dict[str, str] = FLAGS["algorithms"]
_DRAFTERS: dict[str, str] = FLAGS["drafters"]
SGLANG_METHODS = frozenset(_ALGORITHMS.values())
_SHORTCUTS = {
    "spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens",
}  # fmt: skip


def vllm_drafts(flags: dict[str, str], target: str) -> dict[str, Any] | None:
    """Take vLLM's flags of speculation; None if nothing is drafted."""
    name = "speculative-config"
    text = flags.get(name, "")
    found = take_object(flags, name, _SHORTCUTS)
    if found is None:
        return None
    _name_method(found, target)
    if not isinstance(found.get("method"), str):
        raise ConfigError(
            f"--vllm: --{name} {text:.80}: names no method; such as "
            '{"method": "eagle3", "num_speculative_tokens": 3}'
        )
    try:
        PROPOSERS.find(found["method"])
    except ConfigError as error:
        raise ConfigError(f"--vllm: --{name}: {error}") from error
    k = found.get("num_speculative_tokens", 1)
    if type(k) is not int or k < 1:
        raise ConfigError(
            f"--vllm: --{name}: num_speculative_tokens = {short(k)}: should be a whole number of "
            "at least 1"
        )
    if "own_gpus" in found:
        raise ConfigError(
            f"--vllm: --{name}: vLLM has no own_gpus; put it into an experiment, and "
            "ask specsim capacity, which counts the drafter's GPUs"
        )
    return found


def sglang_drafts(flags: dict[str, str]) -> dict[str, Any] | None:
    """Take SGLang's flags of speculation, in vLLM's fields; None if nothing is drafted."""
    given = {name: flags.pop(name) for name in FLAGS["drafts_of_sglang"] if name in flags}
    if not given:
        return None
    if "speculative-algorithm" not in given:
        raise ConfigError(
            f"--sglang: --{min(given)}: nothing is drafted without --speculative-algorithm; name "
            "one, or leave it out"
        )
    algorithm = given["speculative-algorithm"]
    if algorithm.upper() not in _ALGORITHMS:
        known = ", ".join(_ALGORITHMS)
        raise ConfigError(f"--sglang: --speculative-algorithm {algorithm}: choose from {known}")
    if given.get("speculative-eagle-topk", "1") != "1":
        raise ConfigError(
            f"--sglang: --speculative-eagle-topk {given['speculative-eagle-topk']}: "
            "trees are not planned for; use 1"
        )
    drafts: dict[str, Any] = {"method": _ALGORITHMS[algorithm.upper()]}
    steps, tokens = (given.get(f"speculative-num-{n}") for n in ("steps", "draft-tokens"))
    for text, less in ((steps, 0), (tokens, 1)):  # SGLang's draft tokens include the verified one
        if text is not None and "num_speculative_tokens" not in drafts:
            if not text.isdecimal() or int(text) <= less:
                raise ConfigError(f"--sglang: {text} draft tokens: should be a number")
            drafts["num_speculative_tokens"] = int(text) - less
    if "speculative-draft-model-path" in given:
        drafts["model"] = given["speculative-draft-model-path"]
    elif drafts["method"] == "eagle":  # which then drafts with the target's own layers
        drafts["method"] = "mtp"
    return drafts


def _name_method(drafts: dict[str, Any], target: str) -> None:
    """Set vLLM's name of the method, which may be given by an older or the drafter's name.

    References:
        vLLM 0.32.0 ``config/speculative.py SpeculativeConfig.__post_init__``.
    """
    method, model = drafts.get("method", "draft_model"), drafts.get("model")
    if method == "draft_model" and isinstance(model, str):
        parts = ((part, each) for part, each in _DRAFTERS.items() if part in model.lower())
        _, method = next(parts, ("", "mtp" if model == target else method))
        method = "ngram" if model == "ngram" else method
        drafts["method"] = method
    if isinstance(method, str):
        if method.endswith("_mtp"):
            drafts["method"] = "mtp"
        if method in ("ngram", "[ngram]"):
            drafts["method"] = "ngram_gpu"  # the method's name on a GPU
            drafts.pop("model", None)  # vLLM uses it for the method alone


def unknown_fields(speculation: dict[str, Any]) -> list[str]:
    """Return the drafter's fields that vLLM has and the simulation lacks."""
    if "method" not in speculation:
        return []
    known = PROPOSERS.find(speculation["method"]).model_fields
    return [name for name in speculation if name not in known]


def sglang_speculation(drafts: dict[str, Any] | None) -> list[str]:
    """Return the words of SGLang's command line for some speculation."""
    if drafts is None:
        return []
    names = {method: name for name, method in _ALGORITHMS.items()}
    k = drafts["num_speculative_tokens"]
    words = ["--speculative-algorithm", names.get(drafts["method"], drafts["method"].upper())]
    if "model" in drafts:
        words += ["--speculative-draft-model-path", str(drafts["model"])]
    words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(k + 1)]
