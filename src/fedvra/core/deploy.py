"""Which model a run is for: x0 as the server leaves it, the mean of its clients' models, or a running mean of x0.

x0 is where the next round starts. Under duals that is a point past what the clients found, by the server's extrapolation, and
so not always the model one would use. Which one is used changes nothing in how x0 evolves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedvra.core.errors import UsageError
from fedvra.core.objects import Value

if TYPE_CHECKING:  # options are read, and refused, without waiting for torch
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Deploy(Value, ABC):
    """A choice of model; :func:`parse_deploy` makes one of its text."""

    needs_mean: ClassVar[bool] = False
    """Whether the server's step has to form the mean of the clients' models."""

    @abstractmethod
    def text(self) -> str:
        """As options have it."""

    @property
    @abstractmethod
    def words(self) -> str:
        """For people: accuracy of ..."""


@dataclass(frozen=True)
class GlobalPoint(Deploy):
    """x0 itself."""

    def text(self) -> str:
        return "x0"

    @property
    def words(self) -> str:
        return "x0"


@dataclass(frozen=True)
class ClientsMean(Deploy):
    """P_X(x0 + sum_A omega_i*D_i / sum_A omega_i), with the x0 that the round began with."""

    needs_mean: ClassVar[bool] = True

    def text(self) -> str:
        return "mean"

    @property
    def words(self) -> str:
        return "the mean of the clients' models"


@dataclass(frozen=True)
class RunningMean(Deploy):
    """The mean of the x0 of all rounds so far, with weights that fall by ``factor`` from each round to the one before."""

    factor: float

    def text(self) -> str:
        return f"ema:{self.factor:g}"

    @property
    def words(self) -> str:
        return f"the running mean of x0 ({self.factor:g})"


X0 = GlobalPoint()
MEAN = ClientsMean()


def parse_deploy(given: Any) -> Deploy:
    """Read ``x0``, ``mean`` or ``ema:FACTOR``.

    >>> parse_deploy("mean"), parse_deploy("ema: 0.90").text()
    (ClientsMean(), 'ema:0.9')
    """
    if isinstance(given, Deploy):
        return given
    word, _, number = str(given).partition(":")
    word, number = word.strip(), number.strip()
    if not number and word in ("x0", "mean"):
        return X0 if word == "x0" else MEAN
    try:
        factor = float(number) if word == "ema" else 0.0
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1:
        raise UsageError(
            f"deploy must be x0, mean, or ema with a factor between 0 and 1 such as ema:0.9, got {given!r}."
        )
    return RunningMean(factor)


class Deploying:
    """A server's state: its model to deploy is x0, unless there is another."""

    x0: Tensor
    aux: Tensor | None
    deployed: Deployed | None

    @property
    def model(self) -> Deployed:
        """The model to deploy."""
        return self.deployed or Deployed(self.x0, self.aux)


@dataclass(frozen=True)
class Deployed(Value):
    """The model that a run is for, where that is not x0: part of the server's state."""

    x: Tensor
    aux: Tensor | None = None
    """The statistics that training changes besides x, where there are any."""
    weight: float = 1.0
    """Of all x0 in a running mean together, the last having weight 1."""

    def tensors(self) -> dict[str, Tensor]:
        """As a checkpoint holds it: copies, for a file of safetensors holds no vector under two names."""
        import torch

        aux = {} if self.aux is None else {"deployed_aux": self.aux.clone()}
        return {"deployed": self.x.clone(), "deployed_weight": torch.tensor(self.weight, dtype=torch.float64), **aux}

    def to(self, device: torch.device | str) -> Deployed:
        return Deployed(self.x.to(device), None if self.aux is None else self.aux.to(device), self.weight)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Deployed | None:
        """From what :meth:`tensors` gave; None where there is nothing of it."""
        if "deployed" not in tensors:
            return None
        return cls(tensors["deployed"], tensors.get("deployed_aux"), float(tensors["deployed_weight"]))
