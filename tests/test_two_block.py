"""Problems with two blocks: Algorithm 3 against a plain transcription, known solutions, Theorem 2, state that is never lost."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from torch import Tensor

import fedvra as fv
from fedvra import checkpoint
from fedvra.federation import Experiment, Federation
from fedvra.problems.base import SolverSettings
from fedvra.theory import discounted_steps

N, P, W = 5, 4, 3


class Boxed(fv.TwoBlock):
    """f_i(x, y_i) = ||A_i x + B_i y_i - c_i||^2/2 with x and y_i in boxes: convex, and solved exactly by linear algebra.

    y_i of client i has W + i%2 numbers: rows of unequal width share one store.
    """

    lr_y, steps_y = 0.05, 3

    def __init__(self, seed: int = 0, strong: bool = True) -> None:
        rng = np.random.default_rng(seed)
        rows = 9 if strong else 3
        self.A = [torch.tensor(rng.normal(size=(rows, P))) for _ in range(N)]
        self.B = [torch.tensor(rng.normal(size=(rows, W + i % 2))) for i in range(N)]
        self.c = [torch.tensor(2 * rng.normal(size=rows)) for _ in range(N)]

    @property
    def clients(self) -> int:
        return N

    def x_start(self) -> Tensor:
        return torch.full((2, P // 2), 0.1, dtype=torch.float64)

    def y_start(self, client: int) -> Tensor:
        return torch.full((W + client % 2, 1), 0.2, dtype=torch.float64)

    def residual(self, client: int, x: Tensor, y: Tensor) -> Tensor:
        return self.A[client] @ x.reshape(-1) + self.B[client] @ y.reshape(-1) - self.c[client]

    def cost(self, client: int, x: Tensor, y: Tensor) -> float:
        return float(self.residual(client, x, y).square().sum() / 2)

    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        return (self.A[client].T @ self.residual(client, x, y)).view_as(x)

    def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        return (self.B[client].T @ self.residual(client, x, y)).view_as(y)

    def project_x(self, x: Tensor) -> Tensor:
        return fv.Box(-0.3, 0.3)(x)

    def project_y(self, client: int, y: Tensor) -> Tensor:
        return fv.Box(0, 0.5)(y)

    def lipschitz(self) -> np.ndarray:
        return np.array(
            [float(torch.linalg.matrix_norm(torch.cat((self.A[i], self.B[i]), 1), 2)) ** 2 for i in range(N)]
        )

    def solution(self) -> tuple[np.ndarray, float]:
        """x and f at the minimum over both blocks, all clients alike in weight."""
        sizes = [W + i % 2 for i in range(N)]
        rows, at = [], P
        for i in range(N):
            row = np.zeros((len(self.c[i]), P + sum(sizes)))
            row[:, :P], row[:, at : at + sizes[i]] = self.A[i], self.B[i]
            rows.append(row)
            at += sizes[i]
        low = np.r_[np.full(P, -0.3), np.zeros(sum(sizes))]
        high = np.r_[np.full(P, 0.3), np.full(sum(sizes), 0.5)]
        found = lsq_linear(np.vstack(rows), np.concatenate(self.c), (low, high), tol=1e-14, method="bvls")
        assert found.success
        return found.x[:P], found.cost / N


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


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.6, 0.9, 0.99])
def test_feasible_settings_are(p: float) -> None:
    setting = fv.Theorem2.feasible(L=[0.1, 1.0, 30.0], p=p, steps=[1, 7, 40], steps_y=3, omega=[1, 2, 1])
    assert all(condition.holds and condition.share == 1 for condition in setting.conditions())
    assert setting.rate_constant() > 0


def test_the_printed_condition_on_lr_y_is_not_enough_where_few_take_part() -> None:
    for p, enough in ((0.1, False), (0.5, True), (0.97, False)):
        setting = fv.Theorem2.feasible(L=1.0, p=p, steps=5)
        printed, proved = (c.left[0] for c in setting.conditions() if c.name.startswith("lr_y"))
        assert (printed >= proved) == enough


def test_discounted_steps_are_a_geometric_sum() -> None:
    gamma, eta, steps = np.array([0.5, 2.0]), np.array([0.1, 0.5]), np.array([6.0, 3.0])
    direct = [sum((1 - g * e) ** t for t in range(int(q))) for g, e, q in zip(gamma, eta, steps, strict=True)]
    assert discounted_steps(gamma, eta, steps) == pytest.approx(direct)


# --- The engine's promises ---------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {"sampler": fv.Uniform(3), "work": fv.Steps(3), "lr": 0.02, "seed": 5}


class Stochastic(Boxed):
    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        noise = 0.0 if rng is None else torch.from_numpy(rng.normal(size=tuple(x.shape)))
        return super().gradient_x(client, x, y, None) + noise


def figures(history: fv.History) -> list[dict[str, Any]]:
    return [{k: v for k, v in m.items() if "seconds" not in k} for m in history.metrics]


def test_the_number_of_workers_does_not_change_a_bit() -> None:
    runs = [
        fv.simulate(
            fv.FedVRAU(gamma=2), problem=Stochastic(), rounds=5, workers=w, drop=0.3, observers=[fv.StationarityGap(2)],
            **SETTINGS,
        )
        for w in (1, 2, 3)
    ]  # fmt: skip
    for other in runs[1:]:
        assert torch.equal(runs[0].x0, other.x0)
        assert figures(runs[0]) == figures(other)
        assert runs[0].y.keys() == other.y.keys()
        assert all(torch.equal(row, other.y[i]) for i, row in runs[0].y.items())
    assert sum("stationarity_gap" in m for m in runs[0].metrics) == 2


def test_noise_comes_from_keyed_streams() -> None:
    one, other = (
        fv.simulate(fv.FedVRAU(gamma=2), problem=Stochastic(), rounds=3, workers=1, **{**SETTINGS, "seed": s}).x0
        for s in (5, 6)
    )
    exact = fv.simulate(fv.FedVRAU(gamma=2), problem=Boxed(), rounds=3, workers=1, **SETTINGS).x0
    assert not torch.equal(one, exact)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_lost_reply_leaves_y_as_it_was(workers: int) -> None:
    with_loss = Experiment(fv.FedVRAU(gamma=2), Boxed(), drop=0.5, **{**SETTINGS, "sampler": fv.Full()})
    federation = Federation(with_loss, workers=workers)
    try:
        lost = moved = 0
        for _ in range(6):
            before = {i: row.clone() for i, row in federation.second_block().items()}
            record = federation.round()
            after = federation.second_block()
            for i in range(N):
                if i in record.get("lost", []):
                    lost += 1
                    assert (i in before) == (i in after)
                    assert i not in before or torch.equal(before[i], after[i])
                elif i in before:
                    moved += not torch.equal(before[i], after[i])
        assert lost > 5
        assert moved > 2
    finally:
        federation.close()


def test_a_checkpoint_carries_y(tmp_path: Path) -> None:
    def start() -> Federation:
        return Federation(Experiment(fv.FedVRAU(gamma=2), Stochastic(), **SETTINGS), workers=1)

    whole, first, second = start(), start(), start()
    try:
        for _ in range(7):
            whole.round()
        for _ in range(3):
            first.round()
        checkpoint.save(first, tmp_path)
        assert checkpoint.restore(second, tmp_path) == 3
        for _ in range(4):
            second.round()
        assert torch.equal(second.state.x0, whole.state.x0)
        ours, theirs = second.second_block(), whole.second_block()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[i], theirs[i]) for i in ours)
        assert len(ours) > 3
    finally:
        for federation in (whole, first, second):
            federation.close()


def test_a_checkpoint_with_y_of_another_size_is_refused(tmp_path: Path) -> None:
    class Wider(Boxed):
        def y_start(self, client: int) -> Tensor:
            return torch.zeros(W + 3, 1, dtype=torch.float64)

    saved, other = (Federation(Experiment(fv.FedVRAU(), kind(), **SETTINGS), workers=1) for kind in (Boxed, Wider))
    try:
        saved.round()
        checkpoint.save(saved, tmp_path)
        with pytest.raises(fv.FedvraError, match=f"holds y of {W + 1} numbers per client, and the run needs {W + 3}"):
            checkpoint.restore(other, tmp_path)
    finally:
        saved.close()
        other.close()


def test_power_of_choice_sees_the_cost_at_the_clients_own_y() -> None:
    settings = {**SETTINGS, "sampler": fv.PowerOfChoice(2, candidates=N)}
    problem = Boxed()
    record = fv.simulate(fv.FedAvg(), problem=problem, rounds=1, workers=1, **settings).metrics[0]
    x = problem.x_start()
    costs = [problem.cost(i, x, problem.best_response(i, x, problem.y_start(i))) for i in range(N)]
    assert record["cohort"] == sorted(np.argsort(costs)[-2:].tolist())


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent.parent / "examples" / "two_block.py"
    assert len(path.read_text().splitlines()) < 80
    spec = importlib.util.spec_from_file_location("two_block_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.main(clients=10, rounds=60)
    assert found["FedVRA-U"] < found["FedAvg"] / 2
    assert "gap" in capsys.readouterr().out


# --- Bad input ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    method: str
    replacement: Any
    message: str


FAULTS = [
    Fault("project_y", lambda self, client, y: y[:-1], r"project_y was given shape \[3, 1\] and returned \[2, 1\]"),
    Fault("project_y", lambda self, client, y: y.clamp(0, 0.5) * 0.9, "project_y returned a point outside its set"),
    Fault("project_x", lambda self, x: x.reshape(-1), r"project_x was given shape \[2, 2\] and returned \[4\]"),
    Fault("project_x", lambda self, x: x.clamp(-0.3, 0.3) + 0.01, "project_x returned a point outside its set"),
    Fault("gradient_y", lambda self, client, x, y, rng: y[:2], r"gradient_y of client \d has shape \[2, 1\]"),
    Fault("gradient_x", lambda self, client, x, y, rng: x.reshape(-1), r"gradient_x of client \d has shape \[4\]"),
    Fault(
        "y_start",
        lambda self, client: torch.full((W, 1), 0.7, dtype=torch.float64),
        "y_start\\(0\\) is outside its set",
    ),
    Fault("y_start", lambda self, client: torch.zeros(W, 1), "use one dtype"),
    Fault("y_start", lambda self, client: torch.full((W, 1), torch.nan).double(), "NaN"),
    Fault("x_start", lambda self: torch.ones(2, 2, dtype=torch.float64), "x_start is outside its set"),
    Fault("x_start", lambda self: torch.ones(2, 2, dtype=torch.int64), "floating-point"),
    Fault("lr_y", 0.0, "lr_y must be > 0"),
    Fault("steps_y", 0, "steps_y must be at least 1"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.method}: {fault.message[-22:]}")
def test_what_is_wrong_with_a_problem_is_said(fault: Fault) -> None:
    problem = type("Faulty", (Boxed,), {fault.method: fault.replacement})()
    with pytest.raises(fv.UsageError, match=fault.message):
        fv.simulate(fv.FedVRAU(), problem=problem, rounds=1, workers=1, **SETTINGS)


def test_a_gradient_of_the_wrong_size_mid_run_is_said_too() -> None:
    class Shrinks(Boxed):
        def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
            return super().gradient_y(client, x, y, rng)[: 2 if client == 3 else None]

    with pytest.raises(fv.UsageError, match="gradient_y of client 3"):
        fv.simulate(fv.FedVRAU(), problem=Shrinks(), rounds=1, workers=2, **{**SETTINGS, "sampler": fv.Full()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": 1}, "carries its own data"),
        ({"batch_size": 8}, "draws its own batches"),
        ({"solver": SolverSettings(device="meta")}, "computes on the CPU"),
        (
            {"observers": [fv.StationarityGap(every=1)], "problem": fv.Quadratic(torch.eye(2)[None], torch.ones(1, 2))},
            "no exact",
        ),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    given = {"problem": Boxed(), "workers": 1, **SETTINGS, "sampler": fv.Full(), **options}
    with pytest.raises(fv.UsageError, match=message):
        fv.simulate(fv.FedVRAU(), rounds=1, **given)


@pytest.mark.parametrize(("every", "beta", "message"), [(0, 1.0, "every"), (1, 0.0, "beta")])
def test_a_gap_that_cannot_be_measured(every: int, beta: float, message: str) -> None:
    with pytest.raises(fv.UsageError, match=message):
        fv.StationarityGap(every, beta)
