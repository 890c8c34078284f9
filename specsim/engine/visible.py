"""VisibleReplica: what routers and autoscalers see of a replica (`specsim.routing.ReplicaView`)."""

from collections.abc import Set
from typing import Any

from numpy.typing import NDArray

from specsim.core.step import Ints
from specsim.engine.python_verbs import PythonVerbs
from specsim.engine.table import LOADED, LOADING, REQUEST, RUNNING, WAITING
from specsim.routing.base import PromptView


class VisibleReplica(PythonVerbs):
    """A replica as others see it, before what it does is added (`specsim.engine.replica`)."""

    @property
    def num_waiting(self) -> int:
        """Requests that have been submitted but do not run."""
        waiting, unseen = self._field("num_waiting") + self._field("num_loading"), self._unseen()
        return waiting + (int((unseen["kind"] == REQUEST).sum()) if len(unseen) else 0)

    @property
    def outstanding_tokens(self) -> int:
        """Prompts of its unfinished requests, and what those that run have answered so far."""
        sequences = self.table.sequences
        status = sequences["status"]
        unseen = self._unseen()
        unseen = unseen["request"][unseen["kind"] == REQUEST]
        is_waiting = (status == WAITING) | (status == LOADING) | (status == LOADED)
        waiting = sequences["prompt_len"][is_waiting].sum()
        running = sequences["known_len"][status == RUNNING].sum()
        return int(waiting + running + self._wiring.facts.rows["prompt_len"][unseen].sum())

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks that sequences hold."""
        most = len(self.table.blocks) - 1
        return 1.0 - self._field("num_free") / most if most else 0.0

    def published_keys(self) -> Ints:
        """Return the keys of what its prefix cache holds that others may share."""
        keys: Ints = self.table.blocks["key"]
        return keys[keys < 0]

    def cached_len(self, prompt: PromptView, keys: Set[int] | None = None) -> int:
        """Return how many leading tokens of a prompt its first KV cache group holds.

        Args:
            keys: What the cache holds; by default what it holds now.
        """
        known = set(self.published_keys().tolist()) if keys is None else keys
        fact, groups = self._wiring.facts.rows[prompt.index], self.table.groups
        first, end = int(fact["key_at"]), int(fact["key_at"]) + int(fact["num_keys"])
        width, size = int(groups["hashes"][0]), int(groups["block_size"][0])
        length = 0
        for key in self._wiring.facts.keys[first + width - 1 : end : width].tolist():
            if key not in known or length + size > prompt.prompt_len:
                break
            length += size
        return length

    def _unseen(self) -> NDArray[Any]:
        """Return the arrivals that the engine has not looked at."""
        return self.table.arrivals[self._field("first_arrival") : self._field("num_arrivals")]
