"""Folders that vLLM takes for models: shapes that are shipped; it makes up the weights."""

import json
from pathlib import Path

PROFILES = Path(__file__).parents[1] / "profiles"
_KNOWN = {  # what vLLM wants to know of a Llama besides the shape
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_OWN = ("name", "source", "num_fused_inputs", "num_attention_inputs", "has_own_embedding")


def model_folder(name: str, folder: Path, **others: object) -> Path:
    """Write the config.json of a shipped model as vLLM reads it; other fields replace its own."""
    shape = json.loads((PROFILES / f"{name}.json").read_text())
    known = {key: value for key, value in shape.items() if key not in _OWN}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_KNOWN | known | others, indent=1))
    return folder
