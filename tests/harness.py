"""How the mathematical tests call the library: a case of quadratics.py in, float64 arrays out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import fedvra as fv
from quadratics import Array, Case

TOLERANCE = 1e-10


def simulate(algorithm: fv.Algorithm, c: Case, eta: Any = 0.05, **options: Any) -> fv.History:
    """Run ``algorithm`` on the case, with its cohorts, steps and start unless ``options`` say otherwise."""
    given = {
        "problem": fv.Quadratic(c.A, c.b),
        "sampler": fv.Replay(c.cohorts),
        "work": fv.Steps(c.Q),
        "lr": eta,
        "rounds": c.rounds,
        "x_init": c.x0,
        "seed": 0,
        "keep": "x0",
        "workers": 1,
    }
    return fv.simulate(algorithm, **{**given, **options})


def trajectory(algorithm: fv.Algorithm, c: Case, eta: Any = 0.05, **options: Any) -> Array:
    """x0 after each round, [R, P]."""
    return np.asarray(simulate(algorithm, c, eta, **options).trajectory)


def duals(history: fv.History, clients: int) -> Array:
    """lam_i of every client, [N, P]; those who never took part have zero."""
    P = len(history.x0)
    return np.stack([np.asarray(history.duals.get(i, np.zeros(P))) for i in range(clients)])


def deviation(left: ArrayLike, right: ArrayLike) -> float:
    """Greatest absolute difference; refuses float32 and shapes that would only broadcast."""
    left, right = np.asarray(left), np.asarray(right)
    assert left.dtype == right.dtype == np.float64
    assert left.shape == right.shape
    return float(np.abs(left - right).max())
