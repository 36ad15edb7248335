"""The first step of many clients from a point they share: gradients as factors, added wherever they are wanted.

Where everybody takes a single step from x0, no client needs a vector of its own for it. A weight's gradient is a product of
two small matrices (what came in, what came back), so the weighted sum over clients is one product over all their samples, and
a client's own gradient goes straight into its dual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedvra.replay.compile import compile_gradients
from fedvra.replay.program import Loss, record_block
from fedvra.replay.record import CannotReplayError


class FirstStep:
    """Gradients of M clients at one point x [P], for batches [M, B, ...]; fill ``inputs`` and ``targets``, then ``run``."""

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        loss: Tensor,
        shapes: list[torch.Size],
        gradients: Callable[[], list[Any]],
    ) -> None:
        self.inputs, self.targets, self.loss, self.shapes = inputs, targets, loss, shapes
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
                part.view(shape).addmm_(left, (b * weights_M[:, None, None]).reshape(-1, b.shape[2]), alpha=scale)
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


def trace_first(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, x: Tensor) -> FirstStep:
    """Bound to the memory of x [P]; tried against autograd on another batch before it is used."""
    inputs, targets = inputs.clone(), targets.clone()
    recording, leaves, per_client = record_block(module, loss, inputs, targets, x)
    compiled = compile_gradients(recording, leaves)
    first = FirstStep(inputs, targets, compiled.loss, [leaf.shape for leaf in leaves], compiled.run)

    batch, wanted = inputs.roll(1, 0), targets.roll(2, 0)
    expected = torch.cat([g.flatten(1) for g in per_client(leaves, batch, wanted)[0]], 1)
    inputs.copy_(batch)
    targets.copy_(wanted)
    first.run()
    rows, total = torch.zeros_like(expected), torch.zeros_like(x)
    for k, row in enumerate(rows):
        first.add_row_(k, row, 1.0)
    weights = torch.linspace(0.5, 1.0, len(rows), dtype=x.dtype, device=x.device)
    first.add_sum_(total, weights, 1.0)
    slack = (1e-8 if x.dtype == torch.float64 else 1e-2) * expected.norm()  # wrong programs are wrong by far more
    if not ((rows - expected).norm() <= slack and (total - weights @ expected).norm() <= slack):
        raise CannotReplayError("the replay does not follow autograd on another batch")
    return first
