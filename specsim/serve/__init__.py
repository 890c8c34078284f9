"""Serve: an experiment as a server with OpenAI's API, without a GPU, on the wall clock."""

import asyncio
import contextlib
import gc
import json
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from specsim.core.errors import ConfigError
from specsim.run.experiment import Experiment
from specsim.serve.app import Service
from specsim.serve.live import Live
from specsim.serve.protocol import error_body
from specsim.serve.texts import Texts
from specsim.serve.watchers import Log


@dataclass(frozen=True)
class ServeOptions:
    """How an experiment is served."""

    host: str = "127.0.0.1"
    port: int = 8000
    speed: float = 1.0
    is_each: bool = False
    """Whether each replica has a port of its own, without a router."""
    model: str | None = None  # name of the served model; by default the profile's
    tokenizer: Path | None = None
    api_key: str | None = None
    log: Path | None = None
    max_requests: int = 4096  # unfinished answers at a time
    max_connections: int = 2048
    max_body: int = 16 << 20  # bytes
    request_timeout: float = 30.0
    """Time limit of a request, seconds: for its head after the previous answer, and for its
    body."""
    fault_rate: float = 0.0
    """Share of the requests for an answer that get a 500 or 503, drawn by the experiment's seed."""
    grace: float = 30.0  # time for unfinished requests after the signal to end, seconds


_OTHER_FILES = 64  # open files besides connections
_FULL = json.dumps(error_body(503, "too many connections")).encode()
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_FULL), _FULL)
)


def _most_connections(wanted: int) -> int:
    """Return the possible number of connections, after raising the limit of open files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return min(wanted, max(1, soft - _OTHER_FILES))
    return wanted


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_FULL)
        transport.close()


def services(experiment: Experiment, options: ServeOptions) -> list[Service]:
    """Return the service of each port: one in all, or one per replica."""
    texts = Texts(experiment.seed, options.tokenizer)
    experiments = [experiment]
    if options.is_each:
        experiments = [_alone(experiment, number) for number in range(experiment.replicas)]
    made = []
    for number, each in enumerate(experiments):
        live = Live(each, speed=options.speed, size=options.max_requests)
        model = options.model or live.deployment.profile.model
        if options.log is not None:
            folder = options.log / f"port-{number}" if options.is_each else options.log
            live.watchers.append(Log(live, folder))
        made.append(Service(live, texts, model, options.api_key, options.fault_rate))
    return made


def _alone(experiment: Experiment, number: int) -> Experiment:
    """Return one replica of an experiment as an experiment of its own, with its incidents."""
    mine = [
        incident.model_copy(update={"replica": 0})
        for incident in experiment.incidents or ()
        if incident.replica == number
    ]
    return experiment.replace(replicas=1, incidents=mine or None, seed=experiment.seed + number)


def _log() -> logging.Logger:
    """Return aiohttp's logger without clients' mistakes, which they are told of in the answer."""
    log = logging.getLogger("specsim.serve")
    of_clients = (ConnectionError, HttpProcessingError)
    log.addFilter(lambda record: not isinstance((record.exc_info or [0, 0])[1], of_clients))
    return log


class LiveServer:
    """Services at their ports, in one asyncio loop."""

    def __init__(self, made: list[Service], options: ServeOptions) -> None:
        self._services, self._options = made, options
        self._runners: list[web.AppRunner] = []
        self._listeners: list[asyncio.Server] = []
        self._most = options.max_connections

    async def start(self) -> list[int]:
        """Listen, and return the ports; a ConfigError if one is not available."""
        options, loop = self._options, asyncio.get_running_loop()
        self._most = _most_connections(options.max_connections)
        ports = []
        for number, service in enumerate(self._services):
            runner = web.AppRunner(
                service.app(options.max_body, options.request_timeout),
                handler_cancellation=True,
                access_log=None,
                logger=_log(),
                keepalive_timeout=options.request_timeout,
                shutdown_timeout=2.0,
                max_line_size=8190,
                max_field_size=8190,
                auto_decompress=False,  # a small body may inflate to any size
            )
            await runner.setup()
            self._runners.append(runner)
            port = options.port + number if options.port else 0
            try:
                listener = await loop.create_server(
                    self._limited(runner), options.host, port, backlog=1024
                )
            except (OSError, OverflowError) as error:
                raise ConfigError(
                    f"--port {port}: cannot be had on {options.host} ({error}); "
                    "choose another, or 0 for any that is free"
                ) from error
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: cuts off clients that read nothing
                patience = max(1, int(options.request_timeout * 1e3))
                for each in listener.sockets:
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
            self._listeners.append(listener)
            ports.append(listener.sockets[0].getsockname()[1])
            service.live.start()
        return ports

    def _limited(self, runner: web.AppRunner) -> Callable[[], asyncio.BaseProtocol]:
        server = runner.server
        assert server is not None

        def protocol() -> asyncio.BaseProtocol:
            if len(server.connections) >= self._most:
                return _Refused()
            made: asyncio.BaseProtocol = server()
            return made

        return protocol

    @property
    def num_connections(self) -> int:
        servers = [runner.server for runner in self._runners]
        return sum(len(server.connections) for server in servers if server is not None)

    async def stop(self) -> int:
        """Refuse new requests, wait for unfinished ones, cut off the rest; return their number."""
        for service in self._services:
            service.is_closing = True
        for listener in self._listeners:
            listener.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.grace
        while loop.time() < until and any(each.live.num_unfinished for each in self._services):
            await asyncio.sleep(0.02)
        cut = sum(each.live.num_unfinished for each in self._services)
        for service in self._services:
            service.live.fail_all("the server is shutting down")
        for runner in self._runners:
            await runner.shutdown()
            await runner.cleanup()
        for service in self._services:
            service.live.stop()
            for watcher in service.live.watchers:
                watcher.close()
        return cut


def serve(experiment: Experiment, options: ServeOptions, say: Callable[[str], None] = print) -> int:
    """Serve an experiment until a signal ends it; return the number of requests cut off.

    An error of the engine also ends it, and is raised: a PluginError if it came from a user's
    class.
    """
    return asyncio.run(_serve(services(experiment, options), options, say))


async def _serve(made: list[Service], options: ServeOptions, say: Callable[[str], None]) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, ended.set)
    server = LiveServer(made, options)
    for service in made:
        service.live.on_fault = ended.set
    ports = await server.start()
    gc.collect()
    gc.freeze()  # objects from before serving need no more garbage collection
    for port in ports:
        say(f"serve: http://{options.host}:{port} (model {made[0].model}; Ctrl-C ends it)")
    await ended.wait()
    cut = await server.stop()
    for service in made:
        if service.live.fault is not None:
            raise service.live.fault
    return cut
