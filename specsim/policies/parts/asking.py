"""What loops say of all sequences of a step at once."""

from specsim.core.compiled import inner
from specsim.decisions.loops import View


@inner
def ask_all(view: View, k: int) -> None:
    """Have every sequence draft so many tokens."""
    for row in range(view.step[0].num_rows):
        view.lens[row] = k


@inner
def verify_all(view: View) -> None:
    """Have all be verified that was drafted."""
    for row in range(view.step[0].num_rows):
        view.lens[row] = view.draft_lens[row]


@inner
def let_go_of(view: View, everybody: bool, new_ones: bool) -> None:
    """Let go of everybody, or of whom the step admits, or of nobody."""
    for row in range(view.step[0].num_rows):
        view.let_go[row] = everybody or (new_ones and view.is_admitted[row])
