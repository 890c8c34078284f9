"""The queue of those that wait, against a sorted list and a deque."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from specsim.core.compiled import as_records
from specsim.core.request import Request
from specsim.engine.setup import Facts, Setup
from specsim.engine.table import NO_ROW, Table
from specsim.engine.waiting import begin, enqueue, first_waiting, leave_queue, put_back
from specsim.hardware.kv_groups import one_group

NAMES = ["c", "a", "b", "B", "aa", "ab", "b", "a"]
PRIORITIES = [1, 0, 0, 1, -1, 0, 0, 1]


class QueueMachine(RuleBasedStateMachine):
    """Rows come, go back and leave; a list says who is next."""

    by_priority = False

    def __init__(self) -> None:
        super().__init__()
        requests = [
            Request(index=index, id=name, prompt_len=1, output_len=1, priority=priority)
            for index, (name, priority) in enumerate(zip(NAMES, PRIORITIES, strict=True))
        ]
        limits = {
            "max_num_running": 4,
            "num_blocks": 4,
            "max_model_len": 4,
            "by_priority": int(self.by_priority),
        }
        facts = Facts.of(requests, 4, with_keys=False)
        table = Setup("synchronous", limits, one_group(4)).table(facts=facts.rows, keys=facts.keys)
        self.table = Table(*map(as_records, table))
        self.requests = requests
        self.rows: list[int] = []
        self.arrived_at: dict[int, float] = {}

    def absent(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([r for r in range(len(NAMES)) if r not in self.rows]))

    @precondition(lambda self: len(self.rows) < len(NAMES))
    @rule(data=st.data(), at=st.sampled_from([0.0, 1.0, 2.5]), is_back=st.booleans())
    def come(self, data: st.DataObject, at: float, *, is_back: bool) -> None:
        row = self.absent(data)
        begin(self.table, row, row, at)
        self.arrived_at[row] = at
        if is_back:
            put_back(self.table, row)
            self.rows.insert(0, row)
        else:
            enqueue(self.table, row)
            self.rows.append(row)
        if self.by_priority:
            self.rows.sort(key=self.place)

    def place(self, row: int) -> tuple[int, float, str, int]:
        request = self.requests[row]
        return request.priority, self.arrived_at[row], request.id, request.index

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows))
        leave_queue(self.table, row)
        self.rows.remove(row)

    @precondition(lambda self: self.rows)
    @rule()
    def serve(self) -> None:
        row = first_waiting(self.table)
        assert row == self.rows.pop(0)
        leave_queue(self.table, row)

    @invariant()
    def agrees(self) -> None:
        state = self.table.state[0]
        assert state.num_waiting == len(self.rows)
        if self.rows:
            assert first_waiting(self.table) == self.rows[0]
        if not self.by_priority:
            assert [state.queue_head, state.queue_tail] == (
                [self.rows[0], self.rows[-1]] if self.rows else [NO_ROW, NO_ROW]
            )


class HeapMachine(QueueMachine):
    by_priority = True


@pytest.mark.parametrize("machine", [QueueMachine, HeapMachine])
def test_queue(machine: type[QueueMachine]) -> None:
    """Its rules and invariants assert."""
    run_state_machine_as_test(machine, settings=settings(max_examples=100, stateful_step_count=40))
