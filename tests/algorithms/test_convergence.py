"""Algorithms x problems whose minimum is known: which must reach it do, which must not stop where theory says.

The grid takes its algorithms from the registry and its claims from ``Algorithm.converges_exactly``, so a new algorithm is
tested from the day it is registered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.algorithms import REGISTRY
from harness import deviation, simulate, trajectory
from quadratics import Array, Case, case, quadratic, unequal_weights
from textbook import minimiser

N = 6
ROUNDS = 300
ETA = 1.0
CURVATURE = (0.05, 0.2)
"""Of the order of the default gamma = 0.1, where the primal-dual methods are meant to be used: eta*L*Q <= 1 throughout."""

SETTINGS: dict[str, dict[str, float]] = {"fedvra-u": {"gamma": 0.1, "a": 2}}
"""Where the default does not suit the problem: a = 10 is for the tiny eta*gamma*Q~ of training a network (Remark 1)."""


@dataclass(frozen=True)
class Problem:
    name: str
    case: Case
    omega: Array

    @property
    def minimum(self) -> Array:
        return minimiser(self.case.A, self.case.b, self.omega)


def problem(name: str, seed: int, omega: Array | None = None, alike: bool = False, **options: object) -> Problem:
    """``alike``: all clients have the same curvature and only their minima differ."""
    A, b = quadratic(N, 5, *CURVATURE, spread=CURVATURE[1], seed=seed)
    A = np.repeat(A[:1], N, axis=0) if alike else A
    omega = np.full(N, 1 / N) if omega is None else omega
    return Problem(name, replace(case(R=ROUNDS, N=N, seed=seed, **options), A=A, b=b), omega)


PROBLEMS = [
    problem("few take part, any work", seed=0),
    problem("half take part, equal work", seed=1, sizes=(3,), same_work=True),
    problem("unequal weights", seed=2, sizes=(3,), omega=unequal_weights(N)),
    problem("same curvature", seed=3, sizes=(3,), alike=True),
]


def everyone(problem: Problem) -> Problem:
    return replace(problem, case=replace(problem.case, cohorts=[list(range(N))] * ROUNDS))


def distances(algorithm: fv.Algorithm, problem: Problem) -> Array:
    """Greatest error of any coordinate of x0 before the first round and after each."""
    chosen = everyone(problem) if algorithm.everyone_takes_part else problem
    after = trajectory(algorithm, chosen.case, ETA, weights=chosen.omega)
    return np.abs(np.vstack((problem.case.x0, after)) - problem.minimum).max(axis=1)


EXACT = [cls for _, cls in REGISTRY.items() if cls.converges_exactly]


def test_those_that_must_converge_are_in_the_grid():
    assert {"scaffold", "vrlsgd", "fedadmm", "fedpd", "feddyn", "fedvra"} <= {cls.name for cls in EXACT}
    assert not {"fedavg", "fedprox", "fednova"} & {cls.name for cls in EXACT}


@pytest.mark.parametrize("cls", EXACT, ids=lambda cls: cls.name)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_reaches_the_minimiser(cls, problem):
    error = distances(cls(**SETTINGS.get(cls.name, {})), problem)
    assert error[0] > 0.3
    assert error[-1] <= 1e-8
    assert error[-50:].max() <= 1e-6, "it only passed by"


@dataclass(frozen=True)
class Logistic:
    """Regularised multinomial regression on three clouds, dealt in unequal shares to clients weighted by their samples.

    Its minimum is found by Newton's method on all samples at once, so it does not lean on any federated algorithm.
    """

    data: fv.FederatedData
    decay: float
    minimum: Array

    @staticmethod
    def make(decay: float = 0.1) -> Logistic:
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(3), 40)
        inputs = torch.tensor(0.5 * rng.standard_normal((120, 4)) + rng.standard_normal((3, 4))[labels])
        targets = torch.tensor(labels)

        def objective(x: torch.Tensor) -> torch.Tensor:
            loss = torch.nn.functional.cross_entropy(inputs @ x[:12].view(3, 4).T + x[12:], targets)
            return loss + decay / 2 * x @ x

        x = torch.zeros(15, dtype=torch.float64)
        for _ in range(12):
            slope = torch.autograd.functional.jacobian(objective, x)
            x = x - torch.linalg.solve(torch.autograd.functional.hessian(objective, x), slope)
        assert float(torch.autograd.functional.jacobian(objective, x).abs().max()) < 1e-13
        data = fv.split((inputs, targets), fv.DirichletByClass(0.3, min_size=4), clients=5, seed=0)
        return Logistic(data, decay, x.numpy())

    def run(self, algorithm: fv.Algorithm, rounds: int) -> Array:
        model = torch.nn.Linear(4, 3).double()
        rng = np.random.default_rng(1)
        return np.asarray(
            fv.simulate(
                algorithm,
                problem=fv.Supervised(model, loss=torch.nn.functional.cross_entropy, weight_decay=self.decay),
                data=self.data,
                sampler=fv.Full() if algorithm.everyone_takes_part else fv.Uniform(3),
                work=fv.Steps(rng.integers(1, 5, (rounds, 5))),
                lr=1.0,
                batch_size=None,
                rounds=rounds,
                seed=0,
                weights="samples",
                x_init=torch.ones(15, dtype=torch.float64),
                workers=1,
            ).x0
        )


@pytest.fixture(scope="module")
def logistic() -> Logistic:
    return Logistic.make()


@pytest.mark.parametrize("cls", EXACT, ids=lambda cls: cls.name)
def test_reaches_the_minimiser_of_a_logistic_regression(cls, logistic):
    """The clients' sizes differ, so the weights do: a plain mean of the clients would settle elsewhere."""
    assert np.ptp(logistic.data.sizes) > 10
    x0 = logistic.run(cls(**SETTINGS.get(cls.name, {})), rounds=280)
    assert np.abs(x0 - logistic.minimum).max() <= 1e-6


def test_skipped_communications_cost_fedpd_its_exactness_unless_the_clients_are_alike():
    """Alone, a client at x* with lam_i = grad f_i(x*) moves its anchor to x* - lam_i/gamma; only the mean of these is x*."""
    assert distances(fv.FedPD(skip=0.5), PROBLEMS[0])[-50:].min() > 1e-3
    c = PROBLEMS[0].case
    alike = replace(PROBLEMS[0], case=replace(c, A=np.repeat(c.A[:1], N, axis=0), b=np.repeat(c.b[:1], N, axis=0)))
    assert distances(fv.FedPD(skip=0.5), alike)[-1] <= 1e-8


# --- The bias of the FedAvg family, to the last digit ----------------------------------------------------------------------


def stationary(c: Case, Q: Array, weight: Callable[[int], float], mu: float = 0.0, eta: float = ETA) -> Array:
    """Where sum_i weight_i D_i = 0, with D_i = -(I - (I - eta H_i)^Q_i) H_i^-1 (A_i x - b_i) and H_i = A_i + mu I."""
    eye = np.eye(c.A.shape[1])
    maps = [
        weight(i)
        * (eye - np.linalg.matrix_power(eye - eta * (c.A[i] + mu * eye), int(Q[i])))
        @ np.linalg.inv(c.A[i] + mu * eye)
        for i in range(N)
    ]
    left = sum(M @ c.A[i] for i, M in enumerate(maps))
    return np.linalg.solve(left, sum(M @ c.b[i] for i, M in enumerate(maps)))


def settled(problem: Problem, Q: Array) -> Case:
    """Everybody takes part and does the same Q_i in every round, so that there is a fixed point to settle in."""
    return replace(everyone(problem).case, Q=np.tile(Q, (ROUNDS, 1)))


MIXED = np.array([1, 2, 3, 4, 5, 5])


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
@pytest.mark.parametrize("mu", [0.0, 0.1], ids=["fedavg", "fedprox"])
def test_fedavg_and_fedprox_settle_beside_the_minimiser_where_theory_says(problem, mu):
    omega, c = problem.omega, settled(problem, MIXED)
    algorithm = fv.FedProx(mu=mu) if mu else fv.FedAvg()
    x0 = np.asarray(simulate(algorithm, c, ETA, weights=omega).x0)
    assert deviation(x0, stationary(c, MIXED, lambda i: omega[i], mu)) <= 1e-9
    assert np.abs(x0 - problem.minimum).max() > 0.02


@pytest.mark.parametrize("mu", [0.0, 0.1], ids=["fedavg", "fedprox"])
def test_with_one_local_step_there_is_no_bias(mu):
    c = settled(PROBLEMS[0], np.ones(N, dtype=int))
    algorithm = fv.FedProx(mu=mu) if mu else fv.FedAvg()
    x0 = np.asarray(simulate(algorithm, c, ETA).x0)
    assert np.abs(x0 - PROBLEMS[0].minimum).max() <= 1e-9


def test_equal_work_is_not_enough_for_fedavg_when_curvatures_differ():
    c = settled(PROBLEMS[0], np.full(N, 5))
    x0 = np.asarray(simulate(fv.FedAvg(), c, ETA).x0)
    assert deviation(x0, stationary(c, np.full(N, 5), lambda i: 1 / N)) <= 1e-9
    assert np.abs(x0 - PROBLEMS[0].minimum).max() > 0.02


def test_fednova_settles_where_theory_says_and_nearer_than_fedavg():
    """With Q_i that differ FedAvg minimises sum omega_i Q_i f_i. FedNova minimises f, up to client drift of order eta Q L."""
    problem = PROBLEMS[3]
    c = settled(problem, MIXED)
    nova = np.asarray(simulate(fv.FedNova(), c, ETA).x0)
    avg = np.asarray(simulate(fv.FedAvg(), c, ETA).x0)
    assert deviation(nova, stationary(c, MIXED, lambda i: 1 / (N * MIXED[i]))) <= 1e-9
    assert np.abs(nova - problem.minimum).max() < 0.5 * np.abs(avg - problem.minimum).max()


@pytest.mark.parametrize("algorithm", [fv.FedNova(), fv.FedAvg()], ids=repr)
def test_as_the_stepsize_shrinks_fednova_loses_its_bias_and_fedavg_keeps_that_of_its_objective(algorithm):
    """Each drifts by an amount of first order in eta: FedNova from the minimiser of f, FedAvg from that of sum Q_i f_i."""
    c = settled(PROBLEMS[3], MIXED)
    objective = MIXED / MIXED.sum() if algorithm.name == "fedavg" else np.full(N, 1 / N)
    weight = np.full(N, 1 / N) if algorithm.name == "fedavg" else 1 / (N * MIXED)
    assert np.abs(minimiser(c.A, c.b, MIXED / MIXED.sum()) - PROBLEMS[3].minimum).max() > 0.05
    drifts = []
    for eta in (0.2, 0.1, 0.05, 0.025):
        fixed = stationary(c, MIXED, lambda i: weight[i], eta=eta)
        assert deviation(simulate(algorithm, c, eta, x_init=fixed, rounds=5).x0, fixed) <= 1e-12
        assert np.abs(simulate(algorithm, c, eta, x_init=fixed + 0.1, rounds=1).x0.numpy() - fixed - 0.1).max() > 1e-4
        drifts.append(np.abs(fixed - minimiser(c.A, c.b, objective)).max())
    assert np.abs(np.array(drifts[:-1]) / drifts[1:] - 2).max() < 0.1
