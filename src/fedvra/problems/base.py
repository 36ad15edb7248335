"""What a problem is: the clients' cost functions f_i, and how to take local steps on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.cohort import Floats, Ints
from fedvra.errors import UsageError
from fedvra.problems.oracle import Oracle
from fedvra.replay import FirstStep
from fedvra.rule import Affine, Terms, affine


@dataclass(frozen=True)
class Block:
    """Local work for M clients at once: who, how many steps each, with which stepsize."""

    round: int
    seed: int
    clients: Ints
    steps: Ints
    eta: Floats
    path: str = ""
    """The path that whoever runs the round has settled on for all workers; empty: the solver's own choice."""
    check: NDArray[np.bool_] | None = None
    """Whose first step is to be compared with autograd."""

    def cut(self, span: slice) -> Block:
        """Some clients of the block."""
        check = None if self.check is None else self.check[span]
        return replace(self, clients=self.clients[span], steps=self.steps[span], eta=self.eta[span], check=check)

    def row(self, k: int) -> Block:
        """One client of the block, as a block of one."""
        return self.cut(slice(k, k + 1))


@dataclass(frozen=True)
class StepPath:
    """Which way local steps are taken, and why not a faster one."""

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


DIRECT = StepPath("direct")
"""The only way there is: problems that write their own steps."""


class SlowerPathError(Exception):
    """A fast path failed, or was found wrong: the work is to be done again on a slower one."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.path = StepPath(name, reason)


@dataclass(frozen=True)
class SolverSettings:
    """How local steps are to be computed; none of it changes what is computed beyond rounding."""

    batch_size: int | None = None
    """None: the client's whole data in every step."""
    drop_last: bool = False
    """Whether an epoch's last, smaller batch is left out."""
    path: str = "auto"
    """"auto", "eager", "traced" or "block"; see docs/performance.md."""
    block: int | None = None
    """Clients at once on the block path; None lets the solver choose."""
    precision: str = "float32"
    """"float32" (whatever the model has) or "bfloat16" for the arithmetic inside a step."""
    device: str = "cpu"
    seed: int | None = None
    """The run's, under which a model is made; None: the last one used."""


class Evaluation(NamedTuple):
    """Sums over one stretch of the test data; they add up."""

    correct: float
    loss: float
    samples: float
    """What the loss is a mean over: samples, or the entries of their targets that are not ignored."""


class Private(NamedTuple):
    """What a client changes besides x while it works: rows of a block, updated in place."""

    aux: Tensor | None = None
    """Float buffers [M, K]."""
    y: Tensor | None = None
    """The second block y_i [M, W] of a two-block problem; it never leaves the client."""

    def row(self, k: int) -> Private:
        """What belongs to one client of the block, as a block of one."""
        return Private(*(None if rows is None else rows[k : k + 1] for rows in self))


class Stationarity(NamedTuple):
    """How far one client is from stationary at (x, y_i): its part in the gap G^r of the paper's second theorem."""

    gradient_x: Tensor
    """The exact gradient of f_i in x, flat [P], weight decay included."""
    gap_y: float
    """||y_i - P_Y(y_i - eta_y*grad_y f_i)||^2 / eta_y^2; 0 where there is no second block."""


class Solver(ABC):
    """Does local work. One lives in each worker process; it may keep buffers, never state that outlives a call."""

    width: int = 1
    """How many clients ``solve`` likes to be given at once; fixed for a run, so that results do not depend on the workers."""
    first_width: int = 1
    """Likewise for ``first_step``."""
    test_parts: int = 0
    """Into how many parts the test data is cut for ``evaluate``; 0: there is none."""
    path: StepPath = DIRECT
    """Which way steps are taken; see ``StepPath``."""

    def slower(self, path: StepPath) -> None:
        """Take this path from now on: a faster one has failed, here or in another process."""
        self.path = path

    def close(self) -> None:  # noqa: B027 - most have borrowed nothing
        """Give back what was borrowed: the user's module is as it was."""

    @abstractmethod
    def solve(self, terms: Sequence[Terms], private: Private, block: Block) -> tuple[Tensor, Floats]:
        """Each client's Q_i steps 11 from its anchor: the moves x_i - anchor [M, P], and the mean training losses [M].

        The moves may be the solver's own buffer, good until the next call. What is private is updated in place.
        """

    def first_step(self, x0: Tensor, block: Block) -> FirstStep | None:
        """Gradients at x0 for clients that take one step each from there, kept as factors; None: ``solve`` does it."""
        return None

    def initial_y(self, client: int) -> Tensor:
        """y_i of a client that never took part; asked for only where the problem has a ``y_width``."""
        raise NotImplementedError

    def measure(self, x_P: Tensor, y: Mapping[int, Tensor]) -> dict[str, float]:
        """Figures besides test accuracy and loss for the round's record, from all there is: a simulator sees every y_i.

        ``y`` holds the rows of the clients that took part so far (empty for problems with one block).
        """
        return {}

    def stationarity(self, x_P: Tensor, y_W: Tensor | None, client: int) -> Stationarity:
        """The client's exact gradients at (x, y_i), for those who ask how far from stationary a run is."""
        raise UsageError(f"{type(self).__name__} gives no exact gradients, so there is no stationarity gap to measure.")

    @abstractmethod
    def losses(self, x_P: Tensor, clients: Ints) -> Floats:
        """f_i(x) of these clients over all their data."""

    @abstractmethod
    def evaluate(self, x_P: Tensor, aux_K: Tensor | None, part: int) -> Evaluation:
        """Accuracy and loss on one part of the test data."""


class LocalSolver(Solver):
    """A solver that takes its steps one after the other on x itself: all that most problems need to write is ``run``."""

    def solve(self, terms: Sequence[Terms], private: Private, block: Block) -> tuple[Tensor, Floats]:
        x = torch.stack([one.anchor for one in terms])  # step 9
        losses = [self.run(x[k : k + 1], private.row(k), block.row(k), affine(one)) for k, one in enumerate(terms)]
        for row, one in zip(x, terms, strict=True):
            row.sub_(one.anchor)
        return x, np.concatenate(losses)

    @abstractmethod
    def run(self, x_MP: Tensor, private: Private, block: Block, step: Affine) -> Floats:
        """Move one client's x [1, P] by its Q_i steps x <- rho*x - eta*g + c, in place; what is private likewise.

        A two-block problem takes its y-steps first, at the x it is given (steps 9-13 of Algorithm 3).

        Returns the mean training loss over the steps of each client.
        """


class Problem(ABC):
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
