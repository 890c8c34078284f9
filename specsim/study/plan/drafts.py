"""Drafts: what the flags of a server say of speculation."""

from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.reading import short
from specsim.core.settings import load_mapping
from specsim.proposers import PROPOSERS
from specsim.study.plan.json_flags import take_object

FLAGS = load_mapping(Path(__file__).with_name("flags.yaml"), ConfigError)
_ALGORITHMS: dict[str, str] = FLAGS["algorithms"]
_DRAFTERS: dict[str, str] = FLAGS["drafters"]
SGLANG_METHODS = frozenset(_ALGORITHMS.values())
_SHORTCUTS = {
    "spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens",
}  # fmt: skip


def vllm_drafts(flags: dict[str, str], target: str) -> dict[str, Any] | None:
    """Take what vLLM's flags say of drafts; None if nothing is drafted."""
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
    """Take what SGLang's flags say of drafts, in vLLM's words; None if nothing is drafted."""
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
    for text, less in ((steps, 0), (tokens, 1)):  # the draft tokens count the verified one
        if text is not None and "num_speculative_tokens" not in drafts:
            if not text.isdecimal() or int(text) <= less:
                raise ConfigError(f"--sglang: {text} draft tokens: should be a number")
            drafts["num_speculative_tokens"] = int(text) - less
    if "speculative-draft-model-path" in given:
        drafts["model"] = given["speculative-draft-model-path"]
    elif drafts["method"] == "eagle":  # which drafts with the target's own layers, then
        drafts["method"] = "mtp"
    return drafts


def _name_method(drafts: dict[str, Any], target: str) -> None:
    """Put vLLM's name of the method, which it knows by older ones, too, and by the drafter's name.

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
            drafts["method"] = "ngram_gpu"  # what it is on a GPU
            drafts.pop("model", None)  # of which vLLM makes nothing but the method


def unknown_fields(speculation: dict[str, Any]) -> list[str]:
    """Return what vLLM knows of a drafter and the simulation does not."""
    if "method" not in speculation:
        return []
    known = PROPOSERS.find(speculation["method"]).model_fields
    return [name for name in speculation if name not in known]


def sglang_speculation(drafts: dict[str, Any] | None) -> list[str]:
    """Return the words of SGLang's command line that say some drafts."""
    if drafts is None:
        return []
    names = {method: name for name, method in _ALGORITHMS.items()}
    k = drafts["num_speculative_tokens"]
    words = ["--speculative-algorithm", names.get(drafts["method"], drafts["method"].upper())]
    if "model" in drafts:
        words += ["--speculative-draft-model-path", str(drafts["model"])]
    words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(k + 1)]
