r"""Step 11 by an optimiser with a memory, on flat vectors: one client's x [P], or a block's [M, P].

The gradient is gathered in a vector u by the same kernels that take plain steps, u <- rho*u + g + shift, and then the optimiser
moves x. Momentum without clipping needs no second vector: with rho = mu, u *is* the velocity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedvra.core import rule
from fedvra.core.optimisers import SGD, LocalOptimiser, OfTorch

ROUND_OFF = 1e-6
"""Added to a norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does."""


Parts = tuple[list[Tensor], list[Tensor]]
"""A module's parameters, views of x, and the same views of u."""


class Motion(ABC):
    """An optimiser at work on x, from the start of a round: fresh state, and the stepsizes of each local step."""

    rho = 0.0
    """What is kept of u when the next gradient is added."""

    def __init__(self, local: LocalOptimiser, x: Tensor, u: Tensor, step: rule.Corrected) -> None:
        self.clip, self.x, self.u, self.pull = local.clip, x, u, step.pull
        self.gather = rule.AffineStep(self.rho, step.shift)
        """How a gradient is put into u, with eta = -1."""
        self.t = 0
        u.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Move x, when u holds g + shift (and rho times what it held before)."""
        rule.correct_(self.u, self.x, self.pull)
        if self.clip is not None:
            norms = torch.linalg.vector_norm(self.u, dim=-1, keepdim=True)
            self.u.mul_((self.clip / (norms + ROUND_OFF)).clamp_(max=1.0))
        self._move(self.t)
        self.t += 1

    def take(self, x: Tensor, g: Tensor) -> None:
        """The same from a gradient that somebody else computed at x."""
        with torch.no_grad():
            rule.advance_(self.u, g.detach(), -1.0, self.gather)
        self.step()

    @abstractmethod
    def _move(self, t: int) -> None:
        """x <- x - eta_t*O(u)."""


class SGDMotion(Motion):
    """Momentum SGD. ``etas`` are the stepsizes of each local step: numbers, or columns [M, 1] where clients differ."""

    def __init__(self, local: SGD, x: Tensor, u: Tensor, step: rule.Corrected, etas: Sequence[float | Tensor]) -> None:
        folded = local.momentum > 0 and local.clip is None and not local.nesterov
        self.rho = local.momentum if folded else 0.0
        super().__init__(local, x, u, step)
        self.etas, self.momentum, self.nesterov = etas, local.momentum, local.nesterov
        self.velocity = torch.zeros_like(u) if local.momentum and not folded else None

    def _move(self, t: int) -> None:
        direction, eta = self.u, self.etas[t]
        if self.velocity is not None:
            self.velocity.mul_(self.momentum).add_(self.u)
            direction = self.u.add_(self.velocity, alpha=self.momentum) if self.nesterov else self.velocity
        rule.move_(self.x, direction, eta)


class TorchMotion(Motion):
    """An optimiser of torch.optim, made for this client and round.

    Args:
        parameters: what it is made for: views of x, such as a module's own parameters.
        gradients: the same views of u.
    """

    def __init__(
        self,
        local: OfTorch,
        x: Tensor,
        u: Tensor,
        step: rule.Corrected,
        etas: Sequence[float],
        parameters: list[Tensor],
        gradients: list[Tensor],
    ) -> None:
        super().__init__(local, x, u, step)
        self.etas, self.parameters, self.gradients = etas, parameters, gradients
        self.optimizer: torch.optim.Optimizer = local.make(parameters)

    def _move(self, t: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.etas[t]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None


def begin(
    local: LocalOptimiser,
    terms: rule.Terms,
    steps: int,
    x: Tensor,
    u: Tensor,
    out: Tensor | None = None,
    parts: Parts | None = None,
) -> Motion:
    """One client's optimiser on x, which stands at its anchor.

    Args:
        u: room for the gradient, of x's shape.
        out: where the constant part of the correction is put.
        parts: the module's parameters, views of x, and the same views of u; None: x is all there is.
    """
    step = rule.corrected(terms, out)
    etas = [float(terms.eta) * s for s in local.factors(steps)]
    if isinstance(local, SGD):
        return SGDMotion(local, x, u, step, etas)
    assert isinstance(local, OfTorch)
    if parts is None or local.flat:
        parts = [nn.Parameter(x)], [u]
    return TorchMotion(local, x, u, step, etas, *parts)


def begin_block(
    local: SGD, terms: Sequence[rule.Terms], steps: Sequence[int], x: Tensor, u: Tensor, constants: Tensor
) -> SGDMotion:
    """A block of clients' optimisers at once: coefficients are numbers where all agree, else columns [M, 1]."""
    rows = [rule.corrected(one, out=row) for row, one in zip(constants, terms, strict=True)]
    for row, one in zip(constants, rows, strict=True):
        if one.shift is None:
            row.zero_()
    shift = None if all(one.shift is None for one in rows) else constants
    pull = _column([float(one.pull) for one in rows], x)
    longest = max(steps)
    factors = [local.factors(q) + [0.0] * (longest - q) for q in steps]  # who has finished is not looked at again
    etas = [_column([float(one.eta) * s[t] for one, s in zip(terms, factors, strict=True)], x) for t in range(longest)]
    return SGDMotion(local, x, u, rule.Corrected(pull, shift), etas)


def _column(values: list[float], like: Tensor) -> float | Tensor:
    if all(value == values[0] for value in values):
        return values[0]
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)
