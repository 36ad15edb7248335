"""Names from other packages: entry points are found, and nothing is shadowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedvra.core.errors import UsageError
from fedvra.core.registry import Registry

ALGORITHM = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedvra.algorithms import Algorithm
from fedvra.core.rule import Coefficients


@dataclass(frozen=True)
class Still(Algorithm):
    """Nobody moves."""

    speed: float = 0.0
    name: ClassVar[str] = "still"
    label: ClassVar[str] = "Still"
    reference: ClassVar[str] = "none"

    def coefficients(self, cohort, everyone):
        zeros = np.zeros(len(cohort))
        return Coefficients(gamma=zeros, alpha=zeros, w=zeros + self.speed)
'''


def install(folder: Path, entry_points: str) -> dict[str, str]:
    """A distribution, as pip would leave it behind; returns the environment in which it is there."""
    (folder / "their_package.py").write_text(ALGORITHM)
    (folder / "theirs-1.0.dist-info").mkdir()
    (folder / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (folder / "theirs-1.0.dist-info" / "entry_points.txt").write_text(entry_points)
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def fedvra(*words: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedvra", *words]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)


def test_an_algorithm_of_another_package_is_known_to_the_command_line(tmp_path: Path) -> None:
    env = install(tmp_path, "[fedvra.algorithms]\nstill = their_package:Still\n")
    small = ["--rounds", "2", "--workers", "1", "--model", "linear", "--json", "--out", "run"]
    done = fedvra("run", "digits", "--algorithm", "still", *small, env=env, cwd=tmp_path)
    assert json.loads(done.stdout)["label"] == "Still", done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records[0]["test_loss"] == records[1]["test_loss"]


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    env = install(tmp_path, "[fedvra.algorithms]\nfedavg = their_package:Still\n")
    refused = fedvra("algorithms", env=env, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == "Error: the algorithm 'fedavg' is registered twice; choose another name.\n"


def test_the_same_thing_twice_is_no_conflict() -> None:
    registry: Registry[str] = Registry("thing", "fedvra.algorithms", group="fedvra.algorithms")
    assert registry.add("a", "x") is registry.add("a", "x")
    with pytest.raises(UsageError, match="registered twice"):
        registry.add("a", "y")
