"""n-grams as vLLM looks them up on a GPU: the last match, and as many tokens for every request."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run as Cli
from conftest import tiny_config
from hypothesis import given
from hypothesis import strategies as st

from specsim.core.errors import ConfigError
from specsim.core.request import Text
from specsim.lookup.ngram import NgramGpuLookup, accepted_lens
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary
from specsim.tokens.draft_eval import Drafter, evaluate_drafts, load_texts

SPEC: dict[str, Any] = {
    "method": "ngram_gpu",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
TEXTS = st.lists(st.integers(0, 3), min_size=2, max_size=40)
BOUNDS = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda two: (two[0], sum(two)))


def drafted(known: list[int], shortest: int, longest: int, max_len: int) -> list[int]:
    """Return the draft, by the words of `NgramGpu`."""
    for size in range(longest, shortest - 1, -1):
        starts = [at for at in range(len(known) - size) if known[at : at + size] == known[-size:]]
        if starts and size <= len(known):
            found = known[starts[-1] + size :][:max_len]
            return found + [known[-1]] * (max_len - len(found))
    return [known[-1]] * max_len


def draft_of(known: list[int], shortest: int, longest: int, max_len: int) -> list[int]:
    lookup = NgramGpuLookup(shortest=shortest, longest=longest)
    lookup.start(0, Text(np.array(known, dtype=np.int32), len(known)))
    return list(lookup.draft(0, max_len).token_ids)


@given(TEXTS, BOUNDS, st.integers(1, 6))
def test_drafts_go_on_after_the_last_of_the_longest_matches(
    known: list[int], bounds: tuple[int, int], max_len: int
) -> None:
    assert draft_of(known, *bounds, max_len) == drafted(known, *bounds, max_len)


def test_of_equal_matches_the_last_counts_and_drafts_are_filled_up() -> None:
    known = [1, 2, 7, 1, 2, 8, 1, 2]
    assert draft_of(known, 2, 2, 2) == [8, 1]
    assert draft_of(known, 2, 2, 5) == [8, 1, 2, 2, 2]  # the text ends, and its last token fills up
    assert draft_of([1, 2, 3], 1, 2, 3) == [3, 3, 3]  # there is nothing to find


@given(TEXTS, st.data(), BOUNDS, st.integers(1, 6))
def test_what_survives_is_what_the_text_confirms(
    tokens: list[int], data: st.DataObject, bounds: tuple[int, int], max_len: int
) -> None:
    prompt_len = data.draw(st.integers(1, len(tokens) - 1))
    expected = []
    for known_len in range(prompt_len, len(tokens)):
        draft = drafted(tokens[:known_len], *bounds, max_len)
        pairs = zip(draft, tokens[known_len:], strict=False)
        agree = [own == recorded for own, recorded in pairs]
        expected.append([*agree, False].index(False))
    text = Text(np.array(tokens, dtype=np.int32), prompt_len)
    assert list(accepted_lens(text, *bounds, max_len)) == expected


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers that repeat pieces of their prompts."""
    rng = np.random.default_rng(5)
    phrases = [rng.integers(0, 50, size=rng.integers(2, 9)).tolist() for _ in range(12)]
    rows = [
        {
            "id": f"r{number}",
            "prompt_token_ids": [
                token for each in rng.integers(0, 12, 6) for token in phrases[each]
            ],
            "generated_token_ids": [t for each in rng.integers(0, 12, 10) for t in phrases[each]],
        }
        for number in range(16)
    ]
    path = tmp_path_factory.mktemp("tokens") / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def on_tokens(trace: Path, spec: dict[str, Any] = SPEC, **changes: Any) -> Experiment:
    config = tiny_config(acceptance={"kind": "token_match"}, policy="static")
    config["engine"] = {**config["engine"], "speculative_config": spec, **changes}
    lengths = {"kind": "trace", "path": str(trace)}
    config["workload"] = {"arrivals": {"kind": "poisson", "rate": 20.0}, "lengths": lengths}
    return Experiment.parse(config, "test")


def accepted(run: Run) -> list[int]:
    found: list[int] = Summary(run).tables.requests["accepted_tokens"].tolist()
    return found


@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_accepts_what_draft_eval_does(trace: Path, is_async: bool) -> None:
    experiment = on_tokens(trace, async_scheduling=is_async)
    assert experiment.engine.speculative_config is not None
    alone = evaluate_drafts(Drafter(experiment.engine.speculative_config), load_texts(trace))
    assert accepted(simulate(experiment, check=True)) == [row.accepted for row in alone.per_request]


def test_it_is_scheduled_asynchronously_and_the_hosts_is_not(trace: Path) -> None:
    assert on_tokens(trace).is_async
    assert not on_tokens(trace, {**SPEC, "method": "ngram"}).is_async


def test_drafts_are_verified_whether_or_not_anything_was_found(
    tiny: Callable[..., Experiment],
) -> None:
    def sums(method: str, probability: float) -> tuple[int, int]:
        spec = {**SPEC, "method": method, "match_probability": probability}
        engine = {**tiny_config()["engine"], "speculative_config": spec, "async_scheduling": False}
        run = simulate(tiny(engine=engine, policy="static"), check=True)
        table = Summary(run).tables.requests
        return int(table["draft_tokens"].sum()), int(table["accepted_tokens"].sum())

    of_host, found, nothing = sums("ngram", 0.3), sums("ngram_gpu", 0.3), sums("ngram_gpu", 0.0)
    assert found[1] == pytest.approx(of_host[1], rel=0.05)
    assert found[0] > 2 * of_host[0]
    assert nothing[0] > found[0]
    assert nothing[1] == 0


@pytest.mark.parametrize(
    ("spec", "engine", "why"),
    [
        (
            SPEC,
            {"vllm_version": "0.31"},
            "method = ngram_gpu: as vLLM's second model runner .* 0.32",
        ),
        (SPEC, {"scheduler": "prefill_first"}, "method = ngram_gpu: as vLLM's second model runner"),
        (
            {
                "method": "hybrid",
                "lookup": SPEC,
                "fallback": {"method": "eagle3", "num_speculative_tokens": 3},
            },
            {},
            "'ngram_gpu' never says whether it has found any; use ngram",
        ),
        ({**SPEC, "match_probability": 0.5}, {}, "match_probability = 0.5 has no effect"),
    ],
)
def test_what_it_cannot_be_combined_with_is_one_clear_line(
    trace: Path, spec: dict[str, Any], engine: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        on_tokens(trace, spec, **engine)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [({}, True), ({"vllm_version": "0.31"}, False), ({"scheduler": "prefill_first"}, False)],
)
def test_the_hosts_lookup_is_not_taken_for_the_gpus(
    tiny: Callable[..., Experiment], changes: dict[str, Any], is_said: bool
) -> None:
    engine = {**tiny_config()["engine"], "speculative_config": {**SPEC, "method": "ngram"}}
    engine |= {"max_num_batched_tokens": 1024} | changes
    warnings = Summary(simulate(tiny(engine=engine, policy="static"))).warnings
    assert any("method ngram_gpu" in text for text in warnings) is is_said


def test_what_it_costs_is_known_wherever_a_profile_is_asked(tmp_path: Path, cli: Cli) -> None:
    """Of a profile composed of kernels, whose error is asked for, too."""
    engine = {"speculative_config": {"method": "ngram_gpu", "num_speculative_tokens": 2}}
    config = tiny_config(engine=engine, profile="h100/qwen3-8b", policy="static")
    config["slo"] = {"ttft_ms": 500, "tpot_ms": 20}
    path = tmp_path / "experiment.yaml"
    path.write_text(json.dumps(config))
    code, _, error = cli(
        "capacity", path, "--replications", 1, "--num-requests", 60, "--attainment", 0.9
    )
    assert code == 0, error
    assert "with step times as far off as on four in five servers measured" in error


def test_who_knows_the_model_knows_how_often_there_is_a_match(
    tiny: Callable[..., Experiment],
) -> None:
    def drafted_by_bayes(probability: float) -> int:
        spec = {**SPEC, "match_probability": probability}
        engine = {**tiny_config()["engine"], "speculative_config": spec}
        table = Summary(simulate(tiny(engine=engine, policy="bayes"))).tables.requests
        return int(table["draft_tokens"].sum())

    assert drafted_by_bayes(0.0) == 0
    assert drafted_by_bayes(1.0) > 100
