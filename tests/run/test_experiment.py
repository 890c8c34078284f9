"""The configuration: nothing is lost, nothing unknown is accepted, errors say what to do."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import tiny_config
from hypothesis import given
from hypothesis import strategies as st
from strategies import engines, workloads

from specsim.core.errors import CapacityError, ConfigError, ProfileError
from specsim.core.request import Request
from specsim.core.settings import load_mapping, overridden
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment, config_hash
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.workload.readers import read_trace

SPEC = "engine.speculative_config"
POLICY = st.sampled_from(
    [None, "off", "static:k=1", "oracle", {"kind": "schedule", "ranges": [[1, 4, 1]]}]
)


@given(engine=engines(), workload=workloads(), policy=POLICY, seed=st.integers(0, 2**40))
def test_saved_and_loaded_it_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, engine: Any, workload: Any, policy: Any, seed: int
) -> None:
    if "speculative_config" not in engine:
        policy = None
    config = tiny_config(engine=engine, workload=workload, policy=policy, seed=seed)
    experiment = Experiment.parse(config, "drawn")
    path = tmp_path_factory.mktemp("round-trip") / "config.yaml"
    experiment.save(path)
    assert Experiment.load(path) == experiment
    assert Experiment.load(path).hash == experiment.hash
    assert config_hash(load_mapping(path, ConfigError)) == experiment.hash


def test_a_pool_that_is_saved_keeps_the_settings_of_its_experiment(
    tiny: Callable[..., Experiment],
) -> None:
    own = {"enable_prefix_caching": False, "max_num_active_seqs": None}
    common = {"block_size": 8, "max_num_active_seqs": 3}
    experiment = tiny(engine=common, acceptance=None, pools={"prefill": {"engine": own}})
    pool = Experiment.parse(experiment.to_dict(), "saved").of_pool("prefill").engine
    assert pool.block_size == 8
    assert pool == experiment.of_pool("prefill").engine
    assert pool.max_num_active_seqs is None


def test_the_hash_knows_everything_but_the_seed(tiny: Callable[..., Experiment]) -> None:
    assert tiny(seed=1).hash == tiny(seed=2).hash
    assert tiny().hash != tiny(policy={"kind": "static", "k": 2}).hash


def test_overrides_replace_and_add_fields() -> None:
    data = overridden(
        {"policy": {"kind": "off"}, "seed": 1}, ["policy.kind=static", "policy.k=3", "a.b=x"]
    )
    assert data == {"policy": {"kind": "static", "k": 3}, "seed": 1, "a": {"b": "x"}}


def test_a_mapping_of_overrides_does_what_its_lines_do(
    tmp_path: Path, tiny: Callable[..., Experiment]
) -> None:
    tiny().save(tmp_path / "e.yaml")
    lines = ["policy=static:k=2", "workload.num_requests=7", "engine.max_num_seqs=4"]
    mapping = {"policy": "static:k=2", "workload.num_requests": 7, "engine.max_num_seqs": 4}
    loaded = Experiment.load(tmp_path / "e.yaml", mapping)
    assert loaded == Experiment.load(tmp_path / "e.yaml", lines) != tiny()
    assert Experiment.load(tmp_path / "e.yaml", "seed=3").seed == 3
    with pytest.raises(ConfigError, match="did you mean 'policy'"):
        Experiment.load(tmp_path / "e.yaml", {"polisy.k": 2})
    with pytest.raises(ConfigError, match=r"^overrides policy\.k: expected field\.name=value"):
        Experiment.load(tmp_path / "e.yaml", ["policy.k"])


@pytest.mark.parametrize("override", ["policy", "=3", "seed.k=3", "seed=[1"])
def test_bad_overrides(override: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        overridden({"seed": 1}, [override])


def change(path: str, value: Any) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(
        yaml.safe_dump(tiny_config(policy={"kind": "static", "k": 3}))
    )
    *parents, name = path.split(".")
    target = config
    for parent in parents:
        target = target.setdefault(parent, {})
    target[name] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("engine.max_num_seq", 3, r"unknown field 'max_num_seq'; did you mean 'max_num_seqs'"),
        ("workload.arrival", 3, r"workload: unknown field 'arrival'; did you mean 'arrivals'"),
        ("slo", {"ttft_ms": 1, 5: None}, r"slo: unknown field '5'; write 1\.5, not 1,5"),
        ("policy.kind", "statik", r"no kind 'statik'; did you mean 'static'"),
        ("acceptance", "a/b/c", r"no kind 'a/b/c'; a preset is \{kind: preset, name: a/b/c\}"),
        ("acceptance", "a.yaml", r"no kind 'a.yaml'; of a file of yours, copy what stands under"),
        ("policy.k", 0, r"policy\.k = 0"),
        ("policy.k", 9, r"exceeds .*num_speculative_tokens = 3"),
        ("acceptance.alpha", 1.2, r"acceptance\.alpha = 1\.2: .*less than or equal to 1"),
        ("acceptance", None, "policy 'static' needs acceptance"),
        ("engine.speculative_config", None, "policy 'static' needs engine.speculative_config"),
        ("engine.speculative_config.method", "eagle9", "did you mean 'eagle"),
        ("engine.speculative_config.num_speculative_tokens", 0, "greater than or equal to 1"),
        ("workload.arrivals.rate", float("nan"), "finite number"),
        ("workload.arrivals.rate", -1, "greater than 0"),
        ("workload.num_requests", None, "the workload has no end"),
        ("workload.lengths", None, "'lengths' is missing"),
        ("workload.lengths", {"kind": "uniform", "prompt": [9, 1], "output": [1, 2]}, "shortest"),
        ("replicas", 0, r"replicas = 0"),
        ("seed", -1, r"seed = -1"),
        ("slo", {}, "names no limit"),
        ("policy", {"kind": "schedule", "ranges": [[1, 4, 3], [4, 9, 1]]}, "overlaps"),
        ("policy", {"kind": "schedule", "ranges": [[2, 4, 3]]}, "must start at 1"),
        ("policy", {"kind": "schedule", "ranges": [[1, 4, -3]]}, "at least 0"),
        ("policy", {"kind": "schedule", "ranges": [[4, 1, 3]]}, "must not exceed"),
        ("acceptance", {"kind": "per_position"}, "either conditional_rates or unconditional_rates"),
        ("acceptance", {"kind": "per_position", "unconditional_rates": [0.5, 0.6]}, "not increase"),
        ("engine.scheduler", "v2", r"engine\.scheduler = 'v2'"),
        ("workload.arrivals", {"kind": "piecewise", "segments": [[4, 0]]}, "nothing would ever"),
        (f"{SPEC}.num_speculative_tokens_per_batch_size", [[1, 4, 2]], "not used by policy"),
    ],
)  # fmt: skip
def test_bad_values_are_one_line_that_names_field_value_and_rule(
    path: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Experiment.parse(change(path, value), "exp.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("exp.yaml: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"is empty; .*`specsim init .*exp.yaml` asks for them and writes it"),
        ("- 1\n- 2", "a mapping of fields"),
        ("workload: {arrivals: [", "line 1: not YAML"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_files_that_are_no_experiment(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Experiment.load(path)


@pytest.mark.parametrize("name", ["requests.csv", "requests.JSONL.gz"])
def test_a_log_of_requests_is_told_apart_by_how_its_name_ends(tmp_path: Path, name: str) -> None:
    experiment = Experiment.parse(tiny_config(), "e")
    (tmp_path / f"{name}.yaml").write_text(experiment.to_yaml())
    assert Experiment.load(tmp_path / f"{name}.yaml") == experiment
    (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match="holds requests, and is no experiment"):
        Experiment.load(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        Experiment.load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("engine", "policy", "is_async"),
    [
        ({}, None, True),
        ({"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}}, None, True),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, None, False),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "off", True),
        ({"scheduler": "prefill_first"}, None, False),
        ({"async_scheduling": False}, None, False),
        (
            {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}},
            "oracle",
            False,
        ),
    ],
)
def test_asynchronous_scheduling_is_on_where_vllm_has_it(
    tiny: Callable[..., Experiment], engine: Any, policy: Any, is_async: bool
) -> None:
    assert tiny(engine=engine, policy=policy).is_async is is_async


def test_a_batch_size_schedule_in_the_deployment_is_the_policy(
    tiny: Callable[..., Experiment],
) -> None:
    spec = {
        "method": "eagle3",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 64, 1]],
    }
    assert tiny(engine={"speculative_config": spec}).effective_policy.kind == "schedule"


def deploy(**engine: Any) -> Deployment:
    config = tiny_config(engine=engine, policy=None, acceptance={"kind": "bernoulli", "alpha": 0.5})
    return Deployment.of(Experiment.parse(config, "x"))


def test_defaults_are_those_of_vllm_serve_on_an_h100() -> None:
    engine = deploy().engine
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == (8192, 1024)
    assert engine.max_model_len == 131072
    assert engine.gpu_memory_utilization == 0.92


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        ({"max_num_batched_tokens": 512}, (512, 512)),
        ({"max_num_batched_tokens": 16384}, (16384, 1024)),
        ({"enable_chunked_prefill": False}, (131072, 1024)),
        ({"enable_chunked_prefill": False, "max_model_len": 4096}, (8192, 1024)),
    ],
)
def test_defaults_follow_what_is_given(given: dict[str, Any], batch: tuple[int, int]) -> None:
    """vLLM 0.33.0 ``arg_utils.py _set_default_max_num_seqs_and_batched_tokens_args``."""
    engine = deploy(**given).engine
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == batch


def test_kv_blocks_follow_from_memory() -> None:
    gib = 1 << 30
    weights, reserved = 8_030_261_248 * 2, 1.15 * gib
    expected = int((79.1 * gib * 0.9 - weights - reserved) // (16 * 131072))
    assert deploy(gpu_memory_utilization=0.9).engine.num_gpu_blocks == expected == 28202


def test_memory_for_kv_blocks_may_be_given() -> None:
    """What the drafter keeps comes out of it, and gpu_memory_utilization does not count."""
    room = 20 << 30
    given = {"kv_cache_memory_bytes": room, "gpu_memory_utilization": 0.1}
    assert deploy(**given).engine.num_gpu_blocks == room // (16 * 131072)
    spec = {"method": "eagle3", "num_speculative_tokens": 3}
    with_draft = deploy(speculative_config=spec, **given).engine.num_gpu_blocks
    assert with_draft == room // (16 * (131072 + 4096))
    assert deploy(num_gpu_blocks=9000, **given).engine.num_gpu_blocks == 9000


def test_a_drafter_takes_kv_blocks() -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": 3}
    with_draft = deploy(speculative_config=spec, gpu_memory_utilization=0.9).engine.num_gpu_blocks
    gib = 1 << 30
    left = 79.1 * gib * 0.9 - 8_030_261_248 * 2 - (1.15 + 0.79) * gib
    assert with_draft == int(left // (16 * (131072 + 4096)))


@pytest.mark.parametrize(
    ("engine", "error", "message"),
    [
        ({"gpu_memory_utilization": 0.1}, CapacityError, "no KV block fits"),
        ({"kv_cache_memory_bytes": 70 << 30}, CapacityError, "more than the 79.1 GiB of"),
        ({"num_gpu_blocks": 100}, CapacityError, "less than one request of max_model_len"),
        ({"model": "Qwen/Qwen3-8B"}, ProfileError, "the profile was made for"),
        ({"tensor_parallel_size": 2}, ProfileError, "-tp2"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 65}, ConfigError, "at least max_num_seqs"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}, ConfigError,
         "at least max_model_len"),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}, ProfileError,
         r"no drafting cost for method 'mtp' \(it has: eagle3, ngram, suffix, datastore, sssd\).*"
         r"--model llama-3.1-8b --gpu h100 --draft mtp=DRAFTER"),
    ],
)  # fmt: skip
def test_servers_that_would_not_start(engine: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        deploy(**engine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": 0}}, "take time"),
        (
            {"target": {"kind": "linear", "alpha_ns": -1, "gamma_us": 0, "delta_ms": 1}},
            "alpha_ns = -1",
        ),
        ({"gpu": "h1000"}, "did you mean 'h100'"),
        ({"model": "llama"}, "no model 'llama'"),
        ({"delta": 3}, "unknown field 'delta'"),
    ],
)
def test_bad_profiles(constant_step: Callable[..., str], change: Any, message: str) -> None:
    path = constant_step(delta_ms=1)
    data = yaml.safe_load(Path(path).read_text())
    Path(path).write_text(yaml.safe_dump({**data, **change}))
    with pytest.raises(ProfileError, match=message):
        Deployment.of(Experiment.parse(tiny_config(profile=path, policy="off"), "x"))


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(ProfileError, match=r"did you mean 'h100/llama-3\.1-8b'"):
        Deployment.of(Experiment.parse(tiny_config(profile="h100/llama-31-8b"), "x"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"engine": {"num_gpu_blocks": 2**63}}, "num_gpu_blocks"),
        ({"engine": {"kv_offload": {"gib": 1e308, "bandwidth_gb_s": 10.0}}}, "gib"),
        ({"routing": {"kind": "scored", "refresh_ms": 1e-300}}, "refresh_ms"),
        (
            {"autoscaling": {"kind": "target_queue", "max_replicas": 2, "interval_s": 1e-300}},
            "interval_s",
        ),
    ],
)
def test_numbers_without_end_are_refused(changes: dict[str, Any], match: str) -> None:
    config = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 5.0},
            "lengths": {"kind": "constant", "prompt": 20, "output": 5},
            "num_requests": 5,
        },
        "profile": "h100/llama-3.1-8b",
    }
    with pytest.raises(ConfigError, match=match):
        Experiment.parse({**config, **changes}, "test")


def test_a_notebook_shows_the_experiment_of_a_run_and_not_pages_of_step_times(
    tiny: Callable[..., Experiment],
) -> None:
    experiment = tiny(profile="h100/llama-3.1-8b-kernels")
    run = simulate(experiment)
    assert repr(run) == f"Run(experiment={experiment!r})"
    assert repr(Summary(run)).startswith(f"Summary(run={run!r}")


@pytest.mark.parametrize("output_len", [1, 2, 3, 40])
def test_answers_that_the_longest_request_cuts_off_are_said(
    output_len: int, tiny: Callable[..., Experiment]
) -> None:
    lengths = {"kind": "constant", "prompt": 1022, "output": output_len}  # max_model_len is 1024
    workload = {"arrivals": {"kind": "burst"}, "lengths": lengths, "num_requests": 3}
    summary = Summary(simulate(tiny(workload=workload, policy="off", acceptance=None)))
    assert summary.tables.requests["output_len"].tolist() == [min(output_len, 2)] * 3
    said = [each for each in summary.warnings if "max_model_len" in each]
    assert said == ["3 answers are cut off at engine.max_model_len = 1024"] * (output_len > 2)


def test_rows_that_are_left_out_are_said(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("arrival_time,prompt_len,output_len\n0,9,5\n1,9,0\n2,9,5\n")
    experiment = tiny(workload={"arrivals": {"kind": "trace", "path": str(table)}})
    summary = Summary(simulate(experiment))
    assert summary.warnings[0].endswith("; rows without prompt or output, left out as failed: 1")
    assert "\n".join(summary.warnings).count("left out") == 1
    table.write_text("arrival_time,prompt_len,output_len\n0,9,5\n2,9,5\n")
    assert not any("left out" in warning for warning in Summary(simulate(experiment)).warnings)


@pytest.mark.parametrize("count", [None, 21])
def test_a_trace_of_which_a_part_comes_at_another_rate_is_said(
    count: int | None, tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """The whole is brought to the rate; its first half comes faster, the other more slowly."""
    table = tmp_path / "t.csv"
    times = [0.5 * n for n in range(21)] + [10.0 + 1.25 * n for n in range(1, 25)]
    rows = "".join(f"{time},9,5\n" for time in times)
    table.write_text("arrival_time,prompt_len,output_len\n" + rows)
    arrivals = {"kind": "trace", "path": str(table), "rate": 10.0}
    workload = {"arrivals": arrivals, "num_requests": count}
    summary = Summary(simulate(tiny(workload=workload)))
    found = summary.tables.requests["arrived_at"]
    measured = (len(found) - 1) / (found.max() - found.min())
    assert summary.data["request_rate"] == pytest.approx(measured)
    said = [line for line in summary.warnings if "workload.arrivals.rate = 10, but" in line]
    assert len(said) == (count is not None)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("priorities", [(0, 0, 0), (0, 1, 0)])
def test_priorities_that_count_for_nothing_are_said(
    policy: str, priorities: tuple[int, ...], tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"prompt_len": 5, "output_len": 2, "arrived_at": 0, "priority": n} for n in priorities]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    workload = {"arrivals": {"kind": "trace", "path": str(path)}}
    own = {"engine": {"scheduling_policy": policy}}
    for fields in (own, {"pools": {"prefill": own}}, {"pools": {"decode": own}}):
        experiment = tiny(workload=workload, acceptance=None, **{"engine": {}, **fields})
        warnings = Summary(simulate(experiment)).warnings
        said = [line for line in warnings if "scheduling_policy" in line]
        assert len(said) == ((policy == "priority") != (max(priorities) > 0))


def test_a_trace_of_too_few_requests_is_said(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("arrival_time,prompt_len,output_len\n0,9,5\n1,9,5\n2,9,5\n")

    def said(count: int, **more: Any) -> list[str]:
        arrivals = {"kind": "trace", "path": str(table), **more}
        workload = {"arrivals": arrivals, "num_requests": count}
        warnings = Summary(simulate(tiny(workload=workload))).warnings
        return [each for each in warnings if "num_requests" in each]

    assert said(4) == [
        f"workload.num_requests = 4, but {table} has 3 requests, each of which was replayed once"
    ]
    assert said(3, window=[0.0, 2.0])[0].endswith(
        " has 2 requests in its window, each of which was replayed once"
    )
    assert said(3) == []
    rows = {"kind": "constant", "prompt": 5, "output": 2}
    ramp = {"arrivals": {"kind": "piecewise", "segments": [[1, 4]]}, "lengths": rows}
    for count, num_said in ((500, 1), (1, 0)):
        summary = Summary(simulate(tiny(workload={**ramp, "num_requests": count})))
        found = [each for each in summary.warnings if f"num_requests = {count}, but" in each]
        assert len(found) == num_said


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"prompt_len": 0}, "request 1: prompt_len = 0 must be a whole number of at least 1"),
        ({"output_len": -1}, "request 1: output_len = -1 must be a whole number of at least 1"),
        ({"output_len": 2.5}, "request 1: output_len = 2.5 must be a whole number"),
        ({"max_tokens": "3"}, "request 1: max_tokens = '3' must be a whole number"),
        ({"index": -1}, "request 1: index = -1 must be a whole number of at least 0"),
        ({"priority": "high"}, "request 1: priority = 'high' must be a whole number"),
        ({"priority": 0.5}, "request 1: priority = 0.5 must be a whole number"),
        ({"priority": 2**80}, r"request 1: priority = \d+ must be .* at most 2\*\*31 - 1"),
        ({"adapter": "sql"}, "request 1: adapter = 'sql' must be a whole number"),
        ({"session": "a"}, "request 1: session = 'a' must be a whole number of at least 0"),
        ({"session": [1]}, r"request 1: session = \[1\] must be a whole number of at least 0"),
        ({"turn": 0}, "request 1: turn = 0 must be a whole number of at least 1"),
        ({"shared_len": -1}, "request 1: shared_len = -1 must be a whole number of at least 0"),
        ({"think_time": -5.0}, "request 1: think_time = -5.0 must be a number of seconds"),
        ({"arrived_at": "1"}, "request 1: arrived_at = '1' must be a number of seconds"),
        ({"prompt_token_ids": [1, 2]}, "request 1: 2 prompt_token_ids, but prompt_len = 5"),
        ({"output_token_ids": [1]}, "request 1: 1 output_token_ids, but output_len = 2"),
        ({"prompt_token_ids": 5}, "request 1: prompt_token_ids = 5 must be a list of whole"),
        ({"output_token_ids": [0.5, 1]}, r"request 1: output_token_ids = \[0.5, 1\] must be"),
        ({"after_turns": 1}, "request 1: after_turns = 1 must be earlier turns"),
        ({"after_turns": (2,)}, r"request 1: after_turns = \(2,\) must be earlier turns"),
        ({"arrived_at": float("nan")}, "request 1: arrived_at = nan must be a number of seconds"),
        ({"arrived_at": float("inf")}, "request 1: arrived_at = inf must be a number of seconds"),
        ({"arrived_at": -1.0}, "request 1: arrived_at = -1.0 must be a number of sec"),
        ({}, "index = 0 is that of 2 requests, which would have the same luck and share"),
    ],
)
def test_requests_of_a_program_are_checked(wrong: dict[str, Any], words: str) -> None:
    """They ended as a contradiction of the simulator's, or as one token that nobody asked for."""
    good = Request(index=0, prompt_len=5, output_len=2)
    with pytest.raises(ConfigError, match=f"requests: {words}"):
        simulate(Experiment.parse(tiny_config(), "tiny"), requests=[good, replace(good, **wrong)])


@pytest.mark.parametrize("indices", [(1, 0), (0, 2), (0, 0)])
def test_where_replicas_affect_one_another_requests_are_numbered(indices: tuple[int, int]) -> None:
    """They were sent in one another's place, or not found."""
    experiment = Experiment.parse(
        tiny_config(replicas=2, routing="least_outstanding"), "requests of a program"
    )
    requests = [Request(index=index, prompt_len=5, output_len=2) for index in indices]
    with pytest.raises(ConfigError, match=r"request \d: index = \d must be \d"):
        simulate(experiment, requests=requests)


def test_what_is_no_list_of_requests_is_told(tmp_path: Path) -> None:
    experiment = Experiment.parse(tiny_config(), "tiny")
    (tmp_path / "t.csv").write_text("arrival_time,prompt_len,output_len\n0,9,5\n")
    trace = read_trace(tmp_path / "t.csv")
    anything: Any
    for anything in (trace, iter(trace.requests()), "t.csv", [{"prompt_len": 1}]):
        with pytest.raises(ConfigError, match=r"requests = .*should be a list of Request"):
            simulate(experiment, requests=anything)
    assert len(simulate(experiment, requests=list(trace.requests())).requests) == 1
    anything = "h100/llama-3.1-8b"
    with pytest.raises(ConfigError, match=r"profile = 'h100/llama-3.1-8b': should be a Profile"):
        simulate(experiment, profile=anything)


def test_what_is_no_experiment_is_told_without_a_field() -> None:
    with pytest.raises(ConfigError, match=r"^here: \[1\]: should be a mapping of fields$"):
        Experiment.parse([1], "here")
