"""Every trace format: a small sample made by hand, its traps, and the real files."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import data_folder, needs

from specsim.api import Experiment, Summary, simulate
from specsim.core.errors import ConfigError, PluginError, TraceError
from specsim.workload import WorkloadConfig
from specsim.workload.readers import READERS, read_trace
from specsim.workload.readers.native import write_trace
from specsim.workload.trace import Trace, describe

TOKENS = {"prompt_token_ids": [1, 2, 3], "generated_token_ids": [4, 5]}
# Format: text of a sample, arrivals, prompt and output lengths, failed rows.
SAMPLES: dict[str, tuple[str, Any, list[int], list[int], int]] = {
    "azure": (  # seven fraction digits, CRLF, no final newline
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:50.9951690,396,109",
        [0.0, 4.314579], [374, 396], [44, 109], 0,
    ),
    "azure-2024": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:00.017335+00:00,2399,6\n",
        [0.0, 0.007405], [2162, 2399], [5, 6], 0,
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n",
        [0.0, 113.0], [472, 417], [18, 276], 1,
    ),
    "burstgpt-8": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,"
        "Total tokens,Log Type\n"
        "5.5,s1,1.5,ChatGPT,472,18,490,Conversation log\n",
        [0.0], [472], [18], 0,
    ),
    "mooncake": (
        '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'
        '{"timestamp": 3000, "input_length": 520, "output_length": 7, "hash_ids": [0, 2]}\n',
        [0.0, 3.0], [700, 520], [5, 7], 0,
    ),
    "bailian": (
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 20, '
        '"output_length": 5, "type": "text", "turn": 1, "hash_ids": [7, 8]}\n'
        '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 71.1, "input_length": 40, '
        '"output_length": 6, "type": "text", "turn": 2, "hash_ids": [7, 9, 10]}\n',
        [0.0, 10.0], [20, 40], [5, 6], 0,
    ),
    "weka": (  # a sub-agent that the last call waits for; a last, partial block with an id
        '{"id": "c1", "block_size": 64, "requests": ['
        '{"t": 0.0, "in": 130, "out": 7, "hash_ids": [1, 2, 3], "api_time": 2.0}, '
        '{"t": 3.0, "type": "subagent", "requests": ['
        '{"t": 0.0, "in": 70, "out": 5, "hash_ids": [1], "api_time": 4.0}]}, '
        '{"t": 8.0, "in": 200, "out": 9, "hash_ids": [1, 2, 4], "api_time": 2.0}]}\n',
        None, [130, 70, 200], [7, 5, 9], 0,
    ),
    "weka-flat": (
        '{"id": "c1", "t": 0.0, "in": 130, "out": 7, "hash_ids": [1, 2], "api_time": 2.0}\n'
        '{"id": "c1", "t": 3.0, "in": 200, "out": 0, "hash_ids": [1, 2, 4]}\n',
        None, [130], [7], 1,
    ),
    "sharegpt": (
        json.dumps([
            {"id": "a", "conversations": [{"from": "human", "value": "x" * 10},
                                          {"from": "gpt", "value": "y" * 17}]},
            {"id": "b", "conversations": [{"from": "human", "value": "never answered"}]},
        ], indent=1),
        None, [3], [5], 1,
    ),
    "vidur": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n0.25,20,3\n",
        [0.0, 0.25], [20, 10], [3, 2], 0,
    ),
    "llmservingsim": (
        '{"input_toks": 3, "output_toks": 2, "arrival_time_ns": 1500000000, '
        '"input_tok_ids": [1, 2, 3], "output_tok_ids": [4, 5]}\n',
        [0.0], [3], [2], 0,
    ),
    "real_run": (
        '{"request_id": "b-0", "input_toks": 9, "output_toks": 4, "arrival_time": 1787267980.0, '
        '"queued_ts": 100.5, "scheduled_ts": 100.6, "first_token_ts": 101, "last_token_ts": 102}\n'
        '{"request_id": "b-1", "input_toks": 8, "output_toks": 3, "arrival_time": 1787267981.0, '
        '"queued_ts": 101.5, "scheduled_ts": 101.6, "first_token_ts": 102, "last_token_ts": 103}\n',
        [0.0, 1.0], [9, 8], [4, 3], 0,
    ),
    "token_trace": (
        json.dumps({"id": "r0", **TOKENS, "acc_eagle": {"acc_len": [1, 2]}}) + "\n"
        + json.dumps({"id": "r1", **TOKENS, "prompt_token_ids": [], "acc_eagle": {"acc_len": [1]}}),
        None, [3, 1], [2, 2], 0,
    ),
    "vllm_bench": (
        json.dumps({"date": "20260101-000000", "input_lens": [5, 6, 7], "output_lens": [2, 0, 3],
                    "start_times": [10.0, 10.5, 11.0], "ttfts": [0.1, 0.0, 0.1]}),
        [0.0, 1.0], [5, 7], [2, 3], 1,
    ),
    "columns": (
        "arrival_time,prompt_len,output_len,user\n10.5,7,3,x\n9.5,5,2,y\n",
        [0.0, 1.0], [5, 7], [2, 3], 0,
    ),
    "columns-lines": (
        '{"arrival_time_ms": 500, "prompt_len": 5, "output_len": 2}\n'
        '{"arrival_time_ms": 1500, "prompt_len": 7, "output_len": 3}\n',
        [0.0, 1.0], [5, 7], [2, 3], 0,
    ),
    "columns-list": (  # as pandas writes to_json(orient="records")
        '[{"arrival_time": 1.5, "prompt_len": 7, "output_len": 3},\n'
        '{"arrival_time": 0.5, "prompt_len": 5, "output_len": 2}]',
        [0.0, 1.0], [5, 7], [2, 3], 0,
    ),
    "columns-clock": (
        "Request Time,inputTokens,Completion Tokens\n2026-01-01T00:00:00,5,2\n"
        "2026-01-01 00:00:01.5Z,7,3\n",
        [0.0, 1.5], [5, 7], [2, 3], 0,
    ),
    "columns-words": (
        "request_id;createdAt;n_in;tokens_out;max_tokens;end_time\n"
        "r1;1763971201500;7;3;9;1763971209000\nr0;1763971200000;5;2;9;1763971208000\n",
        [0.0, 1.5], [5, 7], [2, 3], 0,
    ),
    "columns-burst": (
        "timestamp,user,request_tokens,response_tokens,request_id,num_requests,latency_ms\n"
        "2026-01-01T00:00:00Z,a,5,2,r0,1,90\n2026-01-01T00:00:01.5Z,b,7,3,r1,1,80\n",
        [0.0, 1.5], [5, 7], [2, 3], 0,
    ),
    "columns-spans": (
        "startTimeUnixNano,gen_ai.usage.input_tokens,gen_ai.usage.output_tokens,"
        "gen_ai.usage.cache_read.input_tokens,llm.usage.total_tokens\n"
        "1763971200000000000,5,2,1,7\n1763971201500000000,7,3,0,10\n",
        [0.0, 1.5], [5, 7], [2, 3], 0,
    ),
    "columns-offset": (
        "received_at\tinput_tok\tgenerated_tokens\n2026-01-01T01:00:00.0000000+01:00\t5\t2\n"
        "2026-01-01 00:00:01,500+00:00\t7\t3\n",
        [0.0, 1.5], [5, 7], [2, 3], 0,
    ),
    "columns-usage": (  # what OpenAI's API answers, logged
        '{"created": 1763971200, "usage": {"prompt_tokens": 5, "completion_tokens": 2, '
        '"total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1}}}\n'
        '{"created": 1763971202, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n',
        [0.0, 2.0], [5, 7], [2, 3], 0,
    ),
    "columns-logged": (  # by a gateway, with its own fields around the answer
        '{"ts": "2026-01-01T00:00:00Z", "request": {"model": "m"}, "response": {"body": {"usage": '
        '{"prompt_tokens": 5, "completion_tokens": 2}}}, "latency_ms": 90}\n'
        '{"ts": "2026-01-01T00:00:02Z", "request": {"model": "m"}, "response": {"body": {"usage": '
        '{"prompt_tokens": 7, "completion_tokens": 3}}}, "latency_ms": 80}\n',
        [0.0, 2.0], [5, 7], [2, 3], 0,
    ),
    "native": (
        '{"id": "a", "arrived_at": 1.0, "prompt_len": 3, "output_len": 2, "priority": -1}\n'
        '{"id": "b", "arrived_at": 1.5, "prompt_len": 4, "output_len": 1, "priority": 5}\n',
        [0.0, 0.5], [3, 4], [2, 1], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,request_length,upstream_response_length\n1,678,90\n",
         "line 2: request_length = '678': must be tokens, and columns so called hold bytes in logs "
         "of web servers; if these are tokens, name it prompt_len, else count them"),
        ("ts,prompt_tokens,responseSize\n1,678,90\n", "line 2: responseSize = '90': must be tok.*"
         "name it output_len"),
        ('{"ts": 1, "request_len": 678, "response_len": 90}\n', "line 1: request_len = 678: must"),
    ],
)  # fmt: skip
def test_bytes_of_web_servers_are_no_tokens(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "access.log").write_text(text)
    with pytest.raises(TraceError, match=rf"access.log, {said}"):
        read_trace(tmp_path / "access.log")


def test_bytes_beside_tokens_are_ignored_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "gateway.csv"
    path.write_text(
        "ts,request_length,prompt_tokens,completion_tokens,response_length\n1,678,5,2,9\n"
    )
    trace = read_trace(path)
    assert (trace.prompt_lens.tolist(), trace.output_lens.tolist()) == ([5], [2])
    assert "ignored: request_length, response_length" in trace.note


def sample(tmp_path: Path, name: str) -> Path:
    path = tmp_path / f"{name}.some-ending"
    path.write_bytes(SAMPLES[name][0].encode())
    return path


def test_every_reader_has_a_sample() -> None:
    assert {name.split("-")[0] for name in SAMPLES} == set(READERS.members)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_recognised_and_read(tmp_path: Path, name: str) -> None:
    _, arrivals, prompts, outputs, dropped = SAMPLES[name]
    trace = read_trace(sample(tmp_path, name))
    assert trace.format == name.split("-", maxsplit=1)[0]
    assert trace.prompt_lens.tolist() == prompts
    assert trace.output_lens.tolist() == outputs
    assert trace.num_dropped == dropped
    if arrivals is None:
        assert trace.arrived_at is None
    else:
        assert trace.arrived_at is not None
        assert trace.arrived_at == pytest.approx(arrivals, abs=1e-7)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_read_from_gzip_as_well(tmp_path: Path, name: str) -> None:
    path = tmp_path / "sample.gz"
    path.write_bytes(gzip.compress(SAMPLES[name][0].encode()))
    assert len(read_trace(path)) == len(SAMPLES[name][2])


def assert_same(one: Trace, two: Trace) -> None:
    for first, second in zip(one.requests(), two.requests(), strict=True):
        for field in ("index", "prompt_len", "output_len", "arrived_at", "id", "priority"):
            assert getattr(first, field) == getattr(second, field)
        assert first.recorded_lens == second.recorded_lens
        assert (first.prefix_ids is None) == (second.prefix_ids is None)
        if first.prefix_ids and second.prefix_ids:
            assert list(first.prefix_ids.hash_ids) == list(second.prefix_ids.hash_ids)
            assert first.prefix_ids.block_size == second.prefix_ids.block_size
        for field in ("session", "turn", "think_time", "after_turns"):
            assert getattr(first, field) == getattr(second, field)
        for ids in ("prompt_token_ids", "output_token_ids"):
            assert np.array_equal(getattr(first, ids), getattr(second, ids))


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".jsonl.gz"])
def test_conversion_to_the_native_format_loses_nothing(
    tmp_path: Path, name: str, ending: str
) -> None:
    trace = read_trace(sample(tmp_path, name))
    path = tmp_path / f"native{ending}"
    write_trace(trace, path)
    converted = read_trace(path)
    assert converted.format == "native"
    assert_same(trace, converted)


def test_shared_prefixes_are_shared_requests(tmp_path: Path) -> None:
    for name, size in (("mooncake", 512), ("bailian", 16)):
        one, two = read_trace(sample(tmp_path, name)).requests()
        assert one.block_keys(size)[0] == two.block_keys(size)[0]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_turns_of_a_chat_may_stand_in_any_order_and_fail(order: list[int], tmp_path: Path) -> None:
    """The second has no answer, and the third is of the same chat all the same."""
    row = {"input_length": 9, "output_length": 3, "hash_ids": []}
    chat = [{**row, "chat_id": n, "parent_chat_id": n - 1, "timestamp": n} for n in range(3)]
    chat[1]["output_length"] = 0
    rows = [*chat, {**row, "chat_id": 7, "parent_chat_id": -1, "timestamp": 5}]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(rows[place]) + "\n" for place in order))
    trace = read_trace(path)
    assert trace.sessions is not None
    first, second, other = trace.sessions.tolist()
    assert first == second != other


def test_prefixes_of_two_files_are_not_one_another_s(tmp_path: Path) -> None:
    """Each numbers its own from 0 on; of one file on both sides of a shift they are the same."""
    row = {"timestamp": 0, "input_length": 1024, "output_length": 2}
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        rows = [{**row, "hash_ids": [0, number]} for number in (1, 2)]
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    one, other = ({"kind": "trace", "path": str(path)} for path in paths)
    for after, num in ((other, 6), (one, 3)):
        shift = {"kind": "shift", "at": 0.5, "before": one, "after": after}
        trace = WorkloadConfig.model_validate({"arrivals": "burst", "lengths": shift}).build(0)
        assert trace.prefix_ids is not None
        assert len({each for prefix in trace.prefix_ids for each in prefix.hash_ids}) == num
        assert trace.prefix_ids[2].hash_ids[0] == trace.prefix_ids[3].hash_ids[0]


def test_description_of_a_trace(tmp_path: Path) -> None:
    description = describe(read_trace(sample(tmp_path, "mooncake")))
    assert description.mean_rate == pytest.approx(1 / 3)
    assert description.reused_prefix_share == pytest.approx(512 / 1220)
    assert description.prompt.quantiles["max"] == 700


VIDUR = b"arrived_at,num_prefill_tokens,num_decode_tokens\n"
BAD = {
    "empty": (b"", "is empty"),
    "no request": (VIDUR, "has no row|no request"),
    "header alone": (b"arrival_time,prompt_len,output_len\n", "has no row"),
    "missing column": (b"arrived_at,num_prefill_tokens\n1,2\n", "no column is the output length"),
    "negative length": (
        VIDUR + b"0,5,5\n1,-3,2\n",
        r"line 3: num_prefill_tokens = '-3' must be a whole number from 0 to 2",
    ),
    "fractional length": (
        VIDUR + b"0,5.5,5\n", "must be a whole number"),
    "NaN": (
        VIDUR + b"nan,5,5\n",
        r"line 2: arrived_at = 'nan' is not a finite number",
    ),
    "NaN for a time": (
        b"arrival_time,prompt_len,output_len\nnan,5,5\n",
        "line 2: arrival_time = 'nan' is neither seconds nor a time",
    ),
    "no time of Azure's": (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n,1,2\n", "line 2: TIMESTAMP = '' is not a time"),
    "short row": (
        VIDUR + b"1,5\n", r"no value for 'num_decode_tokens' \(found: arrived_at, num_prefill"),
    "long row": (VIDUR + b"1,1,000,5\n", "line 2: more values than the 3 columns; quote what"),
    "two columns of a name": (
        b"arrival_time,prompt_len,prompt_len,output_len,,\n0,9,100,5,,\n",
        "several columns are called 'prompt_len'; leave one",
    ),
    "YAML": (b"workload:\n  arrivals: {kind: poisson, rate: 8}\n", "no known format has these"),
    "an arrival here and there": (
        b'{"prompt_len": 1, "output_len": 2, "arrived_at": 1}\n{"prompt_len": 1, "output_len": 2}',
        "only 1 of 2 requests have 'arrived_at'",
    ),
    "no arrival in the first row": (
        b'{"prompt_tokens": 1, "output_tokens": 2}\n'
        b'{"prompt_tokens": 1, "output_tokens": 2, "arrival_time": 4}',
        "line 1: no value for 'arrival_time'",
    ),
    "a slip in the second row": (
        b'{"prompt_len": 1, "output_len": 2}\n{"prompt_len": 1, "output_len": 2, "sesion": 1}',
        "unknown column 'sesion'; did you mean 'session'",
    ),
    "other ids than tokens": (
        b'{"input_toks": 3, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": [1, 2]}',
        "line 1: 2 input_tok_ids for input_toks = 3; correct one of them",
    ),
    "a numbered turn without an answer": (
        b'{"prompt_len": 1, "output_len": 0, "session": 1, "after_turns": []}',
        "line 1: has no prompt or no output, and would be left out, but after_turns",
    ),
    "two results": (
        b'{"input_lens": [1], "output_lens": [2]}\n{"input_lens": [1], "output_lens": [2]}',
        "holds 2 results, a line each",
    ),
    "truncated line": (
        b'{"prompt_len": 1, "output_len": 2}\n{"prompt_len": 1, "outp',
        "line 2: not JSON.*cut off",
    ),
    "not an object": (b'{"prompt_len": 1, "output_len": 2}\n[1]\n', "line 2: holds a list"),
    "bad time": (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "TIMESTAMP = 'yesterday'"),
    "bad token": (
        b'{"prompt_token_ids": [1, -2], "generated_token_ids": [3]}\n',
        r"prompt_token_ids\[1\] = -2"),
    "too few tokens": (
        b'{"prompt_len": 3, "output_len": 1, "prompt_token_ids": [1]}\n', "for a length of 3"),
    "bad acceptance": (
        b'{"prompt_token_ids": [1], "generated_token_ids": [3], "acc_eagle": {"acc_len": [0]}}\n',
        "acc_eagle.acc_len",
    ),
    "some without": (
        b'{"prompt_len": 3, "output_len": 1, "id": "a"}\n{"prompt_len": 3, "output_len": 1}\n',
        "only 1 of 2 requests have 'id'",
    ),
    "a list for a name": (
        b'{"chat_id": [], "timestamp": 0, "input_length": 20, "output_length": 5, '
        b'"hash_ids": [0, 1]}\n',
        r"line 1: chat_id = \[\] must be text or a number",
    ),
    "too few hash ids": (
        b'{"timestamp": 0, "input_length": 2000, "output_length": 5, "hash_ids": [0]}\n',
        "hash_ids must list",
    ),
    "binary": (bytes(range(128, 256)), "neither text, gzip nor Parquet"),
    "cut gzip": (gzip.compress(b"arrived_at,num_prefill" * 99)[:60], "neither text|breaks"),
    "cut gzip of JSON": (
        gzip.compress(b'[\n{"conversations": [' + bytes(range(32, 127)) * 999)[:120],
        "neither text|breaks",
    ),
    "broken gzip": (gzip.compress(VIDUR * 99)[:15] + b"\xff" * 40, "neither text|breaks"),
    "text": (b'{"prompt": "a", "response": "b"}\n', "specsim tokens from-text"),
    "numbers called as text": (b"ts,prompt,completion\n0,5,6\n", "prompt_len, output_len and"),
    "two prompts": (
        b"prompt_len,input_tokens,output_len\n1,2,3\n",
        "prompt_len and input_tokens may both be the prompt length",
    ),
    "no time": (
        b"arrival_time,prompt_len,output_len\nnoon,2,3\n",
        "line 2: arrival_time = 'noon' is neither seconds nor a time",
    ),
    "misspelt column": (
        b'{"prompt_len": 1, "output_len": 3, "sesion": "a"}\n',
        "unknown column 'sesion'; did you mean 'session'",
    ),
    "a session here and there": (
        b'{"prompt_len": 1, "output_len": 3, "session": "a"}\n{"prompt_len": 1, "output_len": 3}\n',
        "only 1 of 2 requests have 'session'; all of them",
    ),
    "true for a length": (
        b'{"prompt_tokens": true, "completion_tokens": 3}\n', "prompt_tokens = True is not a"),
    "Latin 1": (b"prompt_len,output_len\n1,2\n\xfc,2\n", "save it in UTF-8"),
    "seconds and milliseconds": (
        b"timestamp,prompt_len,output_len\n1763971200,2,3\n1763971201000,2,3\n",
        "line 3: timestamp = '1763971201000' was read in ms, rows before it in seconds; say the",
    ),
    "dates and numbers": (
        b"timestamp,prompt_len,output_len\n2025-11-24T08:00:02,2,3\n17,2,3\n",
        "line 3: timestamp = '17' was read in seconds, rows before it as dates and times",
    ),
    "cut Parquet": (b"PAR1 and then nothing", "Parquet"),
    "xz": (b"\xfd7zXZ\x00 and so on", "is compressed by xz, which is not read; save it as CSV"),
    "a sheet": (b"PK\x03\x04 and so on", "is a zip archive, as sheets of Excel are"),
    "a row cut off": (
        b"ts,prompt_tokens,completion_tokens\n1,5,2\n2,5\n",
        "line 3: no value for 'completion_tokens'",
    ),
    "how long requests took": (
        b"request_time,prompt_tokens,completion_tokens\n1.147,5,2\n",
        "line 2: request_time = '1.147': must be when the request came, and columns so called hold "
        "how long it took",
    ),
}  # fmt: skip


def test_vllms_own_names_are_known(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,request_prompt_tokens,request_generation_tokens\n0,5,2\n")
    assert read_trace(path).output_lens.tolist() == [2]


def test_which_columns_were_taken_for_what_is_said(tmp_path: Path) -> None:
    trace = read_trace(sample(tmp_path, "columns"))
    assert trace.note == (
        "prompt_len is the prompt length, output_len is the output length, arrival_time is the "
        "arrival, in seconds; ignored: user"
    )


@pytest.mark.parametrize(
    ("name", "values", "form", "end"),
    [
        ("timestamp", (3, 5), "in seconds", 2.0),
        ("timestamp", (1763971200, 1763971202), "in seconds", 2.0),
        ("timestamp", (1763971200000, 1763971202000), "in ms", 2.0),
        ("ts", (1763971200000000, 1763971202000000), "in us", 2.0),
        ("start_ms", (3, 5), "in ms", 0.002),
        ("arrived_sec", (3, 5), "in seconds", 2.0),
        (
            "created_at",
            ("2025-11-24T09:00:00+01:00", "2025-11-24T08:00:02", "2025-11-24 08:00:01.5 UTC"),
            "as dates and times, UTC where none names a zone",
            2.0,
        ),
        (
            "time_iso8601",
            ("2025-11-24T08:00:00.5+00:00", "2025-11-24T09:00:02.5+01:00"),
            "as dates and times, UTC where none names a zone",
            2.0,
        ),
        (
            "time_local",
            ("24/Nov/2025:08:00:00 +0000", "[24/Nov/2025:09:00:02 +0100]"),
            "as dates and times, UTC where none names a zone",
            2.0,
        ),
        ("msec", ("1763971200.000", "1763971200.250"), "in seconds", 0.25),
        ("request_creation_time_ms", (3, 5), "in ms", 0.002),
        ("requestTime", ("24/Nov/2025:08:00:00 +0000",) * 2, "as dates and times", 0.0),
    ],
)
def test_the_form_of_arrivals_is_said(
    tmp_path: Path, name: str, values: tuple[Any, ...], form: str, end: float
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{name},prompt_len,output_len\n" + "".join(f"{v},5,2\n" for v in values))
    trace = read_trace(path)
    assert f"{name} is the arrival, {form}" in trace.note
    assert trace.arrived_at is not None
    assert trace.arrived_at[0] == 0.0
    assert trace.arrived_at[-1] == pytest.approx(end)


@pytest.mark.parametrize(
    "text",
    [
        "ts,prompt_tokens,completion_tokens\n0.5,5,2\n1,-,-\n2,,\n3,5,0\n4,5,2\n",
        '{"ts": 0.5, "status": 429, "usage": null}\n'
        '{"ts": 1, "usage": {"prompt_tokens": 5, "completion_tokens": 2}}\n'
        '{"ts": 2, "error": "x"}\n{"ts": 3, "usage": {"prompt_tokens": 5}}\n'
        '{"ts": 4, "usage": {"prompt_tokens": 5, "completion_tokens": 2}}\n',
    ],
)
def test_rows_without_tokens_are_failed_requests_and_that_is_said(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    trace = read_trace(path)
    assert (len(trace), trace.num_dropped) == (2, 3)
    assert "; rows without prompt or output, left out as failed: 3" in trace.note


def test_a_log_without_the_lengths_of_answers_is_told_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time,prompt_tokens\n1,5\n2,7\n")
    said = r"no column is the output length \(found: time, prompt_tokens\); add output_len"
    with pytest.raises(TraceError, match=said):
        read_trace(path)
    path.write_text("prompt,completion_tokens\nhello,5\n")
    with pytest.raises(TraceError, match="holds text"):
        read_trace(path)


@pytest.mark.parametrize("inside", ["response.", ""])
def test_a_column_is_taken_before_the_usage_of_an_answer_beside_it(
    inside: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    usage = '"usage": {"prompt_tokens": 9, "completion_tokens": 9}'
    usage = f'"response": {{{usage}}}' if inside else usage
    path.write_text(f'{{"n_in": 5, "n_out": 2, {usage}}}\n')
    trace = read_trace(path)
    assert (trace.prompt_lens.tolist(), trace.output_lens.tolist()) == ([5], [2])
    assert "; ignored: " in trace.note
    path.write_text(f"{{{usage}}}\n")
    said = f"{inside}usage.prompt_tokens is the prompt length"
    assert (said in read_trace(path).note, "ignored" in read_trace(path).note) == (True, False)


def test_of_several_usages_as_deep_as_each_other_all_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tokens = {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    path.write_text(json.dumps({"host": {"usage": {"cpu": 0.5}}, "response": tokens}) + "\n")
    trace = read_trace(path)
    assert (trace.prompt_lens.tolist(), trace.output_lens.tolist()) == ([5], [2])
    assert trace.note.endswith("; ignored: host, host.usage.cpu")


def test_lines_that_are_named_by_their_request_are_refused_in_a_line(tmp_path: Path) -> None:
    """Each line has a field of its own, so that there are as many columns as tokens counted."""
    path, usage = tmp_path / "log.jsonl", {"prompt_tokens": 5, "completion_tokens": 2}
    rows = ({f"r{number}": {"usage": usage}} for number in range(20_000))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said = "r0.usage.prompt_tokens and r1.usage.prompt_tokens may both be the prompt length;"
    with pytest.raises(TraceError, match=said) as error:
        read_trace(path)
    assert len(str(error.value)) < 300


def test_how_long_requests_took_is_no_arrival_beside_when_they_came(tmp_path: Path) -> None:
    path = tmp_path / "nginx.csv"
    path.write_text("msec,request_time,prompt_tokens,output_tokens\n10.5,7,5,2\n13.5,1,5,2\n")
    trace = read_trace(path)
    assert trace.arrived_at is not None
    assert trace.arrived_at.tolist() == [0.0, 3.0]
    assert "ignored: request_time" in trace.note


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((7, 7, 9), "arrivals are whole seconds: requests of the same one come at once"),
        ((7, 7, 187), "arrivals are whole minutes: requests of the same one come at once"),
        ((7, 8, 9), ""),
        ((7, 7, 7), ""),  # a burst
        ((0, 0, 3.001, 3.001), "arrivals are 2 instants: requests of the same one come at once"),
        ((0, 0, 1.5, 2.5), ""),
    ],
)
@pytest.mark.parametrize(
    "header",
    ["created,prompt_len,output_len", "Timestamp,Request tokens,Response tokens"],
    ids=["columns", "burstgpt"],
)
def test_arrivals_of_a_coarse_clock_are_said_to_come_at_once(
    tmp_path: Path, header: str, times: tuple[float, ...], said: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n" + "".join(f"{n},5,2\n" for n in times))
    note = read_trace(path).note
    assert ("come at once" in note) == bool(said)
    assert note.endswith(said)


@pytest.mark.parametrize(
    ("begun", "is_said"), [((0.5, 1.7, 4.1), False), ((0.5, 0.5, 4.1, 4.1), True)]
)
def test_turns_of_a_session_do_not_come_at_once(
    tmp_path: Path, begun: tuple[float, ...], is_said: bool
) -> None:
    """Whatever time the file says of the later ones: they wait for those before them."""
    path = tmp_path / "t.jsonl"
    lens = {"prompt_len": 5, "output_len": 2, "shared_len": 0}
    turns = [{"session": n, "arrived_at": at, **lens} for n, at in enumerate(begun)] * 4
    path.write_text("".join(f"{json.dumps(turn)}\n" for turn in turns))
    assert ("come at once" in read_trace(path).note) == is_said


def test_lines_of_openais_batch_api_have_their_usage_inside(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    body = {"created": 1, "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    failed = {"error": {"message": "no"}}
    lines = [
        {"custom_id": "a", "response": {"status_code": 200, "body": body}, "error": None},
        {"custom_id": "b", "response": {"status_code": 400, "body": failed}, "error": None},
        {"custom_id": "c", "response": None, "error": {"code": "batch_expired"}},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    trace = read_trace(path)
    assert (trace.prompt_lens.tolist(), trace.output_lens.tolist()) == ([5], [3])
    assert (trace.arrived_at, trace.num_dropped) == (None, 2)
    assert trace.note == (
        "response.body.usage.prompt_tokens is the prompt length, "
        "response.body.usage.completion_tokens is the output length; ignored: custom_id, error; "
        "rows without prompt or output, left out as failed: 2"
    )


@pytest.mark.parametrize(
    "text",
    [
        "ts|prompt_len|output_len\n0|1200|5\n3|7|6\n",
        'ts,prompt_len,output_len\n0,"1,200",5\n3,7,6\n',
        "ts;prompt_len;output_len\n0;1,200;5\n3;7;6\n",
    ],
)
def test_bars_and_thousands_of_tables_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    trace = read_trace(path)
    assert (trace.prompt_lens.tolist(), trace.output_lens.tolist()) == ([1200, 7], [5, 6])


def test_what_may_be_a_decimal_comma_is_no_thousands(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrived_at;num_prefill_tokens;num_decode_tokens\n1,500;5;2\n")
    with pytest.raises(TraceError, match="arrived_at = '1,500' is not a finite number"):
        read_trace(path)


def test_a_run_of_sessions_as_a_workload_says_what_is_lost(tmp_path: Path) -> None:
    """Prompts that continued each other, most of which the prefix cache had, are apart there."""
    lengths = {"kind": "sessions", "turns": 4, "think_time": 1, "first_prompt": 500,
               "new_input": 100, "output": 50}  # fmt: skip
    workload = {"arrivals": "poisson:rate=2", "lengths": lengths, "num_requests": 40}
    experiment = Experiment.parse({"workload": workload, "profile": "h100/llama-3.1-8b"}, "e")
    Summary(simulate(experiment, keeps_deliveries=True)).save(tmp_path / "run")
    lost = {"requests.parquet": "no shared_len", "summary.json": "ignored: sessions"}
    for name, said in lost.items():
        assert said in read_trace(tmp_path / "run" / name).note
    shared = tmp_path / "shared.jsonl"
    shared.write_text('{"prompt_len": 9, "output_len": 1, "session": "a", "shared_len": 0}\n')
    assert read_trace(shared).note == ""


def test_sessions_and_adapters_of_any_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "ts_ms,prompt_tokens,output_tokens,session,adapter,think_time,tenant\n"
        "0,100,10,a,,,x\n100,200,10,a,1,0.5,y\n900,100,10,,2,,x\n"
    )
    trace = read_trace(path)
    assert trace.sessions is not None
    assert trace.sessions.tolist() == [0, 0, 1]
    assert trace.adapters is not None
    assert trace.adapters.tolist() == [0, 1, 2]
    assert trace.think_times is not None
    assert trace.think_times.tolist() == [0.0, 0.5, 0.0]
    said = "; as in specsim's own format: adapter, session, think_time; ignored: tenant; "
    assert trace.note.endswith(f"{said}no shared_len: prompts of a session have nothing in common")
    assert describe(trace).num_sessions == 2


def test_priorities_of_any_table_are_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,prompt_len,output_len,priority\n0,9,3,-1\n1,9,3,\n2,9,3,4\n")
    trace = read_trace(path)
    assert trace.priorities is not None
    assert trace.priorities.tolist() == [-1, 0, 4]
    path.write_text("time,prompt_len,output_len,priority\n0,9,3,high\n1,9,3,2\n")
    assert read_trace(path).priorities is None
    assert read_trace(path).note.endswith("ignored: priority")
    path.write_text("time,prompt_len,output_len,priority\n0,9,3,2\n1,9,3,high\n")
    with pytest.raises(TraceError, match=r"line 3: priority = 'high'"):
        read_trace(path)


@pytest.mark.parametrize("container", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("arrival", ["arrived_at", "arrival_time"])
def test_what_the_first_row_does_not_have_later_ones_may(
    arrival: str, container: str, tmp_path: Path
) -> None:
    """A first turn waits for nobody, and its log may say nothing of that."""
    lens = {"prompt_len": 5, "output_len": 2, "session": "s"}
    rows: list[dict[str, Any]] = [
        {arrival: n, **lens, **({"think_time": 3.5, "adapter": 2} if n else {})} for n in range(3)
    ]
    path = tmp_path / f"t.{container}"
    if container == "parquet":
        pq.write_table(pa.Table.from_pylist(list(reversed(rows))), path)
    else:
        lines = "\n".join(map(json.dumps, rows))
        path.write_text(lines if container == "jsonl" else json.dumps(rows))
    trace = read_trace(path)
    assert trace.think_times is not None
    assert trace.think_times.tolist() == [0.0, 3.5, 3.5]
    assert trace.adapters is not None
    assert trace.adapters.tolist() == [0, 2, 2]
    assert trace.num_sessions == 1


def test_what_a_token_trace_does_not_keep_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(TOKENS) + "\n" + json.dumps({**TOKENS, "adapter": 1}) + "\n")
    assert read_trace(path).note == "ignored: adapter"


def test_what_a_measured_run_as_a_workload_does_not_keep_is_said(tmp_path: Path) -> None:
    row = {"input_toks": 1, "output_toks": 1, "queued_ts": 0, "accepted": []}
    for more, note in (
        ({}, ""),
        ({"input_tok_ids": [5], "priority": 1}, ": input_tok_ids, priority"),
    ):
        (tmp_path / "requests.jsonl").write_text(json.dumps({**row, **more}))
        assert read_trace(tmp_path / "requests.jsonl").note == (f"ignored{note}" if note else "")


def test_text_of_parquet_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    ends, data = np.array([0, 1, 2], dtype=np.int32).tobytes(), b"a\xff"
    text = pa.StringArray.from_buffers(2, pa.py_buffer(ends), pa.py_buffer(data))
    columns = {"prompt_len": [5, 7], "output_len": [2, 3], "tenant": text}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(TraceError, match="column 'tenant' holds text that is not UTF-8; save it"):
        read_trace(tmp_path / "t.parquet")


def test_columns_that_nobody_knows_are_said(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"prompt_len": 1, "output_len": 3, "tenant": "a"}\n')
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.note == "ignored: tenant"
    write_trace(trace, tmp_path / "own.jsonl")
    assert read_trace(tmp_path / "own.jsonl").note == ""


def test_a_file_that_is_missing_is_named_with_its_field() -> None:
    for field, changes in (
        ("workload.arrivals.path", {"arrivals": {"kind": "trace", "path": "none.csv"}}),
        (
            "workload.lengths.path",
            {"arrivals": "burst", "lengths": {"kind": "empirical", "path": "none.csv"}},
        ),
    ):
        workload = WorkloadConfig.model_validate({**changes, "num_requests": 3})
        with pytest.raises(TraceError, match=f"{field} = none.csv: there is no such file"):
            workload.build(0)


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line_that_names_the_place(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    path = tmp_path / "bad.trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert "bad.trace" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["arrived_at", "arrival_time", "ts_ms"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_of_parquet_are_seconds_in_any_unit(
    tmp_path: Path, name: str, unit: str, zone: str | None
) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    odd = 1 if unit == "ns" else 0  # which no datetime can hold
    times = [1763971203 * per_second + odd, 1763971200 * per_second]
    columns = {
        name: pa.array(times, pa.timestamp(unit, zone)), "prompt_len": [7, 5], "output_len": [3, 2]
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.arrived_at == pytest.approx([0.0, 3.0])
    assert trace.prompt_lens.tolist() == [5, 7]


def test_bytes_in_parquet_are_text(tmp_path: Path) -> None:
    columns = {"prompt_len": [5, 7], "output_len": [2, 3], "session": [b"s", b"s"]}
    columns["id"] = [b"chat-1", b"\xff"]  # as by writers that do not say that it is text
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.ids == ["chat-1", r"\xff"]
    assert trace.num_sessions == 1


def test_another_ending_is_refused_and_nothing_written(tmp_path: Path) -> None:
    trace = read_trace(sample(tmp_path, "vidur"))
    with pytest.raises(ConfigError, match=r"\.parquet"):
        write_trace(trace, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


REAL = {
    "traces/AzureLLMInferenceTrace_conv.csv": ("azure", 19_366, 1154.7, 211.1),
    "traces/AzureLLMInferenceTrace_code.csv": ("azure", 8_819, 2047.8, 27.9),
    "traces/mooncake_conversation_trace.jsonl.gz": ("mooncake", 12_031, 12_035.1, 342.6),
    "tokens/llama31_8b_gsm8k.jsonl.gz": ("token_trace", 150, 92.7, 165.4),
    "tokens/bird_sql.jsonl.gz": ("token_trace", 1_534, 1.0, 176.0),
    "tokens/swe_agent.jsonl.gz": ("token_trace", 209, 4376.6, 90.4),
    "real-runs/RTX4090-llama-3.1-8b/requests.jsonl": ("real_run", 300, 857.5, 652.5),
    "real-runs/sharegpt-llama-3.1-8b-300-sps10.jsonl.gz": ("llmservingsim", 300, 857.5, 652.5),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    path = data_folder() / name
    if not path.exists():
        pytest.skip(f"{path} is not here (see SPECSIM_DATA)")
    kind, count, prompt_mean, output_mean = REAL[name]
    trace = read_trace(path)
    assert (trace.format, len(trace)) == (kind, count)
    assert trace.prompt_lens.mean() == pytest.approx(prompt_mean, rel=1e-3)
    assert trace.output_lens.mean() == pytest.approx(output_mean, rel=1e-2)
    assert trace.arrived_at is None or (np.diff(trace.arrived_at) >= 0).all()


@needs(data_folder() / "traces" / "mooncake_conversation_trace.jsonl.gz")
def test_mooncake_prefixes_are_reused() -> None:
    path = data_folder() / "traces" / "mooncake_conversation_trace.jsonl.gz"
    share = describe(read_trace(path)).reused_prefix_share
    assert share == pytest.approx(0.37, abs=0.01)


GATEWAY = """
from typing import Literal
from specsim.workload.readers import Reader

class Gateway(Reader):
    kind: Literal["gateway"] = "gateway"
    containers = ("jsonl",)
    columns = frozenset({"t_ms", "in_tok", "out_tok"})

    def add(self, row, builder):
        builder.add(%s)
"""
ADDED = 'row.integer("in_tok"), row.integer("out_tok"), row.number("t_ms") * 1e-3'


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Trace]:
    """Read a log by a class of the user's that adds this of each row."""
    monkeypatch.chdir(tmp_path)
    rows = [{"t_ms": 1e3 * i, "in_tok": 5 + i, "out_tok": 2, "user": "a"} for i in range(3)]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def read(added: str) -> Trace:
        name = f"gateway_{abs(hash(added))}.py"
        Path(name).write_text(GATEWAY % added)
        return read_trace("log.jsonl", f"{name}:Gateway")

    return read


def test_a_class_of_the_users_reads_what_others_take_for_something_else(
    gateway: Callable[[str], Trace],
) -> None:
    assert read_trace("log.jsonl").arrived_at is None  # t_ms tells nobody else of arrivals
    trace = gateway(ADDED)
    assert trace.arrived_at is not None
    assert trace.arrived_at.tolist() == [0.0, 1.0, 2.0]
    assert trace.prompt_lens.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    "added", ["-1, 2", "5.5, 2", "5, '2'", "5, None", "True, 2", "5, 2, float('nan')"]
)
def test_what_a_users_reader_adds_is_a_request(added: str, gateway: Callable[[str], Trace]) -> None:
    with pytest.raises(PluginError, match=r"Gateway '.*': ValueError: .* must be a (whole|finite)"):
        gateway(added)


def test_what_a_users_reader_raises_names_its_line(gateway: Callable[[str], Trace]) -> None:
    with pytest.raises(PluginError, match=r"KeyError: 'no' \(.*gateway_\d+.py, line 11, in add\)"):
        gateway("row.values['no'], 1")


def test_a_file_of_another_format_is_named(gateway: Callable[[str], Trace]) -> None:
    with pytest.raises(TraceError, match=r"log\.jsonl: no file of reader 'azure'; it has these"):
        read_trace("log.jsonl", "azure")


@pytest.mark.parametrize("lens", [5, True, {"1": 1}, [1, -1], [1, 256], [True, 1], [0.5, 1], "12"])
def test_a_record_of_acceptance_is_a_list_of_lengths(lens: Any, tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    row = {"prompt_len": 3, "output_len": 2, "accepted_lens_mine": lens}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(TraceError, match="line 1: accepted_lens_mine is not a list of whole num"):
        read_trace(path)


def test_a_users_reader_finds_the_column_usage_as_it_was_logged(
    gateway: Callable[[str], Trace],
) -> None:
    rows = [{"t_ms": 0, "in_tok": 0, "out_tok": 0, "usage": {"prompt_tokens": 5, "own": 3}}]
    Path("log.jsonl").write_text(json.dumps(rows[0]) + "\n")
    trace = gateway('row.values["usage"]["prompt_tokens"], row.values["usage.own"]')
    assert (trace.prompt_lens.tolist(), trace.output_lens.tolist()) == ([5], [3])


def test_what_usage_was_read_from_is_not_said_to_be_ignored(tmp_path: Path) -> None:
    note = read_trace(sample(tmp_path, "columns-usage")).note
    assert "ignored: usage.total_tokens, usage.p" in note
