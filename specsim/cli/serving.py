"""Commands that run until Ctrl-C, ``serve`` and ``ui``; and a plug-in that vLLM calls at start."""

import json
import sys
import webbrowser
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import typer
from typer import Argument, Option

from specsim.cli.options import (
    Config,
    Overrides,
    PriceTable,
    Seed,
    load_experiment,
    need,
    spinner,
    warn,
)


def serve(
    config: Config,
    port: int = Option(8000, min=0, max=65535, help="0 for any that is free."),
    host: str = Option("127.0.0.1", help="Address to listen at."),
    speed: float = Option(1.0, min=1e-3, max=1e4, help="How many times as fast time runs."),
    overrides: Overrides = None,
    seed: Seed = None,
    ports: Literal["one", "each"] = Option(
        "one", help="One port and the router, or a port for each replica."
    ),
    log: Path | None = Option(None, help="New folder, to record a measured run in."),
    tokenizer: Path | None = Option(
        None, help="The model's tokenizer.json; else a token is 4 bytes."
    ),
    served_model_name: str | None = Option(None, help="By default that of the profile."),
    api_key: str | None = Option(None, envvar="SPECSIM_API_KEY", help="What clients have to send."),
    max_requests: int = Option(
        4096, min=1, max=1 << 20, help="Most requests that are unfinished at once."
    ),
    max_connections: int = Option(2048, min=1, help="Most connections that are open at once."),
    max_body_mib: int = Option(16, min=1, help="Longest request body."),
    request_timeout: float = Option(
        30.0, min=0.1, help="Seconds for a request's head, and for its body."
    ),
    fault_rate: float = Option(0.0, min=0, max=1, help="Share of requests that get a 500 or 503."),
    grace: float = Option(30.0, min=0, help="Seconds for unfinished requests at the end."),
) -> None:
    """Answer OpenAI's API as the experiment's deployment would, without a GPU.

    Scheduler, KV cache, policy, acceptance, router and incidents of the experiment run on the wall
    clock; answers are filler of the right length. /metrics has vLLM's names. Answers that may end
    by themselves have the lengths of the workload. Ctrl-C or SIGTERM ends it.
    """
    asked = dict(locals())
    need("aiohttp", "serve", extra="serve")
    from specsim.serve import ServeOptions
    from specsim.serve import serve as run

    options = ServeOptions(
        **{name: value for name, value in asked.items() if hasattr(ServeOptions, name)},
        is_each=ports == "each",
        model=served_model_name,
        max_body=max_body_mib << 20,
    )
    experiment = load_experiment(config, overrides, seed)
    if cut := run(experiment, options, typer.echo):
        warn([f"{cut:,} requests were cut off after {grace:g} s"])
    typer.echo("serve: ended")


def ui(
    config: Path | None = Argument(
        None, help="The experiment, a YAML file; by default an example on one H100."
    ),
    overrides: Overrides = None,
    seed: Seed = None,
    slo: str | None = Option(
        None,
        metavar="METRIC:MS,...",
        help="Limits in ms: ttft:500,tpot:40; or each at a percentile: ttft:p90<800,tpot:p95<50.",
    ),
    prices: PriceTable = None,
    port: int = Option(8437, min=0, max=65535, help="0 for any that is free."),
    no_browser: bool = Option(False, "--no-browser", help="Print the address, and open nothing."),
) -> None:
    """Move load, lengths, acceptance, GPU, policy and SLO, and see what comes of it at once.

    A page on this machine, for this machine alone, with nothing from the network. Each move
    simulates 1,000 requests, with the policy and without speculation. Ctrl-C ends it.

    Examples: specsim ui; specsim ui experiment.yaml --port 0
    """
    from specsim.show import ui as page
    from specsim.study.capacity import Prices, parse_slo

    config = config or Path(page.__file__).with_name("example.yaml")
    experiment, shares = load_experiment(config, overrides, seed), dict[str, float]()
    if slo is not None:
        limits, shares = parse_slo(slo)
        experiment = experiment.replace("--slo", slo=limits)
    playground = page.Playground(experiment, Prices.load(prices), shares)
    with page.listen(playground, port) as server:
        with spinner("simulating for the first time"):
            server.answer(page.Moved())
        try:
            typer.echo(f"ui: {server.url} (Ctrl-C ends it)")
            if not no_browser:
                webbrowser.open(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ui: ended")


def check_vllm_start() -> None:
    """End a start of vLLM whose policy cannot decide there, or whose log already exists.

    vLLM calls this in every installation with specsim, in the process that reads the command line,
    before any model is loaded; a scheduler is made later (vLLM 0.32.0 ``plugins/__init__.py
    load_general_plugins``, ``engine/arg_utils.py EngineArgs.__post_init__``).
    """
    if not any("specsim.vllm." in word for word in sys.argv):
        return
    from multiprocessing import parent_process

    if parent_process() is not None:
        return
    from specsim.core.errors import ConfigError, SpecsimError
    from specsim.reality.vllm.control import NO_POLICY, check, told

    try:
        config = _additional_config(sys.argv)
        if (control := told(config)) is not None:
            check(control)
        elif config is not None and not any("additional-config." in word for word in sys.argv):
            raise ConfigError(NO_POLICY)
    except SpecsimError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None


def _additional_config(words: list[str]) -> Any:
    """Return the JSON of --additional-config in a command line; None without, or in other form."""
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == "--additional-config":
            try:
                return json.loads(value if equals else following)
            except ValueError:
                return None  # vLLM reports it
    return None
