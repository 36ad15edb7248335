"""One client's local steps: each a replay of recorded calls, or by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from fedvra.core import rule
from fedvra.core.block import Block
from fedvra.core.cohort import Ints
from fedvra.core.optimisers import LocalOptimiser
from fedvra.core.streams import noise_key
from fedvra.local.loan import Batch
from fedvra.local.programs import Epoch, Programs
from fedvra.local.randomness import seed_torch
from fedvra.local.replay import Program, check_step
from fedvra.local.stepping import Motion, Parts, begin
from fedvra.local.subject import Subject


class OneClient:
    """The paths ``traced`` and ``eager`` of a solver, whose programs and buffers it uses."""

    def __init__(self, subject: Subject, programs: Programs, compute: torch.dtype | None) -> None:
        self.subject, self.programs, self.compute = subject, programs, compute
        self.feed, self.spec, self.device = programs.feed, subject.spec, programs.feed.device

    def traced(
        self,
        terms: rule.Terms,
        block: Block,
        schedule: list[Ints],
        delta: Tensor,
        aux_K: Tensor | None,
        local: LocalOptimiser,
    ) -> Tensor:
        """One client's steps, each a replay; a single step goes straight from the anchor to the move."""
        (client,), (eta,) = block.clients.tolist(), block.eta.tolist()
        rng = self.feed.augmentation(block, client)
        key = noise_key(block.seed, block.round, client)
        checked = block.check is not None and bool(block.check[0])
        if aux_K is not None and self.programs.aux is not None:
            self.programs.aux.copy_(aux_K)
        alone = len(schedule) == 1 and local.plain
        single = self.programs.get(len(schedule[0]), 1, shared=True) if alone else None
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
            return single.loss.to(torch.float64, copy=True)
        apart = not local.plain
        programs = [self.programs.get(len(rows), 1, apart=apart) for rows in schedule]  # tracing uses x: not later
        x = self.programs.buffer(1)[0][0]
        x.copy_(terms.anchor)
        if apart:  # an optimiser may work on the module's own parameters
            self.subject.point_at(x, self.programs.aux)
        step, motion = self._begin(terms, len(schedule), x, local)
        if motion is not None:
            eta = -1.0
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        source = Epoch.of(self.feed, schedule, rng)
        coming = self.feed.batches(schedule, rng) if source is None else None
        pointed = apart
        for t, (rows, program) in enumerate(zip(schedule, programs, strict=True)):
            if program is None:
                if not pointed:
                    self.subject.point_at(x, self.programs.aux)
                    pointed = True
                batch = self.feed.batch(rows) if coming is None else next(coming)
                total += self._autograd_step(x, batch, eta, step, motion)
                continue
            if source is not None:
                source.fill(program, t)
            elif coming is not None:
                program.fill(next(coming))
            if t == 0:
                self._prepare(program, x, checked, key)
                if apart:  # the check leaves the module elsewhere
                    self.subject.point_at(x, self.programs.aux)
            program.run(step.rho, eta, step.c)
            if motion is not None:
                motion.step()
            total += program.loss
        torch.sub(x, terms.anchor, out=delta)
        self._keep_aux(aux_K)
        return total / len(schedule)

    def _begin(
        self, terms: rule.Terms, steps: int, x: Tensor, local: LocalOptimiser
    ) -> tuple[rule.AffineStep, Motion | None]:
        """How a gradient is put to use: at once, or (with eta = -1) gathered for an optimiser that then moves x."""
        out = self.programs.constant(1)[0]
        if local.plain:
            return rule.affine(terms, out=out), None
        u = self.programs.gradient(1)[0]
        parts: Parts = list(self.subject.parameters), list(self.spec.views(u).values())
        motion = begin(local, terms, steps, x, u, out, parts)
        return motion.gather, motion

    def _prepare(self, program: Program, x: Tensor, checked: bool, key: int) -> None:
        """Before a client's first step: the check, where it is due, and the start of its random numbers."""
        if checked:
            check_step(self.subject, program, x, self.programs.aux, self.compute, key)
        if program.draws:
            seed_torch(key)

    def _keep_aux(self, aux_K: Tensor | None) -> None:
        if aux_K is not None and self.programs.aux is not None:
            aux_K.copy_(self.programs.aux)

    def eager(
        self,
        terms: rule.Terms,
        block: Block,
        schedule: list[Ints],
        delta: Tensor,
        aux_K: Tensor | None,
        local: LocalOptimiser,
    ) -> Tensor:
        """One client's steps by autograd: right for every module."""
        (client,), (eta,) = block.clients.tolist(), block.eta.tolist()
        rng = self.feed.augmentation(block, client)
        x, aux = self.programs.buffer(1)[0][0], None if aux_K is None else self.programs.aux
        with torch.no_grad():
            x.copy_(terms.anchor)
            if aux is not None and aux_K is not None:
                aux.copy_(aux_K)
            self.subject.point_at(x, aux)
            step, motion = self._begin(terms, len(schedule), x, local)
            self.subject.restart(noise_key(block.seed, block.round, client))
            source = Epoch.of(self.feed, schedule, rng)
        coming = self.feed.batches(schedule, rng) if source is None else map(source.batch, range(len(schedule)))
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in coming:
            total += self._autograd_step(x, batch, eta, step, motion)
        with torch.no_grad():
            self.subject.finish(x, aux)
            torch.sub(x, terms.anchor, out=delta)
            self._keep_aux(aux_K)
        return total / len(schedule)

    def _autograd_step(
        self, x: Tensor, batch: Batch, eta: float, step: rule.AffineStep, motion: Motion | None
    ) -> Tensor:
        """One step from x, at which the module points."""
        subject, device = self.subject, self.device.type
        if self.compute is None and not torch.is_autocast_enabled(device):
            loss = subject.backward(batch)
        else:
            with torch.autocast(device, self.compute or torch.bfloat16, enabled=self.compute is not None):
                loss = subject.backward(batch)
        with torch.no_grad():
            found = [p.grad for p in subject.parameters]
            if motion is None:
                rule.advance_parts_(x, subject.views(x), found, eta, step)
            else:
                rule.advance_parts_(motion.u, list(self.spec.views(motion.u).values()), found, -1.0, step)
                motion.step()
        return loss
