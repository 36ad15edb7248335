"""Problems with two blocks: Algorithm 3 against a plain transcription, known solutions, Theorem 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor

import fedvra as fv
from boxed import Boxed, N, P, W
from fedvra.theory import discounted_steps

# --- Algorithm 3, transcribed ------------------------------------------------------------------------------------------


def transcribed(
    problem: Boxed,
    cohorts: list[list[int]],
    Q: np.ndarray,
    eta: float,
    kind: str,
    gamma: float,
    a: float,
    d: float | None,
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Algorithm 3 step by step in NumPy, and its baselines adapted alike: same y-steps, same P_X, their own x-steps.

    ``kind``: "duals" moves x0 by them, "scaffold" does not, nor does "mean", which has none. ``d`` None stands for N/m.
    """
    A, B, c = ([np.asarray(t) for t in part] for part in (problem.A, problem.B, problem.c))
    x0, y = np.full(P, 0.1), {i: np.full(W + i % 2, 0.2) for i in range(N)}
    lam_i, lam, beta, path = np.zeros((N, P)), np.zeros(P), 1 / gamma if gamma else 0.0, []
    for r, cohort in enumerate(cohorts):
        moves, changes = np.zeros(P), np.zeros(P)
        for i in cohort:
            for _ in range(problem.steps_y):
                slope = B[i].T @ (A[i] @ x0 + B[i] @ y[i] - c[i])
                y[i] = np.clip(y[i] - problem.lr_y * slope, 0, 0.5)
            x = x0.copy()
            for _ in range(Q[r, i]):
                g = A[i].T @ (A[i] @ x + B[i] @ y[i] - c[i])
                corrected = g - lam_i[i] + lam if kind == "scaffold" else g - lam_i[i] + gamma * (x - x0)
                x = x - eta * corrected
            kept, alpha = (lam_i[i] - lam, 1 / (eta * Q[r, i])) if kind == "scaffold" else (lam_i[i], a * gamma)
            new = kept + alpha * (x0 - x)
            changes += (new - lam_i[i]) / N
            lam_i[i] = new
            moves += (N / len(cohort) if d is None else d) * (x - x0) / N
        if cohort:
            lam = lam + changes
            x0 = np.clip(x0 + moves - (beta * lam if kind == "duals" else 0), -0.3, 0.3)
        path.append(x0)
    return np.array(path), y


COHORTS = [[0, 2], [1, 3, 4], [], [2], [0, 1, 2, 3, 4], [3, 4], [1, 2], [0, 4]]
STEPS = np.random.default_rng(1).integers(1, 6, size=(len(COHORTS), N))
FIVE: list[tuple[fv.Algorithm, tuple[str, float, float, float | None]]] = [
    (fv.FedVRAU(gamma=0.7, a=1.5, d=1.2), ("duals", 0.7, 1.5, 1.2)),
    (fv.FedDyn(alpha=0.9), ("duals", 0.9, 1.0, None)),
    (fv.Scaffold(), ("scaffold", 0.0, 0.0, None)),
    (fv.FedProx(mu=0.4), ("mean", 0.4, 0.0, None)),
    (fv.FedAvg(), ("mean", 0.0, 0.0, None)),
]


@pytest.mark.parametrize(("algorithm", "how"), FIVE, ids=[algorithm.label for algorithm, _ in FIVE])
def test_algorithm_3_and_its_baselines_step_by_step(
    algorithm: fv.Algorithm, how: tuple[str, float, float, float | None]
) -> None:
    problem = Boxed()
    history = fv.simulate(
        algorithm, problem=problem, sampler=fv.Replay(COHORTS), work=fv.Steps(STEPS), lr=0.02, rounds=len(COHORTS),
        keep="x0", workers=1,
    )  # fmt: skip
    path, y = transcribed(problem, COHORTS, STEPS, 0.02, *how)
    assert history.trajectory is not None
    assert np.abs(history.trajectory.numpy() - path).max() < 1e-12
    assert set(history.y) == set(range(N))
    for i, row in history.y.items():
        assert np.abs(row[: W + i % 2].numpy() - y[i]).max() < 1e-12
        assert not row[W + i % 2 :].any()
    assert np.abs(path).max() == 0.3, "the constraint on x was never met"
    assert any((values == 0).any() or (values == 0.5).any() for values in y.values()), "nor that on y"


@pytest.mark.parametrize("algorithm", [fv.FedVRAU(), fv.FedVRA(), fv.FedProx(mu=0.3), fv.FedDyn(alpha=0.5)])
def test_the_second_block_bites_for_every_algorithm(algorithm: fv.Algorithm) -> None:
    class NoSteps(Boxed):
        lr_y = 1e-300

    runs = [
        fv.simulate(algorithm, problem=kind(), sampler=fv.Uniform(3), work=fv.Steps(3), lr=0.02, rounds=3, workers=1).x0
        for kind in (Boxed, NoSteps)
    ]
    assert float((runs[0] - runs[1]).abs().max()) > 1e-3


# --- Solutions and Theorem 2 -------------------------------------------------------------------------------------------


def long_run(algorithm: fv.Algorithm, rounds: int = 240, **options: Any) -> fv.History:
    settings: dict[str, Any] = {
        "sampler": fv.Uniform(3), "work": fv.Steps(4), "lr": 0.02, "seed": 2, "workers": 1,
        "observers": [fv.StationarityGap(every=20)], **options,
    }  # fmt: skip
    return fv.simulate(algorithm, problem=Boxed(), rounds=rounds, **settings)


def gaps(history: fv.History) -> np.ndarray:
    return np.array([m["stationarity_gap"] for m in history.metrics if "stationarity_gap" in m])


def test_fedvra_u_reaches_the_solution_and_fedavg_does_not() -> None:
    best, _ = Boxed().solution()
    ours, plain = long_run(fv.FedVRAU(gamma=4, a=1)), long_run(fv.FedAvg())
    assert np.abs(ours.x0.numpy() - best).max() < 1e-8
    assert np.abs(plain.x0.numpy() - best).max() > 1e-3
    assert gaps(ours)[0] > 1e-3
    assert gaps(ours)[-1] < 1e-14
    assert gaps(plain)[-1] > 1e-4
    assert len(gaps(ours)) == 12


def test_the_gap_is_the_projected_gradient_of_both_blocks() -> None:
    """By hand for one round in which client 1 alone takes part: y_1 changes in between, x0 does not."""
    problem, beta = Boxed(), 0.7
    history = fv.simulate(
        fv.FedVRAU(gamma=2), problem=problem, sampler=fv.Replay([[1]]), work=fv.Steps(2), lr=0.02, rounds=1,
        observers=[fv.StationarityGap(beta=beta)], workers=1,
    )  # fmt: skip
    x, start = problem.x_start(), [problem.y_start(i) for i in range(N)]
    after = [y if i != 1 else problem.best_response(1, x, y) for i, y in enumerate(start)]
    slope = sum(problem.gradient_x(i, x, after[i], None) for i in range(N)) / N
    expected = float((x - problem.project_x(x - beta * slope)).square().sum()) / beta**2
    for i, y in enumerate(start):
        moved = y - problem.project_y(i, y - problem.lr_y * problem.gradient_y(i, x, y, None))
        expected += float(moved.square().sum()) / problem.lr_y**2 / N
    assert history.metrics[0]["stationarity_gap"] == pytest.approx(expected, rel=1e-12)


def test_theorem_2_inside_its_conditions() -> None:
    """The sum of all gaps stays below D*(P^0 - inf f): their mean falls as 1/R, whatever R."""
    problem = Boxed(seed=3, strong=False)
    setting = fv.Theorem2.feasible(L=problem.lipschitz(), p=0.6, steps=4, steps_y=2, a=3.0, d=1.0)
    assert all(condition.holds for condition in setting.conditions())

    class Slow(Boxed):
        steps_y = 2

        def stepsize_y(self, client: int, x: Tensor) -> float:
            return float(setting.lr_y[client])

    problem = Slow(seed=3, strong=False)
    history = fv.simulate(
        fv.FedVRAU(gamma=setting.gamma, a=3.0, d=1.0), problem=problem, sampler=fv.Uniform(3), work=fv.Steps(4),
        lr=list(setting.eta), rounds=400, workers=1, observers=[fv.StationarityGap(beta=setting.beta)],
    )  # fmt: skip
    x, starts = problem.x_start(), [problem.y_start(i) for i in range(N)]
    cost = sum(problem.cost(i, x, y) for i, y in enumerate(starts)) / N
    xi = np.array([float(problem.gradient_x(i, x, y, None).square().sum()) for i, y in enumerate(starts)])
    budget = setting.rate_constant() * (setting.potential(cost, xi) - problem.solution()[1])
    found = gaps(history)
    assert np.cumsum(found)[-1] <= budget
    mean = np.cumsum(found) / np.arange(1, len(found) + 1)
    assert mean[399] <= mean[199] / 1.5, "the mean gap must fall like 1/R"
    assert found[-1] < found[0] / 100


def test_the_conditions_worked_by_hand() -> None:
    """L = 1, p = 1/2, gamma = 32, a = 3, d = 1, gamma*eta*Q~ = 1/4 in one step: C1 = 1, C2 = 3/4, beta = 1/32."""
    setting = fv.Theorem2(L=1, p=0.5, gamma=32, eta=1 / 128, a=3, d=1, steps=1, lr_y=1 / 200, steps_y=2)
    by_name = {condition.name: condition for condition in setting.conditions()}
    assert setting.c1[0] == pytest.approx(1)
    assert setting.c2[0] == pytest.approx(0.75)
    assert by_name["gamma, as printed"].left[0] == pytest.approx(0.5 + 9 / (0.375 * np.sqrt(0.5)))
    assert not by_name["gamma, as printed"].holds
    assert by_name["eta, smoothness, as printed"].left[0] == pytest.approx(np.sqrt(6) / 128)
    assert by_name["lr_y, as printed"].left[0] == pytest.approx(1 + 4 * 2 / 32 * (1 + 400 / 0.5625))
    assert by_name["lr_y, as proved"].left[0] == pytest.approx(
        1 + 2 * 2 / 32 * (1 + (4.375**2) * 1.25 / (0.375**2 * 0.5))
    )
    assert by_name["lr_y, as printed"].holds
    assert "FAILS" in str(by_name["gamma, as printed"])
    with pytest.raises(fv.UsageError, match="do not hold"):
        setting.rate_constant()


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.6, 0.9, 0.99])
def test_feasible_settings_are(p: float, common: bool) -> None:
    shape = np.array([1.0, 20.0, 0.3])
    given: dict[str, Any] = {"p": p, "steps": [1, 7, 40], "steps_y": 3, "omega": [1, 2, 1], "lr_y": shape}
    setting = fv.Theorem2.feasible(L=[0.1, 1.0, 30.0], common=common, **given)
    assert all(condition.holds and condition.share == 1 for condition in setting.conditions())
    assert setting.rate_constant() > 0
    if common:
        assert np.ptp(setting.gamma) == np.ptp(setting.eta) == 0
        assert list(setting.lr_y / shape) == pytest.approx([setting.lr_y[0]] * 3)


@pytest.mark.parametrize(
    ("p", "enough"), [(0.1, False), (0.22, False), (0.23, True), (0.5, True), (0.95, True), (0.97, False)]
)
def test_the_printed_condition_on_lr_y_is_enough_for_p_from_a_quarter_on(p: float, enough: bool) -> None:
    """p^2(1-p) >= 1/25, the worst case being a small C_2; where it is not enough some setting shows it."""

    def ratio(a: float, d: float) -> float:
        setting = fv.Theorem2.feasible(L=1.0, p=p, steps=5, a=a, d=d)
        printed, proved = (c.left[0] for c in setting.conditions() if c.name.startswith("lr_y"))
        return float(proved / printed)

    assert (max(ratio(a, d) for a in (0.01, 0.1, 1.0, 9.0) for d in (1.2, 4.0, 30.0)) <= 1) == enough


def test_discounted_steps_are_a_geometric_sum() -> None:
    gamma, eta, steps = np.array([0.5, 2.0]), np.array([0.1, 0.5]), np.array([6.0, 3.0])
    direct = [sum((1 - g * e) ** t for t in range(int(q))) for g, e, q in zip(gamma, eta, steps, strict=True)]
    assert discounted_steps(gamma, eta, steps) == pytest.approx(direct)
