"""GPUs that share KV blocks out (decode context parallelism), as the engine has them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import tiny_config

from specsim.core.errors import SpecsimError
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary


@pytest.mark.parametrize("policy", ["off", "static:k=3"])
def test_a_block_has_as_many_tokens_on_each_gpu(
    constant_step: Callable[..., str], policy: str
) -> None:
    """As one GPU with larger blocks has them, of which a turn finds whole ones only."""
    path = Path(constant_step(delta_ms=4.0, gamma_us=20.0, drafts={"eagle3": {"token_us": 50}}))
    shared = path.with_name("shared.yaml")
    fields = yaml.safe_load(path.read_text("utf-8")) | {"decode_context_parallel_size": 4}
    shared.write_text(yaml.safe_dump(fields), "utf-8")
    config = tiny_config(policy=policy)
    lengths = {"turns": 4, "shared_prompt": 100, "first_prompt": 50, "new_input": 30, "output": 20}
    config["workload"] |= {"lengths": {"kind": "sessions", **lengths}}
    small = {"num_gpu_blocks": 60, "max_model_len": 900, "max_num_seqs": 8}
    runs = [
        simulate(
            Experiment.parse(
                {**config, "profile": str(each), "engine": {**config["engine"], **small, **own}},
                "a test",
            )
        )
        for each, own in (
            (shared, {"decode_context_parallel_size": 4}),
            (path, {"block_size": 64}),
            (path, {}),
        )
    ]
    own, larger, plain = (Summary(run).tables.requests for run in runs)
    assert own.tobytes() == larger.tobytes()
    assert own.tobytes() != plain.tobytes()
    assert runs[0].deployment.engine.block_size == 64


def test_an_engine_that_says_otherwise_is_refused(constant_step: Callable[..., str]) -> None:
    config = tiny_config(profile=constant_step(delta_ms=4.0), policy={"kind": "off"})
    config["engine"] = {"decode_context_parallel_size": 2}
    with pytest.raises(SpecsimError, match=r"the profile was made with 1; .*--dcp 2"):
        Deployment.of(Experiment.parse(config, "a"))
