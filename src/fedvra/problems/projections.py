r"""Closed convex sets, each given by the projection onto it: P(x) is the point of the set nearest to x.

They are the P_X and P_Y of FedVRA-U (steps 11 and 25 of Algorithm 3). A projection is called with a tensor and returns another
of the same shape (or the same one, where it is in the set):

>>> import torch
>>> Box(0, 1)(torch.tensor([-2.0, 0.5, 3.0]))
tensor([0.0000, 0.5000, 1.0000])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedvra.core.errors import UsageError, require, unknown_name
from fedvra.core.objects import Value
from fedvra.local.flat import FlatSpec


class Projection(Value, ABC):
    """A closed convex set: calling it projects a point onto it. Two projections are equal if their fields are.

    >>> Box(0, 1)(torch.tensor([-1.0, 0.5])).tolist()  # one of them
    [0.0, 0.5]
    >>> Box(0, 1) == Box(0, 1)
    True
    """

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """The point of the set nearest to ``x`` in the Euclidean norm."""

    def contains(self, x: Tensor, tolerance: float | None = None) -> bool:
        """Whether ``x`` is in the set, up to rounding.

        >>> Simplex().contains(torch.tensor([0.25, 0.75])), Simplex().contains(torch.tensor([0.5, 0.75]))
        (True, False)
        """
        return _moved(self(x), x) <= (_slack(x) if tolerance is None else tolerance)


@dataclass(frozen=True)
class WholeSpace(Projection):
    """No constraint at all.

    >>> WholeSpace()(torch.tensor([-3.0])).tolist()
    [-3.0]
    """

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Box(Projection):
    """low <= x <= high, number by number. Each bound is a number or a tensor that broadcasts; infinities leave a side open.

    >>> Box(-1, 1)(torch.tensor([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """

    low: float | Tensor = -torch.inf
    high: float | Tensor = torch.inf

    def __post_init__(self) -> None:
        low, high = torch.as_tensor(self.low), torch.as_tensor(self.high)
        require(
            bool((low <= high).all()), "Box needs low <= high everywhere (and no NaN): no point satisfies it otherwise."
        )

    def __call__(self, x: Tensor) -> Tensor:
        low, high = (torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in (self.low, self.high))
        return torch.minimum(torch.maximum(x, low), high)


@dataclass(frozen=True)
class NonNegative(Projection):
    """x >= 0.

    >>> NonNegative()(torch.tensor([-3.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)


@dataclass(frozen=True)
class Ball(Projection):
    """||x - centre|| <= radius, the norm being that of the whole tensor.

    >>> Ball(1.0)(torch.tensor([3.0, 4.0])).tolist()
    [0.6000000238418579, 0.800000011920929]
    """

    radius: float
    centre: float | Tensor = 0.0

    def __post_init__(self) -> None:
        require(self.radius >= 0, f"Ball needs a radius >= 0, got {self.radius}.")

    def __call__(self, x: Tensor) -> Tensor:
        away = x - self.centre
        distance = float(torch.linalg.vector_norm(away))
        return x if distance <= self.radius else self.centre + away * (self.radius / distance)


@dataclass(frozen=True)
class Simplex(Projection):
    r"""Each row non-negative with sum ``total``; rows are along the last dimension.

    .. math:: P(v) = \max(v - \theta, 0), \qquad \theta = \frac{\sum_{j\le\rho} v_{(j)} - \mathrm{total}}{\rho},
        \quad \rho = \max\Big\{j : v_{(j)} > \frac{\sum_{l\le j} v_{(l)} - \mathrm{total}}{j}\Big\}

    with :math:`v_{(1)}\ge v_{(2)}\ge\dots` (Held, Wolfe and Crowder, 1974): exact, one sort per row, all rows at once.

    >>> Simplex()(torch.tensor([[0.5, 0.5, 9.0], [0.25, 0.25, 0.5]]))
    tensor([[0.0000, 0.0000, 1.0000],
            [0.2500, 0.2500, 0.5000]])
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        require(self.total > 0, f"Simplex needs a total > 0, got {self.total}.")

    def __call__(self, x: Tensor) -> Tensor:
        require(x.ndim >= 1 and x.shape[-1] >= 1, f"Simplex needs rows of at least one number, got {list(x.shape)}.")
        # Shifting a row does not change its projection; with the greatest number at 0 sums lose no digits.
        shifted = x - x.amax(-1, keepdim=True)
        falling = shifted.sort(dim=-1, descending=True).values
        count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        theta = (falling.cumsum(-1) - self.total) / count
        support = (falling > theta).sum(-1, keepdim=True)
        return (shifted - theta.gather(-1, support - 1)).clamp(min=0)


@dataclass(frozen=True)
class Affine(Projection):
    r"""{x : C x = e}, for the tensor read as one vector: :math:`P(x) = x - C^{+}(Cx - e)`.

    Args:
        C: matrix [K, n]; its rows may be linearly dependent.
        e: vector [K].

    >>> sums_to_one = Affine(torch.ones(1, 2), torch.ones(1))
    >>> sums_to_one(torch.tensor([1.0, 1.0])).tolist()
    [0.5, 0.5]
    """

    C: Tensor
    e: Tensor
    _inverse: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        C, e = (torch.as_tensor(value, dtype=torch.float64) for value in (self.C, self.e))
        require(
            C.ndim == 2 and e.shape == C.shape[:1],
            f"Affine needs C [K, n] and e [K], got {list(C.shape)} and {list(e.shape)}.",
        )
        inverse = torch.linalg.pinv(C)
        residual = float((C @ (inverse @ e) - e).abs().amax()) if len(e) else 0.0
        require(
            residual <= 1e-9 * (1 + float(e.abs().sum())),
            f"Affine: no x satisfies C x = e (the best misses it by {residual:.2g}); the equations contradict each other.",
        )
        for name, value in (("C", C), ("e", e), ("_inverse", inverse)):
            object.__setattr__(self, name, value)

    def __call__(self, x: Tensor) -> Tensor:
        require(x.numel() == self.C.shape[1], f"Affine is over {self.C.shape[1]} numbers, got {x.numel()}.")
        point = x.reshape(-1).to(torch.float64)
        return (point - self._inverse @ (self.C @ point - self.e)).to(x.dtype).view_as(x)


@dataclass(frozen=True)
class Product(Projection):
    """A set for each named part of a flat vector; parts not named are free.

    >>> net = nn.Linear(2, 1)
    >>> weights_only = Product.of_parameters(net, {"weight": NonNegative()})
    >>> weights_only(torch.tensor([-1.0, 2.0, -3.0]))
    tensor([ 0.,  2., -3.])
    """

    spec: FlatSpec
    parts: Mapping[str, Projection]

    @classmethod
    def of_parameters(cls, module: nn.Module, parts: Mapping[str, Projection]) -> Product:
        """Over a model's parameters, under the names of ``module.named_parameters()``."""
        return cls(FlatSpec.of_parameters(module), parts)

    def __post_init__(self) -> None:
        for name in self.parts:
            if name not in self.spec.names:
                raise unknown_name("parameter", name, self.spec.names)

    def __call__(self, x: Tensor) -> Tensor:
        require(tuple(x.shape) == (self.spec.size,), f"Product is over a flat [{self.spec.size}], got {list(x.shape)}.")
        result = x.clone()
        views = self.spec.views(result)
        for name, part in self.parts.items():
            views[name].copy_(part(views[name]))
        return result


@dataclass(frozen=True)
class Own(Projection):
    """A function of your own, whose results are checked every time; see :func:`verified`.

    >>> Own(lambda x: x.clamp(min=0))(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    function: Callable[[Tensor], Tensor]
    name: str = "the projection"

    def __call__(self, x: Tensor) -> Tensor:
        return verified(self.function, x, self.name)


def verified(function: Callable[[Tensor], Tensor], x: Tensor, name: str) -> Tensor:
    """``function(x)``, once it is known to be a possible projection: same shape, finite, and left alone when projected again.

    The last is how a point outside the set shows without knowing the set: a projection does not move points that are in it.
    """
    result: Any = function(x)
    if not isinstance(result, Tensor):
        raise UsageError(f"{name} must return a tensor, got {type(result).__name__}.")
    require(
        result.shape == x.shape,
        f"{name} was given shape {list(x.shape)} and returned {list(result.shape)}: keep the shape.",
    )
    if not bool(torch.isfinite(x).all()):
        return result  # the run has diverged, which is for the server to say
    require(bool(torch.isfinite(result).all()), f"{name} returned NaN or infinity.")
    moved = _moved(function(result), result)
    require(
        moved <= _slack(result),
        f"{name} returned a point outside its set: projected once more it moves by {moved:.2g}; "
        "return the nearest point of a closed convex set.",
    )
    return result


def _moved(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().amax()) if right.numel() else 0.0


def _slack(x: Tensor) -> float:
    """What rounding may do to a point: half the digits, relative to its greatest number."""
    largest = float(x.abs().amax()) if x.numel() else 0.0
    return math.sqrt(torch.finfo(x.dtype).eps) * (1 + largest)
