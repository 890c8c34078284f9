"""A target and a draft model with random weights that know two kinds of words: easy and hard ones.

Runs in vLLM's Python::

    python models.py FOLDER            # FOLDER/target, FOLDER/draft

As tests/vllm/make_models.py has them: the draft model is the first layers of the target. One place
of the residual stream, which no layer writes, says of which half of the vocabulary a word is. Words
follow words of their half, so a prompt settles the kind of its answer; and the deeper layers, which
the draft model lacks, do much less among easy words. So how much is accepted is a matter of the
request, greedily, by vLLM's own rejection sampler.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "vllm"))
from make_models import DRAFT_LAYERS, LAYERS, SHAPE, weights

PLACE = 0  # of the residual stream
SCALE = 40.0  # of the embeddings, so that layers see more than the mark
MARK = 40.0  # what an embedding says there of its kind: + easy, - hard
OWN_KIND = 8.0  # how much likelier words of the own kind are, in the head's weights
SHUT = 3.0  # how firmly easy words shut the gates of the deeper layers
DEEP_EASY, DEEP_HARD = 0.3, 1.0  # what is left of deep attention, and of deep gated layers


def two_kinds(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights of a model in which words are easy or hard."""
    half = SHAPE["vocab_size"] // 2
    kind = torch.ones(SHAPE["vocab_size"])
    kind[half:] = -1.0
    changed = {name: value.clone() for name, value in found.items()}
    changed["model.embed_tokens.weight"] *= SCALE
    changed["model.embed_tokens.weight"][:, PLACE] = MARK * kind
    changed["lm_head.weight"][:, PLACE] = OWN_KIND * kind
    for name, value in changed.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            if int(name.split(".")[2]) >= DRAFT_LAYERS:
                value.mul_(DEEP_HARD if name.endswith("down_proj.weight") else DEEP_EASY)
            value[PLACE] = 0.0
        elif name.endswith("gate_proj.weight") and int(name.split(".")[2]) >= DRAFT_LAYERS:
            value[:, PLACE] = -SHUT
    return changed


def main(folder: Path) -> None:
    found = two_kinds(weights(torch.Generator().manual_seed(0)))
    for name, layers in (("target", LAYERS), ("draft", DRAFT_LAYERS)):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}))
        kept = {
            key: value
            for key, value in found.items()
            if not key.startswith("model.layers.") or int(key.split(".")[2]) < layers
        }
        save_file(kept, place / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
