"""A cohort's local work on this machine: cut into parts for the workers, and the parts' results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from fedvra.core import rule
from fedvra.core.block import Block, Orders
from fedvra.core.cohort import Cohort, Floats, Ints, mean_over
from fedvra.core.loops import Done, Loop
from fedvra.core.record_dp import Guard
from fedvra.core.step import Sums, forms_mean
from fedvra.engines.experiment import Experiment, subset
from fedvra.engines.pool import Engine
from fedvra.engines.singles import judge, one_by_one
from fedvra.engines.worker import MAX_PARTS, Board, LocalTask, Worked, count_parts
from fedvra.local.protocol import Solver, StepPath
from fedvra.policies.refusals import Mask
from fedvra.state.client_state import Staged

Settle = Callable[[Cohort, rule.Coefficients, Done], tuple[Cohort, rule.Coefficients]]


class CohortWork:
    """Steps 9-15 for whole cohorts. Parts and their order do not depend on the workers, and so neither do the sums."""

    def __init__(self, experiment: Experiment, solver: Solver, engine: Engine, board: Board) -> None:
        self.experiment, self.solver, self.engine, self.board = experiment, solver, engine, board
        self.losses: Floats = np.empty(0)
        """The mean training loss of each member of the last cohort, over its steps."""

    def run(
        self,
        cohort: Cohort,
        row: rule.Coefficients,
        arrived: Mask,
        check: Mask,
        path: StepPath,
        staged: Staged,
        settle: Settle,
    ) -> tuple[Sums | None, Mask, Cohort, rule.Coefficients]:
        """Have it done; the sums over those who count, None where nobody does, who counts, and with which coefficients.

        Args:
            arrived: whose reply is not lost.
            check: whose first step is compared with autograd.
            staged: where the clients' new rows go.
            settle: cohort and coefficients again, once clients with loops of their own have said what they did.
        """
        refuse, deploy = self.experiment.refuse, self.experiment.deployment
        keep = arrived.astype(np.float64)
        order = np.argsort(-cohort.steps, kind="stable")  # long work first, so that workers finish together
        loops = isinstance(self.experiment.local, Loop)
        singly = refuse is not None or loops
        pieces = len(cohort) if singly else count_parts(len(cohort), self.solver.width(cohort.steps))
        parts = np.array_split(order, pieces)
        self.board.make_room(min(len(parts), MAX_PARTS))
        ratio = _common_ratio(row.alpha, row.w) if staged.anchors is None else None
        mean = forms_mean(deploy, row, staged.anchors is not None)
        tasks = [
            LocalTask(
                part=k,
                orders=self._orders(cohort, row, check, path, part),
                staged=staged.cut(part),
                dual_weight=(keep * cohort.omega * row.alpha)[part],
                model_weight=(keep * cohort.omega * row.w)[part],
                aux_weight=(keep * cohort.omega)[part],
                one_sum=ratio is not None,
                mean_weight=(keep * cohort.omega)[part] if mean else None,
            )
            for k, part in enumerate(parts)
        ]
        if singly:
            worked, moves, aux = one_by_one(self.engine, self.board, tasks)
            if loops:
                found = Worked.together([worked[k] for k in np.argsort(order)]).done
                assert found is not None
                (cohort, row), ratio = settle(cohort, row, found), None
                mean = forms_mean(deploy, row)
            counted = judge(self.board, moves, aux, refuse, cohort, row, order, arrived, mean)
            summed = 1
        else:
            worked, counted, summed = self.engine.map(tasks), arrived, len(parts)
        losses = self.losses = np.empty(len(cohort))
        losses[order] = Worked.together(worked).read()
        if not counted.any():
            return None, counted, cohort, row
        sums = self._sums(summed, ratio, mean, mean_over(subset(cohort, counted), losses[counted]))
        return sums, counted, cohort, row

    def _orders(self, cohort: Cohort, row: rule.Coefficients, check: Mask, path: StepPath, part: Ints) -> Orders:
        """What the clients at these places of the cohort are to do."""
        e, clients, steps, eta = self.experiment, cohort.clients[part], cohort.steps[part], cohort.eta[part]
        block = Block(cohort.round, e.seed, clients, steps, eta, path.name, check[part])
        rate = row.rate[part] if row.rate is not None and isinstance(e.local, Loop) else None
        gamma, alpha, decay = row.gamma[part], row.alpha[part], e.problem.decay
        guard = None if e.privacy is None else Guard(e.privacy, cohort.samples[part])
        return Orders(block, gamma, alpha, row.sigma, decay, row.kappa, row.communicates, rate=rate, guard=guard)

    def _sums(self, parts: int, ratio: float | None, mean: bool, loss: float) -> Sums:
        """What the parts added up, with the dual sum as ``ratio`` times the other where that is so."""
        board = self.board
        model = board.sums[:parts, 0].sum(0)
        dual = board.sums[:parts, 1].sum(0) if ratio is None else ratio * model
        aux = None if board.aux_sums is None else board.aux_sums[:parts].sum(0)
        moves = board.mean_sums[:parts].sum(0) if mean and board.mean_sums is not None else None
        return Sums(model, dual, aux, loss, None if self.experiment.compress_down is None else board.lam, moves)


def _common_ratio(alpha: Floats, w: Floats) -> float | None:
    """alpha_i / w_i where it is one number for all: the sums of steps 19 and 20 are then multiples of each other."""
    if not w.all():
        return None
    ratio = alpha / w
    return float(ratio[0]) if np.all(ratio == ratio[0]) else None


def traffic(
    experiment: Experiment, x0: Tensor, aux: Tensor | None, row: rule.Coefficients, asked: int, arrived: int
) -> dict[str, int]:
    """Bytes of a round: as sent here (one vector and one scalar up; lam goes down where sigma = 1), and as published.

    As published means without compression.
    """
    if not row.communicates:
        return {}
    vector = x0.numel() * x0.element_size()
    up, down = (
        vector if each is None else each.nbytes(x0.numel(), x0.element_size())
        for each in (experiment.compress, experiment.compress_down)
    )
    scalar = 8
    buffers = 0 if aux is None else aux.numel() * aux.element_size()
    original = experiment.algorithm.original
    return {
        "up": arrived * (up + buffers + scalar),
        "down": asked * ((2 if row.sigma else 1) * down + buffers),
        "up_original": arrived * (original.up * vector + buffers),
        "down_original": asked * (original.down * vector + buffers),
    }
