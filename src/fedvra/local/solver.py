"""Local steps on a model, by one of three paths that agree up to rounding.

``traced``: one client at a time, each step a replay of recorded calls (``replay``). ``block``: several clients at once,
for small models, where a kernel call costs more than its arithmetic. ``eager``: autograd, for every model that the others
refuse. Which path a model takes follows from the model and the batch size alone, never from timings or from what a worker did
before, so that the same run gives the same bits. Where a path fails or a check finds it wrong in the middle of a run, all
workers leave it together (``SlowerPathError``).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedvra.core import rule
from fedvra.core.block import Block, BlockTerms, Private
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.step import Moves, WholeMoves
from fedvra.data.dataset import FederatedData
from fedvra.local.blocks import same_shapes, solve_block
from fedvra.local.client_batches import ClientBatches
from fedvra.local.first_moves import solve_first, takes_first_steps
from fedvra.local.loan import Batch
from fedvra.local.measuring import Measure
from fedvra.local.programs import Epoch, Programs
from fedvra.local.protocol import Evaluation, SlowerPathError, Solver, SolverSettings, StepPath
from fedvra.local.randomness import noise_key, seed_torch
from fedvra.local.replay import CannotReplayError, Program, check_step
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


class SupervisedSolver(Solver):
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
        if (
            self.compute is torch.bfloat16
            and self.device.type == "cpu"
            and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        ):
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
        self.path = StepPath("eager")
        self._take(self._choose())

    def close(self) -> None:
        self.subject.give_back()

    # -- which path -----------------------------------------------------------------------------------------------------

    def _choose(self) -> StepPath:
        if self.settings.path == "eager":
            return StepPath("eager", "it was asked for")
        if not self.feed.stacks:
            return StepPath("eager", "collate makes batches of any shape")
        try:
            self.programs.get(self.usual, 1, shared=False)
        except CannotReplayError as refusal:
            return StepPath("eager", str(refusal))
        width = self._block_width()
        if width == 1:
            asked = self.settings.path == "traced"
            return StepPath(
                "traced", "it was asked for" if asked else "clients are large enough to be taken one at a time"
            )
        try:
            self.programs.get(self.usual, width, shared=False)
        except CannotReplayError as refusal:
            return StepPath("traced", str(refusal))
        return StepPath("block")

    def _take(self, path: StepPath) -> None:
        self.path = path

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
        self._take(path)

    # -- steps 9-13 -----------------------------------------------------------------------------------------------------

    def solve(self, terms: BlockTerms, private: Private, block: Block) -> Moves:
        while True:
            try:
                return self._solve(terms, private, block)
            except SlowerPathError as failure:
                if block.path:  # whoever gave the path decides, for all workers alike
                    raise
                self._take(failure.path)

    def _solve(self, terms: BlockTerms, private: Private, block: Block) -> Moves:
        path = block.path or self.path.name
        schedules = [self.feed.schedule(block, int(c), int(q)) for c, q in zip(block.clients, block.steps, strict=True)]
        together = len(terms) > 1 and path == "block" and same_shapes(schedules)
        if together and takes_first_steps(terms, private):
            with torch.no_grad(), _leaving("block"):
                first = solve_first(self.programs, terms, schedules)
            if first is not None:
                return first
        _, delta = self.programs.buffer(len(terms))
        if together:
            with torch.no_grad(), _leaving("block"):
                return WholeMoves(terms, delta, solve_block(self.programs, terms.make(), block, schedules))
        losses = np.empty(len(terms))
        for k, (one, schedule) in enumerate(zip(terms.make(), schedules, strict=True)):
            aux = None if private.aux is None else private.aux[k]
            if path == "eager":
                losses[k] = self._eager(one, block.row(k), schedule, delta[k], aux)
            else:
                with torch.no_grad(), _leaving(path):
                    losses[k] = self._traced(one, block.row(k), schedule, delta[k], aux)
        return WholeMoves(terms, delta, losses)

    def _traced(
        self, terms: rule.Terms, block: Block, schedule: list[Ints], delta: Tensor, aux_K: Tensor | None
    ) -> float:
        """One client's steps, each a replay; a single step goes straight from the anchor to the move."""
        (client,), (eta,) = block.clients.tolist(), block.eta.tolist()
        rng = self.feed.augmentation(block, client)
        key = noise_key(block.seed, block.round, client)
        checked = block.check is not None and bool(block.check[0])
        if aux_K is not None and self.programs.aux is not None:
            self.programs.aux.copy_(aux_K)
        single = self.programs.get(len(schedule[0]), 1, shared=True) if len(schedule) == 1 else None
        if single is not None:
            out = self.programs.buffer(1)[1][0]
            self.programs.anchor.copy_(terms.anchor)
            self.programs.fill(single, schedule[0], rng)
            self._prepare(single, self.programs.anchor, checked, key)
            rule.first_move_(out, terms)
            single.run(1.0, eta, None)
            if out.data_ptr() != delta.data_ptr():
                delta.copy_(out)
            self._keep_aux(aux_K)
            return float(single.loss)
        programs = [self.programs.get(len(rows), 1, shared=False) for rows in schedule]  # tracing uses x: not later
        x = self.programs.buffer(1)[0][0]
        x.copy_(terms.anchor)
        step = rule.affine(terms, out=self.programs.constant(1)[0])
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        source = Epoch.of(self.feed, schedule, rng)
        pointed = False
        for t, (rows, program) in enumerate(zip(schedule, programs, strict=True)):
            if program is None:
                if not pointed:
                    self.subject.point_at(x, self.programs.aux)
                    pointed = True
                total += self._autograd_step(x, self.feed.batch(rows, rng), eta, step)
                continue
            if source is None:
                self.programs.fill(program, rows, rng)
            else:
                source.fill(program, t)
            if t == 0:
                self._prepare(program, x, checked, key)
            program.run(step.rho, eta, step.c)
            total += program.loss
        torch.sub(x, terms.anchor, out=delta)
        self._keep_aux(aux_K)
        return float(total) / len(schedule)

    def _prepare(self, program: Program, x: Tensor, checked: bool, key: int) -> None:
        """Before a client's first step: the check, where it is due, and the start of its random numbers."""
        if checked:
            check_step(self.subject, program, x, self.programs.aux, self.compute, key)
        if program.draws:
            seed_torch(key)

    def _keep_aux(self, aux_K: Tensor | None) -> None:
        if aux_K is not None and self.programs.aux is not None:
            aux_K.copy_(self.programs.aux)

    def _eager(
        self, terms: rule.Terms, block: Block, schedule: list[Ints], delta: Tensor, aux_K: Tensor | None
    ) -> float:
        """One client's steps by autograd: right for every module."""
        (client,), (eta,) = block.clients.tolist(), block.eta.tolist()
        rng = self.feed.augmentation(block, client)
        x, aux = self.programs.buffer(1)[0][0], None if aux_K is None else self.programs.aux
        with torch.no_grad():
            x.copy_(terms.anchor)
            if aux is not None and aux_K is not None:
                aux.copy_(aux_K)
            step = rule.affine(terms, out=self.programs.constant(1)[0])
            self.subject.point_at(x, aux)
            self.subject.restart(noise_key(block.seed, block.round, client))
            source = Epoch.of(self.feed, schedule, rng)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for t, rows in enumerate(schedule):
            batch = self.feed.batch(rows, rng) if source is None else source.batch(t)
            total += self._autograd_step(x, batch, eta, step)
        with torch.no_grad():
            self.subject.finish(aux)
            torch.sub(x, terms.anchor, out=delta)
            self._keep_aux(aux_K)
        return float(total) / len(schedule)

    def _autograd_step(self, x: Tensor, batch: Batch, eta: float, step: rule.AffineStep) -> Tensor:
        """One step from x, at which the module points."""
        subject, device = self.subject, self.device.type
        if self.compute is None and not torch.is_autocast_enabled(device):
            loss = subject.backward(batch)
        else:
            with torch.autocast(device, self.compute or torch.bfloat16, enabled=self.compute is not None):
                loss = subject.backward(batch)
        with torch.no_grad():
            rule.advance_parts_(x, subject.parameters, [p.grad for p in subject.parameters], eta, step)
        return loss

    # -- looking on -------------------------------------------------------------------------------------------------------

    def losses(self, x_P: Tensor, clients: Ints) -> Floats:
        return np.array([self.measuring.loss(x_P, self.data.part(int(client))) for client in clients])

    def evaluate(self, x_P: Tensor, aux_K: Tensor | None, part: int) -> Evaluation:
        return self.measuring.test(x_P, aux_K, part)


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
