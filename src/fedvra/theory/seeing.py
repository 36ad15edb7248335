"""Where the clients' cost functions are in a run, and what is added up of them: for `fedvra check` and for diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedvra.core.cohort import Cohort, Floats, Ints
from fedvra.problems.oracle import Point

if TYPE_CHECKING:
    from fedvra.engines.federation import Federation


class Spread:
    """Weighted mean and variance of vectors that come one at a time (Welford's recurrence: nothing cancels)."""

    def __init__(self) -> None:
        self.weight, self.sum2 = 0.0, 0.0
        self.mean: Tensor | None = None

    def add(self, vector: Tensor, weight: float) -> None:
        if self.mean is None:
            self.mean = torch.zeros_like(vector)
        self.weight += weight
        step = vector - self.mean
        self.mean = self.mean.add(step, alpha=weight / self.weight if self.weight else 0.0)
        self.sum2 += weight * float(step @ (vector - self.mean))

    @property
    def norm2(self) -> float:
        return 0.0 if self.mean is None else float(self.mean.square().sum())

    @property
    def variance(self) -> float:
        return self.sum2 / self.weight if self.weight else 0.0


def points_of(federation: Federation, clients: Ints) -> list[Point]:
    """Where these clients' cost functions are now: x0, and what is their own. On the CPU, where oracles compute."""
    y, own = federation.clients.y, federation.clients.aux
    x0 = federation.state.x0.cpu()
    shared = None if federation.state.aux is None else federation.state.aux.cpu()

    def aux(client: int) -> Tensor | None:
        return own.get(client).to(x0) if own is not None and client in own else shared

    return [Point(x0, aux(i), y.get(i).cpu() if y is not None and i in y else None) for i in map(int, clients.tolist())]


def participation(federation: Federation, cohort: Cohort) -> Floats:
    """The probability that a client's reply counts: of taking part, times that of not being lost."""
    return cohort.p * (1 - federation.experiment.drop)
