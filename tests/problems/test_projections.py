"""Projections: idempotent, non-expansive, and the nearest point by a solver that knows nothing of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from torch import Tensor, nn

from fedvra.core.errors import UsageError
from fedvra.local.flat import FlatSpec
from fedvra.problems.projections import (
    Affine,
    Ball,
    Box,
    NonNegative,
    Own,
    Product,
    Projection,
    Simplex,
    WholeSpace,
)

N = 6
SPEC = FlatSpec(("rows", "rest"), ((2, 2), (2,)), torch.float64)
MATRIX = np.array([[1.0, 2.0, 0.0, -1.0, 0.0, 3.0], [0.0, 1.0, 1.0, 0.0, -2.0, 0.0], [1.0, 3.0, 1.0, -1.0, -2.0, 3.0]])
VALUES = np.array([1.0, -2.0, -1.0])  # the third equation is the sum of the others: rank 2


def sums_to(total: float, rows: list[slice]) -> list[dict[str, Any]]:
    return [
        {
            "type": "eq",
            "fun": lambda z, s=s: z[s].sum() - total,
            "jac": lambda z, s=s: np.bincount(np.r_[s], None, N)[:N],
        }
        for s in rows
    ]


SETS: dict[str, tuple[Projection, dict[str, Any]]] = {
    "whole space": (WholeSpace(), {}),
    "box": (Box(-0.5, torch.linspace(0, 2, N)), {"bounds": [(-0.5, b) for b in np.linspace(0, 2, N)]}),
    "half-open box": (Box(low=0.25), {"bounds": [(0.25, None)] * N}),
    "non-negative": (NonNegative(), {"bounds": [(0, None)] * N}),
    "ball": (
        Ball(1.5, centre=torch.full((N,), 0.3, dtype=torch.float64)),
        {
            "constraints": [
                {"type": "ineq", "fun": lambda z: 1.5**2 - ((z - 0.3) ** 2).sum(), "jac": lambda z: -2 * (z - 0.3)}
            ]
        },
    ),
    "simplex": (Simplex(), {"bounds": [(0, None)] * N, "constraints": sums_to(1.0, [slice(0, N)])}),
    "larger simplex": (Simplex(4.0), {"bounds": [(0, None)] * N, "constraints": sums_to(4.0, [slice(0, N)])}),
    "affine": (
        Affine(torch.tensor(MATRIX), torch.tensor(VALUES)),
        {"constraints": [{"type": "eq", "fun": lambda z: (MATRIX @ z - VALUES)[:2], "jac": lambda z: MATRIX[:2]}]},
    ),
    "product": (
        Product(SPEC, {"rows": Simplex(), "rest": Box(0, 1)}),
        {
            "bounds": [(0, None)] * 4 + [(0, 1)] * 2,
            "constraints": sums_to(1.0, [slice(0, 2), slice(2, 4)]),
        },
    ),
}

points = arrays(np.float64, N, elements=st.floats(-10, 10, width=32)).map(torch.tensor)
every_set = pytest.mark.parametrize("name", SETS)


@every_set
@given(x=points)
def test_a_point_of_the_set_stays(name: str, x: Tensor) -> None:
    project = SETS[name][0]
    inside = project(x)
    assert inside.shape == x.shape
    assert inside.dtype == x.dtype
    assert torch.allclose(project(inside), inside, atol=1e-12, rtol=1e-12)
    assert project.contains(inside)


@every_set
@given(x=points, z=points)
def test_distances_do_not_grow(name: str, x: Tensor, z: Tensor) -> None:
    project = SETS[name][0]
    assert float((project(x) - project(z)).norm()) <= float((x - z).norm()) * (1 + 1e-12) + 1e-12


@every_set
@settings(max_examples=15)
@given(x=points)
def test_it_is_the_nearest_point(name: str, x: Tensor) -> None:
    project, constraints = SETS[name]
    target, found = x.numpy(), project(x).numpy()
    start = project(torch.full((N,), 0.4, dtype=torch.float64)).numpy()
    solved = minimize(
        lambda z: ((z - target) ** 2).sum() / 2,
        start,
        jac=lambda z: z - target,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
        **constraints,
    )
    outside = 1e-7  # how far SLSQP may end outside the set, and nearer by as much
    assert np.linalg.norm(found - target) <= np.sqrt(2 * solved.fun) + outside, "the solver found a nearer point"
    assert np.abs(found - solved.x).max() < 1e-4, "another point is as near, but a projection is unique"


@every_set
@given(x=points, z=points)
def test_the_angle_to_every_point_of_the_set_is_obtuse(name: str, x: Tensor, z: Tensor) -> None:
    """(x - Px)'(z - Px) <= 0 for all z in the set: what makes Px the nearest point, without any solver."""
    project = SETS[name][0]
    near, other = project(x), project(z)
    assert float((x - near) @ (other - near)) <= 1e-9


@given(
    x=arrays(np.float64, (3, 5), elements=st.floats(-1e6, 1e6)).map(torch.tensor),
    total=st.sampled_from([0.1, 1.0, 50.0]),
)
def test_simplex_rows_are_on_the_simplex_and_independent(x: Tensor, total: float) -> None:
    result = Simplex(total)(x)
    assert bool((result >= 0).all())
    assert torch.allclose(result.sum(-1), torch.full((3,), total, dtype=torch.float64), rtol=1e-9)
    for row, alone in zip(result, x, strict=True):
        assert torch.equal(row, Simplex(total)(alone))
    order = torch.tensor([3, 0, 4, 1, 2])
    assert torch.allclose(Simplex(total)(x[:, order]), result[:, order], atol=1e-9)


def test_simplex_by_hand() -> None:
    rows = torch.tensor([[2.0, 1.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 0.0], [-5.0, -5.0, 7.0]], dtype=torch.float64)
    expected = torch.tensor([[0.75, 0.25, 0.0], [0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3], [0.0, 0.0, 1.0]])
    assert torch.allclose(Simplex()(rows), expected.double(), atol=1e-15)


def test_simplex_keeps_float32_sums_for_large_inputs() -> None:
    x = torch.randn(200, 10, generator=torch.Generator().manual_seed(0)) * 1e4 + 1e5
    assert torch.allclose(Simplex()(x).sum(-1), torch.ones(200), atol=1e-6)


def test_product_over_a_models_parameters() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    project = Product.of_parameters(net, {"0.weight": Box(0, 1), "2.weight": Simplex()})
    spec = FlatSpec.of_parameters(net)
    x = torch.linspace(-3, 3, spec.size)
    views, before = spec.views(project(x)), spec.views(x)
    assert torch.equal(views["0.weight"], before["0.weight"].clamp(0, 1))
    assert torch.equal(views["2.weight"].sum(-1), torch.ones(1))
    assert torch.equal(views["0.bias"], before["0.bias"])
    assert torch.equal(x, torch.linspace(-3, 3, spec.size)), "the argument was changed"


def test_own_function_that_is_a_projection() -> None:
    project = Own(lambda x: x.clamp(-1, 1))
    assert torch.equal(project(torch.tensor([-3.0, 0.5])), torch.tensor([-1.0, 0.5]))
    assert not project.contains(torch.tensor([-3.0, 0.5]))


BAD: list[tuple[Callable[[Tensor], Any], str]] = [
    (lambda x: x[:-1], "was given shape \\[3\\] and returned \\[2\\]"),
    (lambda x: x.clamp(0, 1) + 0.1, "point outside its set"),
    (lambda x: x / 2, "point outside its set"),
    (lambda x: torch.log(x), "NaN or infinity"),
    (lambda x: x.tolist(), "must return a tensor, got list"),
]


@pytest.mark.parametrize(("function", "message"), BAD)
def test_own_function_that_is_none(function: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Own(function)(torch.tensor([-1.0, 0.5, 2.0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Box(1, 0), "low <= high"),
        (lambda: Ball(-1), "radius >= 0"),
        (lambda: Simplex(0), "total > 0"),
        (lambda: Affine(torch.ones(2, 3), torch.ones(3)), "needs C"),
        (lambda: Affine(torch.ones(2, 3), torch.tensor([1.0, 2.0])), "contradict"),
        (lambda: Product.of_parameters(nn.Linear(2, 2), {"weigth": NonNegative()}), "did you mean 'weight'"),
    ],
)
def test_sets_that_cannot_be(make: Callable[[], Projection], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("project", [Affine(torch.ones(1, 4), torch.ones(1)), SETS["product"][0]])
def test_the_wrong_size_is_named(project: Projection) -> None:
    with pytest.raises(UsageError, match="over"):
        project(torch.zeros(3, dtype=torch.float64))
