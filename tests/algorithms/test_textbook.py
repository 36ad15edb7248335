"""The textbook versions against each other: where two papers say the same, their formulas must agree."""

from __future__ import annotations

import numpy as np
import pytest

import textbook
from quadratics import case, unequal_weights

SAME = 1e-12


def close(left: np.ndarray, right: np.ndarray, tolerance: float = SAME) -> None:
    assert left.shape == right.shape
    assert np.abs(left - right).max() <= tolerance


@pytest.mark.parametrize("seed", range(3))
def test_fedvra_with_unit_stepsizes_is_admm_in_both_its_forms(seed):
    c, omega = case(seed=seed, empty=(4,)), unequal_weights(6, seed)
    gamma = np.linspace(0.4, 1.6, c.clients)
    vra = textbook.fedvra(*c.parts(), eta=0.05, gamma=gamma, a=1, d=1, omega=omega)
    admm = textbook.fedadmm(*c.parts(), eta=0.05, gamma=gamma, omega=omega)
    consensus = textbook.consensus_admm(*c.parts(), eta=0.05, gamma=gamma, omega=omega)
    for other in (admm, consensus):
        close(vra.x0, other.x0)
        close(vra.clients, other.clients)
        close(vra.server, other.server)


@pytest.mark.parametrize("seed", range(3))
def test_fedvra_with_aggregation_stepsize_one_over_p_is_feddyn(seed):
    c = case(seed=seed, sizes=(2, 3, 1))
    d = [[c.clients / len(S)] * c.clients for S in c.cohorts]
    vra = textbook.fedvra(*c.parts(), eta=0.05, gamma=0.7, a=1, d=d)
    dyn = textbook.feddyn(*c.parts(), eta=0.05, alpha=0.7)
    close(vra.x0, dyn.x0)
    close(vra.clients, dyn.clients)
    close(vra.server, dyn.server)


def test_scaffold_with_everybody_is_vrl_sgd():
    c = case(full=True, same_work=True)
    scaffold = textbook.scaffold(*c.parts(), eta=0.05)
    vrl = textbook.vrl_sgd(c.A, c.b, c.x0, c.Q[:, 0], gamma=0.05)
    close(scaffold.x0, vrl.x0)
    close(scaffold.clients - scaffold.server[:, None], vrl.clients)


def test_scaffold_keeps_c_the_mean_of_c_i():
    run = textbook.scaffold(*case().parts(), eta=0.05, eta_g=0.7)
    close(run.clients.mean(axis=1), run.server)


def test_scaffold_with_one_step_stores_the_gradient_at_x():
    """With K = 1, options I and II are the same: c_i+ = c_i - c + (g - c_i + c) = g_i(x)."""
    c = case(work=(1, 1))
    run = textbook.scaffold(*c.parts(), eta=0.05)
    for r, S in enumerate(c.cohorts):
        for i in S:
            close(run.clients[r + 1, i], textbook.gradient(c.A, c.b, i, run.x0[r]))


def test_fedpd_that_always_communicates_is_admm_with_everybody_and_the_opposite_sign():
    c = case(full=True)
    pd = textbook.fedpd(c.A, c.b, c.x0, c.Q, eta1=0.05, eta=1 / 0.8, communicate=[True] * c.rounds)
    admm = textbook.fedadmm(*c.parts(), eta=0.05, gamma=0.8)
    close(pd.x0, admm.x0)
    close(pd.clients, -admm.clients)


def test_fedpd_keeps_its_anchors_apart_while_it_does_not_communicate():
    c = case(R=4, full=True)
    run = textbook.fedpd(c.A, c.b, c.x0, c.Q, 0.05, 1.25, communicate=[True, False, False, True])
    assert (run.x0[1] == run.x0[2]).all()
    assert (run.x0[1] == run.x0[3]).all()
    assert np.ptp(run.anchors[[2, 3]], axis=1).min() > 1e-3
    assert np.ptp(run.anchors[[1, 4]], axis=1).max() == 0
    assert np.abs(run.x0[4] - run.x0[3]).max() > 1e-3


def test_the_two_averages_of_fedavg_agree_for_equal_weights_only():
    c, omega = case(), unequal_weights(6)
    equal = textbook.fedavg(*c.parts(), eta=0.05).x0
    close(equal, textbook.fedavg_normalised(*c.parts(), eta=0.05, n=np.ones(c.clients)).x0)
    apart = textbook.fedavg(*c.parts(), eta=0.05, omega=omega).x0
    assert np.abs(apart - textbook.fedavg_normalised(*c.parts(), eta=0.05, n=omega).x0).max() > 1e-3


def test_fednova_is_fedavg_when_all_do_the_same_work():
    omega = unequal_weights(6)
    same, mixed = case(same_work=True), case()
    close(
        textbook.fednova(*same.parts(), eta=0.05, omega=omega).x0,
        textbook.fedavg_normalised(*same.parts(), eta=0.05, n=omega).x0,
    )
    nova, avg = textbook.fednova(*mixed.parts(), eta=0.05), textbook.fedavg(*mixed.parts(), eta=0.05)
    assert np.abs(nova.x0 - avg.x0).max() > 1e-3
