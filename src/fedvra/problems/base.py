"""What a problem is: the clients' cost functions f_i, and how to take local steps on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import UsageError
from fedvra.core.objects import Value
from fedvra.local.protocol import Solver, SolverSettings
from fedvra.problems.oracle import Oracle


class Problem(Value, ABC):
    """The cost functions f_i of all clients; see ``Supervised`` and ``Quadratic``."""

    decay: float = 0.0
    """Weight decay: adds decay*x to every gradient. Kept apart because it is affine, so it costs nothing."""

    @abstractmethod
    def samples(self, data: Any) -> Ints:
        """n_i of every client; its length is N."""

    def y_width(self, data: Any) -> int:
        """The most numbers a client's second block y_i has; 0 for problems with one block."""
        return 0

    def project(self, x_P: Tensor) -> Tensor:
        """P_X, applied by the server in step 20; the whole space unless a problem says otherwise."""
        return x_P

    @abstractmethod
    def initial(self, seed: int) -> Tensor:
        """The flat start x0 [P]; its dtype is that of the whole run."""

    def initial_aux(self, seed: int) -> Tensor | None:
        """The statistics [K] that training changes besides x, at the start; None where there are none."""
        return None

    def frozen(self, seed: int) -> dict[str, Tensor]:
        """What belongs to the model and is never trained, by name: made once, never sent, named in checkpoints by its hash."""
        return {}

    @property
    def aux_is_local(self) -> bool:
        """Whether each client keeps its float buffers to itself, instead of starting from the server's mean."""
        return False

    @abstractmethod
    def check(self, data: Any, settings: SolverSettings) -> None:
        """Raise UsageError where the problem does not fit the data."""

    @abstractmethod
    def solver(self, data: Any, settings: SolverSettings) -> Solver:
        """A solver for one worker process."""

    def oracle(self, data: Any) -> Oracle:
        """The f_i with their derivatives, for those who look on: `fedvra check`, diagnostics."""
        raise UsageError(
            f"{type(self).__name__} gives no exact gradients of f_i, so theory and diagnostics cannot look."
        )

    @abstractmethod
    def to_module(self, x_P: Tensor, aux_K: Tensor | None) -> torch.nn.Module:
        """The model that x stands for."""
