"""benchmarks/adaptive_rivals.py against loops of their own, written from the papers, on quadratics in float64."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch

import fedvra as fv
from benchmark_scripts import benchmark
from fedvra.engines.federation import Federation
from harness import TOLERANCE, deviation
from quadratics import Array, Case, case
from textbook import gradient

ETA = 0.05


@pytest.fixture
def study() -> ModuleType:
    return benchmark("adaptive")


def played(study: ModuleType, name: str, c: Case) -> Array:
    """x0 after each round, as the study plays a rival."""
    seen = []

    def note(federation: Federation) -> float:
        seen.append(federation.state.x0.numpy().copy())
        return 0.0

    costs, draws, work = fv.Quadratic(c.A, c.b), fv.Replay(c.cohorts), fv.Steps(c.Q)
    start = torch.tensor(c.x0)
    experiment = fv.Experiment(fv.FedAvg(), costs, draws, work, lr=ETA, seed=0, eval_every=0, x_init=start)
    study.play(experiment, study.Trial("", c.rounds, (1.0,), ()), note, 1.0, False, study.OWN[name]())
    return np.stack(seen[1::2])  # the mean of the clients' models comes first


def test_fedexp(study: ModuleType) -> None:
    c = case(R=20)  # clients differ in their work
    x, found = c.x0.copy(), []
    for r, S in enumerate(c.cohorts):
        moves = []
        for i in S:
            w = x.copy()
            for _ in range(c.Q[r][i]):
                w = w - ETA * gradient(c.A, c.b, i, w)
            moves.append(w - x)
        mean = np.mean(moves, axis=0)
        squares = np.sum(np.square(moves))
        x = x + max(1.0, squares / (2 * len(S) * (mean @ mean + 1e-3))) * mean
        found.append(x)
    assert deviation(played(study, "fedexp", c), np.stack(found)) < TOLERANCE


def test_fedadmm_insa(study: ModuleType) -> None:
    c = case(R=60)
    N = c.clients
    x, beta, lam = c.x0.copy(), np.full(N, 0.1), np.zeros((N, len(c.x0)))
    last, found, went = np.tile(c.x0, (N, 1)), [], set()
    for r, S in enumerate(c.cohorts):
        used, new = beta.copy(), np.tile(x, (N, 1))
        for i in S:
            u = x.copy()
            for _ in range(c.Q[r][i]):
                u = u - ETA * (gradient(c.A, c.b, i, u) - lam[i] + used[i] * (u - x))
            lam[i] = lam[i] - used[i] * (u - x)
            primal, dual = np.linalg.norm(u - x), used[i] * np.linalg.norm(u - last[i])
            if 5 * dual < primal:
                beta[i] = 2 * beta[i]
                went.add("up")
            elif 5 * primal < dual:
                beta[i] = beta[i] / 2
                went.add("down")
            last[i] = new[i] = u
        x = np.sum(used[:, None] * new - lam, axis=0) / np.sum(used)  # absent clients count as at x0
        found.append(x)
    assert went == {"up", "down"}
    assert deviation(played(study, "fedadmm-insa", c), np.stack(found)) < TOLERANCE
