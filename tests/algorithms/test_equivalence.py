"""Every algorithm against the version of its own paper in textbook.py, to 1e-10 over 20 rounds.

Clients, curvatures, cohorts (2 or 3 of 6, and one round with nobody) and local steps (1 to 5) all differ; so
a term that is dropped, doubled or given to the wrong client shows.
"""

from __future__ import annotations

import numpy as np
import pytest

import fedvra as fv
import textbook
from fedvra.core.streams import Purpose, stream
from harness import TOLERANCE, deviation, duals, simulate, trajectory
from quadratics import case, unequal_weights

SEEDS = range(3)
ETA = 0.05


def assert_same(
    history: fv.History, run: textbook.Run, clients: float | None = 1.0, server: float | None = 1.0
) -> None:
    """x0 after every round; and at the end, up to the given signs, the client and server vectors."""
    assert deviation(history.trajectory, run.x0[1:]) <= TOLERANCE
    assert np.abs(run.x0[-1] - run.x0[0]).max() > 0.1, "the run went nowhere"
    if clients is not None:
        assert deviation(duals(history, run.clients.shape[1]), clients * run.clients[-1]) <= TOLERANCE
    if server is not None:
        assert deviation(history.lam, server * run.server[-1]) <= TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_fedavg_and_fedprox_divided_by_p(seed, mu):
    c, omega = case(seed=seed, empty=(5,)), unequal_weights(6, seed)
    p = np.random.default_rng(seed).uniform(0.3, 1.0, (c.rounds, c.clients))
    algorithm = fv.FedProx(mu=mu, averaging="unbiased") if mu else fv.FedAvg(averaging="unbiased")
    sampler = fv.Replay(c.cohorts, probabilities=p)
    history = simulate(algorithm, c, ETA, weights=omega, sampler=sampler)
    assert_same(history, textbook.fedavg(*c.parts(), eta=ETA, omega=omega, p=p, mu=mu), None, None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_fedavg_and_fedprox_normalised_over_the_cohort(seed, mu):
    c, omega = case(seed=seed, empty=(5,)), unequal_weights(6, seed)
    algorithm = fv.FedProx(mu=mu, averaging="cohort") if mu else fv.FedAvg(averaging="cohort")
    history = simulate(algorithm, c, ETA, weights=omega)
    assert_same(history, textbook.fedavg_normalised(*c.parts(), eta=ETA, n=omega, mu=mu), None, None)


def test_the_two_averages_are_one_for_equal_weights():
    c = case()
    cohort = trajectory(fv.FedAvg(averaging="cohort"), c)
    assert deviation(cohort, trajectory(fv.FedAvg(averaging="unbiased"), c)) <= TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_fednova(seed, weighted):
    c = case(seed=seed, empty=(5,))
    omega = unequal_weights(6, seed) if weighted else np.full(6, 1 / 6)
    history = simulate(fv.FedNova(), c, ETA, weights=omega)
    assert_same(history, textbook.fednova(*c.parts(), eta=ETA, omega=omega), None, None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("global_lr", [1.0, 0.6])
def test_scaffold(seed, global_lr):
    c = case(seed=seed, empty=(5,))
    history = simulate(fv.Scaffold(global_lr=global_lr), c, ETA)
    assert_same(history, textbook.scaffold(*c.parts(), eta=ETA, eta_g=global_lr))


def test_scaffold_with_a_stepsize_per_client_and_round():
    c = case()
    eta = np.random.default_rng(0).uniform(0.02, 0.08, (c.rounds, c.clients))
    assert_same(simulate(fv.Scaffold(), c, eta), textbook.scaffold(*c.parts(), eta=eta))


@pytest.mark.parametrize("seed", SEEDS)
def test_vrl_sgd(seed):
    c = case(seed=seed, full=True, same_work=True)
    run = textbook.vrl_sgd(c.A, c.b, c.x0, c.Q[:, 0], gamma=ETA)
    history = simulate(fv.VRLSGD(), c, ETA)
    assert_same(history, run, None, None)
    Delta = duals(history, c.clients) - np.asarray(history.lam)
    assert deviation(Delta, run.clients[-1]) <= TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("version", [textbook.fedadmm, textbook.consensus_admm])
def test_fedadmm_in_both_its_forms(seed, version):
    c, omega = case(seed=seed, empty=(5,)), unequal_weights(6, seed)
    gamma = np.random.default_rng(seed).uniform(0.5, 2.0, c.clients)
    history = simulate(fv.FedADMM(gamma=gamma), c, ETA, weights=omega)
    assert_same(history, version(*c.parts(), eta=ETA, gamma=gamma, omega=omega))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("skip", [0.0, 0.4])
def test_fedpd(seed, skip):
    """The coin is the documented stream; the last round communicates, so that x0 holds what everybody did."""
    c, gamma = case(R=30, seed=seed, full=True), 0.8
    talk = [bool(stream(seed, Purpose.SKIP, round=r).random() >= skip) for r in range(c.rounds)]
    last = max(r for r in range(c.rounds) if talk[r]) + 1
    assert last >= 20
    assert all(talk) == (skip == 0)
    run = textbook.fedpd(c.A, c.b, c.x0, c.Q, ETA, 1 / gamma, talk)
    run = textbook.Run(run.x0[: last + 1], run.clients[: last + 1], run.server[: last + 1])
    history = simulate(fv.FedPD(gamma=gamma, skip=skip), c, ETA, seed=seed, rounds=last)
    assert_same(history, run, clients=-1.0, server=-1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_feddyn(seed):
    c = case(seed=seed, empty=(5,))
    history = simulate(fv.FedDyn(alpha=0.8), c, ETA)
    assert_same(history, textbook.feddyn(*c.parts(), eta=ETA, alpha=0.8))


@pytest.mark.parametrize("seed", SEEDS)
def test_fedvra_with_everything_different(seed):
    """a, d and eta per client and round, gamma per client, unequal weights: beta = 1/sum_i omega_i gamma_i over all N."""
    c, omega = case(seed=seed, empty=(5,)), unequal_weights(6, seed)
    rng = np.random.default_rng(seed)
    a, d = rng.uniform(0.5, 3.0, (c.rounds, c.clients)), rng.uniform(0.8, 2.5, (c.rounds, c.clients))
    gamma, eta = rng.uniform(0.5, 2.0, c.clients), rng.uniform(0.02, 0.08, (c.rounds, c.clients))
    history = simulate(fv.FedVRA(gamma=gamma, a=a, d=d), c, eta, weights=omega)
    assert_same(history, textbook.fedvra(*c.parts(), eta=eta, gamma=gamma, a=a, d=d, omega=omega))


OFF_AND_ON = np.repeat([0.0, 1.5, 0.0], [5, 7, 8])[:, None] * np.ones(6)


@pytest.mark.parametrize(
    ("a", "d"),
    [
        (1, 0),
        ([0, 1, 2, 0, 1, 2], 1.3),
        (1, [0, 1, 0, 1, 0, 1]),
        (OFF_AND_ON, 1.3),
        (1, OFF_AND_ON),
        (OFF_AND_ON, OFF_AND_ON),
    ],
    ids=["no d", "some without a", "some without d", "a comes and goes", "d comes and goes", "both come and go"],
)
def test_fedvra_where_a_or_d_is_zero_for_some_or_for_a_while(a, d):
    c, omega = case(), unequal_weights(6)
    history = simulate(fv.FedVRA(gamma=0.5, a=a, d=d), c, ETA, weights=omega)
    assert_same(history, textbook.fedvra(*c.parts(), eta=ETA, gamma=0.5, a=a, d=d, omega=omega))


def test_settings_as_functions_of_the_cohort_equal_the_same_settings_as_tables():
    c, omega = case(), unequal_weights(6)
    p = np.random.default_rng(7).uniform(0.3, 1.0, (c.rounds, c.clients))
    gamma = 0.5 + np.arange(c.clients) / 4
    by_function = fv.FedVRA(
        gamma=lambda cohort: 0.5 + cohort.clients / 4,
        a=lambda cohort: 2.0 / cohort.steps,
        d=lambda cohort: 1.0 / cohort.p,
    )
    history = simulate(by_function, c, ETA, weights=omega, sampler=fv.Replay(c.cohorts, probabilities=p))
    assert_same(history, textbook.fedvra(*c.parts(), eta=ETA, gamma=gamma, a=2 / c.Q, d=1 / p, omega=omega))


# --- Special cases of FedVRA, library against library ---------------------------------------------------------


@pytest.mark.parametrize("gamma", [0, 0.0, np.zeros(6)], ids=["int", "float", "table"])
def test_fedvra_without_duals_and_penalty_is_fedavg(gamma):
    c, omega = case(empty=(5,)), unequal_weights(6)
    vra = simulate(fv.FedVRA(a=0, gamma=gamma, d=lambda cohort: 1 / cohort.p), c, ETA, weights=omega)
    assert_same(vra, textbook.fedavg(*c.parts(), eta=ETA, omega=omega), None, None)
    avg = trajectory(fv.FedAvg(averaging="unbiased"), c, ETA, weights=omega)
    assert deviation(vra.trajectory, avg) <= TOLERANCE


def test_fedvra_without_duals_is_fedprox():
    c, omega = case(empty=(5,)), unequal_weights(6)
    vra = simulate(fv.FedVRA(a=0, gamma=0.9, d=lambda cohort: 1 / cohort.p), c, ETA, weights=omega)
    assert_same(vra, textbook.fedavg(*c.parts(), eta=ETA, omega=omega, mu=0.9), None, None)
    prox = trajectory(fv.FedProx(mu=0.9, averaging="unbiased"), c, ETA, weights=omega)
    assert deviation(vra.trajectory, prox) <= TOLERANCE


def test_fedvra_with_unit_stepsizes_is_fedadmm():
    c, omega, gamma = case(empty=(5,)), unequal_weights(6), np.linspace(0.5, 2.0, 6)
    vra = simulate(fv.FedVRA(a=1, d=1, gamma=gamma), c, ETA, weights=omega)
    assert_same(vra, textbook.fedadmm(*c.parts(), eta=ETA, gamma=gamma, omega=omega))
    admm = trajectory(fv.FedADMM(gamma=gamma), c, ETA, weights=omega)
    assert deviation(vra.trajectory, admm) <= TOLERANCE


@pytest.mark.parametrize("m", [2, 3, 6])
def test_fedvra_with_aggregation_stepsize_one_over_p_is_feddyn(m):
    c = case(sizes=(m,))
    vra = simulate(fv.FedVRA(a=1, d=c.clients / m, gamma=0.8), c, ETA)
    assert_same(vra, textbook.feddyn(*c.parts(), eta=ETA, alpha=0.8))
    assert deviation(vra.trajectory, trajectory(fv.FedDyn(alpha=0.8), c, ETA)) <= TOLERANCE


def test_fedpd_that_always_communicates_is_fedadmm_and_fedvra_with_everybody():
    c = case(full=True)
    pd = trajectory(fv.FedPD(gamma=0.8), c, ETA)
    assert deviation(pd, trajectory(fv.FedADMM(gamma=0.8), c, ETA)) <= TOLERANCE
    assert deviation(pd, trajectory(fv.FedVRA(gamma=0.8, a=1, d=1), c, ETA)) <= TOLERANCE


def test_scaffold_with_everybody_is_vrl_sgd():
    c = case(full=True, same_work=True)
    scaffold = trajectory(fv.Scaffold(), c, ETA)
    assert deviation(scaffold, trajectory(fv.VRLSGD(), c, ETA)) <= TOLERANCE
