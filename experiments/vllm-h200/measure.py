"""Serve made-up requests with a real vLLM, and keep what its scheduler did and what clients saw.

Runs in vLLM's own Python with specsim on PYTHONPATH, an engine a time, weights made up::

    python experiments/vllm-h200/measure.py OUT off --steps       # and single steps
    python experiments/vllm-h200/measure.py OUT eagle3-3 draft-3  # engines: see ENGINES
    python experiments/vllm-h200/measure.py OUT off --rehearse    # a tiny model, without a GPU

keep.py makes what is committed of OUT. Where flashinfer is not installed, vLLM wants
VLLM_USE_FLASHINFER_SAMPLER=0.

Each engine is vLLM's own server without HTTP: `AsyncLLM`, whose scheduler runs in another process
and is recorded there. Drafts of random models are never accepted, so vLLM draws their fate itself
(its ``rejection_sample_method: synthetic``) by the rates below; what drafts cost is the real thing.
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up_models import model_folder

VOCAB_SIZE = 128256
RATES = (0.75, 0.55, 0.41, 0.31, 0.24)
"""Of all drafts, the share whose first, second, ... token is accepted: about what EAGLE-3 has."""
ENGINES: dict[str, tuple[str, int]] = {
    "off": ("", 0),
    "eagle3-1": ("eagle3", 1),
    "eagle3-3": ("eagle3", 3),
    "eagle3-5": ("eagle3", 5),
    "draft-3": ("draft_model", 3),
}
MODELS = {"": "llama-3.1-8b", "eagle3": "eagle3-llama-3.1-8b", "draft_model": "llama-3.2-1b"}
TINY = {"": "llama-7m", "draft_model": "llama-7m"}
OPTIONS = {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 32768}
TINY_OPTIONS = {
    "max_num_batched_tokens": 512,
    "max_num_seqs": 16,
    "max_model_len": 1024,
    "gpu_memory_utilization": 0.4,
}


@dataclass(frozen=True)
class Load:
    """Requests of one run: as many clients who send one after the other, or a Poisson process."""

    name: str
    num_requests: int
    prompt_lens: tuple[int, int]  # least and most, drawn uniformly; likewise `output_lens`
    output_lens: tuple[int, int]
    clients: int = 0
    rate: float = 0.0  # requests/s

    def lens(self, draw: random.Random) -> list[tuple[int, int]]:
        """Return prompt and output length of each request, tokens."""
        return [
            (draw.randint(*self.prompt_lens), draw.randint(*self.output_lens))
            for _ in range(self.num_requests)
        ]


LOADS = (
    Load("warm-up", 48, (300, 700), (100, 156), clients=24),
    Load("clients-1", 5, (400, 600), (112, 144), clients=1),
    Load("clients-8", 32, (400, 600), (112, 144), clients=8),
    Load("clients-32", 128, (400, 600), (112, 144), clients=32),
    Load("clients-128", 384, (400, 600), (112, 144), clients=128),
    Load("clients-256", 512, (400, 600), (112, 144), clients=256),
    Load("long-prompts", 32, (6000, 8000), (150, 250), clients=16),
    Load("poisson", 144, (100, 2000), (50, 350), rate=12.0),
)


def tiny(load: Load) -> Load:
    """Return a load that a CPU serves with a tiny model in a moment."""
    clients = min(load.clients, 8)
    return Load(load.name, 8, (20, 60), (6, 12), clients=clients, rate=load.rate)


@dataclass(frozen=True)
class Sent:
    """What a client saw of one request; instants in seconds of one clock."""

    name: str  # load:number
    prompt_len: int
    output_len: int
    sent_at: float
    token_times: list[float]  # when each output came
    token_counts: list[int]  # how many tokens it held


def folder_of(name: str, models: Path) -> str:
    """Return a folder of a model, or of an EAGLE-3 head, whose draft vocabulary is smaller."""
    others: dict[str, Any] = {}
    if "eagle3" in name:
        others = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": 32000,
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": OPTIONS["max_model_len"],
            "torch_dtype": "bfloat16",
        }
    return str(model_folder(name, models / name, **others))


def engine_options(engine: str, models: Path, *, rehearse: bool) -> dict[str, Any]:
    """Return the options of vLLM for one of ``ENGINES``."""
    method, draft_len = ENGINES[engine]
    names = TINY if rehearse else MODELS
    options: dict[str, Any] = {
        "model": folder_of(names[""], models),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "scheduler_cls": "specsim.reality.vllm.scheduler.recording_scheduler",
        **(TINY_OPTIONS | {"enforce_eager": True} if rehearse else OPTIONS),
    }
    if method:
        options["speculative_config"] = {
            "method": method,
            "model": folder_of(names[method], models),
            "num_speculative_tokens": draft_len,
        }
        if not rehearse:  # vLLM on a CPU knows no synthetic acceptance
            options["speculative_config"] |= {
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": list(RATES[:draft_len]),
            }
    return options


class Server:
    """A vLLM engine, and what its clients have seen so far."""

    def __init__(self, engine: Any, vocab_size: int) -> None:
        self.engine = engine
        self.seen: list[Sent] = []
        self._vocab_size = vocab_size

    async def ask(self, name: str, prompt_len: int, output_len: int, seed: str) -> None:
        """Send one request and wait for its end; the answer is exactly that long."""
        draw = random.Random(seed)
        prompt = draw.choices(range(2, self._vocab_size), k=prompt_len)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=output_len,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        times, counts = [], []
        sent_at = time.monotonic()
        outputs: AsyncIterator[Any] = self.engine.generate(
            {"prompt_token_ids": prompt}, params, request_id=name
        )
        async for output in outputs:
            times.append(round(time.monotonic(), 6))
            counts.append(len(output.outputs[0].token_ids))
        self.seen.append(Sent(name, prompt_len, output_len, sent_at, times, counts))

    async def serve(self, load: Load) -> None:
        """Serve one load to its end, with an empty prefix cache."""
        await self.engine.reset_prefix_cache()
        draw = random.Random(load.name)
        lens = load.lens(draw)
        numbers = iter(range(load.num_requests))

        async def ask(number: int) -> None:
            name = f"{load.name}:{number}"
            await self.ask(name, *lens[number], seed=name)

        async def client() -> None:
            for number in numbers:
                await ask(number)

        if load.clients:
            await asyncio.gather(*(client() for _ in range(load.clients)))
            return
        tasks = []
        for number in numbers:
            await asyncio.sleep(draw.expovariate(load.rate))
            tasks.append(asyncio.create_task(ask(number)))
        await asyncio.gather(*tasks)

    async def step_of(self, name: str, prompt_lens: Sequence[int], output_len: int) -> None:
        """Have prompts share a step: they are sent while the server is busy with a long one."""
        full = self.engine.vllm_config.scheduler_config.max_num_batched_tokens
        busy = asyncio.create_task(self.ask(f"{name}:busy", full, 1, seed=name))
        await asyncio.sleep(0.05)
        asked = [
            self.ask(f"{name}:{number}", prompt_len, output_len, seed=f"{name}:{number}")
            for number, prompt_len in enumerate(prompt_lens)
        ]
        await asyncio.gather(busy, *asked)


def shared_steps() -> list[tuple[str, list[int]]]:
    """Return prompts that share a step: of one length each, and beside another length."""
    found = [
        (f"same-{length}x{count}", [length] * count)
        for length in (32, 64, 128, 256, 512, 513, 1024, 2048)
        for count in (1, 2, 4, 8, 16, 32)
        if length * count <= 8192
    ]
    mixed = ([512, 513], [512, 512], [64, 4000], [128] * 8 + [4000], [1, 512], [1000, 2000, 3000])
    return found + [(f"mixed-{number}", lens) for number, lens in enumerate(mixed)]


def decode_steps() -> list[tuple[str, list[int]]]:
    """Return prompts that then decode together: many short ones, few long ones, unequal ones."""
    return [
        (f"decode-{length}x{count}", [length] * count)
        for length, counts in {
            128: (1, 4, 16, 64, 128, 256),
            1024: (1, 4, 16, 64, 128),
            4096: (1, 4, 16, 32),
            16000: (1, 4, 8),
        }.items()
        for count in counts
    ] + [("decode-unequal", [128] * 15 + [16000]), ("decode-unequal-2", [512] * 60 + [16000] * 4)]


async def measure(engine: str, out: Path, *, rehearse: bool, steps: bool) -> None:
    """Start one engine, serve all loads, and write what was seen."""
    begun = time.monotonic()
    args = AsyncEngineArgs(**engine_options(engine, out / "models", rehearse=rehearse))
    running = AsyncLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)
    server = Server(running, 1024 if rehearse else VOCAB_SIZE)
    started = time.monotonic()
    marks = {"start": started - begun}
    print(f"{engine}: started in {started - begun:.1f} s", flush=True)
    for load in LOADS:
        start = time.monotonic()
        await server.serve(tiny(load) if rehearse else load)
        marks[load.name] = time.monotonic() - start
        print(f"{engine} {load.name}: {marks[load.name]:.1f} s", flush=True)
        write(server, engine, out, marks)
    if steps:
        for name, lens in shared_steps() + decode_steps():
            short = [min(length, 60) for length in lens[:12]] if rehearse else lens
            output_len = 24 if name.startswith("decode") else 1
            for repetition in range(1 if output_len > 1 else 2):
                await server.step_of(f"{name}:{repetition}", short, output_len)
        marks["steps"] = time.monotonic() - started - sum(marks.values()) + marks["start"]
        print(f"{engine} steps: {marks['steps']:.1f} s", flush=True)
        write(server, engine, out, marks)
    running.shutdown()


def write(server: Server, engine: str, out: Path, marks: dict[str, float]) -> None:
    """Write all that clients have seen so far."""
    content = {
        "engine": engine,
        "seconds": marks,
        "options": dict(OPTIONS),
        "rates": RATES[: ENGINES[engine][1]],
        "loads": [asdict(load) for load in LOADS],
        "requests": [asdict(each) for each in server.seen],
    }
    with gzip.open(out / f"{engine}.json.gz", "wt", compresslevel=3) as stream:
        json.dump(content, stream)


def main() -> None:
    """Measure each engine in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("engines", nargs="+", choices=ENGINES)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--steps", action="store_true", help="single steps, too")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    flags = ["--rehearse"] * given.rehearse + ["--steps"] * given.steps
    if len(given.engines) > 1:
        for engine in given.engines:
            subprocess.run([sys.executable, __file__, str(given.out), engine, *flags], check=False)
        return
    [engine] = given.engines
    os.environ["SPECSIM_RECORD_DIR"] = str((given.out / engine).resolve())
    asyncio.run(measure(engine, given.out, rehearse=given.rehearse, steps=given.steps))


if __name__ == "__main__":
    main()
