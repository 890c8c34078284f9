"""Token traces: made from text of every form, and described."""

import base64
import gzip
import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, data_folder, needs
from hypothesis import given
from hypothesis import strategies as st

from specsim.core.request import Request, Text
from specsim.core.version import __version__
from specsim.tokens import describe
from specsim.tokens.convert import SPLIT
from specsim.tokens.describe import (
    DRAFTERS,
    DraftWorth,
    Overlap,
    advice,
    describe_tokens,
    empirical_entropy,
    measure_overlaps,
)
from specsim.tokens.draft_eval import evaluate_drafts, load_texts, parse_drafter

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("tiktoken")

WORDS = ["user", "assistant", "human", "gpt", "system", *":abcde"]
PAIR = {"prompt": "a b c", "response": "a b d"}


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A tokenizer.json whose tokens are words, and which asks for what must be left undone."""
    vocabulary = {word: number for number, word in enumerate(["?", "<s>", *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def ranks_file(folder: Path, extra: tuple[bytes, ...] = (b"ab", b" ab")) -> Path:
    path = folder / "tokenizer.model"
    tokens = [*(bytes([byte]) for byte in range(256)), *extra]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    path.write_text("\n".join(lines) + "\n")
    return path


def log(folder: Path, content: Any, name: str = "log.jsonl") -> Path:
    """Write entries as JSON lines, or as JSON if the name ends so."""
    path = folder / name
    if name.endswith(".json"):
        path.write_text(json.dumps(content))
    else:
        data = "".join(json.dumps(entry) + "\n" for entry in content).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def spoken(path: Path) -> list[tuple[str, str, str]]:
    """Return id, prompt and answer of a token trace in words."""
    names = ["?", "<s>", *WORDS]
    data = path.read_bytes()
    rows = [json.loads(line) for line in (gzip.decompress(data) if path.suffix == ".gz" else data)
            .decode().splitlines()]  # fmt: skip
    assert rows[0].pop("specsim_version") == __version__
    assert all(list(row) == ["id", "prompt_token_ids", "generated_token_ids"] for row in rows)
    return [
        (row["id"], *(" ".join(names[token] for token in row[field]) for field in list(row)[1:]))
        for row in rows
    ]


SHAREGPT = {
    "id": "x",
    "conversations": [
        {"from": "gpt", "value": "e"},
        {"from": "human", "value": "a"},
        {"from": "gpt", "value": "b"},
        {"from": "human", "value": "c"},
        {"from": "gpt", "value": "d"},
    ],
}
CHAT = [
    {"role": "system", "content": "e"},
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": "b"},
]
FORMS: dict[str, tuple[str, list[dict[str, Any]], list[tuple[str, str, str]]]] = {
    **{
        field: ("log.jsonl", [{"prompt": "a b c", field: "d"}], [("0", "a b c", "d")])
        for field in ("output", "response", "completion", "answer", "generated_text")
    },
    "id": ("log.jsonl", [{"id": 7, "timestamp": 1.5, **PAIR}], [("7", "a b c", "a b d")]),
    "gzip": ("log.jsonl.gz", [PAIR, PAIR], [(n, "a b c", "a b d") for n in "01"]),
    "JSON list": ("log.json", [PAIR], [("0", "a b c", "a b d")]),
    "empty prompt": ("log.jsonl", [{"prompt": "", "output": "d"}], [("0", "", "d")]),
    "messages": (
        "log.jsonl", [{"messages": CHAT}], [("0", "system : e user : a assistant :", "b")]),
    "messages go on": (
        "log.jsonl",
        [{"messages": [*CHAT, {"role": "user", "content": "c"}]}],
        [("0", "system : e user : a assistant :", "b")],
    ),
    "messages and a field": (
        "log.jsonl",
        [{"messages": CHAT[:2], "response": "d"}],
        [("0", "system : e user : a assistant :", "d")],
    ),
    "ShareGPT": (
        "log.json",
        [SHAREGPT, {"id": "y", "conversations": []}],
        [
            ("x-1", "gpt : e human : a gpt :", "b"),
            ("x-2", "gpt : e human : a gpt : b human : c gpt :", "d"),
        ],
    ),
    "ShareGPT in lines": (
        "log.jsonl",
        [{"conversations": SHAREGPT["conversations"][1:3]}],
        [("0-1", "human : a gpt :", "b")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_text(cli: Run, tmp_path: Path, words: Path, form: str) -> None:
    name, content, expected = FORMS[form]
    path = log(tmp_path, content, name)
    code, out, err = cli("tokens", "from-text", path, "--tokenizer", words, "--out", "t.jsonl.gz")
    assert (code, err) == (0, "")
    assert spoken(tmp_path / "t.jsonl.gz") == expected
    counts = [sum(len(row[column].split()) for row in expected) for column in (1, 2)]
    assert out == (
        f"t.jsonl.gz: {len(expected)} requests, {counts[0]} prompt tokens, "
        f"{counts[1]} output tokens\n"
    )


def test_the_history_of_a_turn_begins_the_next(tmp_path: Path, cli: Run, words: Path) -> None:
    path = log(tmp_path, [SHAREGPT], "log.json")
    assert cli("tokens", "from-text", path, "--tokenizer", words, "--out", "t.jsonl")[0] == 0
    (_, first, answer), (_, second, _) = spoken(tmp_path / "t.jsonl")
    assert second.startswith(f"{first} {answer}")


def test_the_same_log_gives_the_same_bytes(tmp_path: Path, cli: Run, words: Path) -> None:
    path = log(tmp_path, [PAIR] * 600)
    for name in ("one.jsonl.gz", "two.jsonl.gz"):
        assert cli("tokens", "from-text", path, "--tokenizer", words, "--out", name)[0] == 0
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()


def test_tiktoken_merges_within_the_pieces_of_the_split(cli: Run, tmp_path: Path) -> None:
    path = log(tmp_path, [{"prompt": "ab ab1", "output": "aab"}])
    ranks = ranks_file(tmp_path)
    code, _, err = cli("tokens", "from-text", path, "--tokenizer", ranks, "--out", "t.jsonl")
    assert code == 0
    assert "258 ranks" in err
    row = json.loads((tmp_path / "t.jsonl").read_text())
    assert row["prompt_token_ids"] == [256, 257, ord("1")]
    assert row["generated_token_ids"] == [ord("a"), 256]


def test_the_split_of_cl100k() -> None:
    regex = pytest.importorskip("regex")
    text = "We'LL pay 12345 €, \n\n  twice!\n"
    pieces = ["We", "'LL", " pay", " ", "123", "45", " €,", " \n\n", " ", " twice", "!\n"]
    assert regex.findall(SPLIT, text) == pieces


def test_round_trip_into_draft_eval(cli: Run, tmp_path: Path, words: Path) -> None:
    path = log(tmp_path, [{"prompt": "a b c d e", "output": "a b c d e"}])
    assert cli("tokens", "from-text", path, "--tokenizer", words, "--out", "t.jsonl")[0] == 0
    options = ("--opt", "num_speculative_tokens=3", "--opt", "prompt_lookup_max=1")
    args = ("--proposer", "ngram", "--tokens", "t.jsonl", *options, "--json", "d.json")
    assert cli("draft-eval", *args)[0] == 0
    result = json.loads((tmp_path / "d.json").read_text())
    # "a" is prefill's, "b c d" are drafted and accepted, "e" is the bonus token.
    assert (result["steps"], result["accepted"], result["output_tokens"]) == (1, 3, 5)


BAD_LOGS: dict[str, tuple[Any, str]] = {
    "no answer": ({"prompt": "a"}, "line 2: needs one answer"),
    "two answers": ({"prompt": "a", "output": "b", "answer": "c"}, "needs one answer"),
    "no prompt": ({"output": "a"}, "line 2: no value for 'prompt'"),
    "empty answer": ({"prompt": "a", "output": ""}, "line 2: output is empty"),
    "no token": ({"id": "q", "prompt": "a", "output": " "}, "the answer of request 'q'"),
    "no text": ({"prompt": "a", "output": 7}, "line 2: output is no text but int"),
    "half a character": ({"prompt": "a", "output": "b\ud83d"}, "line 2: not JSON: holds half"),
    "tokens": ({"prompt_token_ids": [1], "generated_token_ids": [2]}, "holds token ids already"),
    "no assistant": ({"messages": CHAT[:2]}, "line 2: no message has the role 'assistant'"),
    "empty message": (
        {"messages": [{"role": "assistant", "content": None}]}, "assistant message is empty"),
    "tool call": (
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "turn 0 of 'messages' calls"),
    "image": (
        {"messages": [{"role": "user", "content": [{"image_url": {}}]}]}, "text but NoneType"),
    "no role": ({"messages": [{"content": "a"}]}, "turn 0 of 'messages' has no 'role'"),
    "no list": ({"messages": "a"}, "'messages' is no list"),
    "empty turn": (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": ""}]},
        "line 2: turn 1 of 'conversations' is empty",
    ),
    "no object": ([1], "line 2: holds a list"),
}  # fmt: skip


@pytest.fixture
def refused(cli: Run, tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail, with one line and nothing written; return the line."""

    def run(*args: object) -> str:
        before = sorted(tmp_path.iterdir())
        code, out, err = cli("tokens", *args)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert sorted(tmp_path.iterdir()) == before
        return err

    return run


Refused = Callable[..., str]


@pytest.mark.parametrize("name", BAD_LOGS)
def test_bad_logs(refused: Refused, tmp_path: Path, words: Path, name: str) -> None:
    entry, message = BAD_LOGS[name]
    path = log(tmp_path, [PAIR, entry])
    err = refused("from-text", path, "--tokenizer", words, "--out", "new/t.jsonl")
    assert message in err
    assert "log.jsonl" in err


def test_a_list_entry_is_named_by_its_number(refused: Refused, tmp_path: Path, words: Path) -> None:
    path = log(tmp_path, [PAIR, {"prompt": "a"}], "log.json")
    err = refused("from-text", path, "--tokenizer", words, "--out", "t.jsonl")
    assert "log.json, entry 1: needs one answer" in err


NO_LOGS = {
    "missing": (None, "cannot be read"),
    "empty": (b"", "is empty"),
    "csv": (b"prompt,response\na,b\n", "holds no JSON; give JSON lines with 'prompt'"),
    "plain text": (b"Once upon a time\nthere was\n", "holds no JSON; give JSON lines"),
    "cut": (b'{"prompt": "a", "output": "b"}\n{"prompt": "a", "outp', "line 2: not JSON"),
    "nothing answered": (b'[{"conversations": []}]', "no answer in it"),
}


@pytest.mark.parametrize("name", NO_LOGS)
def test_files_that_are_no_logs(refused: Refused, tmp_path: Path, words: Path, name: str) -> None:
    content, message = NO_LOGS[name]
    path = tmp_path / "log.any"
    if content is not None:
        path.write_bytes(content)
    err = refused("from-text", path, "--tokenizer", words, "--out", "t.jsonl")
    assert message in err
    assert "log.any" in err


SENTENCEPIECE = b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\n\x0c\n\x03<s>"
RANK = base64.b64encode(b"a") + b" 0\n"
NO_TOKENIZERS = {
    "missing": (None, "cannot be read"),
    "SentencePiece": (SENTENCEPIECE, "is a SentencePiece model"),
    "prose": (b"Once upon a time\n", "is no tokenizer"),
    "empty": (b"", "is no tokenizer"),
    "other JSON": (b'{"add_bos_token": true}', "has no 'model' (found: add_bos_token)"),
    "cut JSON": (b'{"model": {', "not JSON"),
    "odd model": (b'{"model": {"type": "Odd"}}', "is not a tokenizer.json that can be read"),
    "few ranks": (RANK, "has no rank for 255 of the 256 bytes"),
    "cut ranks": (RANK + b"YQ", "line 2: is not a token in base64 and its rank"),
    "ranks twice": (RANK + base64.b64encode(b"b") + b" 0\n", "two tokens the same rank"),
}


@pytest.mark.parametrize("name", NO_TOKENIZERS)
def test_files_that_are_no_tokenizers(refused: Refused, tmp_path: Path, name: str) -> None:
    content, message = NO_TOKENIZERS[name]
    path = tmp_path / "tok"
    if content is not None:
        path.write_bytes(content)
    err = refused("from-text", log(tmp_path, [PAIR]), "--tokenizer", path, "--out", "t.jsonl")
    assert message in err


@pytest.mark.parametrize("library", ["tokenizers", "tiktoken"])
def test_a_missing_library_is_said(
    refused: Refused, tmp_path: Path, words: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    path = words if library == "tokenizers" else ranks_file(tmp_path)
    err = refused("from-text", log(tmp_path, [PAIR]), "--tokenizer", path, "--out", "t.jsonl")
    assert f"needs the library '{library}'" in err
    assert "pip install 'llm-specsim[tokens]'" in err


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("t.json", "written as .jsonl or"),
        ("log.jsonl/t.jsonl", "be written"),
        ("log.jsonl", "is the log itself"),
    ],
)
def test_bad_outputs(refused: Refused, tmp_path: Path, words: Path, out: str, message: str) -> None:
    path = log(tmp_path, [PAIR])
    assert message in refused("from-text", path, "--tokenizer", words, "--out", out)


# Descriptions


def trie_entropy(outputs: list[list[int]], depth: int) -> tuple[float, float, list[float]]:
    """The definition, by a trie: every substring of every output is walked."""
    children: dict[tuple[int, ...], Counter[int]] = {}
    for output in outputs:
        for start in range(len(output)):
            for end in range(start, min(start + depth, len(output))):
                node = tuple(output[start:end])
                children.setdefault(node, Counter())[output[end]] += 1
    rows = []
    for node, visits in children.items():
        total = sum(visits.values())
        bits = -sum(n / total * math.log2(n / total) for n in visits.values())
        rows.append((len(node), total, bits))

    def mean(chosen: list[tuple[int, int, float]]) -> float:
        return sum(n * bits for _, n, bits in chosen) / max(1, sum(n for _, n, _ in chosen))

    longest = max(length for length, _, _ in rows)
    by_len = [mean([row for row in rows if row[0] == length]) for length in range(longest + 1)]
    return mean(rows), mean([row for row in rows if row[1] > 1]), by_len


outputs_of_few_tokens = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=6
)


@given(outputs=outputs_of_few_tokens, depth=st.integers(1, 6))
def test_entropy_is_that_of_a_trie(outputs: list[list[int]], depth: int) -> None:
    bits, repeated, by_len = trie_entropy(outputs, depth)
    entropy = empirical_entropy([np.array(each, dtype=np.int32) for each in outputs], depth)
    assert entropy.bits == pytest.approx(bits, abs=1e-9)
    assert entropy.repeated == pytest.approx(repeated, abs=1e-9)
    assert entropy.by_context_len == pytest.approx(by_len, abs=1e-9)


def test_entropy_of_known_texts() -> None:
    coin = np.array([0, 1] * 50, dtype=np.int32)
    entropy = empirical_entropy([coin], depth=2)
    assert entropy.by_context_len == pytest.approx([1.0, 0.0])  # fair, but each tells the next
    assert entropy.bits == pytest.approx(100 / 199)


def slow_overlap(texts: list[Text], n: int) -> dict[str, float]:
    """The definition, by sets of n-grams."""

    def grams(tokens: list[int]) -> list[tuple[int, ...]]:
        return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]

    covered: Counter[str] = Counter()
    total, earlier = 0, set[tuple[int, ...]]()
    for text in texts:
        tokens = text.token_ids.tolist()
        prompt, output = tokens[: text.prompt_len], tokens[text.prompt_len :]
        marks: dict[str, set[int]] = {
            name: set() for name in ("own_prompt", "own_output", "earlier_outputs", "anywhere")
        }
        for place, gram in enumerate(grams(output)):
            for name, is_there in (
                ("own_prompt", gram in grams(prompt)),
                ("own_output", gram in grams(output)[:place]),
                ("earlier_outputs", gram in earlier),
            ):
                if is_there:
                    marks[name].update(range(place, place + n))
                    marks["anywhere"].update(range(place, place + n))
        earlier.update(grams(output))
        covered.update({name: len(places) for name, places in marks.items()})
        total += len(output)
    return {name: count / total for name, count in covered.items()}


tokens_of = st.lists(st.integers(0, 2), max_size=14)
texts_of_few_tokens = st.lists(
    st.tuples(tokens_of, tokens_of.filter(bool)), min_size=1, max_size=5
).map(
    lambda pairs: [Text(np.array(p + o, dtype=np.int32), len(p)) for p, o in pairs]
)  # fmt: skip


@given(texts=texts_of_few_tokens)
def test_overlaps_are_those_of_sets(texts: list[Text]) -> None:
    has_prompts = any(text.prompt_len for text in texts)
    found = measure_overlaps(texts)
    assert found
    for overlap in found:
        expected = slow_overlap(texts, overlap.n)
        assert overlap.own_prompt == (
            pytest.approx(expected["own_prompt"]) if has_prompts else None
        )
        assert overlap.own_output == pytest.approx(expected["own_output"])
        assert overlap.earlier_outputs == pytest.approx(expected["earlier_outputs"])
        assert overlap.anywhere == pytest.approx(expected["anywhere"])
        assert overlap.new == pytest.approx(1 - expected["anywhere"])


@pytest.fixture
def only_ngram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "DRAFTERS", describe.DRAFTERS[:1])


def token_trace(folder: Path) -> Path:
    rows = [
        {"id": str(n), "prompt_token_ids": [n], "generated_token_ids": [*range(10), *range(10)]}
        for n in range(3)
    ]
    return log(folder, rows, "tokens.jsonl")


@pytest.mark.usefixtures("only_ngram")
def test_describe_prints_tables_and_a_line_in_words(cli: Run, tmp_path: Path) -> None:
    code, out, err = cli("tokens", "describe", token_trace(tmp_path))
    assert (code, err) == (0, "")
    for word in ("empirical entropy of 3 outputs", "8-grams", "tokens per step", "ngram"):
        assert word in out
    last = out.splitlines()[-1]
    assert last.startswith("ngram looks worth trying")
    assert last.endswith("`specsim run` has both.")


@pytest.mark.usefixtures("only_ngram")
def test_describe_prints_json(cli: Run, tmp_path: Path) -> None:
    path = token_trace(tmp_path)
    args = ("tokens", "describe", path, "--json", "--sample", 2, "--seed", 1)
    code, out, _ = cli(*args)
    assert code == 0
    assert cli(*args)[1] == out
    values = json.loads(out)
    assert (values["num_requests"], values["num_sampled"]) == (3, 2)
    assert (values["prompt_tokens"], values["output_tokens"]) == (3, 60)
    assert (values["distinct_tokens"], values["num_unrecorded_prompts"]) == (10, 0)
    eight = values["overlaps"][-1]
    assert eight["n"] == 8
    assert eight["own_output"] == pytest.approx(30 / 60)
    assert eight["earlier_outputs"] == pytest.approx(40 / 60)
    assert eight["new"] == pytest.approx(10 / 60)
    (drafter,) = values["drafters"]
    assert drafter["method"] == "ngram"


@pytest.mark.usefixtures("only_ngram")
def test_requests_that_stand_twice_are_counted_and_that_is_said(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    one = {"prompt_token_ids": [1, 2], "generated_token_ids": [3, 4]}
    other = {"prompt_token_ids": [1], "generated_token_ids": [2, 3, 4]}  # divided elsewhere
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (one, other, one, one)))
    values = json.loads(cli("tokens", "describe", path, "--json")[1])
    assert values["num_repeated"] == 2
    assert " 2 requests are earlier ones again, whose answers suffix knows" in values["advice"]


@pytest.mark.usefixtures("only_ngram")
def test_only_the_first_requests_of_a_long_trace_are_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests: list[Request] = load_texts(token_trace(tmp_path))
    monkeypatch.setattr(describe, "REPLAYED_TOKENS", 43)
    assert describe_tokens(requests, 100, 0).num_replayed == 2
    monkeypatch.setattr(describe, "REPLAYED_TOKENS", 1)
    assert describe_tokens(requests, 100, 0).num_replayed == 1


def test_suffix_learns_from_earlier_requests(tmp_path: Path) -> None:
    description = describe_tokens(load_texts(token_trace(tmp_path)), 100, 0)
    ngram, on_gpu, suffix = description.drafters
    assert [each.method for each in description.drafters] == ["ngram", "ngram_gpu", "suffix"]
    assert on_gpu.drafted_per_step > ngram.drafted_per_step  # also where it has found nothing
    assert suffix.tokens_per_step > ngram.tokens_per_step
    assert description.advice.startswith("suffix looks worth trying")


def test_described_drafters_all_begin_after_the_first_token(tmp_path: Path) -> None:
    """As in a server: else a suffix that repeats whole answers looks better than n-grams may."""
    requests = load_texts(token_trace(tmp_path))
    for found in describe_tokens(requests, 100, 0).drafters:
        options = dict(DRAFTERS)[found.method]
        drafter = parse_drafter(found.method, options, "test")
        alone = evaluate_drafts(drafter, requests, drafts_first_token=False)
        assert found.tokens_per_step == alone.tokens_per_step


def worth(method: str, tokens_per_step: float) -> DraftWorth:
    return DraftWorth(method, 5, tokens_per_step, 0.5, 1.0)


@pytest.mark.parametrize(
    ("ngram", "suffix", "start", "where"),
    [
        (1.05, 1.1, "no lookup looks worth much", "60 % of the output tokens are in new 4-grams"),
        (
            1.5,
            1.2,
            "ngram looks worth trying",
            "20 % of the output tokens are in 4-grams that stand in the request",
        ),
        (1.5, 2.0, "suffix looks worth trying", "that stand in outputs of earlier requests, which"),
        (
            1.52,
            1.5,
            "ngram or suffix looks worth trying",
            "1.52 tokens per step for 1.0 drafted, suffix 1.50 for 1.0",
        ),
    ],
)
def test_advice(ngram: float, suffix: float, start: str, where: str) -> None:
    overlap = Overlap(4, own_prompt=0.2, own_output=0.1, earlier_outputs=0.3, anywhere=0.4)
    said = advice((worth("ngram", ngram), worth("suffix", suffix)), overlap)
    assert said.startswith(start)
    assert where in said


def test_text_given_to_describe(refused: Refused, tmp_path: Path) -> None:
    for path in (log(tmp_path, [PAIR]), log(tmp_path, [SHAREGPT], "log.json")):
        assert "specsim tokens from-text" in refused("describe", path)


def test_no_such_token_trace(refused: Refused) -> None:
    assert "no.jsonl: cannot be read" in refused("describe", "no.jsonl")


BIRD = data_folder() / "tokens" / "bird_sql.jsonl.gz"
CNN = data_folder() / "tokens" / "llama31_8b_cnn.jsonl.gz"


@needs(BIRD)
@pytest.mark.usefixtures("only_ngram")
def test_repetitive_and_free_text_differ() -> None:
    sql, news = (describe_tokens(load_texts(path), 100, 0) for path in (BIRD, CNN))
    assert sql.entropy.bits < news.entropy.bits
    assert sql.entropy.repeated < news.entropy.repeated / 3
    assert sql.overlaps[-1].own_prompt is None
    assert sql.overlaps[-1].earlier_outputs > 0.5 > news.overlaps[-1].earlier_outputs
