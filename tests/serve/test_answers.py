"""What clients get: lengths, reasons, streams, usage, and errors that OpenAI's clients read."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tiny_config
from packaging.version import Version
from serving import Served, serving, word_tokenizer

from specsim.core.version import __version__
from specsim.serve import ServeOptions
from specsim.serve.texts import Texts

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED = {"prompt": "what is speculative decoding?", "max_tokens": 9, "ignore_eos": True}
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def test_an_answer_has_the_length_that_was_asked_for(served: Served) -> None:
    status, found = served.ask(COMPLETIONS, ASKED)
    assert status == 200
    assert found["usage"] == {"prompt_tokens": 8, "completion_tokens": 9, "total_tokens": 17}
    assert found["choices"][0]["finish_reason"] == "length"
    text = found["choices"][0]["text"]
    counted = served.ask("/tokenize", {"prompt": text})[1]
    assert counted["count"] == 9
    assert served.ask("/detokenize", {"tokens": counted["tokens"]})[1] == {"prompt": text}


def test_a_stream_says_what_the_whole_answer_says(served: Served) -> None:
    events = served.events(COMPLETIONS, {**ASKED, "stream_options": {"include_usage": True}})
    *chunks, last = events
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 9
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert len(Texts(0).encode(text)) == 9
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert len(chunks) < 9  # accepted drafts come with their step


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_token_ids_are_those_that_the_text_has(served: Served, path: str) -> None:
    asked = {**(HELLO if path == CHAT else ASKED), "max_tokens": 9, "ignore_eos": True}
    [choice] = served.ask(path, {**asked, "return_token_ids": True})[1]["choices"]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert choice["token_ids"] == Texts(0).encode(text).tolist()
    chunks = [
        event["choices"][0] for event in served.events(path, {**asked, "return_token_ids": True})
    ]
    text = "".join(each["delta"]["content"] if path == CHAT else each["text"] for each in chunks)
    ids = [token for each in chunks for token in each.get("token_ids", [])]
    assert ids == Texts(0).encode(text).tolist()
    assert "token_ids" not in served.ask(path, asked)[1]["choices"][0]


def test_chat_streams_begin_with_the_role(served: Served) -> None:
    first, *others = served.events(CHAT, {**HELLO, "max_completion_tokens": 5, "ignore_eos": True})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in others)
    assert len(text) == 4 * 5


def test_answers_end_by_themselves_as_the_workload_has_them(served: Served) -> None:
    ended = [served.ask(CHAT, HELLO)[1] for _ in range(8)]
    lens = [each["usage"]["completion_tokens"] for each in ended]
    assert {each["choices"][0]["finish_reason"] for each in ended} == {"stop"}
    config = served.live.experiment.workload.lengths
    assert all(config.output[0] <= length <= config.output[1] for length in lens), lens
    cut = served.ask(CHAT, {**HELLO, "max_tokens": 1})[1]
    assert cut["choices"][0]["finish_reason"] == "length"
    asked = {"min_tokens": config.output[1] + 7, "max_tokens": 1, "max_completion_tokens": 999}
    longer = served.ask(CHAT, {**HELLO, **asked})[1]  # of two limits the newer one counts
    assert longer["usage"]["completion_tokens"] == config.output[1] + 7


def test_a_stop_string_ends_an_answer(served: Served) -> None:
    asked = {**ASKED, "max_tokens": 300, "stop": ["who"]}
    found = served.ask(COMPLETIONS, asked)[1]
    (choice,) = found["choices"]
    assert choice["finish_reason"] == "stop"
    assert "who" not in choice["text"]
    assert choice["text"].endswith(" ")
    assert found["usage"]["completion_tokens"] == len(choice["text"]) // 4 + 1 < 300
    kept = served.ask(COMPLETIONS, {**asked, "include_stop_str_in_output": True})[1]
    assert kept["choices"][0]["text"].endswith(" who")


def test_several_prompts_and_several_answers(served: Served) -> None:
    asked = {"prompt": [[1, 2, 3], [4, 5]], "n": 2, "max_tokens": 4, "ignore_eos": True}
    found = served.ask(COMPLETIONS, asked)[1]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}
    assert len({choice["text"] for choice in found["choices"]}) == 4
    echoed = served.ask(COMPLETIONS, {**ASKED, "echo": True})[1]["choices"][0]["text"]
    assert echoed.startswith("what is speculative decoding? ")
    alone = {**ASKED, "echo": True, "max_tokens": 0}
    events = [served.ask(COMPLETIONS, alone)[1], *served.events(COMPLETIONS, alone)]
    assert [event["choices"][0]["text"] for event in events] == 2 * [ASKED["prompt"]]


def test_what_was_said_before_is_found_in_the_cache(served: Served) -> None:
    def cached() -> float:
        page = served.ask("/metrics")[1]
        (line,) = [x for x in page.splitlines() if x.startswith("vllm:prefix_cache_hits_total{")]
        return float(line.split()[-1])

    said = [{"role": "user", "content": "a long story " * 40}]
    before = cached()
    answer = served.ask(CHAT, {"messages": said, "max_tokens": 80, "ignore_eos": True})[1]
    assert cached() == before
    said += [answer["choices"][0]["message"], {"role": "user", "content": "and then?"}]
    served.ask(CHAT, {"messages": said, "max_tokens": 4})
    # All full blocks of prompt and answer but what was not computed: the last token's.
    known = answer["usage"]["total_tokens"] - 1
    assert cached() - before >= known // 16 * 16 - 16 > 160


def test_without_a_prefix_cache_nothing_is_looked_up_in_it() -> None:
    with serving(engine={**tiny_config()["engine"], "enable_prefix_caching": False}) as served:
        assert served.ask(COMPLETIONS, ASKED)[0] == 200
        page = served.ask("/metrics")[1]
    found = dict(x.rsplit(" ", 1) for x in page.splitlines() if not x.startswith("#"))
    counts = {name.partition("{")[0]: float(value) for name, value in found.items()}
    assert counts["vllm:prompt_tokens_total"] > 0 == counts["vllm:prefix_cache_queries_total"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (COMPLETIONS, b"{", 400, "Invalid JSON"),
        (COMPLETIONS, b"\xff\xfe", 400, "Invalid JSON"),
        (COMPLETIONS, [], 400, "object"),
        (COMPLETIONS, {}, 400, "prompt"),
        (COMPLETIONS, {"prompt": ""}, 400, "empty"),
        (COMPLETIONS, {"prompt": []}, 400, "empty"),
        (COMPLETIONS, {"prompt": [[]]}, 400, "empty"),
        (COMPLETIONS, {"prompt": [-1]}, 400, "[0, 2**32)"),
        (COMPLETIONS, {"prompt": [1 << 64]}, 400, "[0, 2**32)"),
        (COMPLETIONS, {"prompt": [1, "a"]}, 400, "a list of texts or of token ids"),
        (COMPLETIONS, {"prompt": [True]}, 400, "a list of texts or of token ids"),
        (COMPLETIONS, {"prompt": {"a": 1}}, 400, "a list of texts or of token ids"),
        (COMPLETIONS, {"prompt": [[1], [1.5]]}, 400, "whole numbers"),
        (COMPLETIONS, {"prompt": ["a"] * 4097}, 400, "4,097 answers are asked for"),
        (COMPLETIONS, {"prompt": ["a"] * 33, "n": 128}, 400, "4,224 answers are asked for"),
        (COMPLETIONS, {"prompt": "[{,\\\"" * 99_999}, 400, "maximum context length"),
        (COMPLETIONS, {**ASKED, "max_tokens": 0}, 400, "max_tokens"),
        (COMPLETIONS, {**ASKED, "max_tokens": 1 << 40}, 400, "maximum context length"),
        (COMPLETIONS, {**ASKED, "min_tokens": 10}, 400, "min_tokens"),
        (COMPLETIONS, {**ASKED, "n": 129}, 400, "n:"),
        (COMPLETIONS, {**ASKED, "logprobs": 1}, 400, "logprobs"),
        (COMPLETIONS, {**ASKED, "suffix": "x"}, 400, "suffix"),
        (COMPLETIONS, {**ASKED, "best_of": 2}, 400, "best_of"),
        (COMPLETIONS, {**ASKED, "temperature": -1}, 400, "temperature"),
        (COMPLETIONS, {**ASKED, "stream_options": {}}, 400, "stream"),
        (COMPLETIONS, {**ASKED, "model": "gpt-4"}, 404, "does not exist"),
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {**HELLO, "min_tokens": 8, "max_completion_tokens": 5, "max_tokens": 9}, 400,
         "min_tokens = 8 must not exceed max_tokens = 5"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
         "messages.0.content.0.type: Input should be 'text'"),
        (CHAT, {**HELLO, "logprobs": True}, 400, "logprobs"),
        (CHAT, {**HELLO, "tools": "search"}, 400, "tools"),
        (CHAT, {**HELLO, "tools": [{}], "tool_choice": "required"}, 400, "ask for 'auto'"),
        (CHAT, {**HELLO, "response_format": {"type": "json_object"}}, 400, "response_format"),
        ("/tokenize", {}, 400, "prompt"),
        ("/detokenize", {"tokens": [1 << 40]}, 400, "tokens"),
        ("/v1/nothing", {}, 404, "Not Found"),
        (COMPLETIONS, None, 405, "Not Allowed"),
    ],
)  # fmt: skip
def test_a_bad_request_is_told_why(
    served: Served, path: str, body: object, status: int, says: str
) -> None:
    found, answer = served.ask(path, body)
    assert found == status
    error = answer["error"]
    assert error["code"] == status
    assert says in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_tools_lengthen_the_prompt_and_none_is_called(served: Served) -> None:
    """What a gateway passes on comes back as the answer of a model that chose to call none."""
    function = {"name": "search", "description": "\u641c\u7d22" * 8, "parameters": {}}
    tools = [{"type": "function", "function": function}]
    used = {"role": "tool", "tool_call_id": "1", "content": "found"}
    messages = [*HELLO["messages"], used]
    plain, asked = (
        served.ask(CHAT, {"messages": messages, "max_tokens": 3, **more})[1]
        for more in ({}, {"tools": tools, "tool_choice": "auto"})
    )
    added = asked["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"]
    text = f"<|tools|>\n{json.dumps(tools, ensure_ascii=False)}<|end|>\n"
    assert added == -(-len(text.encode()) // 4)  # bytes of a token
    counted = served.ask("/tokenize", {"messages": messages, "tools": tools})[1]["count"]
    assert counted == asked["usage"]["prompt_tokens"]
    (choice,) = asked["choices"]
    assert (choice["message"].get("tool_calls"), choice["finish_reason"]) == (None, "length")


def test_calls_of_tools_in_earlier_turns_are_part_of_the_prompt(served: Served) -> None:
    """An agent sends back what it called, in a message that has no text."""
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    said, called = (
        served.ask("/tokenize", {"messages": [*HELLO["messages"], {"role": "assistant", **own}]})[1]
        for own in ({"content": json.dumps(calls)}, {"content": None, "tool_calls": calls})
    )
    assert called["tokens"] == said["tokens"]


def test_unknown_fields_are_ignored(served: Served) -> None:
    assert served.ask(COMPLETIONS, {**ASKED, "user": "me", "whatever": [1]})[0] == 200


def test_the_small_pages(served: Served) -> None:
    assert served.ask("/health") == (200, "")
    assert served.ask("/ping") == (200, "")
    version = Version(served.ask("/version")[1]["version"])
    assert version.public == f"{served.live.deployment.engine.vllm_version}.0"
    assert version.local == f"specsim.{__version__}"
    (model,) = served.ask("/v1/models")[1]["data"]
    assert model["max_model_len"] == served.live.deployment.engine.max_model_len
    assert served.ask(COMPLETIONS, {**ASKED, "model": model["id"]})[0] == 200


def come_and_go(served: Served, clients: int) -> None:
    """Let clients ask in turn, and go when they have the first tokens."""
    body = json.dumps({**ASKED, "max_tokens": 900, "stream": True}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(clients):
        with socket.create_connection(("127.0.0.1", served.ports[0])) as connection:
            connection.sendall(head.encode() + body)
            assert b"200 OK" in connection.recv(1 << 16)
            connection.recv(1 << 16)  # the first tokens
    until = time.monotonic() + 5
    while time.monotonic() < until and served.live.num_unfinished:
        time.sleep(0.01)


@pytest.mark.parametrize("config", [{"replicas": 2}, {"engine": {"data_parallel_size": 2}}])
def test_a_client_that_goes_is_counted_where_it_was(config: dict[str, Any], tmp_path: Path) -> None:
    options = ServeOptions(port=0, speed=1.0, grace=0.5, log=tmp_path)
    with serving(options, routing={"kind": "round_robin"}, **config) as served:
        come_and_go(served, 4)
        assert served.ask("/metrics")[1].count('finished_reason="abort"} 2.0') == 2
    for engine in range(2):
        lines = (tmp_path / f"replica-{engine}/requests.jsonl").read_text().splitlines()
        assert [json.loads(line)["number"] % 2 for line in lines] == [engine] * 2


def test_a_client_that_goes_frees_its_blocks() -> None:
    with serving(ServeOptions(port=0, speed=1.0, grace=0.5)) as served:
        come_and_go(served, 3)
        assert served.ask("/metrics")[1].count('finished_reason="abort"} 3.0') == 1
        check_nothing_is_left(served)


def check_nothing_is_left(served: Served) -> None:
    state = served.live.replicas[0].table.state
    usable = served.live.deployment.setup.num_usable_blocks
    names, until = ("num_running", "num_free"), time.monotonic() + 5
    while True:  # who has gone is taken out when the engine comes to it
        found = served.call(lambda: {name: int(state[name][0]) for name in names})
        if found["num_running"] == 0 or time.monotonic() > until:
            break
        time.sleep(0.01)
    assert found == {"num_running": 0, "num_free": usable}
    assert served.live.drafting.num_free == 4096


def test_a_key_is_asked_for() -> None:
    with serving(ServeOptions(port=0, speed=50.0, api_key="secret", grace=0.5)) as served:
        assert served.ask("/v1/models")[0] == 401
        assert served.ask("/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200
        assert served.ask("/health")[0] == 200


def test_filler_is_of_four_bytes_a_token() -> None:
    ids = Texts(3).filler(5, 7)
    assert len(ids.text) == 4 * 7
    assert np.array_equal(Texts(3).encode(ids.text), ids.ids)


def test_filler_has_as_many_tokens_for_the_tokenizer(tmp_path: Path) -> None:
    texts = Texts(3, word_tokenizer(tmp_path / "model"))
    filler = texts.filler(5, 60)
    assert np.array_equal(texts.encode(filler.text), filler.ids)
    assert filler.ends[-1] == len(filler.text)
    assert texts.decode(filler.ids) == filler.text
