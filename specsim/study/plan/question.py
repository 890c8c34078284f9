"""Question: what a plan is asked, and the meaning of its words.

Traffic is a kind, a data set, a trace or an experiment; acceptance is the preset nearest to it and
to the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from pathlib import Path
from typing import Any

from specsim.acceptance import ACCEPTANCE
from specsim.core.errors import ConfigError
from specsim.core.figures import figures
from specsim.core.reading import number_in
from specsim.core.resources import following, locate
from specsim.core.settings import load_mapping, nearest, validated
from specsim.hardware import load_model
from specsim.results.metrics import Slo
from specsim.study.capacity import Prices, parse_slo
from specsim.study.capacity.choices import check_ranges, gpu_names, spare_of
from specsim.study.plan.command import ServerCommand, read_command
from specsim.study.plan.day import Day, read_day
from specsim.study.plan.names import NAMES, Wanted, context_of, model_of, weights_of
from specsim.workload import WorkloadConfig
from specsim.workload.lengths.distributions import DATASETS
from specsim.workload.readers import read_trace
from specsim.workload.trace import Trace, mean_rate, spread

KINDS: dict[str, str] = NAMES["kinds"]
_PRESETS: dict[str, str] = NAMES["presets"]
_SAMPLE = 20_000
USUAL = 0.99  # default share of the requests that must keep the limits


@dataclass(frozen=True)
class Traffic:
    """Requests of some kind, at any rate."""

    name: str
    workload: dict[str, Any]  # as in an experiment, without ``num_requests``; the rate is replaced
    dataset: str  # the most similar one in `_PRESETS`, or the nearest by lengths
    note: str  # the assumption made
    longest: int  # tokens (prompt and answer) of the longest of some requests
    acceptance: dict[str, Any] | None = None  # if an experiment gives it
    turns: float = 1.0  # mean requests per session
    mean_lens: tuple[float, float] = (0.0, 0.0)  # tokens of a prompt, of an answer
    num_rows: int | None = None  # rows of a replayed trace, each used once
    method: str | None = None
    """Method that `acceptance` is for, if the experiment says it; None: any."""

    def at(self, rate: float, num_requests: int) -> dict[str, Any]:
        """Return the workload at a rate, requests/s."""
        arrivals = {**self.workload["arrivals"], "rate": rate / self.turns}
        arrivals.pop("time_scale", None)
        return {**self.workload, "arrivals": arrivals, "num_requests": num_requests}

    def share_beyond(self, limit: int) -> float:
        """Return the share of the requests with more tokens, prompt and answer."""
        trace = _drawn(self.workload)
        return float((trace.prompt_lens + trace.output_lens > limit).mean())

    def acceptance_for(self, method: str, model: str) -> tuple[dict[str, Any], str]:
        """Return an acceptance model for drafts of a method, and text on how near it is."""
        if self.acceptance is not None and self.method in (None, method):
            return self.acceptance, "as given"
        lengths = self.workload.get("lengths") or {}
        is_own = lengths.get("kind") == "dataset" and lengths["name"] in _PRESETS
        name, said = Wanted.of(method, model, _PRESETS[self.dataset], is_own).nearest()
        return {"kind": "preset", "name": name}, said


@dataclass(frozen=True)
class Question:
    """What a plan is asked."""

    command: ServerCommand
    traffic: Traffic
    slo: Slo
    rate: float  # requests per second of the whole service
    gpus: tuple[str, ...]
    prices: Prices
    attainment: float = USUAL
    seed: int = 0
    limit_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the requests that must keep a limit, by limit, in place of `attainment`."""
    spare_servers: int = 0  # in addition to those that the rate needs
    day: Day | None = None  # with `rate` as its highest load
    pools: bool = False  # whether to try separate GPUs for prefill and decode
    api_price: tuple[float, float] | None = None  # per million prompt and output tokens

    @property
    def model(self) -> str:
        """Name of the model's shape in ``profiles/``, or path of its config.json."""
        return model_of(self.command.model)

    @property
    def weights(self) -> str | None:
        """How the weights are stored, if not as in that shape."""
        kind = weights_of(self.command.model, self.command.weights)
        is_published = kind == "bfloat16" and load_model(self.model).quantization is None
        return None if is_published else kind

    @property
    def ranks(self) -> int:
        """Number of data-parallel ranks of a server that share experts; 1 without."""
        if self.command.ranks == 1 or self.command.program != "vllm":
            return 1
        return self.command.ranks if load_model(self.model).num_experts else 1

    @property
    def longest_served(self) -> int:
        """Tokens (prompt and answer) of the longest request that the server accepts."""
        own = context_of(self.command.model) | self.command.engine
        limit: int = own.get("max_model_len", -1)  # auto is -1
        return limit if limit > 0 else load_model(self.model).max_position_embeddings

    @property
    def notes(self) -> list[str]:
        """Flags that have no effect here, or another than on a server."""
        ranks = self.ranks
        said = {
            "--data-parallel-size: left out, for how many replicas is the answer; its ranks share "
            "experts under vLLM only, where the model has any": self.command.ranks > ranks,
            "data-parallel ranks: of 15 measured loads of such servers TPOT was 24 % off in the "
            "median, TTFT 17 % (experiments/silicon)": ranks > 1,
            "--decode-context-parallel-size: what its GPUs send each other is composed of NCCL's "
            "times; no server that has it was measured": self.command.shares > 1,
            "--pools: data-parallel ranks are not simulated with prefill and decode apart": (
                self.pools and ranks > 1
            ),
            "--daily: data-parallel ranks are not simulated autoscaled; no day.yaml": (
                ranks > 1 and self.day is not None
            ),
            "--daily: pools are scaled each by itself; no day.yaml where they are taken": (
                self.pools and ranks == 1 and self.day is not None
            ),
        }
        found = [text for text, holds in said.items() if holds]
        return [*found, *self._limit_of_drafter(), *self.command.notes]

    def _limit_of_drafter(self) -> list[str]:
        """Return a note if vLLM accepts only shorter requests with the command's draft model.

        References:
            vLLM 0.33.0 ``config/vllm.py _limit_max_model_len_to_draft``.
        """
        drafts = self.command.speculation or {}
        if drafts.get("method") != "draft_model" or self.command.program != "vllm":
            return []
        try:
            drafter = load_model(model_of(str(drafts.get("model"))))
        except ConfigError:  # the draft model is unknown
            return []
        if self.longest_served <= drafter.max_position_embeddings:
            return []
        return [
            f"vLLM 0.33 takes no request of over {drafter.max_position_embeddings:,} tokens beside "
            f"{drafts['model']}, which has no more positions; here longer ones are served"
        ]

    @property
    def shares_as_options(self) -> str:
        """Options of ``specsim capacity`` for the shares of requests that must keep limits."""
        own = {n: f"p{100 * share:.10g}<" for n, share in self.limit_shares.items()}
        limits = self.slo.model_dump(exclude_none=True).items()
        each = ",".join(f"{n.removesuffix('_ms')}:{own.get(n, '')}{ms:.10g}" for n, ms in limits)
        said = f' --slo "{each}"' if own else ""
        return said + (f" --attainment {self.attainment:.10g}" if self.attainment != USUAL else "")

    def spreads_experts(self, size: int) -> bool:
        """Whether the GPUs divide the experts among them, instead of dividing each expert."""
        is_asked = self.command.engine.get("enable_expert_parallel", False)
        return size * self.ranks > 1 and is_asked and load_model(self.model).num_experts > 0


def question_of(
    *,
    vllm: str | None = None,
    sglang: str | None = None,
    traffic: str = "chat",
    qps: float | str | None = None,
    daily: str | None = None,
    slo: str | Slo = "ttft:500,tpot:50",
    gpus: str | Sequence[str] = "h100",
    attainment: float = 0.99,
    acceptance: str | None = None,
    prices: Path | str | None = None,
    redundancy: str = "n",
    pools: bool = False,
    api_price: str | None = None,
    seed: int = 0,
) -> Question:
    """Return the question of a plan; a ConfigError if a part is wrong, or is not simulated.

    Args:
        vllm, sglang: The command line of the server, one of the two.
        traffic: A kind such as ``chat``, a data set, a trace, or an experiment.
        qps: Requests per second of the whole service; by default 10.
        daily: In place of it the rates of a day, such as ``0:20,8:100,18:60``, or a table of them.
        acceptance: In short form, or a file with one, in place of the nearest preset.
        redundancy: ``n+1`` for one server more than the rate needs.
        pools: Whether to try separate GPUs for prefill and decode.
        api_price: Prices of an API to compare with, per million prompt and output tokens:
            ``0.6,1.2``.
    """
    if pools and sglang is not None:
        raise ConfigError("--pools: is of vLLM's transfers; leave it out with --sglang")
    if (vllm is None) == (sglang is None):
        raise ConfigError("give either --vllm 'vllm serve MODEL ...' or --sglang '...'")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"--seed {seed}: must be at least 0 and below 2^63")
    day = None if daily is None else read_day(daily)
    rate = _rate_of(qps, day)
    check_ranges(attainment, 0.02, rate)
    limits = parse_slo(slo)
    command = read_command(vllm or sglang or "", "sglang" if vllm is None else "vllm")
    if pools and "kv_offload" in command.engine:
        raise ConfigError(
            "--pools: KV blocks in host memory are not planned for with prefill and decode apart; "
            "leave out either"
        )
    return Question(
        command=command,
        traffic=find_traffic(traffic, acceptance),
        slo=limits.slo,
        limit_shares=limits.shares,
        rate=rate,
        gpus=gpu_names(gpus),
        prices=Prices.load(prices),
        attainment=attainment,
        seed=seed,
        spare_servers=spare_of(redundancy),
        day=day,
        pools=pools,
        api_price=None if api_price is None else _api_price_of(api_price),
    )


def _rate_of(qps: float | str | None, day: Day | None) -> float:
    """Return the rate to serve, requests per second; for a day its highest."""
    if day is not None:
        if qps is not None:
            raise ConfigError("give either --qps or --daily, whose highest load is served")
        return day.peak
    rate = 10.0 if qps is None else number_in(str(qps))
    if rate is None:
        raise ConfigError(f"--qps {qps:.80}: should be a number, such as 1000 or 1,000")
    return rate


def _api_price_of(text: str) -> tuple[float, float]:
    try:
        prompt, output = (float(part) for part in text.split(","))
    except ValueError:
        prompt = output = inf
    if not (0 <= prompt < inf and 0 < output < inf):
        raise ConfigError(
            f"--api-price {text:.80}: should be the prices of a million prompt and output tokens, "
            "such as 0.6,1.2"
        )
    return prompt, output


def find_traffic(text: str, acceptance: str | None = None) -> Traffic:
    """Return the traffic of ``agents``, one of `KINDS`, a data set, a trace, or an experiment.

    `acceptance`, as in `plan`, replaces the nearest preset. Raises a SpecsimError if there is no
    such traffic, or its rate cannot be varied.
    """
    given = None if acceptance is None else _given_acceptance(acceptance)
    dataset = KINDS.get(text.lower(), text.lower())
    if dataset in DATASETS:
        workload = {
            "arrivals": {"kind": "poisson"}, "lengths": {"kind": "dataset", "name": dataset},
        }  # fmt: skip
        return _traffic(text, workload, f"lengths of {dataset}, Poisson arrivals", given, dataset)
    if text == "agents":
        workload = {"arrivals": {"kind": "poisson"}, "lengths": NAMES["agents"]}
        note = "sessions of coding agents as of SWE-agent, tools of 1.5 s, Poisson arrivals"
        return _traffic(text, workload, note, given, "instructcoder")
    path = locate(Path(text))
    if path.suffix in (".yaml", ".yml"):
        return _of_experiment(path, given)
    if not text or not path.exists():
        hint = nearest(text, ["agents", *KINDS, *DATASETS])
        raise ConfigError(f"--traffic '{text}': is no kind of traffic and no file; {hint}")
    arrivals: dict[str, Any] = {"kind": "trace", "path": str(path.resolve())}
    trace = read_trace(path)
    own = None if trace.arrived_at is None else mean_rate(trace.arrived_at)
    change = f"stretched or squeezed from {figures(own or 0.0, 3)} requests/s to the rate"
    of_all = f"the trace's {len(trace):,} request{'s' * (len(trace) != 1)}"
    note = f"lengths and gaps of {of_all}, {change}"
    if own is None:
        why = "" if trace.arrived_at is None else ", for there all arrive at once"
        arrivals, note = ({"kind": "poisson"}, f"lengths of {of_all}, Poisson arrivals{why}")
    _check_adapters(path.name, trace)
    kind = "trace"
    if arrivals["kind"] == "poisson" and len(trace) < _SAMPLE:
        kind = "empirical"  # draws rows again, for their lengths alone
        columns = {"sessions": trace.sessions, "shared prefixes": trace.prefix_ids}
        lost = [name for name, column in columns.items() if column is not None]
        note += f", without its {' and '.join(lost)}" if lost else ""
    if trace.resolution is not None and arrivals["kind"] == "trace":
        arrivals["resolution"] = trace.resolution
    said = spread(trace.note) if "resolution" in arrivals else trace.note
    note += f" ({said})" if said else ""
    workload = {"arrivals": arrivals, "lengths": {"kind": kind, "path": str(path.resolve())}}
    if arrivals["kind"] == "trace":
        del workload["lengths"]
    return _traffic(path.name, workload, note, given)


def _given_acceptance(text: str) -> dict[str, Any]:
    """Return an acceptance model from its short form or a file."""
    source = f"--acceptance {text}"
    if number_in(text) is not None:
        raise ConfigError(
            f"{source}: give bernoulli:alpha={text} if so many drafts are accepted of those before "
            "which all were; vLLM's draft acceptance rate is of all drafts, and lower"
        )
    value: Any = text
    if text.endswith((".yaml", ".yml")):
        value = load_mapping(Path(text), ConfigError).get("acceptance")
        if value is None:
            raise ConfigError(
                f"{source}: has no field acceptance; give a file that `specsim acceptance fit "
                "--preset` wrote, or an experiment"
            )
    return ACCEPTANCE.given(source, value).model_dump(mode="json", exclude_none=True)


def _traffic(
    name: str,
    workload: dict[str, Any],
    note: str,
    acceptance: dict[str, Any] | None,
    dataset: str = "",
) -> Traffic:
    trace = _drawn(workload)
    _check_adapters(name, trace)
    longest = int((trace.prompt_lens + trace.output_lens).max())
    nearest_one = _nearest_dataset(dataset, trace)
    turns = len(trace) / trace.num_sessions
    means = (float(trace.prompt_lens.mean()), float(trace.output_lens.mean()))
    rows = len(trace) if workload["arrivals"]["kind"] == "trace" and len(trace) < _SAMPLE else None
    return Traffic(name, workload, nearest_one, note, longest, acceptance, turns, means, rows)


def _check_adapters(name: str, trace: Trace) -> None:
    if trace.adapters is not None and trace.adapters.any():
        raise ConfigError(
            f"--traffic {name}: has requests for LoRA adapters, and no profile of plan says what "
            "these cost; ask specsim capacity with engine.lora_config and a profile that does, or "
            "leave the adapters out"
        )


def _of_experiment(path: Path, given: dict[str, Any] | None) -> Traffic:
    data = following(load_mapping(path, ConfigError), path.parent)
    if not isinstance(data.get("workload"), dict):
        raise ConfigError(f"--traffic {path}: has no workload; give an experiment or a trace")
    workload = {k: v for k, v in data["workload"].items() if k not in ("num_requests", "duration")}
    with validated(f"--traffic {path}", ConfigError):
        parsed = WorkloadConfig.model_validate({**workload, "num_requests": 1})
    if "rate" not in type(parsed.arrivals).model_fields:
        raise ConfigError(
            f"--traffic {path}: workload.arrivals.kind = '{parsed.arrivals.kind}' has no rate to "
            "be varied; use poisson, gamma, constant or trace"
        )
    dumped = parsed.model_dump(mode="json", exclude_none=True, exclude={"num_requests"})
    own, method = data.get("acceptance") if given is None else given, None
    if isinstance(own, str):
        with validated(f"--traffic {path}: acceptance", ConfigError):
            own = ACCEPTANCE.parse(own).model_dump(mode="json", exclude_none=True)
    if given is None and own is not None:
        method = _method_of(data)
    notes = [f"its acceptance for drafts of {method} alone"] if method else []
    note = "; ".join(["as in the experiment", *notes, *parsed.notes])
    return replace(_traffic(path.name, dumped, note, own), method=method)


def _method_of(data: dict[str, Any]) -> str | None:
    """Return the drafting method of an experiment, as written; None if it has none."""
    engine = data.get("engine")
    proposer = engine.get("speculative_config") if isinstance(engine, dict) else None
    if isinstance(proposer, str):
        return proposer.partition(":")[0]
    method = proposer.get("method") if isinstance(proposer, dict) else None
    return method if isinstance(method, str) else None


def _drawn(workload: dict[str, Any]) -> Trace:
    fields = {**workload, "num_requests": _SAMPLE}
    if workload["arrivals"]["kind"] != "trace":
        fields["arrivals"] = {**workload["arrivals"], "rate": 1.0}
    with validated("--traffic", ConfigError):
        return WorkloadConfig.model_validate(fields).build(0)


def _nearest_dataset(name: str, trace: Trace) -> str:
    """Return the data set with a preset that the traffic has, or that has the nearest lengths."""
    if name in _PRESETS:
        return name
    means = (float(trace.prompt_lens.mean()), float(trace.output_lens.mean()))

    def distance(dataset: str) -> float:
        stats = DATASETS[dataset]
        pairs = zip(means, (stats.prompt_mean, stats.output_mean), strict=True)
        return sum(log(own / other) ** 2 for own, other in pairs)

    return min(_PRESETS, key=distance)
