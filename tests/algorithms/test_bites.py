"""Every coefficient bites: change it and x0 or a dual moves, and by as much as theory says.

A correction with the wrong sign, one added to something that is not the gradient, a penalty on detached parameters, a fixed K
for clients that did other numbers of steps: each silently turns a method into FedAvg or worse, and each fails here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.algorithms import REGISTRY
from fedvra.policies import auto
from harness import TOLERANCE, deviation, duals, simulate, trajectory
from quadratics import Array, Case, case, unequal_weights

ETA = 0.05
N = 6


def bite(left: Array, right: Array) -> float:
    return float(np.abs(left - right).max())


# --- Whatever is registered -------------------------------------------------------------------------------------------


def perturbed(cls: type[fv.Algorithm]) -> Iterator[tuple[str, fv.Algorithm]]:
    """The algorithm at its defaults with one field changed, for every field it has."""
    default, hints = cls(), get_type_hints(cls)
    for field in fields(cls):
        value = getattr(default, field.name)
        if get_origin(hints[field.name]) is Literal:
            others: list[Any] = [option for option in get_args(hints[field.name]) if option != value]
        elif value is auto:
            others = [0.5]
        elif callable(value):
            others = [lambda cohort, value=value: 1.1 * np.asarray(value(cohort))]
        else:
            others = [1.1 * value if value else 0.5]
        for other in others:
            yield field.name, replace(default, **{field.name: other})


GRID = [(cls, name, changed) for _, cls in REGISTRY.items() for name, changed in perturbed(cls)]


@pytest.mark.parametrize(
    ("cls", "name", "changed"), [pytest.param(*row, id=f"{row[0].__name__}.{row[1]}") for row in GRID]
)
def test_every_hyper_parameter_moves_x0(cls, name, changed):
    c, omega = case(R=4, full=cls.everyone_takes_part, work=(2, 5)), unequal_weights(N)
    before, after = (trajectory(algorithm, c, ETA, weights=omega) for algorithm in (cls(), changed))
    assert bite(before, after) > 1e-5


@pytest.mark.parametrize("cls", [cls for _, cls in REGISTRY.items()], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("knob", ["eta", "weights", "Q", "x_init", "one gradient"])
def test_everything_around_the_algorithm_moves_x0(cls, knob):
    c, omega = case(R=4, full=cls.everyone_takes_part), unequal_weights(N)
    i = c.cohorts[1][0]
    more, bent = c.Q.copy(), c.b.copy()
    more[1, i] += 1
    bent[i] += 0.1
    changes: dict[str, dict[str, Any]] = {
        "eta": {"eta": 1.1 * ETA},
        "weights": {"weights": unequal_weights(N, seed=1)},
        "Q": {"work": fv.Steps(more)},
        "x_init": {"x_init": c.x0 + 0.01},
        "one gradient": {"problem": fv.Quadratic(c.A, bent)},
    }
    before = trajectory(cls(), c, eta=ETA, weights=omega)
    after = trajectory(cls(), c, **{"eta": ETA, "weights": omega, **changes[knob]})
    assert bite(before, after) > 1e-5


BY_PROBABILITY = [
    fv.FedAvg(averaging="unbiased"),
    fv.FedProx(averaging="unbiased"),
    fv.Scaffold(),
    fv.FedDyn(),
    fv.FedVRA(gamma=0.1, a=10),
]
WITHOUT = [fv.FedAvg(), fv.FedProx(), fv.FedNova(), fv.FedADMM(), fv.FedVRA(gamma=0.1, a=10, d=2)]


@pytest.mark.parametrize("algorithm", BY_PROBABILITY, ids=repr)
def test_where_1_over_p_is_part_of_the_method_it_weighs_each_client(algorithm):
    """One round: x0 changes by exactly sum_i omega_i (1/p_i' - 1/p_i) D_i."""
    c, omega = case(R=1), unequal_weights(N)
    p, q = (np.random.default_rng(seed).uniform(0.3, 1.0, N) for seed in (0, 1))
    gamma = {"FedProx": 0.1, "FedDyn": 0.1, "FedVRA": 0.1}.get(type(algorithm).__name__, 0.0)
    before, after = (
        trajectory(algorithm, c, ETA, weights=omega, sampler=fv.Replay(c.cohorts, probabilities=probabilities))
        for probabilities in (p, q)
    )
    expected = sum(omega[i] * (1 / q[i] - 1 / p[i]) * move(c, i, 0, c.x0, gamma=gamma) for i in c.cohorts[0])
    assert np.abs(expected).max() > 1e-2
    assert deviation(after[-1] - before[-1], expected) <= TOLERANCE


@pytest.mark.parametrize("algorithm", WITHOUT, ids=repr)
def test_where_p_is_no_part_of_the_method_it_changes_nothing(algorithm):
    c = case(R=4)
    p = np.random.default_rng(0).uniform(0.3, 1.0, N)
    before = trajectory(algorithm, c, ETA)
    after = trajectory(algorithm, c, ETA, sampler=fv.Replay(c.cohorts, probabilities=p))
    assert (before == after).all()


# --- By how much --------------------------------------------------------------------------------------------------------


def move(c: Case, i: int, r: int, x0: Array, h: Array | float = 0.0, gamma: float = 0.0, Q: int | None = None) -> Array:
    """D_i = x_i - x0 after Q steps, without a loop: they contract to the minimiser of f_i - <h, x> + gamma/2 |x - x0|^2."""
    H = c.A[i] + gamma * np.eye(len(x0))
    target = np.linalg.solve(H, c.b[i] + h + gamma * x0)
    left = np.linalg.matrix_power(np.eye(len(x0)) - ETA * H, int(c.Q[r, i] if Q is None else Q))
    return target + left @ (x0 - target) - x0


def last(history: fv.History) -> tuple[Array, Array, Array]:
    return np.asarray(history.x0), np.asarray(history.lam), duals(history, N)


class TestFedVRA:
    """The state after round r is linear in each coefficient of round r alone, so differences are exact."""

    c, omega = case(R=3, work=(2, 5)), unequal_weights(N)
    gamma = np.linspace(0.4, 1.4, N)
    beta = float(1 / (omega @ gamma))
    r = 2

    def run(self, a: Array, d: Array, rounds: int = 3) -> fv.History:
        return simulate(fv.FedVRA(gamma=self.gamma, a=a, d=d), self.c, ETA, weights=self.omega, rounds=rounds)

    def tables(self) -> tuple[Array, Array]:
        return np.full((3, N), 1.7), np.full((3, N), 1.3)

    def moves(self) -> dict[int, Array]:
        """D_i of the last round, from the state before it."""
        x0, _, lam_i = last(self.run(*self.tables(), rounds=self.r))
        assert np.abs(lam_i[self.c.cohorts[self.r]]).max() > 1e-2, "duals must be at work in the round looked at"
        return {i: move(self.c, i, self.r, x0, lam_i[i], self.gamma[i]) for i in self.c.cohorts[self.r]}

    def test_d_of_one_client_moves_x0_by_its_weighted_move_and_no_dual(self):
        a, d = self.tables()
        before = last(self.run(a, d))
        for j, D in self.moves().items():
            changed = d.copy()
            changed[self.r, j] += 0.5
            x0, lam, lam_i = last(self.run(a, changed))
            expected = 0.5 * self.beta * self.omega[j] * self.gamma[j] * D
            assert np.abs(expected).max() > 1e-3
            assert deviation(x0 - before[0], expected) <= TOLERANCE
            assert (lam == before[1]).all()
            assert (lam_i == before[2]).all()

    def test_d_of_all_moves_x0_the_sum_of_weighted_moves(self):
        a, d = self.tables()
        changed = d.copy()
        changed[self.r] += 0.5
        total = sum(self.omega[i] * self.gamma[i] * D for i, D in self.moves().items())
        shift = last(self.run(a, changed))[0] - last(self.run(a, d))[0]
        assert deviation(shift / 0.5, self.beta * total) <= TOLERANCE

    def test_a_of_one_client_moves_its_dual_then_lam_then_x0(self):
        a, d = self.tables()
        before = last(self.run(a, d))
        for j, D in self.moves().items():
            changed = a.copy()
            changed[self.r, j] += 0.5
            x0, lam, lam_i = last(self.run(changed, d))
            expected = -0.5 * self.gamma[j] * D
            assert np.abs(expected).max() > 1e-3
            assert deviation(lam_i[j] - before[2][j], expected) <= TOLERANCE
            assert deviation(lam - before[1], self.omega[j] * expected) <= TOLERANCE
            assert deviation(x0 - before[0], -self.beta * self.omega[j] * expected) <= TOLERANCE
            others = [i for i in range(N) if i != j]
            assert (lam_i[others] == before[2][others]).all()

    def test_a_and_d_of_a_client_that_stayed_away_change_nothing(self):
        a, d = self.tables()
        away = next(i for i in range(N) if i not in self.c.cohorts[self.r])
        changed_a, changed_d = a.copy(), d.copy()
        changed_a[self.r, away], changed_d[self.r, away] = 9.0, 9.0
        left, right = self.run(a, d), self.run(changed_a, changed_d)
        assert (np.asarray(left.x0) == np.asarray(right.x0)).all()
        assert (duals(left, N) == duals(right, N)).all()

    def test_gamma_of_a_client_that_stayed_away_acts_through_beta_alone(self):
        """Only one client takes part in the only round; another's gamma rescales all of x0's movement."""
        c = replace(case(R=1), cohorts=[[2]])
        changed = self.gamma.copy()
        changed[4] += 1.0
        moves = []
        for gamma in (self.gamma, changed):
            x0, lam, _ = last(simulate(fv.FedVRA(gamma=gamma, a=2, d=1.5), c, ETA, weights=self.omega))
            assert deviation(lam, -self.omega[2] * 2 * gamma[2] * move(c, 2, 0, c.x0, gamma=gamma[2])) <= TOLERANCE
            moves.append((x0 - c.x0) * (self.omega @ gamma))
        assert deviation(moves[0], moves[1]) <= TOLERANCE

    def test_first_round_in_closed_form(self):
        """With lam_i = 0 and one gamma for all, x0 moves by (a + d) sum omega_i D_i: part of it is the dual's."""
        c = case(R=1, work=(2, 5))
        total = sum(self.omega[i] * move(c, i, 0, c.x0, gamma=0.7) for i in c.cohorts[0])
        for a, d in ((0.0, 1.0), (2.0, 1.0), (2.0, 3.0)):
            x0, lam, _ = last(simulate(fv.FedVRA(gamma=0.7, a=a, d=d), c, ETA, weights=self.omega))
            assert deviation(x0 - c.x0, (a + d) * total) <= TOLERANCE
            assert deviation(lam, -a * 0.7 * total) <= TOLERANCE


@pytest.mark.parametrize("averaging", ["cohort", "unbiased"])
def test_the_proximal_pull_is_exactly_mu_times_the_distance(averaging):
    """Q = 2: x moves by -eta g(x0), then -eta (g + mu (x - x0)); so dD/dmu = eta^2 g(x0), with its sign and no square root."""
    c = replace(case(R=1, work=(2, 2)), cohorts=[[3]])
    slow, fast = (trajectory(fv.FedProx(mu=mu, averaging=averaging), c, ETA)[-1] for mu in (0.2, 0.7))
    g = c.A[3] @ c.x0 - c.b[3]
    assert deviation(fast - slow, 0.5 * ETA**2 * g) <= 1e-12  # one client of N: both averages give it weight 1


def test_gamma_of_feddyn_and_fedadmm_is_the_strength_of_the_pull_and_of_the_dual():
    c = replace(case(R=1, work=(2, 2)), cohorts=[[3]])
    for gamma in (0.2, 0.7):
        D = move(c, 3, 0, c.x0, gamma=gamma)
        x0, lam, lam_i = last(simulate(fv.FedDyn(alpha=gamma), c, ETA))
        assert deviation(lam_i[3], -gamma * D) <= TOLERANCE
        assert deviation(lam, -gamma * D / N) <= TOLERANCE
        assert deviation(x0, c.x0 + D + D / N) <= TOLERANCE  # N/m = N; then -lam/gamma
        x0, _, lam_i = last(simulate(fv.FedADMM(gamma=gamma), c, ETA))
        assert deviation(lam_i[3], -gamma * D) <= TOLERANCE
        assert deviation(x0, c.x0 + 2 * D / N) <= TOLERANCE


class TestScaffold:
    def test_control_variates_are_mean_gradients_over_the_clients_own_number_of_steps(self):
        """After the first round c_i = -D_i/(eta Q_i); a common K would be wrong for all but one Q."""
        c = case(R=1, full=True)
        assert len(set(c.Q[0])) > 2
        _, lam, lam_i = last(simulate(fv.Scaffold(), c, ETA))
        for i in range(N):
            x, total = c.x0, np.zeros_like(c.x0)
            for _ in range(c.Q[0, i]):
                g = c.A[i] @ x - c.b[i]
                total, x = total + g, x - ETA * g
            assert deviation(lam_i[i], total / c.Q[0, i]) <= TOLERANCE
        assert deviation(lam, lam_i.mean(axis=0)) <= TOLERANCE

    def test_a_newcomer_is_corrected_by_the_servers_variate_alone(self):
        """A client without c_i steps along g + c: the sign of c and that it is there at all."""
        c = replace(case(R=2, work=(3, 3)), cohorts=[[0, 1], [2]])
        x0, lam, _ = last(simulate(fv.Scaffold(), c, ETA, rounds=1))
        assert np.abs(lam).max() > 0.1
        x1, lam1, lam_i = last(simulate(fv.Scaffold(), c, ETA))
        D = move(c, 2, 1, x0, h=-lam)
        assert deviation(x1 - x0, D) <= TOLERANCE
        assert deviation(lam_i[2], -lam - D / (ETA * 3)) <= TOLERANCE
        assert deviation(lam1, lam + lam_i[2] / N) <= TOLERANCE  # the *change* of c_2, which was zero

    def test_somebody_who_returns_is_corrected_by_the_difference(self):
        c = replace(case(R=3, work=(3, 3)), cohorts=[[0, 1], [2], [0]])
        x0, lam, before = last(simulate(fv.Scaffold(global_lr=0.7), c, ETA, rounds=2))
        x1, lam1, after = last(simulate(fv.Scaffold(global_lr=0.7), c, ETA))
        D = move(c, 0, 2, x0, h=before[0] - lam)
        assert deviation(x1 - x0, 0.7 * D) <= TOLERANCE
        assert deviation(after[0], before[0] - lam - D / (ETA * 3)) <= TOLERANCE
        assert deviation(lam1 - lam, (after[0] - before[0]) / N) <= TOLERANCE

    def test_global_lr_scales_the_models_step_and_leaves_the_duals(self):
        c = case(R=1)
        full, half = (last(simulate(fv.Scaffold(global_lr=g), c, ETA)) for g in (1.0, 0.5))
        assert deviation(half[0] - c.x0, 0.5 * (full[0] - c.x0)) <= TOLERANCE
        assert (half[1] == full[1]).all()


def test_fednova_takes_the_mean_movement_per_step():
    c, omega = replace(case(R=1), cohorts=[[0, 2, 5]]), unequal_weights(N)
    share, Q = omega[[0, 2, 5]] / omega[[0, 2, 5]].sum(), c.Q[0, [0, 2, 5]]
    per_step = [move(c, i, 0, c.x0) / c.Q[0, i] for i in (0, 2, 5)]
    assert len(set(Q)) > 1
    x0 = trajectory(fv.FedNova(), c, ETA, weights=omega)[-1]
    assert deviation(x0 - c.x0, (share @ Q) * (share @ np.array(per_step))) <= TOLERANCE


def test_one_step_more_moves_the_one_who_made_it():
    c, omega = case(R=1), unequal_weights(N)
    i = c.cohorts[0][0]
    more = c.Q.copy()
    more[0, i] += 1
    algorithm = fv.FedAvg(averaging="unbiased")
    before = trajectory(algorithm, c, ETA, weights=omega)[-1]
    after = trajectory(algorithm, c, ETA, weights=omega, work=fv.Steps(more))[-1]
    extra = move(c, i, 0, c.x0, Q=more[0, i]) - move(c, i, 0, c.x0)
    assert deviation(after - before, omega[i] * N / len(c.cohorts[0]) * extra) <= TOLERANCE


def test_weights_weigh():
    c = case(R=1)
    left, right = unequal_weights(N, 0), unequal_weights(N, 1)
    runs = [trajectory(fv.FedVRA(gamma=0.7, a=0, d=2), c, ETA, weights=w)[-1] for w in (left, right)]
    expected = sum(2 * (right[i] - left[i]) * move(c, i, 0, c.x0, gamma=0.7) for i in c.cohorts[0])
    assert deviation(runs[1] - runs[0], expected) <= TOLERANCE


# --- Nothing is overwritten -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [cls for _, cls in REGISTRY.items()], ids=lambda cls: cls.__name__)
def test_what_the_user_gave_and_what_was_kept_stay_as_they_were(cls):
    c = case(R=3, full=cls.everyone_takes_part)
    start, A, b = torch.tensor(c.x0), torch.tensor(c.A), torch.tensor(c.b)
    history = simulate(cls(), c, ETA, x_init=start, problem=fv.Quadratic(A, b))
    assert deviation(start, c.x0) == 0
    assert deviation(A, c.A) == 0
    assert deviation(b, c.b) == 0
    path = np.asarray(history.trajectory)
    assert deviation(path[-1], history.x0) == 0
    assert bite(c.x0, path[0]) > 1e-6
    assert min(bite(path[r], path[r + 1]) for r in range(2)) > 1e-6
    for r in (1, 2):
        assert deviation(path[r - 1], simulate(cls(), c, ETA, rounds=r).x0) == 0
