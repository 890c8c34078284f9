"""What ``make follow`` says of a release, without one: replays, changed functions, the report."""

from pathlib import Path

import pytest
from conftest import load_script

OWN = Path(__file__).parent / "recorded"
FOLLOW = load_script(Path(__file__).with_name("follow.py"))
Replay, changes, functions = FOLLOW.Replay, FOLLOW.changes, FOLLOW.functions
known_before, replayed, report = FOLLOW.known_before, FOLLOW.replayed, FOLLOW.report
OLDER = """
class Scheduler:
    '''Schedules.'''
    limit = 3

    def schedule(self):
        # in turn
        return self.limit

    def free(self):
        pass
"""
NEWER = """
class Scheduler:
    limit = 3

    def schedule(self):
        '''Return the limit.'''
        return self.limit + 1

    def free(self): pass

def watermark():
    return 0
"""


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.34.0", "0.33"), ("0.32.1", "0.31"), ("0.9.2", "0.28"), ("1.0.0", "0.33")],
)
def test_the_version_before_is_found_by_number(version: str, known: str) -> None:
    assert known_before(version) == known


def test_what_has_changed_is_told_function_by_function_without_comments(tmp_path: Path) -> None:
    found = []
    for name, code in (("older", OLDER), ("newer", NEWER)):
        (tmp_path / name / "sched").mkdir(parents=True)
        (tmp_path / name / "sched" / "scheduler.py").write_text(code)
        found.append(functions(tmp_path / name))
    changed = changes(*found)
    path = "sched/scheduler.py"
    assert sorted(changed) == [f"{path} Scheduler schedule", f"{path} watermark"]
    lines = changed[f"{path} Scheduler schedule"]
    assert [line for line in lines[2:] if line[0] in "+-"] == [
        "-    return self.limit",
        "+    return self.limit + 1",
    ]


def test_a_recording_agrees_with_the_rules_of_its_version_and_not_with_others() -> None:
    path = OWN / "0.28" / "short-8.scenario.json"
    same, other = replayed(path, "0.28"), replayed(path, "0.29")
    assert same.field is None
    assert other.field == "t1"
    assert {"method draft_model", "policy fcfs"} <= set(same.features)


def test_the_report_groups_what_differs_by_field_and_by_feature() -> None:
    replays = [
        Replay("a", ("method eagle", "policy fcfs"), "t1", "step 3, field t1"),
        Replay("b", ("method eagle", "policy fcfs"), None, "None"),
        Replay("c", ("method none", "policy fcfs"), "s", "step 0, field s"),
        Replay("d", ("method none", "policy fcfs"), "t1", "step 9, field t1"),
    ]
    text = report("vLLM 0.34.0", replays, ["sched/scheduler.py Scheduler schedule"])
    lines = [line.split() for line in text.splitlines()]
    assert text.startswith("vLLM 0.34.0: 4 recordings, 3 differ\n")
    assert text.index("2 first differ in t1") < text.index("1 first differ in s")
    assert "  d: step 9, field t1\n" in text
    assert ["1", "2", "method", "eagle"] in lines
    assert ["3", "4", "policy", "fcfs"] in lines
    assert "1 functions and classes changed:\n  sched/scheduler.py Scheduler schedule\n" in text


def test_a_report_of_equal_recordings_has_no_table() -> None:
    text = report("vLLM 0.34.0", [Replay("a", ("policy fcfs",), None, "None")], [])
    assert text == "vLLM 0.34.0: 1 recordings, 0 differ\n\n0 functions and classes changed:\n"
