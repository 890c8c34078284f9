"""Command lines of servers: ``vllm serve`` and SGLang's, read as an engine's settings."""

import builtins
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.reading import UnreadableError, parse_json
from specsim.core.settings import load_mapping
from specsim.profile.model_error import inside_of
from specsim.proposers import PROPOSERS

_FLAGS = load_mapping(Path(__file__).with_name("flags.yaml"), ConfigError)
_ENGINE = {name: getattr(builtins, kind) for name, kind in _FLAGS["engine"].items()}
_OTHER, _REFUSED, _ALGORITHMS = _FLAGS["other"], _FLAGS["refused"], _FLAGS["algorithms"]
_REMEDIES: dict[str, str] = _FLAGS["remedies"]
_UNMODELLED, _SWITCHES = set(_FLAGS["unmodelled"]), set(_FLAGS["switches"])
_STORED: dict[str, str] = _FLAGS["stored"]
_LISTS: list[str] = _FLAGS["lists"]
_START = {
    "vllm": re.compile(r"(?:^|/)vllm$|^vllm\.entrypoints\.openai\.api_server$"),
    "sglang": re.compile(r"(?:^|/)sglang$|^sglang\.launch_server$"),
}
_TYPO = 0.92  # how alike a flag has to be to one that counts, to be taken for a slip
_SPECULATION = re.compile(r"^(?:-sc|--speculative[-_].*)$")
_ADDRESS = re.compile(r"^--(?:host|port)$")
_CALLED = re.compile(r"^(?:\S+ )?--served[-_]model[-_]name\b")  # a name, also where a folder has it
_READS = re.compile(
    r"^--(?:tokenizer(?:[-_]path)?|chat[-_]template|hf[-_]config[-_]path|generation[-_]config)$"
)
_PARALLEL = re.compile(r"^(?:-tp|-dp|--(?:tensor|data)[-_]parallel[-_]size|--[td]p(?:[-_]size)?)$")


@dataclass(frozen=True)
class ServerCommand:
    """What a command line starts."""

    program: str  # ``vllm`` or ``sglang``
    words: tuple[str, ...]  # as typed, one per word, without what starts the program
    model: str  # as typed
    engine: dict[str, Any]
    """Fields of `specsim.engine.config.EngineConfig`, without speculation and parallelism."""
    tensor_parallel_size: int | None  # None where it is not given
    speculation: dict[str, Any] | None
    weights: str | None  # ``fp8`` where weights are in 8 bits; None: as published
    ranks: int = 1  # data-parallel ones
    notes: list[str] = field(default_factory=list)
    """Which flags have no effect here, or another than on a server."""

    def with_options(
        self, tensor_parallel_size: int, speculation: dict[str, Any] | None, ranks: int = 1
    ) -> str:
        kept = _without(self.words, _SPECULATION, _PARALLEL)
        if self.program == "vllm":
            added = ["--tensor-parallel-size", str(tensor_parallel_size)]
            added += ["--data-parallel-size", str(ranks)] if ranks > 1 else []
            if speculation is not None:
                added += ["--speculative-config", json.dumps(speculation)]
            return shlex.join(["vllm", "serve", *kept, *added])
        added = ["--tp-size", str(tensor_parallel_size), *_sglang_speculation(speculation)]
        return shlex.join(["python", "-m", "sglang.launch_server", *kept, *added])

    def in_container(self, words: list[str]) -> tuple[list[str], list[Path]]:
        """Return words of the command as they are in a container, and what that has to find there.

        Which are folders and files of this machine: the model's, the drafter's, a chat template.
        The address is left out, for containers say where the server is.
        """
        drafter = str((self.speculation or {}).get("model", ""))
        typed = zip(self.words, (*self.words[1:], ""), strict=True)
        read = [
            inside if equals else following
            for (flag, equals, inside), following in ((w.partition("="), n) for w, n in typed)
            if _READS.match(flag)
        ]
        named = dict.fromkeys(text for text in (self.model, drafter, *read) if text)
        places = {text: str(Path(text).resolve()) for text in named if Path(text).exists()}
        kept = _without(tuple(words), _ADDRESS)
        before = ["", *kept[:-1]]
        kept = [
            word if _CALLED.match(f"{flag} {word}") else _moved(word, places)
            for flag, word in zip(before, kept, strict=True)
        ]
        return kept, [Path(place) for place in dict.fromkeys(places.values())]


def read_command(text: str, program: str) -> ServerCommand:
    """Return what a command line says, such as ``vllm serve MODEL --tensor-parallel-size 2``.

    What stands before ``vllm serve`` is not looked at, and may be missing. A ConfigError if it is
    no such command, a value is wrong, or it asks for what is not simulated.
    """
    source = f"--{program}"
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise ConfigError(f"{source}: {error}; quote it as in a shell") from error
    words = _after_program(words, program)
    flags: dict[str, str] = {}
    for name, value in _flags(words, source, program):
        if name in flags:
            raise ConfigError(f"{source}: --{name} is given twice; leave it out once")
        flags[name] = value
    return _Reader(source, program, flags).command(tuple(words))


def _after_program(words: list[str], program: str) -> list[str]:
    for number, word in enumerate(words):
        if _START[program].search(word):
            rest = words[number + 1 :]
            return rest[1:] if rest[:1] == ["serve"] else rest
        if any(start.search(word) for start in _START.values()):
            other = "sglang" if program == "vllm" else "vllm"
            raise ConfigError(f"--{program}: '{word}' starts another server; use --{other}")
    return words


def _flags(words: list[str], source: str, program: str) -> Iterator[tuple[str, str]]:
    """Yield each flag under vLLM's name, with its value; that of a switch is True or False."""
    rest = list(words)
    while rest:
        word = re.sub(r"^-O=?(?=.)", "-O=", rest.pop(0))  # vLLM reads -O3 and -O 3 alike
        if not word.startswith("-"):
            yield "model", word
            continue
        name, equals, value = word.partition("=")
        head, dot, inner = name.partition(".")
        name = (_FLAGS["short"].get(head, head.lstrip("-")) + dot + inner).replace("_", "-")
        if program == "sglang":
            name = _FLAGS["sglang"].get(name, name)
        own, is_off = name.removeprefix("no-"), name.startswith("no-")
        if _ENGINE.get(own) is bool or own in _SWITCHES:
            given = value.lower() if equals else "true"
            if given not in ("true", "false"):
                raise ConfigError(f"{source}: --{name}={value}: should be true or false")
            yield own, str((given == "true") is not is_off)
            continue
        if not equals and rest and (not rest[0].startswith("-") or _is_number(rest[0])):
            value, equals = rest.pop(0), "="
        while name in _LISTS and rest and not rest[0].startswith("-"):
            value += f" {rest.pop(0)}"
        if not equals and name.partition(".")[0] in {*_ENGINE, *_OTHER, *_REFUSED}:
            raise ConfigError(f"{source}: --{name} needs a value")
        yield name, value


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", word) is not None


def _without(words: tuple[str, ...], *unwanted: re.Pattern[str]) -> list[str]:
    kept: list[str] = []
    skips = False
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("-") and not _is_number(word):
            skips = any(pattern.match(name.partition(".")[0]) for pattern in unwanted)
            if not skips:
                kept.append(word)
            skips = skips and not equals
        elif not skips:
            kept.append(word)
        else:
            skips = False  # only one value belongs to a flag
    return kept


def _moved(word: str, places: dict[str, str]) -> str:
    """Return a word of a command with its place in place of how that was typed."""
    if word.startswith("{"):
        for typed, place in places.items():
            word = word.replace(json.dumps(typed), json.dumps(place))
        return word
    name, equals, value = word.rpartition("=")
    return f"{name}{equals}{places.get(value, value)}"


class _Reader:
    def __init__(self, source: str, program: str, flags: dict[str, str]) -> None:
        self._source, self._program, self._flags = source, program, dict(flags)

    def command(self, words: tuple[str, ...]) -> ServerCommand:
        flags, notes = self._flags, []
        if not flags.get("model"):
            raise ConfigError(f"{self._source}: names no model; such as: vllm serve MODEL ...")
        self._refuse()
        model = flags.pop("model")
        speculation = self._sglang_drafts() if self._program == "sglang" else self._vllm_drafts()
        weights = self._weights(model)
        cache = flags.pop("kv-cache-dtype", "auto")
        if cache not in ("auto", "bfloat16", "float16"):
            notes.append(
                f"--kv-cache-dtype {cache}: the KV cache is counted as in the profile, in 16 bits"
            )
        engine = {name.replace("-", "_"): self._value(name) for name in _ENGINE if name in flags}
        if "num-gpu-blocks-override" in flags:
            engine["num_gpu_blocks"] = self._value("num-gpu-blocks-override", int)
        ranks = self._value("data-parallel-size", int) if "data-parallel-size" in flags else 1
        flags.pop("data-parallel-size", None)
        if ranks < 1:
            raise ConfigError(f"{self._source}: --data-parallel-size {ranks}: must be at least 1")
        if "gpu_memory_utilization" in engine and self._program == "sglang":
            notes.append("--mem-fraction-static: taken as vLLM's gpu_memory_utilization")
        notes += self._unused(set(engine))
        if strange := unknown_fields(speculation or {}):
            notes.append(f"without effect on the answer: {', '.join(strange)} of the drafter")
        if self._program == "sglang":
            inside, servers = inside_of("sglang")
            notes.append(
                "scheduled as vLLM does, not as SGLang does; how far step times may be off was "
                f"measured on vLLM's servers: of {servers} under SGLang, which took no part, "
                f"{inside} were within it"
            )
        size = engine.pop("tensor_parallel_size", None)
        return ServerCommand(
            self._program, words, model, engine, size, speculation, weights, ranks, notes
        )

    def _refuse(self) -> None:
        for name, only in _REFUSED.items():
            value = self._flags.pop(name, only)
            if value.lower() not in (only.lower(), "") or (only == "" and value):
                remedy = f"{_REMEDIES[name]}, or " if name in _REMEDIES else ""
                raise ConfigError(
                    f"{self._source}: --{name} {value}: is not planned for, and changes the "
                    f"answer; {remedy}leave it out to plan without it"
                )

    def _unused(self, engine: set[str]) -> list[str]:
        left = [n for n in self._flags if n.replace("-", "_") not in engine]
        left = [n for n in left if n != "num-gpu-blocks-override"]
        slow = [f"--{n}" for n in left if n.partition(".")[0] in _UNMODELLED]
        rest = [f"--{n}" for n in left if f"--{n}" not in slow]
        for name in {n for n in left if f"--{n}" in rest} - _SWITCHES:
            known = {*_ENGINE, *_OTHER, *_REFUSED}
            begun = [each for each in sorted(known) if each.startswith(f"{name}-")]
            if near := begun or get_close_matches(name, known, 1, _TYPO):
                raise ConfigError(
                    f"{self._source}: --{name}: there is no such flag; did you mean --{near[0]}?"
                )
        notes = [f"not simulated, though it changes speed: {', '.join(slow)}"] if slow else []
        return notes + ([f"without effect on the answer: {', '.join(rest)}"] if rest else [])

    def _value(self, name: str, kind: type | None = None) -> Any:
        text, kind = self._flags[name], kind or _ENGINE[name]
        if kind is bool:
            return text == "True"
        # vLLM's human-readable integers: 32k is 32,000, 32K is 32,768.
        units = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
        match = re.fullmatch(r"(\d{1,12})([kKmM])", text) if kind is int else None
        try:
            return int(match[1]) * units[match[2]] if match else kind(text)
        except ValueError as error:
            what = "a number" if kind is float else "a whole number"
            raise ConfigError(f"{self._source}: --{name} {text:.80}: should be {what}") from error

    def _weights(self, model: str) -> str | None:
        """Return a word of ``profile build --dtype``; None: as published, or as a folder says."""
        dtype = self._flags.pop("dtype", "auto")
        if dtype not in ("auto", "bfloat16", "float16", "half"):
            raise ConfigError(
                f"{self._source}: --dtype {dtype}: profiles are of 16 bits; use bfloat16"
            )
        given = self._flags.pop("quantization", "")
        named = re.findall(r"[-_](fp8|awq|gptq|int4|int8|w4a16|w8a8|nvfp4|gguf)\b", model.lower())
        known = [kind for kind in named if kind in _STORED]
        kind = given.lower() or [*known, *named, ""][0]
        is_folder = (Path(model) / "config.json").is_file()
        if kind in ("", "none", "mxfp4") or (is_folder and kind != "fp8"):
            return None
        if kind in _STORED:
            return _STORED[kind]
        raise ConfigError(
            f"{self._source}: weights in {kind}: of which bits does not follow; name a folder with "
            f"the model's config.json (./my-model), or one of {', '.join(_STORED)}"
        )

    def _vllm_drafts(self) -> dict[str, Any] | None:
        name = "speculative-config"
        text, flags = self._flags.pop(name, None), self._flags
        dotted = {key: flags.pop(key) for key in list(flags) if key.startswith(f"{name}.")}
        if text is None and not dotted:
            return None
        try:
            found = parse_json(text) if text is not None else {}
        except UnreadableError as error:
            raise ConfigError(
                f"{self._source}: --{name} {text:.80}: {error}; quote it: '{{...}}'"
            ) from error
        if not isinstance(found, dict):
            raise ConfigError(f"{self._source}: --{name} {text:.80}: should be a JSON object")
        for key, value in dotted.items():
            known = re.fullmatch(r"\d{1,9}", value)
            found[key.partition(".")[2].replace("-", "_")] = int(value) if known else value
        if "method" not in found and "model" in found:
            found["method"] = "eagle3" if "eagle3" in str(found["model"]).lower() else "draft_model"
        if not isinstance(found.get("method"), str):
            raise ConfigError(
                f"{self._source}: --{name} {text or '':.80}: names no method; such as "
                '{"method": "eagle3", "num_speculative_tokens": 3}'
            )
        try:
            PROPOSERS.find(found["method"])
        except ConfigError as error:
            raise ConfigError(f"{self._source}: --{name}: {error}") from error
        if "own_gpus" in found:
            raise ConfigError(
                f"{self._source}: --{name}: vLLM has no own_gpus; put it into an experiment, and "
                "ask specsim capacity, which counts the drafter's GPUs"
            )
        return found

    def _sglang_drafts(self) -> dict[str, Any] | None:
        flags = self._flags
        algorithm = flags.pop("speculative-algorithm", None)
        given = {key: flags.pop(key) for key in list(flags) if key.startswith("speculative-")}
        if algorithm is None:
            return None
        if algorithm.upper() not in _ALGORITHMS:
            known = ", ".join(_ALGORITHMS)
            raise ConfigError(
                f"{self._source}: --speculative-algorithm {algorithm}: choose from {known}"
            )
        if given.get("speculative-eagle-topk", "1") != "1":
            raise ConfigError(
                f"{self._source}: --speculative-eagle-topk {given['speculative-eagle-topk']}: "
                "trees are not planned for; use 1"
            )
        drafts: dict[str, Any] = {"method": _ALGORITHMS[algorithm.upper()]}
        steps, tokens = (given.get(f"speculative-num-{n}") for n in ("steps", "draft-tokens"))
        for text, less in ((steps, 0), (tokens, 1)):  # the draft tokens count the verified one
            if text is not None and "num_speculative_tokens" not in drafts:
                if not text.isdecimal() or int(text) <= less:
                    raise ConfigError(f"{self._source}: {text} draft tokens: should be a number")
                drafts["num_speculative_tokens"] = int(text) - less
        if "speculative-draft-model-path" in given:
            drafts["model"] = given["speculative-draft-model-path"]
        return drafts


def unknown_fields(speculation: dict[str, Any]) -> list[str]:
    """Return what vLLM knows of a drafter and the simulation does not."""
    if "method" not in speculation:
        return []
    known = PROPOSERS.find(speculation["method"]).model_fields
    return [name for name in speculation if name not in known]


def _sglang_speculation(drafts: dict[str, Any] | None) -> list[str]:
    if drafts is None:
        return []
    names = {method: name for name, method in _ALGORITHMS.items()}
    k = drafts["num_speculative_tokens"]
    words = ["--speculative-algorithm", names.get(drafts["method"], drafts["method"].upper())]
    if "model" in drafts:
        words += ["--speculative-draft-model-path", str(drafts["model"])]
    words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(k + 1)]
