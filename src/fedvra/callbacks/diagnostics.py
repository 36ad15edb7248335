"""What a run does under the paper's eyes: how well duals track gradients, what they take off the clients' disagreement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from fedvra.callbacks.observer import Observer
from fedvra.core import rule
from fedvra.core.block import Block, Broadcast, Orders
from fedvra.core.cohort import Cohort, Floats, Ints, mean_over
from fedvra.core.step import client_round
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_whole
from fedvra.engines.experiment import subset
from fedvra.engines.worker import local_steps
from fedvra.local.protocol import start_of_y
from fedvra.problems.base import oracle_of
from fedvra.problems.oracle import Oracle
from fedvra.samplers.base import random_subset
from fedvra.theory import Theorem1, Theorem2, discounted_steps
from fedvra.theory.seeing import Spread, participation, points_of
from fedvra.theory.stepsizes import Stepsizes, read_stepsizes

if TYPE_CHECKING:
    from fedvra.engines.federation import Federation

CLIENTS = 100
"""Where there are more, so many are looked at, the same in every round."""
MOVES = 10
"""Members of the cohort whose local work is done once more, to see how far they go."""


class Diagnostics(Observer):
    r"""Every K-th record gets an object ``diagnostics``, about x0 and the duals as they are after the round.

    * ``grad_norm2``: :math:`\|\nabla f(x_0)\|^2`.
    * ``xi``: :math:`\sum_i\omega_i\Xi_i` with :math:`\Xi_i = \|\nabla f_i(x_0) - \lambda_i\|^2`, how well duals track.
    * ``variance_before``: :math:`\sum_i\omega_i\|\nabla f_i(x_0) - \nabla f(x_0)\|^2`, how much the clients disagree.
    * ``variance_after``: the same of what they follow, :math:`\nabla f_i(x_0) - \lambda_i + (\sigma + \gamma_i\kappa)\lambda`
      (SCAFFOLD's correction, and by Lemma 1 that of ADMM); equal to the one before where there are no duals.
    * ``potential``: :math:`P^r = f(x_0) + \sum_i\omega_i 4\beta\Xi_i/(p_i C_2^i)` of Theorem 1, or that of Theorem 2 where
      there is a second block, with beta, p and C_2 as in this round. It is a potential where these stay as they are; with
      stepsizes that adapt (``auto``) it also changes with them.
    * ``drift``: the mean of :math:`\|x_i - x_0^r\|^2` over the cohort, how far clients went from where they began.
    * ``momentum``: :math:`\langle v, -\kappa\lambda^r\rangle/\|v\|^2` with :math:`v = x_0^{r+1} - x_0^r`, the share of x0's
      motion that was settled before the round began.
    * ``clients``: how many clients were looked at, where not all were.

    What has no meaning for an algorithm is left out: ``xi`` where there are no duals, ``momentum`` where kappa = 0,
    ``potential`` where it is no instance of FedVRA (or p = 1 with two blocks), ``drift`` in a round without anybody.

    Gradients are over a client's whole data, in evaluation mode, without augmentation. The cost, in a round that is looked at:
    one gradient of all samples of the clients looked at, and the local work of up to ten clients once more, both in the
    server's process on one core. The run's own numbers do not change by a bit.

    Args:
        every: K.
        clients: look at so many clients at most; sums over all are then estimated from a sample drawn once, of which
            ``grad_norm2`` is biased upwards by the variance over the number of clients.

    >>> import torch, fedvra as fv
    >>> costs = fv.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))

    >>> history = fv.simulate(
    ...     fv.FedVRA(), problem=costs, sampler=fv.Uniform(2), work=fv.Steps(2), rounds=4, callbacks=[fv.Diagnostics(every=4)]
    ... )
    >>> ["diagnostics" in record for record in history.metrics]
    [False, False, False, True]
    """

    _forgets: ClassVar[tuple[str, ...]] = ("_oracle", "_seen")
    _oracle: Oracle | None = None

    def __init__(self, every: int = 10, clients: int = CLIENTS) -> None:
        self.every = check_whole("diagnostics", every)
        self.clients = check_whole("clients", clients)

    def before(self, federation: Federation) -> Before | None:
        if (federation.state.round + 1) % self.every:
            return None
        cohort = federation.next_cohort()
        if not len(cohort):
            return Before(federation.state.x0, cohort.memory, None, None)
        row = federation.plan.row(cohort, federation.state.counts)
        settled = -row.kappa * federation.state.lam if row.kappa else None
        return Before(federation.state.x0, cohort.memory, settled, _drift(federation, cohort, row))

    def after(self, federation: Federation, seen: Before | None) -> dict[str, Any]:
        if seen is None:
            return {}
        found = self._of_gradients(federation, seen.memory)
        if seen.drift is not None:
            found["drift"] = seen.drift
        if seen.settled is not None:
            motion = (federation.state.x0 - seen.x0).double()
            if motion.any():
                found["momentum"] = float(motion @ seen.settled.double()) / float(motion.square().sum())
        return {"diagnostics": found}

    def _of_gradients(self, federation: Federation, memory: Mapping[str, float]) -> dict[str, Any]:
        """What follows from the gradients and duals of the clients looked at, at x0."""
        state, clients = federation.state, self._sample(federation)
        omega = federation.omega[clients] / federation.omega[clients].sum()
        cohort, row = _as_if_all(federation, clients, memory)
        points = points_of(federation, clients)
        oracle = self._oracle = self._oracle or oracle_of(federation.experiment.problem, federation.experiment.data)
        plain, corrected = Spread(), Spread()
        cost, xi = 0.0, np.zeros(len(clients))
        for k, (client, point) in enumerate(zip(clients.tolist(), points, strict=True)):
            value, gradient = oracle.look(client, point)
            gradient = gradient.double()
            residual = gradient - federation.clients.duals.get(client).to(gradient)
            cost += float(omega[k]) * value
            xi[k] = float(residual.square().sum())
            plain.add(gradient, float(omega[k]))
            if row is not None:
                shift = float(row.sigma + row.gamma[k] * row.kappa)
                corrected.add(residual + shift * state.lam.to(gradient), float(omega[k]))
        found = {"grad_norm2": plain.norm2, "variance_before": plain.variance}
        if row is not None:
            found["variance_after"] = corrected.variance
        if len(federation.clients.duals):
            found["xi"] = float(omega @ xi)
        stepsizes = None if row is None else read_stepsizes(row)
        if isinstance(stepsizes, Stepsizes):
            weight = _dual_weight(federation, cohort, stepsizes)
            if np.all(np.isfinite(weight)):
                found["potential"] = cost + float(omega @ (weight * xi))
        if len(clients) < federation.total:
            found["clients"] = len(clients)
        return found

    def _sample(self, federation: Federation) -> Ints:
        if federation.total <= self.clients:
            return np.arange(federation.total)
        rng = stream(federation.experiment.seed, Purpose.PROBE, round=2)
        return random_subset(rng, federation.total, self.clients)


class Before(NamedTuple):
    """What is remembered of the moment before the round."""

    x0: Tensor
    memory: Mapping[str, float]
    """From which stepsizes that adapt were chosen for it."""
    settled: Tensor | None
    """-kappa*lam; None where kappa = 0 or nobody takes part."""
    drift: float | None


def _as_if_all(
    federation: Federation, clients: Ints, memory: Mapping[str, float]
) -> tuple[Cohort, rule.Coefficients | None]:
    """These clients as the cohort of the last round, with its coefficients; None where a probability is not known."""
    state = federation.state
    cohort = federation.plan.describe(state.round - 1, clients, state.counts, memory)
    if not np.all((cohort.p > 0) & (cohort.p <= 1)):
        return cohort, None
    # A client with no steps to do would not have taken part; its coefficients are those of one step, to be on the safe side.
    steps = np.maximum(cohort.steps, 1)
    working = replace(cohort, steps=steps, effective=federation.plan.effective(steps))
    return cohort, federation.plan.row(working, state.counts)


def _dual_weight(federation: Federation, cohort: Cohort, stepsizes: Stepsizes) -> Floats:
    p = participation(federation, cohort)
    steps = cohort.steps.astype(np.float64)
    pull = stepsizes.gamma * cohort.eta * discounted_steps(stepsizes.gamma, cohort.eta, steps)
    with np.errstate(divide="ignore"):
        if federation.clients.y is not None:
            return Theorem2.dual_weight(stepsizes.beta, p, stepsizes.a * pull)
        return Theorem1.dual_weight(stepsizes.beta, p * stepsizes.a * pull)


def _drift(federation: Federation, cohort: Cohort, row: rule.Coefficients) -> float:
    """The mean of ||x_i - x0||^2, from the local work of some of the cohort, done here for once and thrown away."""
    mask = np.zeros(len(cohort), dtype=bool)
    rng = stream(federation.experiment.seed, Purpose.PROBE, round=3 + cohort.round)
    mask[random_subset(rng, len(cohort), min(MOVES, len(cohort)))] = True
    chosen, gammas, alphas = subset(cohort, mask), row.gamma[mask], row.alpha[mask]
    e, state, distances = federation.experiment, federation.state, np.zeros(len(chosen))
    sent = Broadcast(state.x0, state.lam, state.aux)
    optimiser, solve = local_steps(e, federation.solver)
    for k in range(len(chosen)):
        span = slice(k, k + 1)
        block = Block(chosen.round, chosen.seed, chosen.clients[span], chosen.steps[span], chosen.eta[span])
        orders = Orders(block, gammas[span], alphas[span], row.sigma, e.problem.decay, local=optimiser)
        kept = federation.clients.committed(block.clients, state.x0)
        private = kept.start(state.aux, start_of_y(federation.solver), block.clients)
        moves = client_round(solve, sent, orders, kept, private)
        distances[k] = float(moves.sent(0).detach().double().square().sum())
    return mean_over(chosen, distances)
