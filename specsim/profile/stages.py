"""Stages of a pipeline: how a model's layers, and the time of a pass, are divided over them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from specsim.core.errors import ProfileError
from specsim.core.step import StepLoad
from specsim.hardware import ModelShape
from specsim.latency import LATENCY
from specsim.profile.kernel_tables import TableOptions

_DECODES = 64  # of the step by which the head's part of a pass is told


def stage_layers(shape: ModelShape, options: TableOptions) -> list[int]:
    """Return the layers of each stage of a pipeline, as vLLM divides them.

    Evenly; what is left over goes to the stages before the last, one each. A ProfileError if layers
    are not alike, or there are fewer than stages.

    References:
        vLLM 0.32.0 ``distributed/utils.py get_pp_indices``.
    """
    stages, layers = options.pipeline_parallel_size, shape.num_hidden_layers
    if stages == 1:
        return [layers]
    mixed = shape.num_experts and shape.num_expert_layers != layers
    if len(shape.attention_widths) > 1 or len(shape.attention_kinds) > 1 or mixed:
        raise ProfileError(
            f"--pp {stages}: the layers of '{options.model}' are not alike, and how they are "
            "divided over stages is not simulated; leave it out"
        )
    if shape.state_layers or shape.o_groups or options.data_parallel_size > 1:
        raise ProfileError(
            f"--pp {stages}: with layers that keep a state or with --dp is not simulated; leave it "
            "out"
        )
    if layers < stages:
        raise ProfileError(f"--pp {stages}: '{options.model}' has {layers} layers; take fewer")
    found, left = [layers // stages] * stages, layers % stages
    for number in range(left):
        found[-2 - number] += 1
    return found


def stage_shares(stages: Sequence[int], fields: dict[str, Any]) -> list[float]:
    """Return what each stage takes of a pass, by its layers; the last one has the head, too.

    As in a decode of 64 sequences of 1,024 tokens: the head's part is taken to be the same in all
    steps.

    Args:
        fields: Of a composed latency model.
    """
    target = LATENCY.parse(fields)
    head_us = np.interp(_DECODES, fields["head"]["at"], fields["head"]["times_us"])
    decode = StepLoad(1024 * _DECODES, _DECODES, _DECODES)
    of_head = float(head_us) * 1e-6 / target.forward_time(decode)
    shares = [layers / sum(stages) * (1 - of_head) for layers in stages]
    shares[-1] += of_head
    return [round(share, 6) for share in shares]
