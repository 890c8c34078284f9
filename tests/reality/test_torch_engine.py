"""The torch engine says what its model says, however it is batched, chunked and speculated."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run
from deliveries import of_request

pytest.importorskip("torch")

import torch
from small_engine import CPU, PROFILE, SHAPE, answers, experiment, make_engine, serve

from specsim.core.request import Request
from specsim.reality.calibration.torch_subject import Served
from specsim.reality.torch_engine.attention import Span, make_batch
from specsim.reality.validation import load_run
from specsim.run.simulate import simulate

pytestmark = pytest.mark.extras


def accepted(served: Served) -> list[tuple[int, int]]:
    return [tuple(each[1:]) for row in served.requests for each in row["accepted"]]


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return answers(serve("off", make_engine()))


@pytest.mark.parametrize("policy", ["static:k=1", "static:k=3", "static:k=5", "goodput", "random"])
def test_speculation_changes_no_answer(policy: str, plain: dict[str, Any]) -> None:
    served = serve(policy, make_engine())
    assert answers(served) == plain
    drafts = accepted(served)
    assert 0.1 < np.mean([hits for _, hits in drafts]) < 5


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 9},  # prompts in up to ten chunks
        {"num_gpu_blocks": 14},  # preemptions
        {"max_num_seqs": 1},
        {"long_prefill_token_threshold": 7},
    ],
)
@pytest.mark.parametrize("policy", ["off", "static:k=3"])
def test_the_schedule_changes_no_answer(
    policy: str, options: dict[str, Any], plain: dict[str, Any]
) -> None:
    served = serve(policy, make_engine(), **options)
    assert answers(served) == plain
    if "num_gpu_blocks" in options:
        assert sum(row["preemptions"] for row in served.requests) > 0


def test_answers_are_varied(plain: dict[str, Any]) -> None:
    long = [answer for answer in plain.values() if len(answer) > 20]
    assert len(long) > 3
    assert np.mean([len(set(answer)) / len(answer) for answer in long]) > 0.6


def test_the_draft_model_agrees_as_much_as_it_is_tuned_to() -> None:
    def first_accepted(deep_scale: float) -> float:
        drafts = accepted(serve("static:k=3", make_engine(deep_scale)))
        return float(np.mean([hits > 0 for _, hits in drafts]))

    always, often, seldom = (first_accepted(scale) for scale in (0.0, 0.15, 1.0))
    assert always > 0.99  # all but a dummy draft of a padded admission
    assert always - 0.15 > often > seldom + 0.1


def spans_of(*lens: int) -> list[Span]:
    rng = np.random.default_rng(0)
    return [
        Span(slot, 0, rng.integers(0, SHAPE.vocab_size, num), range(num))
        for slot, num in enumerate(lens)
    ]


def read(spans: list[Span]) -> Any:
    engine = make_engine()
    with torch.inference_mode():
        return engine.target.logits(make_batch(spans, engine.limits.slot_len, CPU))


def test_a_batch_reads_like_each_alone() -> None:
    spans = spans_of(1, 17, 40)
    together = read(spans)
    alone = torch.cat([read([span]) for span in spans])
    assert torch.allclose(together, alone, atol=1e-4)


def test_a_chunked_prompt_reads_like_a_whole_one() -> None:
    [whole] = spans_of(40)
    engine = make_engine()
    parts = []
    for start, end in ((0, 11), (11, 12), (12, 40)):
        chunk = Span(0, start, whole.token_ids[start:end], range(end - start))
        with torch.inference_mode():
            parts.append(engine.target.logits(make_batch([chunk], engine.limits.slot_len, CPU)))
    assert torch.allclose(torch.cat(parts), read([whole]), atol=1e-4)


def test_what_a_token_sees_lies_before_it() -> None:
    [span] = spans_of(20)
    changed = span._replace(token_ids=np.append(span.token_ids[:-1], 0))
    one, other = read([span]), read([changed])
    assert torch.equal(one[:-1], other[:-1])
    assert not torch.allclose(one[-1], other[-1])


def test_synthetic_acceptance_is_that_of_the_simulation() -> None:
    asked = experiment("static:k=3")
    requests = list(asked.workload.build(0).requests())
    served = serve("static:k=3", make_engine(), is_synthetic=True)
    run = simulate(asked, requests=requests, profile=PROFILE, keeps_deliveries=True)
    assert len(served.requests) == len(requests)
    # What is accepted belongs to positions; that the two clocks differ does not matter.
    for row in served.requests:
        mine = of_request(run, int(row["request_id"].removeprefix("request-")))
        fates = zip(mine.drafted.tolist(), mine.accepted.tolist(), strict=True)
        assert [tuple(each[1:]) for each in row["accepted"]] == [f for f in fates if f[0]]


@pytest.mark.parametrize(
    "options", [{}, {"num_gpu_blocks": 14}, {"max_num_batched_tokens": 9}, {"max_num_seqs": 2}]
)
@pytest.mark.parametrize("policy", ["off", "static:k=3", "goodput"])
def test_the_schedule_is_that_of_the_simulation(policy: str, options: dict[str, Any]) -> None:
    asked = experiment(policy, **options)
    drawn = asked.workload.build(0).requests()
    requests = [replace(request, arrived_at=0.0) for request in drawn]  # else the clocks decide
    served = make_engine().serve(asked, PROFILE, requests, is_synthetic=policy != "off")
    run = simulate(asked, requests=requests, profile=PROFILE)
    steps = run.replicas[0].steps
    for name in (
        "context_tokens",
        "batched_tokens",
        "num_requests",
        "prefill_tokens",
        "draft_tokens",
        "accepted_tokens",
        "num_waiting",
        "free_blocks",
    ):
        assert [row[name] for row in served.steps] == steps[name].tolist(), name
    preemptions = sum(row["preemptions"] for row in served.requests)
    assert preemptions == steps["preemptions"].sum()


def test_a_run_folder_can_be_read(tmp_path: Path) -> None:
    served = serve("static:k=3", make_engine())
    served.write(tmp_path / "run", make_engine().description)
    run = load_run(tmp_path / "run")
    assert run.meta["complete"] is True
    assert len(run.runs[0]["arrived_at"]) == 9
    assert (run.runs[0]["first_token_at"] >= run.runs[0]["arrived_at"]).all()
    for row in served.requests:
        assert sum(num for _, num in row["deliveries"]) == row["output_toks"]
    starts = [row["started_at"] for row in served.steps]
    assert starts == sorted(starts)
    busy = sum(row["seconds"] for row in served.steps)
    assert busy <= served.requests[-1]["last_token_ts"] * 1.05


def test_one_token_prompts_and_answers() -> None:
    asked = experiment("static:k=3")
    requests = [Request(index, 1, 1 + 3 * index, arrived_at=0.0) for index in range(4)]
    served = make_engine().serve(asked, PROFILE, requests, is_synthetic=False)
    assert sorted(row["output_toks"] for row in served.requests) == [1, 4, 7, 10]


def calibrate(cli: Run, *args: object) -> tuple[int, str]:
    code, _, error = cli("calibrate", "--engine", "torch", "--out", "out", *args)
    return code, error.splitlines()[-1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--model", "llama-7n"), "did you mean 'llama-7m'?"),
        (("--model", "llama-3.1-70b"), "GiB left; choose a smaller model"),
        (("--model", "mixtral-8x7b"), "has experts, which the torch engine does not run"),
        (("--device", "cuda"), "PyTorch sees no GPU here"),
        (("--device", "cuda", "--threads", "2"), "--threads: is for --device cpu"),
    ],
)
def test_bad_input_is_one_line(cli: Run, args: tuple[str, ...], words: str) -> None:
    if "cuda" in args and torch.cuda.is_available() and len(args) == 2:
        pytest.skip("there is a GPU")
    code, error = calibrate(cli, *args)
    assert code == 2
    assert error.startswith("error: ")
    assert words in error
    assert not Path("out").exists()


def test_it_does_not_write_over_anything(cli: Run) -> None:
    Path("out").mkdir()
    (Path("out") / "mine.txt").write_text("mine")
    code, error = calibrate(cli, "--quick")
    assert code == 2
    assert "not empty; name a new folder (--out)" in error
