"""A task in a Python file, by its place, wherever the command line takes a task."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedvra.cli import main
from fedvra.runs.files import RunFolder
from fedvra.tasks.own import find_task

TASK = """
import numpy as np
import torch

import fedvra as fv
from layers import head

rng = np.random.default_rng(0)
inputs = rng.normal(size=(300, 4)).astype(np.float32)
labels = (inputs[:, 0] > inputs[:, 1]).astype(int)


def make(options):
    "Which of two numbers is greater."
    data = fv.split((inputs, labels), options.split, options.clients, options.seed, test=(inputs[:60], labels[:60]))
    return fv.Supervised(head, weight_decay=options.weight_decay), data


task = fv.Task("which is greater", make, {"clients": 6, "cohort": 3, "rounds": 4, "steps": 2, "lr": 0.3, "workers": 1})
"""
LAYERS = "import torch\n\n\ndef head():\n    return torch.nn.Linear(4, 2)\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder one is in, with a file and a package of one's own."""
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mine.py").write_text(TASK.replace("from layers", "from own_package.layers"))
    study = tmp_path / "study"
    study.mkdir()
    (study / "mine.py").write_text(TASK)
    for folder in (study, package):
        (folder / "layers.py").write_text(LAYERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("layers", "own_package")]:
        del sys.modules[name]


def fedvra(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def ok(*args: str) -> Result:
    result = fedvra(*args)
    assert result.exit_code == 0, result.output
    return result


def test_a_file_and_a_module_give_the_same_run(place: Path) -> None:
    ok("run", "study/mine.py:task", "--split", "iid")
    ok("run", "own_package.mine:task", "--split", "iid", "--out", "runs/again")
    first, again = RunFolder("runs/mine-fedvra-seed0"), RunFolder("runs/again")
    assert first.config().task == "study/mine.py:task"
    assert first.config().clients == 6
    accuracies = [[record["test_loss"] for record in folder.metrics()] for folder in (first, again)]
    assert accuracies[0] == accuracies[1]
    assert len(accuracies[0]) == 4
    assert (first.path / "report.html").is_file()


def test_every_verb_takes_it(place: Path) -> None:
    ok("compare", "study/mine.py:task", "--algorithms", "fedvra,fedavg", "--seeds", "0-1")
    assert len(json.loads(Path("runs/compare-mine/comparison.json").read_text())["runs"]) == 4
    ok("tune", "study/mine.py:task", "--over", "lr=0.1,0.3")
    assert Path("runs/tune-mine-fedvra/tuning.json").is_file()
    said = json.loads(ok("check", "study/mine.py:task", "--json").output)
    assert said["covered"] in (True, False)
    ok("run", "study/mine.py:task", "--out", "runs/short")
    ok("resume", "runs/short", "--rounds", "6")
    assert RunFolder("runs/short").summary().rounds == 6
    ok("run", "--config", "runs/short/config.yaml", "--seed", "1", "--out", "runs/other")
    ok("report", "runs")


def test_a_function_will_do_and_brings_its_algorithm(place: Path) -> None:
    Path("study/mine.py").write_text(
        TASK
        + """
from dataclasses import dataclass

@fv.register
@dataclass(frozen=True)
class Mine(fv.FedAvg):
    name = "mine-of-a-file"
    label = "Mine"
"""
    )
    small = ["--clients", "5", "--cohort", "2", "--rounds", "1", "--workers", "1", "--algorithm", "mine-of-a-file"]
    # in a process of its own: what it registers stays registered
    command = [sys.executable, "-m", "fedvra", "run", "study/mine.py:make", *small, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["label"], said["folder"]) == ("Mine", "runs/mine-make-mine-of-a-file-seed0")
    assert find_task("study/mine.py:make").description == "Which of two numbers is greater."


def test_a_file_that_changed_is_read_again(place: Path) -> None:
    assert find_task("study/mine.py:task").description == "which is greater"
    changed = Path("study/mine.py")
    changed.write_text(TASK.replace("which is greater", "another"))
    os.utime(changed, ns=(1, 1))
    assert find_task("study/mine.py:task").description == "another"


REFUSED = {
    "study/mine.py": "say which task of study/mine.py is meant: study/mine.py:NAME",
    "study/other.py:task": "there is no file study/other.py",
    "study/mine.py:tusk": "tusk is not there; it must be an fv.Task, or a function .* (it has make, task)",
    "study/mine.py:inputs": "inputs is of type ndarray",
    "own_package.yours:task": "there is no module own_package.yours",
    "nowhere.mine:task": "there is no module nowhere",
    ":task": "a task of your own is FILE.py:NAME or MODULE:NAME",
    "bad.py:broken": "the task bad.py:broken failed: ZeroDivisionError: division by zero in line 5 of",
    "bad.py:wrong": r"the task bad.py:wrong must return a problem .* got \(int, int\)",
    "bad.py:fewer": "the task bad.py:fewer has 3 clients and the options say 100: partition its data among options.clients",
    "worse.py:task": "worse.py cannot be read: SyntaxError: .* in line 1 of",
    "worst.py:task": "worst.py cannot be read: NameError: name 'nobody' is not defined in line 2 of",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_said_in_a_sentence(name: str, place: Path) -> None:
    Path("bad.py").write_text(
        "import fedvra as fv, torch, numpy as np\n\n\ndef broken(options):\n    return 1 / 0\n\n\n"
        "def wrong(options):\n    return 1, 2\n\n\ndef fewer(options):\n"
        "    return fv.Quadratic(torch.ones(3, 1, 1), torch.ones(3, 1)), None\n"
    )
    Path("worse.py").write_text("def task(:\n")
    Path("worst.py").write_text("\nnobody.does()\n")
    result = fedvra("run", name, "--cohort", "2")
    assert result.exit_code == 2, result.output
    assert len(result.output.strip().splitlines()) == 1
    assert re.search(REFUSED[name].replace("(it has make, task)", r"\(it has make, task\)"), result.output), (
        result.output
    )
    assert not Path("runs").exists()
