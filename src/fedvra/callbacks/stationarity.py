"""How far a run is from a stationary point: the gap of the paper's second theorem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fedvra.callbacks.observer import Observer
from fedvra.core.errors import UsageError, require
from fedvra.core.validation import check_whole
from fedvra.local.protocol import HasExactGradients
from fedvra.problems.base import project

if TYPE_CHECKING:
    from fedvra.engines.federation import Federation


@dataclass(frozen=True)
class StationarityGap(Observer):
    r"""The gap G^r of the paper's second theorem, as ``stationarity_gap`` in every K-th record.

    .. math::

        G^r = \frac{1}{\beta^2}\big\|x_0^r - P_X(x_0^r - \beta\nabla_x f(x_0^r, y^{r+1}))\big\|^2
            + \sum_{i=1}^N \frac{\omega_i}{(\eta_i^y)^2}
              \big\|y_i^r - P_{Y_i}(y_i^r - \eta_i^y\nabla_y f_i(x_0^r, y_i^r))\big\|^2

    It is zero at stationary points only. Exact gradients of all N clients, so it costs passes over all data.

    Args:
        every: K.
        beta: the paper's is 1/sum_i omega_i*gamma_i, which some algorithms do not have. Any beta > 0 gives a gap with the same
            zeros (without a constraint on x even the same gap); with one value for all, algorithms can be compared.

    >>> import numpy as np, fedvra as fv
    >>> data = fv.split((np.eye(40, 3, dtype=np.float32), np.arange(40) % 2), fv.IID(), clients=4)
    >>> given = {"problem": fv.Clustering(data, clusters=2), "sampler": fv.Full(), "work": fv.Steps(5), "lr": 0.1}
    >>> history = fv.simulate(fv.FedVRAU(), **given, rounds=3, callbacks=[fv.StationarityGap()])
    >>> [record["stationarity_gap"] >= 0 for record in history.metrics]
    [True, True, True]
    """

    every: int = 1
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_whole("every", self.every)
        require(self.beta > 0, f"beta must be > 0, got {self.beta}.")

    def before(self, federation: Federation) -> Any:
        """The y-part is at y^r, which the round will replace; the x-part is at the same x0^r but at y^{r+1}."""
        if (federation.state.round + 1) % self.every:
            return None
        x0, omega = federation.state.x0, federation.omega
        y = federation.second_block()
        solver = _exact(federation)
        parts = (solver.stationarity(x0, y.get(i), i).gap_y for i in range(federation.total))
        return x0, float(sum(w * part for w, part in zip(omega, parts, strict=True)))

    def after(self, federation: Federation, seen: Any) -> dict[str, Any]:
        if seen is None:
            return {}
        x0, gap_y = seen
        y, gradient, solver = federation.second_block(), torch.zeros_like(x0), _exact(federation)
        for i, w in enumerate(federation.omega):
            gradient += float(w) * solver.stationarity(x0, y.get(i), i).gradient_x
        step = x0 - project(federation.experiment.problem, x0 - self.beta * gradient)
        return {"stationarity_gap": float(step.square().sum()) / self.beta**2 + gap_y}


def _exact(federation: Federation) -> HasExactGradients:
    solver = federation.solver
    if not isinstance(solver, HasExactGradients):
        raise UsageError(
            f"{type(solver).__name__} gives no exact gradients, so there is no stationarity gap to measure."
        )
    return solver
