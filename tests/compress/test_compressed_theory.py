"""For which C compressed runs provably converge: one local step is EF21; see docs/compression.md."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.core.compressor import Compressor
from fedvra.core.streams import Purpose, stream
from quadratics import quadratic

N, P = 6, 6
A, B = quadratic(N, P)
BEST = np.linalg.solve(A.mean(0), B.mean(0))
START = np.full(P, 3.0)


def safe_step(contraction: float) -> float:
    """EF21's bound 1/(L + L~*sqrt(beta/theta)), theta = 1 - sqrt(1 - delta), beta = (1 - delta)/theta."""
    constants = [float(np.linalg.eigvalsh(each)[-1]) for each in A]
    whole = float(np.linalg.eigvalsh(A.mean(0))[-1])
    theta = 1 - math.sqrt(1 - contraction)
    return 1 / (
        whole + math.sqrt(np.mean(np.square(constants))) * math.sqrt((1 - contraction) / theta) / math.sqrt(theta)
    )


def ef21(compressor: Compressor, step: float, scale: float, rounds: int) -> np.ndarray:
    """g_i <- g_i + C(grad f_i(x) - g_i)*scale, x <- x - step*mean(g), from g = 0: Richtarik, Sokolov, Fatkhullin 2021."""
    x, g = START.copy(), np.zeros((N, P))
    for r in range(rounds):
        for i in range(N):
            left = -(A[i] @ x - B[i] - g[i])  # the sign of an upload: a compressor that draws must see the same vector
            sent = compressor.apply(torch.from_numpy(left), stream(0, Purpose.ROUNDING, r, i)).numpy()
            g[i] -= scale * sent
        x = x - step * g.mean(0)
    return x


def run(compressor: Compressor, step: float, scale: float, rounds: int, eta: float = 2.0**-9) -> fv.History:
    """One local step, d = 0, gamma = 1/step and a*gamma*eta = scale."""
    algorithm = fv.FedVRA(gamma=1 / step, a=scale * step / eta, d=0)
    costs = fv.Quadratic(torch.from_numpy(A), torch.from_numpy(B))
    return fv.simulate(
        algorithm,
        problem=costs,
        sampler=fv.Full(),
        work=fv.Steps(1),
        lr=eta,
        rounds=rounds,
        x_init=torch.from_numpy(START),
        compress=compressor,
        workers=1,
    )


CONTRACTIVE = {
    "a third of the numbers": fv.TopK(1 / 3),
    "two bits to the nearest": fv.Quantize(2, block=3, rounding="nearest"),
    "both": fv.Chain(fv.TopK(0.5), fv.Quantize(2, block=3, rounding="nearest")),
}


@pytest.mark.parametrize("name", CONTRACTIVE)
def test_one_local_step_is_ef21(name: str) -> None:
    compressor = CONTRACTIVE[name]
    step = safe_step(1 - compressor.error(P))
    found, expected = run(compressor, step, 1.0, 30).x0.numpy(), ef21(compressor, step, 1.0, 30)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CONTRACTIVE)
def test_every_contraction_converges_at_the_stepsize_of_the_theorem(name: str) -> None:
    compressor = CONTRACTIVE[name]
    assert compressor.error(P) < 1
    x = ef21(compressor, safe_step(1 - compressor.error(P)), 1.0, 1000)
    assert float(np.linalg.norm(x - BEST)) < 1e-9 * float(np.linalg.norm(START - BEST))


def test_rounding_at_random_converges_when_the_dual_is_slowed_by_its_error() -> None:
    """C/(1 + e) contracts for every unbiased C, here with e above 1; so a is divided by 1 + e."""
    compressor = fv.Quantize(2, block=P)
    wide = fv.Quantize(2, block=64)
    assert wide.error(64) > 1  # at the usual block C itself does not contract
    error = compressor.error(P)
    step = safe_step(1 / (1 + error))
    x = run(compressor, step, 1 / (1 + error), 600).x0.numpy()
    assert float(np.linalg.norm(x - BEST)) < 1e-6 * float(np.linalg.norm(START - BEST))


def test_local_steps_and_partial_participation_converge_as_well() -> None:
    """Not covered by the theorem: the error of C is relative to D_i, which is zero at the solution."""
    costs = fv.Quadratic(torch.from_numpy(A), torch.from_numpy(B))
    history = fv.simulate(
        fv.FedVRA(gamma=2, a=2, d=1),
        problem=costs,
        sampler=fv.Uniform(3),
        work=fv.Steps(5),
        lr=0.03,
        rounds=900,
        compress=fv.Quantize(2, block=P),
        workers=1,
    )
    assert float(np.linalg.norm(history.x0.numpy() - BEST)) < 1e-6
