"""A recipe of four short runs, and `fedvra reproduce` as a function: what the tests of reproduce share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fedvra.cli import main

SMALL = {"task": "digits", "clients": 20, "cohort": 5, "epochs": 1, "workers": 1, "model": "linear"}
TINY: dict[str, Any] = {
    "title": "Table T",
    "says": "FedVRA is faster.",
    "seeds": 2,
    "rounds": 4,
    "quick": {"seeds": 1, "rounds": 2},
    "targets": [20, 100],
    "common": {name: value for name, value in SMALL.items() if name != "workers"},
    "rows": [
        {"name": "fedavg", "algorithm": "fedavg"},
        {"name": "fedvra", "algorithm": "fedvra", "label": "FedVRA, a = 2", "set": {"gamma": 0.1, "a": 2, "d": "1/p"}},
    ],
    "cases": [{"name": "plain", "title": "Non-IID", "paper": {"fedavg": {"accuracy": [99.0, 0.1], 20: 40, 100: ">4"}}}],
}


def write_recipe(folder: Path, content: Any = TINY, name: str = "tiny") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def fedvra(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["reproduce", *map(str, args)])


def without_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing may be run."""

    def refuse(*args: Any) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr("fedvra.studies.parallel.Processes.start", refuse)


def changed(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}
