"""The cost functions of ``Supervised`` with their derivatives, by autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedvra.core.cohort import Floats, Ints
from fedvra.core.streams import Purpose, stream
from fedvra.data.dataset import FederatedData
from fedvra.local.client_batches import ClientBatches
from fedvra.local.protocol import SolverSettings
from fedvra.problems.oracle import Hessian, Oracle, Point

if TYPE_CHECKING:
    from fedvra.problems.supervised import Supervised

CHUNK = 1000
"""Samples at once: larger clients are added up piece by piece."""
NEVER_NEGATIVE = (
    nn.functional.cross_entropy,
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.binary_cross_entropy_with_logits,
)


class SupervisedOracle(Oracle):
    """Means over the client's samples of what the loss says; buffers are those of the point and stay as they are."""

    def __init__(self, problem: Supervised, data: FederatedData) -> None:
        self.problem, self.data = problem, data
        self.subject, _, _ = seen = problem.look(data, SolverSettings(batch_size=CHUNK))
        self.feed = ClientBatches(data, None, self.subject.spec.dtype, target_cast=seen.target_cast)

    def look(self, client: int, point: Point) -> tuple[float, Tensor]:
        return self._mean(point, self.data.part(client))

    def probe(self, point: Point, total: int, samples: int) -> tuple[float, float]:
        """On rows from all over the data, or of the first clients where they are in files; noise is the same each time."""
        indices = self.data.indices if self.data.dataset.reader is None else self.data.indices[:samples]
        rows = indices[np.unique(np.linspace(0, len(indices) - 1, min(samples, len(indices))).astype(np.int64))]
        with self.subject.evaluating(point.x, point.aux), self.subject.aside(0):
            loss = self.subject.backward(self.feed.batch(rows))
            norms = [float(p.grad.double().norm()) for p in self.subject.parameters if p.grad is not None]
        return float(loss), float(np.linalg.norm(norms))

    def hessian(self, client: int, point: Point, samples: int | None = None) -> Hessian:
        rows = self.data.part(client)
        whole = samples is None or len(rows) <= samples
        if not whole:
            rows = np.sort(stream(0, Purpose.PROBE, 0, client).choice(rows, samples, replace=False))
        subject = self.subject
        with subject.evaluating(point.x, point.aux), torch.enable_grad():
            slopes = torch.autograd.grad(
                self._loss(rows), subject.parameters, create_graph=True, materialize_grads=True, allow_unused=True
            )

        def times(v: Tensor) -> Tensor:
            """The graph refers to the parameters themselves, so they must be at x again."""
            used = [
                (g, part) for g, part in zip(slopes, subject.spec.views(v).values(), strict=True) if g.requires_grad
            ]
            if not used:  # an affine function
                return self.problem.decay * v
            with subject.evaluating(point.x, point.aux):
                products = torch.autograd.grad(
                    [g for g, _ in used],
                    subject.parameters,
                    [part for _, part in used],
                    retain_graph=True,
                    materialize_grads=True,
                    allow_unused=True,
                )
            return torch.cat([p.reshape(-1) for p in products]) + self.problem.decay * v

        return Hessian(subject.spec.size, times, whole)

    def lower_bound(self, omega: Floats) -> float | None:
        return 0.0 if self.problem.loss in NEVER_NEGATIVE else None

    def noisy_gradient(
        self, client: int, point: Point, batch_size: int | None, rng: np.random.Generator
    ) -> Tensor | None:
        rows = self.data.part(client)
        if batch_size is None or len(rows) <= batch_size:
            return None
        return self._mean(point, np.sort(rng.choice(rows, batch_size, replace=False)))[1]

    def _mean(self, point: Point, rows: Ints) -> tuple[float, Tensor]:
        """Cost and gradient over these samples."""
        value = self.problem.decay / 2 * float(point.x.double().square().sum())
        gradient = self.problem.decay * point.x
        for piece in (rows[k : k + CHUNK] for k in range(0, len(rows), CHUNK)):
            with self.subject.evaluating(point.x, point.aux), torch.enable_grad():
                loss = self._loss(piece)
                loss.backward()  # type: ignore[no-untyped-call]
                found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.subject.parameters]
            value += float(loss.detach()) * len(piece) / len(rows)
            slope = torch.cat([(g.to_dense() if g.layout != torch.strided else g).reshape(-1) for g in found])
            gradient = gradient.add(slope, alpha=len(piece) / len(rows))
        return value, gradient

    def _loss(self, rows: Ints) -> Tensor:
        return self.subject.value(self.feed.batch(rows))
