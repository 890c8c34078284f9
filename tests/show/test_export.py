"""Exports: a trace that nests, metrics that add up, a result file that vLLM's scripts know."""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate, compress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Run, tiny_config

from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.workload.readers import read_trace

Save = Callable[..., Path]

FEW_BLOCKS = {**tiny_config()["engine"], "num_gpu_blocks": 66, "max_num_seqs": 32}
"""So few that requests are preempted."""
SATURATED = {**tiny_config()["workload"], "arrivals": {"kind": "burst"}}


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    """Run a tiny experiment and return its results folder: ``saved(replicas=2)``."""

    def run(**changes: Any) -> Path:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        experiment = Experiment.parse(tiny_config(**changes), "tiny")
        Summary(simulate(experiment, keeps_deliveries=True)).save(folder)
        return folder

    return run


def trace(cli: Run, folder: Path, *options: object) -> list[dict[str, Any]]:
    code, _, err = cli("export", folder, "--chrome-trace", "out.json", *options)
    assert (code, err) == (0, "")
    found = json.loads(Path("out.json").read_text())
    assert found["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = found["traceEvents"]
    return events


def spans(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def named(events: list[dict[str, Any]], kind: str) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == f"{kind}_name"
    }


@pytest.mark.parametrize("is_async", [True, False])
def test_trace_keeps_the_rules_of_its_format(cli: Run, saved: Save, is_async: bool) -> None:
    engine = {**FEW_BLOCKS, "async_scheduling": is_async}
    events = trace(cli, saved(engine=engine, workload=SATURATED, replicas=2))
    assert {event["ph"] for event in events} == {"M", "X", "C", "i"}
    tracks, threads = named(events, "process"), named(events, "thread")
    assert sorted(tracks.values()) == ["replica 0", "replica 1"]
    for event in events:
        assert (event["pid"], 0) in tracks
        assert event["ph"] in "MC" or (event["pid"], event["tid"]) in threads
        assert event["ph"] == "M" or event["ts"] >= 0
        if event["ph"] == "C":
            assert all(value >= 0 for value in event["args"].values())
    for mine in spans(events).values():
        open_ends: list[int] = []
        for span in sorted(mine, key=lambda each: (each["ts"], -each["dur"])):
            start = round(span["ts"] * 1e3)
            end = start + round(span["dur"] * 1e3)
            assert end >= start
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], "spans of a track nest"
            open_ends.append(end)


def test_trace_has_every_request_step_and_preemption(cli: Run, saved: Save) -> None:
    folder = saved(engine=FEW_BLOCKS, workload=SATURATED)
    events = trace(cli, folder)
    requests = pq.read_table(folder / "requests.parquet").to_pylist()
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    threads = named(events, "thread")
    spanned = {e["name"]: e for e in events if e["ph"] == "X" and e["name"].startswith("request")}
    assert spanned.keys() == {f"request {row['request']}" for row in requests}
    for row in requests:
        span = spanned[f"request {row['request']}"]
        assert span["ts"] == pytest.approx(row["arrived_at"] * 1e6)
        assert span["dur"] == pytest.approx(row["e2el"] * 1e6, abs=2e-3)
        assert span["args"]["output_len"] == row["output_len"]
    by_track = {threads[track]: mine for track, mine in spans(events).items()}
    assert len(by_track["steps"]) == len(steps)
    targets = [span["dur"] for span in by_track["GPU"] if span["name"] == "target"]
    assert sum(targets) == pytest.approx(sum(row["target_time"] for row in steps) * 1e6)
    preempted = [event["args"]["requests"] for event in events if event["ph"] == "i"]
    assert sum(preempted) == sum(row["preemptions"] for row in requests) > 0
    counts = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "requests"]
    assert max(count["waiting"] for count in counts) == max(row["num_waiting"] for row in steps)
    used = [e["args"]["used"] for e in events if e["ph"] == "C" and e["name"] == "KV blocks"]
    assert max(used) == 65 - min(row["free_blocks"] for row in steps)
    assert used[-1] == 0


def test_no_more_request_tracks_than_requests_at_once(cli: Run, saved: Save) -> None:
    folder = saved()
    threads = named(trace(cli, folder), "thread").values()
    at_once = json.loads((folder / "summary.json").read_text())["max_concurrent_requests"]
    assert sum(name.startswith("requests") for name in threads) == at_once < 30


@pytest.mark.parametrize("policy", ["off", "static:k=2"])
def test_a_pipeline_has_a_track_for_each_stage(
    cli: Run, saved: Save, constant_step: Callable[..., str], policy: str
) -> None:
    """Steps of different length wait for each other at the second one, which drafts, too."""
    shares, drafts = [0.4, 0.6], {"eagle3": {"basis": "pass", "step_ms": 0.5}}
    profile = constant_step(delta_ms=4.0, gamma_us=100.0, stage_shares=shares, drafts=drafts)
    engine = {"num_gpu_blocks": 400, "max_model_len": 512}
    if policy != "off":
        engine["speculative_config"] = {"method": "eagle3", "num_speculative_tokens": 2}
    folder = saved(engine=engine, policy=policy, profile=profile)
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    events = trace(cli, folder)
    assert list(named(events, "thread").values())[1:3] == ["GPU, stage 1", "GPU, stage 2"]
    tracks = [spans(events)[1, tid] for tid in (2, 3)]
    passes = [[each for each in own if each["name"] == "target"] for own in tracks]
    for share, own in zip(shares, passes, strict=True):
        times = [share * step["target_time"] * 1e6 for step in steps]
        assert [each["dur"] for each in own] == pytest.approx(times, abs=2e-3)
    drafting = [each["dur"] for each in tracks[1] if each["name"] == "draft"]
    made = [step["draft_time"] * 1e6 for step in steps if step["draft_time"]]
    assert drafting == pytest.approx(made, abs=2e-3)
    assert bool(made) is (policy != "off")
    for own in tracks:
        ends = [each["ts"] + each["dur"] for each in own]
        assert all(end <= later["ts"] + 1e-4 for end, later in zip(ends, own[1:], strict=False))
    ends = [each["ts"] + each["dur"] for each in passes[1]]
    ended = [(step["ended_at"] - step["draft_time"]) * 1e6 for step in steps]
    has_request = [step["num_requests"] > 0 for step in steps]
    assert list(compress(ends, has_request)) == (
        pytest.approx(list(compress(ended, has_request)), abs=2e-3)
    )
    assert any(two["ts"] > one["ts"] + one["dur"] + 1 for one, two in zip(*passes, strict=True))


def test_each_pool_has_tracks_for_its_own_stages(
    cli: Run, saved: Save, constant_step: Callable[..., str]
) -> None:
    plain, staged = (
        constant_step(delta_ms=4.0, stage_shares=[1 / count] * count) for count in (1, 2)
    )
    pools = {"prefill": {"profile": staged}, "decode": {}}
    folder = saved(policy="off", acceptance=None, pools=pools, profile=plain)
    gpus = [name for name in named(trace(cli, folder), "thread").items() if "GPU" in name[1]]
    assert gpus == [((1, 2), "GPU"), ((2, 2), "GPU, stage 1"), ((2, 3), "GPU, stage 2")]


def test_blocks_in_use_are_those_of_the_own_pool(cli: Run, saved: Save) -> None:
    pools = {"prefill": {"engine": {"num_gpu_blocks": 200}}, "decode": {}}
    events = trace(cli, saved(policy="off", pools=pools))
    used = [(e["pid"], e["args"]["used"]) for e in events if e["name"] == "KV blocks"]
    assert all(0 <= blocks <= (399, 199)[pid - 1] for pid, blocks in used)
    assert {pid for pid, blocks in used if blocks == 0} == {1, 2}


def test_a_window_shows_what_the_whole_trace_does(cli: Run, saved: Save) -> None:
    """No step lasts longer where the window ends, and the server does not fall idle there."""
    folder = saved(engine={**FEW_BLOCKS, "async_scheduling": True}, workload=SATURATED)
    whole = spans(trace(cli, folder))
    events = trace(cli, folder, "--window", "0.1:0.2")
    shown = [event for event in spans(events)[1, 1] if event not in whole[1, 1]]
    assert (len(spans(events)[1, 1]) > 5, shown) == (True, [])
    running = [each["args"] for each in events if each["name"] == "requests" and each["ph"] == "C"]
    assert all(each["running"] for each in running)


def test_window_keeps_what_touches_it(cli: Run, saved: Save) -> None:
    folder = saved()
    events = trace(cli, folder, "--window", "0.5:0.7")
    rows = pq.read_table(folder / "requests.parquet").to_pylist()
    touching = {
        f"request {row['request']}"
        for row in rows
        if row["arrived_at"] < 0.7 and row["ended_at"] >= 0.5
    }
    found = {e["name"] for e in events if e["ph"] == "X" and e["name"].startswith("request")}
    assert found == touching
    assert 0 < len(found) < 30
    steps = [
        span for span in events if span["ph"] == "X" and "num_requests" in span.get("args", {})
    ]
    assert all(step["ts"] < 0.7e6 for step in steps)


def test_compressed_trace_is_the_same_trace(cli: Run, saved: Save) -> None:
    folder = saved()
    plain = trace(cli, folder)
    for name in ("one.json.gz", "two.json.gz"):
        assert cli("export", folder, "--chrome-trace", name)[0] == 0
    assert Path("one.json.gz").read_bytes() == Path("two.json.gz").read_bytes()
    assert json.loads(gzip.decompress(Path("one.json.gz").read_bytes()))["traceEvents"] == plain


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> tuple[Samples, dict[str, str]]:
    """Read the text exposition format, version 0.0.4, strictly."""
    samples: Samples = {}
    types: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types
            types[name] = kind
        elif not line.startswith(("# HELP ", "# specsim_version: ")):
            match = re.fullmatch(r'(vllm:[a-z0-9_]+)\{((?:[a-z_]+="[^"\\]*",?)+)\} (\S+)', line)
            assert match, line
            labels = tuple(sorted(re.findall(r'([a-z_]+)="([^"]*)"', match[2])))
            assert (match[1], labels) not in samples
            samples[match[1], labels] = float(match[3])
            family = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert match[1] in types or types[family] == "histogram"
    assert text.endswith("\n")
    return samples, types


def metrics(cli: Run, folder: Path) -> tuple[Samples, dict[str, str]]:
    code, _, err = cli("export", folder, "--prometheus", "out.txt")
    assert (code, err) == (0, "")
    return parsed(Path("out.txt").read_text())


def total(samples: Samples, name: str) -> float:
    return sum(value for (found, _), value in samples.items() if found == f"vllm:{name}")


def test_metrics_count_what_came_from_host_memory_as_cached(cli: Run, saved: Save) -> None:
    """vLLM's documentation of it: "Number of cached prompt tokens (local + external)"."""
    turns = {"mean": 4.0, "sigma": 0.0}
    few = {"mean": 40.0, "sigma": 0.3}
    lengths = {"kind": "sessions", "turns": turns, "max_len": 400}
    lengths |= dict.fromkeys(("first_prompt", "new_input", "output"), few)
    workload = {**tiny_config()["workload"], "lengths": lengths}
    folder = saved(workload=workload, engine={**FEW_BLOCKS, "kv_offload": {"blocks": 1000}})
    samples, _ = metrics(cli, folder)
    hits = json.loads((folder / "summary.json").read_text())["specsim"]["hits"]
    cached = hits["gpu_tokens"] + hits["host_tokens"]
    assert hits["host_tokens"] > 0
    assert total(samples, "prompt_tokens_cached_total") == cached
    assert total(samples, "prefix_cache_hits_total") == hits["gpu_tokens"]
    computed = total(samples, "prompt_tokens_total") - cached
    assert total(samples, "request_prefill_kv_computed_tokens_sum") == computed


def test_metrics_add_up_to_the_summary(cli: Run, saved: Save) -> None:
    folder = saved(engine=FEW_BLOCKS, workload=SATURATED, replicas=2)
    samples, types = metrics(cli, folder)
    data = json.loads((folder / "summary.json").read_text())
    for name, value in {
        "spec_decode_num_drafts_total": data["spec_decode_num_drafts"],
        "spec_decode_num_draft_tokens_total": data["spec_decode_draft_tokens"],
        "spec_decode_num_accepted_tokens_total": data["spec_decode_accepted_tokens"],
        "spec_decode_num_accepted_tokens_per_pos_total": data["spec_decode_accepted_tokens"],
        "prompt_tokens_total": data["total_input_tokens"],
        "generation_tokens_total": data["total_output_tokens"],
        "request_success_total": data["completed"],
        "num_preemptions_total": data["specsim"]["num_preemptions"],
        "time_to_first_token_seconds_count": 30,
        "time_to_first_token_seconds_sum": sum(data["ttfts"]),
        "e2e_request_latency_seconds_sum": sum(data["latencies"]),
        "request_queue_time_seconds_sum": sum(data["queue_times"]),
        "inter_token_latency_seconds_count": sum(map(len, data["itls"])),
        "inter_token_latency_seconds_sum": sum(map(sum, data["itls"])),
        "request_generation_tokens_sum": data["total_output_tokens"],
        "num_requests_running": 0,
    }.items():
        assert total(samples, name) == pytest.approx(value), name
    assert types["vllm:time_to_first_token_seconds"] == "histogram"
    assert {dict(labels).get("engine") for _, labels in samples} == {"0", "1", "all"}


def test_answers_shorter_than_their_limit_ended_by_a_token(cli: Run, saved: Save) -> None:
    longest = max(json.loads((saved() / "summary.json").read_text())["output_lens"])
    workload = {**tiny_config()["workload"], "max_tokens": longest}
    folder = saved(workload=workload)
    lens = json.loads((folder / "summary.json").read_text())["output_lens"]
    samples, _ = metrics(cli, folder)
    ends = {
        dict(labels)["finished_reason"]: value
        for (name, labels), value in samples.items()
        if name == "vllm:request_success_total" and value
    }
    assert ends == {"stop": sum(n < longest for n in lens), "length": lens.count(longest)}


def test_buckets_are_those_of_vllm_and_cumulative(cli: Run, saved: Save) -> None:
    folder = saved()
    samples, _ = metrics(cli, folder)
    buckets = defaultdict(list)
    for (name, labels), value in samples.items():
        if name.endswith("_bucket"):
            buckets[name].append((float(dict(labels)["le"]), value))
    ttfts = json.loads((folder / "summary.json").read_text())["ttfts"]
    for bound, count in buckets["vllm:time_to_first_token_seconds_bucket"]:
        assert count == sum(ttft <= bound for ttft in ttfts)
    for found in buckets.values():
        counts = [count for _, count in found]
        assert counts == sorted(counts)
        assert found[-1][0] == float("inf")
    bounds = [bound for bound, _ in buckets["vllm:request_prompt_tokens_bucket"]]
    assert bounds[:-1] == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]  # max_model_len is 1024


def test_without_speculation_there_are_no_draft_counters(cli: Run, saved: Save) -> None:
    samples, _ = metrics(cli, saved(policy={"kind": "off"}))
    assert not [name for name, _ in samples if "spec_decode" in name]


VLLM_FIELDS = """date endpoint_type backend label model_id tokenizer_id num_prompts request_rate
burstiness max_concurrency duration completed failed total_input_tokens total_output_tokens
request_throughput request_goodput output_throughput total_token_throughput input_lens output_lens
ttfts itls latencies start_times queue_times generated_texts errors max_output_tokens_per_s
max_concurrent_requests rtfx spec_decode_acceptance_rate spec_decode_acceptance_length
spec_decode_num_drafts spec_decode_draft_tokens spec_decode_accepted_tokens
spec_decode_per_position_acceptance_rates mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms
mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms
p99_itl_ms"""
"""Of the file that ``vllm bench serve`` 0.32.0 wrote against a server with n-gram speculation."""


def test_vllm_bench_has_the_fields_of_vllm(cli: Run, saved: Save) -> None:
    folder = saved()
    assert cli("export", folder, "--vllm-bench", "out.json")[0] == 0
    found = json.loads(Path("out.json").read_text())
    assert set(VLLM_FIELDS.split()) <= found.keys()
    extra = found.keys() - {*VLLM_FIELDS.split(), "specsim_version"}  # percentiles on request
    assert all(re.fullmatch(r"(p50|p90|p95|p99|mean|std|median)_\w+_ms", name) for name in extra)
    assert all(len(found[name]) == 30 for name in ("ttfts", "itls", "generated_texts", "errors"))
    first = min(found["start_times"])
    last = max(map(sum, zip(found["start_times"], found["latencies"], strict=True)))
    assert found["duration"] == pytest.approx(last) != pytest.approx(last - first)
    assert found["request_throughput"] == pytest.approx(30 / found["duration"])
    assert read_trace(Path("out.json")).format == "vllm_bench"


def test_what_a_client_means_otherwise_is_as_vllms_client_has_it(cli: Run, saved: Save) -> None:
    """It keeps no request waiting, and counts deliveries, and whoever was there in a second."""
    folder = saved(workload={**tiny_config()["workload"], "arrivals": {"kind": "burst"}})
    assert cli("export", folder, "--vllm-bench", "out.json")[0] == 0
    found, own = (
        json.loads(path.read_text()) for path in (Path("out.json"), folder / "summary.json")
    )
    assert max(own["queue_times"]) > 0 == max(found["queue_times"])
    tokens, there = defaultdict[int, int](int), defaultdict[int, int](int)
    names = ("start_times", "ttfts", "itls", "latencies")
    for start, first, gaps, latency in zip(*(found[name] for name in names), strict=True):
        for at in accumulate(gaps, initial=start + first):
            tokens[int(at)] += 1
        for second in range(int(start), int(start + latency) + 1):
            there[second] += 1
    assert found["max_output_tokens_per_s"] == max(tokens.values())
    assert found["max_concurrent_requests"] == max(there.values())
    assert found["max_output_tokens_per_s"] < own["max_output_tokens_per_s"]


def test_busiest_seconds_are_left_out_where_nothing_is_known_of_deliveries(
    cli: Run, tmp_path: Path
) -> None:
    Summary(simulate(Experiment.parse(tiny_config(), "tiny"))).save(tmp_path / "run")
    assert cli("export", tmp_path / "run", "--vllm-bench", "out.json")[0] == 0
    found = json.loads(Path("out.json").read_text())
    assert not found.keys() & {"itls", "max_output_tokens_per_s", "max_concurrent_requests"}


def test_all_at_once(cli: Run, saved: Save) -> None:
    code, out, _ = cli(
        "export", saved(), "--chrome-trace", "t.json", "--prometheus", "p.txt", "--vllm-bench",
        "b.json",
    )  # fmt: skip
    assert code == 0
    assert "events)" in out
    assert all(Path(name).exists() for name in ("t.json", "p.txt", "b.json"))


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ((), "say what to write: --chrome-trace"),
            (("--prometheus", "a", "--window", "1:2"), "only --chrome-trace uses it"),
            (("--chrome-trace", "a", "--window", "2:1"), "the start first"),
            (("--chrome-trace", "a", "--window", "nan:1"), "the start first"),
            (("--chrome-trace", "a", "--window", "x"), "such as 10:60"),
            (("--chrome-trace", "a", "--window", "999:1000"), "999:1000: the run ends at "),
            (("--chrome-trace", "a", "--prometheus", "./a"), "name the same file"),
            (("--vllm-bench", "summary.json"), "would replace summary.json"),
            (("--chrome-trace", "."), "is a folder"),
        ],
    )
    def test_options(self, cli: Run, saved: Save, options: tuple[str, ...], said: str) -> None:
        self.assert_fails(cli, saved(), said, *options)

    def test_no_folder(self, cli: Run) -> None:
        self.assert_fails(cli, Path("nowhere"), "nowhere: is not a folder")

    def test_empty_folder(self, cli: Run) -> None:
        Path("empty").mkdir()
        self.assert_fails(cli, Path("empty"), "holds no config.yaml, so it is not of one run")

    def test_missing_table(self, cli: Run, saved: Save) -> None:
        folder = saved()
        (folder / "requests.parquet").unlink()
        self.assert_fails(cli, folder, "holds no requests.parquet")

    def test_files_of_two_runs(self, cli: Run, saved: Save) -> None:
        folder, other = saved(), saved(seed=1)
        (other / "requests.parquet").replace(folder / "requests.parquet")
        self.assert_fails(cli, folder, "not the same run")

    def test_summary_that_is_not_ours(self, cli: Run, saved: Save) -> None:
        folder = saved()
        (folder / "summary.json").write_text('{"completed": 3}')
        self.assert_fails(cli, folder, "has no block 'specsim' of ours")

    def test_times_out_of_order(self, cli: Run, saved: Save) -> None:
        folder = saved()
        table = pq.read_table(folder / "requests.parquet").to_pydict()
        table["scheduled_at"][4] = table["ended_at"][4] + 1
        pq.write_table(pa.table(table), folder / "requests.parquet")
        self.assert_fails(cli, folder, "row 5: its times must be in the order")

    def assert_fails(self, cli: Run, folder: Path, said: str, *options: str) -> None:
        options = options or (() if "say what" in said else ("--chrome-trace", "out.json"))
        before = set(Path().rglob("*"))
        code, _, err = cli("export", folder, *options)
        assert code == 2
        assert said in err
        assert err.count("\n") == 1
        assert set(Path().rglob("*")) == before
