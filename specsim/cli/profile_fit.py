"""Command ``profile fit``; its group is in `specsim.cli.profiles`."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.terminal import show, spinner

__all__ = ["fit"]


def fit(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            help="Measured steps: tables (CSV, Parquet, JSON lines) or measured runs; or one "
            "folder with kernel tables.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="As in profiles/<model>.json; a folder's meta.yaml knows.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="As in profiles/<gpu>.yaml; a folder's meta.yaml knows.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallelism of the measurement.")] = 1,
    kind: Annotated[str, typer.Option(help="two_regime or linear.")] = "two_regime",
    max_num_seqs: Annotated[
        int, typer.Option(min=1, help="Of a folder, leave larger batches out.")
    ] = 256,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Of a folder, leave larger steps out.")
    ] = 2048,
    seed: Annotated[int, typer.Option(min=0, help="Of the division into fitted and held out.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the profile here, as YAML.", show_default=False)
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write errors and learning curves here.")
    ] = None,
) -> None:
    """Fit a latency model to measured steps and print its error on steps it has not seen.

    A table of steps has the columns context_tokens, batched_tokens, num_requests, mixed (or
    prefill_tokens) and seconds; so has the steps.jsonl of a measured run. Of runs with speculation
    the steps include drafting, and the profile is one for that method and draft length; a
    host_speed.jsonl beside the steps, of `specsim calibrate` on a CPU, is taken out of them. A
    folder of kernel tables holds dense.csv, attention.csv, per_sequence.csv and,
    optionally, skew.csv: each point of the attention kernel becomes a step, as far as it fits into
    the GPU's memory. Regression by Huber's loss, no coefficient negative; both kinds of model are
    shown side by side.
    """
    import yaml

    from specsim.core.atomic import new_file
    from specsim.core.errors import ConfigError
    from specsim.core.settings import nearest
    from specsim.reality.profile_fit import KINDS, fit_and_test, fitted_profile, measured_steps
    from specsim.show.render.profile_fit import study_tables

    if kind not in KINDS:
        raise ConfigError(f"--kind {kind}: {nearest(kind, list(KINDS))}")
    is_run = (sources[0] / "steps.jsonl").exists()
    is_kernels = sources[0].is_dir() and not is_run
    if out is not None and not is_kernels and (model is None or gpu is None):
        raise ConfigError("--out: say with --model and --gpu what the steps were measured on")
    source = ", ".join(map(str, sources))
    name = ", ".join(each.name for each in sources)
    with ExitStack() as outputs:
        profile_file = outputs.enter_context(new_file(out)) if out else None
        json_file = outputs.enter_context(new_file(json_out)) if json_out else None
        with spinner(f"fitting to {name}"):
            points, origin = measured_steps(
                sources,
                model,
                gpu,
                tp,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
            )
            chosen, *others = (
                fit_and_test(points, each, seed, source, keeps_sum=is_run)
                for each in (kind, *(each for each in KINDS if each != kind))
            )
        if json_file is not None:
            content = {each.kind: each.to_dict() for each in (chosen, *others)}
            json_file.write_text(json.dumps(content, indent=1) + "\n")
        if profile_file is not None:
            profile = fitted_profile(chosen, points, origin, source)
            written = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
            profile_file.write_text(yaml.safe_dump(written, sort_keys=False, width=100))
    show(*study_tables([chosen, *others], f"{name}, {len(points):,} steps"))
    typer.echo(f"\nfitted to all {len(points):,} steps:\n")
    target = chosen.model.model_dump(mode="json")
    typer.echo(yaml.safe_dump({"target": target}, sort_keys=False), nl=False)
