"""The tutorials: every cell of every notebook runs, as a reader would run it, and the assertions in it hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebooks import execute, nbformat

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_a_tutorial_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = execute(nbformat.read(path, as_version=4), tmp_path, monkeypatch)
    data = [output["data"] for of_cell in outputs for output in of_cell if "data" in output]
    assert any("<svg" in str(each) or "image/png" in each for each in data), "a tutorial shows a curve"
    assert any("<table" in each.get("text/html", "") for each in data), "and a table"


def test_notebooks_are_kept_without_outputs() -> None:
    """What they print differs from machine to machine; the site runs them as it is built."""
    assert len(TUTORIALS) == 3
    for path in TUTORIALS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
        assert not any(cell["outputs"] or cell["execution_count"] for cell in code), f"clear the outputs of {path.name}"
