"""A problem with two blocks of your own: one model for all, and a private correction for each.

Every client explains its measurements by coefficients x, common to all and known to be non-negative, plus a deviation y_i
of its own, which never leaves it and is known to be small. That is one class: two gradients and two projections.

    python examples/two_block.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import fedvra as fv


class SharedAndPrivate(fv.TwoBlock):
    """f_i(x, y_i) = ||A_i (x + y_i) - b_i||^2 / 2n + (ridge/2) ||y_i||^2  with  x >= 0  and  ||y_i|| <= 1."""

    ridge, batch = 0.1, 20
    lr_y, steps_y = 0.3, 5

    def __init__(self, A: Tensor, b: Tensor) -> None:
        self.A, self.b = A, b  # [N, n, P], [N, n]

    @property
    def clients(self) -> int:
        return len(self.A)

    def x_start(self) -> Tensor:
        return torch.zeros(self.A.shape[2])

    def y_start(self, client: int) -> Tensor:
        return torch.zeros(self.A.shape[2])

    def cost(self, client: int, x: Tensor, y: Tensor) -> float:
        error = self.A[client] @ (x + y) - self.b[client]
        return float(error.square().mean() / 2 + self.ridge / 2 * y.square().sum())

    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: np.random.Generator | None) -> Tensor:
        n = self.A.shape[1]
        rows = torch.arange(n) if rng is None else torch.from_numpy(rng.choice(n, self.batch, replace=False))
        A, b = self.A[client, rows], self.b[client, rows]
        return A.T @ (A @ (x + y) - b) / len(rows)

    def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: np.random.Generator | None) -> Tensor:
        return self.gradient_x(client, x, y, None) + self.ridge * y

    def project_x(self, x: Tensor) -> Tensor:
        return fv.NonNegative()(x)

    def project_y(self, client: int, y: Tensor) -> Tensor:
        return fv.Ball(1.0)(y)


def main(clients: int = 20, rounds: int = 120) -> dict[str, float]:
    """How far each algorithm is from stationary after the same rounds: G^r, zero at a solution only."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(clients, 40, 8)) * rng.uniform(0.1, 2, size=(clients, 1, 8))  # no two clients alike
    truth = np.maximum(rng.normal(size=8), 0) + 0.5 * rng.normal(size=(clients, 8))
    b = np.einsum("inp,ip->in", A, truth) + 0.1 * rng.normal(size=(clients, 40))
    problem = SharedAndPrivate(torch.tensor(A, dtype=torch.float32), torch.tensor(b, dtype=torch.float32))
    gaps = {}
    for algorithm in (fv.FedVRAU(gamma=1, a=2), fv.FedAvg()):
        history = fv.simulate(
            algorithm, problem=problem, sampler=fv.Uniform(6), work=fv.Steps(20), lr=0.02, rounds=rounds, seed=0,
            observers=[fv.StationarityGap(every=rounds // 3)],
        )  # fmt: skip
        seen = [record["stationarity_gap"] for record in history.metrics if "stationarity_gap" in record]
        print(f"{algorithm.label:10s} gap " + "  ".join(f"{gap:.1e}" for gap in seen))
        gaps[algorithm.label] = seen[-1]
    return gaps


if __name__ == "__main__":
    main()
