"""For which (sigma, n) FedVRA converges on quadratics: four moments against every cohort in turn, and against the library."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.policies import Auto, Pace
from fedvra.policies.pace import strongest as strongest_of_auto
from fedvra.policies.pace import visits
from fedvra.theory.multiplier import radius, second_moments, strongest

N, M, Q, ETA = 4, 2, 3, 0.1


def one_round(sigma: float, n: float, h: float, cohort: tuple[int, ...]) -> np.ndarray:
    """(x0, lam_1, ..., lam_N) to those after a round, as Algorithm 1 has it, for f_i = h*x^2/2."""
    p, T = M / N, ETA * Q
    kappa = n * sigma * T / p
    gamma, alpha = 1 / kappa, 1 / (n * T)
    matrix = np.zeros((N + 1, N + 1))
    for column in range(N + 1):
        start = np.zeros(N + 1)
        start[column] = 1.0
        x0, duals, moves = start[0], start[1:].copy(), []
        for i in cohort:
            x = x0
            for _ in range(Q):
                x -= ETA * (h * x - duals[i] + gamma * (x - x0))
            duals[i] += alpha * (x0 - x)
            moves.append(x - x0)
        matrix[:, column] = x0 + np.mean(moves) - kappa * duals.mean(), *duals
    return matrix


@pytest.mark.parametrize(("sigma", "n"), [(1.0, 2.0), (2.0, 1.0), (3.0, 1.0), (0.5, 3.0)])
@pytest.mark.parametrize("h", [0.3, 3.0, 8.0])
def test_four_moments_say_what_all_second_moments_say(sigma: float, n: float, h: float) -> None:
    """E[z z'] over all cohorts, in (N + 1)^2 dimensions: the largest eigenvalue is one of the four."""
    cohorts = list(itertools.combinations(range(N), M))
    rounds = [one_round(sigma, n, h, cohort) for cohort in cohorts]
    whole = np.abs(np.linalg.eigvals(sum(np.kron(z, z) for z in rounds) / len(rounds))).max()
    four = np.abs(np.linalg.eigvals(second_moments(sigma, n, M, N, ETA * Q * h, Q))).max()
    assert four == pytest.approx(whole, rel=1e-9)


def test_a_round_of_the_library_is_that_map() -> None:
    sigma, n, h = 1.5, 2.0, 2.0
    A, b = torch.full((N, 1, 1), h, dtype=torch.float64), torch.zeros(N, 1, dtype=torch.float64)
    cohorts = [(0, 1), (2, 3), (1, 2)]
    p, T = M / N, ETA * Q
    history = fv.simulate(
        fv.FedVRA(gamma=p / (n * sigma * T), a=sigma / p, d=1 / p), problem=fv.Quadratic(A, b), sampler=fv.Replay(cohorts),
        work=fv.Steps(Q), lr=ETA, rounds=3, x_init=torch.ones(1, dtype=torch.float64), workers=1,
    )  # fmt: skip
    z = np.eye(N + 1)[0]
    for cohort in cohorts:
        z = one_round(sigma, n, h, cohort) @ z
    assert float(history.x0[0]) == pytest.approx(z[0], rel=1e-12)


@pytest.mark.parametrize(("cohort", "clients"), [(1, 10), (1, 1000), (2, 100), (10, 100), (20, 100), (100, 100)])
def test_auto_stays_where_convergence_is_proven(cohort: int, clients: int) -> None:
    """For every stiffness, from the lowest sigma to where auto starts; to the largest where ten or more take part."""
    auto, p = Auto(), cohort / clients
    most = strongest_of_auto(auto, p) if cohort >= 10 else Pace.first(auto, p).sigma
    for sigma in np.linspace(p, most, 5):
        assert radius(float(sigma), visits(auto, p), cohort, clients) < 1


def test_twice_a_local_round_is_the_limit() -> None:
    """A direction that local work exhausts is multiplied by 1 - sigma, whatever p and n are."""
    assert strongest(2, 100, 100) == pytest.approx(2, abs=0.01)
    assert strongest(1, 10, 100) == pytest.approx(1.953, abs=0.005)
    assert strongest(1, 1, 100) < 1.2 < strongest(2, 1, 100)
    assert max(abs(np.linalg.eigvals(second_moments(0.7, 2, 100, 100, 1e6)))) == pytest.approx(1, abs=1e-4)


def test_where_the_map_says_so_a_run_diverges_and_where_not_it_does_not() -> None:
    clients, cohort, steps, lr, h = 10, 5, 5, 0.09, 10.0
    p, T = cohort / clients, lr * steps
    A = torch.full((clients, 1, 1), h, dtype=torch.float64)
    b = torch.tensor(np.random.default_rng(0).standard_normal((clients, 1)))
    ends = {}
    for sigma in (1.5, 2.6):
        n = 2 / sigma
        history = fv.simulate(
            fv.FedVRA(gamma=p / (n * sigma * T), a=sigma / p, d=1 / p), problem=fv.Quadratic(A, b), sampler=fv.Uniform(cohort),
            work=fv.Steps(steps), lr=lr, rounds=200, workers=1,
        )  # fmt: skip
        ends[sigma] = abs(float(history.x0[0]) - float(b.mean()) / h)
        moments = second_moments(sigma, n, cohort, clients, T * h, steps)
        assert (np.abs(np.linalg.eigvals(moments)).max() < 1) == (ends[sigma] < 1)
    assert ends[1.5] < 1e-5 < 1e3 < ends[2.6]
