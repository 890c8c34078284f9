"""The notebooks run, quickly, and to the outputs that are stored with them."""

import asyncio
import os
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LIMIT = 600.0  # seconds for a cell: it hangs, however busy the machine is


def test_there_are_notebooks() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04"]


def _texts(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what the cells of a notebook printed or showed, but for pictures."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("data", {}) for output in outputs]
    tables = [data["text/plain"] for data in shown if data and "image/png" not in data]
    return [output.text for output in outputs if output.get("name") == "stdout"] + tables


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert any(cell.get("outputs") for cell in notebook.cells)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    notebook = nbformat.read(path, as_version=4)
    stored = _texts(notebook)
    client = NotebookClient(
        notebook, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": FOLDER}}
    )
    asyncio.run(client.async_execute())
    texts = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [text for text in texts if text.get("name") == "stderr"]
    assert any("image/png" in text.get("data", {}) or text.get("text") for text in texts)
    assert _texts(notebook) == stored
