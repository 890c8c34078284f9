"""Sessions: conversations and agent loops, whose prompts grow from turn to turn."""

from functools import lru_cache
from typing import Annotated, Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from specsim.core.errors import ConfigError
from specsim.core.rng import generator
from specsim.core.settings import Settings
from specsim.workload.lengths import LONGEST, Lengths, to_tokens
from specsim.workload.trace import Trace

_MOST_TURNS = 100_000
_SAMPLE, _SAMPLE_TURNS = 2000, 1e6  # sessions, and turns, from which their means are estimated


class Spread(Settings):
    """A lognormal distribution, by its mean; in an experiment a number alone is a mean."""

    mean: float = Field(ge=0, le=LONGEST)
    sigma: float = Field(default=0.0, ge=0, le=10)
    """Standard deviation of the logarithm; 0 for always the mean."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        return self.mean * rng.lognormal(-(self.sigma**2) / 2, self.sigma, count)


def _with_mean(value: Any) -> Any:
    # YAML 1.1 reads 1e3 as text
    return {"mean": value} if isinstance(value, int | float | str) else value


_Spread = Annotated[
    Spread, BeforeValidator(_with_mean, json_schema_input_type=Spread | float | str)
]


@final
class Sessions(Lengths):
    """Sessions of several turns: a prompt is all that was said before, and then new input.

    A turn arrives when the answer before it has been read, or the tool that it called has answered;
    `workload.arrivals` are those of the sessions, and `closed_loop` keeps a number of sessions
    open. The prefix cache finds prompts and answers of earlier turns, as vLLM's does, which keeps
    generated tokens too (``v1/core/kv_cache_manager.py cache_blocks``).
    """

    kind: Literal["sessions"] = "sessions"
    examples = (
        {"turns": 4, "first_prompt": 500, "new_input": 100, "output": 200, "think_time": 10},
        {
            "turns": {"mean": 12, "sigma": 0.6},
            "first_prompt": {"mean": 1500, "sigma": 0.8},
            "new_input": {"mean": 700, "sigma": 1.0},
            "output": {"mean": 120, "sigma": 0.7},
            "shared_prompt": 3000,
            "tool_share": 0.9,
            "tool_time": {"mean": 2, "sigma": 1.0},
            "think_time": {"mean": 30, "sigma": 1.0},
            "max_len": 32768,
        },
    )
    turns: _Spread
    """Turns per session, at least 1."""
    first_prompt: _Spread
    """Tokens of the first prompt, in addition to the shared ones."""
    new_input: _Spread
    """Tokens that each later turn adds: a user's text, or a tool's result."""
    output: _Spread
    """Tokens of an answer."""
    shared_prompt: int = Field(default=0, ge=0, le=LONGEST)
    """Tokens at the beginning of every session: system prompt and tools."""
    think_time: _Spread = Spread(mean=0.0)
    """Seconds from an answer to a user's next turn."""
    tool_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the later turns that come from a tool instead of a user."""
    tool_time: _Spread = Spread(mean=0.0)
    """Seconds from an answer to a tool's result."""
    max_len: int | None = Field(default=None, ge=1, le=LONGEST)
    """A session ends before prompt and answer together exceed this, tokens."""

    @model_validator(mode="after")
    def _check_turns(self) -> Self:
        if not 1 <= self.turns.mean <= _MOST_TURNS:
            raise ValueError(f"turns = {self.turns.mean:g}: must be from 1 to {_MOST_TURNS:,}")
        return self

    @property
    def in_sessions(self) -> bool:
        return True

    @property
    def mean_turns(self) -> float:
        return _means(self)[0]

    @property
    def mean_len(self) -> float:
        return _means(self)[1]

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return `count` requests, session after session; the last session may be cut off."""
        drawn = self.draw_sessions(rng, self._enough(count))
        while len(drawn) < count:
            drawn = drawn.followed_by(self.draw_sessions(rng, self._enough(count - len(drawn))))
        return drawn.take(np.arange(count))

    def _enough(self, count: int) -> int:
        return int(count / self.turns.mean) + 1

    def draw_sessions(self, rng: np.random.Generator, count: int) -> Trace:
        turns = np.clip(to_tokens(self.turns.draw(rng, count)), 1, _MOST_TURNS)
        firsts = np.cumsum(turns) - turns
        sessions = np.repeat(np.arange(count), turns)
        size = len(sessions)
        inputs = to_tokens(self.new_input.draw(rng, size))
        inputs[firsts] = to_tokens(self.first_prompt.draw(rng, count)) + self.shared_prompt
        outputs = to_tokens(self.output.draw(rng, size))
        is_tool = rng.random(size) < self.tool_share
        users, tools = self.think_time.draw(rng, size), self.tool_time.draw(rng, size)
        waits = np.where(is_tool, tools, users)
        waits[firsts] = 0.0
        ends = np.cumsum(inputs + outputs)
        ends -= np.repeat((ends - inputs - outputs)[firsts], turns)  # per session
        shared = np.full(size, self.shared_prompt)
        longest = LONGEST if self.max_len is None else self.max_len
        kept = np.flatnonzero(ends <= longest)
        if not len(kept):
            raise ConfigError(
                f"workload.lengths.max_len = {longest}: not one of {count} sessions has a first "
                "prompt and answer that short; raise it, or shorten them"
            )
        drawn = Trace(
            ends - outputs, outputs, sessions=sessions, think_times=waits, shared_lens=shared
        )
        return drawn.take(kept)


@lru_cache(maxsize=64)
def _means(lengths: Sessions) -> tuple[float, float]:
    """Return the mean turns per session and the mean tokens per turn, over sampled sessions."""
    count = min(_SAMPLE, int(_SAMPLE_TURNS / lengths.turns.mean))
    sample = lengths.draw_sessions(generator(0, "lengths"), count)
    tokens = sample.prompt_lens + sample.output_lens
    return len(sample) / sample.num_sessions, float(tokens.mean())
