"""Client state: where it is kept, in which precision, and how far lam is from the mean of the duals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedvra as fv
from crashes import outcome
from fedvra.algorithms import REGISTRY
from fedvra.core.errors import UsageError
from fedvra.runs.files import RunFolder
from fedvra.runs.history import dual_drift
from fedvra.state.client_store import MemoryBudget
from fedvra.studies.execution import execute
from small_run import small

pytestmark = pytest.mark.usefixtures("no_picture")


def test_state_on_disk_gives_the_same_numbers(whole: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "state"
    execute(small(state_memory="0MB", state_folder=str(elsewhere)), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)
    assert elsewhere.is_dir()  # it was used, and its files have no names
    assert list(elsewhere.iterdir()) == []


def test_a_state_folder_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="name another with --state-folder"):
        execute(small(state_folder=str(tmp_path / "file" / "state")), tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_bfloat16_state_reports_its_drift(whole: Path, tmp_path: Path) -> None:
    exact = RunFolder(whole).summary().state_drift
    rounded = execute(small(state_dtype="bfloat16"), tmp_path / "run").state_drift
    assert exact is not None
    assert rounded is not None
    assert exact < 1e-6 < 1e-4 < rounded
    assert RunFolder(tmp_path / "run").summary().state_drift == rounded


def quadratic(**options: Any) -> fv.History:
    rng = np.random.default_rng(0)
    A = torch.diag_embed(torch.tensor(rng.uniform(0.5, 2, size=(8, 5))))
    given: dict[str, Any] = {
        "problem": fv.Quadratic(A, torch.tensor(rng.normal(size=(8, 5)))),
        "sampler": fv.Uniform(3), "work": fv.Steps(2), "lr": 0.1, "rounds": 20, "workers": 1,
    }  # fmt: skip
    return fv.simulate(fv.FedVRA(gamma=0.2, a=2), **{**given, **options})


def test_the_same_from_python(tmp_path: Path) -> None:
    plain = quadratic()
    on_disk = quadratic(memory_limit=0, state_folder=tmp_path / "state")
    rounded = quadratic(state_dtype=torch.bfloat16)
    assert torch.equal(plain.x0, on_disk.x0)
    assert (tmp_path / "state").is_dir()
    assert plain.state_drift() < 1e-14
    assert 1e-6 < rounded.state_drift() < 0.1
    assert rounded.duals[next(iter(rounded.duals))].dtype == torch.bfloat16
    by_hand = plain.lam - sum(plain.omega[i] * row.double() for i, row in rounded.duals.items())
    assert dual_drift(plain.lam, rounded.duals.items(), plain.omega) == pytest.approx(
        float(torch.as_tensor(by_hand).norm())
    )


def test_state_options_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="state_dtype must be a floating-point dtype"):
        quadratic(state_dtype=torch.int32)
    with pytest.raises(UsageError, match="must be at least 0 bytes"):
        quadratic(memory_limit=-1)


@pytest.mark.parametrize("name", REGISTRY.names())
def test_no_algorithm_drifts(name: str) -> None:
    algorithm = REGISTRY.get(name)
    options = {"sampler": fv.Full()} if algorithm.everyone_takes_part else {}
    rng = np.random.default_rng(1)
    problem = fv.Quadratic(torch.eye(4, dtype=torch.float64).repeat(6, 1, 1), torch.tensor(rng.normal(size=(6, 4))))
    weights = [1, 2, 3, 4, 5, 6]
    given: dict[str, Any] = {"sampler": fv.Uniform(2), "work": fv.Steps(2), "lr": 0.1, "rounds": 9, **options}
    assert fv.simulate(algorithm(), problem=problem, weights=weights, workers=1, **given).state_drift() < 1e-13


def test_the_default_budget_is_half_of_what_is_free() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = MemoryBudget.half_of_what_is_free().limit
    assert limit is not None
    assert 0 < limit <= total // 2
