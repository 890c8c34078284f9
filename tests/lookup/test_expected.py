"""Lookups replayed on real answers: what vLLM's and Arctic's own code gave, request for request."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import data_folder

from specsim.tokens.draft_eval import evaluate_drafts, load_texts, parse_drafter

DATA = data_folder()
OPTIONS = {
    "min": "prompt_lookup_min",
    "k": "num_speculative_tokens",
    "depth": "max_tree_depth",
    "factor": "max_spec_factor",
    "minp": "min_token_prob",
    "tree": "use_tree",
    "global": "use_global_tree",
}
texts_of = cache(load_texts)  # several settings have the same
MAX = {"ngram": "prompt_lookup_max", "suffix": "num_speculative_tokens"}


def recorded(method: str) -> list[Any]:
    path = DATA / "expected" / f"{method}.json"
    if not path.exists():
        reason = f"{path} is not here (see SPECSIM_DATA)"
        return [pytest.param(method, "", [], marks=pytest.mark.skip(reason=reason), id=method)]
    results = json.loads(path.read_text())["results"]
    return [
        pytest.param(method, key, result["per_request"], id=f"{method}-{key}")
        for key, result in results.items()
    ]


@pytest.mark.parametrize(("method", "key", "rows"), recorded("ngram") + recorded("suffix"))
def test_every_request_counts_as_recorded(method: str, key: str, rows: list[list[int]]) -> None:
    name, *settings = key.split("|")
    path = Path(DATA / "tokens" / f"{name}.jsonl.gz")
    if not path.exists():
        pytest.skip(f"{path} is not here (see SPECSIM_DATA)")
    names = {**OPTIONS, "max": MAX[method]}
    pairs = (setting.split("=") for setting in settings)
    options = {names[short]: value.lower() for short, value in pairs}
    found = evaluate_drafts(parse_drafter(method, options, key), texts_of(path))
    assert [list(counts) for counts in found.per_request] == rows
