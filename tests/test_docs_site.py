"""The site of the documentation: it builds without a warning, and every public name has its place in the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedvra as fv

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for needed in ("sphinx", "furo", "myst_nb"):
        pytest.importorskip(needed)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "trees"]
    command += ["-D", "nb_execution_mode=off"]  # tests/test_tutorials.py runs the notebooks
    done = subprocess.run([*command, ROOT / "docs", tmp_path / "html"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reference = "".join(page.read_text() for page in (tmp_path / "html" / "api").glob("*.html"))
    for name in fv.__all__:
        assert f"fv.{name}" in reference
