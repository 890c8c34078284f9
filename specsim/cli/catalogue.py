"""Commands that show what there is: ``list`` and ``schema``."""

import json
from typing import Annotated

import typer

from specsim.cli.terminal import show
from specsim.core.errors import ConfigError


def list_members(
    family: Annotated[str | None, typer.Argument(help="Show only this family.")] = None,
) -> None:
    """Show every member of every family with its fields, and the shipped profiles."""
    from specsim.acceptance.preset import load_preset, preset_names
    from specsim.core.resources import resource_names
    from specsim.core.settings import nearest
    from specsim.hardware import load_gpu, load_model
    from specsim.show.render.catalogue import FAMILIES, family_table, names_table
    from specsim.workload.lengths.synthetic import DATASETS

    if family is not None and family not in FAMILIES:
        raise ConfigError(f"no family '{family}'; {nearest(family, list(FAMILIES))}")
    for name, members in FAMILIES.items():
        if family in (None, name):
            show(family_table(members))
    if family is None:
        presets = {name: load_preset(name).provenance.fitted_to for name in preset_names()}
        show(
            names_table("datasets", {name: stats.source for name, stats in DATASETS.items()}),
            names_table("profiles", dict.fromkeys(resource_names("profiles", "*/*.yaml"), "")),
            names_table(
                "GPUs", {n: load_gpu(n).name for n in resource_names("profiles", "*.yaml")}
            ),
            names_table(
                "models", {n: load_model(n).name for n in resource_names("profiles", "*.json")}
            ),
            names_table("acceptance presets", presets),
        )


def schema() -> None:
    """Print the JSON schema of an experiment, for editors that complete YAML."""
    from specsim.run.experiment import Experiment

    typer.echo(json.dumps(Experiment.model_json_schema(), indent=2))
