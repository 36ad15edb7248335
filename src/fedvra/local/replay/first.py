"""The first step of many clients from a point they share: gradients as factors, added wherever they are wanted.

Where everybody takes a single step from x0, no client needs a vector of its own for it. A weight's gradient is a product of
two small matrices (what came in, what came back), so the weighted sum over clients is one product over all their samples, and
a client's own gradient goes straight into its dual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fedvra.local.loan import Batch
from fedvra.local.replay.check import LOOSE, Reference
from fedvra.local.replay.compile import compile_gradients
from fedvra.local.replay.products import adding
from fedvra.local.replay.program import KEY, of_client, record_block
from fedvra.local.replay.record import CannotReplayError, tensors_in
from fedvra.local.subject import Subject


class FirstStep:
    """Gradients of M clients at one point x [P], for batches [M, B, ...]; fill ``places``, then ``run``."""

    def __init__(
        self,
        batch: Batch,
        loss: Tensor,
        shapes: list[torch.Size],
        gradients: Callable[[], list[Any]],
    ) -> None:
        self.batch, self.places, self.loss, self.shapes = batch, tensors_in(batch), loss, shapes
        self._sizes = [shape.numel() for shape in shapes]
        self._gradients = gradients
        self._found: list[Any] = []
        self._rows: list[list[tuple[Tensor, ...]]] = []

    def run(self) -> None:
        """Find the gradients at x, good until the next call."""
        self._found = self._gradients()
        parts = [() if g is None else g if isinstance(g, list) else (g,) for g in self._found]
        self._rows = [list(zip(*(t.unbind() for t in part), strict=True)) for part in parts]

    def add_sum_(self, total_P: Tensor, weights_M: Tensor, scale: float) -> None:
        """total += scale * sum_i weight_i*g_i"""
        for part, shape, g in zip(torch.split(total_P, self._sizes), self.shapes, self._found, strict=True):
            if isinstance(g, list):
                a, b = g  # [M, p, B] and [M, B, q]
                left = a.transpose(0, 1).reshape(a.shape[1], -1)
                right = (b * weights_M[:, None, None]).reshape(-1, b.shape[2])
                adding(part.view(shape), left, right)(left, right, alpha=scale)
            elif g is not None:
                part.addmv_(g.flatten(1).T, weights_M, alpha=scale)

    def add_row_(self, k: int, row_P: Tensor, scale: float) -> None:
        """row += scale * g_k"""
        parts = torch.split_with_sizes(row_P, self._sizes)
        for part, shape, rows in zip(parts, self.shapes, self._rows, strict=True):
            if not rows:
                continue
            if len(rows[k]) == 2:
                part.view(shape).addmm_(*rows[k], alpha=scale)
            else:
                part.add_(rows[k][0].flatten(), alpha=scale)


def trace_first(subject: Subject, batches: tuple[Batch, Batch], points: tuple[Tensor, Tensor], x: Tensor) -> FirstStep:
    """Bound to the memory of x [P]; recorded on the first of these batches and points, tried on the second."""
    recording, leaves, places = record_block(subject, batches, points, x)
    compiled = compile_gradients(recording, leaves)
    first = FirstStep(places, compiled.loss, [leaf.shape for leaf in leaves], compiled.run)
    for place, values in zip(first.places, tensors_in(batches[1]), strict=True):
        place.copy_(values)
    check_first(subject, first, x, points[1], sorted({0, len(recording.loss) // 2, len(recording.loss) - 1}))
    _check_sum(first, x)
    return first


@torch.no_grad()
def check_first(subject: Subject, first: FirstStep, x: Tensor, point: Tensor, clients: Iterable[int]) -> None:
    """Compare the gradients of these clients at a point, on the batches that are there, with autograd."""
    reference = Reference(subject)
    for k in clients:

        def replay(at: Tensor, k: int = k) -> tuple[Tensor, None]:
            x.copy_(at)
            first.run()
            row = torch.zeros_like(x)
            first.add_row_(k, row, 1.0)
            return row, None

        reference.check(replay, point, None, of_client(first.batch, k), KEY)
    x.copy_(point)


@torch.no_grad()
def _check_sum(first: FirstStep, x: Tensor) -> None:
    """The weighted sum is that of the rows."""
    first.run()
    weights = torch.linspace(0.5, 1.0, len(first.loss), dtype=x.dtype, device=x.device)
    rows, total = x.new_zeros(len(weights), len(x)), torch.zeros_like(x)
    for k, row in enumerate(rows):
        first.add_row_(k, row, 1.0)
    first.add_sum_(total, weights, 1.0)
    if not (total - weights @ rows).norm() <= LOOSE[x.dtype] * (weights @ rows.abs()).norm():
        raise CannotReplayError("the sum of the gradients is not that of its parts")
