"""Lengths of datasets by name."""

from typing import Literal, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from specsim.core.settings import nearest
from specsim.workload.lengths import Lengths, to_tokens
from specsim.workload.trace import Trace


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
