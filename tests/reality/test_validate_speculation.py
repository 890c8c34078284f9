"""A run with speculation, replayed: drafts and what was accepted of them are those of the run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run
from test_validate import made_up, write_requests

from specsim.core.errors import ConfigError
from specsim.reality.validation import Replaced, compose, validate
from specsim.reality.validation.run_folder import RECORD, load_run

PROFILE = Replaced(profile="h100/llama-3.1-8b")
LONGEST = 3
Entries = list[tuple[int, int, int]]


def walk(rng: np.random.Generator, output_len: int, *, finds: float = 1.0) -> Entries:
    """Return what a request drafts and accepts on its way through an answer."""
    entries, position = [], 1
    while position < output_len:
        accepted_len = 0
        if rng.random() < finds:
            draft_len = LONGEST if finds == 1.0 else int(rng.integers(1, LONGEST + 1))
            accepted_len = int(rng.integers(0, draft_len + 1))
            entries.append((position, draft_len, accepted_len))
        position += accepted_len + 1
    return entries


def add_accepted(folder: Path, accepted: Sequence[Entries], **speculative_config: Any) -> None:
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, entries in zip(rows, accepted, strict=True):
        row["accepted"] = entries
    path.write_text("\n".join(map(json.dumps, rows)))
    kwargs = {"max_num_seqs": 8, "speculative_config": speculative_config}
    meta = {"engine_kwargs": kwargs, "kv_cache": {"num_gpu_blocks": 9000, "block_size": 16}}
    (folder / "meta.json").write_text(json.dumps(meta))


def run_of(folder: Path, *, finds: float = 1.0, **speculative_config: Any) -> Path:
    """Write a run whose times are those that the simulator gives for its drafts."""
    folder.mkdir(exist_ok=True)
    write_requests(folder, made_up())
    rng = np.random.default_rng(7)
    output_lens = load_run(folder).runs[0]["output_len"].tolist()
    accepted = [walk(rng, output_len, finds=finds) for output_len in output_lens]
    add_accepted(folder, accepted, **speculative_config)
    write_requests(folder, validate(folder, PROFILE).simulated)
    add_accepted(folder, accepted, **speculative_config)
    return folder


METHODS: dict[str, dict[str, Any]] = {
    "eagle3, asynchronous": {"method": "eagle3", "num_speculative_tokens": LONGEST},
    "ngram, with misses": {
        "method": "ngram",
        "num_speculative_tokens": LONGEST,
        "prompt_lookup_min": 2,
        "finds": 0.6,
    },
}


@pytest.mark.parametrize("method", METHODS)
def test_every_draft_of_the_run_is_verified_again_and_no_other(tmp_path: Path, method: str) -> None:
    found = validate(run_of(tmp_path, **METHODS[method]), PROFILE)
    assert found.mean_error < 1e-6
    measured, simulated = found.details["measured_drafts"], found.details["simulated_drafts"]
    assert measured["num_drafts"] > 200
    # Of an asynchronous run, a step may be in flight for a request that has ended.
    for name, count in measured.items():
        assert simulated[name] == pytest.approx(count, rel=0.02 if "eagle" in method else 0)


def test_the_command_prints_what_became_of_the_drafts(tmp_path: Path, cli: Run) -> None:
    folder = run_of(tmp_path, **METHODS["ngram, with misses"])
    code, output, _ = cli("validate", folder, "--profile", PROFILE.profile)
    assert code == 0
    assert "drafts verified" in output
    assert "acceptance is the run's, by output position" in " ".join(output.split())


def test_a_schedule_by_batch_size_is_followed(tmp_path: Path) -> None:
    ranges = [[1, 4, 3], [5, 8, 1]]
    method = METHODS["eagle3, asynchronous"] | {"num_speculative_tokens_per_batch_size": ranges}
    found = validate(run_of(tmp_path, **method), PROFILE)
    drafts = found.details["simulated_drafts"]
    assert drafts["num_drafts"] < drafts["draft_tokens"] < 3 * drafts["num_drafts"]


def test_drafts_of_another_length_than_the_engine_says_are_noted(tmp_path: Path) -> None:
    folder = run_of(tmp_path, **METHODS["eagle3, asynchronous"])
    assert not any("drafts had" in note for note in validate(folder, PROFILE).notes)
    meta = json.loads((folder / "meta.json").read_text())
    meta["engine_kwargs"]["speculative_config"]["num_speculative_tokens"] = 2 * LONGEST
    (folder / "meta.json").write_text(json.dumps(meta))
    [note] = [note for note in validate(folder, PROFILE).notes if "drafts had" in note]
    assert f"{LONGEST:.2f} tokens in the mean and have {2 * LONGEST:.2f}" in note
    meta["policy"] = {"kind": "static", "k": LONGEST}  # as specsim observe takes it from the file
    (folder / "meta.json").write_text(json.dumps(meta))
    assert not any("drafts had" in note for note in validate(folder, PROFILE).notes)


def test_requests_with_an_error_are_left_out_with_a_note(tmp_path: Path) -> None:
    folder = run_of(tmp_path, **METHODS["ngram, with misses"])
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3] |= {"error": "server died", "last_token_ts": None, "first_token_ts": None}
    path.write_text("\n".join(map(json.dumps, rows)))
    found = validate(folder, PROFILE)
    assert len(found.measured["arrived_at"]) == len(rows) - 1
    assert "1 requests that ended with an error are left out" in found.notes


def fates(folder: Path, entries: Entries, config: dict[str, Any]) -> tuple[bytes, bytes | None]:
    """Return how long drafts survive in a run of one request of 12 tokens, and which are found."""
    run = made_up(1)
    run["output_len"][:] = 12
    write_requests(folder, run)
    add_accepted(folder, [entries], **config)
    request = compose(load_run(folder), PROFILE).requests[0]
    return request.recorded_lens[RECORD], request.offered_lens


def test_what_one_draft_shows_holds_for_later_ones(tmp_path: Path) -> None:
    config = METHODS["eagle3, asynchronous"]
    survival, offered = fates(tmp_path, [(1, 3, 2), (4, 3, 0), (5, 3, 3), (9, 3, 1)], config)
    # Tokens 1 and 2 were accepted and 3 was not; 4 was not; 5, 6 and 7 were; 9 was and 10 was not.
    assert list(survival[1:5]) == [2, 1, 0, 0]
    assert survival[5] >= 3  # 8 is not known
    assert list(survival[9:11]) == [1, 0]
    assert offered is None


def test_a_lookup_finds_what_it_found(tmp_path: Path) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3}
    _, offered = fates(tmp_path, [(2, 1, 1), (5, 3, 0)], config)
    assert offered is not None
    # Nothing at 1; one token at 2; position 3 never seen; nothing at 4; at 5 as long as was asked.
    assert list(offered[:8]) == [254, 0, 1, 254, 0, 254, 0, 0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "ngramm"}, "did you mean 'ngram'"),
        ({"num_speculative_tokens": 3}, "must be a mapping with a method, such as ngram"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "num_speculative_tokens"),
    ],
)
def test_bad_options_say_what_is_wrong(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    folder = run_of(tmp_path, **METHODS["ngram, with misses"])
    accepted = load_run(folder).accepted
    add_accepted(folder, accepted, **config)
    with pytest.raises(ConfigError, match=message):
        validate(folder, PROFILE)
