"""Products of large matrices by oneDNN: the same numbers as by MKL up to rounding, wherever a step or a first step has them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedvra as fv
from fedvra.core.torch_private import onednn_linear
from fedvra.local import measuring
from fedvra.local.replay import products

pytestmark = pytest.mark.skipif(onednn_linear() is None, reason="torch was built without oneDNN")


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def faster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """As on a processor on which oneDNN is faster, and as on one on which it is not."""
    for module in (products, measuring):
        monkeypatch.setattr(module, "onednn_is_faster", lambda: request.param)
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes (p, q, r) that oneDNN has multiplied."""
    seen: list[tuple[int, ...]] = []
    linear = onednn_linear()

    def noted(a: Tensor, w: Tensor, *rest: object) -> Tensor:
        seen.append((*a.shape, w.shape[0]))
        return linear(a, w, *rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(products, "onednn_linear", lambda: noted)
    return seen


def run(clients: int, batch_size: int, path: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Two rounds of FedVRA of a network with large layers, 400 samples in all."""
    rng = np.random.default_rng(0)
    inputs, targets = torch.tensor(rng.normal(size=(400, 300)), dtype=dtype), rng.integers(0, 10, 400)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 200), nn.ReLU(), nn.Linear(200, 10)).to(dtype)
    history = fv.simulate(
        fv.FedVRA(gamma=0.1, a=2, d=2),
        problem=fv.Supervised(model, weight_decay=1e-2),
        data=fv.split((inputs, targets), fv.IID(), clients=clients, seed=0),
        sampler=fv.Uniform(clients // 2),
        work=fv.Epochs(1),
        lr=0.1,
        batch_size=batch_size,
        rounds=2,
        workers=1,
        solver=fv.SolverSettings(path=path),
    )
    assert history.path.name == path
    return history.x0


def test_local_steps_are_those_of_autograd(faster: bool, multiplied: list[tuple[int, ...]]) -> None:
    found, expected = run(4, 50, "traced"), run(4, 50, "eager", torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)
    forward, gradient, back = (50, 300, 400), (400, 50, 300), (50, 200, 400)
    assert ({forward, gradient, back} <= set(multiplied)) == faster


def test_a_single_step_of_many_clients_too(faster: bool, multiplied: list[tuple[int, ...]]) -> None:
    found, expected = run(40, 10, "block"), run(40, 10, "eager", torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)
    assert ((400, 50, 300) in multiplied) == faster  # the sum over the samples of five clients


@pytest.mark.parametrize(("beta", "alpha"), [(1.0, -0.3), (0.7, 2.0), (0.0, -1.0)])
@pytest.mark.parametrize("shape", [(300, 60, 500), (500, 60, 300)], ids=["few rows", "many rows"])
def test_a_product_is_added_as_addmm_does(faster: bool, beta: float, alpha: float, shape: tuple[int, int, int]) -> None:
    p, q, r = shape
    generator = torch.Generator().manual_seed(0)
    a, b, w = (torch.randn(*s, generator=generator) for s in ((q, p), (q, r), (p, r)))
    expected = torch.addmm(w.double(), a.T.double(), b.double(), beta=beta, alpha=alpha)
    if beta == 0:
        w.fill_(torch.nan)  # what is not read does not matter
    products.adding(w, a.T, b)(a.T, b, beta=beta, alpha=alpha)
    torch.testing.assert_close(w.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("capability", "processor", "expected"),
    [
        ("AVX512", "vendor_id : AuthenticAMD", True),
        ("AVX512", "vendor_id : GenuineIntel", False),
        ("AVX2", "vendor_id : AuthenticAMD", False),
    ],
)
def test_what_decides_is_the_processor(
    capability: str, processor: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(products, "_processor", lambda: processor)
    assert products.onednn_is_faster.__wrapped__() == expected


def test_tests_of_a_model_too(faster: bool, multiplied: list[tuple[int, ...]]) -> None:
    """400 test samples, in one piece."""
    inputs, targets = torch.randn(400, 300, generator=torch.Generator().manual_seed(0)), torch.arange(400) % 10
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 10))
    x = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    data = fv.split((inputs, targets), fv.IID(), clients=2, test=(inputs, targets))
    solver = fv.Supervised(model).solver(data, fv.SolverSettings())
    found = solver.measuring.test(x, None, 0)  # type: ignore[attr-defined]
    solver.close()
    scores = model.double()(inputs.double()).detach()
    assert found.correct == (scores.argmax(1) == targets).sum()
    assert found.loss / 400 == pytest.approx(float(nn.functional.cross_entropy(scores, targets)), abs=1e-6)
    assert ((400, 300, 400) in multiplied) == faster


def test_code_that_torch_compiled_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "onednn_is_faster", lambda: True)
    data = fv.split((torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64)), fv.IID(), clients=2)

    def products_of(model: nn.Module) -> object:
        solver = fv.Supervised(model).solver(data, fv.SolverSettings())
        solver.close()
        return solver.measuring._products  # type: ignore[attr-defined]

    assert products_of(nn.Linear(4, 2)) is products.LinearLayers
    with warnings.catch_warnings(action="ignore"):  # torch would like to see it replaced
        compiled = torch.jit.script(nn.Linear(4, 2))
    assert products_of(compiled) is nullcontext


def test_small_products_and_other_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    a, b = torch.zeros(50, 300), torch.zeros(300, 400)
    assert products.is_large(a, b)
    assert not products.is_large(a[:5], b)
    assert not products.is_large(a.double(), b.double())
    assert not products.is_large(a[None], b[None])
