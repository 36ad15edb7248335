"""Costs and derivatives for those who look on: against differences, exact eigenvalues, and the solvers' own gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedvra as fv
from fedvra.problems.base import module_of, oracle_of
from fedvra.problems.oracle import Hessian, Oracle, Point, hessian_by_differences, hessian_of
from fedvra.theory.estimates import estimate, gradient_noise, spectral_norm
from quadratics import quadratic


def data(clients: int = 4, dtype: Any = np.float64) -> fv.FederatedData:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=120)
    inputs = (rng.normal(size=(3, 5))[labels] + rng.normal(size=(120, 5))).astype(dtype)
    return fv.split((inputs, labels), fv.Dirichlet(0.5), clients=clients, seed=1)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


class Bent(fv.TwoBlock):
    """f_i(x, y) = (x'Sx)/2 + i*(y'y)/2 + x'y, written by its gradients."""

    S = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    clients = 3

    def x_start(self) -> Tensor:
        return torch.ones(2, dtype=torch.float64)

    def y_start(self, client: int) -> Tensor:
        return torch.full((2,), 0.5, dtype=torch.float64)

    def cost(self, client: int, x: Tensor, y: Tensor) -> float:
        return float(x @ self.S @ x / 2 + client * y @ y / 2 + x @ y)

    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        return self.S @ x + y

    def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        return client * y + x

    def project_x(self, x: Tensor) -> Tensor:
        return x

    def project_y(self, client: int, y: Tensor) -> Tensor:
        return y


def semi(hidden: float = 0.5) -> fv.SemiSupervised:
    return fv.SemiSupervised(model, hidden=hidden, weight_decay=0.3)


CASES: dict[str, Any] = {
    "quadratic": (lambda: fv.Quadratic(*quadratic()), lambda: None),
    "supervised": (lambda: fv.Supervised(model, weight_decay=0.3), data),
    "two-block": (Bent, lambda: None),
    "semi-supervised": (semi, data),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Oracle, Tensor]:
    make, make_data = CASES[request.param]
    problem = make()
    torch.manual_seed(0)
    x = problem.initial(0)
    return problem.oracle(make_data()), x + 0.1 * torch.randn_like(x)


def test_gradients_are_those_of_the_values(case: tuple[Oracle, Tensor]) -> None:
    oracle, x = case
    torch.manual_seed(1)
    for client in (0, 2):
        for _ in range(3):
            v = torch.randn_like(x)
            rise = oracle.value(client, Point(x + 1e-6 * v)) - oracle.value(client, Point(x - 1e-6 * v))
            assert rise / 2e-6 == pytest.approx(float(oracle.gradient(client, Point(x)) @ v), rel=1e-5, abs=1e-7)


def test_hessians_are_those_of_the_gradients(case: tuple[Oracle, Tensor]) -> None:
    """In the x-block, with y held; where there is a y-block it has to move with the right sizes too."""
    oracle, x = case
    P = len(x)
    hessian = oracle.hessian(1, Point(x))
    v = torch.zeros(hessian.width, dtype=torch.float64)
    v[:P] = torch.linspace(-1, 1, P, dtype=torch.float64)
    plus, minus = (oracle.gradient(1, Point(x + s * 1e-5 * v[:P])) for s in (1, -1))
    torch.testing.assert_close(hessian.times(v)[:P], (plus - minus) / 2e-5, rtol=1e-5, atol=1e-6)


def test_hessians_are_symmetric(case: tuple[Oracle, Tensor]) -> None:
    oracle, x = case
    hessian = oracle.hessian(1, Point(x))
    torch.manual_seed(2)
    u, v = (torch.randn(hessian.width, dtype=torch.float64) for _ in range(2))
    assert float(u @ hessian.times(v)) == pytest.approx(float(v @ hessian.times(u)), rel=1e-5)


def test_the_hessian_of_two_blocks_is_that_of_both() -> None:
    dense = torch.zeros(4, 4, dtype=torch.float64)
    dense[:2, :2], dense[2:, 2:] = Bent.S, 2 * torch.eye(2)
    dense[:2, 2:] = dense[2:, :2] = torch.eye(2)
    hessian = Bent().oracle(None).hessian(2, Point(Bent().x_start()))
    columns = torch.stack([hessian.times(e) for e in torch.eye(4, dtype=torch.float64)])
    torch.testing.assert_close(columns, dense, rtol=1e-6, atol=1e-7)


def test_curvature_of_a_sample_of_the_data() -> None:
    oracle, x = fv.Supervised(model).oracle(data()), fv.Supervised(model).initial(0)
    v = torch.ones(len(x), dtype=torch.float64)
    whole, same, part = (oracle.hessian(1, Point(x), n).times(v) for n in (None, 1000, 7))
    assert torch.equal(whole, same)
    assert not torch.allclose(whole, part, rtol=1e-3)


def test_large_clients_are_added_up_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    import fedvra.problems.supervised_oracle as home

    oracle, x = fv.Supervised(model, weight_decay=0.1).oracle(data()), fv.Supervised(model).initial(0)
    whole = oracle.gradient(0, Point(x)), oracle.value(0, Point(x))
    monkeypatch.setattr(home, "CHUNK", 7)
    torch.testing.assert_close(oracle.gradient(0, Point(x)), whole[0])
    assert oracle.value(0, Point(x)) == pytest.approx(whole[1])


def test_buffers_are_those_of_the_point_and_stay() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()

    problem = fv.Supervised(normed, buffers="average")
    oracle, x, aux = problem.oracle(data()), problem.initial(0), problem.initial_aux(0)
    assert aux is not None
    moved = aux + 0.5
    first = oracle.value(0, Point(x, aux))
    assert oracle.value(0, Point(x, moved)) != first
    oracle.gradient(0, Point(x, moved))
    assert torch.equal(moved, aux + 0.5)
    assert oracle.value(0, Point(x, aux)) == first


# -- estimates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 40, 300])
@pytest.mark.parametrize("seed", range(3))
def test_curvature_against_exact_eigenvalues(seed: int, size: int) -> None:
    """Indefinite matrices too: the constant is the largest absolute eigenvalue. It is approached from below."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
    A = torch.from_numpy(basis @ np.diag(rng.uniform(-3, 2, size)) @ basis.T)
    exact = float(torch.linalg.eigvalsh(A).abs().max())
    found = spectral_norm(Hessian(size, lambda v: A @ v), A, seed)
    assert 0.995 * exact <= found <= exact * (1 + 1e-9)


def test_one_direction_among_many_is_found() -> None:
    """A start that hardly knows of it is no excuse: power iteration, which stops when it no longer grows, says 1."""
    scales = torch.ones(100_000)
    scales[17] = -3.0
    assert spectral_norm(Hessian(len(scales), lambda v: scales * v), scales) == pytest.approx(3.0, rel=1e-3)


def test_no_curvature_at_all() -> None:
    assert spectral_norm(Hessian(50, torch.zeros_like), torch.zeros(50)) == 0.0


def test_power_iteration_on_a_network_against_its_dense_hessian() -> None:
    oracle, x = fv.Supervised(model, weight_decay=0.3).oracle(data()), fv.Supervised(model).initial(0)
    hessian = oracle.hessian(1, Point(x))
    dense = torch.stack([hessian.times(e) for e in torch.eye(hessian.width, dtype=torch.float64)])
    exact = float(torch.linalg.eigvalsh(dense).abs().max())
    found = estimate(oracle, [[Point(x)]], np.array([1]), None)
    assert not found.exact
    assert 0.95 * exact <= found.L[0] <= exact * (1 + 1e-9)


def test_quadratics_are_exact() -> None:
    A, b = quadratic()
    problem = fv.Quadratic(A, b)
    x = problem.initial(0)
    found = estimate(problem.oracle(None), [[Point(x)] * 6], np.arange(6), None)
    assert found.exact
    assert list(found.L) == pytest.approx(list(np.abs(np.linalg.eigvalsh(A)).max(1)))
    assert not found.noise.any()


def test_the_largest_curvature_of_several_points_counts() -> None:
    oracle = fv.Supervised(model).oracle(data())
    x = fv.Supervised(model).initial(0)
    apart = [estimate(oracle, [[Point(at)]], np.array([0]), 5).L[0] for at in (x, 3 * x)]
    both = estimate(oracle, [[Point(x)], [Point(3 * x)]], np.array([0]), 5).L[0]
    assert both == max(apart)
    assert min(apart) < max(apart)


def test_noise_against_all_samples() -> None:
    """Batches of S of n samples without replacement have variance sigma^2/S * (n - S)/(n - 1)."""
    federated = data(clients=2)
    oracle, x = fv.Supervised(model).oracle(federated), fv.Supervised(model).initial(0)
    rows, S = federated.part(0), 5
    each = torch.stack([oracle._mean(Point(x), rows[k : k + 1])[1] for k in range(len(rows))])  # type: ignore[attr-defined]
    sigma2 = float((each - each.mean(0)).square().sum(1).mean())
    exact = sigma2 / S * (len(rows) - S) / (len(rows) - 1)
    found = [gradient_noise(oracle, 0, Point(x), S, seed) for seed in range(25)]
    assert np.mean(found) == pytest.approx(exact, rel=0.15)
    assert gradient_noise(oracle, 0, Point(x), None) == 0
    assert gradient_noise(oracle, 0, Point(x), 1000) == 0


def test_noise_of_pseudo_labels_is_unbiased() -> None:
    federated = data(clients=2)
    oracle, x = semi().oracle(federated), semi().initial(0)
    rng = np.random.default_rng(0)
    draws = [oracle.noisy_gradient(0, Point(x), 10, rng) for _ in range(120)]
    mean = torch.stack([draw for draw in draws if draw is not None]).mean(0)
    exact = oracle.gradient(0, Point(x))
    assert float((mean - exact).norm()) < 0.2 * float(exact.norm())
    assert oracle.noisy_gradient(0, Point(x), None, rng) is None


def test_lower_bounds() -> None:
    A, b = quadratic()
    omega = np.full(6, 1 / 6)
    problem = fv.Quadratic(A, b)
    best = problem.minimiser()
    lowest = float(np.mean([problem.oracle(None).value(i, Point(best)) for i in range(6)]))
    assert problem.oracle(None).lower_bound(omega) == pytest.approx(lowest)
    assert fv.Quadratic(-A, b).oracle(None).lower_bound(omega) == -np.inf
    slope = fv.Quadratic(np.zeros((1, 2, 2)), np.array([[1.0, 0.0]]))
    assert slope.oracle(None).lower_bound(np.ones(1)) == -np.inf
    assert fv.Supervised(model).oracle(data()).lower_bound(omega) == 0
    assert fv.Supervised(model, loss=lambda o, t: -o.mean()).oracle(data()).lower_bound(omega) is None


def test_differences_and_autograd_agree() -> None:
    z = torch.linspace(-1, 1, 6, dtype=torch.float64)
    v = torch.arange(6, dtype=torch.float64)
    exact = hessian_of(lambda u: u.sin().sum() + (u @ u) ** 2, z).times(v)
    by_differences = hessian_by_differences(lambda u: u.cos() + 4 * (u @ u) * u, z).times(v)
    torch.testing.assert_close(by_differences, exact, rtol=1e-6, atol=1e-6)
    assert not hessian_of(lambda u: u.sum(), z).times(v).any()


def test_a_problem_without_derivatives_says_so() -> None:
    class Plain(fv.Problem[None]):
        def samples(self, data: None) -> Any:
            return np.ones(2, dtype=np.int64)

        def initial(self, seed: int) -> torch.Tensor:
            return torch.zeros(2)

        def check(self, data: None, settings: fv.SolverSettings) -> None:
            pass

        def solver(self, data: None, settings: fv.SolverSettings) -> fv.Solver:
            raise NotImplementedError

    with pytest.raises(fv.UsageError, match="no exact gradients"):
        oracle_of(Plain(), None)
    with pytest.raises(fv.UsageError, match="Plain has no model"):
        module_of(Plain(), torch.zeros(2), None)
