"""Command lines of servers, ``vllm serve`` and SGLang's, read as an engine's settings."""

import builtins
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.reading import short
from specsim.core.settings import load_mapping
from specsim.profile.model_error import inside_of
from specsim.proposers import PROPOSERS
from specsim.study.plan.command_text import (
    ASSIGNED,
    LINE_END,
    shell_words,
    without_arguments,
    without_secrets,
    words_in,
)
from specsim.study.plan.flags import (
    FLAGS,
    offload_note,
    sglang_drafts,
    sglang_speculation,
    take_offload,
    unknown_fields,
    vllm_drafts,
)
from specsim.study.plan.names import HOW_STORED

_ENGINE = {name: getattr(builtins, kind) for name, kind in FLAGS["engine"].items()}
_REFUSED = FLAGS["refused"]
_OF_SGLANG: list[str] = FLAGS["drafts_of_sglang"]
_COUNT = {*_ENGINE, *FLAGS["other"], *_REFUSED}  # flags whose misspellings are errors
_REMEDIES: dict[str, str] = FLAGS["remedies"]
_UNMODELLED, _SWITCHES = set(FLAGS["unmodelled"]), set(FLAGS["switches"])
_STORED: dict[str, str] = FLAGS["stored"]
_LISTS: list[str] = FLAGS["lists"]
_START = {
    "vllm": re.compile(
        r"(?:^|/)vllm(?:-openai(?::.*)?)?$|^vllm\.entrypoints\.(?:openai\.)?api_server$"
    ),
    "sglang": re.compile(r"(?:^|/)sglang$|^sglang\.launch_server$"),
}
_OTHERS = re.compile(
    r"(?:^|/)(?:text-generation-launcher|trtllm-serve|tritonserver|lmdeploy|llama-server)$"
)
_USUAL = {"vllm": "vllm serve MODEL", "sglang": "python -m sglang.launch_server --model-path MODEL"}
_TYPO = 0.92  # similarity to a known flag from which a flag counts as misspelt
_SPECULATION = re.compile(r"^(?:-sc|--spec(?:ulative)?[-_].*)$")
_CONFIG = re.compile(r"^--config$")
_SHELL = re.compile(r"&&|\|[|&]?|&|;|<|(?:\d|&)?>.*")  # ends a command, or redirects its output
_OF_A_SHELL = re.compile(r"-\w*c")  # bash -c '...'
_PRINTED = ("\u2012", "\u2013", "\u2014", "\u2212")  # dashes that pages make of two hyphens
_OF_PROGRAMS = re.compile(r"\b(?:VLLM|SGLANG)_\w+(?==)")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HUMAN = re.compile(r"(\d{1,12}(?:\.\d{1,12}(?=[kmgt]))?)([kKmMgGtT])")
_STUCK = re.compile(r"(-[a-z]+)(\d+)")
_ADDRESS = re.compile(r"^--(?:host|port)$")
_CALLED = re.compile(r"^(?:\S+ )?--served[-_]model[-_]name\b")  # its name
_READS = re.compile(
    r"^--(?:tokenizer(?:[-_]path)?|chat[-_]template|hf[-_]config[-_]path|generation[-_]config)$"
)
_PARALLEL = re.compile(r"^(?:-tp|-dp|--(?:tensor|data)[-_]parallel[-_]size|--[td]p(?:[-_]size)?)$")


@dataclass(frozen=True)
class ServerCommand:
    """The server that a command line starts."""

    program: str  # ``vllm`` or ``sglang``
    words: tuple[str, ...]  # as typed, one per word, without the words that start the program
    model: str  # as typed
    engine: dict[str, Any]
    """Fields of `specsim.engine.config.EngineConfig`, without speculation and parallelism."""
    tensor_parallel_size: int | None  # None if it is not given
    speculation: dict[str, Any] | None
    weights: str | None  # ``fp8`` if weights are in 8 bits; None: as published
    ranks: int = 1  # data-parallel ones
    stages: int = 1  # of a pipeline
    shares: int = 1  # GPUs that each keep a part of every KV block
    kv_dtype: str = "auto"  # of its KV cache: bfloat16, fp8, or as vLLM would by itself
    notes: list[str] = field(default_factory=list)
    """Flags that have no effect here, or another than on a server."""

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
        added = ["--tp-size", str(tensor_parallel_size), *sglang_speculation(speculation)]
        return shlex.join(["python", "-m", "sglang.launch_server", *kept, *added])

    def in_container(self, words: list[str]) -> tuple[list[str], list[Path]]:
        """Return the words of the command in a container, and the paths it needs there.

        These are folders and files of this machine: the model, the drafter, a chat template. The
        server listens at the address where containers look for it, vLLM's own.
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
        if self.program == "sglang":  # its default is 127.0.0.1:30000
            kept += ["--host", "0.0.0.0", "--port", "8000"]
        before = ["", *kept[:-1]]
        kept = [
            word if _CALLED.match(f"{flag} {word}") else _moved(word, places)
            for flag, word in zip(before, kept, strict=True)
        ]
        return kept, [Path(place) for place in dict.fromkeys(places.values())]


def read_command(text: str, program: str) -> ServerCommand:
    """Return the server of a command line such as ``vllm serve MODEL --tensor-parallel-size 2``.

    Words before ``vllm serve`` are ignored, and it may be missing. The text may also be a
    container's command, see `words_in`. Raises a ConfigError if it is no such command, a value is
    wrong, or it asks for something that is not simulated.
    """
    source = f"--{program}"
    typed = words_in(text, program)
    after = _after_program(typed, program)
    is_bare, words = after is typed, list(_up_to_its_end(after))
    if is_bare:
        words = [*dropwhile(ASSIGNED.fullmatch, words)]
    as_typed = f"give it as a shell takes it: {_USUAL[program]} ..."
    if "-" in words:
        raise ConfigError(f"{source}: a '-' by itself begins an item of YAML; {as_typed}")
    if (printed := next((word for word in words if word.startswith(_PRINTED)), None)) is not None:
        raise ConfigError(f"{source}: {printed:.80} begins with a dash of print; type two hyphens")
    words, passed = without_arguments(words)
    words, secrets = without_secrets(_with_file(words, source, program))
    flags: dict[str, str] = {}
    for name, value in _flags(words, source, program):
        if name == "model" and name in flags:
            remedy = f"and nothing before them starts a server; {as_typed}"
            raise ConfigError(
                f"{source}: {short(flags[name])} and {short(value)} both stand where the model does"
                + (f", {remedy}" if is_bare else "; leave one out, and quote values with spaces")
            )
        if name in flags and name not in FLAGS["repeated"]:
            raise ConfigError(f"{source}: --{name} is given twice; leave it out once")
        flags[name] = value
    found = _Reader(source, program, flags).command(tuple(words))
    notes = [f"{word}: what a script passes on is not known, and left out" for word in passed]
    if secrets:
        notes.append(f"{', '.join(secrets)}: files have YOUR-... in place of a secret; put it in")
    if unread := ", ".join(dict.fromkeys(_OF_PROGRAMS.findall(" ".join(typed)))):
        notes.append(f"variables are not looked at, and some change speed: {unread}")
    return replace(found, notes=[*found.notes, *notes])


def _after_program(words: list[str], program: str) -> list[str]:
    for number, word in enumerate(words):
        if number and " " in word and _OF_A_SHELL.fullmatch(words[number - 1]):
            return _after_program(shell_words(word, f"--{program}"), program)
        if _START[program].search(word):
            rest = words[number + 1 :]
            return rest[1:] if rest[:1] == ["serve"] else _after_program(rest, program)
        if _OTHERS.search(word):
            raise ConfigError(
                f"--{program}: '{word}' starts a server that is not simulated; name the model as "
                f"vLLM is started with it: {_USUAL['vllm']} ..."
            )
        if any(start.search(word) for start in _START.values()):
            other = "sglang" if program == "vllm" else "vllm"
            raise ConfigError(f"--{program}: '{word}' starts another server; use --{other}")
    return words


def _up_to_its_end(words: list[str]) -> Iterator[str]:
    before = "-"
    for place, word in enumerate(words):
        if _SHELL.fullmatch(word):
            return
        if word == LINE_END:
            begun = [after for end, after in pairwise(words[place:]) if end == LINE_END]
            needs_value = before.startswith("-") and "=" not in before
            # Pages also break a single command into lines, mostly before flags.
            if not needs_value and not any(each.startswith(("-", *_PRINTED)) for each in begun):
                return
            continue
        before, kept = word, word.rstrip(";&")
        yield kept
        if kept != word:
            return


def _with_file(words: list[str], source: str, program: str) -> list[str]:
    """Return words with the file of ``--config`` filled in; the command line takes precedence."""
    path = next((value for name, value in _flags(words, source, program) if name == "config"), None)
    if path is None:
        return words
    kept = _without(tuple(words), _CONFIG)
    typed = {name for name, _ in _flags(kept, source, program)}
    for key, value in load_mapping(Path(path), ConfigError).items():
        if isinstance(value, bool):
            off = [f"--no-{key}"] if program == "vllm" else []  # SGLang has no such form
            added = [f"--{key}"] if value else off
        elif isinstance(value, list):
            added = [f"--{key}", *map(str, value)]
        else:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            added = [] if value is None else [f"--{key}={text}"]
        if not typed & {name for name, _ in _flags(added, source, program)}:
            kept += added
    return kept


def _flags(words: list[str], source: str, program: str) -> Iterator[tuple[str, str]]:
    """Yield each flag by vLLM's name, with its value; a switch has True or False."""
    rest = list(words)
    while rest:
        word = re.sub(r"^-O=?(?=.)", "-O=", rest.pop(0))  # vLLM reads -O3 and -O 3 alike
        if not word.startswith("-"):
            yield "model", word
            continue
        if (stuck := _STUCK.fullmatch(word)) and stuck[1] in FLAGS["short"]:
            raise ConfigError(
                f"{source}: {word}: there is no such flag; did you mean {stuck[1]} {stuck[2]}?"
            )
        name, equals, value = word.partition("=")
        head, dot, inner = name.partition(".")
        name = (FLAGS["short"].get(head, head.lstrip("-")) + dot + inner).replace("_", "-")
        if program == "sglang":
            name = FLAGS["sglang"].get(name, name)
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
        if not equals and name.partition(".")[0] in {*_COUNT, *_OF_SGLANG}:
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
            skips = False  # this flag has only one value
    return kept


def _moved(word: str, places: dict[str, str]) -> str:
    """Return a word of a command with a path replaced by its place in the container."""
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
            usual = _USUAL[self._program]
            raise ConfigError(f"{self._source}: names no model; such as: {usual} ...")
        self._refuse()
        model = flags.pop("model")
        if "speculator." in model.rsplit("/", 1)[-1]:
            raise ConfigError(
                f"{self._source}: {model}: is a drafter, with which vLLM starts its target; name "
                "that target, and the drafter in --speculative-config"
            )
        is_sglang = self._program == "sglang"
        offload = None if is_sglang else take_offload(flags)
        speculation = sglang_drafts(flags) if is_sglang else vllm_drafts(flags, model)
        weights = self._weights(model)
        cache = flags.pop("kv-cache-dtype", "auto")
        kv_dtype = "fp8" if cache.startswith("fp8") else "auto" if cache == "auto" else "bfloat16"
        if kv_dtype == "bfloat16" and cache not in ("bfloat16", "float16"):
            notes.append(f"--kv-cache-dtype {cache}: the KV cache is counted in 16 bits")
        size = self._number("tensor-parallel-size") if "tensor-parallel-size" in flags else None
        ranks, stages = self._number("data-parallel-size"), self._number("pipeline-parallel-size")
        shares = self._number("decode-context-parallel-size")
        engine = {name.replace("-", "_"): self._value(name) for name in _ENGINE if name in flags}
        if "num-gpu-blocks-override" in flags:
            engine["num_gpu_blocks"] = self._value("num-gpu-blocks-override", int)
        if offload is not None:
            engine["kv_offload"] = offload
            notes.append(offload_note(offload))
        if stages > 1:
            self._check_stages(stages, ranks, speculation)
        if "gpu_memory_utilization" in engine and self._program == "sglang":
            notes.append("--mem-fraction-static: taken as vLLM's gpu_memory_utilization")
        notes += self._unused(set(engine))
        if strange := unknown_fields(speculation or {}):
            notes.append(f"not simulated: {', '.join(strange)} of the drafter")
        if self._program == "sglang":
            inside, servers = inside_of("sglang")
            notes.append(
                "scheduled as vLLM does, not as SGLang does; how far step times may be off was "
                f"measured on vLLM's servers: of {servers} under SGLang, which took no part, "
                f"{inside} were within it"
            )
        return ServerCommand(
            *(self._program, words, model, engine, size, speculation, weights, ranks, stages),
            shares=shares,
            kv_dtype=kv_dtype,
            notes=notes,
        )

    def _check_stages(self, stages: int, ranks: int, speculation: dict[str, Any] | None) -> None:
        """Raise a ConfigError if a pipeline is combined with something not simulated with it."""
        method = speculation["method"] if speculation else None
        if method and not PROPOSERS.find(method).supports_async:
            raise ConfigError(
                f"{self._source}: --pipeline-parallel-size {stages}: method '{method}', which vLLM "
                "does not schedule asynchronously, is not simulated with stages; leave out either"
            )
        if ranks > 1 or self._program == "sglang":
            beside = "data-parallel ranks" if ranks > 1 else "SGLang's scheduler"
            raise ConfigError(
                f"{self._source}: --pipeline-parallel-size {stages}: stages with {beside} are not "
                "simulated; leave it out"
            )

    def _number(self, name: str) -> int:
        """Return the number in a parallelism flag, and remove the flag."""
        found: int = self._value(name, int) if name in self._flags else 1
        self._flags.pop(name, None)
        if found < 1:
            raise ConfigError(f"{self._source}: --{name} {found}: must be at least 1")
        return found

    def _refuse(self) -> None:
        if "$" in (model := self._flags["model"]):
            raise ConfigError(
                f"{self._source}: {model}: nothing there says what this variable is; write it out"
            )
        for name, only in _REFUSED.items():
            inner = next((each for each in self._flags if each.startswith(f"{name}.")), name)
            value = self._flags.pop(inner, only)
            if value.lower() not in (only.lower(), "") or (only == "" and value):
                remedy = f"{_REMEDIES[name]}, or " if name in _REMEDIES else ""
                raise ConfigError(
                    f"{self._source}: --{name} {value}: is not planned for, and changes the "
                    f"answer; {remedy}leave it out to plan without it"
                )

    def _unused(self, engine: set[str]) -> list[str]:
        left = [n for n in self._flags if n.replace("-", "_") not in engine]
        left = [n for n in left if n != "num-gpu-blocks-override"]
        slow = [n for n in left if n.partition(".")[0] in _UNMODELLED]
        known = {*_COUNT, *(_OF_SGLANG if self._program == "sglang" else ())}
        for name in [n for n in left if n not in _SWITCHES.union(slow)]:
            begun = [each for each in sorted(known) if each.startswith(name)]
            brief = [name] if self._program == "vllm" and f"-{name}" in FLAGS["short"] else []
            if near := brief or begun or get_close_matches(name, known, 1, _TYPO):
                meant = f"{'-' if brief else '--'}{near[0]}"
                raise ConfigError(
                    f"{self._source}: --{name}: there is no such flag; did you mean {meant}?"
                )
            if name.startswith("speculative-"):  # SGLang has many more of these
                slow.append(name)
        rest = [n for n in left if n not in slow]
        notes = {
            "not simulated, though it changes speed": slow,
            "without effect on the answer": rest,
        }
        return [f"{what}: --{', --'.join(names)}" for what, names in notes.items() if names]

    def _value(self, name: str, kind: type | None = None) -> Any:
        text, kind = self._flags[name], kind or _ENGINE[name]
        if kind is bool:
            return text == "True"
        if name == "max-model-len" and text in ("auto", "-1"):  # vLLM then takes what fits
            return -1
        # vLLM's human-readable integers: 32k is 32,000, 25.6k is 25,600, and 32K is 32,768.
        match = re.fullmatch(_HUMAN, text) if kind is int else None
        try:
            found = int(float(match[1]) * _UNITS[match[2]]) if match else kind(text)
        except ValueError as error:
            what = "a number" if kind is float else "a whole number"
            raise ConfigError(f"{self._source}: --{name} {text:.80}: should be {what}") from error
        if name == "max-model-len" and found < 1:
            raise ConfigError(f"{self._source}: --{name} {text:.80}: must be at least 1, or auto")
        if name == "gpu-memory-utilization" and not 0 < found <= 1:  # NaN is refused, too
            raise ConfigError(f"{self._source}: --{name} {text:.80}: must be above 0, at most 1")
        return found

    def _weights(self, model: str) -> str | None:
        """Return a value of ``profile build --dtype``; None: as published, or as a folder says."""
        dtype = self._flags.pop("dtype", "auto")
        if dtype not in ("auto", "bfloat16", "float16", "half"):
            raise ConfigError(
                f"{self._source}: --dtype {dtype}: profiles are of 16 bits; use bfloat16"
            )
        given = self._flags.pop("quantization", "")
        named = HOW_STORED.findall(model.lower())
        known = [kind for kind in named if kind in _STORED]
        kind = given.lower() or [*known, *named, ""][0]
        if known and kind not in _STORED:  # these do not say which number type
            kind = known[0]
        is_folder = (Path(model) / "config.json").is_file()
        is_published = kind == "mxfp4" and "gpt-oss" in model.lower()
        if kind in ("", "none") or is_published or (is_folder and kind != "fp8"):
            return None
        if kind in _STORED:
            return _STORED[kind]
        raise ConfigError(
            f"{self._source}: weights in {kind}: of how many bits is not said, or no kernels of "
            "such were measured; name a folder with the model's config.json (./my-model), or one "
            f"of {', '.join(_STORED)} (--quantization)"
        )
