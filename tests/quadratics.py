"""Heterogeneous quadratics, cohorts and step counts that many tests share: small, seeded, no two clients alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """f_i(x) = x'A_i x/2 - b_i'x for N clients, a start, who takes part in each round and how many steps they do."""

    A: Array
    b: Array
    x0: Array
    cohorts: list[list[int]]
    Q: NDArray[np.int64]

    @property
    def clients(self) -> int:
        return len(self.b)

    @property
    def rounds(self) -> int:
        return len(self.cohorts)

    def parts(self) -> tuple[Array, Array, Array, list[list[int]], NDArray[np.int64]]:
        """The first arguments of every function in textbook.py."""
        return self.A, self.b, self.x0, self.cohorts, self.Q


def quadratic(
    N: int = 6, P: int = 5, low: float = 0.5, high: float = 3.0, spread: float = 2.0, seed: int = 0
) -> tuple[Array, Array]:
    """A [N, P, P] with eigenvalues in [low, high], each client in its own basis, and b [N, P] that differ by ``spread``."""
    rng = np.random.default_rng(seed)
    A = np.empty((N, P, P))
    for i in range(N):
        basis, _ = np.linalg.qr(rng.standard_normal((P, P)))
        A[i] = basis @ np.diag(rng.uniform(low, high, P)) @ basis.T
    return (A + A.transpose(0, 2, 1)) / 2, spread * rng.standard_normal((N, P))


def case(
    R: int = 20,
    N: int = 6,
    P: int = 5,
    sizes: tuple[int, ...] = (2, 3),
    full: bool = False,
    same_work: bool = False,
    work: tuple[int, int] = (1, 5),
    empty: tuple[int, ...] = (),
    seed: int = 0,
) -> Case:
    """A case whose cohorts have ``sizes`` in turn and whose clients do work[0]..work[1] steps.

    ``same_work``: all clients of one round do the same number. ``empty``: rounds in which nobody takes part.
    """
    A, b = quadratic(N, P, seed=seed)
    rng = np.random.default_rng(1000 + seed)
    Q = rng.integers(work[0], work[1] + 1, (R, N))
    if same_work:
        Q = np.repeat(Q[:, :1], N, axis=1)
    cohorts = []
    for r in range(R):
        m = N if full else sizes[r % len(sizes)]
        cohorts.append([] if r in empty else sorted(int(i) for i in rng.permutation(N)[:m]))
    return Case(A, b, rng.standard_normal(P), cohorts, Q)


def unequal_weights(N: int, seed: int = 0) -> Array:
    """omega_i that differ by up to a factor of about four and sum to 1."""
    w = np.random.default_rng(2000 + seed).uniform(0.5, 2.0, N)
    return w / w.sum()
