"""What one worker process does with a part of a cohort: read state, take local steps, stage new state, add up.

The order and the size of the parts are the server's choice and do not depend on the number of workers; nothing here depends
on which worker runs a part. Vectors travel through shared memory, messages carry numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvra import rule
from fedvra.cohort import Floats, Ints
from fedvra.problems.base import Block, Evaluation, Private, Solver, StepPath
from fedvra.replay import FirstStep
from fedvra.segments import AddressBook, RowReader, shared_tensor

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
class Slots:
    """Where in a store each client's old row is (-1: none, so zero) and its new one goes."""

    read: Ints
    write: Ints
    segments: AddressBook


@dataclass(frozen=True)
class LocalTask:
    """Local work for one part of a cohort; arrays over its clients."""

    part: int
    block: Block
    gamma: Floats
    alpha: Floats
    dual_weight: Floats
    """omega_i*alpha_i; zero where the reply will be lost."""
    model_weight: Floats
    """omega_i*w_i, likewise."""
    dual_ratio: float | None
    """dual_weight / model_weight where it is the same for the whole cohort: then one sum serves both."""
    aux_weight: Floats
    sigma: float
    decay: float
    anchor_kappa: float
    """kappa of a client's own anchor step, where the round is without communication."""
    communicates: bool
    duals: Slots | None
    anchors: Slots | None
    aux: Slots | None
    y: Slots | None


@dataclass(frozen=True)
class EvaluateTask:
    part: int


@dataclass(frozen=True)
class LossesTask:
    clients: Ints


Places = tuple[RowReader, Ints, Ints]
"""A store, and the slots to read from and to write to."""

Task = LocalTask | EvaluateTask | LossesTask


class Board:
    """What the server broadcasts, and a place for each part's sums: memory that processes share, or an accelerator's."""

    def __init__(self, width: int, aux_width: int, dtype: torch.dtype, device: torch.device) -> None:
        def room(*shape: int) -> Tensor:
            return (
                shared_tensor(shape, dtype) if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)
            )

        self.x0 = room(width)
        self.lam = room(width)
        self.aux = room(aux_width) if aux_width else None
        self.sums = room(MAX_PARTS, 2, width)
        self.aux_sums = room(MAX_PARTS, aux_width) if aux_width else None


class Worker:
    """Runs tasks against the board and the stores; the same in a worker process and in the server's own."""

    def __init__(self, solver: Solver, board: Board, stores: dict[str, RowReader]) -> None:
        self.solver, self.board, self.stores = solver, board, stores

    def do(self, task: Task) -> Floats | Evaluation:
        match task:
            case LocalTask():
                with torch.no_grad():
                    return self._local(task)
            case EvaluateTask(part):
                return self.solver.evaluate(self.board.x0, self.board.aux, part)
            case LossesTask(clients):
                return self.solver.losses(self.board.x0, clients)

    def _local(self, task: LocalTask) -> Floats:
        sums, losses = self.board.sums[task.part], []
        sums[: 1 if task.dual_ratio is not None else 2].zero_()
        if self.board.aux_sums is not None:
            self.board.aux_sums[task.part].zero_()
        if task.block.path != self.solver.path.name:
            self.solver.slower(StepPath(task.block.path))
        width = self.solver.first_width if task.block.steps.max() == 1 else self.solver.width
        for start in range(0, len(task.block.clients), width):
            span = slice(start, start + width)
            losses.append(self._clients(task, span, sums))
        return np.concatenate(losses)

    def _clients(self, task: LocalTask, span: slice, sums: Tensor) -> Floats:
        """Steps 9-15 for the clients of one span, and their share of the sums of steps 19-20."""
        block = task.block.cut(span)
        x0, lam = self.board.x0, self.board.lam
        duals, anchors = self._slots("duals", task.duals, span), self._slots("anchors", task.anchors, span)
        if anchors is None and task.y is None and self.board.aux is None and np.all(block.eta == block.eta[0]):
            first = self.solver.first_step(x0, block)
            if first is not None:
                self._one_step(task, span, sums, first, duals, float(block.eta[0]))
                return np.asarray(first.loss.double().cpu().numpy())
        h = [rule.correction(row, lam, task.sigma) for row in self._old_rows(duals, len(block.clients))]
        anchor = [x0 if row is None else row for row in self._old_rows(anchors, len(block.clients))]
        terms = [
            rule.Terms(anchor[k], h[k], float(block.eta[k]), float(task.gamma[span][k]), task.decay)
            for k in range(len(block.clients))
        ]
        private = self._start_private(task, block, span)

        with torch.enable_grad():
            delta, losses = self.solver.solve(terms, private, block)  # steps 9-13

        move = delta if anchors is None else delta + (torch.stack(anchor) - x0)
        rule.add_weighted_(sums[0], task.model_weight[span], move)  # step 15
        if task.dual_ratio is None:
            rule.add_weighted_(sums[1], task.dual_weight[span], delta)
        if duals is not None:
            for k, alpha in enumerate(task.alpha[span]):
                lam_i = rule.dual_step(h[k], delta[k], float(alpha), out=self._new_row(duals, k))  # step 14
                if anchors is not None and not task.communicates:
                    self._write_row(anchors, k, rule.anchor_step(anchor[k] + delta[k], lam_i, task.anchor_kappa))
                self._write_row(duals, k, lam_i)
        self._finish_private(task, span, private)
        return losses

    def _one_step(
        self, task: LocalTask, span: slice, sums: Tensor, first: FirstStep, duals: Places | None, eta: float
    ) -> None:
        """Everybody takes one step from x0: no D_i is ever written down, only its share of the sums and of the new dual."""
        x0, lam = self.board.x0, self.board.lam
        weighted = [(sums[0], task.model_weight[span])]
        if task.dual_ratio is None:
            weighted.append((sums[1], task.dual_weight[span]))
        for total, weights in weighted:
            first.add_sum_(total, torch.as_tensor(weights).to(total), -eta)
            rule.add_first_moves_(total, x0, None, float(weights.sum()), eta, task.decay)
        alphas, pulls = task.alpha[span].tolist(), {}
        for k, (row, alpha) in enumerate(zip(self._old_rows(duals, len(alphas)), alphas, strict=True)):
            h = rule.correction(row, lam, task.sigma)
            if duals is not None:
                if alpha not in pulls:
                    pulls[alpha] = rule.dual_pull(x0, alpha, eta, task.decay)
                lam_i = rule.first_dual(pulls[alpha], h, alpha, eta, out=self._new_row(duals, k))
                first.add_row_(k, lam_i, alpha * eta)
                self._write_row(duals, k, lam_i)
            for total, weights in weighted:  # after the dual, which is still in the cache while its gradient is added
                rule.add_first_moves_(total, x0, h, float(weights[k]), eta, 0.0)

    def _start_private(self, task: LocalTask, block: Block, span: slice) -> Private:
        """Copies of what the clients will change: the committed rows stay as they are until the reply is counted."""
        aux = y = None
        if self.board.aux is not None:
            old = self._old_rows(self._slots("aux", task.aux, span), len(block.clients))
            aux = torch.stack([self.board.aux if row is None else row for row in old])
        if task.y is not None:
            old = self._old_rows(self._slots("y", task.y, span), len(block.clients))
            clients = block.clients.tolist()
            y = torch.stack(
                [self.solver.initial_y(c) if row is None else row for c, row in zip(clients, old, strict=True)]
            )
        return Private(aux, y)

    def _finish_private(self, task: LocalTask, span: slice, private: Private) -> None:
        for name, slots, rows in (("aux", task.aux, private.aux), ("y", task.y, private.y)):
            places = self._slots(name, slots, span)
            if places is not None and rows is not None:
                for k, row in enumerate(rows):
                    self._write_row(places, k, row)
        if private.aux is not None and self.board.aux_sums is not None:
            rule.add_weighted_(self.board.aux_sums[task.part], task.aux_weight[span], private.aux)

    def _slots(self, store: str, slots: Slots | None, span: slice) -> Places | None:
        if slots is None:
            return None
        reader = self.stores[store]
        reader.attach(slots.segments)
        return reader, slots.read[span], slots.write[span]

    def _old_rows(self, places: Places | None, count: int) -> list[Tensor | None]:
        """Each client's committed row, in the run's dtype and not to be written to; None where it has none."""
        if places is None:
            return [None] * count
        reader, read, _ = places
        return [None if slot < 0 else reader.load(int(slot)).to(self.board.x0) for slot in read]

    def _new_row(self, places: Places, k: int) -> Tensor | None:
        """Where a client's new row may be computed in place; None where the store keeps it on disk or in another dtype."""
        reader, _, write = places
        return reader.place(int(write[k])) if reader.dtype == self.board.x0.dtype else None

    def _write_row(self, places: Places, k: int, row: Tensor) -> None:
        reader, _, write = places
        reader.save(int(write[k]), row)
