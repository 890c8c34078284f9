"""Tables: what all of them have in common."""

import pytest

from specsim.show.render import new_table


@pytest.mark.parametrize(("remark", "num_columns"), [("", 2), ("FAILED", 3)])
def test_a_column_of_remarks_is_there_if_there_are_any(remark: str, num_columns: int) -> None:
    table = new_table("title", ["row", "x", ""], [["a", "1", ""], ["b", "2", remark]])
    assert len(table.columns) == num_columns
    assert [list(column.cells) for column in table.columns[:2]] == [["a", "b"], ["1", "2"]]
