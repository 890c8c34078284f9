"""What several tests of what is shown share."""

from collections.abc import Iterator
from threading import Thread

import pytest
from conftest import tiny_config

from specsim.run.experiment import Experiment
from specsim.show.ui import Playground, UiServer, listen


@pytest.fixture(scope="module")
def server() -> Iterator[UiServer]:
    """A page with sliders, served in a thread."""
    experiment = Experiment.parse(tiny_config(slo={"ttft_ms": 200.0, "tpot_ms": 30.0}), "tiny")
    with listen(Playground(experiment), 0) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()
