"""Drafters of the user's: what they say is asked, and held to its rules."""

from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_config

from specsim.core.errors import PluginError
from specsim.profile import Profile, load_profile
from specsim.proposers import Proposer
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate

DRAFTER = """
import numpy as np
from typing import Literal
from specsim.lookup import Draft, Lookup
from specsim.proposers import Proposer

class Looks(Lookup):
    memory_bytes = 0
    def start(self, request, text): self.text = text
    def reveal(self, request, known_len): self.known_len = known_len
    def end(self, request): pass
    def draft(self, request, max_len):
        return {draft}

class Mine(Proposer):
    method: Literal["mine"] = "mine"
    is_model = {is_model}
    has_prefill = is_model

    def offered_len(self, request, position, draft_len, memory):
        return {offered}
"""


def profile() -> Profile:
    shipped = load_profile("h100/llama-3.1-8b")
    return shipped.model_copy(update={"drafts": {"mine": shipped.drafts["ngram"]}})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    monkeypatch.chdir(tmp_path)
    tokens = '{"prompt_token_ids": [1, 2, 1, 2], "generated_token_ids": [1, 2, 1, 2, 1, 2, 1, 2]}\n'
    Path("tokens.jsonl").write_text(3 * tokens)

    def simulated(offered: str = "draft_len", draft: str | None = None, **changes: Any) -> Run:
        module = f"mine_{abs(hash((request.node.name, offered, draft)))}"
        text = DRAFTER.format(offered=offered, draft=draft, is_model=draft is None)
        config = tiny_config(**changes)
        if draft is not None:
            text += "\n    def make_lookup(self): return Looks()\n"
            config["workload"] = {
                "arrivals": "burst", "lengths": {"kind": "trace", "path": "tokens.jsonl"}
            }  # fmt: skip
            config["acceptance"] = {"kind": "token_match"}
        Path(f"{module}.py").write_text(text)
        config["engine"]["speculative_config"]["method"] = f"{module}.py:Mine"
        return simulate(Experiment.parse(config, "e.yaml"), profile=profile(), check=True)

    return simulated


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_drafter_drafts_no_more_than_it_offers(most: int, run: Any) -> None:
    steps = run(f"min(draft_len, {most})").replicas[0].steps
    assert (steps["draft_tokens"] <= most * steps["drafts"]).all()
    assert bool(steps["draft_tokens"].sum()) == bool(most)
    policy = f"static:k={most}" if most else "off"
    expected = run(policy=policy).replicas[0].steps["draft_tokens"].sum()
    assert steps["draft_tokens"].sum() == pytest.approx(expected, rel=0.1)


class Offers:
    """What is inherited with it, from no proposer."""

    def offered_len(self, request: int, position: int, draft_len: int, memory: Any) -> int:
        return min(1, draft_len)


def test_who_inherits_what_it_offers_is_scheduled_synchronously() -> None:
    mine = type("Mine", (Offers, Proposer), {})
    assert not mine.supports_async
    assert not type("Other", (mine,), {}).supports_async
    assert type("Plain", (Proposer,), {}).supports_async
    with pytest.raises(TypeError, match="supports_async = True, but its own offered_len"):
        type("Wrong", (Offers, Proposer), {"supports_async": True})


@pytest.mark.parametrize("offered", ["draft_len + 1", "-1", "1.5", "None", "True"])
def test_what_it_offers_is_a_length_up_to_what_is_asked_for(offered: str, run: Any) -> None:
    with pytest.raises(PluginError, match=r"Mine: offered_len returned .*; it must be a whole"):
        run(offered)


def test_tokens_of_a_draft_may_be_an_array(run: Any) -> None:
    listed = "Draft({})"
    found = "self.text.token_ids[self.known_len - 2 : self.known_len]"
    runs = [run(draft=listed.format(tokens)) for tokens in (f"{found}.tolist()", f"{found}")]
    assert runs[0].replicas[0].steps["accepted_tokens"].sum()
    assert runs[0].replicas[0].steps.tobytes() == runs[1].replicas[0].steps.tobytes()


@pytest.mark.parametrize("draft", ["Draft((1, 2, 3, 4))", "[1]"])
def test_a_draft_is_no_longer_than_asked_for(draft: str, run: Any) -> None:
    with pytest.raises(PluginError, match=r"Looks: draft returned .* a Draft of at most 3 tokens"):
        run(draft=draft)
