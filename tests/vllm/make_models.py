"""Models with random weights: a Llama-like target, a draft model, and one that repeats itself.

Runs in vLLM's Python::

    python tests/vllm/make_models.py FOLDER       # FOLDER/target, FOLDER/draft, FOLDER/repeating

The deeper layers add little (their output is scaled down), so that the first layers alone, which
are the draft model, mostly foresee the target's token; and weights scaled up keep greedy answers
from repeating themselves. The third model does not look back and knows few words: each word has its
one successor, so that an answer runs into a circle after some twenty tokens, and from then on
prompt lookup finds what comes next.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

FEW_WORDS = 256
LAYERS, DRAFT_LAYERS, DEEP_SCALE, GAIN = 8, 2, 0.15, 3.0
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def weights(generator: torch.Generator) -> dict[str, torch.Tensor]:
    hidden, inner, vocab = (SHAPE[n] for n in ("hidden_size", "intermediate_size", "vocab_size"))
    keys = SHAPE["num_key_value_heads"] * SHAPE["head_dim"]

    def random(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=generator) * gain * GAIN / columns**0.5
        return drawn.to(torch.bfloat16)

    found = {
        "model.embed_tokens.weight": random(vocab, hidden),
        "lm_head.weight": random(vocab, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    for layer in range(LAYERS):
        gain = 1.0 if layer < DRAFT_LAYERS else DEEP_SCALE
        name = f"model.layers.{layer}"
        found |= {
            f"{name}.input_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            f"{name}.post_attention_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            f"{name}.self_attn.q_proj.weight": random(hidden, hidden),
            f"{name}.self_attn.k_proj.weight": random(keys, hidden),
            f"{name}.self_attn.v_proj.weight": random(keys, hidden),
            f"{name}.self_attn.o_proj.weight": random(hidden, hidden, gain),
            f"{name}.mlp.gate_proj.weight": random(inner, hidden),
            f"{name}.mlp.up_proj.weight": random(inner, hidden),
            f"{name}.mlp.down_proj.weight": random(hidden, inner, gain),
        }
    return found


def repeating(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    changed = dict(found)
    for name, value in found.items():
        if name.endswith("o_proj.weight"):
            changed[name] = torch.zeros_like(value)
    changed["lm_head.weight"] = found["lm_head.weight"].clone()
    changed["lm_head.weight"][FEW_WORDS:] = 0
    return changed


def main(folder: Path) -> None:
    found = weights(torch.Generator().manual_seed(0))
    models = {"target": (LAYERS, found), "draft": (DRAFT_LAYERS, found)}
    models["repeating"] = (LAYERS, repeating(found))
    for name, (layers, tensors) in models.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}))
        kept = {
            key: value.clone()
            for key, value in tensors.items()
            if not key.startswith("model.layers.") or int(key.split(".")[2]) < layers
        }
        save_file(kept, place / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
