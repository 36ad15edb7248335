"""One client's work in one round, as its train function is given it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Context
from torch import Tensor

from fedvra.core import rule
from fedvra.core.step import Moves
from fedvra.problems.base import Problem


@dataclass(frozen=True)
class LocalWork:
    """One client's work in one round: all that steps 9-13 need."""

    client: int
    round: int
    """Counted from 0."""
    steps: int
    """Q_i."""
    eta: float
    x0: Tensor
    """The global model, flat [P]."""
    terms: rule.Terms
    """What step 11 adds to the gradient."""
    problem: Problem
    data: Any
    context: Context
    _solve: Callable[[], Moves]
    _losses: list[float]

    def solve(self) -> Tensor:
        """Take the local steps as the simulator does; returns the move x_i - x0."""
        moves = self._solve()
        self._losses[:] = moves.losses.tolist()
        return moves.move(0)

    def step(self, x: Tensor, g: Tensor) -> Tensor:
        """Step 11 from x with gradient g, for those who drive the steps by hand: return x - work.x0 after Q_i of them."""
        h = torch.zeros_like(x) if self.terms.h is None else self.terms.h
        return rule.local_step(x, g, h, self.x0, self.eta, float(self.terms.gamma), self.terms.decay)
