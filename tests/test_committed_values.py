"""Every kind of run leads to the numbers that were committed (``scripts/same_bits.py --write tests/values.json``)."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from bits.cases import cases
from bits.run import numbers
from fedvra.core.threads import one_thread

VALUES = json.loads((Path(__file__).parent / "values.json").read_text())
CASES = [case for case in cases() if case.dtype == "float64"]
KINDS = {kind: list(group) for kind, group in groupby(CASES, lambda case: case.name.split(" | ")[0])}
PATHS = {"block": "block", "traced": "traced", "eager": "eager", "pictures": "traced", "pictures, eager": "eager"}


def test_every_run_has_its_numbers() -> None:
    assert [case.name for case in CASES] == list(VALUES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_committed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    with one_thread():
        for case in KINDS[kind]:
            np.testing.assert_allclose(numbers(case.run()), VALUES[case.name], rtol=1e-9, atol=1e-12, err_msg=case.name)


@pytest.mark.parametrize("kind", PATHS)
def test_the_path_is_the_one_meant(kind: str) -> None:
    history = KINDS[kind][0].run().history
    assert history is not None
    assert history.path.name == PATHS[kind]
