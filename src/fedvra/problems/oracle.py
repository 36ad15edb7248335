"""f_i with its derivatives, one client at a time: for those who look on (theory, diagnostics), never for training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Floats

Operator: TypeAlias = Callable[[Tensor], Tensor]
"""v -> Hv."""


class Point(NamedTuple):
    """Where a cost function is looked at: all that a client's cost depends on."""

    x: Tensor
    """The global model, flat [P]."""
    aux: Tensor | None = None
    """Its float buffers, where it has any."""
    y: Tensor | None = None
    """The client's second block as stored; None where there is none, or stands for its start."""


class Hessian(NamedTuple):
    """The second derivative of one f_i in all its variables (x, and y_i where there is one)."""

    width: int
    times: Operator
    whole: bool = True
    """Whether all samples of the client are in it; of some of them the largest eigenvalue may be above that of f_i."""


class Oracle(ABC):
    """Values and derivatives over a client's whole data, without augmentation, in evaluation mode, weight decay included."""

    @abstractmethod
    def look(self, client: int, point: Point) -> tuple[float, Tensor]:
        """f_i and its gradient in x, [P]."""

    def value(self, client: int, point: Point) -> float:
        """f_i alone."""
        return self.look(client, point)[0]

    def gradient(self, client: int, point: Point) -> Tensor:
        """The gradient alone."""
        return self.look(client, point)[1]

    def probe(self, point: Point, total: int, samples: int) -> tuple[float, float]:
        """Cost and norm of its gradient on a little of the data, by which a problem is known again: of three clients, or of at
        most ``samples`` samples where that is less.
        """
        found = [self.look(client, point) for client in sorted({0, total // 2, total - 1})]
        return sum(cost for cost, _ in found), sum(float(slope.double().norm()) for _, slope in found)

    @abstractmethod
    def hessian(self, client: int, point: Point, samples: int | None = None) -> Hessian:
        """The Hessian of f_i, over at most ``samples`` of the client's samples, drawn without replacement."""

    def lipschitz(self, client: int) -> float | None:
        """L_i where it is known exactly."""
        return None

    def lower_bound(self, omega: Floats) -> float | None:
        """A lower bound of f = sum_i omega_i f_i; None where none is known, -inf where there is none."""
        return None

    def noisy_gradient(
        self, client: int, point: Point, batch_size: int | None, rng: np.random.Generator
    ) -> Tensor | None:
        """The gradient that one local step at this point would use; None where steps use the exact one."""
        return None

    def block_y(self, client: int, point: Point) -> tuple[float, int] | None:
        """(eta_y, Q_y) of a problem with a second block."""
        return None


def hessian_of(cost: Callable[[Tensor], Tensor], at: Tensor) -> Hessian:
    """The Hessian of a function that autograd can differentiate twice; the function is evaluated once, whatever is asked.

    >>> hessian_of(lambda z: (z**3).sum(), torch.tensor([1.0, 2.0])).times(torch.ones(2))
    tensor([ 6., 12.])
    """
    with torch.enable_grad():
        z = at.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(cost(z), z, create_graph=True)

    def times(v: Tensor) -> Tensor:
        if not slope.requires_grad:  # an affine function
            return torch.zeros_like(v)
        (product,) = torch.autograd.grad(slope, z, v, retain_graph=True, materialize_grads=True)
        return product

    return Hessian(len(z), times)


def hessian_by_differences(gradient: Operator, at: Tensor) -> Hessian:
    """The Hessian of a function of which only the gradient is given: central differences, with an error of order eps^(2/3).

    >>> hessian_by_differences(lambda z: 3 * z**2, torch.tensor([1.0, 2.0], dtype=torch.float64)).times(torch.ones(2))
    tensor([ 6.0000, 12.0000], dtype=torch.float64)
    """
    step = torch.finfo(at.dtype).eps ** (1 / 3) * max(1.0, float(at.norm()))

    def times(v: Tensor) -> Tensor:
        length = step / max(float(v.norm()), 1e-30)
        quotient: Tensor = (gradient(at + length * v) - gradient(at - length * v)) / (2 * length)
        return quotient

    return Hessian(len(at), times)
