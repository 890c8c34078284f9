"""An engine of its own, to compare with: plain objects, one list per thing, no compiled loops.

It was specsim's engine before that became a table of columns, and it agrees with the recordings of
the real vLLM. Nothing in here imports `specsim.engine`.
"""

from oracle.engine import DoesNotEnd
from oracle.run import run_scenario

__all__ = ["DoesNotEnd", "run_scenario"]
