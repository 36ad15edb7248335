r"""Which optimiser takes a client's local steps, as a value, and how much work its steps amount to.

The optimiser is handed the corrected gradient of step 11, :math:`u_t = g_t - h_i + \gamma(x_t - x_0)` (weight decay is part of
:math:`g`), and starts anew in every round: no state of it lasts. With ``clip`` it is this :math:`u_t`, as one vector over all
parameters, that is scaled down to that length.

**The amount of work.** Momentum SGD is linear in what it is handed, so that after Q steps

.. math:: x_0 - x_i = \eta\sum_{t<Q} a_t u_t, \qquad \|a\|_1 = \sum_t a_t =: \tilde Q,

where :math:`a` is FedNova's accumulation vector. With :math:`v_t = \mu v_{t-1} + u_t`, :math:`x_{t+1} = x_t - \eta s_t v_t`
and a stepsize that varies over local steps by factors :math:`s_t`,

.. math:: a_t = \sum_{k\ge t} s_k\mu^{k-t}, \qquad
    \tilde Q = \frac{1}{1-\mu}\Big(Q - \frac{\mu(1-\mu^Q)}{1-\mu}\Big) \text{ for } s = 1,

and with Nesterov's form, a step along :math:`u_t + \mu v_t`, :math:`a_t = \sum_{k\ge t} s_k(\mu^{k-t+1} + [k = t])`. So
:math:`\eta\tilde Q` is how far a constant unit gradient carries a client, and it takes the place of :math:`\eta Q` in every
coefficient: FedNova's normalisation is :math:`1/\tilde Q` and SCAFFOLD's dual stepsize :math:`\alpha = 1/(\eta\tilde Q)`. Its
dual is then :math:`\lambda_i^+ = h_i + \sum_t a_t u_t / \|a\|_1`, the mean of the gradients met, weighted by how far each moved
the client. Plain SGD has :math:`\tilde Q = Q`; without momentum :math:`\eta\tilde Q = \sum_t\eta s_t`, the sum of stepsizes.

Where clipping scales some :math:`u_t` by :math:`c_t < 1`, the dual is :math:`h_i + \sum_t a_t c_t u_t/\|a\|_1`: of a gradient
that was cut only the part that was followed enters it. :math:`\lambda = \sum_i\omega_i\lambda_i` holds all the same, for the
server sees the same :math:`x_i - x_0`.

Adam and its like are not linear in :math:`u`: there is no such number, and an algorithm that divides by it is refused. Penalty
methods (FedProx, FedADMM, FedPD, FedDyn, FedVRA with gamma and a given) need none: their :math:`\lambda_i^+ = \lambda_i +
a\gamma(x_0 - x_i)` is the optimality condition of the client's own problem, whoever solves it.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedvra.core.calls import Language
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import UsageError, require, unknown_name
from fedvra.core.objects import Value
from fedvra.core.schedule import check_schedule, factor


@dataclass(frozen=True, kw_only=True)
class LocalOptimiser(Value, ABC):
    """What takes local steps. All of them can clip, and change the stepsize from one local step to the next."""

    clip: float | None = None
    """The greatest length of the corrected gradient; longer ones are scaled down to it. None: no bound."""
    lr_decay: float = 1.0
    """The stepsize of local step t = 0, 1, ... is eta*lr_decay^t, besides what follows."""
    warmup: int = 0
    """Over the first so many steps it rises linearly to its full length."""
    cosine: bool = False
    """After that it falls along half a cosine, which would reach 0 after the client's last step."""

    def __post_init__(self) -> None:
        require(
            self.clip is None or (math.isfinite(self.clip) and self.clip > 0), f"clip must be > 0, got {self.clip}."
        )
        check_schedule(self.lr_decay, self.warmup, "local steps")

    @property
    def scheduled(self) -> bool:
        """Whether the stepsize changes over local steps."""
        return self.lr_decay != 1 or self.warmup > 1 or self.cosine

    @property
    def plain(self) -> bool:
        """Whether it is x <- x - eta*u and nothing else."""
        return False

    def factors(self, steps: int) -> list[float]:
        """s_0, ..., s_{Q-1}: what eta is multiplied by in each local step."""
        return [factor(t, self.lr_decay, self.warmup, steps if self.cosine else None) for t in range(steps)]

    @abstractmethod
    def amounts(self, steps: Ints) -> Floats:
        """Q~ of clients that take so many steps; NaN where the optimiser has no such number."""

    @property
    def counts(self) -> bool:
        """Whether there is an effective amount of work."""
        return not bool(np.isnan(self.amounts(np.array([1]))).any())

    def check(self, decay: float) -> None:
        """Raise UsageError where it cannot be used on a problem of this weight decay."""

    def text(self) -> str:
        """As the command line writes it: name:key=value,... for what differs from the default."""
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        said = [f"{name}={_written(value)}" for name, (value, usual) in values.items() if value != usual]
        return ":".join(filter(None, [type(self).__name__.lower(), ",".join(said)]))


def _written(value: float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(int(value)) if float(value).is_integer() else repr(value)


@dataclass(frozen=True, kw_only=True)
class SGD(LocalOptimiser):
    r"""Stochastic gradient descent, by default plain: x <- x - eta*u.

    .. math:: v \leftarrow \mu v + u, \qquad x \leftarrow x - \eta\,v \quad (\text{Nesterov: } x - \eta(u + \mu v))

    Args:
        momentum: mu, in [0, 1).
        nesterov: step along u + mu*v.

    >>> SGD(momentum=0.9).amounts(np.array([1, 2, 10])).round(3)
    array([ 1.   ,  2.9  , 41.381])
    >>> SGD(momentum=0.9, clip=10).text()
    'sgd:clip=10,momentum=0.9'
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), got {self.momentum}.")
        require(self.momentum > 0 or not self.nesterov, "nesterov=True needs a momentum > 0.")

    @property
    def plain(self) -> bool:
        return not self.momentum and self.clip is None and not self.scheduled

    def amounts(self, steps: Ints) -> Floats:
        found, place = np.unique(steps, return_inverse=True)
        return np.array([_carried(self, int(q)) for q in found], dtype=np.float64)[place]


@lru_cache(maxsize=1 << 16)
def _carried(sgd: SGD, steps: int) -> float:
    """sum_t a_t: how far a constant unit gradient carries a client, in units of eta."""
    carried = velocity = 0.0
    for s in sgd.factors(steps):
        velocity = sgd.momentum * velocity + 1.0
        carried += s * (1.0 + sgd.momentum * velocity if sgd.nesterov else velocity)
    return carried


@dataclass(frozen=True, kw_only=True)
class OfTorch(LocalOptimiser, ABC):
    """An optimiser of ``torch.optim``: one client at a time, and without an amount of work."""

    @property
    @abstractmethod
    def flat(self) -> bool:
        """Whether it works on each number by itself, so that all parameters may be given to it as one vector."""

    @abstractmethod
    def make(self, parameters: list[Any]) -> Any:
        """The ``torch.optim.Optimizer`` on these parameters."""

    def amounts(self, steps: Ints) -> Floats:
        return np.full(len(steps), np.nan)

    def check(self, decay: float) -> None:
        import torch

        made = self.make([torch.nn.Parameter(torch.zeros(2))])
        require(
            isinstance(made, torch.optim.Optimizer),
            f"Torch needs a function of the parameters that makes a torch.optim.Optimizer, got {type(made).__name__}.",
        )
        own = max(float(group.get("weight_decay", 0.0)) for group in made.param_groups)
        require(
            not (own and decay),
            f"{type(made).__name__} has a weight decay of its own ({own:g}) and the problem has one ({decay:g}): set one of "
            "them to 0; the problem's is part of f_i, the optimiser's is not.",
        )


@dataclass(frozen=True, kw_only=True)
class Adam(OfTorch):
    """``torch.optim.Adam`` on the corrected gradient; for algorithms that need no amount of work.

    >>> Adam(beta2=0.99).text()
    'adam:beta2=0.99'
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_adam(self)

    @property
    def flat(self) -> bool:
        return True

    def make(self, parameters: list[Any]) -> Any:
        import torch

        return torch.optim.Adam(parameters, betas=(self.beta1, self.beta2), eps=self.eps)


@dataclass(frozen=True, kw_only=True)
class AdamW(OfTorch):
    """``torch.optim.AdamW``: Adam, and x <- (1 - eta*weight_decay)*x beside it.

    This decay is no part of f_i: no dual knows of it, and it is refused where the problem has a weight decay of its own.

    >>> AdamW(weight_decay=0.1)
    AdamW(clip=None, lr_decay=1.0, warmup=0, cosine=False, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.1)
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_adam(self)
        require(self.weight_decay >= 0, f"weight_decay must be >= 0, got {self.weight_decay}.")

    @property
    def flat(self) -> bool:
        return True

    def make(self, parameters: list[Any]) -> Any:
        import torch

        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(parameters, betas=betas, eps=self.eps, weight_decay=self.weight_decay)


def _check_adam(adam: Adam | AdamW) -> None:
    for name, beta in (("beta1", adam.beta1), ("beta2", adam.beta2)):
        require(0 <= beta < 1, f"{name} must be in [0, 1), got {beta}.")
    require(adam.eps > 0, f"eps must be > 0, got {adam.eps}.")


@dataclass(frozen=True)
class Torch(OfTorch):
    """Any optimiser of ``torch.optim``, made anew for each client and round on the model's own parameters.

    Args:
        factory: from the list of trainable parameters to the optimiser. Its lr is overwritten in every group by eta, times what
            lr_decay, warmup and cosine make of it.

    >>> import torch
    >>> Torch(lambda parameters: torch.optim.RMSprop(parameters, alpha=0.9)).counts
    False
    """

    factory: Callable[[list[Any]], Any]

    @property
    def flat(self) -> bool:
        return False

    def make(self, parameters: list[Any]) -> Any:
        return self.factory(parameters)

    def text(self) -> str:
        return "torch"


OPTIMISERS: dict[str, type[LocalOptimiser]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
"""Those with a name on the command line."""
PLAIN = SGD()


def parse_local(text: str) -> LocalOptimiser:
    """The optimiser that a text stands for.

    >>> parse_local("sgd:momentum=0.9,clip=10") == SGD(momentum=0.9, clip=10)
    True
    """

    def get(name: str) -> type[LocalOptimiser]:
        if name in ("torch", "loop"):
            raise UsageError(f"what a function does cannot be written as text: use fv.{name.title()}(...) from Python.")
        if name not in OPTIMISERS:
            raise unknown_name("local optimiser", name, OPTIMISERS)
        return OPTIMISERS[name]

    return Language("local optimiser").make(text, get)
