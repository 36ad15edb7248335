"""Quadratics: cost functions whose gradients and minimisers are exact, for mathematics and tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvra.core.block import Block, Private
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.rule import AffineStep, Stepping, advance_
from fedvra.local.protocol import LocalSolver, Solver, SolverSettings
from fedvra.problems.base import HasOracle, Problem
from fedvra.problems.oracle import Hessian, Oracle, Point


@dataclass(frozen=True)
class Quadratic(Problem[None], HasOracle[None]):
    r"""f_i(x) = x'A_i x/2 - b_i'x with full, exact gradients A_i x - b_i; needs no data.

    Args:
        A: symmetric matrices, stacked [N, P, P].
        b: vectors, stacked [N, P]. The dtype of ``A`` and ``b`` is that of the whole run.

    >>> import torch
    >>> problem = Quadratic(torch.eye(2).expand(3, 2, 2), torch.arange(6.).view(3, 2))
    >>> problem.minimiser()
    tensor([2., 3.])
    """

    A: Tensor
    b: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "A", torch.as_tensor(self.A))
        object.__setattr__(self, "b", torch.as_tensor(self.b))
        shape = tuple(self.A.shape)
        require(
            len(shape) == 3 and shape[1] == shape[2] and tuple(self.b.shape) == shape[:2],
            f"Quadratic needs A [N, P, P] and b [N, P], got {list(shape)} and {list(self.b.shape)}.",
        )
        require(self.A.dtype == self.b.dtype, f"A is {self.A.dtype} but b is {self.b.dtype}: give both the same dtype.")
        require(
            bool(torch.allclose(self.A, self.A.mT)),
            "Quadratic needs symmetric matrices A_i, or A_i x - b_i is not the gradient: use (A + A') / 2.",
        )
        require(self.A.is_floating_point(), f"Quadratic needs floating-point A and b, got {self.A.dtype}.")

    def minimiser(self, weights: Tensor | None = None) -> Tensor:
        """argmin sum_i omega_i f_i (omega_i = 1/N by default)."""
        n = len(self.b)
        w = torch.full((n,), 1.0 / n, dtype=self.A.dtype) if weights is None else weights.to(self.A.dtype)
        solution: Tensor = torch.linalg.solve(torch.einsum("n,npq->pq", w, self.A), w @ self.b)
        return solution

    def samples(self, data: None) -> Ints:
        return np.ones(len(self.b), dtype=np.int64)

    def initial(self, seed: int) -> Tensor:
        return torch.zeros(self.b.shape[1], dtype=self.b.dtype)

    def check(self, data: None, settings: SolverSettings) -> None:
        require(data is None, "Quadratic carries its own costs: leave data out.")
        require(settings.device == "cpu", "Quadratic computes on the CPU: leave device out.")

    def solver(self, data: None, settings: SolverSettings) -> Solver:
        return _QuadraticSolver(self)

    def oracle(self, data: None) -> Oracle:
        return _QuadraticOracle(self.A, self.b)


class _QuadraticSolver(LocalSolver):
    def __init__(self, problem: Quadratic) -> None:
        self.A, self.b = problem.A, problem.b

    def run(self, x_MP: Tensor, private: Private, block: Block, step: AffineStep | Stepping) -> Floats:
        (client,), (steps,), (eta,) = block.clients, block.steps, block.eta
        A, b = self.A[client], self.b[client]
        total = 0.0
        for _ in range(steps):
            Ax = x_MP @ A
            total += float((Ax / 2 - b) @ x_MP[0])
            advance_(x_MP, Ax - b, float(eta), step)
        return np.array([total / steps])

    def losses(self, x_P: Tensor, clients: Ints) -> Floats:
        A, b = self.A[torch.from_numpy(clients)], self.b[torch.from_numpy(clients)]
        values = torch.einsum("p,npq,q->n", x_P, A, x_P) / 2 - b @ x_P
        return np.asarray(values.double().numpy())


@dataclass(frozen=True)
class _QuadraticOracle(Oracle):
    A: Tensor
    b: Tensor

    def look(self, client: int, point: Point) -> tuple[float, Tensor]:
        gradient = self.A[client] @ point.x - self.b[client]
        return float((gradient - self.b[client]) @ point.x) / 2, gradient

    def hessian(self, client: int, point: Point, samples: int | None = None) -> Hessian:
        return Hessian(self.b.shape[1], lambda v: self.A[client] @ v)

    def lipschitz(self, client: int) -> float:
        return float(torch.linalg.eigvalsh(self.A[client]).abs().max())

    def lower_bound(self, omega: Floats) -> float:
        """The minimum of f; -inf where a direction leads down for ever."""
        w = torch.as_tensor(omega, dtype=self.A.dtype)
        A, b = torch.einsum("n,npq->pq", w, self.A), w @ self.b
        scales, basis = torch.linalg.eigh(A)
        slopes = basis.T @ b
        flat = scales.abs() <= 1e-12 * scales.abs().max()
        if bool((scales[~flat] < 0).any()) or bool((slopes[flat].abs() > 1e-9 * b.norm()).any()):
            return -np.inf
        return -float((slopes[~flat] ** 2 / scales[~flat]).sum()) / 2
