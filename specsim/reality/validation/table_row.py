"""A row of a table of measured runs: the meaning of its cells."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.settings import nearest
from specsim.engine.versions import nearest_version, usual_utilization
from specsim.hardware.cuda_graphs import default_largest
from specsim.proposers import PROPOSERS
from specsim.reality.validation.measured_run import (
    DESCRIBED,
    METRICS,
    TABLE,
    MeasuredLengths,
    MeasuredRun,
)

MEAN_ALONE = "answers differ in length, and only their mean is known: evenly from 0.5 to 1.5 of it"
_EMPTY = frozenset({"", "-", "nan", "none", "null", "n/a"})
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.I)
_UNIFORM = re.compile(r"uniform (\d+)\.\.(\d+)")
_MEDIAN = re.compile(r"median (\d+)")
_SHARED = re.compile(r"(\d+) shared prefix \+ (\d+) suffix")
_KV_TOKENS = re.compile(r"(\d+) tokens")
_FLAGS = {
    **dict.fromkeys(("on", "true", "yes", "1"), True),
    **dict.fromkeys(("off", "false", "no", "0"), False),
}
_UNTOLD = 1 << 20  # longer than any answer
_CUT_OFF = 0.95  # of the limit, as mean length: then most answers end at the limit
SEVERAL = ("replicas", "num_replicas", "dp", "data_parallel_size")
STAGES = ("pp", "pipeline_parallel_size")
_LOOKUP = ("match_probability", "mean_match_len")
_SHARES = ("acceptance_rate", "prefix_hit_rate", "match_probability")
_ASIDE = 0.1  # difference from the counted mean, as a share, from which a stated length is doubtful
_ENGINE = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size")
_FIRST_SIMULATED = (0, 28)  # version whose rules the engine has
_LAST_OF_ONE_TOKEN = (0, 12)  # pull request 30330
_USUAL_SEQS = 256  # from this max_num_seqs on, the largest graph has this size
_FIRST_ASYNC = (0, 14)  # vLLM is asynchronous by default (release notes of v0.14.0)
_FIRST_ASYNC_DRAFT_MODEL = (0, 23)  # likewise with a draft model (v0.22.1, v0.23.0 config/vllm.py)


def filled(
    path: Path, line: int, cells: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the cells of a row with empty ones filled from ``--set``; else a ConfigError."""
    made = dict(cells)
    for column, value in given.items():
        known = list(dict.fromkeys((*cells, *DESCRIBED, *METRICS)))
        if column not in known:
            raise ConfigError(f"--set {column}={value}: no such column; {nearest(column, known)}")
        if made.get(column, "").lower() not in _EMPTY | {value.lower()}:
            raise ConfigError(
                f"--set {column}={value}: {path}, line {line} has {made[column]!r}; --set fills "
                "empty cells only: correct the file, or leave --set out"
            )
        made[column] = value
    return made


@dataclass
class TableRow:
    """The cells of a row, and the notes and gaps that reading them finds."""

    path: Path
    line: int
    cells: dict[str, str]
    notes: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    def run(self) -> MeasuredRun:
        """Return the run; a ConfigError if a cell does not fit its column."""
        self._check()
        measured = {name: value for name in METRICS if (value := self.number(name)) is not None}
        self._check_servers()
        method, k = self._speculation()
        concurrency, rate = self._load()
        num_prompts, num_warmups = self._num_prompts(rate), self.whole("num_warmups") or 0
        prompt, output = self._prompt(num_prompts), self._output(num_prompts)
        if self._is_other_engine():
            self.notes.append(f"engine = {self.text('engine')!r}: it is scheduled as by vLLM")
        self._compare_lengths(num_prompts, {"isl": prompt, "osl": output})
        if not measured:
            self.gaps.append("no measured value: give at least one, such as output_tok_s")
        return MeasuredRun(
            path=self.path,
            line=self.line,
            run_id=self.text("run_id") or f"row {self.line}",
            cells=self.cells,
            measured=measured,
            engine=self._engine(),
            tensor_parallel_size=self.whole("tp") or self.whole("tensor_parallel_size") or 1,
            method=method,
            num_speculative_tokens=k,
            rates=self._rates(k, measured),
            acceptance_spread=self._spread(),
            lookup=self._lookup(),
            concurrency=concurrency,
            request_rate=rate,
            burstiness=self.number("burstiness") or 1.0,
            num_prompts=num_prompts,
            num_warmups=num_warmups,
            is_eager=self.flag("enforce_eager"),
            graph_tokens=self._graph_tokens(k),
            counts_warmups=self._counts_warmups(measured, num_prompts, num_warmups, k),
            is_warm=self._is_warm(num_warmups, prompt),
            prompt=prompt,
            output=output,
            max_tokens=self._max_tokens(output),
            lengths_seed=self.whole("seed") or 0,
            kv_tokens=self._kv_tokens(),
            notes=tuple(self.notes),
            gaps=tuple(self.gaps),
        )

    def _check(self) -> None:
        """Raise a ConfigError unless each cell fits its column, even if it is not used."""
        kinds: dict[str, Callable[[str], Any]] = {
            "flag": self.flag,
            "whole": self.whole,
            "count": partial(self.whole, least=1),
            "number": self.number,
        }
        for kind, read in kinds.items():
            for column in TABLE["described"][kind]:
                read(column)
        for column in _SHARES:
            if (self.number(column) or 0.0) > 1:
                raise self.wrong(column, "a share between 0 and 1")

    def _check_servers(self) -> None:
        """Add a note if the load was that of several servers, of which one is simulated."""
        for column in SEVERAL:
            if self.text(column) not in ("", "1", "1.0"):
                self.gaps.append(
                    f"{column} = {self.cells[column]}: a row is simulated on one server; give the "
                    "load and the throughput of one of them, and leave the column out"
                )
        for column in STAGES:
            if self.text(column) not in ("", "1", "1.0") and not self.text("num_gpus"):
                self.gaps.append(
                    f"{column} = {self.cells[column]}, and num_gpus is empty: give the GPUs of "
                    "all stages"
                )

    def text(self, column: str) -> str:
        cell = self.cells.get(column, "")
        return "" if cell.lower() in _EMPTY else cell

    def wrong(self, column: str, rule: str) -> ConfigError:
        return ConfigError(
            f"{self.path}, line {self.line}: {column} = {self.cells[column]!r} must be {rule}; "
            "correct it, or leave the cell empty"
        )

    def number(self, column: str, rule: str = "a number of at least 0") -> float | None:
        cell = self.text(column)
        if not cell:
            return None
        value = float(cell) if _NUMBER.fullmatch(cell) else math.nan
        if not (math.isfinite(value) and value >= 0):
            raise self.wrong(column, rule)
        return value

    def whole(self, column: str, least: int = 0) -> int | None:
        """Return a whole number, which may be written as 5.0; None for an empty cell."""
        value = self.number(column)
        if value is not None and (value % 1 or value < least):
            raise self.wrong(column, f"a whole number of at least {least}")
        return None if value is None else int(value)

    def flag(self, column: str) -> bool | None:
        word = self.text(column).lower()
        if word and word not in _FLAGS:
            raise self.wrong(column, "on or off")
        return _FLAGS.get(word)

    def _speculation(self) -> tuple[str, int]:
        word = self.text("method").lower()
        k = self.whole("num_speculative_tokens")
        if k is None and word:
            self.gaps.append(
                f"num_speculative_tokens is empty, method is '{self.text('method')}': give the "
                "length of the drafts (one that changes cannot be repeated)"
            )
        if not word:
            if k:
                self.gaps.append(f"method is empty: say what drafts {k} tokens, such as eagle3")
            elif (length := self.number("acceptance_length") or 0) > 1:
                self.gaps.append(
                    f"acceptance_length = {length:g}, so tokens were drafted: give method and "
                    "num_speculative_tokens"
                )
            return "", k or 0
        try:
            PROPOSERS.find(word)
        except ConfigError as problem:
            self.gaps.append(f"method = '{word}': {problem}")
        return word, k or 0

    def _load(self) -> tuple[int | None, float | None]:
        clients, text = self.whole("concurrency", 1), self.text("request_rate").lower()
        if text in ("", "inf", "infinity"):
            if clients is None and text.startswith("inf"):
                return self.whole("num_prompts"), None  # all at once
            if clients is None:
                self.gaps.append(
                    "no load: concurrency and request_rate are empty; give the clients of a closed "
                    "loop, or requests per second"
                )
            return clients, None
        rate = self.number("request_rate", "a number above 0, or inf")
        if not rate:
            raise self.wrong("request_rate", "a number above 0, or inf")
        if clients is not None:
            self.notes.append("concurrency beside a request_rate is not applied as a limit")
        return clients, rate

    def _num_prompts(self, rate: float | None) -> int:
        count = self.whole("num_prompts", 1)
        if count is None:
            seconds, per_second = self.number("duration_s"), self.number("request_throughput")
            count = round((seconds or 0) * (per_second or rate or 0))
            if count:
                self.notes.append(f"num_prompts is empty: {count}, from duration_s and the rate")
            else:
                self.gaps.append("num_prompts is empty: give the number of requests")
        return count

    def _prompt(self, count: int) -> MeasuredLengths | None:
        total, found = self.number("total_input_tokens"), self._lengths("isl")
        hits = self.number("prefix_hit_rate")
        if found is not None and found.shared and hits:
            # More than the common prefix: the server had met these very prompts before.
            shared = max(found.shared, round(hits * found.mean))
            return replace(found, shared=shared)
        return found or (MeasuredLengths(total / count) if total and count else None)

    def _is_warm(self, num_warmups: int, prompt: MeasuredLengths | None) -> bool:
        """Return whether the first request found the common prefix in the cache.

        It did if there was a warm-up, or if the hit rate includes the first request's prefix.
        """
        if self.flag("prefix_caching") is False or num_warmups:
            return self.flag("prefix_caching") is not False
        shared, hits = self._lengths("isl"), self.number("prefix_hit_rate")
        if not (prompt and shared and shared.shared and hits):
            return False
        return hits >= shared.shared / prompt.mean

    def _output(self, count: int) -> MeasuredLengths | None:
        """Return the lengths of the answers: the counted ones if they could end by themselves."""
        given = self._lengths("osl")
        if given is not None and (given.is_spread or self.flag("ignore_eos")):
            return given
        mean = self._mean("osl", count)
        found = MeasuredLengths(mean) if mean else given
        if found is None or self._ends_at_a_limit(found.mean, given):
            return found
        self.notes.append(MEAN_ALONE)
        return replace(found, differ=True)

    def _compare_lengths(self, count: int, taken: dict[str, MeasuredLengths | None]) -> None:
        """Add notes where stated lengths differ from counted ones."""
        for column, lens in taken.items():
            counted = self._mean(column, count)
            if lens and counted and abs(lens.mean / counted - 1) > _ASIDE:
                self.notes.append(
                    f"{column} says {lens.mean:,.0f} tokens, what was counted {counted:,.0f}: the "
                    "former counts"
                )

    def _mean(self, column: str, count: int) -> float:
        """Return the mean length by the row's counters and rates; 0 if it has none."""
        is_prompt = column == "isl"
        total = self.number("total_input_tokens" if is_prompt else "total_output_tokens")
        tokens, requests = self.number("output_tok_s"), self.number("request_throughput")
        if is_prompt:
            tokens = max(0.0, (self.number("total_tok_s") or 0.0) - (tokens or math.inf))
        return total / count if total and count else tokens / requests if tokens and requests else 0

    def _ends_at_a_limit(self, mean: float, given: MeasuredLengths | None) -> bool:
        """Return whether answers of this mean ended at their limit, nearly all of one length."""
        asked = self.whole("max_tokens", 1), given and given.mean, mean
        return any(each and not each % 1 and _CUT_OFF * each <= mean <= each for each in asked)

    def _max_tokens(self, output: MeasuredLengths | None) -> int | None:
        """Return the clients' limit if most answers ended before it; else None."""
        if output is None or output.is_spread or self.flag("ignore_eos"):
            return None
        asked, given = self.whole("max_tokens", 1), self._lengths("osl")
        if asked is None and given is not None and not given.mean % 1:
            asked = int(given.mean) if given.mean > output.mean else None
        if asked is None:
            return _UNTOLD if output.mean % 1 else None  # a whole mean: all at the limit
        return max(asked, ceil(output.mean)) if output.mean < _CUT_OFF * asked else None

    def _lengths(self, column: str) -> MeasuredLengths | None:
        cell = self.text(column)
        uniform, shared = _UNIFORM.fullmatch(cell), _SHARED.fullmatch(cell)
        if uniform:
            low, high = int(uniform[1]), int(uniform[2])
            if not 1 <= low <= high:
                raise self.wrong(column, "uniform LOW..HIGH with 1 <= LOW <= HIGH")
            return MeasuredLengths((low + high) / 2, (low, high))
        if median := _MEDIAN.fullmatch(cell):
            return self._around(column, int(median[1]))
        if shared:
            prefix, own = int(shared[1]), int(shared[2])
            return MeasuredLengths(prefix + own, shared=prefix)
        mean = self.number(
            column, "tokens, uniform LOW..HIGH, median N, or N shared prefix + M suffix"
        )
        return MeasuredLengths(mean) if mean else None

    def _around(self, column: str, median: int) -> MeasuredLengths | None:
        """Return lengths with a stated median, and the mean that was counted."""
        mean = self._mean(column, self.whole("num_prompts", 1) or 0)
        if mean >= median > 0:
            return MeasuredLengths(mean, median=median)
        total = f"total_{'input' if column == 'isl' else 'output'}_tokens"
        needed = (
            f"{column} = 'median {median}' needs a mean of at least as much (found: {mean:g}): "
            f"give {total}, or request_throughput and output_tok_s"
            f"{', total_tok_s' * (column == 'isl')}"
        )
        if needed not in self.gaps:  # lengths are read several times
            self.gaps.append(needed)
        return None

    def _engine(self) -> dict[str, Any]:
        options: dict[str, Any] = {name: self.whole(name, 1) for name in _ENGINE}
        tokens, block_size = self._kv_tokens(), options["block_size"] or 16  # vLLM's default
        blocks = self.whole("num_gpu_blocks", 2) if tokens is None else tokens // block_size
        options |= {
            "gpu_memory_utilization": self.number("gpu_memory_utilization"),
            "enable_prefix_caching": self.flag("prefix_caching"),
            "enforce_eager": self.flag("enforce_eager"),
            "num_gpu_blocks": blocks,
            "async_scheduling": self._is_async(),
        }
        if version := self._said_version():
            options["vllm_version"] = nearest_version(version)
            if options["gpu_memory_utilization"] is None:
                options["gpu_memory_utilization"] = usual_utilization(version)
        return {name: value for name, value in options.items() if value is not None}

    def _kv_tokens(self) -> int | None:
        match = _KV_TOKENS.fullmatch(self.text("num_gpu_blocks"))
        return int(match[1]) if match else None

    def _is_async(self) -> bool | None:
        """Return whether the row, or its version, schedules asynchronously; None if not known."""
        if self.text("async_scheduling"):
            return self.flag("async_scheduling")
        version, is_draft_model = self._version(), self.text("method") == "draft_model"
        first = _FIRST_ASYNC_DRAFT_MODEL if is_draft_model else _FIRST_ASYNC
        return False if version and version < first else None

    def _version(self) -> tuple[int, int] | None:
        """Return major and minor version of vLLM."""
        found = re.match(r"v?(\d+)\.(\d+)", self._said_version())
        return (int(found[1]), int(found[2])) if found else None

    def _said_version(self) -> str:
        """Return vLLM's version as the row has it; empty for another engine."""
        return "" if self._is_other_engine() else self.text("engine_version")

    def _is_other_engine(self) -> bool:
        engine = self.text("engine").lower()
        return bool(engine) and not engine.startswith("vllm")

    def _rates(self, k: int, measured: Mapping[str, float]) -> tuple[float, ...]:
        """Return the row's acceptance by position; derived from its mean if it has no more."""
        if not k:
            return ()
        length = self._acceptance_length(k, measured)
        cell = self.text("accept_rate_per_pos")
        if not cell:
            return self._geometric(k, length)
        try:
            rates = [float(part) for part in cell.strip("[]").replace(",", ";").split(";")]
        except ValueError:
            rates = [math.nan]
        if not all(0 <= r <= 1 for r in rates) or any(b > a for a, b in pairwise(rates)):
            raise self.wrong(
                "accept_rate_per_pos",
                "shares of all drafts between 0 and 1, separated by ';', none above the one before",
            )
        if len(rates) < k or any(rates[k:]):
            self.gaps.append(
                f"accept_rate_per_pos has {len(rates)} rates for num_speculative_tokens = {k}: "
                "give one for each position"
            )
            return ()
        return self._scaled(rates[:k], length)

    def _acceptance_length(self, k: int, measured: Mapping[str, float]) -> float | None:
        drafts, share = measured.get("num_drafts"), measured.get("acceptance_rate")
        length = measured.get("acceptance_length")
        if length is None and drafts and "num_accepted_tokens" in measured:
            length = 1 + measured["num_accepted_tokens"] / drafts
        if length is None and share is not None:
            length = 1 + k * share
        if length is not None and not 1 <= length <= k + 1:
            self.gaps.append(
                f"acceptance_length = {length:g} must lie between 1 and num_speculative_tokens + 1 "
                f"= {k + 1}"
            )
            return None
        return length

    def _geometric(self, k: int, length: float | None) -> tuple[float, ...]:
        if length is None:
            self.gaps.append(
                f"no acceptance for num_speculative_tokens = {k}: give accept_rate_per_pos or "
                "acceptance_length"
            )
            return ()
        low, high = 0.0, 1.0
        for _ in range(60):
            alpha = (low + high) / 2
            is_less = sum(alpha ** (j + 1) for j in range(k)) < length - 1
            low, high = (alpha, high) if is_less else (low, alpha)
        self.notes.append("no accept_rate_per_pos: each position as likely as the one before it")
        return tuple(high ** (j + 1) for j in range(k))

    def _scaled(self, rates: list[float], length: float | None) -> tuple[float, ...]:
        """Return the rates, often of samples of a log, scaled to the total acceptance."""
        if length is None or not sum(rates):
            return tuple(rates)
        factor = (length - 1) / sum(rates)
        if abs(factor - 1) > 0.05:
            self.notes.append(
                f"accept_rate_per_pos says {1 + sum(rates):.3f} tokens per draft, "
                f"acceptance_length {length:.3f}: the former counts"
            )
            return tuple(rates)
        return tuple(min(rate * factor, 1.0) for rate in rates)

    def _spread(self) -> float | None:
        if self.text("acceptance_spread").lower() == "inf":
            return math.inf
        spread = self.number("acceptance_spread")
        if spread == 0:
            raise self.wrong("acceptance_spread", "a number above 0, or inf")
        return spread

    def _graph_tokens(self, k: int) -> int | None:
        """Return the largest CUDA graph as in the row, or as a vLLM before 0.28 chose it.

        Versions up to 0.12 chose it for decodes of one token, even with drafts.
        """
        named, version = self.whole("max_cudagraph_capture_size"), self._version()
        if named or version is None or version >= _FIRST_SIMULATED:
            return named
        decode_len = 1 if version <= _LAST_OF_ONE_TOKEN else 1 + k
        return default_largest(self.whole("max_num_seqs") or _USUAL_SEQS, decode_len)

    def _lookup(self) -> dict[str, float]:
        told = {name: self.number(name) for name in _LOOKUP}
        return {name: number for name, number in told.items() if number is not None}

    def _counts_warmups(
        self, measured: Mapping[str, float], count: int, num_warmups: int, k: int
    ) -> bool:
        """Return whether the server's counters exceed the client's tokens by those of a warm-up."""
        total = self.number("total_output_tokens")
        if not (num_warmups and total and {"num_drafts", "num_accepted_tokens"} <= set(measured)):
            return False
        more = measured["num_drafts"] + measured["num_accepted_tokens"] + count - total
        return more > k * count  # an answer may end inside its last draft
