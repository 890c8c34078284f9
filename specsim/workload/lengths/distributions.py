"""Lengths: constant, drawn from a distribution, with a dataset's statistics, or recorded."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.errors import ConfigError, TraceError
from specsim.core.settings import Settings, load_mapping, nearest
from specsim.workload.lengths import LENGTHS, LONGEST, Lengths, drawn, drawn_sessions, to_tokens
from specsim.workload.readers import facts_of, read_named
from specsim.workload.trace import Trace

_PATH = "workload.lengths.path"


@final
class ConstantLengths(Lengths):
    """Every prompt and every output has the same length."""

    kind: Literal["constant"] = "constant"
    examples = ({"prompt": 512, "output": 128},)
    prompt: int = Field(ge=1, le=LONGEST)
    """Tokens of every prompt."""
    output: int = Field(ge=1, le=LONGEST)
    """Tokens of every output."""

    @property
    def mean_len(self) -> float:
        return float(self.prompt + self.output)

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        return Trace(np.full(count, self.prompt), np.full(count, self.output))


Bound = Annotated[int, Field(ge=1, le=LONGEST)]


@final
class Uniform(Lengths):
    """Every length between two bounds, both included, is equally likely."""

    kind: Literal["uniform"] = "uniform"
    examples = ({"prompt": [256, 768], "output": [64, 192]},)
    prompt: tuple[Bound, Bound]
    """(shortest, longest), tokens."""
    output: tuple[Bound, Bound]
    """(shortest, longest), tokens."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for name in ("prompt", "output"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} = [{low}, {high}]: the shortest comes first")
        return self

    @property
    def mean_len(self) -> float:
        return (sum(self.prompt) + sum(self.output)) / 2

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        return Trace(
            rng.integers(*self.prompt, count, endpoint=True),
            rng.integers(*self.output, count, endpoint=True),
        )


class _Tail(Settings):
    mean: float = Field(ge=1, le=LONGEST)
    """Mean of the length itself, tokens."""
    sigma: float = Field(ge=0, le=10)
    """Standard deviation of the logarithm of the length."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        mu = np.log(self.mean) - self.sigma**2 / 2
        return to_tokens(rng.lognormal(mu, self.sigma, count))


class _Independent(Lengths):
    """Lengths with separate distributions for prompts and outputs."""

    prompt: Any
    output: Any

    @property
    def mean_len(self) -> float:
        return float(self.prompt.mean + self.output.mean)

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        return Trace(self.prompt.draw(rng, count), self.output.draw(rng, count))


@final
class Lognormal(_Independent):
    """Lognormal lengths, given by the mean length and the sigma of its logarithm."""

    kind: Literal["lognormal"] = "lognormal"
    examples = ({"prompt": {"mean": 1000, "sigma": 0.5}, "output": {"mean": 250, "sigma": 0.5}},)
    prompt: _Tail
    output: _Tail


_MOST_DRAWS = 100  # enough for a normal distribution a hundred times as wide as its bounds


class _Bell(Settings):
    mean: float
    """Mean of the normal distribution before truncation, tokens."""
    std: float = Field(ge=0)
    min: int = Field(default=1, ge=1, le=LONGEST)
    max: int = Field(ge=1, le=LONGEST)

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if not self.min <= self.mean <= self.max:
            raise ValueError(
                f"mean = {self.mean:g} must lie within [min, max] = [{self.min}, {self.max}]"
            )
        return self

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Draw by rejection: with the mean within the bounds, most draws are kept.

        If the distribution is so wide that few are kept, the rest is drawn by its inverse.
        """
        low, high = self.min - 0.5, self.max + 0.5
        kept = np.empty(0)
        for _ in range(_MOST_DRAWS):
            if len(kept) >= count:
                break
            values = rng.normal(self.mean, self.std, 2 * count + 16)
            kept = np.concatenate([kept, values[(values >= low) & (values < high)]])
        if (missing := count - len(kept)) > 0:
            # The inverse of so wide a distribution is flat between the bounds.
            kept = np.concatenate([kept, low + rng.random(missing) * (high - low)])
        return np.clip(to_tokens(kept[:count]), self.min, self.max)


@final
class TruncatedNormal(_Independent):
    """Normal lengths, redrawn until they lie within their bounds."""

    kind: Literal["truncated_normal"] = "truncated_normal"
    examples = (
        {
            "prompt": {"mean": 512, "std": 128, "max": 1024},
            "output": {"mean": 128, "std": 64, "min": 16, "max": 512},
        },
    )
    prompt: _Bell
    output: _Bell


class DatasetStatistics(NamedTuple):
    """Mean and standard deviation of a dataset's lengths, tokens, and their source."""

    prompt_mean: float
    prompt_std: float
    output_mean: float
    output_std: float
    source: str


DATASETS = {
    name: DatasetStatistics._make([*each["prompt"], *each["output"], each["source"]])
    for name, each in load_mapping(Path(__file__).with_name("datasets.yaml"), ConfigError).items()
}


@final
class Dataset(Lengths):
    """Lognormal lengths with the published mean and spread of a dataset.

    The names and sources are in `datasets.yaml`; ``specsim list`` prints them.
    """

    kind: Literal["dataset"] = "dataset"
    examples = ({"name": "sharegpt"},)
    name: str

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if self.name not in DATASETS:
            raise ValueError(f"no dataset '{self.name}'; {nearest(self.name, list(DATASETS))}")
        return self

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        stats = DATASETS[self.name]
        return Trace(
            _lognormal(rng, stats.prompt_mean, stats.prompt_std, count),
            _lognormal(rng, stats.output_mean, stats.output_std, count),
        )


def _lognormal(rng: np.random.Generator, mean: float, std: float, count: int) -> NDArray[np.int64]:
    """Return lognormal lengths with this mean and standard deviation, tokens."""
    variance = float(np.log1p((std / mean) ** 2))
    mu, sigma = float(np.log(mean)) - variance / 2, float(np.sqrt(variance))
    return to_tokens(rng.lognormal(mu, sigma, count))


_Nested = Annotated[Lengths, LENGTHS, LENGTHS.any_member]
_Draw = Callable[[Lengths, np.random.Generator, int], Trace]


@final
class ShiftedLengths(Lengths):
    """The first share of the requests comes from one source, the rest from another.

    Either both are in sessions or none is. Of sessions, turns of one side without think times come
    at once. Prefix ids of two files are different prefixes. What else only one of them knows of its
    requests is left out: token ids, prefixes, priorities, adapters.
    """

    kind: Literal["shift"] = "shift"
    examples = (
        {
            "at": 0.5,
            "before": {"kind": "dataset", "name": "gsm8k"},
            "after": {"kind": "dataset", "name": "sharegpt"},
        },
    )
    at: float = Field(gt=0, lt=1)
    """Share of the run's requests, in order of their index, before the change."""
    before: _Nested
    after: _Nested

    @property
    def num_rows(self) -> int | None:
        """Number of requests that can be drawn before either source runs out."""
        before, after = self.before.num_rows, self.after.num_rows
        bounds = [] if before is None else [before / self.at]
        bounds += [] if after is None else [after / (1 - self.at)]
        return int(min(bounds)) if bounds else None

    @property
    def mean_len(self) -> float:
        return self.at * self.before.mean_len + (1 - self.at) * self.after.mean_len

    @property
    def in_sessions(self) -> bool:
        """Whether both sources are sessions; a ConfigError if only one is."""
        before, after = self.before.in_sessions, self.after.in_sessions
        if before != after:
            one, other = ("before", "after") if before else ("after", "before")
            raise ConfigError(
                f"workload.lengths: the requests of '{one}' are in sessions and those of '{other}' "
                "are not, so that turns would wait for nobody; shift between two of a kind"
            )
        return before

    @property
    def mean_turns(self) -> float:
        return 1 / (self.at / self.before.mean_turns + (1 - self.at) / self.after.mean_turns)

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        return self._joined(drawn, rng, count)

    def draw_sessions(self, rng: np.random.Generator, count: int) -> Trace:
        return self._joined(drawn_sessions, rng, count)

    def _joined(self, draw: _Draw, rng: np.random.Generator, count: int) -> Trace:
        first = int(round(count * self.at, 6))  # 100 * 0.58 is 57.99999999999999
        before, after = draw(self.before, rng, first), draw(self.after, rng, count - first)
        if self.in_sessions and (before.shared_lens is None) != (after.shared_lens is None):
            one, other = ("after", "before") if before.shared_lens is None else ("before", "after")
            raise ConfigError(
                f"workload.lengths: prompts of '{one}' continue their sessions, and of those of "
                f"'{other}' it is not known (no shared_len), so that the prefix cache would find "
                "nothing of either; shift between two of a kind"
            )
        if self.before != self.after:
            after = after.with_prefixes_apart_from(before)
        return before.followed_by(after)


@final
class TraceRows(Lengths):
    """The rows of a file in their order, with token ids and recorded acceptance if it has them."""

    kind: Literal["trace"] = "trace"
    examples = ({"path": "traces/chat.parquet"},)
    path: Path
    """A workload of any known format; shipped ones, ``traces/...``, are found from any folder."""

    @property
    def num_rows(self) -> int:
        return facts_of(self.path, _PATH).rows

    @property
    def in_sessions(self) -> bool:
        return facts_of(self.path, _PATH).in_sessions

    @property
    def mean_turns(self) -> float:
        facts = facts_of(self.path, _PATH)
        return facts.rows / facts.sessions

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return the first `count` rows; a TraceError if the file has fewer."""
        trace = read_named(self.path, _PATH)
        if count > len(trace):
            raise TraceError(
                f"{self.path}: has {len(trace):,} requests, {count:,} are asked for; lower "
                "num_requests or draw with lengths of kind 'empirical'"
            )
        return trace.take(np.arange(count))

    def draw_sessions(self, rng: np.random.Generator, count: int) -> Trace:
        """Return the first sessions, or all if there are fewer; without sessions as `draw`."""
        if not self.in_sessions:
            return self.draw(rng, count)
        trace = read_named(self.path, _PATH)
        return trace.take(np.flatnonzero(trace.session_places < count))


@final
class Empirical(Lengths):
    """Each request is a row of a file, drawn with replacement.

    Prompt and output stay together, so their correlation is kept. Not to be confused with `trace`,
    which takes the rows in their order, once each.
    """

    kind: Literal["empirical"] = "empirical"
    examples = ({"path": "traces/chat.parquet"},)
    path: Path
    """A workload of any known format; shipped ones, ``traces/...``, are found from any folder."""

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return rows drawn with replacement, with lengths only, because the requests are new."""
        trace = read_named(self.path, _PATH)
        rows = rng.integers(0, len(trace), count)
        return Trace(trace.prompt_lens[rows], trace.output_lens[rows])
