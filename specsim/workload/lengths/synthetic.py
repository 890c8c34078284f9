"""Lengths that are made: all the same, drawn from a distribution, or by a dataset's statistics."""

from typing import Annotated, Literal, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.settings import Settings, nearest
from specsim.workload.lengths import LENGTHS, LONGEST, Lengths, to_tokens
from specsim.workload.trace import Trace


@final
class ConstantLengths(Lengths):
    """Every prompt and every output has the same length."""

    kind: Literal["constant"] = "constant"
    examples = ({"prompt": 512, "output": 128},)
    prompt: int = Field(ge=1, le=LONGEST)
    """Tokens."""
    output: int = Field(ge=1, le=LONGEST)
    """Tokens."""

    @property
    def mean_len(self) -> float:
        """Mean tokens of prompt and output together."""
        return float(self.prompt + self.output)

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return equal requests."""
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
        """Mean tokens of prompt and output together."""
        return (sum(self.prompt) + sum(self.output)) / 2

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return uniform lengths, prompt and output independent."""
        return Trace(
            rng.integers(*self.prompt, count, endpoint=True),
            rng.integers(*self.output, count, endpoint=True),
        )


class _Tail(Settings):
    mean: float = Field(ge=1, le=LONGEST)
    """Of the length itself, tokens."""
    sigma: float = Field(ge=0, le=10)
    """Standard deviation of the logarithm of the length."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        mu = np.log(self.mean) - self.sigma**2 / 2
        return to_tokens(rng.lognormal(mu, self.sigma, count))


@final
class Lognormal(Lengths):
    """Lognormal lengths, given by the mean length and the sigma of its logarithm."""

    kind: Literal["lognormal"] = "lognormal"
    examples = ({"prompt": {"mean": 1000, "sigma": 0.5}, "output": {"mean": 250, "sigma": 0.5}},)
    prompt: _Tail
    output: _Tail

    @property
    def mean_len(self) -> float:
        """Mean tokens of prompt and output together."""
        return self.prompt.mean + self.output.mean

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return lognormal lengths, prompt and output independent."""
        return Trace(self.prompt.draw(rng, count), self.output.draw(rng, count))


_MOST_DRAWS = 100  # of a bell that is a hundred times as wide as its bounds, all are enough


class _Bell(Settings):
    mean: float
    """Of the normal distribution before it is truncated, tokens."""
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
        """Draw by rejection: with the mean within the bounds most draws are kept.

        Where the bell is so wide that few are, what is missing is drawn from its inverse.
        """
        low, high = self.min - 0.5, self.max + 0.5
        kept = np.empty(0)
        for _ in range(_MOST_DRAWS):
            if len(kept) >= count:
                break
            values = rng.normal(self.mean, self.std, 2 * count + 16)
            kept = np.concatenate([kept, values[(values >= low) & (values < high)]])
        if (missing := count - len(kept)) > 0:
            kept = np.concatenate([kept, self._inverted(rng.random(missing), low, high)])
        return np.clip(to_tokens(kept[:count]), self.min, self.max)

    def _inverted(
        self, shares: NDArray[np.float64], low: float, high: float
    ) -> NDArray[np.float64]:
        """Return quantiles of a bell so wide that it is flat between two bounds."""
        return low + shares * (high - low)


@final
class TruncatedNormal(Lengths):
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

    @property
    def mean_len(self) -> float:
        """Mean tokens of prompt and output together."""
        return self.prompt.mean + self.output.mean

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return truncated normal lengths, prompt and output independent."""
        return Trace(self.prompt.draw(rng, count), self.output.draw(rng, count))


class DatasetStatistics(NamedTuple):
    """Mean and standard deviation of a dataset's lengths, tokens, and where they come from."""

    prompt_mean: float
    prompt_std: float
    output_mean: float
    output_std: float
    source: str


_TURBOSPEC = "TurboSpec (arXiv 2406.14066v3) table 2, outputs of Vicuna-7B"
_TOKENS = (
    "measured on the Llama-3.1-8B token traces of SpecDecode-Bench (arXiv 2601.11580), requests of "
    "up to 1,500 output tokens, chat template included"
)

DATASETS: dict[str, DatasetStatistics] = {
    "sharegpt": DatasetStatistics(227, 264, 256, 249, _TURBOSPEC),
    "sonnet": DatasetStatistics(517, 10, 141, 22, _TURBOSPEC),
    "cnn_dailymail": DatasetStatistics(1067, 537, 108, 41, _TURBOSPEC),
    "gsm8k": DatasetStatistics(92.7, 19.7, 165.4, 53.4, _TOKENS),
    "instructcoder": DatasetStatistics(170.6, 56.4, 183.4, 135.3, _TOKENS),
    "arena": DatasetStatistics(
        52.3,
        60.7,
        189.5,
        184.3,
        "means: Zheng et al. 2023, LMSYS-Chat-1M (arXiv 2309.11998) table 1, Chatbot Arena "
        "Conversations; spread not published, relative spread of ShareGPT assumed",
    ),
    "spider": DatasetStatistics(
        200,
        110,
        28,
        18,
        "estimate, not a measurement: schema of 5.1 tables and 27.6 columns and a question of 13 "
        "words (Yu et al. 2018, Spider, section 4) in the prompt, one SQL query out",
    ),
    "hagrid": DatasetStatistics(
        430,
        250,
        128,
        0,
        "output fixed at 128 as in SmartSpec (arXiv 2406.14066v2) section 7; prompt is an "
        "estimate, not a measurement: a question and two to three Wikipedia passages",
    ),
}


@final
class Dataset(Lengths):
    """Lognormal lengths with the published mean and spread of a dataset.

    The names and sources are in `DATASETS`; ``specsim list`` prints them.
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
        """Return lognormal lengths, prompt and output independent."""
        stats = DATASETS[self.name]
        return Trace(
            _lognormal(rng, stats.prompt_mean, stats.prompt_std, count),
            _lognormal(rng, stats.output_mean, stats.output_std, count),
        )


def _lognormal(rng: np.random.Generator, mean: float, std: float, count: int) -> NDArray[np.int64]:
    """Draw lengths of this mean and standard deviation; those of the logarithm follow."""
    variance = float(np.log1p((std / mean) ** 2))
    mu, sigma = float(np.log(mean)) - variance / 2, float(np.sqrt(variance))
    return to_tokens(rng.lognormal(mu, sigma, count))


_Nested = Annotated[Lengths, LENGTHS, LENGTHS.any_member]


@final
class ShiftedLengths(Lengths):
    """The first share of the requests comes from one source, the rest from another."""

    kind: Literal["shift"] = "shift"
    examples = (
        {
            "at": 0.5,
            "before": {"kind": "dataset", "name": "gsm8k"},
            "after": {"kind": "dataset", "name": "sharegpt"},
        },
    )
    at: float = Field(gt=0, lt=1)
    """Share of the run's requests, in the order of arrival, that comes before the change."""
    before: _Nested
    after: _Nested

    @property
    def num_rows(self) -> int | None:
        """How many requests can be drawn before either source runs out."""
        before, after = self.before.num_rows, self.after.num_rows
        bounds = [] if before is None else [before / self.at]
        bounds += [] if after is None else [after / (1 - self.at)]
        return int(min(bounds)) if bounds else None

    @property
    def mean_len(self) -> float:
        """Mean tokens of prompt and output together."""
        return self.at * self.before.mean_len + (1 - self.at) * self.after.mean_len

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return requests of the one source, then of the other."""
        first = int(count * self.at)
        return self.before.draw(rng, first).followed_by(self.after.draw(rng, count - first))
