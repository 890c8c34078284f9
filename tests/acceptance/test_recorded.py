"""Recorded acceptance: what lies beyond the recorded drafts is not known, and that is said."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from specsim.acceptance.nested import Shift
from specsim.acceptance.recorded import Recorded
from specsim.core.request import Request
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

LENS = st.binary(min_size=1, max_size=9)


def recorded(records: list[bytes]) -> list[Request]:
    return [
        Request(index=i, prompt_len=1, output_len=len(record), recorded_lens={"mine": record})
        for i, record in enumerate(records)
    ]


@given(records=st.lists(LENS, min_size=1, max_size=4), draft_len=st.integers(0, 255))
def test_drafts_longer_than_any_record_are_doubted(records: list[bytes], draft_len: int) -> None:
    model = Recorded(proposer="mine")
    doubts = model.doubts(recorded(records), draft_len)
    assert bool(doubts) == (max(map(max, records)) < draft_len)
    both = Shift(at_request=1, before=model, after=model)
    assert both.doubts(recorded(records), draft_len) == 2 * doubts


def test_records_that_end_long_before_their_answers_are_doubted() -> None:
    model = Recorded(proposer="mine")
    lens = {"mine": bytes([2] * 90)}
    for output_len, share in ((90, None), (94, None), (180, "50.0 %")):
        request = Request(index=0, prompt_len=1, output_len=output_len, recorded_lens=lens)
        doubts = model.doubts([request], 2)
        assert bool(doubts) == (share is not None)
        assert all(f"'mine' has no record of {share} of the output" in line for line in doubts)


def test_a_run_says_so(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(
        '{"prompt_len": 5, "output_len": 9, "accepted_lens_mine": [2, 2, 2, 2, 2, 2, 2, 2, 2]}\n'
    )
    warned = {}
    for k in (1, 2, 3):
        speculation = {"method": "eagle3", "num_speculative_tokens": k}
        config = {
            "workload": {"arrivals": "burst", "lengths": {"kind": "trace", "path": str(path)}},
            "engine": {"speculative_config": speculation},
            "acceptance": {"kind": "recorded", "proposer": "mine"},
            "profile": "h100/llama-3.1-8b",
        }
        warnings = Summary(simulate(Experiment.parse(config, "e.yaml"))).warnings
        warned[k] = [line for line in warnings if "survive longer than 2 tokens" in line]
    assert [len(warned[k]) for k in (1, 2, 3)] == [0, 0, 1]
