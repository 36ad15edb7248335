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
from fedvra.problems.base import Block, Evaluation, Private, Solver
from fedvra.store import RowReader, SegmentAddress, shared_tensor

MIN_PARTS = 4
"""Blocks of clients are made smaller where a cohort would otherwise give fewer parts than so many, to keep workers busy."""
MAX_PARTS = 64
"""A cohort is cut into at most so many parts, each with its own place for partial sums."""


@dataclass(frozen=True)
class Slots:
    """Where in a store each client's old row is (-1: none, so zero) and its new one goes."""

    read: Ints
    write: Ints
    segments: list[SegmentAddress]


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
    """The shared memory of a run: what the server broadcasts, and a place for each part's sums."""

    def __init__(self, width: int, aux_width: int, dtype: torch.dtype) -> None:
        self.x0 = shared_tensor((width,), dtype)
        self.lam = shared_tensor((width,), dtype)
        self.aux = shared_tensor((aux_width,), dtype) if aux_width else None
        self.sums = shared_tensor((MAX_PARTS, 2, width), dtype)
        self.aux_sums = shared_tensor((MAX_PARTS, aux_width), dtype) if aux_width else None


class Worker:
    """Runs tasks against the board and the stores; the same in a worker process and in the server's own."""

    def __init__(self, solver: Solver, board: Board, stores: dict[str, RowReader]) -> None:
        self.solver, self.board, self.stores = solver, board, stores
        self._buffers: dict[tuple[str, int, int], Tensor] = {}

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
        for start in range(0, len(task.block.clients), self.solver.width):
            span = slice(start, start + self.solver.width)
            losses.append(self._clients(task, span, sums))
        return np.concatenate(losses)

    def _clients(self, task: LocalTask, span: slice, sums: Tensor) -> Floats:
        """Steps 9-15 for the clients of one span, and their share of the sums of steps 19-20."""
        block = _cut(task.block, span)
        x0 = self.board.x0
        duals = self._slots("duals", task.duals, span)
        anchors = self._slots("anchors", task.anchors, span)
        anchor = x0 if anchors is None else self._read("anchors", anchors, default=x0)
        h = None if duals is None else rule.correction(self._read("duals", duals), self.board.lam, task.sigma)
        private = self._start_private(task, block, span)
        terms = rule.Terms(anchor, h, _column(block.eta, x0), _column(task.gamma[span], x0), task.decay)

        with torch.enable_grad():
            delta, losses = self.solver.solve(terms, private, block)  # steps 9-13

        move = delta if anchors is None else delta + (anchor - x0)
        rule.add_weighted_(sums[0], task.model_weight[span], move)  # step 15
        if task.dual_ratio is None:
            rule.add_weighted_(sums[1], task.dual_weight[span], delta)
        if duals is not None:
            assert h is not None
            lam_i = rule.dual_step(h, delta, _column(task.alpha[span], x0), out=self._in_place(duals))  # step 14
            self._write(duals, lam_i)
            if anchors is not None and not task.communicates:
                self._write(anchors, rule.anchor_step(anchor + delta, lam_i, task.anchor_kappa))
        self._finish_private(task, span, private)
        return losses

    def _start_private(self, task: LocalTask, block: Block, span: slice) -> Private:
        aux = y = None
        if self.board.aux is not None:
            slots = self._slots("aux", task.aux, span)
            start = self.board.aux if slots is None else self._read("aux", slots, default=self.board.aux)
            aux = start.expand(len(block.clients), -1).clone()
        y_slots = self._slots("y", task.y, span)
        if y_slots is not None:
            y = self._read("y", y_slots).clone()
            for k, (client, slot) in enumerate(zip(block.clients, y_slots[1], strict=True)):
                if slot < 0:
                    y[k] = self.solver.initial_y(int(client))
        return Private(aux, y)

    def _finish_private(self, task: LocalTask, span: slice, private: Private) -> None:
        for name, slots, rows in (("aux", task.aux, private.aux), ("y", task.y, private.y)):
            where = self._slots(name, slots, span)
            if where is not None and rows is not None:
                self._write(where, rows)
        if private.aux is not None and self.board.aux_sums is not None:
            weight = torch.as_tensor(task.aux_weight[span], dtype=private.aux.dtype)
            self.board.aux_sums[task.part] += weight @ private.aux

    def _slots(self, store: str, slots: Slots | None, span: slice) -> Places | None:
        if slots is None:
            return None
        reader = self.stores[store]
        reader.attach(slots.segments)
        return reader, slots.read[span], slots.write[span]

    def _read(self, name: str, slots: Places, default: Tensor | None = None) -> Tensor:
        """The old rows as a block [M, P], not to be written to; ``default`` (or zero) where there are none."""
        reader, read, _ = slots
        if len(read) == 1 and read[0] >= 0 and reader.dtype == self.board.x0.dtype:
            return reader.row(int(read[0])).unsqueeze(0)
        block = self._buffer(name, len(read), reader.width)
        for k, slot in enumerate(read):
            if slot >= 0:
                block[k] = reader.row(int(slot))
            elif default is not None:
                block[k] = default
            else:
                block[k].zero_()
        return block

    def _in_place(self, slots: Places) -> Tensor | None:
        """Where a single client's new row can be computed in place; None for blocks and for rows of another dtype."""
        reader, _, write = slots
        if len(write) == 1 and reader.dtype == self.board.x0.dtype:
            return reader.row(int(write[0])).unsqueeze(0)
        return None

    def _write(self, slots: Places, rows: Tensor) -> None:
        """Put the new rows into their place (they may be there already) and give back pages that live on disk."""
        reader, read, write = slots
        for k, slot in enumerate(write):
            target = reader.row(int(slot))
            if target.data_ptr() != rows[k].data_ptr():
                target.copy_(rows[k])
            reader.release(int(slot))
            if read[k] >= 0:
                reader.release(int(read[k]))

    def _buffer(self, name: str, rows: int, width: int) -> Tensor:
        """A block that is used again and again: fresh memory costs page faults."""
        key = (name, rows, width)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(rows, width, dtype=self.board.x0.dtype)
        return self._buffers[key]


def _cut(block: Block, span: slice) -> Block:
    return Block(block.round, block.seed, block.clients[span], block.steps[span], block.eta[span])


def _column(values: Floats, like: Tensor) -> float | Tensor:
    """One coefficient per row of a block [M, P]; a plain number for a single client, which torch multiplies by faster."""
    if len(values) == 1:
        return float(values[0])
    return torch.as_tensor(values, dtype=like.dtype).view(-1, 1)
