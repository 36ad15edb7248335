"""benchmarks/eager.py: it runs, and what is committed is of the networks that it has now."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from benchmark_scripts import FOLDER, benchmark

HERE = Path(FOLDER)


@pytest.fixture
def eager() -> ModuleType:
    return benchmark("eager")


@pytest.mark.parametrize("name", ["mlp, BatchNorm", "words, sparse gradients"])
def test_a_network_is_timed(eager: ModuleType, name: str) -> None:
    (case,) = [case for case in eager.CASES if case.name == name]
    found = eager.measure(case, passes=2)
    assert min(found.plain_seconds, found.eager_seconds, found.chosen_seconds) > 0
    assert found.path == ("eager" if "sparse" in name else "traced")
    assert found.eager_quartiles[0] <= found.eager_ratio <= found.eager_quartiles[1]


def test_the_results_are_of_these_networks(eager: ModuleType) -> None:
    kept = json.loads((HERE / "results" / "eager.json").read_text())
    assert [r["case"] for r in kept["cases"]] == [case.name for case in eager.CASES]
    assert kept["summary"] == eager.summary([eager.Result(**r) for r in kept["cases"]])
