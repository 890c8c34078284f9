"""Commands ``profile build``, ``profile fit``, ``profile show`` and ``profile roofline``."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option

from specsim.cli.options import (
    ALL_CORES,
    Workers,
    check_plot,
    output_file,
    refuse,
    show,
    spinner,
    warn,
    write_json,
    write_profile,
)
from specsim.core.errors import ConfigError, ProfileError

if TYPE_CHECKING:
    from rich.table import Table

    from specsim.profile import Profile, from_roofline
    from specsim.reality.profile_fit import ProfileErrors

Made = TypeVar("Made", bound="from_roofline.MadeProfile")
_SLOW_STEP = 1.0  # seconds; slower steps rather mean a wrong unit than a slow machine

profile_app = typer.Typer(help="Make and inspect profiles of models on GPUs.", no_args_is_help=True)

MaxNumSeqs = Annotated[int, typer.Option(min=1, help="Leave larger batches of a folder out.")]
MaxNumBatchedTokens = Annotated[
    int, typer.Option(min=1, help="Leave larger steps of a folder out.")
]


@profile_app.command()
def fit(
    sources: list[Path] = Argument(
        ...,
        metavar="SOURCE...",
        help="Measured steps: tables (CSV, Parquet, JSON lines) or measured runs; or one "
        "folder with kernel tables. With --start: tables with a row per run of a load "
        "generator (CSV), or JSON of `vllm bench serve --save-result`.",
    ),
    start: str | None = Option(None, help="Fit this composed profile to runs: a name, or a path."),
    rows: list[str] | None = Option(
        None, metavar="COLUMN=VALUE", help="Only these rows of tables of runs: one server."
    ),
    fit_rows: list[str] | None = Option(
        None,
        metavar="COLUMN=VALUE",
        help="Fit to these of them, such as run_id=a; the others are held out.",
    ),
    cells: list[str] | None = Option(
        None, "--set", metavar="COLUMN=VALUE", help="What empty cells of runs hold."
    ),
    metric: list[str] | None = Option(None, help="Fit only this metric of runs; may be repeated."),
    skip_incomplete: bool = Option(
        False, "--skip-incomplete", help="Leave runs out that say too little."
    ),
    model: str | None = Option(
        None, help="As in profiles/<model>.json; a folder's meta.yaml knows."
    ),
    gpu: str | None = Option(None, help="As in profiles/<gpu>.yaml; a folder's meta.yaml knows."),
    tp: int = Option(1, min=1, help="Tensor parallelism of the measurement."),
    kind: str = Option("two_regime", help="two_regime or linear."),
    max_num_seqs: MaxNumSeqs = 256,
    max_num_batched_tokens: MaxNumBatchedTokens = 2048,
    seed: int = Option(0, min=0, help="Seed of what is held out, and of runs' luck."),
    workers: Workers = ALL_CORES,
    out: Path | None = Option(None, help="Write the profile here, as YAML."),
    json_out: Path | None = Option(None, "--json", help="Write errors and learning curves here."),
) -> None:
    """Fit a latency model to measured steps and print its error on steps it has not seen.

    A table of steps has the columns context_tokens, batched_tokens, num_requests, mixed (or
    prefill_tokens) and seconds; so has the steps.jsonl of a measured run. JSON lines of
    forward-pass metrics of vLLM, SGLang or TensorRT-LLM without drafts (as NVIDIA's Dynamo defines
    them) are such tables, too. Of runs with speculation the steps include drafting, and the profile
    is one for that method and draft length; how fast the host was, from the host_speed.jsonl that
    `specsim calibrate` writes on a CPU, is taken out of the steps.

    A folder of kernel tables holds dense.csv, attention.csv, per_sequence.csv and, optionally,
    skew.csv: each point of the attention kernel becomes a step, as far as it fits into the GPU's
    memory. Regression by Huber's loss, no coefficient negative; both kinds of model are shown side
    by side where the steps determine both.

    With --start, a profile of `specsim profile build` is fitted to runs of a load generator: a few
    factors on its kernels and times on the host, with bounds and a prior around the start. It
    prints each with its interval, which of them the runs cannot tell, and the errors before and
    after, on the rows that are fitted and on the others.
    """
    of_runs: dict[str, Any] = {"rows": rows, "fit_rows": fit_rows, "set": cells, "metric": metric}
    of_runs["skip_incomplete"] = skip_incomplete or None
    if start is not None:
        said = "is said by the profile that --start names; leave it out"
        refuse({"model": model, "gpu": gpu}, said)
        from specsim.cli.measured_tables import fit_tables

        fit_tables(sources, start, of_runs, seed, workers, out, json_out)
        return
    refuse(of_runs, "is for runs of a load generator; name a --start for them")
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    _fit_steps(sources, (model, gpu, tp), kind, limits, seed, out, json_out)


def _fit_steps(
    sources: list[Path],
    origin: tuple[str | None, str | None, int],
    kind: str,
    limits: dict[str, Any],
    seed: int,
    out: Path | None,
    json_out: Path | None,
) -> None:
    """Fit to measured steps of a model on a number of GPUs of a kind."""
    from specsim.core.settings import as_yaml, nearest
    from specsim.hardware.specs import load_gpu, load_model
    from specsim.reality.profile_fit import KINDS, fit_and_test, fitted_profile, measured_steps
    from specsim.reality.validation.compose import doubts_of
    from specsim.show.render.profile_tables import study_tables

    if kind not in KINDS:
        raise ConfigError(f"--kind {kind}: {nearest(kind, list(KINDS))}")
    if (first := sources[0]).suffix == ".json":
        raise ConfigError(
            f"{first}: steps come as CSV, Parquet or JSON lines; to fit to a result of `vllm bench "
            "serve`, name the profile to begin with (--start)"
        )
    is_run = (sources[0] / "steps.jsonl").exists()
    is_kernels = sources[0].is_dir() and not is_run
    if out is not None and not is_kernels and None in origin:
        raise ConfigError("--out: say with --model and --gpu what the steps were measured on")
    source = ", ".join(map(str, sources))
    name = ", ".join(each.name for each in sources)
    with output_file(out) as profile_file, output_file(json_out) as json_file:
        with spinner(f"fitting to {name}"):
            points, found = measured_steps(sources, *origin, **limits)
            if out is not None:
                load_model(found.model)
                load_gpu(found.gpu)
            fitted = [fit_and_test(points, kind, seed, source, keeps_sum=is_run)]
            for each in (each for each in KINDS if each != kind):
                with suppress(ProfileError):  # two kinds of steps may be too few for it
                    fitted.append(fit_and_test(points, each, seed, source, keeps_sum=is_run))
        chosen = fitted[0]
        write_json(json_file, {each.kind: each.to_dict() for each in fitted})
        if profile_file is not None:
            write_profile(profile_file, fitted_profile(chosen, points, found, source))
    show(*study_tables(fitted, f"{name}, {len(points):,} steps"))
    typer.echo(f"\nfitted to all {len(points):,} steps:\n")
    target = chosen.model.model_dump(mode="json")
    typer.echo(as_yaml({"target": target}), nl=False)
    warn(doubts_of(sources, *origin[:2]))
    if (usual := sorted(points.seconds.tolist())[len(points) // 2]) > _SLOW_STEP:
        warn([f"the median step takes {usual:,.4g} s: are they ms? 'seconds' is in s"])
    if out is not None:
        typer.echo(f"profile: {out}")


@profile_app.command("show")
def show_profile(
    profile: str = Argument(..., help="A name, such as h100/llama-3.1-8b, or a path."),
    steps: Path | None = Option(
        None, help="Measured steps to compare with, as `profile fit` reads them."
    ),
    max_num_seqs: MaxNumSeqs = 256,
    max_num_batched_tokens: MaxNumBatchedTokens = 2048,
    plot: Path | None = Option(
        None,
        help="Draw it here, .png, .svg or .pdf: step times by batch size, or with --steps "
        "predicted over measured.",
    ),
) -> None:
    """Print what a profile is, what fits into memory, and how long typical steps take.

    With --steps, a table of measured steps or a folder of kernel tables, also how far the profile
    is from them: the target's forward pass, steps with and without prefill apart. On the steps that
    the profile was fitted to, that is no proof: `profile fit` prints the error of held-out ones.
    """
    from specsim.profile import load_profile
    from specsim.show.render.profile_tables import Overview, comparison_table, overview_tables

    check_plot(plot)
    overview, comparison = Overview.of(load_profile(profile)), None
    tables = overview_tables(overview, profile)
    if steps is not None:
        comparison = _compared(
            overview.profile,
            steps,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        tables.append(comparison_table(comparison, steps.name))
    if plot is not None:
        from specsim.show.charts.reality_plots import plot_comparison, plot_step_times

        with spinner("drawing"):
            if comparison is None:
                plot_step_times(overview, plot, profile)
            else:
                plot_comparison(comparison, plot, profile)
    show(*tables)


def _compared(profile: "Profile", steps: Path, **limits: int) -> "ProfileErrors":
    """Return the errors of a profile on measured steps; warn if steps exceed its range."""
    from specsim.reality.profile_fit import ProfileErrors, measured_steps

    with spinner(f"reading {steps.name}"):
        size = profile.tensor_parallel_size
        points, origin = measured_steps([steps], profile.model, profile.gpu, size, **limits)
        found = ProfileErrors.of(profile, points, str(steps))
    drafting = origin.drafting
    if drafting is not None and profile.only_draft_lens != drafting.draft_lens:
        how = f"{drafting.method}, k = {drafting.draft_lens[0]}"
        warn(
            [
                f"{steps}: its steps include drafting ({how}), which is no part of a forward pass: "
                "the profile looks too fast by as much"
            ]
        )
    return found


MadeModel = Annotated[str, Option(help="A name in `specsim list`, or a HuggingFace config.json.")]
Replica = Annotated[int, Option(min=1, help="GPUs of each replica.")]
Drafts = Annotated[
    list[str] | None, Option(metavar="METHOD=MODEL", help="A drafter: eagle3=eagle3-llama-3.1-8b.")
]
Reserved = Annotated[
    float | None,
    Option(min=0, help="Activations and CUDA graphs; by default 1.15, 2.15 where GPUs exchange."),
]
Context = Annotated[int, Option(min=0, help="Tokens of context per sequence, in the table.")]
MadeProfile = Annotated[Path | None, Option(help="Write the profile here, not to standard output.")]


def _drafts(given: list[str] | None) -> dict[str, str]:
    from specsim.core.settings import nearest
    from specsim.profile.from_roofline import parse_pairs
    from specsim.proposers import PROPOSERS

    pairs = parse_pairs("--draft", "METHOD=MODEL, such as eagle3=my-head.json", given or [])
    known = [name for name, each in PROPOSERS.all_members().items() if each.is_model]
    for method, model in pairs.items():
        # A user's class is named by its path; draft_models have their own names.
        if ":" not in method and method not in (*known, model):
            raise ConfigError(
                f"--draft {method}={model}: no method '{method}' runs a model; "
                f"{nearest(method, known)}"
            )
    return pairs


def _make(
    made_of: Callable[[], "Made"], table: Callable[["Made", int], "Table"], context: int,
    out: Path | None, **style: Any,
) -> None:  # fmt: skip
    """Make a profile and print it, or its path; the table goes to the other stream."""
    from specsim.core.settings import as_yaml

    with output_file(out) as file:
        made = made_of()
        text = as_yaml(made.fields, width=100, **style)
        if file is not None:
            file.write_text(text, encoding="utf-8")
    show(table(made, context), to_stderr=out is None)
    typer.echo(text if out is None else f"profile: {out}", nl=out is not None)


def _warn_of_heads(drafts: Mapping[str, str], model: str) -> None:
    from specsim.profile.from_roofline import doubt_of_head

    doubts = (doubt_of_head(*drafter, model) for drafter in drafts.items())
    warn([doubt for doubt in doubts if doubt is not None])


@profile_app.command()
def build(
    model: MadeModel,
    gpu: str = Option(..., help="A name in profiles/, h200, or a YAML file like those."),
    tp: Replica = 1,
    pp: int = Option(1, "--pp", min=1, help="Stages of a pipeline, which divide the layers."),
    dp: int = Option(1, "--dp", min=1, help="Data-parallel ranks that share the experts."),
    dcp: int = Option(1, "--dcp", min=1, help="GPUs that each keep a part of every KV block."),
    ep: bool = Option(False, "--ep", help="Each GPU holds some experts whole, not a slice of all."),
    dtype: str = Option(
        "auto",
        help="Format of weights: bfloat16, fp8, fp8_block, nvfp4, int4, mxfp4, or mxfp4_mxfp8 "
        "(inputs of experts with 8 bits, too); auto: as the model's config.json says.",
    ),
    kv_dtype: str = Option(
        "auto", help="Format of the KV cache: bfloat16 or fp8; auto: as vLLM would by itself."
    ),
    draft: Drafts = None,
    engine: str = Option("vllm", help="Whose kernels: vllm, sglang, trtllm."),
    kernel: list[str] | None = Option(
        None,
        metavar="FAMILY=NAME",
        help="The kernel that the server logged: attention=fa2, moe=marlin, gemm=..., "
        "moe=sglang (if only its table has it), allreduce=trtllm (FlashInfer's), quant=fused. How "
        "it ran: graphs=decodes, graphs=16 (the largest, tokens), sampling=sort or triton (top-p, "
        "top-k), drafts=flashinfer (before Blackwell).",
    ),
    tables: Path | None = Option(
        None, help="Folder of kernel tables; by default that of aiconfigurator-core."
    ),
    table: list[str] | None = Option(
        None,
        metavar="TABLE=ENGINE/VERSION",
        help="The measurement to take in place of the newest: allreduce=vllm/0.19.0, nccl=..., "
        "gemm=..., attention=..., moe=...",
    ),
    tables_of: str | None = Option(
        None, help="Another GPU, whose tables to carry over: h100 for an h100-nvl."
    ),
    reserved_gib: Reserved = None,
    context: Context = 1024,
    out: MadeProfile = None,
) -> None:
    """Compose a profile of a model on a GPU from kernels that were measured on it.

    Prints the profile as YAML, and to standard error what it was composed from, weights, KV blocks
    that fit (at vLLM's default gpu_memory_utilization), and step times. Needs the extra `tables`,
    or a folder of that layout. Time on the host is not in the tables: fit it to runs.
    """
    from specsim.profile.from_roofline import parse_pairs
    from specsim.profile.from_tables import TableProfile
    from specsim.profile.kernel_tables import TableOptions
    from specsim.show.render.profile_tables import built_table

    options = TableOptions(
        model=model,
        gpu=gpu,
        drafts=_drafts(draft),
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        decode_context_parallel_size=dcp,
        enable_expert_parallel=ep,
        dtype=dtype,
        kv_dtype=kv_dtype,
        engine=engine,
        tables=tables,
        versions=parse_pairs(
            "--table", "TABLE=ENGINE/VERSION, such as gemm=vllm/0.24.0", table or []
        ),
        tables_of=tables_of,
        kernels=parse_pairs("--kernel", "FAMILY=NAME, such as moe=marlin", kernel or []),
        reserved_gib=reserved_gib,
    )
    _make(lambda: TableProfile.of(options), built_table, context, out, default_flow_style=None)
    _warn_of_heads(options.drafts, options.model)


@profile_app.command()
def roofline(
    model: MadeModel,
    gpu: str = Option(..., help="A name in profiles/, h100, or a YAML file like those."),
    tp: Replica = 1,
    draft: Drafts = None,
    compute_efficiency: float = Option(
        0.7, max=1, help="Share of the peak FLOP/s that is reached, up to 1."
    ),
    memory_efficiency: float = Option(
        0.8, max=1, help="Share of the memory's bandwidth that is reached, up to 1."
    ),
    reserved_gib: Reserved = None,
    context: Context = 1024,
    out: MadeProfile = None,
) -> None:
    """Make a profile of a model on a GPU from their data sheets, without a measurement.

    Prints the profile as YAML, and to standard error a table: weights, KV blocks that fit (at
    vLLM's default gpu_memory_utilization), step times, and the free budget: how many tokens a step
    can have before computing on them takes longer than reading the weights. Kernels in use reach
    the roofline at batch 1 and in long prefills, but not in between, where speculation lives: the
    estimate is a lower bound there (profiles/README.md).
    """
    from specsim.profile.from_roofline import RooflineOptions, RooflineProfile
    from specsim.show.render.profile_tables import roofline_table

    options = RooflineOptions(
        model=model,
        gpu=gpu,
        drafts=_drafts(draft),
        tensor_parallel_size=tp,
        compute_efficiency=compute_efficiency,
        memory_efficiency=memory_efficiency,
        reserved_gib=reserved_gib,
    )
    _make(lambda: RooflineProfile.of(options), roofline_table, context, out)
    _warn_of_heads(options.drafts, options.model)
