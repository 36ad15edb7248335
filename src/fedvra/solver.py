"""Local steps on a model, by one of three paths that agree up to rounding.

``traced``: one client at a time, each step a replay of recorded calls (``fedvra.replay``). ``block``: several clients at once,
for small models, where a kernel call costs more than its arithmetic. ``eager``: autograd, for every model that the others
refuse. Which path a model takes follows from the model and the batch size alone, never from timings or from what a worker did
before, so that the same run gives the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedvra import rule
from fedvra.cohort import Floats, Ints
from fedvra.data.dataset import FederatedData
from fedvra.errors import require
from fedvra.feed import Feed
from fedvra.flat import FlatSpec
from fedvra.problems.base import Block, Evaluation, Private, Solver, SolverSettings
from fedvra.programs import Epoch, Programs
from fedvra.replay import CannotReplayError, FirstStep
from fedvra.streams import Purpose, stream

if TYPE_CHECKING:
    from fedvra.problems.supervised import Supervised

TEST_PART = 1000
"""Test samples in a task; fixed, so that sums come out the same however many workers share them."""
TEST_BATCH = 100
"""Images that convolutions see at once: with 1000 the activations leave the caches (cnn on CIFAR-10: 1.8 x slower)."""
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
        self.problem, self.data = problem, data
        self.device = torch.device(settings.device)
        self.module = problem.module().to(self.device)
        self.module.train()
        self.spec = FlatSpec.of_parameters(self.module)
        self.aux_spec = FlatSpec.of_float_buffers(self.module)
        convolves = any(isinstance(m, nn.Conv2d) for m in self.module.modules())
        colours = data.dataset.inputs.ndim == 4 and data.dataset.inputs.shape[1] > 1
        self.compute = PRECISIONS[settings.precision]
        if (
            self.compute is torch.bfloat16
            and self.device.type == "cpu"
            and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        ):
            warnings.warn("this processor has no native bfloat16 arithmetic: float32 is faster here.", stacklevel=2)
        dtype = self.compute or self.spec.dtype
        self.feed = Feed(data, settings.batch_size, dtype, convolves and colours, self.device)
        test = data.dataset.test_inputs
        self.test_parts = 0 if test is None else -(-len(test) // TEST_PART)
        self._viewed_at_once = TEST_BATCH if convolves else TEST_PART

        self._gradient = torch.zeros(self.spec.size, dtype=self.spec.dtype, device=self.device)
        # BatchNorm counts its batches, which a worker must not carry from one client to the next.
        self._counters = [(b, b.clone()) for b in self.module.buffers() if not b.is_floating_point()]
        self.programs = Programs(self.module, problem.loss, self.feed, self._usual_batch(), self.compute)
        self.reason = ""
        """Why the path is not a faster one."""
        self.path, self.width = self._choose(settings, convolves)
        self.first_width = FIRST_MOST if self.path == "block" else self.width

    # -- which path -----------------------------------------------------------------------------------------------------

    def _choose(self, settings: SolverSettings, convolves: bool) -> tuple[str, int]:
        if settings.path == "eager":
            return "eager", 1
        if self.aux_spec.size:
            self.reason = "the model has float buffers that training changes"
            return "eager", 1
        try:
            self.programs.get(self._usual_batch(), 1, shared=False)
        except CannotReplayError as refusal:
            self.reason = str(refusal)
            return "eager", 1
        width = self._block_width(settings, convolves)
        if width == 1:
            return "traced", 1
        try:
            self.programs.get(self._usual_batch(), width, shared=False)
        except CannotReplayError as refusal:
            self.reason = str(refusal)
            return "traced", 1
        return "block", width

    def _block_width(self, settings: SolverSettings, convolves: bool) -> int:
        if settings.path == "traced" or self.compute is not None:
            return 1
        if settings.path == "block" or settings.block:
            return settings.block or BLOCK_MOST
        size = self.spec.size
        if convolves or size * len(self._usual_batch()) > BLOCK_WORK:
            return 1
        return max(1, min(BLOCK_MOST, BLOCK_NUMBERS // size))

    def _usual_batch(self) -> Ints:
        """The samples of an ordinary batch: what the path is chosen for."""
        largest = int(np.argmax(self.data.sizes))
        return self.data.part(largest)[: self.feed.batch_size]

    # -- steps 9-13 -----------------------------------------------------------------------------------------------------

    def solve(self, terms: Sequence[rule.Terms], private: Private, block: Block) -> tuple[Tensor, Floats]:
        x, delta = self.programs.buffer(len(terms))
        schedules = [self.feed.schedule(block, int(c), int(q)) for c, q in zip(block.clients, block.steps, strict=True)]
        if len(terms) > 1 and self.path == "block" and _same_shapes(schedules):
            with torch.no_grad():
                return delta, self._solve_block(terms, block, schedules, x, delta)
        losses = np.empty(len(terms))
        for k, (one, schedule) in enumerate(zip(terms, schedules, strict=True)):
            if self.path == "eager":
                aux = None if private.aux is None else private.aux[k]
                losses[k] = self._eager(one, block.row(k), schedule, delta[k], aux)
            else:
                with torch.no_grad():
                    losses[k] = self._traced(one, block.row(k), schedule, delta[k])
        return delta, losses

    def first_step(self, x0: Tensor, block: Block) -> FirstStep | None:
        """Gradients at x0 for clients that take one step each, on the block path."""
        if self.path != "block" or len(block.clients) == 1 or block.steps.max() > 1:
            return None
        schedules = [self.feed.schedule(block, int(c), 1) for c in block.clients]
        if not _same_shapes(schedules):
            return None
        with torch.no_grad():
            first = self.programs.first(schedules[0][0], len(schedules))
            if first is None:
                return None
            self.programs.anchor.copy_(x0)
            self.programs.fill_block(
                first, schedules, 0, [self.feed.augmentation(block, int(c)) for c in block.clients]
            )
            first.run()
        return first

    def _traced(self, terms: rule.Terms, block: Block, schedule: list[Ints], delta: Tensor) -> float:
        """One client's steps, each a replay; a single step goes straight from the anchor to the move."""
        (client,), (eta,) = block.clients.tolist(), block.eta.tolist()
        rng = self.feed.augmentation(block, client)
        single = self.programs.get(schedule[0], 1, shared=True) if len(schedule) == 1 else None
        if single is not None:
            out = self.programs.buffer(1)[1][0]
            self.programs.anchor.copy_(terms.anchor)
            self.programs.fill(single, schedule[0], rng)
            rule.first_move_(out, terms)
            single.run(1.0, eta, None)
            if out.data_ptr() != delta.data_ptr():
                delta.copy_(out)
            return float(single.loss)
        programs = [
            self.programs.get(rows, 1, shared=False) for rows in schedule
        ]  # tracing uses x: not while it is in use
        x = self.programs.buffer(1)[0][0]
        x.copy_(terms.anchor)
        step = rule.affine(terms, out=self.programs.constant(1)[0])
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        source = Epoch(self.feed, schedule) if rng is None else None
        for t, (rows, program) in enumerate(zip(schedule, programs, strict=True)):
            if program is None:
                total += self._autograd_step(x, self.feed.inputs(rows, rng), self.feed.targets(rows), eta, step)
                continue
            if source is None:
                self.programs.fill(program, rows, rng)
            else:
                source.fill(program, t)
            program.run(step.rho, eta, step.c)
            total += program.loss
        torch.sub(x, terms.anchor, out=delta)
        return float(total) / len(schedule)

    def _solve_block(
        self, terms: Sequence[rule.Terms], block: Block, schedules: list[list[Ints]], x: Tensor, delta: Tensor
    ) -> Floats:
        """All clients in step; one that has done its Q_i steps is noted down and goes on with nobody watching."""
        steps = block.steps
        generators = [self.feed.augmentation(block, int(c)) for c in block.clients]
        programs = [self.programs.for_block(schedules, t) for t in range(int(steps.max()))]
        rho, eta, c = self._block_coefficients(terms, block)
        for row, one in zip(x, terms, strict=True):
            row.copy_(one.anchor)
        total = torch.zeros(len(steps), dtype=torch.float64, device=self.device)
        for t, program in enumerate(programs):
            self.programs.fill_block(program, schedules, t, generators)
            program.run(rho, eta, c)
            total += program.loss * torch.from_numpy(steps > t).to(self.device)
            for k in np.flatnonzero(steps == t + 1).tolist():
                torch.sub(x[k], terms[k].anchor, out=delta[k])
        return np.asarray(total.cpu().numpy() / steps)

    def _block_coefficients(
        self, terms: Sequence[rule.Terms], block: Block
    ) -> tuple[float | Tensor, float | Tensor, Tensor | None]:
        """rho, eta and c of a block: numbers where all clients agree, else one per client."""
        constants = self.programs.constant(len(terms))
        rows = [rule.affine(one, out=row) for row, one in zip(constants, terms, strict=True)]
        for row, step in zip(constants, rows, strict=True):
            if step.c is None:
                row.zero_()
        c = None if all(step.c is None for step in rows) else constants
        rho = np.array([float(step.rho) for step in rows])
        if np.all(rho == rho[0]) and np.all(block.eta == block.eta[0]):
            return float(rho[0]), float(block.eta[0]), c
        like = self.programs.anchor
        return torch.as_tensor(rho).to(like), torch.as_tensor(block.eta).to(like), c

    def _eager(
        self, terms: rule.Terms, block: Block, schedule: list[Ints], delta: Tensor, aux_K: Tensor | None
    ) -> float:
        """One client's steps by autograd: right for every module."""
        (client,), (eta,) = block.clients.tolist(), block.eta.tolist()
        rng = self.feed.augmentation(block, client)
        for counter, start in self._counters:
            counter.copy_(start)
        torch.manual_seed(int(stream(block.seed, Purpose.MODEL_NOISE, block.round, client).integers(2**62)))
        x = self.programs.buffer(1)[0][0]
        with torch.no_grad():
            x.copy_(terms.anchor)
            step = rule.affine(terms, out=self.programs.constant(1)[0])
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for rows in schedule:
            total += self._autograd_step(x, self.feed.inputs(rows, rng), self.feed.targets(rows), eta, step, aux_K)
        with torch.no_grad():
            torch.sub(x, terms.anchor, out=delta)
        return float(total) / len(schedule)

    def _autograd_step(
        self, x: Tensor, inputs: Tensor, targets: Tensor, eta: float, step: rule.Affine, aux_K: Tensor | None = None
    ) -> Tensor:
        self._point_at(x, aux_K)
        self.module.train()
        self._gradient.zero_()
        with (
            torch.enable_grad(),
            torch.autocast(self.device.type, self.compute or torch.bfloat16, enabled=self.compute is not None),
        ):
            loss = self.problem.loss(self.module(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            rule.advance_(x, self._gradient, eta, step)
        return loss.detach()

    # -- looking on -------------------------------------------------------------------------------------------------------

    def losses(self, x_P: Tensor, clients: Ints) -> Floats:
        values = np.zeros(len(clients))
        for k, client in enumerate(clients):
            rows = torch.from_numpy(self.data.part(int(client)))
            dataset = self.data.dataset
            values[k] = self._measure(x_P, None, dataset.inputs[rows], dataset.targets[rows]).loss / len(rows)
        return values

    def evaluate(self, x_P: Tensor, aux_K: Tensor | None, part: int) -> Evaluation:
        dataset = self.data.dataset
        assert dataset.test_inputs is not None
        assert dataset.test_targets is not None
        span = slice(part * TEST_PART, (part + 1) * TEST_PART)
        return self._measure(x_P, aux_K, dataset.test_inputs[span], dataset.test_targets[span])

    @torch.no_grad()
    def _measure(self, x_P: Tensor, aux_K: Tensor | None, inputs: Tensor, targets: Tensor) -> Evaluation:
        self._point_at(x_P, aux_K)
        self.module.eval()
        targets = targets.to(self.device)
        pieces = inputs.split(self._viewed_at_once)  # type: ignore[no-untyped-call]
        outputs = torch.cat([self.module(self.feed.prepared(piece, dtype=self.spec.dtype)) for piece in pieces])
        self.module.train()
        loss = float(self.problem.loss(outputs, targets)) * len(targets)
        labels = outputs.ndim == 2 and not targets.is_floating_point()
        correct = float((outputs.argmax(1) == targets).sum()) if labels else float("nan")
        return Evaluation(correct, loss, len(targets))

    def _point_at(self, x_P: Tensor, aux_K: Tensor | None) -> None:
        """Let the module's parameters, gradients and buffers be views of the flat vectors: no copies in either direction."""
        views, gradients = self.spec.views(x_P), self.spec.views(self._gradient)
        for name, parameter in self.module.named_parameters():
            parameter.data = views[name]
            parameter.grad = gradients[name]
        if aux_K is not None:
            buffers = self.aux_spec.views(aux_K)
            for name, buffer in self.module.named_buffers():
                if name in buffers:
                    buffer.data = buffers[name]


def _same_shapes(schedules: list[list[Ints]]) -> bool:
    """Whether the clients' batches have the same sizes, step by step, as far as each goes."""
    longest = [len(batch) for batch in max(schedules, key=len)]
    return all(len(batch) == longest[t] for schedule in schedules for t, batch in enumerate(schedule))
