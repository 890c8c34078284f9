"""The facts of a run whose requests are not known before they arrive.

A simulation settles all constants of its requests before it begins, in arrays by request. Here
these arrays have a place for each request that may be unfinished at a time, with room for the
longest answer; a place is filled when a request takes it, and reused after its end. Memory is only
used as far as requests are long.
"""

import mmap
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance import model_of
from specsim.acceptance.base import TokenLucks
from specsim.core.blame import is_shipped
from specsim.core.desk import PerRequest
from specsim.core.draft_luck import Confidences, DraftLuck
from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.decisions.loops import LoopMemory
from specsim.engine.setup import Facts
from specsim.engine.speculation import Speculation
from specsim.engine.table import ARRAY_TYPES
from specsim.policies import DraftsTrees, Policy, is_bound
from specsim.proposers.base import offers_by_table
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting
from specsim.run.experiment import Experiment

_KEY_BITS = 40  # of a block's identity: what the engine leaves beside the group
_SAMPLE, _SAMPLE_LEN = 128, 256  # requests, and tokens of each, by which chances are estimated
_FREE = Request(index=0, prompt_len=1, output_len=1)


class LiveDrafting(Drafting):
    """`Drafting` that settles request by request instead of a whole run.

    Request k draws the luck of request k in a simulation. Raises a ConfigError if the policy or the
    acceptance model needs a whole run.
    """

    def __init__(self, experiment: Experiment, deployment: Deployment, size: int) -> None:
        _check(experiment, deployment)
        self.requests = [_FREE] * size
        self._begin(experiment, deployment, self.requests)
        longest = deployment.engine.max_model_len
        assert longest is not None
        self._longest, self._size = longest, size
        self._block_size = deployment.setup.kv.hash_block_size
        self._has_keys = bool(deployment.engine.enable_prefix_caching)
        num_keys = -(-longest // self._block_size) if self._has_keys else 0
        rows = np.zeros(size, dtype=ARRAY_TYPES["facts"][0])
        starts = np.arange(size + 1, dtype=np.int64) * longest
        rows["output_at"] = starts[:-1]
        rows["key_at"] = 1 + np.arange(size) * num_keys
        self.facts = Facts(rows, _untouched(1 + size * num_keys, np.int64), starts)
        self._offers: NDArray[np.uint8] | None = None
        if self._drafters:
            if offers_by_table(self._proposer) and self._offered([_FREE]) is not None:
                self._offers = _untouched(size * (longest + 1), np.uint8)
            if deployment.policy.uses_confidences and self._proposer.has_confidence:
                width = longest + deployment.max_draft_len
                self._token_luck = self._sampled_lucks()
                self._draft_luck = DraftLuck()
                num_rows = len(self._stated(_FREE, b"\0").levels)
                self._draft_luck.make_room(num_rows, np.arange(size + 1, dtype=np.int64) * width)
        room = len(self._drafters) * size * longest
        self.survival_lens = _untouched(room, np.uint8)
        self._free = np.ones(size, dtype=bool)
        self._lasting: dict[int, list[PerRequest]] = {}
        """Per-request memory of the policy, by replica; only for policies of specsim, or of
        loops."""
        self.num_free = size
        self.numbers = np.zeros(size, dtype=np.int64)
        """Number of the request at each index, counted over all requests."""

    def start(self, replica: int) -> Speculation:
        """Return the speculation of one replica, with new memories."""
        speculation = super().start(replica)
        if is_shipped(speculation.policy) or isinstance(speculation.memory, LoopMemory):
            self._lasting[replica] = _per_request(speculation.memory)
        else:  # any other policy never meets a number twice, so its memory needs no reset
            speculation.numbers = self.numbers
        return speculation

    @property
    def offers(self) -> NDArray[np.uint8] | None:
        """The draft length that the proposer finds at each position; None without a table."""
        return self._offers

    def take(self, request: Request) -> Request:
        """Settle a request; return it with a free index, of which there must be one."""
        index = int(self._free.argmax())  # the first one, so that little memory is touched
        self._free[index] = False
        self.numbers[index] = request.index
        for memories in self._lasting.values():
            for memory in memories:
                memory.forget(index)
        self.num_free -= 1
        self.requests[index] = placed = replace(request, index=index)
        row = self.facts.rows[index]
        row["prompt_len"], row["output_len"] = request.prompt_len, request.output_len
        row["max_tokens"] = request.max_tokens or request.output_len
        row["priority"], row["rank"] = request.priority, request.index & 0x7FFFFFFF
        if self._has_keys:
            keys = self._keys(request)
            row["num_keys"] = len(keys)
            self.facts.keys[row["key_at"] : row["key_at"] + len(keys)] = keys
        first = index * self._longest
        for model, luck in self._drafters:
            (table,) = self._survival_tables([request], model, luck)
            self.survival_lens[first : first + len(table)] = np.frombuffer(table, dtype=np.uint8)
            first += self.facts.num_outputs
            if self._draft_luck is not None:
                self._draft_luck.put(index, self._stated(request, table))
        if self._offers is not None:
            (offered,) = self._offered([request]) or (b"",)
            first = index * (self._longest + 1)
            self._offers[first : first + len(offered)] = np.frombuffer(offered, dtype=np.uint8)
        return placed

    def _sampled_lucks(self) -> TokenLucks:
        """Return the luck of tokens; counted chances come from tables of sample requests.

        A table of the single request would tell more about it than any drafter knows.
        """
        model, luck = self._drafters[0]
        sample = [Request(index, _SAMPLE_LEN, _SAMPLE_LEN) for index in range(_SAMPLE)]
        return self._token_lucks(self._survival_tables(sample, model, luck.child("sample")))

    def _stated(self, request: Request, table: bytes) -> Confidences:
        """Return the drafter's confidences in the drafts of a request."""
        return self._confidences([request], *self._token_luck([request], [table]))

    def _keys(self, request: Request) -> NDArray[np.int64]:
        """Return an identity for each block of prompt and answer: negative numbers of 40 bits.

        Among a million blocks, one in a million is confused with another.
        """
        digests = b"".join(cast("list[bytes]", request.shared_block_keys(self._block_size)))
        numbers = np.frombuffer(digests, dtype=np.uint64)[::2] >> np.uint64(64 - _KEY_BITS)
        return -1 - numbers.astype(np.int64)

    def give_back(self, index: int) -> None:
        self._free[index] = True
        self.num_free += 1
        self.requests[index] = _FREE


def _untouched(size: int, kind: type) -> NDArray[Any]:
    """Return zeros whose memory is used page by page when written; a ConfigError if too many.

    numpy's zeros use huge pages, which short answers at every index would all fill.
    """
    try:
        room = mmap.mmap(-1, max(1, size) * np.dtype(kind).itemsize)
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"--max-requests: there is no memory for so many answers ({error}); give fewer, or a "
            "shorter engine.max_model_len"
        ) from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            room.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(room, dtype=kind, count=size)


def _per_request(memory: Any) -> list[PerRequest]:
    """Return the parts of a policy's memory that are kept per request."""
    found, seen, left = [], set(), [memory]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, PerRequest):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            left += each
        elif isinstance(each, dict):
            left += each.values()
        elif not isinstance(each, (type, ModuleType)):
            left += getattr(each, "__dict__", {}).values()
            names = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
            left += [getattr(each, name, None) for name in names]
    return found


def _check(experiment: Experiment, deployment: Deployment) -> None:
    """Raise a ConfigError for parts that know the future, or need tables of a whole run."""
    policy: Policy = deployment.policy
    proposer, acceptance = deployment.proposer, experiment.acceptance
    for name, is_set in (
        ("pools", experiment.pools is not None),
        ("autoscaling", experiment.autoscaling is not None),
        ("engine.kv_offload", deployment.engine.kv_offload is not None),
        ("engine.lora_config", deployment.engine.lora_config is not None),
        ("workload.adapters", experiment.workload.adapters is not None),
    ):
        if is_set:
            raise ConfigError(f"{name}: specsim serve does not do that yet; leave it out")
    if proposer is None or acceptance is None:
        return
    if is_bound(policy):
        raise ConfigError(
            f"policy '{policy.kind}' knows the future or the acceptance model, as no server can; "
            "use another"
        )
    if isinstance(policy, DraftsTrees):
        raise ConfigError(
            f"policy '{policy.kind}' drafts trees, which specsim serve does not do yet; use another"
        )
    models = [model_of(acceptance, key) for key in proposer.cost_keys]
    for model in models:
        if model.verifies_tokens or policy.uses_tokens or model.kind == "recorded":
            raise ConfigError(
                f"acceptance '{model.kind}' with policy '{policy.kind}' needs answers that are "
                "known beforehand; use a model such as bernoulli or per_position"
            )
