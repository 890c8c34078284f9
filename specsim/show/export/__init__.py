"""Export: a run in the formats of other tools.

A trace for Perfetto, metrics for Prometheus, and the result file of ``vllm bench serve``.
"""

from specsim.show.export.chrome_trace import write_chrome_trace
from specsim.show.export.folder import ResultsFolder, load_folder
from specsim.show.export.prometheus import prometheus_text
from specsim.show.export.vllm_bench import vllm_bench_result

__all__ = [
    "ResultsFolder",
    "load_folder",
    "prometheus_text",
    "vllm_bench_result",
    "write_chrome_trace",
]
