"""Problems with a second block: min over x in X and y_i in Y_i of sum_i omega_i f_i(x, y_i), written by their gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedvra.core.block import Block, Private
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.rule import AffineStep, Stepping, advance_, private_step
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_whole
from fedvra.local.protocol import (
    HasExactGradients,
    HasFigures,
    LocalSolver,
    SolverSettings,
    StartsSecondBlock,
    Stationarity,
)
from fedvra.problems.base import Constrained, HasOracle, HasSecondBlock, Problem
from fedvra.problems.oracle import Hessian, Oracle, Point, hessian_by_differences
from fedvra.problems.projections import Own, verified

Rng = np.random.Generator | None
"""Where a stochastic gradient draws its batch from, keyed by (seed, round, client); None asks for the exact gradient."""


class TwoBlock(Problem[None], HasSecondBlock[None], Constrained, HasOracle[None]):
    r"""A user's own :math:`\min_{x\in X, y_i\in Y_i} \sum_i \omega_i f_i(x, y_i)`: two gradients and two projections.

    Write a subclass with the methods below; ``examples/two_block.py`` is one. x and y_i may have any shape: they are handed
    over in the shape of ``x_start()`` and ``y_start(client)``, and gradients and projections come back in it, without changing
    what they were given. y_i stays with its client: staged, committed and checkpointed like lam_i, never sent.

    In each round a client first takes ``steps_y`` projected gradient steps of length ``lr_y`` on y_i, at x0, then its steps on
    x with y_i fixed (Algorithm 3); how many and how long those are is for ``work`` and ``lr`` to say, as with every problem.

    >>> import torch, fedvra as fv
    >>> class Offsets(fv.TwoBlock):  # f_i(x, y_i) = (x + y_i - i)^2/2 + y_i^2/2: a shared number and one per client
    ...     lr_y = 0.5
    ...     clients = 3
    ...     def x_start(self): return torch.zeros(1)
    ...     def y_start(self, client): return torch.zeros(1)
    ...     def cost(self, client, x, y): return float(((x + y - client) ** 2 + y**2) / 2)
    ...     def gradient_x(self, client, x, y, rng): return x + y - client
    ...     def gradient_y(self, client, x, y, rng): return x + 2 * y - client
    ...     def project_x(self, x): return x
    ...     def project_y(self, client, y): return y
    >>> history = fv.simulate(fv.FedVRAU(), problem=Offsets(), sampler=fv.Full(), work=fv.Steps(5), lr=0.1, rounds=60)
    >>> round(float(history.x0), 2)
    1.0
    """

    lr_y: float = 0.1
    """eta_y; at most 1/L for cost functions with L-Lipschitz gradients."""
    steps_y: int = 1
    """Q_y."""

    @property
    @abstractmethod
    def clients(self) -> int:
        """N."""

    @abstractmethod
    def x_start(self) -> Tensor:
        """x0 at the start, in X; its dtype is that of the whole run."""

    @abstractmethod
    def y_start(self, client: int) -> Tensor:
        """y_i at the start, in Y_i."""

    @abstractmethod
    def cost(self, client: int, x: Tensor, y: Tensor) -> float:
        """f_i(x, y_i): reported as the training loss, never differentiated."""

    @abstractmethod
    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: Rng) -> Tensor:
        """The gradient of f_i in x, or an unbiased estimate drawn with ``rng`` (None: the exact one)."""

    @abstractmethod
    def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: Rng) -> Tensor:
        """The gradient of f_i in y_i, likewise."""

    @abstractmethod
    def project_x(self, x: Tensor) -> Tensor:
        """P_X, e.g. ``fv.Box(0, 1)(x)``; ``x`` itself where there is no constraint."""

    @abstractmethod
    def project_y(self, client: int, y: Tensor) -> Tensor:
        """P_{Y_i}, e.g. ``fv.Simplex()(y)``."""

    def stepsize_y(self, client: int, x: Tensor) -> float:
        """eta_y of this client at this x0, where ``lr_y`` alone does not do."""
        return self.lr_y

    def report(self, x: Tensor, y: Callable[[int], Tensor]) -> dict[str, float]:
        """Figures for the round's record, from x0 and every client's y (its start, where it never took part)."""
        return {}

    def best_response(self, client: int, x: Tensor, y: Tensor, rng: Rng = None) -> Tensor:
        """y_i after the client's Q_y steps at x: steps 10 to 13 of Algorithm 3."""
        eta = self.stepsize_y(client, x)
        for _ in range(self.steps_y):
            g = _like(self.gradient_y(client, x, y, rng), y, f"gradient_y of client {client}")
            y = private_step(y, g, eta, partial(self._projected_y, client))
        return y

    # -- what the engine asks for --------------------------------------------------------------------------------------

    def samples(self, data: None) -> Ints:
        return np.ones(self.clients, dtype=np.int64)

    def y_width(self, data: None) -> int:
        return max(self.y_start(client).numel() for client in range(self.clients))

    def project(self, x_P: Tensor) -> Tensor:
        start = self.x_start()
        return verified(self.project_x, x_P.view_as(start), "project_x").reshape(-1)

    def initial(self, seed: int) -> Tensor:
        return self.x_start().detach().clone().reshape(-1)

    def check(self, data: None, settings: SolverSettings) -> None:
        name = type(self).__name__
        require(data is None, f"{name} carries its own data: leave data out.")
        require(settings.batch_size is None, f"{name} draws its own batches: leave batch_size out.")
        require(settings.device == "cpu", f"{name} computes on the CPU: leave device out.")
        check_whole("steps_y", self.steps_y)
        require(self.lr_y > 0, f"lr_y must be > 0, got {self.lr_y}.")
        check_whole(f"{name}.clients", self.clients)
        x = self.x_start()
        require(x.is_floating_point(), f"x_start must give floating-point numbers, got {x.dtype}.")
        _in_its_set(self.project_x, x, "x_start", "project_x")
        for client in range(self.clients):
            y = self.y_start(client)
            require(y.dtype == x.dtype, f"y_start({client}) is {y.dtype} but x_start is {x.dtype}: use one dtype.")
            _in_its_set(partial(self.project_y, client), y, f"y_start({client})", "project_y")

    def solver(self, data: None, settings: SolverSettings) -> LocalSolver:
        return _TwoBlockSolver(self)

    def oracle(self, data: None) -> Oracle:
        return _TwoBlockOracle(self)

    def _projected_y(self, client: int, y: Tensor) -> Tensor:
        return verified(partial(self.project_y, client), y, f"project_y of client {client}")


class _TwoBlockSolver(LocalSolver, StartsSecondBlock, HasExactGradients, HasFigures):
    def __init__(self, problem: TwoBlock) -> None:
        self.problem = problem
        self.shape = problem.x_start().shape
        self.shapes_y = [problem.y_start(client).shape for client in range(problem.clients)]
        self.width_y = max(shape.numel() for shape in self.shapes_y)

    def run(self, x_MP: Tensor, private: Private, block: Block, step: AffineStep | Stepping) -> Floats:
        (client,), (steps,), (eta,) = map(int, block.clients), map(int, block.steps), map(float, block.eta)
        assert private.y is not None
        rng = stream(block.seed, Purpose.BATCHES, block.round, client)
        x = x_MP[0].view(self.shape)
        y = self.problem.best_response(client, x, self.y_of(client, private.y[0]), rng).detach()
        private.y[0, : y.numel()] = y.reshape(-1)
        # The loss is that at x0: unlike in training a network, it is no by-product of the gradients, and may cost as much.
        loss = float(self.problem.cost(client, x, y))
        for _ in range(steps):
            g = _like(self.problem.gradient_x(client, x, y, rng), x, f"gradient_x of client {client}")
            with torch.no_grad():
                advance_(x_MP, g.reshape(1, -1), eta, step)
        return np.array([loss])

    def initial_y(self, client: int) -> Tensor:
        y = self.problem.y_start(client).reshape(-1)
        return torch.nn.functional.pad(y, (0, self.width_y - y.numel()))

    def measure(self, x_P: Tensor, y: Mapping[int, Tensor]) -> dict[str, float]:
        return self.problem.report(x_P.view(self.shape), lambda client: self.y_of(client, y.get(client)))

    def stationarity(self, x_P: Tensor, y_W: Tensor | None, client: int) -> Stationarity:
        x, y = x_P.view(self.shape), self.y_of(client, y_W)
        eta = self.problem.stepsize_y(client, x)
        slope = _like(self.problem.gradient_y(client, x, y, None), y, f"gradient_y of client {client}")
        step = y - self.problem._projected_y(client, y - eta * slope)
        gradient = _like(self.problem.gradient_x(client, x, y, None), x, f"gradient_x of client {client}")
        return Stationarity(gradient.reshape(-1) + self.problem.decay * x_P, float(step.square().sum()) / eta**2)

    def losses(self, x_P: Tensor, clients: Ints) -> Floats:
        """f_i(x, y_i) at the y_i that the client's own steps lead to from its start."""
        x, values = x_P.view(self.shape), []
        for client in map(int, clients):
            y = self.problem.best_response(client, x, self.problem.y_start(client))
            values.append(float(self.problem.cost(client, x, y)))
        return np.array(values)

    def y_of(self, client: int, row_W: Tensor | None) -> Tensor:
        """The client's own numbers of its row, in its own shape; its start where it has no row."""
        if row_W is None:
            return self.problem.y_start(client)
        shape = self.shapes_y[client]
        return row_W[: shape.numel()].view(shape)


class _TwoBlockOracle(Oracle):
    """Curvature by differences of the gradients that the problem gives, x and y_i one after the other in one vector."""

    def __init__(self, problem: TwoBlock) -> None:
        self.problem = problem
        self.solver = _TwoBlockSolver(problem)

    def look(self, client: int, point: Point) -> tuple[float, Tensor]:
        x, y = self._blocks(client, point)
        value = float(self.problem.cost(client, x, y)) + self.problem.decay / 2 * float(x.double().square().sum())
        return value, self.solver.stationarity(point.x, point.y, client).gradient_x

    def hessian(self, client: int, point: Point, samples: int | None = None) -> Hessian:
        x, y = self._blocks(client, point)

        def slope(z: Tensor) -> Tensor:
            at = z[: x.numel()].view_as(x), z[x.numel() :].view_as(y)
            g_x = self.problem.gradient_x(client, *at, None) + self.problem.decay * at[0]
            return torch.cat([g_x.reshape(-1), self.problem.gradient_y(client, *at, None).reshape(-1)]).detach()

        return hessian_by_differences(slope, torch.cat([x.reshape(-1), y.reshape(-1)]))

    def noisy_gradient(
        self, client: int, point: Point, batch_size: int | None, rng: np.random.Generator
    ) -> Tensor | None:
        x, y = self._blocks(client, point)
        return self.problem.gradient_x(client, x, y, rng).detach().reshape(-1) + self.problem.decay * point.x

    def block_y(self, client: int, point: Point) -> tuple[float, int]:
        return self.problem.stepsize_y(client, point.x.view(self.solver.shape)), self.problem.steps_y

    def _blocks(self, client: int, point: Point) -> tuple[Tensor, Tensor]:
        return point.x.view(self.solver.shape), self.solver.y_of(client, point.y)


def _like(value: Tensor, point: Tensor, name: str) -> Tensor:
    require(
        value.shape == point.shape,
        f"{name} has shape {list(value.shape)}, the block it belongs to {list(point.shape)}: they must be the same.",
    )
    return value.detach()


def _in_its_set(project: Callable[[Tensor], Tensor], point: Tensor, name: str, how: str) -> None:
    require(bool(torch.isfinite(point).all()), f"{name} holds NaN or infinity.")
    inside = Own(project, how).contains(point)
    require(inside, f"{name} is outside its set: {how} moves it; start from a point that it leaves where it is.")
