"""Real drafts in the engine: the same as in draft-eval, and every policy on top of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import step_of
from conftest import Run as Cli
from conftest import tiny_config

from specsim.core.errors import ConfigError, TraceError
from specsim.core.request import Request, Text
from specsim.engine.view import StepView
from specsim.lookup import Draft, Lookup
from specsim.policies import POLICIES
from specsim.run.draft_sources import HybridDrafts, LookupDrafts
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary
from specsim.tokens.draft_eval import Drafter, evaluate_drafts, load_texts, parse_drafter

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
NUM_REQUESTS = 24


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers that repeat pieces of their prompt, of themselves and of one another."""
    rng = np.random.default_rng(3)
    phrases = [rng.integers(0, 50, size=rng.integers(2, 9)).tolist() for _ in range(12)]

    def text(num: int) -> list[int]:
        return [token for phrase in rng.integers(0, 12, num) for token in phrases[phrase]]

    rows = [
        {
            "id": f"r{number}",
            "prompt_token_ids": text(6),
            "generated_token_ids": text(10),
            "acc_eagle": {"acc_len": rng.integers(1, 4, 200).tolist()},
        }
        for number in range(NUM_REQUESTS)
    ]
    path = tmp_path_factory.mktemp("tokens") / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def on_tokens(trace: Path) -> Callable[..., Experiment]:
    """Make an experiment on the trace: ``on_tokens(policy={"kind": "off"}, spec=NGRAM)``."""

    def make(spec: dict[str, Any] = NGRAM, engine: Any = (), **changes: Any) -> Experiment:
        config = tiny_config()
        config["engine"] = {**config["engine"], "speculative_config": spec, **dict(engine)}
        config["workload"] = {
            "arrivals": {"kind": "poisson", "rate": 20.0},
            "lengths": {"kind": "trace", "path": str(trace)},
        }
        config["acceptance"] = {"kind": "token_match"}
        return Experiment.parse({**config, **changes}, "test")

    return make


def counts(run: Run) -> list[tuple[int, int]]:
    """Drafted and accepted tokens of each request, by index."""
    table = Summary(run).tables.requests
    pairs = zip(table["draft_tokens"].tolist(), table["accepted_tokens"].tolist(), strict=True)
    return list(pairs)


def test_a_server_drafts_what_draft_eval_says(
    on_tokens: Callable[..., Experiment], trace: Path
) -> None:
    experiment = on_tokens(policy={"kind": "static"})
    proposer = experiment.engine.speculative_config
    assert proposer is not None
    alone = evaluate_drafts(Drafter(proposer), load_texts(trace)).per_request
    assert counts(simulate(experiment, check=True)) == [
        (request.drafted, request.accepted) for request in alone
    ]


REFUSED = {  # n-grams know no probability, make no trees and are one drafter; texts are no model
    "adaedl", "adaptive_verification", "bayes", "confidence", "disco", "draft_goodput",
    "draft_selection", "eagle2_tree", "hybrid_suffix", "medusa_tree", "sequoia_tree",
    "specdec_pp", "static_tree", "tapout",
}  # fmt: skip


@pytest.mark.parametrize("policy", sorted(POLICIES.members))
def test_every_policy_runs_on_real_drafts_or_says_why_not(
    policy: str, on_tokens: Callable[..., Experiment]
) -> None:
    example = POLICIES.members[policy].examples[0]
    fields = {"kind": policy, **example}
    if policy in REFUSED:
        with pytest.raises(ConfigError, match=" use "):
            on_tokens(policy=fields)
        return
    experiment = on_tokens(policy=fields)
    first, second = (Summary(simulate(experiment, check=check)).data for check in (True, False))
    assert first == second


def test_the_oracle_drafts_only_what_will_be_accepted(on_tokens: Callable[..., Experiment]) -> None:
    pairs = counts(simulate(on_tokens(policy={"kind": "oracle"})))
    assert sum(drafted for drafted, _ in pairs) > 0
    assert all(drafted == accepted for drafted, accepted in pairs)


@pytest.mark.parametrize("scheduler", ["v1", "prefill_first"])
def test_drafts_survive_preemption(scheduler: str, on_tokens: Callable[..., Experiment]) -> None:
    engine = {
        "scheduler": scheduler,
        "num_gpu_blocks": 20,
        "max_model_len": 256,
        "enable_prefix_caching": False,
    }
    arrivals = {"kind": "poisson", "rate": 1e4}
    lengths = on_tokens(policy={"kind": "static"}).to_dict()["workload"]["lengths"]
    workload = {"arrivals": arrivals, "lengths": lengths}
    crowded = on_tokens(policy={"kind": "static"}, engine=engine, workload=workload)
    run = simulate(crowded, check=True)
    table = Summary(run).tables.requests
    assert table["preemptions"].sum() > 0
    roomy = counts(simulate(on_tokens(policy={"kind": "static"})))
    # A preemption throws the pending draft away, so the sums differ, but only a little.
    accepted = sum(number for _, number in counts(run))
    assert accepted == pytest.approx(sum(number for _, number in roomy), rel=0.15)


@pytest.mark.parametrize(
    "spec",
    [
        NGRAM,
        {"method": "suffix", "num_speculative_tokens": 4, "use_tree": True},
        {"method": "hybrid", "lookup": {"method": "suffix", "num_speculative_tokens": 4},
         "fallback": {"method": "eagle3", "num_speculative_tokens": 3}},
    ],
    ids=["ngram", "suffix", "hybrid"],
)  # fmt: skip
def test_drafts_survive_a_failure(
    spec: dict[str, Any], on_tokens: Callable[..., Experiment]
) -> None:
    is_hybrid = spec["method"] == "hybrid"
    changes: dict[str, Any] = {"policy": "hybrid_suffix" if is_hybrid else "static"}
    if is_hybrid:
        models = {"suffix": {"kind": "token_match"}, "eagle3": {"kind": "bernoulli", "alpha": 0.6}}
        changes["acceptance"] = {"kind": "per_drafter", "models": models}
    incidents = [{"kind": "failure", "replica": 0, "at": at, "until": at + 0.1} for at in (0.1, 1)]
    usual, failed = (
        simulate(on_tokens(spec, replicas=2, incidents=each, **changes), check=True)
        for each in (None, incidents)
    )
    rows = Summary(failed).tables.requests
    assert rows["requeues"].any()
    assert (rows["output_len"] == Summary(usual).tables.requests["output_len"]).all()
    assert sum(number for _, number in counts(failed)) > 0


class _Fixed(Lookup):
    """Drafts what it is told, whatever the text."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def start(self, request: int, text: Text) -> None:
        self.known_len = text.prompt_len

    def reveal(self, request: int, known_len: int) -> None:
        self.known_len = known_len

    def draft(self, request: int, max_len: int) -> Draft:
        return self._draft.cut(max_len)

    def end(self, request: int) -> None:
        del self.known_len

    @property
    def memory_bytes(self) -> int:
        return 0


def request() -> Request:
    return Request(
        index=0,
        prompt_len=2,
        output_len=5,
        prompt_token_ids=np.array([1, 2]),
        output_token_ids=np.array([3, 4, 5, 6, 7]),
    )


STARTS = np.array([0, 5])


def drafts_of(lookup: Lookup, longest: int) -> tuple[LookupDrafts, np.ndarray]:
    """Return a source of drafts for one request, and its fates."""
    fates = np.zeros(5, dtype=np.uint8)
    return LookupDrafts(lookup, longest, [request()], fates, STARTS), fates


def verified(position: int, draft_len: int) -> StepView:
    """Return a step that verifies so many drafts, made when so many output tokens were known."""
    fields = {"prompt_len": 2, "known_len": 2 + position}
    return step_of({**fields, "draft_len": draft_len, "verified_len": draft_len})[1]


def test_a_chain_survives_as_far_as_it_agrees_with_the_answer() -> None:
    lookup = _Fixed(Draft([4, 5, 9, 7], probs=[0.9, 0.8, 0.4, 0.2]))
    source, fates = drafts_of(lookup, 4)
    draft = source.draft(0, 1)
    assert lookup.known_len == 3
    source.settle(0, 1, draft)
    assert fates.tolist() == [0, 2, 0, 0, 0]
    assert [source.accepted_lens(verified(1, length)).tolist() for length in range(5)] == [
        [0], [1], [2], [2], [2],
    ]  # fmt: skip
    indices, lens = np.array([0, 1]), np.array([3, 2])
    confidences = source.confidences(indices, np.array([1, 0]), lens)
    np.testing.assert_allclose(confidences, [[0.9, 8 / 9, 0.5], [0, 0, 0]], rtol=1e-6)


def test_nothing_survives_beyond_the_answer() -> None:
    source, fates = drafts_of(_Fixed(Draft([7, 8, 9])), 4)
    for position in (4, 5, 6):  # the answer ends at 5; a bonus token may lie beyond it
        source.settle(0, position, source.draft(0, position))
    assert fates.tolist() == [0, 0, 0, 0, 1]
    assert [source.accepted_lens(verified(position, 3)).tolist() for position in (4, 5, 6)] == [
        [1], [0], [0],
    ]  # fmt: skip


TREE = Draft([9, 4, 8, 5, 6], parents=[-1, -1, 0, 1, 3], probs=[0.6, 0.4, 0.3, 0.2, 0.1])


def test_of_a_tree_the_path_that_agrees_survives_as_far_as_it_was_verified() -> None:
    source, _ = drafts_of(_Fixed(TREE), 5)
    source.draft(0, 1)
    accepted = [source.accepted_lens(verified(1, nodes)).tolist() for nodes in range(6)]
    assert accepted == [[0], [0], [1], [1], [2], [3]]


def test_a_fallback_drafts_where_the_lookup_is_not_promising(
    on_tokens: Callable[..., Experiment],
) -> None:
    spec = {
        "method": "hybrid",
        "lookup": NGRAM,
        "fallback": {"method": "eagle3", "num_speculative_tokens": 2},
    }
    acceptance = {
        "kind": "per_drafter",
        "models": {
            "ngram": {"kind": "token_match"},
            "eagle3": {"kind": "recorded", "proposer": "eagle"},
        },
    }
    drafted = {}
    for tau in (0, None, 100):
        policy = {"kind": "hybrid_suffix", "tau": tau}
        run = simulate(on_tokens(spec, acceptance=acceptance, policy=policy), check=True)
        drafted[tau] = counts(run)
        assert drafted[tau] == counts(
            simulate(on_tokens(spec, acceptance=acceptance, policy=policy))
        )
    assert drafted[0] == counts(simulate(on_tokens(policy={"kind": "static"})))
    # An n-gram states no probability, so its score is 0 and never exceeds a tau.
    assert drafted[None] == drafted[100] != drafted[0]
    eagle = {"method": "eagle3", "num_speculative_tokens": 2}
    alone = on_tokens(eagle, acceptance=acceptance["models"]["eagle3"], policy={"kind": "static"})
    synchronous = Experiment.parse(
        {**alone.to_dict(), "engine": {**alone.to_dict()["engine"], "async_scheduling": False}}, "t"
    )
    assert drafted[100] == counts(simulate(synchronous))


def recorded(trace: Path) -> list[list[int]]:
    """Accepted lengths of each request's drafts by EAGLE, by known output tokens."""
    rows = map(json.loads, trace.read_text().splitlines())
    return [[n - 1 for n in row["acc_eagle"]["acc_len"]] for row in rows]


TREES = {"suffix_decoding_max_spec_factor": 4.0, "use_tree": True}


@pytest.mark.parametrize("max_num_batched_tokens", [24, 256])
def test_each_drafter_of_a_hybrid_is_verified_by_what_it_drafted(
    on_tokens: Callable[..., Experiment],
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    max_num_batched_tokens: int,
) -> None:
    """Where the lookup drafts trees, the model behind it still drafts chains."""
    spec = {
        "method": "hybrid",
        "lookup": {"method": "suffix", **TREES},
        "fallback": {"method": "eagle3", "num_speculative_tokens": 3},
    }
    models = {
        "suffix": {"kind": "token_match"},
        "eagle3": {"kind": "recorded", "proposer": "eagle"},
    }
    eagle, verify = recorded(trace), HybridDrafts.accepted_lens
    accepted: dict[int, list[int]] = {0: [], 1: []}

    def watched(self: HybridDrafts, step: StepView) -> Any:
        found = verify(self, step)
        columns = (
            *(step.requests, step.output_lens, step["verified_len"], step["is_padded"]),
            *(self.falls_back(step.requests), found),
            step.of_sequences("max_len") - step.of_sequences("known_len"),
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for who, position, num, is_padded, drafter, accepted_len, left in rows:
            if num and not is_padded:
                accepted[drafter].append(accepted_len)
            if num and not is_padded and drafter:
                survives = min(num, eagle[who][position])
                assert accepted_len in {survives, min(survives, left)}  # it may be cut there, too
        return found

    monkeypatch.setattr(HybridDrafts, "accepted_lens", watched)
    experiment = on_tokens(
        spec,
        {"max_num_batched_tokens": max_num_batched_tokens},
        policy={"kind": "hybrid_suffix", "tau": 1.5},
        acceptance={"kind": "per_drafter", "models": models},
    )
    simulate(experiment, check=True)
    assert sum(accepted[0]) > 0
    assert sum(accepted[1]) > 0


def test_trees_of_a_fallback_survive_as_far_as_they_were_verified() -> None:
    (lookup, fates), (fallback, _) = drafts_of(_Fixed(Draft([9])), 5), drafts_of(_Fixed(TREE), 5)
    source = HybridDrafts(lookup, fallback, model_len=5, model_fates=fates, fates=fates,
                          starts=STARTS)  # fmt: skip
    step = verified(1, 0)
    found = source.find(step, np.zeros(1, dtype=np.int64), lambda scores: [False] * len(scores))
    assert found.tolist() == [5]
    assert (step["found_len"].tolist(), source.falls_back(step.requests).tolist()) == ([1], [1])
    for num_nodes, wanted in enumerate([0, 0, 1, 1, 2, 3]):
        assert source.accepted_lens(verified(1, num_nodes)).tolist() == [wanted]


def test_a_hybrid_drafts_no_more_than_each_of_its_drafters(
    on_tokens: Callable[..., Experiment], trace: Path
) -> None:
    lookup = {"method": "suffix", "num_speculative_tokens": 1}
    fields = {"lookup": lookup, "fallback": {**NGRAM, "num_speculative_tokens": 5}, "tau": 0}
    requests = load_texts(trace)
    hybrid = evaluate_drafts(parse_drafter("hybrid", fields, "test"), requests)
    alone = evaluate_drafts(
        parse_drafter("suffix", {"num_speculative_tokens": 1}, "test"), requests
    )
    assert hybrid.per_request == alone.per_request


BAD = {
    "a model's drafts compared as tokens": (
        {"engine": {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 2}}},
        "method 'eagle3' drafts with a model, whose tokens no trace holds",
    ),
    "hybrid without its policy": (
        {"engine": {"speculative_config": {"method": "hybrid", "lookup": NGRAM,
                    "fallback": "eagle3:num_speculative_tokens=2"}}},
        "policy 'static' does not choose between the two drafters",
    ),
    "its policy without hybrid": (
        {"policy": {"kind": "hybrid_suffix"}}, "nothing stands behind method 'ngram'",
    ),
    "a hybrid whose fallback compares tokens": (
        {"policy": {"kind": "hybrid_suffix"},
         "engine": {"speculative_config": {"method": "hybrid", "lookup": NGRAM,
                    "fallback": "eagle3:num_speculative_tokens=2"}}},
        "method 'eagle3' drafts with a model",
    ),
    "a hybrid that looks nothing up": (
        {"policy": {"kind": "hybrid_suffix"},
         "engine": {"speculative_config": {"method": "hybrid",
                    "lookup": "eagle3:num_speculative_tokens=2", "fallback": NGRAM}}},
        "method 'eagle3' looks nothing up",
    ),
    "negative tau": ({"policy": {"kind": "hybrid_suffix", "tau": -1}}, "policy.tau = -1"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_combinations_without_sense_are_refused(
    changes: dict[str, Any], message: str, on_tokens: Callable[..., Experiment]
) -> None:
    spec = changes.pop("engine", {}).get("speculative_config", NGRAM)
    with pytest.raises(ConfigError, match=message):
        on_tokens(spec, policy=changes.get("policy", {"kind": "static"}))


def test_a_workload_without_tokens_is_refused(on_tokens: Callable[..., Experiment]) -> None:
    with pytest.raises(TraceError, match="acceptance 'token_match' needs token ids"):
        simulate(on_tokens(policy={"kind": "static"}, workload=tiny_config()["workload"]))


def test_prompts_that_were_not_recorded_match_nothing(cli: Cli, tmp_path: Path) -> None:
    trace, copy = tmp_path / "t.jsonl", tmp_path / "copy.parquet"
    trace.write_text('{"prompt_token_ids": [], "generated_token_ids": [0, 1, 0, 1, 0, 1]}\n')
    command = ["draft-eval", "--proposer", "ngram", "--opt", "num_speculative_tokens=1"]
    command += ["--opt", "prompt_lookup_max=1", "--tokens"]
    code, out, _ = cli(*command, trace, "--json", "a.json")
    assert code == 0
    assert "tokens per step" in out
    assert cli("trace", "convert", trace, copy)[0] == 0
    assert cli(*command, copy, "--json", "b.json")[0] == 0
    [row] = json.loads((tmp_path / "a.json").read_text())["per_request"]
    # 0 comes from prefill; nothing stood before 1 and the second 0; then every draft is right.
    assert row == [4, 2, 2, 6]
    assert json.loads((tmp_path / "b.json").read_text())["per_request"] == [row]


def test_the_global_tree_serves_the_requests_of_one_replica(
    on_tokens: Callable[..., Experiment], trace: Path
) -> None:
    suffix = {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_tree_depth": 12}
    workload = {
        "arrivals": {"kind": "closed_loop", "concurrency": 1},
        "lengths": {"kind": "trace", "path": str(trace)},
    }
    experiment = on_tokens(suffix, policy={"kind": "static"}, workload=workload)
    proposer = experiment.engine.speculative_config
    assert proposer is not None
    lookup = proposer.make_lookup()
    assert lookup is not None
    expected = []
    for request in load_texts(trace):  # one after the other, as the closed loop sends them
        text, drafted, accepted = request.text, 0, 0
        known_len = text.prompt_len + 1
        lookup.start(request.index, text)
        while known_len < len(text.token_ids):
            lookup.reveal(request.index, known_len)
            draft = lookup.draft(request.index, 8)
            agreed = draft.accepted_len(text.token_ids[known_len:])
            drafted, accepted = drafted + len(draft.token_ids), accepted + agreed
            known_len += agreed + 1
        lookup.reveal(request.index, len(text.token_ids))
        lookup.end(request.index)
        expected.append((drafted, accepted))
    run = simulate(experiment, check=True)
    assert counts(run) == expected
    two = experiment.replace(replicas=2)
    assert sum(accepted for _, accepted in counts(simulate(two))) != sum(a for _, a in expected)


@pytest.mark.parametrize("policy", ["draft_goodput", "adaptive_verification", "confidence"])
def test_policies_by_confidence_run_on_the_trees_own_probabilities(
    policy: str, on_tokens: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    suffix = {"method": "suffix", "num_speculative_tokens": 8}
    costly = constant_step(gamma_us=500, delta_ms=1, drafts={"suffix": {"token_us": 1}})
    experiment = on_tokens(suffix, policy={"kind": policy}, profile=costly)
    first, second = (simulate(experiment, check=check) for check in (True, False))
    assert counts(first) == counts(second)
    drafted, accepted = (sum(column) for column in zip(*counts(first), strict=True))
    everything = counts(simulate(on_tokens(suffix, policy={"kind": "static"})))
    assert 0 < accepted <= drafted < sum(number for number, _ in everything)


def test_trees_are_drafted_and_verified_whole(on_tokens: Callable[..., Experiment]) -> None:
    suffix = {
        "method": "suffix",
        "num_speculative_tokens": 16,
        "suffix_decoding_max_spec_factor": 3,
    }
    chains, trees = (
        counts(simulate(on_tokens({**suffix, "use_tree": use_tree}, policy={"kind": "static"})))
        for use_tree in (False, True)
    )
    assert sum(drafted for drafted, _ in trees) > sum(drafted for drafted, _ in chains)
    assert sum(accepted for _, accepted in trees) > sum(accepted for _, accepted in chains)
