"""Candidates: the GPUs, drafters and draft lengths with which a model could be served."""

from dataclasses import dataclass, field, replace
from typing import Any

from specsim.core.errors import CapacityError, ConfigError, ProfileError
from specsim.hardware import load_gpu, load_model
from specsim.hardware.specs import key_of, of_longest
from specsim.policies import POLICIES
from specsim.proposers import PROPOSERS
from specsim.run.deployment import how_to_cost
from specsim.run.experiment import POOLS, Experiment
from specsim.study.capacity import Contender, Goal, Hardware
from specsim.study.loads import Loads
from specsim.study.plan.flags import SGLANG_METHODS, unknown_fields
from specsim.study.plan.hardware import LOOKUPS, PROFILE_FILE, hardware_of
from specsim.study.plan.names import NAMES, context_of, own_drafter
from specsim.study.plan.question import Question

FIRST_K = 3
_MOST_K = 5  # tokens, if the command has no larger k

_ROOFLINES, _COMPOSED = 1, 2  # sizes that none is shipped of, from the smallest that fits
METHODS = {
    "vllm": ("eagle3", "eagle", "mtp", "draft_model", "ngram_gpu", "suffix"),
    "sglang": ("eagle3", "eagle", "mtp", "draft_model", "ngram", "suffix"),
}
_OF_VLLM = {
    "schedule": "num_speculative_tokens_per_batch_size",
    "adaptive_verification": "enable_adaptive_verification",
}
"""Policies that correspond to a field of ``speculative_config``."""
_WITHOUT_WEIGHTS = (*LOOKUPS, "ngram_gpu", "mtp")  # drafters without weights of their own
_LEAST_OUTSTANDING = {"kind": "least_outstanding"}
_UNKNOWN = "YOUR-"  # marks what the user must replace
SCHEDULE = f"{_UNKNOWN}SCHEDULE"  # if the server has no such policy
SHORT_REQUESTS = 2000  # of a run that selects options for long runs
_SHORT_AT_MOST = 8000  # of such a run on a server that holds very many requests at once
_ROOM = 2  # no request of a study is this many times longer than the longest of 20,000


def gpu_name(gpu: str) -> str:
    """Return ``H100`` for ``h100``."""
    return gpu.upper()


def place_words(gpu: str, pools: tuple[int, int] | None, ranks: int = 1) -> str:
    """Return ``H100``, ``H100 (1 prefill + 2 decode)``, or ``H100 (8 ranks)``."""
    name = gpu_name(gpu)
    if ranks > 1:
        return f"{name} ({ranks} ranks)"
    return name if pools is None else f"{name} ({pools[0]} prefill + {pools[1]} decode)"


@dataclass(frozen=True)
class Option:
    """A hardware with a drafter and a policy."""

    hardware: Hardware
    experiment: Experiment
    label: str
    acceptance: str | None = None  # source of the acceptance; None without speculation
    speculation: dict[str, Any] | None = None
    """vLLM's ``speculative_config``; None without speculation, or for a policy that vLLM lacks."""

    @property
    def name(self) -> str:
        return f"{self.hardware.label} {self.label}"

    @property
    def is_off(self) -> bool:
        return self.label == "off"

    @property
    def method(self) -> str | None:
        """Method of its drafter; None without speculation."""
        proposer = self.experiment.engine.speculative_config
        return None if proposer is None else proposer.method

    @property
    def drafter(self) -> str | None:
        """Name of its drafter, such as ``EAGLE-3``; None without speculation."""
        return self.method and NAMES["proposers"].get(self.method, self.method)

    @property
    def speculation_words(self) -> str:
        """Its speculation as text, such as ``EAGLE-3, fixed draft length 2``."""
        if self.drafter is None:
            return "no speculation"
        policy = self.experiment.effective_policy
        how = NAMES["policies"].get(policy.kind, f"draft length by {policy.kind}")
        if policy.kind == "static":
            how = f"fixed draft length {getattr(policy, 'k', None)}"
        return f"{self.drafter}, {how}"

    @property
    def pools(self) -> tuple[int, int] | None:
        """Servers of a unit for prefill and for decode; None without pools."""
        pools = self.hardware.pools
        return (pools[0][1], pools[1][1]) if pools else None

    @property
    def words(self) -> str:
        """Text such as ``H100, EAGLE-3, fixed draft length 2``."""
        where = place_words(self.hardware.profile.gpu, self.pools, self.hardware.ranks)
        return f"{where}, {self.speculation_words}"

    @property
    def sized_words(self) -> str:
        """The same, with the GPUs of a server if it has several."""
        size = self.hardware.gpus_per_replica
        return self.words + (f" ({size} GPUs)" if size > 1 else "")

    @property
    def missing(self) -> tuple[str, str] | None:
        """The placeholder for something unknown, and what that is; None if all is known."""
        if self.needs_a_policy:
            return SCHEDULE, "what `specsim tune experiment.yaml --emit vllm` prints"
        name = str((self.speculation or {}).get("model"))
        return (name, "the name of the drafter's weights") if name.startswith(_UNKNOWN) else None

    @property
    def needs(self) -> str | None:
        """What the server needs to start, but its image lacks.

        References:
            vLLM 0.33.0 ``config/speculative.py _validate_suffix_decoding``.
        """
        if self.method != "suffix":
            return None
        return "suffix lookup needs pip install arctic-inference==0.1.1, which vLLM's image has not"

    @property
    def needs_a_policy(self) -> bool:
        return not self.is_off and self.speculation is None

    def with_acceptance_moved(self, change: float) -> "Option | None":
        """Return the option with the chance of each draft token raised; None for records."""
        acceptance = self.experiment.acceptance
        moved = None if acceptance is None else acceptance.shifted(change)
        if moved is None:
            return None
        return replace(self, experiment=self.experiment.replace(acceptance=moved))

    def in_pools(self, prefill: int, decode: int) -> "Option":
        """Return the option with separate servers for prefill and decode."""
        own = self.hardware
        parts = ((own.profile, prefill), (own.profile, decode))
        hardware = Hardware(f"{own.label} {prefill}p+{decode}d", own.profile, parts)
        changes = {
            "pools": {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}},
            "routing": _LEAST_OUTSTANDING,
        }
        return replace(self, hardware=hardware, experiment=self.experiment.replace(**changes))

    def contender(self, goal: Goal) -> Contender:
        loads = Loads(self.experiment, goal.replications)
        return Contender(self.hardware, self.label, self.experiment.effective_policy, loads, goal)


def later_policies(question: Question) -> tuple[str, ...]:
    """Return the policies to try where `FIRST_K` has shown promise: all other k."""
    own = (question.command.speculation or {}).get("num_speculative_tokens")
    most = max(_MOST_K, own) if isinstance(own, int) else _MOST_K
    others = (k for k in range(1, most + 1) if k != FIRST_K)
    return (*(f"static:k={k}" for k in others), "goodput")


@dataclass
class Offered:
    """All options, and what cannot be one."""

    options: list[Option] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # what was left out, and why


def offered(question: Question, policies: tuple[str, ...]) -> Offered:
    """Return the options with some policies, and ``off`` if it is among them.

    Raises a ConfigError if there is no hardware at all.
    """
    wanted = (question.command.speculation or {}).get("method")
    found = Offered(left_out=_own_layers(question, wanted))
    for gpu in question.gpus:
        load_gpu(gpu)
        made = 0
        for hardware, profile in hardware_of(question, gpu, found.left_out):
            before = len(found.options)
            _add(question, hardware, profile, policies, found)
            made += profile == PROFILE_FILE and len(found.options) > before
            if made == (_COMPOSED if hardware.is_measured else _ROOFLINES):
                break
    if not found.options:
        raise ConfigError("; ".join(found.left_out) or "--gpus: name at least one GPU")
    if wanted is not None and all(option.is_off for option in found.options):
        raise ConfigError("; ".join(found.left_out) + _other_drafter(wanted, found.options[0]))
    if wanted is None:
        found.left_out += _unequal(found.options)
    return found


def check_prices(question: Question) -> None:
    """Raise a ConfigError if a GPU has no price."""
    for gpu in question.gpus:
        load_gpu(gpu)
        if gpu not in question.prices.per_gpu_hour:
            known = ", ".join(question.prices.per_gpu_hour)
            of_all = ",".join(f"{each}:PRICE" for each in question.gpus)
            raise ConfigError(
                f"--gpus {gpu}: has no price (known: {known}); give those of all: --prices {of_all}"
            )


def _unequal(options: list[Option]) -> list[str]:
    """Return notes on drafters that are tried on other GPUs only, for lack of costs here."""
    tried = dict.fromkeys(option.method for option in options if option.method is not None)
    lacking: dict[str, dict[str, None]] = {}
    for option in options:
        profile = option.hardware.profile
        known = lacking.setdefault(profile.gpu, dict(tried))
        for method in tried:
            if profile.draft_cost(method) is not None:
                known.pop(method, None)
    return [
        f"{gpu}: {', '.join(names)} (its profile has no cost of drafting so)"
        for gpu, methods in lacking.items()
        if (names := [NAMES["proposers"].get(each, each) for each in methods])
    ]


def _own_layers(question: Question, wanted: str | None) -> list[str]:
    """Return why a folder's MTP layers are not tried; a ConfigError if they were asked for."""
    modules, why_not = own_drafter(question.command.model)
    if why_not and wanted == "mtp":
        built = (
            ", build a profile with it (specsim profile build --draft mtp=SHAPE) and ask specsim "
        )
        built = f"{built}capacity, or" if modules else ";"
        raise ConfigError(f"{why_not}{built} name no drafter in the command: then others are tried")
    return [why_not] if why_not and modules and wanted is None else []


def _other_drafter(method: str, option: Option) -> str:
    profile = option.hardware.profile
    if profile.draft_cost(method) is not None:
        return ""
    how = how_to_cost(profile, method, PROPOSERS.find(method))
    return (
        "; name one of these, or no drafter in the command: then all are tried. Or ask `specsim "
        f"capacity`, of a profile that has it: {how}"
    )


def _add(
    question: Question, hardware: Hardware, profile: str, policies: tuple[str, ...], found: Offered
) -> None:
    given = question.command.speculation
    _, no_mtp = own_drafter(question.command.model)
    known = [
        method
        for method in METHODS[question.command.program]
        if hardware.profile.draft_cost(method) is not None
    ]
    known = [method for method in known if method != "mtp" or no_mtp is None]
    methods = [given.get("method")] if given else _usable(question, known, found)
    made: list[tuple[str, str | None]] = [("off", None)] if "off" in policies else []
    for method in methods:
        if method not in known:
            found.left_out.append(
                f"{hardware.label}: no drafting cost of '{method}' (there is: {', '.join(known)})"
            )
            continue
        made += [(policy, method) for policy in _policies(given, policies)]
    for policy, method in made:
        try:
            size = hardware.profile.tensor_parallel_size
            experiment, said = _experiment(question, profile, size, policy, method)
            label = f"{method} {policy}" if len(methods) > 1 and method else policy
            option = Option(hardware, experiment, label, said, _on_vllm(experiment, question))
            option.contender(goal_of(question)).check()
        except (CapacityError, ProfileError) as error:
            what = "" if policy == "off" else f" {policy}"
            found.left_out.append(f"{hardware.label}{what}: {error}{_why_longer(question, error)}")
            if policy == "off":
                break  # with a drafter it fits even less
            continue
        if all(option.name != other.name for other in found.options):
            found.options.append(option)


def _usable(question: Question, known: list[str], found: Offered) -> list[str]:
    """Return the drafters that the server can use, and add to `found` why others are not tried."""
    command = question.command
    is_sglang, has_stages = command.program == "sglang", command.stages > 1
    is_async = command.engine.get("async_scheduling")
    usable, keeps_none = [], load_model(question.model).mamba_dt_rank
    for method in known:
        why = None
        if keeps_none:  # 0.33.0 ``mamba_mixer.py`` ignores num_accepted_tokens
            why = f"{method}: vLLM's kernels of the first Mamba keep no state for each draft"
        elif is_sglang and method not in SGLANG_METHODS:
            why = f"{method}: SGLang does not draft so"
        elif (is_async or has_stages) and not PROPOSERS.find(method).supports_async:
            why = f"{method}: vLLM does not combine it with --async-scheduling"
            if has_stages:
                why = f"{method}: is not simulated with --pipeline-parallel-size"
        if why is None:
            usable.append(method)
        elif why not in found.left_out:
            found.left_out.append(why)
    return usable


def _policies(given: dict[str, Any] | None, policies: tuple[str, ...]) -> list[str]:
    chosen = [policy for policy in policies if policy != "off"]
    if given and "off" in policies:
        chosen += [policy for policy, field in _OF_VLLM.items() if given.get(field)]
        if isinstance(k := given.get("num_speculative_tokens"), int):
            chosen.insert(0, f"static:k={k}")
    return list(dict.fromkeys(chosen))


def goal_of(question: Question) -> Goal:
    """Return the goal of the search, with runs as short as they may be."""
    return Goal(
        question.slo,
        question.attainment,
        tolerance=0.1,
        is_closed=False,
        target_rate=question.rate,
        replications=2,
        num_requests=SHORT_REQUESTS,
        max_requests=_SHORT_AT_MOST,
        is_rough=True,
        shares=(1.0,),
        in_whole_replicas=True,
        spare_replicas=question.spare_servers,
        limit_shares=question.limit_shares,
        prices=question.prices,
    )


def _experiment(
    question: Question, profile: str, size: int, policy: str, method: str | None
) -> tuple[Experiment, str | None]:
    config: dict[str, Any] = {
        "workload": question.traffic.at(1.0, SHORT_REQUESTS),
        "engine": _engine(question, size),
        "profile": profile,
        "seed": question.seed,
        "slo": question.slo.model_dump(exclude_none=True),
    }
    source = f"--{question.command.program}"
    if method is None:
        return Experiment.parse(config, source), None
    drafts = {"method": method, **(question.command.speculation or {})}
    drafts = {name: drafts[name] for name in drafts if name not in unknown_fields(drafts)}
    drafts = _only_of(policy, drafts)
    limit = drafts.get("num_speculative_tokens") or FIRST_K
    if policy not in _OF_VLLM:
        config["policy"] = POLICIES.parse(policy).model_dump(mode="json")
        limit = config["policy"].get("k") or max(limit, _MOST_K)
    drafts["num_speculative_tokens"] = limit
    modules, _ = own_drafter(question.command.model)
    if method == "mtp" and modules > 1:
        drafts["num_nextn_predict_layers"] = modules
    config["engine"]["speculative_config"] = drafts
    config["acceptance"], said = question.traffic.acceptance_for(method, question.model)
    return Experiment.parse(config, source), said


def _only_of(policy: str, drafts: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields of ``speculative_config`` that belong to another policy."""
    others = {field for kind, field in _OF_VLLM.items() if kind != policy}
    return {name: value for name, value in drafts.items() if name not in others}


def _engine(question: Question, size: int) -> dict[str, Any]:
    """Return the engine's settings, with room for the longest requests.

    A server refuses requests beyond its limit, and it is unknown which would be sent again,
    shorter; so they are simulated as they are.
    """
    own = context_of(question.command.model) | question.command.engine
    if size * question.ranks == 1 and load_model(question.model).num_experts:  # all are its own
        own.pop("enable_expert_parallel", None)
    if question.ranks > 1:
        own["data_parallel_size"] = question.ranks
    if (needed := _longer_than_served(question)) is not None:
        own["max_model_len"] = needed
    return own


def _longer_than_served(question: Question) -> int | None:
    """Return the tokens that room is kept for, if a server would refuse such long requests."""
    needed = _ROOM * question.traffic.longest
    takes_what_fits = question.command.engine.get("max_model_len") == -1
    return needed if takes_what_fits or needed > question.longest_served else None


def _why_longer(question: Question, error: Exception) -> str:
    if not isinstance(error, CapacityError) or _longer_than_served(question) is None:
        return ""
    return (
        f" (the longest request of the traffic has {question.traffic.longest:,} tokens, and room "
        f"is kept for one {_ROOM} times as long: leave such requests out)"
    )


def _on_vllm(experiment: Experiment, question: Question) -> dict[str, Any] | None:
    """Return vLLM's settings, with the name of a head if needed; None if vLLM cannot do it."""
    proposer, policy = experiment.engine.speculative_config, experiment.effective_policy
    if proposer is None or policy.kind not in ("static", *_OF_VLLM):
        return None
    drafts = {
        "method": proposer.method,
        **_only_of(policy.kind, question.command.speculation or {}),
        "num_speculative_tokens": proposer.num_speculative_tokens,
    }
    served = key_of(question.command.model).removeprefix("meta-")
    name = of_longest(NAMES["weights"].get(proposer.method, {}), served)
    if "model" in drafts or (name is None and proposer.method in _WITHOUT_WEIGHTS):
        return drafts
    return {**drafts, "model": name or f"{_UNKNOWN}{proposer.method.upper()}"}


def first_option(question: Question) -> Option:
    """Return the option to begin with: the first GPU, with the command's drafter if it has one."""
    options = offered(question, ("off", f"static:k={FIRST_K}")).options
    label = options[0].hardware.label
    own = [option for option in options if option.hardware.label == label]
    return own[1] if len(own) > 1 else own[0]


def with_replicas(option: Option, question: Question, replicas: int) -> Experiment:
    """Return the experiment of a whole service, with about a minute of traffic.

    With ranks it is one server and its share of the traffic, since several such are not simulated.
    """
    rate = question.rate / (replicas if option.hardware.ranks > 1 else 1)
    count = max(SHORT_REQUESTS, round(60 * rate))
    count = min(count, question.traffic.num_rows or count)
    config = option.experiment.to_dict()
    config["workload"] = question.traffic.at(rate, count)
    if "pools" in config:
        for pool in POOLS:
            own = config["pools"].setdefault(pool, {})
            own["replicas"] = own.get("replicas", 1) * replicas
    elif replicas > 1 and option.hardware.ranks == 1:
        routing = _LEAST_OUTSTANDING if question.traffic.turns == 1 else {"kind": "scored"}
        config |= {"replicas": replicas, "routing": routing}
    return Experiment.parse(config, "plan")
