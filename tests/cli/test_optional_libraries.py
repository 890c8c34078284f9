"""Libraries that only some commands need: without them, one line says what to install."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import Run, tiny_config


@pytest.fixture
def run_folder(cli: Run, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_config()))
    assert cli("run", path, "--out", tmp_path / "one")[0] == 0
    return tmp_path / "one"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a library as good as not installed."""

    def remove(library: str) -> None:
        for name in [*sys.modules]:
            if name.partition(".")[0] == library or name.startswith("specsim.show.charts"):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)

    return remove


@pytest.mark.parametrize(
    ("args", "source"),
    [
        (("timeline", "one"), "timeline"),
        (("plot", "one"), "plot"),
        (("breakdown", "one", "--plot", "b.png"), "--plot"),
        (("profile", "show", "h100/llama-3.1-8b", "--plot", "p.png"), "--plot"),
    ],
)
@pytest.mark.usefixtures("run_folder")
def test_pictures_need_their_library(
    args: tuple[str, ...], source: str, cli: Run, without: Callable[[str], None], tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    without("vl_convert")
    install = "vl_convert is not installed here; install it: pip install 'llm-specsim[plots]'"
    assert cli(*args) == (2, "", f"error: {source}: {install}\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_results_and_the_page_do_without_pictures(
    run_folder: Path, cli: Run, without: Callable[[str], None]
) -> None:
    without("vl_convert")
    experiment = run_folder.with_name("tiny.yaml")
    args = ("--policies", "static:k=1", "--replications", 1, "--workers", 1, "--out", "cmp")
    code, out, err = cli("compare", experiment, *args)
    assert code == 0
    assert "plot.png is left out: vl_convert is not installed here" in err
    assert "results: cmp (comparison.json, a folder per policy)" in out
    assert {path.name for path in Path("cmp").iterdir()} == {"comparison.json", "off", "static-k=1"}
    assert cli("breakdown", run_folder)[0] == 0
    assert cli("report", "cmp")[0] == 0
    assert Path("cmp/report.html").stat().st_size > 5e5


def test_observe_needs_aiohttp(run_folder: Path, cli: Run, without: Callable[[str], None]) -> None:
    without("aiohttp")
    args = ("--url", "http://127.0.0.1:1", "--workload", run_folder.with_name("tiny.yaml"))
    install = "aiohttp is not installed here; install it: pip install 'llm-specsim[observe]'"
    assert cli("observe", *args, "--out", "new") == (2, "", f"error: observe: {install}\n")
    assert not Path("new").exists()


def test_serve_needs_aiohttp(run_folder: Path, cli: Run, without: Callable[[str], None]) -> None:
    without("aiohttp")
    install = "aiohttp is not installed here; install it: pip install 'llm-specsim[serve]'"
    assert cli("serve", run_folder.with_name("tiny.yaml")) == (2, "", f"error: serve: {install}\n")
