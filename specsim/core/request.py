"""Request: what a client sent, and what the model will answer.

A request is a fact and never changes during a run; how far it has come is the engine's business
(`specsim.engine.table.Sequence`). Policies never see a request: its output length and its recorded
acceptance are the future.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNRECORDED = -1
"""Stands, alone, for the token ids of a prompt that was not recorded; no token has this id."""

BlockKey = int | bytes | tuple[int, "BlockKey"]
"""Identity of a full KV block: equal keys hold the same tokens after the same prefix."""

_OWN_BLOCKS = 1 << 32  # more blocks than any request has

NO_RECORDS: Mapping[str, bytes] = MappingProxyType({})
"""Recorded lengths of a request that has none."""


@dataclass(frozen=True, slots=True)
class PrefixIds:
    """Prefix identity of a prompt whose token ids are not known, as recorded in a trace.

    Mooncake and Qwen-Bailian publish, for each fixed-size piece of the prompt, an id that two
    prompts share exactly if they agree up to the end of that piece.
    """

    hash_ids: Sequence[int]
    """One id per piece of `block_size` tokens; the last piece may be shorter."""
    block_size: int  # tokens per piece: 512 for Mooncake, 16 for Qwen-Bailian


class Text(NamedTuple):
    """A prompt and its recorded answer, end to end."""

    token_ids: NDArray[np.int32]  # shape (prompt_len + output_len,)
    prompt_len: int

    @property
    def output_len(self) -> int:
        return len(self.token_ids) - self.prompt_len


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One prompt as the client sent it, and the answer that the model will give.

    `output_len` is where the answer ends; a server learns it only by reaching it, unless that is
    all that was asked for.
    """

    index: int  # position in the workload; the key of every random draw that concerns the request
    prompt_len: int
    output_len: int
    arrived_at: float = 0.0
    """Arrival, seconds after the start of the run (closed loops set it during the run)."""
    id: str = ""
    priority: int = 0  # smaller runs first under ``scheduling_policy: priority``, as in vLLM
    adapter: int = 0  # LoRA adapter that it is for, from 1; 0: the model as it is
    max_tokens: int | None = None
    """Most that the client asked for: a shorter answer ends by a stop token. None: `output_len`."""
    prompt_token_ids: NDArray[np.int64] | None = None
    output_token_ids: NDArray[np.int64] | None = None
    prefix_ids: PrefixIds | None = None
    session: int | None = None  # number of the conversation or agent loop that it is a turn of
    turn: int = 1  # which request of its session it is, from 1
    after_turns: tuple[int, ...] | None = None
    """Turns of its session that it waits for, of agents that work at the same time; None: the turn
    before it."""
    think_time: float = 0.0
    """From the end of the last turn that it waits for to its arrival, seconds, if that is after
    `arrived_at`."""
    shared_len: int | None = None
    """Given if the prompt is all that its session has said before, answers included, and then new
    input: so many leading tokens are the same in every session."""
    recorded_lens: Mapping[str, bytes] = field(default_factory=lambda: NO_RECORDS)
    """Per proposer: accepted length of a draft made when `p` output tokens were known."""
    offered_lens: bytes | None = None
    """What a lookup came up with when `p` output tokens were known, tokens, where that is recorded;
    shape (output_len + 1,)."""

    @property
    def text(self) -> Text:
        """What was said, for whoever drafts from it; the caller has checked that it is recorded."""
        prompt, output = self.prompt_token_ids, self.output_token_ids
        assert prompt is not None
        assert output is not None
        if len(prompt) == 1 and prompt[0] == UNRECORDED:
            prompt = prompt[:0]
        return Text(np.concatenate([prompt, output]).astype(np.int32), len(prompt))

    def block_keys(self, block_size: int) -> Sequence[BlockKey]:
        """Return the identity of each KV block that this request can fill.

        With token ids the key of a block is a chained hash over all tokens up to its end, prompt
        and output alike (vLLM: ``v1/core/kv_cache_utils.py hash_block_tokens``). With recorded
        prefix ids, prompt blocks take theirs. In a session that only grows, a block is known by its
        place in the session, prompt or output alike. Whatever is known by neither belongs to this
        request alone, so that it can only be hit again after a preemption.

        Returns:
            Indexed by block number; at least as long as prompt plus output has full blocks.
        """
        own = range(self.index * _OWN_BLOCKS, (self.index + 1) * _OWN_BLOCKS)
        shared = self.shared_block_keys(block_size)
        if not shared:
            return own
        total = (self.prompt_len + self.output_len) // block_size
        return [*shared, *own[len(shared) : total]]

    def shared_block_keys(self, block_size: int, lookahead_len: int = 0) -> list[BlockKey]:
        """Return the keys of the leading blocks that other requests may share.

        Those for one adapter share none with others (vLLM: ``_gen_lora_extra_hash_keys``).

        Args:
            lookahead_len: Tokens after a block that have to be the same, too.
        """
        keys = self._text_keys(block_size, lookahead_len)
        return [(self.adapter, key) for key in keys] if self.adapter else keys

    def _text_keys(self, block_size: int, lookahead_len: int) -> list[BlockKey]:
        if self.prompt_token_ids is not None:
            known = [self.prompt_token_ids]
            if self.output_token_ids is not None:
                known.append(self.output_token_ids)
            return _chained_keys(np.concatenate(known), block_size, lookahead_len)
        if self.prefix_ids is not None:
            return self._prefix_keys(self.prefix_ids, block_size, lookahead_len)
        if self.shared_len is not None and self.session is not None:
            first = block_size + lookahead_len
            ends = range(first, self.prompt_len + self.output_len + 1, block_size)
            return [(-1 if end <= self.shared_len else self.session, end) for end in ends]
        return []

    def _prefix_keys(
        self, prefix: PrefixIds, block_size: int, lookahead_len: int
    ) -> list[BlockKey]:
        keys: list[BlockKey] = []
        for end in range(block_size + lookahead_len, self.prompt_len + 1, block_size):
            piece = (end - 1) // prefix.block_size
            if piece >= len(prefix.hash_ids):  # a last, shorter piece may have no id
                break
            keys.append((prefix.hash_ids[piece], end - piece * prefix.block_size))
        return keys


def _chained_keys(
    token_ids: NDArray[np.int64], block_size: int, lookahead_len: int
) -> list[BlockKey]:
    data = np.ascontiguousarray(token_ids, dtype=np.int64).tobytes()
    keys: list[BlockKey] = []
    parent, start = b"", 0
    for end in range((block_size + lookahead_len) * 8, len(data) + 1, block_size * 8):
        parent, start = blake2b(parent + data[start:end], digest_size=16).digest(), end
        keys.append(parent)
    return keys


class Columns(NamedTuple):
    """Some fields of requests, each of shape (n,)."""

    indices: NDArray[np.int64]
    prompt_lens: NDArray[np.int64]
    output_lens: NDArray[np.int64]
    arrived_at: NDArray[np.float64]  # seconds
    priorities: NDArray[np.int64]
    adapters: NDArray[np.int64]
    max_tokens: NDArray[np.int64]  # the output length of those that state none
    ids: Sequence[str] | None  # None if none of them has one
    has_sessions: bool  # whether any is a turn of a session
    may_share: bool
    """Whether any may have blocks that others share, see `Request.shared_block_keys`."""

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "Columns":
        known = getattr(requests, "columns", None)  # of a sequence that makes its requests late
        if isinstance(known, cls):
            return known
        rows = [
            (
                each.index,
                each.prompt_len,
                each.output_len,
                each.priority,
                each.adapter,
                each.output_len if each.max_tokens is None else each.max_tokens,
            )
            for each in requests
        ]
        indices, prompts, outputs, priorities, adapters, max_tokens = (
            np.array(rows, dtype=np.int64).reshape(-1, 6).T.copy()
        )
        has_sessions = any(each.session is not None for each in requests)
        ids = [each.id for each in requests]
        return cls(
            indices=indices,
            prompt_lens=prompts,
            output_lens=outputs,
            arrived_at=np.array([each.arrived_at for each in requests]),
            priorities=priorities,
            adapters=adapters,
            max_tokens=max_tokens,
            ids=ids if any(ids) else None,
            has_sessions=has_sessions,
            may_share=has_sessions
            or any(not (each.prompt_token_ids is None is each.prefix_ids) for each in requests),
        )
