"""Hardware: the sizes in which a GPU can hold the model of a plan, and step times there.

Step times are of a shipped profile, else composed from kernel tables, else of the roofline.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from specsim.core.errors import NotMeasuredError, ProfileError, SpecsimError
from specsim.core.resources import find_resource, resource_names
from specsim.hardware import load_gpu, load_model
from specsim.profile import GPU_MEMORY_UTILIZATION, Profile, load_profile, shipped_to_the_limits
from specsim.profile.from_roofline import RooflineOptions
from specsim.profile.from_tables import HOST_TIMES, TableProfile
from specsim.profile.kernel_tables import TableOptions
from specsim.study.capacity import Hardware
from specsim.study.capacity.choices import roofline_with
from specsim.study.plan.names import config_of
from specsim.study.plan.question import Question

PROFILE_FILE = "profile.yaml"  # file for a profile that is not shipped, beside the experiment
LOOKUPS = ("ngram", "suffix")  # drafters without a model
_SIZES = (1, 2, 4, 8)


class _Split(NamedTuple):
    """How the GPUs of a server divide a model; most ways have kernel tables only."""

    size: int  # of tensor parallelism
    ranks: int
    stages: int
    shares: int  # GPUs that each keep a part of every KV block
    spreads_experts: bool
    kv_dtype: str

    @property
    def is_plain(self) -> bool:
        """Whether such servers have shipped profiles, or may use the roofline."""
        return self[1:] == (1, 1, 1, False, "bfloat16")

    @property
    def suffix(self) -> str:
        """Suffix to the name of a GPU."""
        parts = {"tp": self.size, "pp": self.stages, "dp": self.ranks, "dcp": self.shares}
        return "".join(f"-{short}{count}" for short, count in parts.items() if count > 1)

    @property
    def words(self) -> str:
        """Its difference from a plain server, as the end of a phrase."""
        parts = {
            f" for {self.ranks} data-parallel ranks": self.ranks > 1,
            f" in {self.stages} stages": self.stages > 1,
            f" with KV blocks shared out over {self.shares} GPUs": self.shares > 1,
            " with its experts spread over GPUs": self.spreads_experts,
        }
        return "".join(text for text, holds in parts.items() if holds)


def hardware_of(
    question: Question, gpu: str, left_out: list[str]
) -> Iterator[tuple[Hardware, str]]:
    """Yield a GPU in the wanted size, or in all sizes with profiles; with the profiles' names.

    An 8-bit KV cache is composed; if that is impossible, it counts as 16-bit.
    """
    kv_dtype = question.command.kv_dtype
    if kv_dtype == "auto":
        own = load_model(config_of(question.command.model) or question.model)
        kv_dtype = load_gpu(gpu).kv_dtype(own)
    if kv_dtype == "fp8":
        why_not: list[str] = []
        found = _of_cache(question, gpu, "fp8", why_not)
        if (first := next(found, None)) is not None:
            yield first
            yield from found
            return
        whole = [*_of_cache(question, gpu, "bfloat16", left_out)]
        if whole:  # otherwise the note is about both
            left_out += [f"{each}; its KV cache is counted in 16 bits" for each in why_not]
        yield from whole
        return
    yield from _of_cache(question, gpu, "bfloat16", left_out)


def _of_cache(
    question: Question, gpu: str, kv_dtype: str, left_out: list[str]
) -> Iterator[tuple[Hardware, str]]:
    given, stages = question.command.tensor_parallel_size, question.command.stages
    shares = question.command.shares
    model, ranks, most = question.model, question.ranks, _SIZES[-1]
    fitting = [size for size in _SIZES if size == 1 or size * ranks * stages <= most]
    fitting = [size for size in fitting if size % shares == 0 and _spreads_heads(model, size)]
    sizes = [given] if given else fitting
    splits = [
        _Split(size, ranks, stages, shares, question.spreads_experts(size), kv_dtype)
        for size in sizes
    ]
    ending = f"-{question.weights}" if question.weights else ""
    known = {
        split: name
        for split in splits
        if split.is_plain
        and (name := shipped_to_the_limits(f"{gpu}/{model}{ending}{split.suffix}")) is not None
    }
    for split, name in known.items():
        yield Hardware(gpu + split.suffix, load_profile(name)), name
    dtype = question.weights or load_model(model).quantization
    failed: dict[str, tuple[_Split, SpecsimError]] = {}  # the largest, by reason
    for split in splits:
        if known and split.is_plain:
            continue
        try:
            share = question.command.engine.get("gpu_memory_utilization", GPU_MEMORY_UTILIZATION)
            try:
                profile = _composed(model, gpu, dtype or "bfloat16", split, share)
            except ProfileError:
                if dtype or not split.is_plain:
                    raise
                profile = _roofline(model, gpu, split.size, share)
            yield Hardware(gpu + split.suffix, profile, ranks=ranks), PROFILE_FILE
            failed.clear()  # fewer GPUs would fail alike
        except SpecsimError as error:
            failed[str(error).splitlines()[0]] = split, error
    if failed:  # the reason for most GPUs holds for fewer
        why, (split, last) = failed.popitem()
        label, said = gpu + (split.suffix if failed else ""), f" in {dtype}" if dtype else ""
        no_other = "no roofline" if split.is_plain and not dtype else "none can be composed"
        said += split.words + (" with a KV cache in 8 bits" if kv_dtype == "fp8" else "")
        name = question.command.model if model.endswith(".json") else model
        lacks_gpus = isinstance(last, NotMeasuredError) and last.column == "num_gpus"
        remedy = _fewer_gpus(split) if lacks_gpus else ""
        left_out.append(f"{label}: no profile of {name}{said}, and {no_other}: {why}{remedy}")


def _fewer_gpus(split: _Split) -> str:
    """Return the end of a message: what to ask for if there are no kernels of so many GPUs."""
    flags = {
        "--data-parallel-size": split.ranks,
        "--tensor-parallel-size": split.size,
        "--pipeline-parallel-size": split.stages,
    }
    for flag, most in flags.items():
        if most > 1:
            return f"; plan smaller servers, such as {flag} {most // 2}, or name another GPU"
    return "; name another GPU"


def _spreads_heads(model: str, size: int) -> bool:
    try:
        load_model(model).check_split(size)
    except ValueError:
        return False
    return True


def measured_alike(profile: Profile) -> str:
    """Return text on GPUs with similar names that have a profile of the model."""
    names = resource_names("profiles", f"{profile.gpu}-*/{profile.model}*.yaml")
    alike = dict.fromkeys(name.partition("/")[0] for name in names)
    return f" (there is one for {', '.join(alike)}: --gpus)" if alike else ""


@cache
def _composed(model: str, gpu: str, dtype: str, split: _Split, share: float) -> Profile:
    """Return a profile composed from installed kernel tables, as shipped ones are."""
    options = TableOptions(
        *(model, gpu, _heads(model)),
        tensor_parallel_size=split.size,
        pipeline_parallel_size=split.stages,
        data_parallel_size=split.ranks,
        decode_context_parallel_size=split.shares,
        enable_expert_parallel=split.spreads_experts,
        dtype=dtype,
        kv_dtype=split.kv_dtype,
        gpu_memory_utilization=share,
    )
    return TableProfile.of(options).profile


def _heads(model: str) -> dict[str, str]:
    """Return the shapes of known heads of a model, and its own MTP layers."""
    names = {"eagle3": f"eagle3-{model}", "mtp": f"mtp-{model}"}
    names |= {"mtp": f"{model}-mtp"} if find_resource("profiles", f"{model}-mtp.json") else {}
    heads = {m: h for m, h in names.items() if find_resource("profiles", f"{h}.json") is not None}
    return heads | ({"mtp": model} if load_model(model).mtp_problem is None else {})


def _roofline(model: str, gpu: str, size: int, share: float) -> Profile:
    on_host = {method: {"token_us": 20} for method in LOOKUPS}
    options = RooflineOptions(model, gpu, _heads(model), size, gpu_memory_utilization=share)
    return roofline_with(options, on_host, HOST_TIMES)
