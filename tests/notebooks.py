"""Notebooks run as Jupyter runs them, with this interpreter and nothing of the user's settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")


def execute(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Run all cells in ``folder``; the outputs of each code cell. Warnings and prints to stderr are failures."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder / "data"))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    kernel = folder / "data" / "kernels" / "here"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "here", "language": "python"}))
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="here", resources={"metadata": {"path": folder}}
    )
    client.execute()
    outputs = [cell["outputs"] for cell in notebook.cells if cell["cell_type"] == "code"]
    for of_cell in outputs:
        wrong = [each for each in of_cell if each["output_type"] == "error" or each.get("name") == "stderr"]
        assert not wrong, wrong
    return outputs
