"""Log: what requests met, as a measured run that ``specsim validate`` reads; one per engine.

Times are simulated seconds, of the engine: what a client sees comes later by the way to it.
"""

from pathlib import Path

from specsim.engine.python_verbs import PythonVerbs
from specsim.engine.view import StepView
from specsim.reality.run_writer import RequestRow, RunWriter
from specsim.serve.live import Live, LiveAnswer


class Log:
    """Writes a line per request, when it ends; a `Watcher`.

    Raises:
        ConfigError: The folder holds a run already, or cannot be written to.
    """

    def __init__(self, live: Live, folder: Path) -> None:
        engine = live.deployment.engine.model_dump(mode="json", exclude_none=True)
        meta = {
            "engine": "specsim serve",
            "model": live.deployment.profile.model,
            "engine_kwargs": engine,
            "kv_cache": {name: engine.get(name) for name in ("num_gpu_blocks", "block_size")},
            "speed": live.speed,
            "seed": live.experiment.seed,
        }
        self._has_ids = bool(live.deployment.engine.enable_prefix_caching)
        count = live.experiment.num_engines
        folders = [folder] if count == 1 else [folder / f"replica-{n}" for n in range(count)]
        self._writers = [RunWriter(each, meta) for each in folders]

    def stepped(self, engine: int, replica: PythonVerbs, step: StepView) -> None:
        """Steps are left out."""

    def delivered(self, engine: int, answer: LiveAnswer, gap: float | None) -> None:
        """Deliveries come with the end."""

    def ended(self, engine: int, answer: LiveAnswer) -> None:
        """Write an answer that has come to its end."""
        row = self._row(answer)
        row["scheduled_ts"] = float(answer.row["first_scheduled_at"])
        row["preemptions"] = int(answer.row["preemptions"])
        request = answer.request
        if self._has_ids and request.prompt_token_ids is not None:
            assert request.output_token_ids is not None
            row["input_tok_ids"] = request.prompt_token_ids.tolist()
            row["output_tok_ids"] = request.output_token_ids.tolist()
        self._writers[engine].add_request(row)

    def broken_off(self, answer: LiveAnswer, why: str) -> None:
        """Write an answer that does not, and why."""
        self._writers[0].add_request({**self._row(answer), "error": why})

    def close(self) -> None:
        """Put the requests in order."""
        for writer in self._writers:
            writer.close()

    def _row(self, answer: LiveAnswer) -> RequestRow:
        request, has_begun = answer.request, answer.sent_len > 0
        return {
            "request_id": f"request-{request.index}",
            "number": request.index,
            "input_toks": request.prompt_len,
            "output_toks": answer.sent_len,
            "arrival_time": request.arrived_at,
            "queued_ts": request.arrived_at,
            "scheduled_ts": None,
            "first_token_ts": answer.first_token_at if has_begun else None,
            "last_token_ts": answer.last_token_at if has_begun else None,
            "deliveries": answer.deliveries,
            "accepted": answer.drafts,
        }
