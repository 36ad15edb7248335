"""A problem with two blocks whose solution linear algebra knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.optimize import lsq_linear
from torch import Tensor

import fedvra as fv

N, P, W = 5, 4, 3


class Boxed(fv.TwoBlock):
    """f_i(x, y_i) = ||A_i x + B_i y_i - c_i||^2/2 with x and y_i in boxes: convex, and solved exactly by linear algebra.

    y_i of client i has W + i%2 numbers: rows of unequal width share one store.
    """

    lr_y, steps_y = 0.05, 3

    def __init__(self, seed: int = 0, strong: bool = True) -> None:
        rng = np.random.default_rng(seed)
        rows = 9 if strong else 3
        self.A = [torch.tensor(rng.normal(size=(rows, P))) for _ in range(N)]
        self.B = [torch.tensor(rng.normal(size=(rows, W + i % 2))) for i in range(N)]
        self.c = [torch.tensor(2 * rng.normal(size=rows)) for _ in range(N)]

    @property
    def clients(self) -> int:
        return N

    def x_start(self) -> Tensor:
        return torch.full((2, P // 2), 0.1, dtype=torch.float64)

    def y_start(self, client: int) -> Tensor:
        return torch.full((W + client % 2, 1), 0.2, dtype=torch.float64)

    def residual(self, client: int, x: Tensor, y: Tensor) -> Tensor:
        return self.A[client] @ x.reshape(-1) + self.B[client] @ y.reshape(-1) - self.c[client]

    def cost(self, client: int, x: Tensor, y: Tensor) -> float:
        return float(self.residual(client, x, y).square().sum() / 2)

    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        return (self.A[client].T @ self.residual(client, x, y)).view_as(x)

    def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        return (self.B[client].T @ self.residual(client, x, y)).view_as(y)

    def project_x(self, x: Tensor) -> Tensor:
        return fv.Box(-0.3, 0.3)(x)

    def project_y(self, client: int, y: Tensor) -> Tensor:
        return fv.Box(0, 0.5)(y)

    def lipschitz(self) -> np.ndarray:
        return np.array(
            [float(torch.linalg.matrix_norm(torch.cat((self.A[i], self.B[i]), 1), 2)) ** 2 for i in range(N)]
        )

    def solution(self) -> tuple[np.ndarray, float]:
        """x and f at the minimum over both blocks, all clients alike in weight."""
        sizes = [W + i % 2 for i in range(N)]
        rows, at = [], P
        for i in range(N):
            row = np.zeros((len(self.c[i]), P + sum(sizes)))
            row[:, :P], row[:, at : at + sizes[i]] = self.A[i], self.B[i]
            rows.append(row)
            at += sizes[i]
        low = np.r_[np.full(P, -0.3), np.zeros(sum(sizes))]
        high = np.r_[np.full(P, 0.3), np.full(sum(sizes), 0.5)]
        found = lsq_linear(np.vstack(rows), np.concatenate(self.c), (low, high), tol=1e-14, method="bvls")
        assert found.success
        return found.x[:P], found.cost / N
