"""What one worker process does with a part of a cohort: read state, take local steps, stage new state, add up.

The order and the size of the parts are the server's choice and do not depend on the number of workers; nothing here depends
on which worker runs a part. Vectors travel through shared memory, messages carry numbers only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedvra.core.block import Block, Broadcast, Kept, Orders
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import UsageError
from fedvra.core.loops import Done, Loop
from fedvra.core.optimisers import PLAIN, LocalOptimiser
from fedvra.core.step import Shares, Solve, client_round
from fedvra.engines.experiment import Experiment
from fedvra.local.own_loop import own_steps
from fedvra.local.protocol import Evaluation, HasTestData, Looked, Samples, Solver, StepPath, start_of_y, with_outputs
from fedvra.state.client_state import Readers, Staged
from fedvra.state.shared_rows import shared_tensor

MIN_PARTS = 4
"""A cohort is cut into a multiple of so many parts where it can be, to keep that many workers equally busy."""
MAX_PARTS = 64
"""A cohort is cut into at most so many parts, each with its own place for partial sums."""


def count_parts(clients: int, width: int) -> int:
    """Into how many parts a cohort is cut: of ``width`` clients at most, unless that gives too many."""
    parts = -(-clients // width)
    parts = -(-parts // MIN_PARTS) * MIN_PARTS
    return min(parts, clients, MAX_PARTS)


@dataclass(frozen=True)
class LocalTask:
    """Local work for one part of a cohort; arrays over its clients."""

    part: int
    orders: Orders
    staged: Staged
    dual_weight: Floats
    """omega_i*alpha_i; zero where the reply will be lost."""
    model_weight: Floats
    """omega_i*w_i, likewise."""
    aux_weight: Floats
    one_sum: bool
    """Whether dual_weight / model_weight is the same for the whole cohort: then one sum serves both."""
    mean_weight: Floats | None = None
    """omega_i, likewise, where the plain sum of moves is to be formed too."""


@dataclass(frozen=True)
class EvaluateTask:
    part: int


@dataclass(frozen=True)
class LossesTask:
    clients: Ints


@dataclass(frozen=True)
class FineTune:
    """Plain local steps from x0 before a client's model is looked at."""

    block: Block
    """Of one client."""
    decay: float


@dataclass(frozen=True)
class LookTask:
    """The model on some samples; perhaps after local steps of the client that they belong to."""

    samples: Samples
    outputs: bool
    tune: FineTune | None = None


Task = LocalTask | EvaluateTask | LossesTask | LookTask


class Worked(NamedTuple):
    """The results of a part's clients."""

    losses: Floats | Tensor
    """A tensor while they are on an accelerator: to read it is to wait, so a cohort's are read together."""
    done: Done | None = None
    """What they did, where a loop of their own decided on it."""

    @classmethod
    def together(cls, parts: Sequence[Worked]) -> Worked:
        """Those of several parts, one after the other."""
        done = [part.done for part in parts if part.done is not None]
        whole = Done(*(np.concatenate(each) for each in zip(*done, strict=True))) if done else None
        there = [part.losses for part in parts if isinstance(part.losses, Tensor)]
        here = [part.losses for part in parts if not isinstance(part.losses, Tensor)]
        return cls(torch.cat(there) if there else np.concatenate(here), whole)

    def read(self) -> Floats:
        """The losses, brought to the host if need be."""
        return self.losses.cpu().numpy() if isinstance(self.losses, Tensor) else self.losses


class Places(NamedTuple):
    """Where a part puts its sums."""

    sums: Tensor
    """Those of steps 20 and 19 [2, P]."""
    aux: Tensor | None
    """That of the buffers [K]."""
    mean: Tensor | None
    """That of plain moves [P], where a run may need it."""


class Vectors(ABC):
    """What a worker is sent, and where it puts the sums of its part."""

    x0: Tensor
    lam: Tensor
    aux: Tensor | None

    @abstractmethod
    def part(self, k: int) -> Places:
        """The place for the sums of the k-th part."""


class Board(Vectors):
    """What the server broadcasts, and a place for each part's sums: memory that processes share, or an accelerator's."""

    def __init__(
        self, width: int, aux_width: int, dtype: torch.dtype, device: torch.device, mean: bool = False
    ) -> None:
        def room(*shape: int) -> Tensor:
            return (
                shared_tensor(shape, dtype) if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)
            )

        self.x0 = room(width)
        self.lam = room(width)
        self.aux = room(aux_width) if aux_width else None
        self._room, self._widths, self._mean = room, (width, aux_width), mean
        self._take(MAX_PARTS if device.type == "cpu" else 1)
        self.shown = 0
        """How often there was something new to broadcast."""
        self._last: tuple[Tensor | None, ...] = ()

    def _take(self, parts: int) -> None:
        width, aux_width = self._widths
        self.sums = self._room(parts, 2, width)
        self.aux_sums = self._room(parts, aux_width) if aux_width else None
        # Apart from the others, which must lie where they lie without it: products depend on how memory is aligned.
        self.mean_sums = self._room(parts, width) if self._mean else None

    def make_room(self, parts: int) -> None:
        """Places for so many parts. Shared memory has all of them, and takes pages for those in use alone."""
        if parts > len(self.sums):
            self._take(parts)

    def part(self, k: int) -> Places:
        aux, mean = (None if each is None else each[k] for each in (self.aux_sums, self.mean_sums))
        return Places(self.sums[k], aux, mean)

    def show(self, x0: Tensor, lam: Tensor, aux: Tensor | None) -> None:
        """Broadcast these."""
        self.x0.copy_(x0)
        self.lam.copy_(lam)
        if self.aux is not None and aux is not None:
            self.aux.copy_(aux)
        now = (x0, lam, aux)
        if not self._last or any(a is not b for a, b in zip(now, self._last, strict=True)):  # a step makes new vectors
            self._last, self.shown = now, self.shown + 1


class Worker:
    """Runs tasks against the board and the clients' rows; the same in a worker process and in the server's own."""

    def __init__(self, solver: Solver, board: Vectors, readers: Readers, experiment: Experiment) -> None:
        self.solver, self.board, self.readers = solver, board, readers
        self.optimiser, self.solve = local_steps(experiment, solver)
        self.compress = experiment.compress

    def do(self, task: Task) -> Worked | Floats | Evaluation | Looked:
        match task:
            case LocalTask():
                with torch.no_grad():
                    return self._local(task)
            case EvaluateTask(part):
                assert isinstance(self.solver, HasTestData)
                return self.solver.evaluate(self.board.x0, self.board.aux, part)
            case LossesTask(clients):
                return self.solver.losses(self.board.x0, clients)
            case LookTask(samples, outputs, tune):
                x, aux = (self.board.x0, self.board.aux) if tune is None else self._tuned(tune)
                return with_outputs(self.solver).look(x, aux, samples, outputs)

    def _tuned(self, tune: FineTune) -> tuple[Tensor, Tensor | None]:
        """x0 after plain local steps of one client: no dual, no pull, and nothing is kept of them."""
        nothing, board = np.zeros(1), self.board
        orders = Orders(tune.block, nothing, nothing, 0.0, tune.decay, local=self.optimiser)
        private = Kept().start(board.aux, start_of_y(self.solver), tune.block.clients)
        moves = client_round(self.solve, Broadcast(board.x0, board.lam, board.aux), orders, Kept(), private)
        return board.x0 + moves.move(0), None if private.aux is None else private.aux[0]

    def _local(self, task: LocalTask) -> Worked:
        found, block = [], task.orders.block
        places = self.board.part(task.part)
        places.sums[: 1 if task.one_sum else 2].zero_()
        if places.aux is not None:
            places.aux.zero_()
        if task.mean_weight is not None and places.mean is not None:
            places.mean.zero_()
        if block.path != self.solver.path.name:
            self.solver.slower(StepPath(block.path))
        width = self.solver.width(block.steps)
        for start in range(0, len(block.clients), width):
            found.append(self._clients(task, slice(start, start + width)))
        return Worked.together(found)

    def _clients(self, task: LocalTask, span: slice) -> Worked:
        """Steps 9-15 for the clients of one span, and their share of the sums of steps 19-20."""
        # The optimiser is known here, and may be a function, which messages cannot carry.
        board, orders = self.board, replace(task.orders.cut(span), local=self.optimiser, compress=self.compress)
        kept = self.readers.kept(task.staged.cut(span), board.x0)
        places, mean_weight = board.part(task.part), task.mean_weight
        shares = Shares(
            places.sums[0],
            task.model_weight[span],
            None if task.one_sum else places.sums[1],
            task.dual_weight[span],
            places.aux,
            task.aux_weight[span],
            None if mean_weight is None else places.mean,
            None if mean_weight is None else mean_weight[span],
        )
        private = kept.start(board.aux, start_of_y(self.solver), orders.block.clients)
        sent = Broadcast(board.x0, board.lam, board.aux)
        moves = client_round(self.solve, sent, orders, kept, private, shares)
        return Worked(moves.losses.numpy() if moves.losses.is_cpu else moves.losses, moves.done)


def local_steps(experiment: Experiment, solver: Solver) -> tuple[LocalOptimiser, Solve]:
    """Which optimiser a solver is to use, and what takes the steps: the solver itself, or a loop of the user's own."""
    e = experiment
    if not isinstance(e.local, Loop):
        return e.local, solver.solve
    if e.local.function is None:
        raise UsageError("Loop() says that clients elsewhere have loops of their own: here, give it one, Loop(train).")
    return PLAIN, partial(own_steps, e.local.function, solver, e.problem, e.data)
