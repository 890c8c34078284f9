"""Whole runs of every sort, column by column: a change of behaviour shows here first.

The digests are of nine digits of each number, since processors differ in the last ones. If a change
is meant, write them anew with ``pytest --regen`` and say in the commit why they moved; with
``digests.py`` (see there) one sees where.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from digest_cases import Case, all_cases
from digests import REQUEST_COLUMNS, STEP_COLUMNS, rounded, run

from specsim.acceptance import ACCEPTANCE
from specsim.autoscaling import AUTOSCALING
from specsim.latency import LATENCY
from specsim.policies import POLICIES
from specsim.proposers import PROPOSERS
from specsim.results.records import STEP_FIELDS
from specsim.results.tables import TABLE_FIELDS
from specsim.routing import ROUTING

DIGESTS = Path(__file__).parent / "digests.json"
NAMES = """
    policy/acceptance_target/eagle3
    policy/bandit-ucb1/draft_model
    policy/bandit-thompson/eagle3
    policy/ema_tiers/eagle3
    policy/goodput/draft_model
    policy/goodput-request/eagle3
    policy/goodput_exact/eagle3
    policy/off/eagle3
    policy/oracle/draft_model
    policy/q_learning/eagle3
    policy/random/eagle3
    policy/schedule/eagle3
    policy/slo_aware-12/eagle3
    policy/static/draft_model
    policy/step_controller/eagle3
    policy/window_opt/draft_model
    policy/adaptive_verification/v0
    policy/confidence/suffix
    policy/draft_goodput/few_blocks
    policy/disco/draft_model
    policy/specdec_pp/suffix
    policy/adaedl/few_blocks
    policy/acceptance_gate-5-2.0/draft_model
    policy/adaptive_k-4/draft_model
    policy/throughput_tiers/eagle3
    policy/ucbspec/draft_model
    tokens/cached_step_controller/v1
    skips/4-prefill_first-1024
    method/mtp/v1/turbospec
    method/ngram/prefill_first-1024/static
    method/suffix/False-150/goodput
    medusa/medusa_tree/few_blocks
    trees/eagle2
    trees/sequoia
    trees/static/few
    trees/static/v0
    draft_selection/v0
    acceptance/1-beta/static
    acceptance/2-beta_position/goodput-request
    acceptance/3-layered/static
    acceptance/4-markov/static
    acceptance/5-per_position/static
    acceptance/7-preset/static
    acceptance/8-shift/goodput-request
    acceptance/9-per_drafter/static
    acceptance/10-fly/static
    acceptance/recorded/static
    profile/two_regime/sync
    profile/tabulated_mixed/v0
    profile/composed/sync
    profile/composed/eagle3:3/goodput
    profile/cuda_graph_kernels/eagle3:3/goodput
    profile/kernels_skewed/eagle:3/static
    profile/roofline/draft_model:4/goodput_exact
    profile/host_time/sync
    engine/few_async/eagle3:3
    engine/few_uncached_sync/shared
    engine/priority_few/draft_model:4
    engine/priority_few_sync/shared
    engine/long_prefill_adaptive/eagle3:3
    engine/whole_prompts_few/long
    engine/cut_answers_few/draft_model:4
    engine/not_reserved_sync/off
    engine/tight_budget/draft_model:4
    engine/expanded/v0_few/static
    engine/schedule/few
    arrivals/trace/chat
    arrivals/closed_exponential/3/goodput
    routing/round_robin/few_sync/open
    routing/random/few_sync/closed
    routing/least_outstanding/async/open
    routing/least_outstanding_tokens/async/closed
    routing/vllm_ranks/few_sync/closed
    routing/prefix_affinity/few_sync/prefixes
    incidents/several/v0/closed
    incidents/several/sync/open
    incidents/all_down/few/open
    incidents/stranded/async/open
    incidents/slows/few/closed
    incidents/prefixes
    lookup/ngram/v1
    lookup/ngram_gpu/static
    lookup/ngram_gpu/goodput
    lookup/suffix_tree/v0
    lookup/datastore/few
    lookup/sssd_corpus/tight
    lookup/sssd_tree/incidents
    hybrid/suffix_tree/1.5/v1
    hybrid/ngram/1.5/prefill_first-1024
    prefixes/recorded/oracle
    mixed/11
    joint/draft_model
    bayes/v0
    sessions/scored/open
    sessions/precise/closed
    sessions/stale/plain
    autoscaling/target_queue/open
    autoscaling/target_kv_use/plain
    autoscaling/target_concurrency/closed
    autoscaling/target_slo/open
    pools/recomputed/static
    tiers/disk
    pools/scaled
    own_gpus/False
    own_gpus/True
    later/spec_serve/eagle3:4/v1
    later/dsde-5/draft_model:5/sync
    later/tapout/suffix:4/few
    later/nightjar-2.0/draft_model:5/v1
    later/acceptance_rate_gate-40-0.55/draft_model:5/sync
    at_once/dflash/0.32/static
    at_once/dflash/0.33/goodput
    at_once/dspark/0.32/goodput
    at_once/eagle3/0.33/static
    at_once/draft_model/0.32/static
""".split()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {each.name: each for each in all_cases(tmp_path_factory.mktemp("digests"))}


@pytest.fixture(scope="module")
def known(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """What was written, and is written anew if that is asked for."""
    known = json.loads(DIGESTS.read_text())
    yield known
    if request.config.getoption("--regen"):
        known = {name: known[name] for name in NAMES if name in known}
        DIGESTS.write_text(json.dumps(known, indent=0) + "\n")


@pytest.mark.parametrize("name", NAMES)
def test_runs_are_what_they_were(
    name: str,
    cases: dict[str, Case],
    known: dict[str, Any],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)  # where the traces are
    record, arrays = run(cases[name], "/")
    found = {"error": record["error"]} if "error" in record else rounded(arrays)
    if request.config.getoption("--regen"):
        known[name] = found
    assert [column for column in found if known[name].get(column) != found[column]] == []


def test_they_are_of_every_sort(cases: dict[str, Case]) -> None:
    text = json.dumps([cases[name].config for name in NAMES])
    paths = {cases[name].config["profile"] for name in NAMES}
    profiles = "".join(Path(path).read_text() for path in paths if path.endswith(".yaml"))
    for family in (ACCEPTANCE, AUTOSCALING, POLICIES, PROPOSERS, ROUTING):
        missing = {name for name in family.members if f'"{name}"' not in text}
        assert not missing, family.name
    assert not {name for name in LATENCY.members if f"kind: {name}\n" not in profiles}
    for word in ("failure", "slowdown", "prefill_first", "priority", "closed_loop"):
        assert f'"{word}"' in text


def test_they_are_of_every_column() -> None:
    assert TABLE_FIELDS.names == REQUEST_COLUMNS
    assert STEP_FIELDS.names == STEP_COLUMNS
