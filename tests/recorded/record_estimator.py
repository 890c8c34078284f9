"""Record what vLLM's own estimator of acceptance comes to; its kernels run without a GPU.

Run it with TRITON_INTERPRET=1 and the Python of a vLLM (0.32.0).
"""

import json
from importlib import import_module

import torch
import triton
import vllm.triton_utils as utils
from estimator_steps import LONGEST, NUM, RECORDED, STEPS, steps

# vLLM uses no Triton on a CPU; its interpreter needs nothing else.
utils.triton, utils.tl, utils.HAS_TRITON = triton, triton.language, True
MODULE = "vllm.v1.worker.gpu.spec_decode.acceptance_estimator"


def main() -> None:
    """Write the coefficients of each fit, and the chances at the beginning and at the end."""
    real = import_module(MODULE).OnlineAcceptanceEstimator(NUM, LONGEST, torch.device("cpu"))
    mapping, hot = torch.arange(NUM, dtype=torch.int32), torch.ones(NUM)
    chances = torch.zeros(NUM, LONGEST)
    fits, seen = [], []
    for number, (verified, accepted, logits) in enumerate(steps(), 1):
        real.step(mapping, torch.from_numpy(accepted + 1), torch.from_numpy(verified - accepted))
        for place in range(LONGEST):
            each = torch.from_numpy(logits[place])
            real.predict(each, mapping, torch.tensor(place), chances, hot)
        if number % 100 == 0:
            fits.append([real.slope.item(), *real.intercepts.tolist()])
        if number in (1, STEPS):
            seen.append(chances.tolist())
    RECORDED.write_text(json.dumps({"fits": fits, "chances": seen}) + "\n")


if __name__ == "__main__":
    main()
