"""Who takes part in one round, and all that is known of them before they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedvra.core.errors import require
from fedvra.core.objects import Value

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Cohort(Value):
    """The clients of one round, the paper's A^r, with one entry per client in every array (shape suffix M = len(cohort)).

    Hyper-parameters and stepsizes may be functions of it, and :meth:`Algorithm.coefficients` is given it.

    >>> import torch, fedvra as fv
    >>> seen = []
    >>> def lr(cohort):  # one number for all, or one per client
    ...     seen.append((cohort.round, cohort.total, len(cohort), cohort.p.tolist()))
    ...     return 0.5 / (1 + cohort.round)
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))
    >>> run = fv.simulate(fv.FedAvg(), problem=costs, sampler=fv.Uniform(2), work=fv.Steps(1), lr=lr, rounds=1, workers=1)
    >>> seen[-1]
    (0, 4, 2, [0.5, 0.5])
    """

    round: int
    total: int
    """N, the number of all clients."""
    clients: Ints
    """i in A^r, ascending, each at most once."""
    p: Floats
    """p_i^r, the probability with which client i takes part in this round (in (0, 1])."""
    steps: Ints
    """Q_i^r, the number of local steps; what they amount to is :attr:`amount`."""
    samples: Ints
    """n_i, how many samples the client holds."""
    omega: Floats
    """omega_i, the client's weight in f = sum_i omega_i f_i (all N sum to 1)."""
    eta: Floats
    """eta_i^r, the local stepsize; zeros while eta itself is being determined."""
    seed: int = 0
    """The run's seed, for algorithms that draw at random through ``fedvra.core.streams``."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """What an algorithm that adapts noted after the last round, by name (``fedvra.core.adaptive``); empty before the first."""
    effective: Floats | None = None
    """Q~_i, where it is not Q_i; NaN where the local optimiser has no such number (``fedvra.core.optimisers``)."""

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def amount(self) -> Floats:
        """Q~_i, the effective number of local steps: eta_i*Q~_i is how far a constant unit gradient carries client i.

        With plain SGD it is Q_i. Coefficients that contain Q_i mean this number.
        """
        if self.effective is None:
            return self.steps.astype(np.float64)
        require(
            not bool(np.isnan(self.effective).any()),
            "the algorithm divides by how far a constant gradient carries a client, and the local optimiser has no such number "
            "(only SGD has, with or without momentum): use local=SGD(...), or FedAvg, FedProx, FedADMM, FedPD, FedDyn, or "
            "FedVRA with numbers for gamma and a.",
        )
        return self.effective

    @property
    def carry(self) -> Floats:
        """T_i = eta_i*Q~_i; eta_i*Q_i where there is no Q~_i: a scale to compare uploads by."""
        known = self.steps if self.effective is None else self.effective
        return self.eta * np.where(np.isnan(known), self.steps, known)


def mean_over(cohort: Cohort, values: Floats) -> float:
    """The mean of one value per client, by their weights; where all weights are 0 they count alike.

    >>> import numpy as np
    >>> c = Cohort(0, 4, np.array([1, 3]), np.ones(2), np.ones(2, int), np.ones(2, int), np.array([0.25, 0.75]), np.ones(2))
    >>> mean_over(c, np.array([1.0, 2.0]))
    1.75
    """
    return float(np.average(values, weights=np.maximum(cohort.omega, 1e-300)))


Setting: TypeAlias = float | Sequence[float] | Sequence[Sequence[float]] | Floats | Callable[[Cohort], Floats | float]
"""A number; a table [N] (per client) or [R, N] (per round and client); or a function of the cohort, vectorised over it."""


def resolve(setting: Setting, cohort: Cohort, name: str) -> Floats:
    """The value of a setting for each client of the cohort, as an array [M]. ``name`` is for the error message.

    >>> import numpy as np
    >>> c = Cohort(0, 4, np.array([1, 3]), np.array([.5, .5]), np.array([2, 5]), np.ones(2, int), np.ones(2) / 4, np.ones(2))
    >>> resolve(0.1, c, "gamma"), resolve([1, 2, 3, 4], c, "a"), resolve(lambda c: 1 / c.p, c, "d")
    (array([0.1, 0.1]), array([2., 4.]), array([2., 2.]))
    """
    if callable(setting):
        value = np.asarray(setting(cohort), dtype=np.float64)
        require(
            value.shape in ((), (len(cohort),)),
            f"{name}: the function returned shape {value.shape} for a cohort of {len(cohort)} clients; "
            "return one number or one per client.",
        )
        return np.broadcast_to(value, (len(cohort),)).astype(np.float64)
    table = np.asarray(setting, dtype=np.float64)
    if table.ndim == 0:
        return np.full(len(cohort), float(table))
    require(
        table.ndim in (1, 2) and table.shape[-1] == cohort.total,
        f"{name}: a table must have shape [N] or [R, N] with N = {cohort.total} clients, got {list(table.shape)}.",
    )
    if table.ndim == 2:
        require(
            cohort.round < len(table),
            f"{name}: the table has {len(table)} rounds, round {cohort.round} was asked for.",
        )
        table = table[cohort.round]
    return np.asarray(table[cohort.clients], dtype=np.float64)
