"""Make the profiles in profiles/ that are composed from kernel tables.

    .venv/bin/python -m pip install 'aiconfigurator-core==0.12.0'
    .venv/bin/python experiments/built-profiles/build.py

What does not fit, and what no table has, is left out and said. A profile that was fitted to steps
of a real server stays: the composed one gets "-kernels" at the end of its name.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from specsim.core.errors import SpecsimError
from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import TableOptions

GPUS = ("h100", "h200", "b200", "b300", "gb200", "gb300", "a100-80gb", "l40s", "rtx-pro-6000")
CARRIED = {"h100-nvl": "h100"}
"""GPUs without tables, and whose are carried over."""
FITTED = {"h100/llama-3.1-8b"}


class Model(NamedTuple):
    name: str
    sizes: tuple[int, ...]
    """Of tensor parallelism."""
    drafts: dict[str, str]
    dtypes: tuple[str, ...] = ("bfloat16",)
    not_on: tuple[str, ...] = ()
    """GPUs whose tables have no such attention."""


def eagle(name: str, /, **others: str) -> dict[str, str]:
    return {"eagle3": f"eagle3-{name}", **others}


NARROW = ("a100-80gb", "l40s", "rtx-pro-6000")


def llama(name: str) -> dict[str, str]:
    return eagle(name, draft_model="llama-3.2-1b", eagle=f"eagle-{name}")


QWEN = {"draft_model": "qwen3-0.6b"}
MODELS = (
    Model("llama-3.1-8b", (1, 2), llama("llama-3.1-8b"), ("bfloat16", "fp8")),
    Model("llama-3.1-70b", (2, 4, 8), llama("llama-3.1-70b"), ("bfloat16", "fp8")),
    Model("llama-3.2-1b", (1,), {}),
    Model("qwen3-8b", (1,), eagle("qwen3-8b", **QWEN), ("bfloat16", "fp8")),
    Model("qwen3-32b", (1, 2, 4), eagle("qwen3-32b", **QWEN), ("bfloat16", "fp8")),
    Model("qwen3-30b-a3b", (1, 2), eagle("qwen3-30b-a3b", **QWEN)),
    Model("gpt-oss-20b", (1,), eagle("gpt-oss-20b"), ("mxfp4",)),
    Model("gpt-oss-120b", (1, 2, 4), eagle("gpt-oss-120b"), ("mxfp4",)),
    Model(
        "gemma-4-31b", (1, 2), {"mtp": "gemma-4-31b-assistant"}, ("bfloat16", "fp8"), not_on=NARROW
    ),
    Model("deepseek-v3", (4, 8), {"mtp": "deepseek-v3-mtp"}, ("fp8_block",)),
    Model("deepseek-v4-flash", (4, 8), {"mtp": "deepseek-v4-flash-mtp"}, ("auto",), not_on=NARROW),
    Model("deepseek-v4-pro", (4, 8), {"mtp": "deepseek-v4-pro-mtp"}, ("auto",), not_on=NARROW),
    Model("kimi-k2.5", (4, 8), {}, ("int4_experts",)),
    Model("mixtral-8x7b", (1, 2, 4), {}),
    Model("mistral-7b", (1,), {}),
    Model("mimo-7b", (1,), {"mtp": "mtp-mimo-7b"}),
    Model("llama-2-13b", (1,), {}),
)


def variants() -> Iterator[tuple[str, TableOptions]]:
    """Yield the name and the options of every profile."""
    for gpu in (*GPUS, *CARRIED):
        for model in MODELS:
            if gpu in model.not_on:
                continue
            for dtype in model.dtypes:
                for size in {1} & {*model.sizes} if gpu in CARRIED else model.sizes:
                    name = f"{gpu}/{model.name}"
                    name += f"-{dtype}" if dtype == "fp8" else ""
                    name += f"-tp{size}" if size > 1 else ""
                    name += "-kernels" if name in FITTED else ""
                    options = {"tensor_parallel_size": size, "dtype": dtype}
                    options["tables_of"] = CARRIED.get(gpu)
                    yield name, TableOptions(model.name, gpu, model.drafts, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder of kernel tables")
    parser.add_argument("--out", type=Path, default=Path("profiles"))
    parser.add_argument("--only", default="", help="a part of the names, such as b200/deepseek")
    args = parser.parse_args()
    made = 0
    for name, options in variants():
        if args.only not in name:
            continue
        try:
            built = TableProfile.of(TableOptions(**{**vars(options), "tables": args.tables}))
        except SpecsimError as error:
            print(f"left out: {name}: {error}")
            continue
        text = yaml.safe_dump(
            built.fields, sort_keys=False, width=100, allow_unicode=True, default_flow_style=None
        )
        path = args.out / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        made += 1
    print(f"{made} profiles in {args.out}")


if __name__ == "__main__":
    main()
