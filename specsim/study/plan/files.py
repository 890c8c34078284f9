"""Files of a plan: what to start, where, and the experiment to look deeper."""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml

from specsim.core.version import __version__
from specsim.run.experiment import Experiment
from specsim.study.plan.answer import Plan
from specsim.study.plan.options import PROFILE_FILE, Option, with_replicas

FILES = (
    "plan.json", "capacity.json", "capacity.parquet", "experiment.yaml", PROFILE_FILE, "serve.sh",
    "docker-compose.yaml", "kubernetes.yaml",
)  # fmt: skip

_IMAGES = {"vllm": "vllm/vllm-openai:latest", "sglang": "lmsysorg/sglang:latest"}
_PORT = 8000
_GPUS_PER_MACHINE = 8
_LABELS = {"app": "llm"}
_MARK = f"# specsim_version: {__version__}\n"
_COMMENTS = {
    "workload": "who asks for what; arrivals.rate is of the whole service, requests/s",
    "profile": "what a step costs: a GPU, a model, -tpN",
    "engine": "as on the command line of the server, under vLLM's names",
    "policy": "how much to draft; off, static with k, or any of `specsim list policies`",
    "acceptance": "how often drafts are accepted; `specsim list acceptance`",
    "replicas": "servers behind one router",
    "slo": "limits in ms",
    "seed": "the same seed gives the same bytes",
}


def save_plan(plan: Plan, folder: Path) -> None:
    """Write all files of a plan; those of the servers only if there is an answer."""
    text = json.dumps(plan.to_dict(), indent=1, allow_nan=False) + "\n"
    (folder / "plan.json").write_text(text, encoding="utf-8")
    plan.capacity.save(folder)
    if plan.taken is None:
        return
    option, replicas = plan.options[plan.taken], plan.found[plan.taken].replicas or 1
    experiment = with_replicas(option, plan.question, replicas)
    about = f"{plan.taken}: specsim run experiment.yaml, specsim capacity experiment.yaml"
    (folder / "experiment.yaml").write_text(commented(experiment, about), encoding="utf-8")
    if not option.hardware.is_measured:
        fields = option.hardware.profile.model_dump(
            mode="json", exclude_none=True, exclude_defaults=True
        )
        _write_yaml(folder / PROFILE_FILE, [fields])
    line = serve_line(plan, option)
    (folder / "serve.sh").write_text(_script(plan, option, line, replicas), encoding="utf-8")
    size = option.hardware.gpus_per_replica
    words = shlex.split(line)
    services = _compose(plan, words, size, replicas)
    hosts = f"one machine of {_GPUS_PER_MACHINE} GPUs: {len(services['services'])} of {replicas}"
    _write_yaml(folder / "docker-compose.yaml", [services], f"{hosts} servers")
    _write_yaml(folder / "kubernetes.yaml", _kubernetes(plan, words, size, replicas))


def commented(experiment: Experiment, about: str) -> str:
    """Return an experiment as YAML, with a comment above each field."""
    parts = [f"{_MARK}# {about}\n"]
    fields = experiment.model_dump(
        mode="json", exclude_none=True, exclude_defaults=True, warnings=False
    )
    for name, value in fields.items():
        text = yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True)
        parts.append((f"# {_COMMENTS[name]}\n" if name in _COMMENTS else "") + text)
    return "".join(parts)


def serve_line(plan: Plan, option: Option) -> str:
    """Return the command line of each server; of a policy that vLLM has not, without it."""
    size = option.hardware.gpus_per_replica
    return plan.question.command.with_options(size, option.speculation)


def _script(plan: Plan, option: Option, line: str, replicas: int) -> str:
    gpu = option.hardware.profile.gpu
    head = (
        f"#!/bin/sh\n{_MARK}# One of {replicas} servers, on {option.hardware.gpus_per_replica} "
        f"{gpu} each, behind a router that prefers the one with the fewest open requests.\n"
    )
    if option.needs_a_policy:
        head += (
            f"# {option.label} is no policy of the server's own; for a schedule that vLLM reads:\n"
            "# specsim tune experiment.yaml --emit vllm\n"
        )
    if "YOUR-" in line:
        head += "# YOUR-...: the name of the drafter's weights.\n"
    return f"{head}exec {line}\n"


def _arguments(words: list[str]) -> list[str]:
    """Return what an image whose entry point starts the server is given."""
    return words[2:] if words[0] == "vllm" else words


def _compose(plan: Plan, words: list[str], size: int, replicas: int) -> dict[str, Any]:
    """Return the servers of one machine, each with GPUs of its own."""
    here = min(replicas, max(1, _GPUS_PER_MACHINE // size))
    return {
        "services": {
            f"llm-{number}": {
                "image": _IMAGES[plan.question.command.program],
                "command": _arguments(words),
                "ipc": "host",
                "environment": {"HF_TOKEN": "${HF_TOKEN}"},
                "ports": [f"{_PORT + number}:{_PORT}"],
                "deploy": {"resources": {"reservations": {"devices": [_gpus(number, size)]}}},
            }
            for number in range(here)
        }
    }


def _gpus(number: int, size: int) -> dict[str, Any]:
    ids = [str(each) for each in range(number * size, (number + 1) * size)]
    return {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}


def _kubernetes(plan: Plan, words: list[str], size: int, replicas: int) -> list[dict[str, Any]]:
    program = plan.question.command.program
    container = {
        "name": "server",
        "image": _IMAGES[program],
        ("args" if program == "vllm" else "command"): _arguments(words),
        "ports": [{"containerPort": _PORT}],
        "resources": {"limits": {"nvidia.com/gpu": size}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llm", "labels": {**_LABELS}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {**_LABELS}},
            "template": {"metadata": {"labels": {**_LABELS}}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "llm"},
        "spec": {"selector": {**_LABELS}, "ports": [{"port": _PORT, "targetPort": _PORT}]},
    }
    return [deployment, service]


def _write_yaml(path: Path, documents: list[dict[str, Any]], about: str = "") -> None:
    text = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=1000)
    head = f"# {about}\n" if about else ""
    path.write_text(_MARK + head + text, encoding="utf-8")
