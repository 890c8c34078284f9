"""Files of a plan: the answer, servers that can be started, and experiments."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml

from specsim.core.errors import ConfigError
from specsim.core.resources import within
from specsim.core.settings import as_yaml, load_mapping, with_values
from specsim.core.version import __version__
from specsim.hardware import load_gpu
from specsim.profile import Profile
from specsim.results.folder import write_json
from specsim.run.experiment import Experiment
from specsim.study.plan.answer import Plan
from specsim.study.plan.candidates import SCHEDULE, Option, gpu_name, with_replicas
from specsim.study.plan.command import ServerCommand
from specsim.study.plan.hardware import PROFILE_FILE

_CONFIG, _QUANTIZATION = "config.json", "hf_quant_config.json"  # of a model, as published
_MODEL = "model-"  # prefix of these files in the folder of a plan
FILES = (
    "plan.json", "capacity.json", "capacity.parquet", "experiment.yaml", "day.yaml", PROFILE_FILE,
    _MODEL + _CONFIG, _MODEL + _QUANTIZATION, "serve.sh", "docker-compose.yaml", "kubernetes.yaml",
)  # fmt: skip

_PORT = 8000
_GPUS_PER_MACHINE = 8
_TRANSFER = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
_MARK = f"# specsim_version: {__version__}\n"
_TEXTS = load_mapping(Path(__file__).with_name("servers.yaml"), ConfigError)


def save_plan(plan: Plan, folder: Path) -> None:
    """Write all files of a plan; files of the servers only if there is an answer."""
    write_json(plan.to_dict(), folder / "plan.json")
    plan.capacity.save(folder)
    if plan.taken is None:
        return
    option, replicas = plan.options[plan.taken], plan.found[plan.taken].replicas or 1
    experiment = with_replicas(option, plan.question, replicas)
    about = f"{plan.taken}: specsim run experiment.yaml, specsim capacity experiment.yaml"
    about += plan.question.shares_as_options
    ranks = option.hardware.ranks
    if ranks > 1 and replicas > 1:
        about = f"one of {replicas} servers, with its share of the traffic; {about}"
    (folder / "experiment.yaml").write_text(commented(experiment, about, folder), encoding="utf-8")
    day = _day_experiment(plan)
    if day is not None and plan.advice.day is not None:
        about = f"the whole day, {plan.advice.day.requests:,.0f} requests: specsim run day.yaml"
        (folder / "day.yaml").write_text(commented(day, about, folder), encoding="utf-8")
    if experiment.profile == PROFILE_FILE:
        _save_profile(option.hardware.profile, plan.question.command.model, folder)
    size = option.hardware.profile.tensor_parallel_size
    line = plan.question.command.with_options(size, option.speculation, ranks)
    if option.needs_a_policy:
        line += f" --speculative-config {SCHEDULE}"  # a placeholder that no server accepts
    if option.hardware.pools:
        line += f" --kv-transfer-config {shlex.quote(_TRANSFER)}"
    (folder / "serve.sh").write_text(_script(option, line, replicas), encoding="utf-8")
    if option.hardware.pools:
        return  # the proxy in front of pools is not known
    _save_servers(shlex.split(line), plan.question.command, option, replicas, folder)


def _save_profile(profile: Profile, model: str, folder: Path) -> None:
    """Write a profile with the model's config.json beside it, so that the folder can be moved."""
    fields, config = profile.to_dict(), Path(profile.model)
    if config.suffix == ".json":
        quantization = config.with_name(config.name.replace(_CONFIG, _QUANTIZATION))
        given = load_mapping(config, ConfigError)
        named = given if "source" in given else {**given, "_name_or_path": model}
        write_json(named, folder / f"{_MODEL}{_CONFIG}")  # a shape with a source has a name
        if quantization.is_file():
            shutil.copyfile(quantization, folder / f"{_MODEL}{_QUANTIZATION}")
        fields = _renamed(fields, profile.model, _MODEL + _CONFIG)
    _write_yaml(folder / PROFILE_FILE, [fields])


def _renamed(settings: Any, old: str, new: str) -> Any:
    if isinstance(settings, dict):
        return {name: _renamed(value, old, new) for name, value in settings.items()}
    if isinstance(settings, list):
        return [_renamed(value, old, new) for value in settings]
    return new if settings == old else settings


def _save_servers(
    words: list[str], command: ServerCommand, option: Option, replicas: int, folder: Path
) -> None:
    size, program = option.hardware.gpus_per_replica, command.program
    is_amd = load_gpu(option.hardware.profile.gpu).name.startswith("AMD")
    maker = "amd" if is_amd else "nvidia"
    words, needed = command.in_container(words)
    values = {
        "$image": _TEXTS["images"][program][maker].format(option.experiment.engine.vllm_version),
        "$start": "args" if program == "vllm" else "command",
        "$arguments": words[2:] if words[0] == "vllm" else words,  # after the image's entry point
        "$resource": f"{maker}.com/gpu",
        "$size": size,
        "$replicas": replicas,
    }
    here = min(replicas, max(1, _GPUS_PER_MACHINE // size))
    services = {f"llm-{number}": _composed(values, number, maker) for number in range(here)}
    hosts = f"one machine of {_GPUS_PER_MACHINE} GPUs: {here} of {replicas} servers"
    deployment = with_values(_TEXTS["kubernetes"], values)
    _mount(needed, list(services.values()), deployment[0]["spec"]["template"]["spec"])
    missing = option.missing
    fill_in = f"; replace {missing[0]} by {missing[1]}" if missing else ""
    fill_in += f"; {option.needs}" if option.needs else ""
    _write_yaml(folder / "docker-compose.yaml", [{"services": services}], hosts + fill_in)
    secret = "for gated weights: kubectl create secret generic hf-token --from-literal=token=..."
    if needed:
        places = " and ".join(map(str, needed))
        secret = f"every node needs {places}; {secret}"
    _write_yaml(folder / "kubernetes.yaml", deployment, secret + fill_in)


def _mount(needed: list[Path], services: list[Any], pod: dict[str, Any]) -> None:
    """Mount the folders and files that servers read, at the same paths."""
    [server] = pod["containers"]
    for number, path in enumerate(needed):
        for service in services:
            service.setdefault("volumes", []).append(f"{path}:{path}:ro")
        name, kind = f"own-{number}", "Directory" if path.is_dir() else "File"
        pod["volumes"].append({"name": name, "hostPath": {"path": str(path), "type": kind}})
        mount = {"name": name, "mountPath": str(path), "readOnly": True}
        server["volumeMounts"].append(mount)


def _day_experiment(plan: Plan) -> Experiment | None:
    """Return the experiment of the autoscaled service on the day; None if there is none.

    There is none for ranks, nor for units of pools, which scale separately.
    """
    day, told = plan.question.day, plan.advice.day
    if day is None or told is None:
        return None
    fleet = next(each for each in told.fleets if each.way == "autoscaled")
    option = plan.options[f"{fleet.hardware} {fleet.policy}"]
    if option.hardware.ranks > 1 or option.hardware.pools:
        return None
    config = with_replicas(option, plan.question, fleet.most_servers).to_dict()
    workload = config["workload"]
    lengths = workload.get("lengths") or {"kind": "trace", "path": workload["arrivals"]["path"]}
    segments = day.segments(plan.question.traffic.turns)
    config["workload"] = {
        "arrivals": {"kind": "piecewise", "segments": segments}, "lengths": lengths,
    }  # fmt: skip
    config["replicas"] = fleet.most_servers
    config["autoscaling"] = {
        "kind": "target_concurrency",
        "target": round(told.requests_per_server, 2),
        "min_replicas": fleet.least_servers,
        "max_replicas": fleet.most_servers,
        "price_per_gpu_hour": plan.question.prices.per_gpu_of(option.hardware.gpus),
    }
    return Experiment.parse(config, "day.yaml")


def commented(experiment: Experiment, about: str, folder: Path) -> str:
    """Return an experiment as YAML for a file in a folder, with a comment above each field."""
    parts = [f"{_MARK}# {about}\n"]
    fields = experiment.model_dump(
        mode="json", exclude_none=True, exclude_defaults=True, warnings=False
    )
    lengths = experiment.workload.lengths
    for name, value in within(fields, folder).items():
        text = as_yaml({name: value})
        comment = _TEXTS["comments"].get(name)
        if name == "workload" and lengths is not None and lengths.in_sessions:
            comment = comment.replace("requests/s", "sessions/s")
        parts.append((f"# {comment}\n" if comment else "") + text)
    return "".join(parts)


def _script(option: Option, line: str, replicas: int) -> str:
    hardware, profile = option.hardware, option.hardware.profile
    size = profile.tensor_parallel_size * len(profile.stage_shares) * hardware.ranks
    kind = "pools" if hardware.pools else "one" if replicas == 1 else "several"
    about = _TEXTS["script"][kind].format(
        gpus=f"{size} {gpu_name(profile.gpu)}",
        replicas=replicas,
        pools=[replicas * count for _, count in hardware.pools],
    )
    head = f"#!/bin/sh\n{_MARK}{about}"
    head += f"# {option.needs}\n" if option.needs else ""
    if option.missing is not None:
        said = f"serve.sh: replace {option.missing[0]} by {option.missing[1]}"
        head += f"echo {shlex.quote(f'{said}, and delete this line')} >&2; exit 2\n"
    return f"{head}exec {line}\n"


def _composed(values: dict[str, Any], number: int, maker: str) -> Any:
    size = values["$size"]
    gpus = [str(each) for each in range(number * size, (number + 1) * size)]
    own = {"$ports": f"{_PORT + number}:{_PORT}", "$gpus": gpus}
    service = with_values({**_TEXTS["compose"], **_TEXTS[maker]}, {**values, **own})
    if maker == "amd":  # its containers see all GPUs of a machine
        service["environment"]["HIP_VISIBLE_DEVICES"] = ",".join(gpus)
    return service


def _write_yaml(path: Path, documents: list[dict[str, Any]], about: str = "") -> None:
    text = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=1000)
    head = f"# {about}\n" if about else ""
    path.write_text(_MARK + head + text, encoding="utf-8")
