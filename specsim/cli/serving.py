"""The command that answers requests: ``serve``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.options import Config, Overrides, Seed, all_overrides, need, warn


class Ports(StrEnum):
    """Where the replicas of an experiment are found."""

    ONE = "one"
    EACH = "each"


def serve(
    config: Config,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    speed: Annotated[
        float, typer.Option(min=1e-3, max=1e4, help="How many times as fast time runs.")
    ] = 1.0,
    overrides: Overrides = None,
    seed: Seed = None,
    ports: Annotated[
        Ports, typer.Option(help="One port and the router, or a port for each replica.")
    ] = Ports.ONE,
    log: Annotated[
        Path | None, typer.Option(help="Folder for a measured run; new.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="The model's tokenizer.json; else a token is 4 bytes."),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="By default that of the profile.", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="SPECSIM_API_KEY", help="What clients have to send.", show_default=False
        ),
    ] = None,
    max_requests: Annotated[int, typer.Option(min=1, help="Unfinished at once.")] = 4096,
    max_connections: Annotated[int, typer.Option(min=1, help="Open at once.")] = 2048,
    max_body_mib: Annotated[int, typer.Option(min=1, help="Longest request body.")] = 16,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a request's head, and for its body.")
    ] = 30.0,
    fault_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Share of requests that get a 500 or 503.")
    ] = 0.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds for unfinished requests at the end.")
    ] = 30.0,
) -> None:
    """Answer OpenAI's API as the experiment's deployment would, without a GPU.

    Scheduler, KV cache, policy, acceptance, router and incidents of the experiment run on the wall
    clock; answers are filler of the right length. /metrics has vLLM's names. Answers that may end
    by themselves have the lengths of the workload. Ctrl-C or SIGTERM ends it.
    """
    need("aiohttp", "serve")
    from specsim.run.experiment import Experiment
    from specsim.serve import ServeOptions
    from specsim.serve import serve as run

    options = ServeOptions(
        host=host,
        port=port,
        speed=speed,
        is_each=ports is Ports.EACH,
        model=served_model_name,
        tokenizer=tokenizer,
        api_key=api_key,
        log=log,
        max_requests=max_requests,
        max_connections=max_connections,
        max_body=max_body_mib << 20,
        request_timeout=request_timeout,
        fault_rate=fault_rate,
        grace=grace,
    )
    experiment = Experiment.load(config, all_overrides(overrides, seed))
    if cut := run(experiment, options, typer.echo):
        warn([f"{cut} requests were cut off after {grace:g} s"])
    typer.echo("serve: ended")
