"""Export: a run in the formats of other tools.

A trace for Perfetto, metrics for Prometheus, and the result file of ``vllm bench serve``.
"""

from pathlib import Path

from specsim.core.errors import ConfigError
from specsim.results.folder import ResultsFolder, check_same_run
from specsim.run.experiment import Experiment
from specsim.show.export.chrome_trace import write_chrome_trace
from specsim.show.export.vllm import prometheus_text, vllm_bench_result

__all__ = ["load_folder", "prometheus_text", "vllm_bench_result", "write_chrome_trace"]


def load_folder(path: Path) -> tuple[ResultsFolder, Experiment]:
    """Return a run's folder and experiment; a SpecsimError if they are damaged or do not match."""
    if not path.is_dir():
        raise ConfigError(f"{path}: is not a folder; give one that `specsim run --out` wrote")
    if not (path / "config.yaml").is_file():
        raise ConfigError(
            f"{path}: holds no config.yaml, so it is not of one run; give a folder that `specsim "
            "run --out` wrote, or one of the folders that `specsim compare --out` made"
        )
    experiment, run = Experiment.load(path / "config.yaml"), ResultsFolder(path)
    names = "config.yaml and summary.json"
    check_same_run(path, names, experiment.hash, run.own["config_hash"])
    return run, experiment
