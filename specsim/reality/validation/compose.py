"""Compose the simulation of a measured run: its engine, its requests, and a profile."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError, ProfileError, TraceError
from specsim.core.reading import short
from specsim.core.request import Request
from specsim.core.settings import load_mapping, validated
from specsim.engine.config import EngineConfig
from specsim.engine.versions import RULES, SINCE, minor_version, nearest_version, usual_utilization
from specsim.hardware import find_gpu, find_model, load_gpu, load_model
from specsim.hardware.specs import RESERVED_GIB
from specsim.latency.cuda_graph import CudaGraph
from specsim.latency.kernels import Kernels, ZeroWrites
from specsim.profile import Profile, load_profile
from specsim.proposers import PROPOSERS
from specsim.reality.profile_fit import kernels_of
from specsim.reality.profile_fit.points import Origin
from specsim.reality.validation.measured_run import say_lookup
from specsim.reality.validation.run_folder import RECORD, RunFolder, replayed, section_of
from specsim.reality.validation.table_replay import is_same_gpu, is_same_model
from specsim.run.experiment import Experiment
from specsim.workload.readers import read_trace

_MEMORY_REACHED = 0.8  # share of the memory bandwidth that simple kernels reach
_HARMLESS = {
    *("dtype", "enforce_eager", "seed", "disable_log_stats", "load_format", "skip_tokenizer_init"),
    *("served_model_name", "tokenizer", "num_gpu_blocks_override"),
}
"""Options of an engine that are read elsewhere or change no time."""
_NOT_OURS = frozenset({"model", "speculative_config"})


@dataclass(frozen=True)
class Replaced:
    """Values that a user gives in place of those in the run folder."""

    profile: str | None = None  # name or path
    num_gpu_blocks: int | None = None
    tokens: Path | None = None  # workload with token ids
    model: str | None = None  # name, or path of a ``config.json``


@dataclass(frozen=True)
class Replay:
    """A measured run in the form of a simulation."""

    experiment: Experiment
    profile: Profile
    requests: list[Request]
    notes: list[str] = field(default_factory=list)  # what was assumed or left out


def compose(run: RunFolder, replaced: Replaced) -> Replay:
    """Return the simulation of a measured run; a SpecsimError if too little is known."""
    notes = _notes_on_recording(run)
    speculation = speculative_config(run, notes)
    engine = _engine(run, replaced, notes)
    decisions: dict[str, Any] = {}
    if speculation is not None:
        decisions["acceptance"] = {"kind": "recorded", "proposer": RECORD}
        if "policy" in run.meta:
            decisions["policy"] = run.meta["policy"]
        is_told = run.meta.get("vllm_version") is not None
        on_cpu = any("cpu" in str(name).lower() for name in _hardware(run, run.meta))
        say_lookup(engine, speculation, is_told=is_told, on_cpu=on_cpu)
        engine["speculative_config"] = speculation
    else:
        engine.setdefault("async_scheduling", True)
    if replaced.profile is None:
        profile = composed_profile(run, replaced.model)
        notes.append(f"profile: composed from the kernel tables in {run.profile_folder}")
        _note_skew(profile, notes)
    else:
        profile = load_profile(replaced.profile)
        _note_others(run, profile, replaced.model, notes)
    if "num_gpu_blocks" not in engine:
        notes.append(
            "num_gpu_blocks is not published: derived from memory (gpu_memory_utilization "
            f"{engine['gpu_memory_utilization']:g}, {profile.reserved_gib:g} GiB set aside)"
        )
    experiment = Experiment.parse(
        {
            "workload": {"arrivals": {"kind": "trace", "path": str(run.path / "requests.jsonl")}},
            "engine": engine,
            "profile": replaced.profile or str(run.profile_folder),
            **_engines(run, notes),
            **decisions,
        },
        str(run.path / "meta.json"),
    )
    requests = _requests(run, replaced.tokens, notes)
    if speculation is not None:
        requests = replayed(requests, run, speculation, notes)
    return Replay(experiment, profile, requests, notes)


def _notes_on_recording(run: RunFolder) -> list[str]:
    """Return notes on what a recording lacks."""
    notes = []
    if run.num_failed:
        notes.append(f"{run.num_failed:,} requests that ended with an error are left out")
    if len(counts := {len(each["arrived_at"]) for each in run.runs}) > 1:
        notes.append(
            f"its files hold {' or '.join(f'{count:,}' for count in sorted(counts))} requests "
            "that ended well: only repetitions of the first have a spread that says something"
        )
    if run.meta.get("complete") is False:
        notes.append("the recording was cut off (meta.json: complete is false)")
    if missing := run.meta.get("not_recorded"):
        notes.append(f"simulated without what was not recorded: {', '.join(map(str, missing))}")
    return notes


def _engines(run: RunFolder, notes: list[str]) -> dict[str, Any]:
    """Return the number of replicas or ranks, and the router, as fields of an experiment.

    Raises a ConfigError if the requests name another number of engines than ``meta.json``.
    """
    ranks, replicas = _parallel(run, "data_parallel_size"), run.meta.get("replicas", 1)
    place, told = run.path / "meta.json", run.meta.get("num_engines")
    if not isinstance(replicas, int) or replicas < 1:
        raise ConfigError(f"{place}: replicas = {replicas!r} must be a whole number of at least 1")
    if told is not None and told != replicas * ranks:
        raise ConfigError(
            f"{place}: num_engines = {told!r} were recorded, but replicas = {replicas} and "
            f"engine_kwargs.data_parallel_size = {ranks}: say of how many the requests are (and "
            "routing), or record all of them"
        )
    if replicas > 1:
        notes.append(f"{replicas} replicas behind one address")
        return {name: run.meta[name] for name in ("replicas", "routing") if name in run.meta}
    if ranks == 1:
        return {}
    notes.append(f"{ranks} data-parallel ranks; a request goes to the least loaded")
    # vLLM's own balancing until 0.32; see v1/engine/core_client.py of the run's version
    return {"routing": {"kind": "least_outstanding", "waiting_weight": 4.0}}


def _note_skew(profile: Profile, notes: list[str]) -> None:
    target = profile.target
    kernels = target.inner if isinstance(target, CudaGraph) else target
    if isinstance(kernels, Kernels) and not kernels.applies_skew:
        notes.append("differing KV lengths in a batch do not count: no skew was profiled")


def _note_others(run: RunFolder, profile: Profile, model: str | None, notes: list[str]) -> None:
    """Add a note if a profile is of another model or GPU than the run, judged by names."""
    own = "" if profile.model.endswith(".json") else profile.model  # a path may have any name
    names = (model,) if model else (run.meta.get("model"), run.engine_kwargs.get("model"))
    for what, theirs, ours, is_same in (
        ("model", names, own, is_same_model),
        ("gpu", _hardware(run, run.meta), profile.gpu, is_same_gpu),
    ):
        said = [name for name in theirs if isinstance(name, str) and name]
        if said and ours and not any(is_same(name, ours) for name in said):
            notes.append(f"the run's {what} is {short(said[0])}, the profile is of '{ours}'")


_CHANGE_STEPS = ("quantization", "enable_lora")


def doubts_of(sources: Sequence[Path], model: str | None, gpu: str | None) -> list[str]:
    """Return warnings for runs that are not of a model, unquantised, on a GPU; judged by names."""
    found = []
    for source in sources:
        folder = source if source.is_dir() else source.parent
        path = folder / "meta.json"
        if path.is_file() and (folder / "steps.jsonl").is_file():
            doubts = _doubts_of(load_mapping(path, ProfileError), model or "", gpu or "")
            found += [f"{path}: {doubt}" for doubt in doubts]
    return found


def _doubts_of(meta: Mapping[str, Any], model: str, gpu: str) -> list[str]:
    options, hardware = (section_of(meta, name) for name in ("engine_kwargs", "hardware"))
    named = options.get("model") or meta.get("model")
    device = hardware.get("device_name") or meta.get("gpu")
    own = "" if model.endswith(".json") else model  # a path may have any name
    found = []
    if named and own and not is_same_model(str(named), own):
        found.append(f"is of model '{named}', the profile of '{own}'")
    if device and gpu and not is_same_gpu(str(device), gpu):
        found.append(f"was measured on '{device}', the profile is of '{gpu}'")
    said = [f"{name} = {options[name]!r}" for name in _CHANGE_STEPS if options.get(name)]
    return found + [f"{each}: the profile is of such steps, and does not say so" for each in said]


def _parallel(run: RunFolder, name: str) -> int:
    size = run.engine_kwargs.get(name) or 1
    if not isinstance(size, int) or size < 1:
        raise ConfigError(
            f"{run.path / 'meta.json'}: engine_kwargs.{name} = {size!r} must be a whole number of "
            "at least 1"
        )
    return size


def _engine(run: RunFolder, replaced: Replaced, notes: list[str]) -> dict[str, Any]:
    if not run.meta:
        notes.append("no meta.json: the engine's options are vLLM's defaults")
    version = run.meta.get("vllm_version")
    options: dict[str, Any] = {"gpu_memory_utilization": usual_utilization(version)}
    options["vllm_version"] = nearest_version(version)
    if version is not None and minor_version(version) not in [*RULES]:
        notes.append(
            f"vllm_version = {short(version)}: known are {', '.join(RULES)}; it is scheduled as by "
            f"{options['vllm_version']}"
        )
    engine = str(run.meta.get("engine") or "vllm")
    if version is None and not engine.lower().startswith(("vllm", "specsim", "unknown")):
        notes.append(f"engine = {short(engine)}: it is scheduled as by vLLM")
    if blocks := run.engine_kwargs.get("num_gpu_blocks_override"):
        options["num_gpu_blocks"] = blocks
    sources = (
        run.section("resolved_config", "scheduler_config"),
        run.section("resolved_config", "cache_config"),
        run.section("kv_cache"),
        run.engine_kwargs,
    )
    names = EngineConfig.model_fields.keys() - _NOT_OURS
    for source in sources:
        options |= {
            name: source[name] for name in names & source.keys() if source[name] is not None
        }
    needed = [since for name, since in SINCE.items() if options.get(name)]
    options["vllm_version"] = max([options["vllm_version"], *needed])
    if replaced.num_gpu_blocks is not None:
        options["num_gpu_blocks"] = replaced.num_gpu_blocks
        notes.append(f"num_gpu_blocks = {replaced.num_gpu_blocks}, as given")
    _note_ignored(run, notes)
    return {name: options[name] for name in EngineConfig.model_fields if name in options}


def _hardware(run: RunFolder, meta: Mapping[str, Any]) -> tuple[Any, ...]:
    return (meta.get("hardware"), meta.get("gpu"), run.section("hardware").get("device_name"))


def _note_ignored(run: RunFolder, notes: list[str]) -> None:
    known = EngineConfig.model_fields.keys() | _HARMLESS
    ignored = [
        f"{name} = {value!r}"
        for name, value in run.engine_kwargs.items()
        if name not in known and value not in (None, False, "auto")
    ]
    if ignored:
        notes.append(f"options of the engine that are not simulated: {', '.join(sorted(ignored))}")


def composed_profile(run: RunFolder, model: str | None = None) -> Profile:
    """Return a profile that composes step times from the kernel tables of a run.

    `model` is a name or the path of a ``config.json``; by default that of the folder. Raises a
    ProfileError if there are no tables, or the model or GPU is not known.
    """
    folder = run.profile_folder
    if folder is None:
        raise ProfileError(
            f"{run.path}: has no folder 'profile' with kernel tables; name a profile (--profile)"
        )
    meta_path = folder / "meta.yaml"
    meta = load_mapping(meta_path, ProfileError) if meta_path.exists() else {}
    known = _hardware(run, meta)
    kernels, origin = kernels_of(
        folder,
        _model_key(run, meta, model),
        find_gpu([str(name) for name in known if name], str(run.path)),
        _parallel(run, "tensor_parallel_size"),
    )
    kernels = _with_zeros(run, kernels, origin)
    with validated(str(folder), ProfileError):
        return Profile.model_validate(
            {
                "model": origin.model,
                "gpu": origin.gpu,
                "tensor_parallel_size": origin.tensor_parallel_size,
                "provenance": {
                    "engine": f"vLLM {meta.get('vllm_version', 'of unknown version')}",
                    "source": f"kernel tables in {folder}",
                    "date": str(meta.get("profiled_at", "unknown"))[:10],
                },
                "target": _with_graphs(run, kernels),
                "valid_range": {"context_tokens": 10**9, "batched_tokens": 10**9},
                "reserved_gib": RESERVED_GIB,
            }
        )


def _with_zeros(run: RunFolder, kernels: Kernels, origin: Origin) -> Kernels:
    """Add the zeros that vLLM before 0.32 wrote for the experts of other GPUs; see `ZeroWrites`."""
    shape, bandwidth = load_model(origin.model), load_gpu(origin.gpu).memory_gb_per_s
    version = re.match(r"0\.(\d+)", str(run.meta.get("vllm_version", "")))
    if not shape.num_experts or bandwidth is None or version is None or int(version[1]) >= 32:
        return kernels
    width = shape.moe_intermediate_size * (2 if shape.has_gated_mlp else 1) + shape.hidden_size
    zeros = ZeroWrites(bytes_per_expert=2.0 * width, gb_per_s=_MEMORY_REACHED * bandwidth)
    return kernels.model_copy(update={"zero_writes": zeros})


def _model_key(run: RunFolder, meta: dict[str, Any], model: str | None) -> str:
    if model is not None:
        return model
    for folder in (run.path, run.path / "profile"):
        if (folder / "config.json").is_file():
            return str(folder / "config.json")
    names = (run.meta.get("model"), run.engine_kwargs.get("model"), meta.get("model"))
    return find_model([str(name) for name in names if name], str(run.path))


def _with_graphs(run: RunFolder, kernels: Kernels) -> Kernels | dict[str, Any]:
    """Pad steps to the CUDA graph sizes that the run's engine captured."""
    if run.engine_kwargs.get("enforce_eager"):
        return kernels
    sizes = run.section("resolved_config", "compilation_config").get("cudagraph_capture_sizes")
    if isinstance(sizes, list) and sizes:
        return {"kind": "cuda_graph", "inner": kernels, "capture_sizes": sorted(sizes)}
    seqs = run.engine_kwargs.get("max_num_seqs") or 256
    return {"kind": "cuda_graph", "inner": kernels, "max_num_seqs": seqs}


def _requests(run: RunFolder, tokens: Path | None, notes: list[str]) -> list[Request]:
    path = tokens or run.tokens_path()
    if path is None:
        has_ids = run.requests[0].prompt_token_ids is not None
        told = "those of the run" if has_ids else "prefixes are not shared between requests"
        notes.append(f"{'' if has_ids else 'no '}token ids: {told}")
        return run.requests
    trace = read_trace(path)
    prompts, outputs = trace.prompt_token_ids, trace.output_token_ids
    if prompts is None:
        raise TraceError(f"{path}: has no token ids; leave --tokens out or name a trace with them")
    notes.append(f"token ids: {path}")
    requests = []
    for request, row in zip(run.requests, run.rows, strict=True):
        if row >= len(prompts) or len(prompts[row]) != request.prompt_len:
            found = f"has {len(prompts[row])} prompt tokens" if row < len(prompts) else "is missing"
            raise TraceError(
                f"{path}: request {row} {found}, but {request.prompt_len} were measured; "
                "name the workload of this very run (--tokens)"
            )
        answer = outputs[row][: request.output_len] if outputs else None
        if answer is not None and len(answer) < request.output_len:
            answer = None
        requests.append(replace(request, prompt_token_ids=prompts[row], output_token_ids=answer))
    return requests


def speculative_config(run: RunFolder, notes: list[str]) -> dict[str, Any] | None:
    """Return the run's ``speculative_config`` as the engine takes it; None without speculation.

    Raises a ConfigError if the options are no mapping with a known method, or no acceptance is
    recorded.
    """
    given = run.engine_kwargs.get("speculative_config")
    if not given:
        return None
    place = f"{run.path / 'meta.json'}: engine_kwargs.speculative_config"
    if not isinstance(given, dict) or not isinstance(given.get("method"), str):
        raise ConfigError(f"{place} = {given!r} must be a mapping with a method, such as ngram")
    if not any(run.accepted):
        raise ConfigError(
            f"{place}: what was accepted is not recorded (requests.jsonl has no 'accepted'); "
            "record the run with specsim.reality.vllm, observe a server that was started with "
            "--per-request-spec-decode-metrics detailed, or measure one without speculation"
        )
    known = PROPOSERS.find(given["method"]).model_fields.keys() - {"disable_mqa_scorer"}
    unknown = sorted(given.keys() - known)
    if unknown:
        notes.append(f"options of speculative_config that do not count: {', '.join(unknown)}")
    return {name: given[name] for name in given if name in known and given[name] is not None}
