"""Classes of the user's: what is wrong with one is one line that names it."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_config

from specsim.core.errors import ConfigError, PluginError, ProfileError, SpecsimError
from specsim.profile import Profile, load_profile
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

_NUMBERS = count()
Run = Callable[..., Summary]

BASES = {
    "policy": ("policies", "Policy", "draft_lens(self, batch, memory)", "1"),
    "routing": ("routing", "Router", "choose(self, prompt, replicas, memory)", "0"),
    "acceptance": (
        "acceptance",
        "Acceptance",
        "survival_lens(self, requests, luck, max_draft_len)",
        "[bytes(request.output_len) for request in requests]",
    ),
    "autoscaling": ("autoscaling", "Autoscaler", "enough(self, pool, memory)", "1.0"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Simulate with a class of a family whose first method is this, beside others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def simulated(family: str, method: str | None = None, *others: str) -> Summary:
        room, base, signature, answer = BASES[family]
        name = f"users_{next(_NUMBERS)}"
        methods = [method or f"def {signature}: return {answer}", *others]
        body = "".join(f"    {line}\n" for line in methods)
        text = (
            f"from typing import ClassVar\nfrom specsim.{room} import {base}\nclass Mine({base}):\n"
        )
        (tmp_path / f"{name}.py").write_text(f"{text}    kind: str = 'mine'\n{body}")
        config = tiny_config(replicas=2)
        fields: dict[str, Any] = {"kind": f"{name}:Mine"}
        if family == "autoscaling":
            del config["replicas"]
            fields |= {"max_replicas": 2, "interval_s": 0.01}
        return Summary(simulate(Experiment.parse({**config, family: fields}, "e.yaml")))

    return simulated


@pytest.mark.parametrize("family", BASES)
def test_a_right_class_runs(family: str, run: Run) -> None:
    assert run(family).data["completed"] == 30


def test_a_whole_number_may_be_one_of_numpys(run: Run) -> None:
    longest = "def max_draft_len(self, most): import numpy as np; return np.int64(min(most, 2))"
    assert run("policy", None, longest).tables.steps["asked_draft_len"].max() <= 2
    started = "def num_started(self, n): import numpy as np; return np.int64(min(n, 1))"
    assert run("autoscaling", None, started).run.scalings[None].counts[0].up == 1


@pytest.mark.parametrize("family", BASES)
def test_a_method_that_takes_too_little_is_named(family: str, run: Run) -> None:
    name, _, parameters = BASES[family][2].partition("(")
    with pytest.raises(
        ConfigError, match=rf"{name} must be a method that takes \({parameters[:-1]}"
    ):
        run(family, f"def {name}(self): return 1")


@pytest.mark.parametrize("family", BASES)
def test_a_class_without_its_method_is_named(family: str, run: Run) -> None:
    name = BASES[family][2].partition("(")[0]
    with pytest.raises(ConfigError, match=f"has no method {name}; its '{name}s' may be meant"):
        run(family, f"def {name}s(self): return 1")


@pytest.mark.parametrize(
    ("family", "method", "message"),
    [
        *(("routing", f"def choose(self, *given): return {answer}", "a whole number from 0 to 1")
          for answer in ("2", "-1", "None", "1.0", "True", "[]")),
        *(("acceptance", f"def survival_lens(self, *given): return {answer}", "a list of bytes")
          for answer in ("1", "[]", "[b'x']", "iter([1])", "'a'", "[1]")),
        *(("autoscaling", f"def enough(self, *given): return {answer}", "a finite number")
          for answer in ("None", "'a'", "float('nan')", "[1]", "True")),
        *(("policy", f"def draft_lens(self, *given): return {answer}", "draft_lens returned")
          for answer in ("None", "'a'", "-1")),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_named(family: str, method: str, message: str, run: Run) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        run(family, method)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "other", "message"),
    [
        ("policy", "def max_draft_len(self, most): return 'a'", "max_draft_len returned 'a'"),
        ("policy", "def max_draft_len(self, most): return -1", "max_draft_len returned -1"),
        ("policy", "def model_dump(self): return {}", "model_dump must be a method"),
        ("policy", "def is_dynamic(self): return True", "is_dynamic must be a property"),
        ("policy", "def __init__(self, x): pass", "cannot be made: TypeError"),
        ("acceptance", "def of_drafter(self, name): return 1", "of_drafter returned 1"),
        ("acceptance", "of_drafter = 1; kind: str = 'x'", "must be a method|non-annotated"),
        ("autoscaling", "def num_started(self, n): return 'a'", "num_started returned 'a'"),
        ("autoscaling", "def num_started(self, n): return 99", "num_started returned 99"),
        ("autoscaling", "def num_started(self, n): return True", "num_started returned True"),
        ("routing", "def index_delay(self): return 1", "index_delay must be a property"),
        ("routing", "def start(*given): return nothing", "NameError: .*, in start"),
    ],
)
def test_what_else_is_wrong_is_named(family: str, other: str, message: str, run: Run) -> None:
    with pytest.raises(SpecsimError, match=message):
        run(family, None, other)


def test_an_acceptance_model_with_luck_of_its_own_is_named(run: Run) -> None:
    drawn = "[__import__('os').urandom(each.output_len) for each in requests]"
    with pytest.raises(PluginError, match=r"the same whenever it is asked, .* draw from `luck`"):
        run("acceptance", f"def survival_lens(self, requests, *given): return {drawn}")


_COUNTED = "counted: ClassVar = __import__('itertools').count()"
_OWN_LUCK = {
    "unseeded": "__import__('random').random()",
    "numpy's": "__import__('numpy').random.random()",
    "a_count": "next(self.counted) / 2",
}


@pytest.mark.parametrize("luck", _OWN_LUCK)
@pytest.mark.parametrize(
    ("family", "method", "others"),
    [
        ("routing", "def choose(self, *given): return int(2 * {}) % 2", ()),
        ("routing", "def choose(self, *given): return int(2 * {}) % 2",
         ("looks_at_replicas: ClassVar[bool] = False",)),
        ("autoscaling", "def enough(self, *given): return 1 + {}", ()),
    ],
)  # fmt: skip
def test_whoever_draws_luck_of_its_own_is_named(
    luck: str, family: str, method: str, others: tuple[str, ...], run: Run
) -> None:
    with pytest.raises(PluginError, match=" again, as when it was first asked"):
        run(family, method.format(_OWN_LUCK[luck]), _COUNTED, *others)


@pytest.mark.parametrize("others", [(), ("looks_at_replicas: ClassVar[bool] = False",)])
def test_a_router_with_a_generator_of_its_seed_is_repeated(
    others: tuple[str, ...], run: Run
) -> None:
    start = "def start(self, seed): return __import__('numpy').random.default_rng(seed)"
    choose = "def choose(self, prompt, replicas, memory): return memory.integers(2)"
    runs = [run("routing", choose, start, *others).tables.requests.tobytes() for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("def times(self, rng, count): return [0.0] * count", "that takes .self, rng, count, dur"),
        ("def gaps(self): return []", "has no method times; write it"),
        ("def time(self): return []", "has no method times; its 'time' may be meant"),
    ],
)
def test_methods_of_a_base_inside_a_family_are_looked_at(
    method: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"users_{next(_NUMBERS)}"
    text = "from specsim.workload import OpenArrivals\nclass Mine(OpenArrivals):\n"
    (tmp_path / f"{name}.py").write_text(f"{text}    kind: str = 'mine'\n    {method}\n")
    config = tiny_config()
    config["workload"]["arrivals"] = f"{name}:Mine"
    with pytest.raises(ConfigError, match=message):
        Experiment.parse(config, "e.yaml")


def test_a_drafter_has_one_name_however_its_class_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    text = (
        "from typing import Literal\nfrom specsim.proposers import Proposer\n\n"
        "class Hydra(Proposer):\n    method: Literal['hydra'] = 'hydra'\n"
    )
    first, second = f"users_{next(_NUMBERS)}", f"users_{next(_NUMBERS)}"
    for file in (f"{first}.py", f"lab/{second}.py"):
        Path(file).write_text(text)
    profile = load_profile("h100/llama-3.1-8b")
    profile = profile.model_copy(update={"drafts": {"hydra": profile.drafts["eagle3"]}})
    runs = []
    for method in (f"{first}:Hydra", f"lab/{second}.py:Hydra"):
        config = tiny_config(policy="random")
        config["engine"]["speculative_config"]["method"] = method
        runs.append(simulate(Experiment.parse(config, "e.yaml"), profile=profile).replicas[0])
    assert runs[0].steps["accepted_tokens"].sum()
    assert runs[0].steps.tobytes() == runs[1].steps.tobytes()


def test_what_a_drafter_of_ones_own_costs_goes_into_the_profile_as_its_error_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = f"users_{next(_NUMBERS)}"
    Path(f"{module}.py").write_text(
        "from typing import Literal\nfrom specsim.proposers import Proposer\n\n"
        "class Hydra(Proposer):\n    method: Literal['hydra'] = 'hydra'\n"
    )
    config = tiny_config(policy="random")
    config["engine"]["speculative_config"]["method"] = f"{module}:Hydra"
    profile = load_profile("h100/llama-3.1-8b")
    with pytest.raises(ProfileError, match=r"copy of it with `hydra: (\{token_us: 20\})`") as error:
        simulate(Experiment.parse(config, "e.yaml"), profile=profile)
    assert "profile build" not in str(error.value)
    fields = profile.model_dump(mode="json", exclude_none=True)
    fields["drafts"]["hydra"] = {"token_us": 20}
    own = Profile.model_validate(fields)
    found = simulate(Experiment.parse(config, "e.yaml"), profile=own).replicas[0]
    assert found.steps["draft_time"].sum() > 0
