"""Theorem 1 as a tool: its conditions by hand, its lemmas by brute force, its promise against runs of FedVRA on quadratics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.theory import local_spread
from quadratics import Array, quadratic, unequal_weights

BY_HAND: dict[str, Any] = {"L": [1.0, 1.0], "p": 0.5, "gamma": 18.0, "eta": 1 / 72, "a": 3, "d": 1, "steps": 1}


def named(setting: fv.Theorem1) -> dict[str, Any]:
    return {condition.name: condition for condition in setting.conditions()}


# -- the conditions and constants ---------------------------------------------------------------------------------------


def test_worked_by_hand() -> None:
    """Two clients, L = 1, p = 1/2, a = 3, d = 1, one step, gamma = 18 and eta = 1/72.

    gamma*eta*Q~ = 18/72 = 1/4, so C1 = 4/4 = 1, C2 = 3/4, p*C2 = 3/8 and beta = 1/18.

    * gamma, printed: 1/2 + 13/(2*3/8) = 1/2 + 52/3 = 107/6 = 17.83 <= 18.
    * gamma, proved: 1/18 + 8/18^2 * (1 + 32/3)/(3/8) = 1/18 + (8/324)*(280/9) = 0.8237 <= 1.
    * eta: sqrt(6)/72 = 0.034 <= 1, printed; a single step has no spread, so 0 <= 1, proved; gamma*eta = 1/4; C1 = 1.
    * D_1: two terms 9/(1/2*7/4) = 72/7 make 144/7; the greatest term of the proof is 9*(2 - 1/2)/(2*7/8) = 54/7.
    * D_2 = D_1*(8 + 2*7/8) + 9/2 = 39/4*D_1 + 9/2.
    * P^0 with f = 10, Xi = (9, 27): 10 + (4/18)/(3/8)*18 = 10 + 32/3 = 62/3.
    * The bound for P^0 - inf f = 7, R = 3, sigma^2/S = 2: 2*(54/7)*7*18/3 + 5/4*(39/4*54/7 + 9/2)*2.
    * Corollary 1, which allows for 18 where 9 is proved: 36*7*18/(7/8*3) + (180*8/7 + 45 + 45/8)*2.
    """
    setting = fv.Theorem1(**BY_HAND)
    conditions = named(setting)
    assert (setting.c1[0, 0], setting.c2[0, 0], setting.beta) == pytest.approx((1, 0.75, 1 / 18))
    assert conditions["gamma, as printed"].left == pytest.approx([107 / 6, 107 / 6])
    assert conditions["gamma, as proved"].left == pytest.approx([1 / 18 + 8 / 324 * 280 / 9])
    assert conditions["eta, smoothness, as printed"].left[0] == pytest.approx(np.sqrt(6) / 72)
    assert conditions["eta, smoothness, as proved"].left[0] == 0
    assert conditions["eta, pull"].left[0] == pytest.approx(1 / 4)
    assert conditions["eta, a and d"].left[0] == pytest.approx(1)
    assert setting.holds
    assert (setting.d1, setting.rate_constant()) == pytest.approx((144 / 7, 54 / 7))
    assert setting.d2() == pytest.approx(39 / 4 * 144 / 7 + 9 / 2)
    assert setting.potential(10, np.array([9.0, 27.0])) == pytest.approx(62 / 3)
    assert setting.bound(7, 3, noise=2) == pytest.approx(2 * 54 * 18 / 3 + 5 / 2 * (39 / 4 * 54 / 7 + 9 / 2))
    assert setting.bound(7, 3, noise=[2, 2], d1=setting.d1) == pytest.approx(
        2 * 144 * 18 / 3 + 5 / 2 * setting.d2(144 / 7)
    )
    assert setting.corollary(7, 3, 2) == pytest.approx(36 * 7 * 18 * 8 / 21 + 2 * (180 * 8 / 7 + 45 + 45 / 8))


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({"gamma": 17.8, "eta": 1 / 71.2}, {"gamma, as printed"}),
        ({"L": [7.0, 1.0], "steps": 2}, {"gamma, as printed", "gamma, as proved"}),
        ({"d": 1.1}, {"eta, a and d"}),
        ({"L": 0.01, "eta": 1.0, "a": 0.5, "d": 0.4}, {"eta, pull"}),
        ({"L": 0.6, "gamma": 0.1, "eta": 1.0, "d": 1}, {"gamma, as proved", "eta, smoothness, as printed"}),
        ({"L": 0.6, "gamma": 0.3, "eta": 2.0, "steps": 9}, {"eta, smoothness, as proved", "eta, a and d"}),
    ],
)  # fmt: skip
def test_each_condition_can_fail(change: dict[str, Any], fails: set[str]) -> None:
    setting = fv.Theorem1(**{**BY_HAND, **change})
    failed = {name for name, condition in named(setting).items() if not condition.holds}
    assert fails <= failed
    assert not setting.holds
    with pytest.raises(fv.UsageError, match="do not hold"):
        setting.bound(1.0, 10)


def test_the_corollary_needs_clients_that_are_alike() -> None:
    assert fv.Theorem1(**{**BY_HAND, "steps": [1, 2]}).corollary(1.0, 10) is None


def test_unequal_penalties_need_more_than_is_printed() -> None:
    """Many clients with a small gamma_i and one with a large: (17) holds for each, and the potential need not descend."""
    L = np.array([100.0, *[1.0] * 30])
    setting = fv.Theorem1(L=L, p=1.0, gamma=8 * L, eta=1 / (16 * L), a=1.0, d=1.0, steps=1, omega=None)
    tight = fv.Theorem1(L=L, p=1.0, gamma=14 * L, eta=1 / (28 * L), a=1.0, d=1.0, steps=1)
    assert not named(setting)["gamma, as printed"].holds
    assert named(tight)["gamma, as printed"].holds
    assert not named(tight)["gamma, as proved"].holds
    assert fv.Theorem1.feasible(L=L, p=1.0, a=1.0, d=1.0, steps=1).holds


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("a", [0.5, 1, 9, 100])
@pytest.mark.parametrize("common", [False, True])
def test_appendix_b_is_feasible(p: float, a: float, common: bool) -> None:
    L = [0.01, 1.0, 1.0, 300.0]
    steps = np.array([[1, 7, 40, 3], [2, 7, 10, 3]])
    setting = fv.Theorem1.feasible(L=L, p=p, steps=steps, a=a, d=1 / p, omega=[1, 2, 5, 1], common=common)
    assert setting.holds
    assert len(set(setting.gamma)) == (1 if common else 4)
    assert setting.bound(1.0, 10) > 0


def test_settings_that_vary_over_rounds() -> None:
    """The conditions are for the worst round; the potential has the least p*C2, D_2 the mean over the rounds."""
    steps = np.array([[1, 4], [2, 4]])
    varied = fv.Theorem1(**{**BY_HAND, "steps": steps, "d": [[0.5], [0.1]]})
    rounds = [fv.Theorem1(**{**BY_HAND, "steps": q, "d": d}) for q, d in zip(steps, (0.5, 0.1), strict=True)]
    assert varied.pace == pytest.approx(np.minimum(rounds[0].pace, rounds[1].pace))
    for name in ("gamma, as printed", "eta, a and d", "eta, smoothness, as proved"):
        worst = np.maximum(named(rounds[0])[name].left, named(rounds[1])[name].left)
        assert named(varied)[name].left == pytest.approx(worst)
    assert varied.d1 == pytest.approx(max(each.d1 for each in rounds))
    assert varied.d2(1.0) > np.mean([each.d2(1.0) for each in rounds])


@pytest.mark.parametrize(
    "wrong", [{"L": -1}, {"p": 1.5}, {"p": 0}, {"gamma": np.nan}, {"steps": [1, 2, 3]}, {"gamma": [[1.0, 2.0]] * 2}]
)
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(fv.UsageError):
        fv.Theorem1(**{**BY_HAND, **wrong})


# -- the lemma on local steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pull", "Q"), [(0.0, 5), (1e-6, 6), (0.02, 12), (0.3, 2), (0.3, 9), (0.9, 4), (0.5, 1)])
def test_the_spread_of_local_steps(pull: float, Q: int) -> None:
    """K^2 is the sum of its definition, and bounds the weighted distances for directions of every kind."""
    rho = 1 - pull
    K = float(local_spread(np.array([pull]), np.ones(1), np.array([float(Q)]))[0])
    sums = [sum(rho**j for j in range(t)) for t in range(1, Q)]
    assert pytest.approx(sum(sums) / rho, rel=1e-4) == K**2
    rng = np.random.default_rng(0)
    b = rho ** np.arange(Q - 1, -1, -1)
    for _ in range(50):
        v = rng.standard_normal((Q, 3)) * rng.choice([0.0, 1.0], (Q, 1)) + rng.standard_normal(3)
        x = np.zeros((Q, 3))
        for t in range(1, Q):
            x[t] = rho * x[t - 1] - v[t - 1]
        assert b @ (x**2).sum(1) <= K**2 * (b @ (v**2).sum(1)) * (1 + 1e-12)


def test_the_printed_spread_is_too_small_under_a_strong_pull() -> None:
    """Q~ bounds K where a + d >= 2 makes gamma*eta*Q~ <= 1/2; with a strong pull and many steps a case shows it does not."""
    pulls, Q = np.linspace(0.001, 0.5, 200), 8.0
    discounted = (1 - (1 - pulls) ** Q) / pulls
    spread = local_spread(pulls, np.ones(200), np.full(200, Q))
    assert np.all(spread[pulls * discounted <= 0.5] <= discounted[pulls * discounted <= 0.5])
    rho, steps = 0.3, 8
    b = rho ** np.arange(steps - 1.0, -1.0, -1.0)
    moves = np.array([[rho ** (t - 1 - k) if k < t else 0.0 for k in range(steps)] for t in range(steps)])
    v = np.linalg.svd(np.sqrt(b)[:, None] * moves / np.sqrt(b))[2][0] / np.sqrt(b)  # the worst there is
    assert b @ (moves @ v) ** 2 > 2 * b.sum() ** 2 * (b @ v**2)
    assert b @ (moves @ v) ** 2 <= float(local_spread(np.array([1 - rho]), np.ones(1), np.array([8.0]))[0]) ** 2 * (
        b @ v**2
    )


# -- what it promises, against runs ---------------------------------------------------------------------------------------

N, SEEDS = 6, 24


class Watch(fv.Observer):
    """x0 and every lam_i before each round."""

    def __init__(self) -> None:
        self.x: list[Array] = []
        self.lam: list[Array] = []

    def before(self, federation: Any) -> None:
        self.x.append(federation.state.x0.numpy().copy())
        self.lam.append(np.stack([federation.clients.duals.get(i).numpy() for i in range(N)]))

    def after(self, federation: Any, seen: None) -> dict[str, Any]:
        return {}


def watched(setting: fv.Theorem1, A: Array, b: Array, m: int, rounds: int, seed: int, **options: Any) -> Watch:
    watch = Watch()
    fv.simulate(
        fv.FedVRA(gamma=setting.gamma, a=float(setting.a[0, 0]), d=float(setting.d[0, 0])),
        problem=fv.Quadratic(A, b), sampler=fv.Uniform(m), lr=list(setting.eta), weights=list(setting.omega),
        rounds=rounds, seed=seed, workers=1, observers=[watch], x_init=torch.full((5,), 3.0, dtype=torch.float64),
        **options,
    )  # fmt: skip
    return watch


@pytest.mark.parametrize("work", ["same", "varied"])
def test_inside_the_conditions_the_bound_holds_and_the_potential_descends(work: str) -> None:
    """Exact gradients, so sigma = 0; the means are over seeds, since the theorem is about expectations over cohorts."""
    m, rounds = 3, 60
    A, b = quadratic(N)
    Q = np.full((rounds, N), 4) if work == "same" else np.random.default_rng(3).integers(2, 6, (rounds, N))
    setting = fv.Theorem1.feasible(
        L=np.linalg.eigvalsh(A).max(1), p=m / N, steps=Q, a=9.0, d=2.0, omega=unequal_weights(N)
    )
    assert setting.holds
    costs, slopes, xi = np.zeros(rounds), np.zeros(rounds), np.zeros((rounds, N))
    for seed in range(SEEDS):
        watch = watched(setting, A, b, m, rounds, seed, work=fv.Steps(Q))
        for r, (x, lam) in enumerate(zip(watch.x, watch.lam, strict=True)):
            g = A @ x - b
            costs[r] += setting.omega @ ((g - b) @ x) / 2 / SEEDS
            slopes[r] += ((setting.omega @ g) ** 2).sum() / SEEDS
            xi[r] += ((g - lam) ** 2).sum(1) / SEEDS
    potential = np.array([setting.potential(cost, each) for cost, each in zip(costs, xi, strict=True)])
    best = np.linalg.solve(np.einsum("n,npq->pq", setting.omega, A), setting.omega @ b)
    lowest = setting.omega @ ((A @ best - 2 * b) @ best) / 2
    assert np.all(np.diff(potential) < 0)
    measured = np.cumsum(slopes) / np.arange(1, rounds + 1)
    bounds = [setting.bound(potential[0] - lowest, R) for R in range(1, rounds + 1)]
    printed = [setting.bound(potential[0] - lowest, R, d1=setting.d1) for R in range(1, rounds + 1)]
    assert np.all(measured <= bounds)
    assert np.all(np.array(bounds) < printed)
    # The step behind it: P falls each round by what the proof says of the gradients' and the duals' share.
    drop = setting.beta / 2 * ((setting.p * (setting.c1 + setting.c2) * xi) @ setting.omega)
    assert np.all(potential[:-1] - potential[1:] >= drop[:-1])


def test_far_outside_the_potential_rises() -> None:
    """So the test above can fail: with a*gamma large against L, x0 is thrown about."""
    A, b = quadratic(N)
    L = np.linalg.eigvalsh(A).max(1)
    setting = fv.Theorem1(L=L, p=0.5, gamma=0.5, eta=0.3, a=9.0, d=2.0, steps=4, omega=unequal_weights(N))
    assert not setting.holds
    watch = watched(setting, A, b, 3, 12, 0, work=fv.Steps(4))
    costs = [setting.omega @ ((A @ x - 2 * b) @ x) / 2 for x in watch.x]
    assert max(costs[1:]) > 10 * abs(costs[0])
