"""Recordings of coding agents, whose calls start sub-agents and wait for them."""

from dataclasses import dataclass, field
from typing import Literal, final

from specsim.core.errors import TraceError
from specsim.core.request import PrefixIds
from specsim.workload.readers import Reader, Row, TraceFile
from specsim.workload.trace import Trace, TraceBuilder

_BLOCK_SIZE = 64
_DEEPEST = 16  # depth of nested sub-agents


@final
class Weka(Reader):
    """Agents' conversations with hash ids of 64-token blocks (AgentX), as JSON or JSON lines.

    A conversation has an ``id`` and ``requests`` with ``t`` (s since it began), ``in``, ``out``,
    ``hash_ids``, and optionally ``api_time`` (s the recorded call took) and ``think_time`` (s from
    the answer before it); or each request is a row with the ``id`` of its conversation. An entry of
    type ``subagent`` has requests of its own: the first waits for the call before it, and a later
    call of the parent for all that had ended when it was made.

    Times count from answers, not from the start of the recording: `workload.arrivals` says when
    conversations begin. Hash ids are of one conversation, those of a sub-agent its own. Source:
    callanjfox/agentic-coding-analysis, docs/TRACE_FORMAT.md, which the data sets
    semianalysisai/cc-traces-weka-* follow.
    """

    kind: Literal["weka"] = "weka"
    containers = ("json", "jsonl")

    def matches(self, file: TraceFile) -> bool:
        """Return whether rows are conversations with requests, or requests of conversations."""
        columns = set(file.columns)
        is_flat = {"id", "t", "in", "out", "hash_ids"} <= columns
        return file.container in self.containers and (is_flat or {"id", "requests"} <= columns)

    def read(self, file: TraceFile) -> Trace:
        builder = TraceBuilder(file.path, self.kind)
        calls = _Calls(builder)
        flat: dict[object, list[Row]] = {}
        for row in file.objects("conversation"):
            if "requests" in row.values:
                calls.add_conversation(_requests(row), _block_size(row))
            else:
                flat.setdefault(row.label("id"), []).append(row)
        for rows in flat.values():
            rows.sort(key=lambda row: row.number("t"))  # tables may be in any order
            calls.add_conversation(rows, _block_size(rows[0]))
        calls.put()
        return builder.build()


def _requests(row: Row) -> list[Row]:
    requests = row.get("requests")
    if not isinstance(requests, list) or not all(isinstance(each, dict) for each in requests):
        raise TraceError(f"{row.place}: requests is not a list of objects; correct or remove it")
    return [Row(f"{row.place}, request {n}", each) for n, each in enumerate(requests)]


def _block_size(row: Row) -> int:
    return row.integer("block_size", minimum=1) if "block_size" in row.values else _BLOCK_SIZE


@dataclass
class _Agent:
    """An agent, which makes calls one after another, starts sub-agents, and waits for them."""

    began_at: float  # seconds since the conversation began
    block_size: int
    depth: int
    ids: dict[object, int] = field(default_factory=dict)
    turns: set[int] = field(default_factory=set)  # that its next call waits for
    ended_at: float = 0.0  # end of the last of these in the recording
    is_end_known: bool = True
    started: list["_Agent"] = field(default_factory=list)
    """Sub-agents that it has not waited for yet."""

    def wait_for(self, ended: list["_Agent"]) -> None:
        """Let the next call also wait for sub-agents."""
        for child in ended:
            self.started.remove(child)
            self.turns |= child.turns
            self.ended_at = max(self.ended_at, child.ended_at)


class _Calls:
    """Collects the calls of conversations, and which calls each waits for."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._num_conversations = 0
        self._num_turns = 0
        self._num_ids = 0
        self._after: list[tuple[int, ...]] = []
        self._is_chain = True

    def add_conversation(self, requests: list[Row], block_size: int) -> None:
        self._num_turns = 0
        self._add_calls(_Agent(0.0, block_size, 0), requests)
        self._num_conversations += 1

    def put(self) -> None:
        """Store what each call waits for, unless it is always the previous call."""
        if not self._is_chain:
            for after in self._after:
                self._builder.put("after_turns", after)

    def _add_calls(self, agent: _Agent, requests: list[Row]) -> None:
        for row in requests:
            at = agent.began_at + row.number("t")
            if row.values.get("type") == "subagent":
                agent.started.append(self._sub_agent(agent, row, at))
                continue
            think_time = _seconds(row, "think_time")  # since the previous answer
            if think_time is not None and not agent.is_end_known:
                agent.ended_at = max(agent.ended_at, at - think_time)
            agent.wait_for([child for child in agent.started if child.ended_at <= at])
            self._add_call(agent, row, at)

    def _sub_agent(self, parent: _Agent, row: Row, at: float) -> _Agent:
        if parent.depth == _DEEPEST:
            raise TraceError(f"{row.place}: a sub-agent {_DEEPEST} levels deep; remove it")
        child = _Agent(at, parent.block_size, parent.depth + 1)
        child.turns, child.ended_at = set(parent.turns), parent.ended_at
        self._add_calls(child, _requests(row))
        return child

    def _add_call(self, agent: _Agent, row: Row, at: float) -> None:
        prompt_len = row.integer("in")
        pieces = row.hash_ids("hash_ids")[: prompt_len // agent.block_size]
        wait, time = max(0.0, at - agent.ended_at), _seconds(row, "api_time")
        agent.ended_at, agent.is_end_known = at + (time or 0.0), time is not None
        if not self._builder.add(prompt_len, row.integer("out")):
            return
        self._num_turns += 1
        # A sub-agent before any call is started by the conversation's first call.
        after = agent.turns or ({1} if self._num_turns > 1 else set())
        self._put_call(agent, pieces, sorted(after), wait)
        agent.turns = {self._num_turns}

    def _put_call(
        self, agent: _Agent, pieces: tuple[int, ...], after: list[int], wait: float
    ) -> None:
        for piece in pieces:
            if piece not in agent.ids:
                agent.ids[piece] = self._num_ids
                self._num_ids += 1
        prefix = PrefixIds([agent.ids[piece] for piece in pieces], agent.block_size)
        self._builder.put("prefix_ids", prefix)
        self._builder.put("sessions", self._num_conversations)
        self._builder.put("think_times", wait if after else 0.0)
        self._after.append(tuple(after))
        self._is_chain = self._is_chain and after in ([], [self._num_turns - 1])


def _seconds(row: Row, name: str) -> float | None:
    """Return a time; None if it was not recorded; a TraceError if it is negative."""
    if row.values.get(name) is None:
        return None
    seconds = row.number(name)
    if seconds < 0:
        raise TraceError(f"{row.place}: {name} = {seconds:g} must be at least 0 s; correct it")
    return seconds
