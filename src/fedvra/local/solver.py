"""Local steps on a model, by one of three paths that agree up to rounding.

``traced``: one client at a time, each step a replay of recorded calls (``replay``). ``block``: several clients at once,
for small models, where a kernel call costs more than its arithmetic. ``eager``: autograd, for every model that the others
refuse. Which path a model takes follows from the model and the batch size alone, never from timings or from what a worker did
before, so that the same run gives the same bits. Where a path fails or a check finds it wrong in the middle of a run, all
workers leave it together (``SlowerPathError``).
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedvra.core.block import Block, BlockTerms, Private
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.record_dp import Guard
from fedvra.core.step import Moves, WholeMoves
from fedvra.core.torch_private import bfloat16_kernels
from fedvra.data.dataset import FederatedData
from fedvra.local.blocks import same_shapes, solve_block
from fedvra.local.client_batches import ClientBatches
from fedvra.local.first_moves import solve_first, takes_first_steps
from fedvra.local.measuring import Measure
from fedvra.local.one_client import OneClient
from fedvra.local.per_record import PerRecord
from fedvra.local.programs import Programs
from fedvra.local.protocol import (
    Evaluation,
    HasOutputs,
    HasTestData,
    Looked,
    Samples,
    SlowerPathError,
    Solver,
    SolverSettings,
    StepPath,
)
from fedvra.local.replay import CannotReplayError
from fedvra.local.subject import Subject

if TYPE_CHECKING:
    from fedvra.problems.supervised import Supervised

BLOCK_WORK = 2_000_000
"""Parameters x batch size up to which a block of clients beats one at a time (measured: docs/performance.md)."""
BLOCK_NUMBERS = 2_000_000
"""Numbers in a block's [M, P]: more no longer fits the caches."""
BLOCK_MOST = 16
FIRST_MOST = 32
"""Clients at once where all take a single step from x0: they need no rows of their own."""
PATHS = ("auto", "eager", "traced", "block")
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


class SupervisedSolver(Solver, HasTestData, HasOutputs):
    """Minibatch steps on ``Supervised``."""

    def __init__(self, problem: Supervised, data: FederatedData, settings: SolverSettings) -> None:
        require(settings.path in PATHS, f"path must be one of {', '.join(PATHS)}, got {settings.path!r}.")
        require(
            settings.precision in PRECISIONS,
            f"precision must be one of {', '.join(PRECISIONS)}, got {settings.precision!r}.",
        )
        self.problem, self.data, self.settings = problem, data, settings
        self.device = torch.device(settings.device)
        self.compute = PRECISIONS[settings.precision]
        if self.compute is torch.bfloat16 and self.device.type == "cpu" and not bfloat16_kernels():
            warnings.warn("this processor has no native bfloat16 arithmetic: float32 is faster here.", stacklevel=2)
        look = problem.look(data, settings)
        self.subject: Subject = look.subject
        self.subject.lend(self.device)
        self.spec = self.subject.spec
        self.convolves = any(isinstance(m, nn.Conv2d) for m in self.subject.module.modules())
        inputs = data.dataset.inputs
        colours = isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.shape[1] > 1
        self.feed = ClientBatches(
            data,
            settings.batch_size,
            self.compute or self.spec.dtype,
            self.convolves and colours,
            self.device,
            settings.drop_last,
            look.target_cast,
        )
        self.measuring = Measure(self.subject, self.feed, self.convolves, problem.counted)
        self.test_parts = self.measuring.test_parts
        self.usual = int(min(data.sizes.max(), settings.batch_size or data.sizes.max()))
        self.programs = Programs(self.subject, self.feed, self.usual, self.compute)
        self.alone = OneClient(self.subject, self.programs, self.compute)
        self.private = PerRecord(self.subject, self.feed)
        self.path = StepPath("eager")
        self.slower(self._choose())

    def close(self) -> None:
        self.subject.give_back()

    # -- which path -----------------------------------------------------------------------------------------------------

    def _choose(self) -> StepPath:
        if self.settings.path == "eager":
            return StepPath("eager", "it was asked for")
        if not self.feed.stacks:
            return StepPath("eager", "collate makes batches of any shape")
        try:
            self.programs.get(self.usual, 1)
        except CannotReplayError as refusal:
            return StepPath("eager", str(refusal))
        width = self._block_width()
        if width == 1:
            asked = self.settings.path == "traced"
            return StepPath(
                "traced", "it was asked for" if asked else "clients are large enough to be taken one at a time"
            )
        try:
            self.programs.get(self.usual, width)
        except CannotReplayError as refusal:
            return StepPath("traced", str(refusal))
        return StepPath("block")

    def width(self, steps: Ints) -> int:
        if self.path.name != "block":
            return 1
        return FIRST_MOST if steps.max() == 1 else self._block_width()

    def _block_width(self) -> int:
        settings = self.settings
        if settings.path == "traced" or self.compute is not None or self.subject.statistics:
            return 1
        if settings.path == "block" or settings.block:
            return settings.block or BLOCK_MOST
        size = self.spec.size
        if self.convolves or size * self.usual > BLOCK_WORK:
            return 1
        return max(1, min(BLOCK_MOST, BLOCK_NUMBERS // size))

    def slower(self, path: StepPath) -> None:
        self.path = path

    # -- steps 9-13 -----------------------------------------------------------------------------------------------------

    def solve(self, terms: BlockTerms, private: Private, block: Block) -> Moves:
        while True:
            try:
                return self._solve(terms, private, block)
            except SlowerPathError as failure:
                if block.path:  # whoever gave the path decides, for all workers alike
                    raise
                self.slower(failure.path)

    def _solve(self, terms: BlockTerms, private: Private, block: Block) -> Moves:
        if terms.orders.guard is not None:
            return self._solve_privately(terms, block, terms.orders.guard)
        path = block.path or self.path.name
        schedules = [self.feed.schedule(block, int(c), int(q)) for c, q in zip(block.clients, block.steps, strict=True)]
        together = len(terms) > 1 and path == "block" and same_shapes(schedules)
        local = terms.orders.local
        if together and local.plain and takes_first_steps(terms, private):
            with torch.no_grad(), _leaving("block"):
                first = solve_first(self.programs, terms, schedules)
            if first is not None:
                return first
        _, delta = self.programs.buffer(len(terms))
        if together:
            with torch.no_grad(), _leaving("block"):
                return WholeMoves(terms, delta, solve_block(self.programs, terms.make(), block, schedules, local))
        losses = torch.empty(len(terms), dtype=torch.float64, device=self.device)
        for k, (one, schedule) in enumerate(zip(terms.make(), schedules, strict=True)):
            aux = None if private.aux is None else private.aux[k]
            if path == "eager":
                losses[k] = self.alone.eager(one, block.row(k), schedule, delta[k], aux, local)
            else:
                with torch.no_grad(), _leaving(path):
                    losses[k] = self.alone.traced(one, block.row(k), schedule, delta[k], aux, local)
        return WholeMoves(terms, delta, losses)

    def _solve_privately(self, terms: BlockTerms, block: Block, guard: Guard) -> Moves:
        """One client at a time. Their losses are made of records without noise, and are not reported."""
        _, delta = self.programs.buffer(len(terms))
        for k, one in enumerate(terms.make()):
            delta[k] = self.private.steps(one, block.row(k), guard.cut(slice(k, k + 1)), terms.orders.local)
        return WholeMoves(terms, delta, torch.full((len(terms),), math.nan, dtype=torch.float64))

    # -- looking on -------------------------------------------------------------------------------------------------------

    def losses(self, x_P: Tensor, clients: Ints) -> Floats:
        return np.array([self.measuring.loss(x_P, self.data.part(int(client))) for client in clients])

    def evaluate(self, x_P: Tensor, aux_K: Tensor | None, part: int) -> Evaluation:
        return self.measuring.test(x_P, aux_K, part)

    def look(self, x_P: Tensor, aux_K: Tensor | None, samples: Samples, outputs: bool) -> Looked:
        return self.measuring.look(x_P, aux_K, samples, outputs)


class _leaving:  # noqa: N801 - reads as a statement
    """Whatever goes wrong on a fast path means that the next slower one is taken."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, SlowerPathError):
            lines = str(error).strip().splitlines() or [""]
            reason = lines[0] if isinstance(error, CannotReplayError) else f"{type(error).__name__}: {lines[0]}"
            raise SlowerPathError("traced" if self.path == "block" else "eager", reason) from error
