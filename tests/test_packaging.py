"""What is given out: an sdist and a wheel that pass their check, and a wheel that works outside the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import fedvra
from tiny_recipe import write_recipe

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {PROJECT["version"], fedvra.__version__, str(citation["version"])} == {fedvra.__version__}
    assert citation["preferred-citation"]["doi"] in PROJECT["urls"]["Proceedings"]


def test_the_extra_all_is_every_extra_for_users() -> None:
    extras = PROJECT["optional-dependencies"]
    listed = re.search(r"\[(.*)\]", extras["all"][0])
    assert listed is not None
    assert set(listed[1].split(",")) == set(extras) - {"all", "docs", "test"}


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    pytest.importorskip("build")
    pytest.importorskip("twine")
    dist, site, elsewhere = (tmp_path / name for name in ("dist", "site", "elsewhere"))
    elsewhere.mkdir()
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT, cwd=tmp_path)
    files = sorted(dist.iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=tmp_path)
    with zipfile.ZipFile(files[0]) as wheel:
        names = wheel.namelist()
    assert "fedvra/recipes/table3.yaml" in names
    assert "fedvra/show/assets/page.html" in names
    # Its dependencies are those of this environment; the package itself comes from the wheel alone.
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, files[0], cwd=tmp_path)
    where = run(sys.executable, "-c", "import fedvra; print(fedvra.__file__)", cwd=elsewhere, PYTHONPATH=str(site))
    assert Path(where.strip()).is_relative_to(site)
    said = run(sys.executable, "-m", "fedvra", "demo", "--seeds", "0", cwd=elsewhere, PYTHONPATH=str(site))
    assert "FedVRA" in said
    assert (elsewhere / "runs" / "demo" / "report.html").is_file()
    recipe = write_recipe(elsewhere)
    command = ["reproduce", recipe, "--quick", "--json", "--out", elsewhere / "results"]
    assert "Table T" in run(sys.executable, "-m", "fedvra", *command, cwd=elsewhere, PYTHONPATH=str(site))
    assert (elsewhere / "results" / "tiny-quick.md").is_file()
    load = "from fedvra.reproduce.recipe import load, names; print([load(name).title for name in names()])"
    assert "Table 3" in run(sys.executable, "-c", load, cwd=elsewhere, PYTHONPATH=str(site))
