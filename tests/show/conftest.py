"""What several tests of what is shown share."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from conftest import tiny_config
from reporting import whole_sweep

from specsim.run.experiment import Experiment
from specsim.show.report import load_study
from specsim.show.study import Study
from specsim.show.ui import Playground, UiServer, listen


@pytest.fixture(scope="module")
def server() -> Iterator[UiServer]:
    """A page with sliders, served in a thread."""
    experiment = Experiment.parse(tiny_config(slo={"ttft_ms": 200.0, "tpot_ms": 30.0}), "tiny")
    with listen(Playground(experiment), 0) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep over GPUs, policies and loads; whoever changes something copies it."""
    return whole_sweep(tmp_path_factory.mktemp("sweep") / "whole")


@pytest.fixture(scope="session")
def study(folder: Path) -> Study:
    return load_study(folder)
