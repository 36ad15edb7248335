"""What the theorems take for given, measured at a point: L_i by Lanczos, sigma^2 from minibatch gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Floats, Ints
from fedvra.core.streams import Purpose, stream
from fedvra.problems.oracle import Hessian, Oracle, Point

BASIS = 10
"""Vectors that the Lanczos iteration keeps."""
TOLERANCE = 0.01
"""Of an eigenvalue's residual, over the eigenvalue; its error is then far less."""
DENSE = 2 * BASIS
"""Hessians up to this size are worked out in full."""
DRAWS = 4
"""Minibatch gradients from which a client's sigma^2 is estimated."""


class Estimates(NamedTuple):
    """Per client [n]."""

    L: Floats
    """The largest curvature found at any of the points: a lower bound of L_i where ``whole``."""
    exact: bool
    """L is known, not measured."""
    whole: bool
    """It was measured with all samples of each client."""
    noise: Floats
    """The variance of a local step's gradient: the paper's sigma^2/S for the batch size S of the run."""


def spectral_norm(hessian: Hessian, like: Tensor, seed: int = 0) -> float:
    """The largest absolute eigenvalue, by Lanczos (power iteration that keeps its iterates) from a random start.

    Not more than it is, but for rounding. ``like`` says in which dtype and where.

    >>> A = torch.diag(torch.tensor([1.0, -3.0, 0.5]))
    >>> spectral_norm(Hessian(3, lambda v: A @ v), A)
    3.0
    """
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh  # type: ignore[import-untyped]

    def times(v: Floats) -> Floats:
        product = hessian.times(torch.as_tensor(v.reshape(-1), dtype=like.dtype, device=like.device))
        return np.asarray(product.cpu().double())

    if hessian.width <= DENSE:
        dense = np.stack([times(unit) for unit in np.eye(hessian.width)])
        return float(np.abs(np.linalg.eigvalsh((dense + dense.T) / 2)).max())
    start = stream(seed, Purpose.PROBE).standard_normal(hessian.width)
    reached = float(np.linalg.norm(times(start / np.linalg.norm(start))))
    if reached == 0.0:  # an affine function
        return 0.0
    operator = LinearOperator((hessian.width, hessian.width), matvec=times, dtype=np.float64)
    try:
        found = eigsh(operator, 1, which="LM", v0=start, ncv=BASIS, tol=TOLERANCE, return_eigenvectors=False)
    except ArpackError:  # the last resort is what one step of power iteration says
        return reached
    return float(abs(found[0]))


def estimate(
    oracle: Oracle,
    points: Sequence[Sequence[Point]],
    clients: Ints,
    batch_size: int | None,
    samples: int | None = None,
    seed: int = 0,
) -> Estimates:
    """L_i and the gradient noise of these clients.

    Args:
        points: for each place to look at, a point per client; the greatest curvature counts, and the greatest noise.
        samples: of a client, for its curvature; None takes all.
    """
    exact = [oracle.lipschitz(int(client)) for client in clients]
    L, noise, whole = np.zeros(len(clients)), np.zeros(len(clients)), True
    for place in points:
        for k, (client, point) in enumerate(zip(clients.tolist(), place, strict=True)):
            curvature = exact[k]
            if curvature is None:
                hessian = oracle.hessian(client, point, samples)
                whole &= hessian.whole
                curvature = spectral_norm(hessian, point.x, seed)
            L[k] = max(L[k], curvature)
            noise[k] = max(noise[k], gradient_noise(oracle, client, point, batch_size, seed))
    return Estimates(L, all(known is not None for known in exact), whole, noise)


def gradient_noise(oracle: Oracle, client: int, point: Point, batch_size: int | None, seed: int = 0) -> float:
    """E||g - grad f_i||^2 of one step's gradient g, from a few draws; 0 where steps use the exact gradient."""
    rng = stream(seed, Purpose.PROBE, 1, client)
    draws = [oracle.noisy_gradient(client, point, batch_size, rng) for _ in range(DRAWS)]
    if any(draw is None for draw in draws):
        return 0.0
    mean = oracle.gradient(client, point).double()
    return float(np.mean([float((draw.double() - mean).square().sum()) for draw in draws if draw is not None]))
