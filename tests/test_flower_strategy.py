"""The strategy against clients in memory: equal to the simulator, and exact under every fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedvra as fv
from fedvra.flower import Strategy
from fedvra.flower.protocol import Errand
from flower_grid import FakeGrid, make_nodes, quadratic

ETA, ROUNDS = 0.05, 6


def make_strategy(folder: Path, algorithm: fv.Algorithm | None = None, **options: Any) -> Strategy:
    given: dict[str, Any] = {
        "problem": quadratic(),
        "clients": 3,
        "sampler": fv.Full(),
        "work": fv.Steps(3),
        "lr": ETA,
        "folder": folder / "server",
        "wait": 0,
        **options,
    }
    return Strategy(algorithm or fv.FedVRA(gamma=0.5, a=2), **given)


def run(strategy: Strategy, grid: FakeGrid, rounds: int = ROUNDS, timeout: float = 0.01) -> None:
    strategy.start(grid, num_rounds=rounds, timeout=timeout)


ALGORITHMS = [
    fv.FedAvg(),
    fv.FedProx(mu=0.1),
    fv.FedNova(),
    fv.Scaffold(),
    fv.VRLSGD(),
    fv.FedADMM(gamma=0.5),
    fv.FedPD(gamma=0.5),
    fv.FedDyn(alpha=0.5),
    fv.FedVRA(gamma=0.5, a=2),
    fv.FedVRAU(gamma=0.5, a=2),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
def test_every_algorithm_gives_the_simulators_x0(algorithm: fv.Algorithm, tmp_path: Path) -> None:
    sampler = fv.Full() if algorithm.everyone_takes_part else fv.Uniform(2)
    options = {"sampler": sampler, "work": fv.Steps(3), "lr": ETA, "weights": [1, 2, 3]}
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    strategy = make_strategy(tmp_path, algorithm, **options)
    run(strategy, grid)
    expected = fv.simulate(algorithm, problem=quadratic(), rounds=ROUNDS, workers=1, **options)
    np.testing.assert_allclose(strategy.books.x0, expected.x0, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(strategy.books.lam, expected.lam, rtol=1e-12, atol=1e-14)
    assert strategy.audit(grid).relative < 1e-12
    assert strategy.audit(grid).missing == {}


FAULTS = ["unsent", "silent", "raises", "late", "twice"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("algorithm", [fv.FedVRA(gamma=0.5, a=2), fv.Scaffold()], ids=lambda a: a.name)
def test_a_fault_leaves_the_duals_exact(fault: str, algorithm: fv.Algorithm, tmp_path: Path) -> None:
    """Client 1 fails in rounds 2 and 3; without the protocol the gap would be there for good (see test_naive)."""
    grid = FakeGrid(make_nodes(quadratic(), tmp_path))
    grid.fault = lambda o: fault if o.errand == Errand.TRAIN and o.client == 1 and o.round in (1, 2) else ""
    strategy = make_strategy(tmp_path, algorithm)
    run(strategy, grid)
    lost = [] if fault == "twice" else [2, 3]
    assert [record["round"] for record in strategy.records if 1 in record["lost"]] == lost
    assert strategy.records[-1]["counted"] == [0, 1, 2]
    assert strategy.books.lam.norm() > 0.01
    assert strategy.audit(grid).relative < 1e-12
