"""Watchers of a server: its metrics, and its log of requests.

Times are the engine's simulated seconds; clients see events later, by the way to them.
"""

from pathlib import Path
from typing import Any

from specsim.engine.view import StepView
from specsim.reality.run_writer import RequestRow, RunWriter
from specsim.results.prometheus import EngineMetrics, page, request_samples
from specsim.serve.live import Live, LiveAnswer, Watcher


class LiveMetrics(Watcher):
    """Counts what a server's engines do, for ``/metrics``."""

    def __init__(self, live: Live, model: str) -> None:
        self._live, self._model = live, model
        deployment = live.deployment
        self._num_blocks = deployment.setup.num_usable_blocks
        self._caches = deployment.engine.enable_prefix_caching
        self._engines = [
            EngineMetrics(deployment.engine, deployment.max_draft_len)
            for _ in range(live.experiment.num_engines)
        ]

    def stepped(self, engine: int, step: StepView) -> None:
        """Count a step's tokens, its drafts, and its prefix-cache hits."""
        mine, emitted = self._engines[engine], step["emitted_len"]
        has_emitted = emitted > 0
        counters = mine.counters
        output = int(emitted.sum())
        counters["generation_tokens"] += output
        counters["num_preemptions"] += int(step.record["preemptions"])
        mine.histograms["iteration_tokens_total"].add(int(step.record["prefill_tokens"]) + output)
        verified, accepted = step["verified_len"] * has_emitted, step["accepted_len"]
        if mine.positions and verified.any():
            counters["spec_decode_num_drafts"] += int((verified > 0).sum())
            counters["spec_decode_num_draft_tokens"] += int(verified.sum())
            taken = accepted[verified > 0]
            counters["spec_decode_num_accepted_tokens"] += int(taken.sum())
            for position in range(int(taken.max(initial=0))):
                mine.positions[position] += int((taken > position).sum())
        sequences: Any = step.table.sequences
        rows = step.rows[has_emitted]
        looked_up = step.rows[(step["is_admitted"] == 1) & self._caches]
        for these, names in (
            (rows[sequences["deliveries"][rows] == 1], ("prompt_tokens", "prompt_tokens_cached")),
            (looked_up, ("prefix_cache_queries", "prefix_cache_hits")),
        ):
            if len(these):
                counters[names[0]] += int(sequences["prompt_len"][these].sum())
                counters[names[1]] += int(sequences["cached_len"][these].sum())

    def delivered(self, engine: int, answer: LiveAnswer, gap: float | None) -> None:
        histograms = self._engines[engine].histograms
        if gap is not None:
            histograms["inter_token_latency_seconds"].add(gap)
            return
        since = answer.first_token_at - answer.request.arrived_at
        histograms["time_to_first_token_seconds"].add(since)

    def ended(self, engine: int, answer: LiveAnswer) -> None:
        mine, row, request = self._engines[engine], answer.row, answer.request
        mine.ends[answer.finish] += 1
        length, scheduled_at = answer.sent_len, float(row["first_scheduled_at"])
        ended: Any = {
            "arrived_at": request.arrived_at,
            "scheduled_at": scheduled_at,
            "first_token_at": answer.first_token_at,
            "ended_at": answer.last_token_at,
            "prompt_len": request.prompt_len,
            "output_len": length,
            **{name: int(row[name]) for name in ("cached_len", "preemptions")},
        }
        samples: dict[str, Any] = {
            **request_samples(ended),
            "request_queue_time_seconds": scheduled_at - float(row["arrived_at"]),
            "request_params_max_tokens": request.max_tokens or length,
        }
        del samples["time_to_first_token_seconds"]  # counted when the token was delivered
        for name, value in samples.items():
            mine.histograms[name].add(float(value))

    def answered(self, lens: list[int]) -> None:
        """Count an answered request, given the lengths of its answers, tokens."""
        histograms = self._engines[0].histograms
        histograms["request_params_n"].add(len(lens))
        histograms["request_max_num_generation_tokens"].add(max(lens))

    def broken_off(self, engine: int, answer: LiveAnswer, why: str) -> None:
        self._engines[engine].ends["abort"] += 1

    def page(self) -> str:
        for number, engine in enumerate(self._engines):
            engine.gauges = self._gauges(number)
        return page([(n, each.families()) for n, each in enumerate(self._engines)], self._model)

    def _gauges(self, number: int) -> dict[str, float]:
        replica = self._live.replicas[number]
        if not replica.is_up:
            return dict.fromkeys(self._engines[number].gauges, 0.0)
        used = 1.0 - int(replica.table.state["num_free"][0]) / self._num_blocks
        return {
            "num_requests_running": float(replica.num_running),
            "num_requests_waiting": float(replica.num_waiting),
            "kv_cache_usage_perc": used,
        }


class Log(Watcher):
    """Writes one line per request at its end; a ConfigError if the folder is not writable."""

    def __init__(self, live: Live, folder: Path) -> None:
        engine = live.deployment.engine.model_dump(mode="json", exclude_none=True)
        # As configured: readers compute blocks from the profile again.
        engine["block_size"] = live.experiment.serving.engine.block_size
        if not live.deployment.is_lock_step:  # a rank is then a server by itself
            engine.pop("data_parallel_size", None)
        meta = {
            "engine": "specsim serve",
            "model": live.deployment.profile.model,
            "engine_kwargs": engine,
            "policy": live.experiment.effective_policy.model_dump(mode="json", exclude_none=True),
            "num_engines": 1,  # each has a folder of its own
            "kv_cache": {name: engine.get(name) for name in ("num_gpu_blocks", "block_size")},
            "speed": live.speed,
            "seed": live.experiment.seed,
        }
        self._has_ids = bool(live.deployment.engine.enable_prefix_caching)
        count = live.experiment.num_engines
        folders = [folder] if count == 1 else [folder / f"replica-{n}" for n in range(count)]
        self._writers = [RunWriter(each, meta) for each in folders]

    def ended(self, engine: int, answer: LiveAnswer) -> None:
        row = self._row(answer)
        row["scheduled_ts"] = float(answer.row["first_scheduled_at"])
        row["preemptions"] = int(answer.row["preemptions"])
        request = answer.request
        if self._has_ids and request.prompt_token_ids is not None:
            assert request.output_token_ids is not None
            row["input_tok_ids"] = request.prompt_token_ids.tolist()
            row["output_tok_ids"] = request.output_token_ids.tolist()
        self._writers[engine].add_request(row)

    def broken_off(self, engine: int, answer: LiveAnswer, why: str) -> None:
        self._writers[engine].add_request({**self._row(answer), "error": why})

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def _row(self, answer: LiveAnswer) -> RequestRow:
        request, has_begun = answer.request, answer.sent_len > 0
        row: RequestRow = {
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
        if request.priority:
            row["priority"] = request.priority
        return row
