"""What a solver is, which takes the local steps of a problem, and by which path."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedvra.core.block import Block, BlockTerms, Private
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import UsageError, require
from fedvra.core.loops import Loop
from fedvra.core.optimisers import LocalOptimiser, OfTorch
from fedvra.core.rule import AffineStep, Stepping, Terms, affine
from fedvra.core.step import Moves, WholeMoves
from fedvra.local.stepping import begin


@dataclass(frozen=True)
class StepPath:
    """Which way local steps are taken, and why not a faster one."""

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name

    def under(self, local: LocalOptimiser, private: bool = False) -> StepPath:
        """The same where the optimiser can go this way; optimisers of torch.optim step one client at a time."""
        if private:
            return StepPath("per record", "privacy needs the gradient of every record by itself")
        if isinstance(local, Loop) and self.name in ("block", "traced"):
            return StepPath("eager", "a loop of one's own takes the steps")
        if self.name != "block" or not isinstance(local, OfTorch):
            return self
        return StepPath("traced", f"{type(local).__name__} is an optimiser of torch.optim, for one client at a time")


DIRECT = StepPath("direct")
"""The only way there is: problems that write their own steps."""


class SlowerPathError(Exception):
    """A fast path failed, or was found wrong: the work is to be done again on a slower one."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.path = StepPath(name, reason)


@dataclass(frozen=True)
class SolverSettings:
    """How local steps are computed. Nothing here changes what is computed, apart from rounding.

    For :func:`fedvra.simulate`, ``solver=``. Batches and the seed are the run's own: leave them out here. ``history.path`` says
    which way was taken, and why not a faster one.

    Args:
        path: ``"eager"`` steps by autograd; ``"traced"`` replays a recorded step, one client at a time; ``"block"`` steps
            several clients of a small model at once; ``"auto"`` takes the fastest that is right for the model.
        block: clients per block; None lets the solver choose.
        precision: ``"bfloat16"`` runs the network in bfloat16; parameters, duals and updates stay in the model's dtype.
        device: ``"cpu"``, or ``"cuda"`` for blocks of clients on a GPU.

    >>> import fedvra as fv
    >>> fv.SolverSettings(path="eager", precision="bfloat16").device
    'cpu'
    """

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

    def of_run(self, batch_size: int | None, drop_last: bool, seed: int) -> SolverSettings:
        """With what a run says of its batches and its seed, which is the one place for it: another word here is refused."""
        said: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last, "seed": seed}
        for name, value in said.items():
            here = getattr(self, name)
            require(
                here in (getattr(SolverSettings, name), value),
                f"SolverSettings({name}={here!r}) is not what the run has, {name}={value!r}: say {name}={here!r} to the run "
                "itself, and leave it out of SolverSettings.",
            )
        return replace(self, **said)


class Evaluation(NamedTuple):
    """Sums over one stretch of the test data; they add up."""

    correct: float
    loss: float
    samples: float
    """What the loss is a mean over: samples, or the entries of their targets that are not ignored."""


@dataclass(frozen=True)
class Looked:
    """A model's results on some samples, with its outputs where they were asked for."""

    sums: Evaluation
    pairs: tuple[tuple[Any, Any], ...] = ()
    """(outputs, targets), on the CPU, batch by batch."""

    def __reduce__(self) -> Any:
        """As bytes: between processes torch would otherwise open a file for every tensor."""
        return _looked, (pickle.dumps((self.sums, self.pairs)),)


def _looked(content: bytes) -> Looked:
    return Looked(*pickle.loads(content))


@dataclass(frozen=True)
class Samples:
    """Which samples to look at: rows of the training data, or of the test data."""

    rows: Ints
    test: bool = False


class Stationarity(NamedTuple):
    """How far one client is from stationary at (x, y_i): its part in the gap G^r of the paper's second theorem."""

    gradient_x: Tensor
    """The exact gradient of f_i in x, flat [P], weight decay included."""
    gap_y: float
    """||y_i - P_Y(y_i - eta_y*grad_y f_i)||^2 / eta_y^2; 0 where there is no second block."""


class Solver(ABC):
    """Does local work. One lives in each worker process; it may keep buffers, never state that outlives a call.

    What only some can do is a small class each: :class:`HasTestData`, :class:`StartsSecondBlock`, :class:`HasExactGradients`,
    :class:`HasFigures`.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))
    >>> isinstance(costs.solver(None, fv.SolverSettings()), fv.Solver)
    True
    """

    path: StepPath = DIRECT
    """Which way steps are taken; see ``StepPath``."""

    @abstractmethod
    def slower(self, path: StepPath) -> None:
        """Take this path from now on: a faster one has failed, here or in another process."""

    @abstractmethod
    def close(self) -> None:
        """Give back what was borrowed: the user's module is as it was."""

    @abstractmethod
    def width(self, steps: Ints) -> int:
        """How many clients that take so many steps ``solve`` likes to be given at once.

        Fixed for a run, so that results do not depend on the workers.
        """

    @abstractmethod
    def solve(self, terms: BlockTerms, private: Private, block: Block) -> Moves:
        """Each client's Q_i steps 11 from its anchor (steps 9-13); what is private is updated in place."""

    @abstractmethod
    def losses(self, x_P: Tensor, clients: Ints) -> Floats:
        """f_i(x) of these clients over all their data."""


class HasTestData(ABC):
    """A solver that can test x."""

    test_parts: int
    """Into how many parts the test data is cut for ``evaluate``; 0: there is none."""

    @abstractmethod
    def evaluate(self, x_P: Tensor, aux_K: Tensor | None, part: int) -> Evaluation:
        """Accuracy and loss on one part of the test data."""


class HasOutputs(ABC):
    """A solver of a model with outputs, which can be looked at on any samples."""

    @abstractmethod
    def look(self, x_P: Tensor, aux_K: Tensor | None, samples: Samples, outputs: bool) -> Looked:
        """Accuracy and loss on these samples, with the outputs where they are wanted."""


class StartsSecondBlock(ABC):
    """A solver of a problem with a second block."""

    @abstractmethod
    def initial_y(self, client: int) -> Tensor:
        """y_i of a client that never took part."""


class HasExactGradients(ABC):
    """A solver that can tell how far a run is from stationary."""

    @abstractmethod
    def stationarity(self, x_P: Tensor, y_W: Tensor | None, client: int) -> Stationarity:
        """The client's exact gradients at (x, y_i)."""


class HasFigures(ABC):
    """A solver with more to report than test accuracy and loss."""

    @abstractmethod
    def measure(self, x_P: Tensor, y: Mapping[int, Tensor]) -> dict[str, float]:
        """Figures for the round's record, from all there is: a simulator sees every y_i.

        ``y`` holds the rows of the clients that took part so far (empty for problems with one block).
        """


def start_of_y(solver: Solver) -> Callable[[int], Tensor] | None:
    """y_i of clients that never took part; None where there is no second block."""
    return solver.initial_y if isinstance(solver, StartsSecondBlock) else None


class LocalSolver(Solver):
    """A solver that takes its steps one after the other on x itself: all that most problems need to write is ``run``.

    >>> import fedvra as fv
    >>> issubclass(fv.LocalSolver, fv.Solver)  # a problem's solver() returns one
    True
    """

    def slower(self, path: StepPath) -> None:
        self.path = path

    def close(self) -> None:
        """Nothing was borrowed."""

    def width(self, steps: Ints) -> int:
        return 1

    def solve(self, terms: BlockTerms, private: Private, block: Block) -> Moves:
        x, made, local = torch.stack(terms.anchors), terms.make(), terms.orders.local  # step 9

        def step(one: Terms, row: Tensor, steps: int) -> AffineStep | Stepping:
            return affine(one) if local.plain else begin(local, one, steps, row, torch.zeros_like(row))

        rows = [(one, x[k : k + 1], int(block.steps[k])) for k, one in enumerate(made)]
        losses = [self.run(r[1], private.row(k), block.row(k), step(*r)) for k, r in enumerate(rows)]
        for row, anchor in zip(x, terms.anchors, strict=True):
            row.sub_(anchor)
        return WholeMoves(terms, x, torch.from_numpy(np.concatenate(losses)))

    @abstractmethod
    def run(self, x_MP: Tensor, private: Private, block: Block, step: AffineStep | Stepping) -> Floats:
        """Move one client's x [1, P] by its Q_i steps ``rule.advance_(x, g, eta, step)``, in place; what is private likewise.

        For plain SGD ``step`` is that of x <- rho*x - eta*g + c; otherwise an optimiser, which ``advance_`` hands the gradient.
        A two-block problem takes its y-steps first, at the x it is given (steps 9-13 of Algorithm 3).

        Returns the mean training loss over the steps of each client.
        """


def with_outputs(solver: Solver) -> HasOutputs:
    """The solver, if it is one of a model with outputs."""
    if not isinstance(solver, HasOutputs):
        raise UsageError(
            "metrics, a validation part and clients' own results look at the outputs of a model, which this problem does not "
            "have: use them with fv.Supervised or fv.SemiSupervised."
        )
    return solver
