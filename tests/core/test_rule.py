"""The equations of rule.py as such: the fast form against the printed one, a block of clients against one at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvra.core import rule
from fedvra.local.first_moves import add_first_moves_, dual_pull, first_dual

M, P = 4, 7


def block(seed: int, *shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


def columns(seed: int, count: int) -> list[Tensor]:
    """Coefficients that differ between clients, [M, 1] each."""
    return [torch.tensor(c).view(M, 1) for c in np.random.default_rng(seed).uniform(0.1, 0.9, (count, M))]


def close(left: Tensor, right: Tensor) -> None:
    assert left.shape == right.shape
    assert float((left - right).abs().max()) <= 1e-14


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 0.7])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_the_affine_step_is_step_11_as_printed(corrected, gamma, decay):
    x, g, x0, eta = block(0, P), block(1, P), block(2, P), 0.3
    h = block(3, P) if corrected else None
    terms = rule.Terms(x0, h, eta, gamma, decay)
    step = rule.affine(terms)
    assert (step.c is None) == (not corrected and gamma == 0)
    fast = x.clone()
    rule.advance_(fast, g, eta, step)
    correction = torch.zeros(P, dtype=x.dtype) if h is None else h
    close(fast, x - eta * (g + decay * x - correction + gamma * (x - x0)))
    close(fast, rule.local_step(x, g, correction, x0, eta, gamma, decay))
    first = torch.empty(P, dtype=x.dtype)
    rule.first_move_(first, terms)
    close(first - eta * g, rule.local_step(x0, g, correction, x0, eta, gamma, decay) - x0)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_one_step_from_x0_less_its_gradient(corrected, decay):
    """Steps 11 and 14 as printed, for a single step, against the shares that need no vector D_i."""
    g, x0, total, eta, alpha, weight = block(0, P), block(1, P), block(2, P), 0.3, 0.8, 0.25
    h = block(3, P) if corrected else None
    correction = torch.zeros(P, dtype=g.dtype) if h is None else h
    move = rule.local_step(x0, g, correction, x0, eta, 0.7, decay) - x0
    summed = total.clone()
    add_first_moves_(summed, x0, h, weight, eta, decay)
    close(summed - weight * eta * g, total + weight * move)
    pull = dual_pull(x0, alpha, eta, decay)
    for out in (None, torch.empty_like(g)):
        close(first_dual(pull, h, alpha, eta, out) + alpha * eta * g, rule.dual_step(h, move, alpha))


def test_a_block_of_clients_moves_as_they_would_one_by_one():
    x, g, lam_i, lam, x0 = block(0, M, P), block(1, M, P), block(2, M, P), block(3, P), block(4, P)
    eta, gamma, alpha = columns(5, 3)
    for sigma in (0.0, 1.0):
        h = rule.correction(lam_i, lam, sigma)
        moved = x.clone()
        rule.advance_(moved, g, eta, rule.affine(rule.Terms(x0, h, eta, gamma, 0.01)))
        duals, anchors = rule.dual_step(h, moved - x0, alpha), rule.anchor_step(moved, lam_i, 0.6)
        for i in range(M):
            h_i = rule.correction(lam_i[i], lam, sigma)
            close(h_i, lam_i[i] - sigma * lam)
            row, numbers = x[i].clone(), (float(eta[i]), float(gamma[i]))
            rule.advance_(row, g[i], numbers[0], rule.affine(rule.Terms(x0, h_i, *numbers, 0.01)))
            close(moved[i], row)
            close(duals[i], rule.dual_step(h_i, row - x0, float(alpha[i])))
            close(duals[i], h_i + float(alpha[i]) * (x0 - row))
            close(anchors[i], row - 0.6 * lam_i[i])


def weighted(weights, delta):
    total = torch.zeros(P, dtype=delta.dtype)
    rule.add_weighted_(total, np.asarray(weights), delta)
    return total


def test_the_sums_a_block_sends_are_those_of_steps_19_and_20():
    delta, (w,) = block(0, M, P), columns(2, 1)
    close(weighted(w.view(M), delta), sum(w[i] * delta[i] for i in range(M)))
    close(weighted(w[0], delta[:1]), w[0] * delta[0])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), clients=st.integers(1, 20), cuts=st.lists(st.integers(0, 20), max_size=5))
def test_sums_over_parts_of_a_cohort_add_up_to_those_of_the_whole(seed, clients, cuts):
    rng = np.random.default_rng(seed)
    delta = torch.tensor(rng.standard_normal((clients, P)))
    w = torch.tensor(rng.uniform(0, 2, clients))
    order = torch.tensor(rng.permutation(clients))
    parts = [part for part in torch.tensor_split(order, sorted(min(cut, clients) for cut in cuts)) if len(part)]
    added = sum(weighted(w[part], delta[part]) for part in parts)
    assert float((added - weighted(w, delta)).abs().max()) <= 1e-12


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_the_servers_dual_moves_by_the_weighted_changes_of_the_clients(sigma):
    lam_i, lam, delta = block(0, M, P), block(1, P), block(2, M, P)
    omega, (alpha,) = torch.tensor([0.1, 0.2, 0.3, 0.15], dtype=torch.float64), columns(3, 1)
    change = rule.dual_step(rule.correction(lam_i, lam, sigma), delta, alpha) - lam_i
    dual_sum = weighted(omega * alpha.view(M), delta)
    close(rule.server_dual(lam, dual_sum, sigma, float(omega.sum())), lam + omega @ change)


def test_the_servers_model_is_projected_last():
    x0, lam, moved = block(0, P), block(1, P), block(2, P)
    free = rule.server_model(x0, lam, moved, 0.5, 0.25)
    close(free, x0 + 0.5 * moved - 0.25 * lam)
    close(rule.server_model(x0, lam, moved, 0.5, 0.25, project=lambda x: x.clamp(min=0)), free.clamp(min=0))
