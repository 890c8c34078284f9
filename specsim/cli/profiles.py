"""Commands ``profile fit``, ``profile show`` and ``profile roofline``."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.profile_fit import fit
from specsim.cli.profile_show import show_profile
from specsim.cli.terminal import show

__all__ = ["profile_app"]

profile_app = typer.Typer(help="Make and inspect profiles of models on GPUs.", no_args_is_help=True)

profile_app.command()(fit)
profile_app.command("show")(show_profile)


@profile_app.command()
def roofline(
    model: Annotated[
        str,
        typer.Option(help="A name in profiles/, or a HuggingFace config.json.", show_default=False),
    ],
    gpu: Annotated[str, typer.Option(help="A name in profiles/: h100.", show_default=False)],
    tp: Annotated[int, typer.Option("--tp", min=1, help="GPUs of each replica.")] = 1,
    draft: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD=MODEL", help="A drafter: eagle3=eagle3-llama-3.1-8b."),
    ] = None,
    compute_efficiency: Annotated[
        float, typer.Option(help="Share of the peak FLOP/s that is reached, up to 1.")
    ] = 0.7,
    memory_efficiency: Annotated[
        float, typer.Option(help="Share of the memory's bandwidth that is reached, up to 1.")
    ] = 0.8,
    reserved_gib: Annotated[
        float, typer.Option(min=0, help="Activations and CUDA graphs; by default of an 8B model.")
    ] = 1.15,
    context: Annotated[
        int, typer.Option(min=0, help="Tokens of context per sequence, in the table.")
    ] = 1024,
    out: Annotated[
        Path | None, typer.Option(help="Write the profile here, not to standard output.")
    ] = None,
) -> None:
    """Make a profile of a model on a GPU from their data sheets, without a measurement.

    Prints the profile as YAML, and to standard error a table: weights, KV blocks that fit (at
    vLLM's default gpu_memory_utilization), step times, and the free budget: how many tokens a step
    can have before computing on them takes longer than reading the weights. Kernels in use reach
    the roofline at batch 1 and in long prefills, but not in between, where speculation lives: the
    estimate is a lower bound there (profiles/README.md).
    """
    import yaml

    from specsim.core.atomic import new_file
    from specsim.profile.from_roofline import RooflineOptions, RooflineProfile, parse_drafts
    from specsim.show.render.profiles import roofline_table

    options = RooflineOptions(
        model=model,
        gpu=gpu,
        drafts=parse_drafts(draft or []),
        tensor_parallel_size=tp,
        compute_efficiency=compute_efficiency,
        memory_efficiency=memory_efficiency,
        reserved_gib=reserved_gib,
    )
    with ExitStack() as outputs:
        file = outputs.enter_context(new_file(out)) if out else None
        made = RooflineProfile.of(options)
        text = yaml.safe_dump(made.fields, sort_keys=False, width=100, allow_unicode=True)
        if file is not None:
            file.write_text(text, encoding="utf-8")
    show(roofline_table(made, context), to_stderr=out is None)
    typer.echo(text if out is None else f"profile: {out}", nl=out is not None)
