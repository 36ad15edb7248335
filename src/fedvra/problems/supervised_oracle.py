"""The cost functions of ``Supervised`` with their derivatives, by autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedvra.cohort import Floats, Ints
from fedvra.data.dataset import FederatedData
from fedvra.flat import FlatSpec
from fedvra.problems.oracle import Hessian, Oracle, Point, hessian_of
from fedvra.streams import Purpose, stream

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
        self.module = problem.module().eval()
        self.spec, self.aux_spec = FlatSpec.of_parameters(self.module), FlatSpec.of_float_buffers(self.module)

    def look(self, client: int, point: Point) -> tuple[float, Tensor]:
        return self._mean(point, self.data.part(client))

    def hessian(self, client: int, point: Point, samples: int | None = None) -> Hessian:
        rows = self.data.part(client)
        whole = samples is None or len(rows) <= samples
        if not whole:
            rows = np.sort(stream(0, Purpose.PROBE, 0, client).choice(rows, samples, replace=False))
        found = hessian_of(lambda x: self._loss(x, point.aux, rows), point.x)
        return Hessian(found.width, lambda v: found.times(v) + self.problem.decay * v, whole)

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
            with torch.enable_grad():
                x = point.x.detach().clone().requires_grad_()
                loss = self._loss(x, point.aux, piece)
                (slope,) = torch.autograd.grad(loss, x)
            value += float(loss.detach()) * len(piece) / len(rows)
            gradient = gradient.add(slope, alpha=len(piece) / len(rows))
        return value, gradient

    def _loss(self, x_P: Tensor, aux_K: Tensor | None, rows: Ints) -> Tensor:
        dataset, index = self.data.dataset, torch.from_numpy(rows)
        inputs = dataset.transform(dataset.inputs[index], None, self.spec.dtype).to(x_P.device)
        self.module.to(x_P.device)
        state = self.spec.views(x_P) if aux_K is None else {**self.spec.views(x_P), **self.aux_spec.views(aux_K)}
        return self.problem.loss(functional_call(self.module, state, (inputs,)), dataset.targets[index].to(x_P.device))
