"""Local steps on a model: batches in, Q_i steps of the affine form of step 11, for one client after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedvra.cohort import Floats, Ints
from fedvra.data.batches import batch_schedule
from fedvra.data.dataset import FederatedData
from fedvra.flat import FlatSpec
from fedvra.problems.base import Block, Evaluation, LocalSolver, Private, SolverSettings
from fedvra.rule import Affine, advance_
from fedvra.streams import Purpose, stream

if TYPE_CHECKING:
    from fedvra.problems.supervised import Supervised

TEST_PART = 1000
"""Test samples evaluated at once; fixed, so that sums come out the same however many workers share them."""


class Batches:
    """A client's batches in one round, drawn from streams keyed by (seed, round, client)."""

    def __init__(self, data: FederatedData, batch_size: int | None, dtype: torch.dtype) -> None:
        self.data, self.batch_size, self.dtype = data, batch_size, dtype

    def of(self, round: int, seed: int, client: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs, targets) of each step: a fresh permutation per epoch, augmented batch by batch."""
        dataset, part = self.data.dataset, torch.from_numpy(self.data.part(client))
        augmented = dataset.transform.augments
        rng = stream(seed, Purpose.AUGMENT, round, client) if augmented else None
        schedule = batch_schedule(len(part), self.batch_size, steps, stream(seed, Purpose.BATCHES, round, client))
        for index in schedule:
            rows = part[torch.from_numpy(index)]
            yield dataset.transform(dataset.inputs[rows], rng, self.dtype), dataset.targets[rows]


class SupervisedSolver(LocalSolver):
    """Autograd, one client at a time: works for every module."""

    def __init__(self, problem: Supervised, data: FederatedData, settings: SolverSettings) -> None:
        self.problem, self.data = problem, data
        self.module = problem.module()
        self.spec = FlatSpec.of_parameters(self.module)
        self.aux_spec = FlatSpec.of_float_buffers(self.module)
        self.batches = Batches(data, settings.batch_size, self.spec.dtype)
        self.gradient = torch.zeros(self.spec.size, dtype=self.spec.dtype)
        test = data.dataset.test_inputs
        self.test_parts = 0 if test is None else -(-len(test) // TEST_PART)

    def run(self, x_MP: Tensor, private: Private, block: Block, step: Affine) -> Floats:
        (client,), (steps,), (eta,) = block.clients, block.steps, block.eta
        self._point_at(x_MP[0], None if private.aux is None else private.aux[0])
        self.module.train()
        torch.manual_seed(int(stream(block.seed, Purpose.MODEL_NOISE, block.round, client).integers(2**62)))
        total = torch.zeros((), dtype=torch.float64)
        for inputs, targets in self.batches.of(block.round, block.seed, int(client), int(steps)):
            self.gradient.zero_()
            loss = self.problem.loss(self.module(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                advance_(x_MP, self.gradient, float(eta), step)
                total += loss.detach()
        return np.array([float(total) / steps])

    def losses(self, x_P: Tensor, clients: Ints) -> Floats:
        values = np.zeros(len(clients))
        for k, client in enumerate(clients):
            rows = torch.from_numpy(self.data.part(int(client)))
            dataset = self.data.dataset
            values[k] = self._measure(x_P, None, dataset.inputs[rows], dataset.targets[rows]).loss / len(rows)
        return values

    def evaluate(self, x_P: Tensor, aux_K: Tensor | None, part: int) -> Evaluation:
        dataset = self.data.dataset
        assert dataset.test_inputs is not None
        assert dataset.test_targets is not None
        span = slice(part * TEST_PART, (part + 1) * TEST_PART)
        return self._measure(x_P, aux_K, dataset.test_inputs[span], dataset.test_targets[span])

    @torch.no_grad()
    def _measure(self, x_P: Tensor, aux_K: Tensor | None, inputs: Tensor, targets: Tensor) -> Evaluation:
        self._point_at(x_P, aux_K)
        self.module.eval()
        outputs = self.module(self.data.dataset.transform(inputs, None, self.spec.dtype))
        loss = float(self.problem.loss(outputs, targets)) * len(targets)
        labels = outputs.ndim == 2 and not targets.is_floating_point()
        correct = float((outputs.argmax(1) == targets).sum()) if labels else float("nan")
        return Evaluation(correct, loss, len(targets))

    def _point_at(self, x_P: Tensor, aux_K: Tensor | None) -> None:
        """Let the module's parameters, gradients and buffers be views of the flat vectors: no copies in either direction."""
        views, gradients = self.spec.views(x_P), self.spec.views(self.gradient)
        for name, parameter in self.module.named_parameters():
            parameter.data = views[name]
            parameter.grad = gradients[name]
        if aux_K is not None:
            buffers = self.aux_spec.views(aux_K)
            for name, buffer in self.module.named_buffers():
                if name in buffers:
                    buffer.data = buffers[name]
