"""A round in which single uploads are looked at before any is counted: one client per part, the sums formed afterwards.

Worker processes add up the moves of a part as they go, so that the server never sees one. Where it must, every client is a part
of its own with weight 1: its "sum" is then D_i itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedvra.core import rule
from fedvra.core.cohort import Cohort, Floats, Ints
from fedvra.engines.pool import Engine
from fedvra.engines.worker import MAX_PARTS, Board, LocalTask, Worked
from fedvra.policies.refusals import Mask, Refusal, refused


def judge(
    board: Board,
    moves: Tensor,
    aux: Tensor | None,
    refuse: Refusal | None,
    cohort: Cohort,
    row: rule.Coefficients,
    order: Ints,
    arrived: Mask,
    mean: bool,
) -> Mask:
    """Refuse, and put the sums of steps 19 and 20 on the board as if one part had formed them; says who is counted.

    Args:
        moves, aux: what :func:`one_by_one` gave.
        refuse: None counts all.
        order: task k is that of place order[k] in the cohort.
        arrived: whose reply arrived, by place in the cohort.
        mean: whether the plain sum of moves is formed too.
    """
    came = arrived[order]
    if aux is not None:
        came &= torch.isfinite(aux).all(1).cpu().numpy()  # the rule looks at moves; buffers must be numbers at least
    kept = came.copy()
    if refuse is not None and came.any():
        work = cohort.carry[order]
        kept[came] = ~refused(refuse, moves[torch.from_numpy(came)], work[came])
    _add_up(board.sums[0, 0], moves, (cohort.omega * row.w)[order], kept)
    _add_up(board.sums[0, 1], moves, (cohort.omega * row.alpha)[order], kept)
    if mean and board.mean_sums is not None:
        _add_up(board.mean_sums[0], moves, cohort.omega[order], kept)
    if board.aux_sums is not None and aux is not None:
        _add_up(board.aux_sums[0], aux, cohort.omega[order], kept)
    counted = np.zeros(len(cohort), dtype=bool)
    counted[order] = kept
    return counted


def one_by_one(engine: Engine, board: Board, tasks: Sequence[LocalTask]) -> tuple[list[Worked], Tensor, Tensor | None]:
    """Do tasks of one client each: what each returned, and what its client sent, D_i [M, P] and its buffers [M, K]."""
    results: list[Worked] = []
    moves, aux, one = [], [], np.ones(1)
    for start in range(0, len(tasks), MAX_PARTS):
        chunk = [
            replace(task, part=k, model_weight=one, dual_weight=one, one_sum=True, aux_weight=one, mean_weight=None)
            for k, task in enumerate(tasks[start : start + MAX_PARTS])
        ]
        results += engine.map(chunk)
        moves.append(board.sums[: len(chunk), 0].clone())
        if board.aux_sums is not None:
            aux.append(board.aux_sums[: len(chunk)].clone())
    return results, torch.cat(moves), torch.cat(aux) if aux else None


def _add_up(total: Tensor, rows: Tensor, weights: Floats, kept: Mask) -> None:
    """Those kept, and no others even with weight zero: what was refused may not be finite."""
    total.zero_()
    for k in np.flatnonzero(kept).tolist():
        rule.add_weighted_(total, weights[k : k + 1], rows[k : k + 1])
