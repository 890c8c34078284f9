"""Flags of ``vllm serve`` whose values are JSON objects."""

from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.reading import UnreadableError, parse_json, short
from specsim.engine.transfer import OffloadConfig

_TRANSFER = "kv-transfer-config"
_GIB = 1 << 30
_MOST_BYTES = _GIB << 20


def take_object(flags: dict[str, str], name: str, more: dict[str, str]) -> dict[str, Any] | None:
    """Take what a flag and its dotted form (``--name.field value``) say; None if neither is there.

    Args:
        more: Fields that have flags of their own, by the name of these.
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
        except UnreadableError:  # then vLLM, too, takes it for text
            place[last] = value
    return found


def take_offload(flags: dict[str, str]) -> dict[str, Any] | None:
    """Take what is said of KV blocks in host memory, as ``kv_offload``; None if nothing.

    A ConfigError if KV entries go elsewhere, or there by other rules than are simulated.

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
    """Return what is taken for granted of that host memory."""
    rate = OffloadConfig(**offload).bandwidth_gb_s
    return f"KV blocks in {offload['gib']:g} GiB of host memory come back at {rate:g} GB/s"


def _as_bytes(text: str) -> float:
    try:
        return float(text) * _GIB
    except ValueError as error:
        raise ConfigError(
            f"--vllm: --kv-offloading-size {text:.80}: should be a number of GiB"
        ) from error
