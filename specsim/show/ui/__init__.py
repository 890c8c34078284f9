"""Ui: an experiment that is simulated again while load, lengths and policy are moved.

The playground applies the moved settings and compares the run with policy off; the server shows it.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from errno import EADDRINUSE
from functools import cached_property
from hmac import compare_digest
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from secrets import token_urlsafe
from select import select
from socket import MSG_PEEK
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.reading import UnreadableError, parse_json
from specsim.core.resources import resource_names
from specsim.core.settings import Settings, nearest, validated
from specsim.policies.static import Off
from specsim.profile import Profile, load_profile
from specsim.results.metrics import (
    Slo,
    distributions,
    keeps_limits,
    latencies,
    latency_statistics,
    limited,
)
from specsim.run.deployment import gpus_of
from specsim.run.experiment import Experiment
from specsim.run.summary import Summary, summarized
from specsim.run.validity import BASES, step_times
from specsim.show import filled, read_web
from specsim.show.report.axes import WrittenConfig
from specsim.show.study import gpu_first, paid_share
from specsim.study.capacity import Prices
from specsim.study.capacity.limits import LatencyLimits
from specsim.study.compare import on_one_engine
from specsim.study.paired import speed_up
from specsim.study.sweep import flat_metrics

NUM_REQUESTS = 1000
ATTAINMENT = 0.99  # share of the requests that must keep all limits for the SLO to be met
_MOST_KEPT = 64  # runs: a moved SLO needs no new one, a moved policy only its own
_ALPHA = 0.62  # if the experiment has no acceptance: that of example.yaml


class Moved(Settings):
    """The settings that a reader has moved; others stay as in the experiment."""

    rate: float | None = Field(default=None, gt=0, le=10_000)
    """Requests per second; arrivals without a rate become a Poisson process."""
    prompt: int | None = Field(default=None, ge=1, le=32_768)
    """Mean tokens; lengths become lognormal with the same relative spread."""
    output: int | None = Field(default=None, ge=1, le=8_192)
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Alpha of a Bernoulli acceptance model, which replaces any other."""
    gpu: str | None = None
    """A profile of the same model."""
    policy: Literal["off", "static", "goodput"] | None = None
    k: int | None = Field(default=None, ge=1, le=32)
    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)
    num_requests: int | None = Field(default=None, ge=20, le=NUM_REQUESTS)
    """Simulate only this many requests as a sketch, until all are simulated."""


@dataclass
class Playground:
    """An experiment of at most `NUM_REQUESTS` requests, and its last runs."""

    experiment: Experiment
    prices: Prices = field(default_factory=lambda: Prices.load(None))
    limit_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the requests that must keep a limit, by limit, in place of `ATTAINMENT` jointly."""
    _runs: dict[str, Summary] = field(default_factory=dict)
    _profiles: dict[str, Profile] = field(default_factory=dict)
    _simulated: int = 0
    _is_cut: bool = field(init=False)

    def __post_init__(self) -> None:
        own = self.experiment.workload
        count = own.num_requests or len(own.build(self.experiment.seed))
        self._is_cut = count > NUM_REQUESTS
        short = own.model_copy(update={"num_requests": min(count, NUM_REQUESTS)})
        self.experiment = self.experiment.replace(workload=short)

    @cached_property
    def _lens(self) -> dict[str, NDArray[np.int64]]:
        trace = self.experiment.workload.build(self.experiment.seed)
        return {"prompt": trace.prompt_lens, "output": trace.output_lens}

    @cached_property
    def _names(self) -> list[str]:
        """Profiles of the same model on as many GPUs, the experiment's own first.

        Only that one if each pool has its own, which no other profile could replace.
        """
        own, pools = self._profile(self.experiment.profile), self.experiment.pools
        if pools and pools.prefill.profile and pools.decode.profile:
            return [self.experiment.profile]
        others = resource_names("profiles", f"*/{own.model}{own.suffix}.yaml")
        return list(dict.fromkeys([self.experiment.profile, *others]))

    def start(self) -> dict[str, Any]:
        """Return title and initial values of the controls; None for what has no number."""
        own, proposer = self.experiment, self.experiment.engine.speculative_config
        limit = proposer.num_speculative_tokens if proposer else None
        return {
            "title": WrittenConfig(own.to_dict()).title([own.profile]),
            "rate": getattr(own.workload.arrivals, "rate", None),
            "arriving": _arriving(own),
            **{name: round(float(lens.mean())) for name, lens in self._lens.items()},
            "alpha": getattr(own.acceptance, "alpha", None),
            "gpu": own.profile,
            "policy": own.effective_policy.kind,
            "k": getattr(own.effective_policy, "k", None) or limit,
            **{name: getattr(own.slo, name, None) for name in ("ttft_ms", "tpot_ms")},
            "profiles": self._names,
            "num_requests": own.workload.num_requests,
        }

    def moved(self, to: Moved) -> Experiment:
        """Return the experiment with the moved settings; a ConfigError if it is not valid."""
        data = self.experiment.to_dict()
        workload = data["workload"]
        if to.num_requests is not None:
            workload["num_requests"] = min(to.num_requests, workload["num_requests"])
        if to.rate is not None:
            own = workload["arrivals"]
            kept = own if "rate" in own else {"kind": "poisson"}
            workload["arrivals"] = {**kept, "rate": to.rate}
        if to.prompt or to.output or (to.rate is not None and "lengths" not in workload):
            workload["lengths"] = {"kind": "lognormal"} | {
                name: {
                    "mean": getattr(to, name) or float(lens.mean()),
                    "sigma": round(float(np.std(np.log(np.maximum(lens, 1)))), 4),
                }
                for name, lens in self._lens.items()
            }
        if to.gpu is not None:
            if to.gpu not in self._names:
                raise ConfigError(f"gpu = '{to.gpu:.100}': {nearest(to.gpu, self._names)}")
            data["profile"] = to.gpu
        limits = to.model_dump(include={"ttft_ms", "tpot_ms"}, exclude_none=True)
        if limits:
            data["slo"] = {**data.get("slo", {}), **limits}
        if to.alpha is not None:
            data["acceptance"] = {"kind": "bernoulli", "alpha": to.alpha}
        if to.policy is not None or to.k is not None:
            self._move_policy(data, to)
        return Experiment.parse(data, "as moved")

    def _move_policy(self, data: dict[str, Any], to: Moved) -> None:
        """Change policy and k in place, with what speculation needs."""
        if to.policy is not None:
            data["policy"] = {"kind": to.policy}
        elif "policy" in data:
            data["policy"].pop("k", None)
        if to.policy == "off":
            return
        known = self._profile(data["profile"]).drafts
        method = next(iter(known), "eagle3") if "eagle3" not in known else "eagle3"
        proposer = data["engine"].setdefault("speculative_config", {"method": method})
        proposer.pop("num_speculative_tokens_per_batch_size", None)
        proposer["num_speculative_tokens"] = to.k or proposer.get("num_speculative_tokens", 3)
        data.setdefault("acceptance", {"kind": "bernoulli", "alpha": _ALPHA})

    def answer(self, to: Moved, on_progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """Return the results as plain values; errors, also of `on_progress`, are raised."""
        moved = self.moved(to)
        policy = moved.effective_policy
        experiment, notes = on_one_engine(moved, {policy.kind: policy, "off": Off()})
        policies = [policy] if isinstance(policy, Off) else [policy, Off()]
        before = self._simulated
        runs = [self._run(experiment.replace(policy=each), on_progress) for each in policies]
        outcomes = [_outcome(run, moved) for run in runs]
        means = [[each["e2el"]["mean"]] for each in outcomes]
        metrics = flat_metrics(runs[0].data)
        fleet = WrittenConfig(moved.to_dict()).fleet(metrics).engines
        gpus = gpus_of((self._profile(name), number) for name, number in fleet.items())
        cost = self.prices.per_hour(gpus)
        slo = moved.slo.model_dump(exclude_none=True) if moved.slo else {}
        shares = {name: share for name, share in self.limit_shares.items() if name in slo}
        limits = LatencyLimits(slo, ATTAINMENT, shares)
        tokens_per_hour = 3600 * outcomes[0]["output_throughput"] / paid_share(metrics)
        return {
            "promise": limits.words,
            "is_met": moved.slo is not None and _is_kept(runs[0], moved.slo, limits),
            "slo": slo,
            "speed_up": speed_up(means[1], means[0]).mean if len(means) > 1 else None,
            "gpus": " + ".join(f"{n:.3g} × {gpu_first(gpu)}" for gpu, n in gpus.items()),
            "cost_per_hour": cost,
            "cost_per_million": None if cost is None else 1e6 * cost / tokens_per_hour,
            "currency": self.prices.currency,
            "step_times": max((step_times(self._profile(name)) for name in fleet), key=BASES.index),
            "num_requests": len(runs[0].run.requests),
            "simulated": self._simulated - before,
            "arriving": _arriving(moved),
            "warnings": [*self._notes(moved, runs[0]), *notes, *_warnings(runs)],
            "runs": outcomes,
        }

    def _notes(self, moved: Experiment, run: Summary) -> list[str]:
        """Return how the simulation differs from that of `specsim run`."""
        before, now = _kinds(self.experiment), _kinds(moved)
        found = [
            f"{name}: {kind} in place of {before[name]}, to be moved"
            for name, kind in now.items()
            if before[name] not in (kind, None)
        ]
        if self._is_cut and len(run.run.requests) == NUM_REQUESTS:
            found.append(f"the first {NUM_REQUESTS:,} requests alone; `specsim run` simulates all")
        return found

    def _profile(self, name: str) -> Profile:
        if name not in self._profiles:
            self._profiles[name] = load_profile(name)
        return self._profiles[name]

    def _run(self, experiment: Experiment, on_progress: Callable[[int], None] | None) -> Summary:
        key = experiment.replace(slo=None).hash
        if key not in self._runs:
            profile = self._profile(experiment.serving.profile)
            self._runs[key] = summarized(experiment, profile=profile, on_progress=on_progress)
            self._simulated += 1
            if len(self._runs) > _MOST_KEPT:
                del self._runs[next(iter(self._runs))]
        return self._runs[key]


def _kinds(experiment: Experiment) -> dict[str, str | None]:
    """Return the kinds of those parts that a move may replace by another kind."""
    workload, acceptance = experiment.workload, experiment.acceptance
    return {
        "workload.arrivals": workload.arrivals.kind,
        "workload.lengths": workload.lengths.kind if workload.lengths else "trace",
        "acceptance": acceptance.kind if acceptance else None,
    }


def _arriving(experiment: Experiment) -> str:
    lengths = experiment.workload.lengths
    return "sessions" if lengths is not None and lengths.in_sessions else "requests"


def _warnings(runs: list[Summary]) -> list[str]:
    """Return the warnings of the policy's run, and those only the run without drafts has."""
    own, *others = (run.warnings for run in runs)
    return [*own, *(f"off: {text}" for other in others for text in other if text not in own)]


def _is_kept(run: Summary, slo: Slo, limits: LatencyLimits) -> bool:
    """Return whether enough requests kept the limits, and the server kept up."""
    reached = limited(run.tables.requests, slo)
    missed = {name: values > limit for name, (values, limit) in reached.items()}
    is_kept = all(each.is_kept for each in limits.promises(missed).values())
    return is_kept and run.stability != "overloaded"


def _outcome(run: Summary, moved: Experiment) -> dict[str, Any]:
    requests = run.tables.requests
    arrived, ended = np.sort(requests["arrived_at"]), np.sort(requests["ended_at"])
    times = np.linspace(arrived[0], ended[-1], 160)  # of the requests in the system over time
    there = np.searchsorted(arrived, times, "right") - np.searchsorted(ended, times, "right")
    # While requests arrive and the server is full: what comes after has no steady rate.
    begin, end = (3 * arrived[0] + arrived[-1]) / 4, arrived[-1]
    answered = requests[(requests["ended_at"] > begin) & (requests["ended_at"] <= end)]
    if not len(answered):  # all at once
        begin, end, answered = arrived[0], ended[-1], requests
    seconds = float(end - begin)
    return {
        "label": run.run.experiment.effective_policy.kind,
        "stability": run.stability,
        "attainment": float(keeps_limits(run.tables, moved.slo).mean()) if moved.slo else None,
        **{name: latency_statistics(values) for name, values in latencies(requests).items()},
        "output_throughput": int(answered["output_len"].sum()) / seconds,
        "request_throughput": len(answered) / seconds,
        "quantiles": distributions(requests),
        "in_system": {"time_s": times.tolist(), "requests": there.tolist()},
    }


_HOST = "127.0.0.1"
_MOST_BYTES = 4096  # of a request from the page


class _RefusedError(Exception):
    """An HTTP status and its reason."""


class UiServer(ThreadingHTTPServer):
    """Serves one playground."""

    daemon_threads = True

    def __init__(self, playground: Playground, port: int) -> None:
        super().__init__((_HOST, port), _UiHandler)
        self.token, self.nonce = token_urlsafe(16), token_urlsafe(16)
        self.playground = playground
        self._numbers = count(1)
        self._newest: dict[str, int] = {}
        self._lock = Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless a page stopped waiting for its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def page(self) -> str:
        start = self.playground.start()
        data = json.dumps(start).replace("<", "\\u003c")
        values = {"nonce": self.nonce, "title": escape(start["title"]), "start": data}
        values |= {"base": read_web("base.css"), "dom": read_web("dom.js")}
        return filled(Path(__file__).with_name("page.html").read_text(encoding="utf-8"), values)

    def answer(
        self, moved: Moved, page: str = "", is_closed: Callable[[], bool] = lambda: False
    ) -> str:
        """Return the results as JSON, unless the page asks for a newer answer or is closed.

        Other pages wait for the run: if each ended the others' runs, none might ever be answered.
        """
        mine = self._newest[page] = next(self._numbers)

        def check(_: int = 0) -> None:
            if self._newest[page] != mine:
                raise _RefusedError(409, "something newer was asked for")
            if is_closed():
                raise _RefusedError(409, "its page has been closed")

        with self._lock:
            check()
            return json.dumps(self.playground.answer(moved, check))


class _UiHandler(BaseHTTPRequestHandler):
    server: UiServer
    timeout = 10  # seconds for an announced body to arrive

    def do_GET(self) -> None:
        if compare_digest(self.path.encode(), f"/{self.server.token}".encode()):
            self.send_response(HTTPStatus.MOVED_PERMANENTLY)  # typed without the last slash
            self.send_header("Location", f"{self.path}/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._reply({"": ("text/html", self.server.page)})

    def do_POST(self) -> None:
        own, page = self.server, self.path.partition("?")[2]
        self._reply(
            {
                "answer": (
                    "application/json",
                    lambda: own.answer(self._moved(), page, self._is_closed),
                ),
                "experiment": ("text/yaml", lambda: own.playground.moved(self._moved()).to_yaml()),
            }
        )

    def _reply(self, known: dict[str, tuple[str, Callable[[], str]]]) -> None:
        status, kind = 200, "application/json"
        try:
            kind, produce = known[self._path(set(known))]
            text = produce()
        except _RefusedError as refused:
            status, text = refused.args
        except (SpecsimError, UnreadableError) as error:
            status, text = 400, str(error)
        except Exception as error:
            self._send(500, "application/json", json.dumps({"error": f"specsim failed: {error!r}"}))
            raise
        if status != 200:
            kind, text = "application/json", json.dumps({"error": " ".join(text.split())})
        self._send(status, kind, text)

    def _is_closed(self) -> bool:
        """Return whether the page no longer waits for its answer."""
        try:
            is_told = bool(select([self.connection], [], [], 0)[0])
            return is_told and not self.connection.recv(1, MSG_PEEK)
        except OSError:
            return True

    def _path(self, known: set[str]) -> str:
        """Return the path after the token, if it is known."""
        names = [f"{name}:{self.server.server_port}" for name in (_HOST, "localhost")]
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in names or origin not in [
            None, *(f"http://{name}" for name in names)
        ]:  # fmt: skip
            raise _RefusedError(403, "this page is for the browser it was opened in")
        token, slash, rest = self.path.partition("?")[0].removeprefix("/").partition("/")
        is_ours = compare_digest(token.encode(), self.server.token.encode())
        if not slash or not is_ours or rest not in known:
            raise _RefusedError(404, "there is no such page; open the address as it was printed")
        return rest

    def _moved(self) -> Moved:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise ConfigError("the request does not say how long it is; send Content-Length")
        if len(length) > 9 or int(length) > _MOST_BYTES:
            raise _RefusedError(413, f"the request is too long; send at most {_MOST_BYTES} bytes")
        data = parse_json(self.rfile.read(int(length)).decode(errors="replace"))
        if not isinstance(data, dict):
            raise ConfigError("the request is no mapping of what was moved")
        with validated("as moved", ConfigError):
            return Moved.model_validate(data)

    def _send(self, status: int, kind: str, text: str) -> None:
        body, nonce = text.encode(), self.server.nonce
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal belongs to its user."""


def listen(playground: Playground, port: int) -> UiServer:
    """Return a listening server, on any free port for 0; a ConfigError if the port is taken."""
    try:
        return UiServer(playground, port)
    except OSError as error:
        why = "is in use" if error.errno == EADDRINUSE else f"cannot be used: {error.strerror}"
        raise ConfigError(f"--port {port}: {why}; give another, or 0 for any") from error
