"""Local work on ``SemiSupervised``: pseudo-labels first, then the steps of a supervised solver with soft targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import one_hot

from fedvra.core.block import Block, BlockTerms, Private
from fedvra.core.cohort import Floats, Ints
from fedvra.core.rule import private_step
from fedvra.core.step import Moves
from fedvra.data.dataset import FederatedData
from fedvra.local.measuring import Measure
from fedvra.local.protocol import (
    Evaluation,
    HasExactGradients,
    HasFigures,
    HasOutputs,
    HasTestData,
    Looked,
    Samples,
    Solver,
    SolverSettings,
    StartsSecondBlock,
    Stationarity,
    StepPath,
)
from fedvra.local.solver import SupervisedSolver
from fedvra.problems.oracle import Hessian, Oracle, Point, hessian_of
from fedvra.problems.projections import Simplex
from fedvra.problems.semisupervised import SemiSupervised


@dataclass(frozen=True)
class Share:
    """One client's samples: where they are in the data set, and what its labels say of its classes."""

    labelled: Tensor
    unlabelled: Tensor
    log_prior: Tensor


class PseudoLabelSolver(Solver, HasTestData, HasOutputs, StartsSecondBlock, HasExactGradients, HasFigures):
    """y-steps here; the x-steps are those of a supervised solver, fed with soft targets."""

    def __init__(self, problem: SemiSupervised, data: FederatedData, settings: SolverSettings) -> None:
        self.problem, self.data = problem, data
        self.device = torch.device(settings.device)
        self.has_label = problem.has_label(data)
        assert data.dataset.classes is not None
        self.classes = data.dataset.classes
        self.width_y = problem.y_width(data)
        dtype = problem.supervised().look(data, settings).subject.spec.dtype
        # One row per sample, rewritten for a client as it starts to work: weight times label or pseudo-label.
        self.targets = torch.full((len(data.dataset), self.classes), 1 / self.classes, dtype=dtype)
        soft = replace(data, dataset=replace(data.dataset, targets=self.targets))
        self.inner = SupervisedSolver(problem.supervised(), soft, settings)
        self.spec = self.inner.spec
        feed = replace(self.inner.feed, data=data, target_cast=None)
        self.true = Measure(self.inner.subject, feed, self.inner.convolves, None)
        """Looks at the model with the labels as they are."""
        self._none = torch.zeros(0, dtype=dtype, device=self.device)
        self.slower(self.inner.path)

    def slower(self, path: StepPath) -> None:
        self.inner.slower(path)
        self.path, self.test_parts = self.inner.path, self.inner.test_parts

    def close(self) -> None:
        self.inner.close()

    def width(self, steps: Ints) -> int:
        return self.inner.width(steps) if steps.max() > 1 else 1

    def solve(self, terms: BlockTerms, private: Private, block: Block) -> Moves:
        for k, (client, anchor) in enumerate(zip(map(int, block.clients), terms.anchors, strict=True)):
            share = self._share(client)
            aux = None if private.aux is None else private.aux[k]
            row = self._none if private.y is None else private.y[k]
            y = self._respond(share, anchor, aux, self._y(share, row))
            row[: y.numel()] = y.view(-1)
            self._set_targets(share, y)
        return self.inner.solve(terms, private, block)

    def initial_y(self, client: int) -> Tensor:
        numbers = len(self._share(client).unlabelled) * self.classes
        y = torch.zeros(self.width_y, dtype=self.spec.dtype, device=self.device)
        y[:numbers] = 1 / self.classes
        return y

    @torch.no_grad()
    def measure(self, x_P: Tensor, y: Mapping[int, Tensor]) -> dict[str, float]:
        """Accuracy and mean entropy (in nats) of the pseudo-labels of all who took part so far."""
        correct = entropy = 0.0
        count = 0
        for client, row in y.items():
            share = self._share(client)
            labels = self._y(share, row).cpu()
            correct += float((labels.argmax(1) == self.data.dataset.targets[share.unlabelled]).sum())
            entropy -= float(torch.special.xlogy(labels, labels).sum())
            count += len(labels)
        return {"pseudo_accuracy": correct / count, "pseudo_entropy": entropy / count} if count else {}

    def stationarity(self, x_P: Tensor, y_W: Tensor | None, client: int) -> Stationarity:
        share = self._share(client)
        y = self._y(share, self.initial_y(client) if y_W is None else y_W)
        with torch.enable_grad():
            x = x_P.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self._cost(share, x, y), x)
        gradient = gradient + self.problem.decay * x_P
        if not len(y):
            return Stationarity(gradient, 0.0)
        with torch.no_grad():
            slope = self._slope_y(share, self._log_probabilities(x_P, None, share.unlabelled), y)
            step = y - private_step(y, slope, self._eta(share), Simplex())
        return Stationarity(gradient, float(step.square().sum()) / self._eta(share) ** 2)

    def losses(self, x_P: Tensor, clients: Ints) -> Floats:
        """f_i(x, y_i) but for the weight decay, at the y_i that the client's own steps lead to from its start."""
        values = []
        with torch.no_grad():
            for client in map(int, clients):
                share = self._share(client)
                y = self._respond(share, x_P, None, self._y(share, self.initial_y(client)))
                values.append(float(self._cost(share, x_P, y)))
        return np.array(values)

    def evaluate(self, x_P: Tensor, aux_K: Tensor | None, part: int) -> Evaluation:
        return self.inner.evaluate(x_P, aux_K, part)

    def look(self, x_P: Tensor, aux_K: Tensor | None, samples: Samples, outputs: bool) -> Looked:
        return self.true.look(x_P, aux_K, samples, outputs)

    # -- the second block ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _respond(self, share: Share, x_P: Tensor, aux_K: Tensor | None, y: Tensor) -> Tensor:
        """Q_y projected steps on y at x: the network is asked once."""
        if not len(y):
            return y
        log_q, eta = self._log_probabilities(x_P, aux_K, share.unlabelled), self._eta(share)
        for _ in range(self.problem.steps_y):
            y = private_step(y, self._slope_y(share, log_q, y), eta, Simplex())
        return y

    def _slope_y(self, share: Share, log_q: Tensor, y: Tensor) -> Tensor:
        """The gradient in y; ``log_q`` are the model's log-probabilities of the unlabelled samples."""
        return self.problem.mu / len(y) * (self.problem.rho * y - log_q - self.problem.tau * share.log_prior)

    def _eta(self, share: Share) -> float:
        """eta_y = lr_y/L_y."""
        return self.problem.lr_y * len(share.unlabelled) / (self.problem.mu * self.problem.rho)

    def _cost(self, share: Share, x_P: Tensor, y: Tensor) -> Tensor:
        cost = torch.zeros((), dtype=x_P.dtype, device=self.device)
        if len(share.labelled):
            log_q = self._log_probabilities(x_P, None, share.labelled)
            cost = cost - log_q.gather(1, self.data.dataset.targets[share.labelled, None].to(self.device)).mean()
        if len(y):
            log_q = self._log_probabilities(x_P, None, share.unlabelled) + self.problem.tau * share.log_prior
            cost = cost + self.problem.mu * ((self.problem.rho / 2 * y - log_q) * y).sum(1).mean()
        return cost

    def _log_probabilities(self, x_P: Tensor, aux_K: Tensor | None, rows: Tensor) -> Tensor:
        inputs = self.data.dataset.transform(self.data.dataset.inputs[rows], None, self.spec.dtype).to(self.device)
        subject = self.inner.subject
        with subject.evaluating(subject.gather().to(self.device), aux_K) as module:
            outputs: Tensor = functional_call(module, self.spec.views(x_P), (inputs,))
        return outputs.log_softmax(1)

    # -- what a client holds ------------------------------------------------------------------------------------------------

    def _share(self, client: int) -> Share:
        part = self.data.part(client)
        known = self.has_label[part]
        labelled, unlabelled = (torch.from_numpy(part[choice]) for choice in (known, ~known))
        counts = 1 + torch.bincount(self.data.dataset.targets[labelled], minlength=self.classes).to(self.spec.dtype)
        return Share(labelled, unlabelled, (counts / counts.sum()).log().to(self.device))

    def _set_targets(self, share: Share, y: Tensor) -> None:
        n, known, unknown = len(share.labelled) + len(share.unlabelled), len(share.labelled), len(share.unlabelled)
        if known:
            truth = one_hot(self.data.dataset.targets[share.labelled], self.classes)
            self.targets[share.labelled] = truth.to(self.spec.dtype) * (n / known)
        if unknown:
            self.targets[share.unlabelled] = y.cpu() * (self.problem.mu * n / unknown)

    def _y(self, share: Share, row_W: Tensor) -> Tensor:
        return row_W[: len(share.unlabelled) * self.classes].view(-1, self.classes)


class PseudoLabelOracle(Oracle):
    """f_i(x, y_i) as the solver's own y-steps see it; its buffers, where it has any, are those of the model at the start."""

    def __init__(self, problem: SemiSupervised, data: FederatedData) -> None:
        self.problem = problem
        self.solver = PseudoLabelSolver(problem, data, SolverSettings(path="eager"))

    def look(self, client: int, point: Point) -> tuple[float, Tensor]:
        share, y = self._own(client, point)
        with torch.enable_grad():
            x = point.x.detach().clone().requires_grad_()
            cost = self.solver._cost(share, x, y)
            (slope,) = torch.autograd.grad(cost, x)
        decay = self.problem.decay
        return float(cost.detach()) + decay / 2 * float(point.x.double().square().sum()), slope + decay * point.x

    def hessian(self, client: int, point: Point, samples: int | None = None) -> Hessian:
        """Over all samples of the client: each has a pseudo-label of its own, so leaving some out changes the variables."""
        share, y = self._own(client, point)
        P = len(point.x)
        found = hessian_of(
            lambda z: self.solver._cost(share, z[:P], z[P:].view_as(y)), torch.cat([point.x, y.reshape(-1)])
        )
        decay = torch.zeros(found.width)
        decay[:P] = self.problem.decay
        return Hessian(found.width, lambda v: found.times(v) + decay * v)

    def lower_bound(self, omega: Floats) -> float:
        return 0.0  # cross-entropies, and squares of y

    def noisy_gradient(
        self, client: int, point: Point, batch_size: int | None, rng: np.random.Generator
    ) -> Tensor | None:
        rows = self.solver.data.part(client)
        if batch_size is None or len(rows) <= batch_size:
            return None
        self.solver._set_targets(*self._own(client, point))
        batch = torch.from_numpy(np.sort(rng.choice(rows, batch_size, replace=False)))
        with torch.enable_grad():
            x = point.x.detach().clone().requires_grad_()
            log_q = self.solver._log_probabilities(x, None, batch)
            (slope,) = torch.autograd.grad(-(self.solver.targets[batch] * log_q).sum(1).mean(), x)
        return slope + self.problem.decay * point.x

    def block_y(self, client: int, point: Point) -> tuple[float, int]:
        return self.solver._eta(self.solver._share(client)), self.problem.steps_y

    def _own(self, client: int, point: Point) -> tuple[Share, Tensor]:
        share = self.solver._share(client)
        return share, self.solver._y(share, self.solver.initial_y(client) if point.y is None else point.y)
