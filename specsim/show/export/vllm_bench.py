"""A run as ``vllm bench serve --save-result`` would have written it, ``--save-detailed`` or not."""

from typing import Any

from specsim.show.export.folder import ResultsFolder

__all__ = ["vllm_bench_result"]


def vllm_bench_result(run: ResultsFolder) -> dict[str, Any]:
    """Return the result file of vLLM's benchmark client.

    Returns:
        ``summary.json`` without what is specsim's own, and with what vLLM has besides: a text per
        answer, which a simulation leaves empty, where there are details per request, and ``rtfx``,
        which is about audio.
    """
    result = {name: value for name, value in run.summary.items() if name != "specsim"}
    if "itls" in result:
        result["generated_texts"] = [""] * int(result["completed"])
    result["rtfx"] = 0.0
    return result
