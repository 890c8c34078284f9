"""A made-up kernel profile whose every time is a formula, for tests."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ONCE = ("embedding", "final_layernorm")
LAYERS = (
    *("layernorm", "qkv_proj", "rotary_emb", "o_proj"),
    *("gate_up_proj", "act_fn", "down_proj"),
)


def write_csv(path: Path, header: str, rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header.split(","))
        writer.writerows(rows)


def attention_us(chunk: float, kv_prefill: float, n: float, kv: float) -> float:
    """Made up; linear in each axis, so that interpolation is exact."""
    return 1.0 + 0.01 * chunk + 1e-5 * chunk * kv_prefill + 0.002 * n * kv * (1.5 if chunk else 1)


def make_kernel_folder(folder: Path, *, chunks: Iterable[int] = (0, 16, 128, 1024)) -> Path:
    """Every dense kernel takes 2 us and 0.1 us a token; LM head and sampler 10 us a sequence."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(
        folder / "dense.csv",
        "layer,tokens,time_us",
        [(name, t, 2 + 0.1 * t) for name in (*ONCE, *LAYERS) for t in (1, 16, 256, 2048)],
    )
    write_csv(
        folder / "per_sequence.csv",
        "layer,sequences,time_us",
        [(name, n, 5.0 * n) for name in ("lm_head", "sampler") for n in (1, 64)],
    )
    rows = [
        (chunk, kp, n, kd, attention_us(chunk, kp, n, kd))
        for chunk in chunks
        for kp in ((0, 512, 4096) if chunk else (0,))
        for n in (0, 1, 8, 64)
        for kd in ((16, 512, 4096) if n else (0,))
        if chunk or n
    ]
    header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    write_csv(folder / "attention.csv", header, rows)
    return folder
