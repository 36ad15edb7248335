"""The model to deploy on a federation: the simulator's, kept in the server's books, tested by the nodes, the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.flower import Strategy
from fedvra.flower.protocol import Errand
from fedvra.flower.server_books import Books
from flower_grid import FakeGrid, make_nodes, quadratic

UNEVEN = fv.FedVRA(gamma=[0.5, 0.2, 0.4], a=[3, 2, 1], d=[2, 1, 3])
OPTIONS: dict[str, Any] = {
    "sampler": fv.Uniform(2),
    "work": fv.Steps(np.array([[1, 3, 2]] * 6)),
    "lr": 0.05,
    "weights": [1, 2, 3],
}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


def strategy(folder: Path, algorithm: fv.Algorithm, deploy: str | None, **more: Any) -> Strategy:
    given = {**OPTIONS, "problem": quadratic(), "clients": 3, "folder": folder / "server", "wait": 0, **more}
    return Strategy(algorithm, deploy=deploy, **given)


@pytest.mark.parametrize("deploy", ["mean", "ema:0.7"])
@pytest.mark.parametrize("algorithm", [fv.FedVRA(), UNEVEN, fv.FedNova(), fv.FedDyn(alpha=0.5)], ids=repr)
def test_it_is_the_simulators_also_over_a_restart(algorithm: fv.Algorithm, deploy: str, tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    strategy(tmp_path, algorithm, deploy).start(grid, num_rounds=3, timeout=0.01)
    again = strategy(tmp_path, algorithm, deploy)
    result = again.start(grid, num_rounds=6, timeout=0.01)
    expected = fv.simulate(algorithm, problem=quadratic(), rounds=6, workers=1, deploy=deploy, **OPTIONS)
    np.testing.assert_allclose(again.books.x0, expected.x0, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(again.books.model.x, expected.deployed, rtol=1e-12, atol=1e-14)
    read = Books.read(again.folder)
    assert read is not None
    assert torch.equal(read.model.x, again.books.model.x)
    np.testing.assert_array_equal(result.arrays["x0"].numpy(), again.books.model.x)
    assert not torch.equal(again.books.model.x, again.books.x0)


def test_the_nodes_test_it(tmp_path: Path) -> None:
    made = strategy(tmp_path, fv.FedVRA(), "mean", evaluate_every=2)
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    made.start(grid, num_rounds=2, timeout=0.01)
    asked = [order for order in grid.sent if order.errand == Errand.EVALUATE]
    assert asked
    assert all(torch.equal(order.arrays["x0"], made.books.model.x) for order in asked)


def test_books_that_know_of_no_such_model_go_on(tmp_path: Path) -> None:
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    strategy(tmp_path, fv.FedVRA(), "x0").start(grid, num_rounds=2, timeout=0.01)
    later = strategy(tmp_path, fv.FedVRA(), "mean")
    later.start(grid, num_rounds=3, timeout=0.01)
    assert later.books.deployed is not None
