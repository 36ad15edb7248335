"""Local steps of several clients at once: their rows of one matrix move together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedvra.core import rule
from fedvra.core.block import Block
from fedvra.core.cohort import Ints
from fedvra.core.optimisers import SGD, LocalOptimiser
from fedvra.local.programs import Programs, place_block
from fedvra.local.replay import check_block
from fedvra.local.stepping import begin_block

Columns = tuple[float | Tensor, float | Tensor, Tensor | None]


def solve_block(
    programs: Programs,
    terms: Sequence[rule.Terms],
    block: Block,
    schedules: list[list[Ints]],
    local: LocalOptimiser,
) -> Tensor:
    """Every client's steps, in step; the row of one that has done its Q_i is copied out, and what follows is not looked at.

    The moves are left in the programs' buffer; returns the mean training losses.
    """
    steps, feed, (x, delta) = block.steps, programs.feed, programs.buffer(len(terms))
    generators = [feed.augmentation(block, int(c)) for c in block.clients]
    ready = [programs.for_block(schedules, t, apart=not local.plain) for t in range(int(steps.max()))]
    for row, one in zip(x, terms, strict=True):
        row.copy_(one.anchor)
    motion = None
    rho: float | Tensor
    eta: float | Tensor
    if local.plain:
        rho, eta, c = _coefficients(programs, terms, block)
    else:
        assert isinstance(local, SGD)  # the others go one at a time
        u, constants = programs.gradient(len(terms)), programs.constant(len(terms))
        motion = begin_block(local, terms, steps.tolist(), x, u, constants)
        (rho, c), eta = motion.gather, -1.0
    total = torch.zeros(len(steps), dtype=torch.float64, device=feed.device)
    working = torch.from_numpy(steps > np.arange(steps.max())[:, None]).to(feed.device)
    coming = feed.ahead(lambda t: programs.block_batch(schedules, t, generators), range(len(ready)))
    for t, program in enumerate(ready):
        place_block(program, next(coming))
        if t == 0 and block.check is not None and block.check.any():
            check_block(programs.subject, program, x, x.clone(), np.flatnonzero(block.check).tolist())
        program.run(rho, eta, c)
        if motion is not None:
            motion.step()
        total += program.loss * working[t]
        for k in np.flatnonzero(steps == t + 1).tolist():
            torch.sub(x[k], terms[k].anchor, out=delta[k])
    return total / torch.from_numpy(steps).to(feed.device)


def _coefficients(programs: Programs, terms: Sequence[rule.Terms], block: Block) -> Columns:
    """rho, eta and c of a block: numbers where all clients agree, else one per client."""
    constants = programs.constant(len(terms))
    rows = [rule.affine(one, out=row) for row, one in zip(constants, terms, strict=True)]
    for row, step in zip(constants, rows, strict=True):
        if step.c is None:
            row.zero_()
    c = None if all(step.c is None for step in rows) else constants
    rho = np.array([float(step.rho) for step in rows])
    if np.all(rho == rho[0]) and np.all(block.eta == block.eta[0]):
        return float(rho[0]), float(block.eta[0]), c
    like = programs.anchor
    return torch.as_tensor(rho).to(like), torch.as_tensor(block.eta).to(like), c


def same_shapes(schedules: list[list[Ints]]) -> bool:
    """Whether the clients' batches have the same sizes, step by step, as far as each goes."""
    longest = [len(batch) for batch in max(schedules, key=len)]
    return all(len(batch) == longest[t] for schedule in schedules for t, batch in enumerate(schedule))
