"""A model of which a real server makes random weights, and where there is a vLLM to serve it."""

import os
import socket
from contextlib import closing

import pytest

PYTHON = os.environ.get("SPECSIM_VLLM_PYTHON", "")
NEEDS_VLLM = pytest.mark.skipif(
    not PYTHON, reason="SPECSIM_VLLM_PYTHON does not name a Python that has vLLM"
)
START_TIMEOUT = 240.0  # seconds
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
