"""What the paper proves about the iterates, demanded of the library's own runs.

That is Lemma 1, its counterpart for FedVRA with a and d (section 2.3), lam = sum_i omega_i lam_i, and the limit in
which the local step becomes SCAFFOLD's (section 3).

Only public results are used: x0, lam and the lam_i after r rounds, for every r. The local iterates in between
are worked out from the closed forms, never with step 11 itself.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.algorithms import REGISTRY
from fedvra.core import rule
from harness import TOLERANCE, deviation, duals, simulate
from quadratics import Array, Case, case, unequal_weights
from textbook import gradient

ETA = 0.05


def states(algorithm: fv.Algorithm, c: Case, **options: object) -> list[tuple[Array, Array, Array]]:
    """(x0, lam, lam_i) before the first round and after every one."""
    P = len(c.x0)
    out = [(c.x0, np.zeros(P), np.zeros((c.clients, P)))]
    for r in range(1, c.rounds + 1):
        history = simulate(algorithm, c, rounds=r, **options)
        out.append((np.asarray(history.x0), np.asarray(history.lam), duals(history, c.clients)))
    return out


def normalised_gradient(gradients: list[Array], gamma: float, eta: float) -> tuple[Array, float]:
    """(G, Q~): sum_t b_t g_t / |b|_1 with b_t = (1 - gamma eta)^(Q-1-t), and |b|_1."""
    weights = (1 - gamma * eta) ** np.arange(len(gradients) - 1, -1, -1)
    return weights @ np.array(gradients) / weights.sum(), float(weights.sum())


@pytest.mark.parametrize("seed", range(2))
def test_local_iterates_and_duals_of_fedvra_follow_their_closed_forms(seed):
    """Section 2.3, with the indices put right: the sum is over the clients j of the round *before*, with their d_j.

    As printed it is over A^r with d_i^r; but what is substituted is x0^r, which step 20 made from A^(r-1).
    """
    c, omega = case(R=8, seed=seed), unequal_weights(6, seed)
    rng = np.random.default_rng(seed)
    gamma = rng.uniform(0.5, 2.0, c.clients)
    a, d = rng.uniform(0.5, 3.0, (c.rounds, c.clients)), rng.uniform(0.8, 2.5, (c.rounds, c.clients))
    beta = 1 / (omega @ gamma)
    known = states(fv.FedVRA(gamma=gamma, a=a, d=d), c, eta=ETA, weights=omega)

    for r in range(1, c.rounds):
        x_before, _, lam_i_before = known[r - 1]
        x0, lam, lam_i = known[r]
        _, _, lam_i_after = known[r + 1]
        # x_j^r of those who took part before, read off their duals by step 14.
        base = x_before + beta * sum(
            omega[j] * d[r - 1, j] * gamma[j] * -(lam_i[j] - lam_i_before[j]) / (a[r - 1, j] * gamma[j])
            for j in c.cohorts[r - 1]
        )
        assert deviation(base - beta * lam, x0) <= TOLERANCE
        for i in c.cohorts[r]:
            keep, eta_tilde = 1 - gamma[i] * ETA, ETA / (1 - gamma[i] * ETA)
            x, gradients = x0, []
            for _ in range(c.Q[r, i]):
                g = gradient(c.A, c.b, i, x)
                gradients.append(g)
                x = keep * (x - eta_tilde * (g + gamma[i] * beta * lam - lam_i[i])) + gamma[i] * ETA * base
            G, Q_tilde = normalised_gradient(gradients, gamma[i], ETA)
            share = a[r, i] * gamma[i] * ETA * Q_tilde
            assert deviation(lam_i_after[i], share * G + (1 - share) * lam_i[i]) <= TOLERANCE
            assert deviation(x - x0, -ETA * Q_tilde * (G - lam_i[i])) <= TOLERANCE


@pytest.mark.parametrize("seed", range(2))
def test_lemma_1_for_federated_admm(seed):
    """The averaged past model is over all N clients, those who stayed away counting as x0 of that round."""
    c, omega = case(R=8, seed=seed), unequal_weights(6, seed)
    gamma = np.random.default_rng(seed).uniform(0.5, 2.0, c.clients)
    beta = 1 / (omega @ gamma)
    known = states(fv.FedADMM(gamma=gamma), c, eta=ETA, weights=omega)
    past = np.tile(c.x0, (c.clients, 1))  # x_j^r, at first x_j^0 = x_0
    for r in range(c.rounds):
        x0, lam, lam_i = known[r]
        averaged = beta * (omega * gamma) @ past
        assert deviation(averaged - beta * lam, x0) <= TOLERANCE
        arrived = np.tile(x0, (c.clients, 1))
        for i in c.cohorts[r]:
            keep, eta_tilde = 1 - gamma[i] * ETA, ETA / (1 - gamma[i] * ETA)
            x, gradients = x0, []
            for _ in range(c.Q[r, i]):
                g = gradient(c.A, c.b, i, x)
                gradients.append(g)
                x = keep * (x - eta_tilde * (g + gamma[i] * beta * lam - lam_i[i])) + gamma[i] * ETA * averaged
            G, Q_tilde = normalised_gradient(gradients, gamma[i], ETA)
            share = gamma[i] * ETA * Q_tilde
            assert deviation(known[r + 1][2][i], share * G + (1 - share) * lam_i[i]) <= TOLERANCE
            arrived[i] = x
        past = arrived


def registered(c: Case) -> list[fv.Algorithm]:
    """Every algorithm there is at its defaults, and some variations that a default would not show."""
    gamma = np.linspace(0.4, 1.2, c.clients)
    return [
        *(cls() for _, cls in REGISTRY.items()),
        fv.FedVRA(gamma=gamma, a=np.linspace(0.5, 2.0, c.clients), d=1.5),
        fv.FedADMM(gamma=gamma),
        fv.Scaffold(global_lr=0.5),
        fv.FedPD(gamma=0.8, skip=0.5),
    ]


@pytest.mark.parametrize("algorithm", registered(case()), ids=lambda algorithm: type(algorithm).__name__)
@pytest.mark.parametrize("drop", [0.0, 0.4])
def test_lam_is_the_weighted_sum_of_all_lam_i_after_every_round(algorithm, drop):
    """Also when replies are lost: a client whose reply was not counted must not keep the dual it computed."""
    if drop and algorithm.everyone_takes_part:
        pytest.skip("defined for full participation only")
    c = case(R=8, full=algorithm.everyone_takes_part)
    omega = unequal_weights(c.clients)
    moved = 0.0
    for _, lam, lam_i in states(algorithm, c, eta=ETA, weights=omega, drop=drop)[1:]:
        assert deviation(lam, omega @ lam_i) <= 1e-12 * (1 + np.abs(lam_i).max())
        moved = max(moved, float(np.abs(lam_i).max()))
    has_duals = algorithm.name not in ("fedavg", "fedprox", "fednova")
    assert (moved > 1e-3) or not has_duals


# --- The SCAFFOLD limit of section 3 --------------------------------------------------------------------------

GAMMAS = (1e-2, 1e-3, 1e-4)


def test_the_local_step_tends_to_scaffolds_at_rate_gamma():
    """At a fixed x and a fixed past model, the step is SCAFFOLD's up to exactly gamma*eta*(past - x).

    x0 = past - lam/gamma by step 20, which is how the server's lam enters a local step that does not mention
    it.
    """
    rng = np.random.default_rng(0)
    x, g, lam_i, lam, past = (torch.tensor(rng.standard_normal(5)) for _ in range(5))
    wanted = rule.local_step(x, g, rule.correction(lam_i, lam, sigma=1.0), x, ETA, 0.0)
    assert deviation(wanted, x - ETA * (g - lam_i + lam)) <= 1e-15
    for gamma in GAMMAS:
        got = rule.local_step(x, g, rule.correction(lam_i, lam, sigma=0.0), past - lam / gamma, ETA, gamma)
        assert deviation(got - wanted, gamma * ETA * (past - x)) <= 1e-14


def test_but_at_fedvras_own_starting_point_the_server_dual_is_missing_whatever_gamma():
    """x starts at x0 = past - lam/gamma, not at a fixed point, and there the pull gamma*(x - x0) is zero.

    So the limit holds for the step as a map, not along FedVRA's iterates: their first step lacks -eta*lam for
    every gamma.
    """
    rng = np.random.default_rng(0)
    g, lam_i, lam, past = (torch.tensor(rng.standard_normal(5)) for _ in range(4))
    for gamma in GAMMAS:
        x0 = past - lam / gamma
        got = rule.local_step(x0, g, lam_i, x0, ETA, gamma)
        assert deviation(got - (x0 - ETA * (g - lam_i + lam)), ETA * lam) <= 1e-10


def scaffold_like(gamma: float) -> fv.FedVRA:
    """a = 1/(gamma eta Q), d = 1: the choice of section 3."""
    return fv.FedVRA(gamma=gamma, a=lambda cohort: 1 / (gamma * cohort.eta * cohort.steps), d=1)


def test_the_dual_tends_to_scaffolds_control_variate_at_rate_gamma():
    """lam_i after a round is the mean of the local gradients, up to first order in gamma."""
    c = case(R=1, full=True)
    c.Q[0, 0] = 1
    scaffold = duals(simulate(fv.Scaffold(), c, ETA), c.clients)
    runs = [duals(simulate(scaffold_like(gamma), c, ETA), c.clients) for gamma in GAMMAS]
    errors = np.array([np.abs(run - scaffold).max(axis=1) for run in runs])
    busy = c.Q[0] > 1  # with one step there is nothing for gamma to change
    assert busy.sum() > 2
    assert errors[:, ~busy].max() <= TOLERANCE
    assert errors[0, busy].min() > 1e-5
    rates = np.log10(errors[:-1, busy] / errors[1:, busy])
    assert np.abs(rates - 1).max() < 0.01


def test_the_limit_is_one_of_the_local_step_only():
    """The server's -beta lam grows like 1/gamma: gamma*(x0' - x0) tends to -lam, so x0 itself has no limit."""
    c = case(R=1, full=True)
    for gamma in GAMMAS:
        history = simulate(scaffold_like(gamma), c, ETA)
        leap = gamma * (np.asarray(history.x0) - c.x0)
        assert deviation(leap, -np.asarray(history.lam)) <= 2 * gamma
        assert np.abs(leap).max() > 0.1
