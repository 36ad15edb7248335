"""What the theorems take for given, measured at a point: L_i by power iteration, sigma^2 from minibatch gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedvra.cohort import Floats, Ints
from fedvra.problems.oracle import Hessian, Oracle, Point
from fedvra.streams import Purpose, stream

ITERATIONS = 30
TOLERANCE = 0.01
"""Power iteration ends when the estimate grows by less than this share in a step."""
DRAWS = 4
"""Minibatch gradients from which a client's sigma^2 is estimated."""


class Estimates(NamedTuple):
    """Per client [n]."""

    L: Floats
    """The largest curvature found at any of the points: a lower bound of L_i, unless ``exact``."""
    exact: bool
    noise: Floats
    """The variance of a local step's gradient: the paper's sigma^2/S for the batch size S of the run."""


def spectral_norm(
    hessian: Hessian, like: torch.Tensor, seed: int = 0, iterations: int = ITERATIONS, tolerance: float = TOLERANCE
) -> float:
    """The largest absolute eigenvalue, by power iteration from a random start: never more, in the end hardly less.

    ``like`` says in which dtype and where.

    >>> A = torch.diag(torch.tensor([1.0, -3.0, 0.5]))
    >>> round(spectral_norm(Hessian(3, lambda v: A @ v), A), 1)
    3.0
    """
    rng = stream(seed, Purpose.PROBE)
    v = torch.as_tensor(rng.standard_normal(hessian.width), dtype=like.dtype, device=like.device)
    norm = 0.0
    for _ in range(iterations):
        w = hessian.times(v / v.norm())
        grown, norm, v = float(w.norm()) / max(norm, 1e-30) - 1, float(w.norm()), w
        if norm == 0.0 or grown < tolerance:  # ||H v|| of a normalised power iterate can only grow
            break
    return norm


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
    L, noise = np.zeros(len(clients)), np.zeros(len(clients))
    for place in points:
        for k, (client, point) in enumerate(zip(clients.tolist(), place, strict=True)):
            known = exact[k]
            found = spectral_norm(oracle.hessian(client, point, samples), point.x, seed) if known is None else known
            L[k] = max(L[k], found)
            noise[k] = max(noise[k], gradient_noise(oracle, client, point, batch_size, seed))
    return Estimates(L, all(known is not None for known in exact), noise)


def gradient_noise(oracle: Oracle, client: int, point: Point, batch_size: int | None, seed: int = 0) -> float:
    """E||g - grad f_i||^2 of one step's gradient g, from a few draws; 0 where steps use the exact gradient."""
    rng = stream(seed, Purpose.PROBE, 1, client)
    draws = [oracle.noisy_gradient(client, point, batch_size, rng) for _ in range(DRAWS)]
    if any(draw is None for draw in draws):
        return 0.0
    mean = oracle.gradient(client, point).double()
    return float(np.mean([float((draw.double() - mean).square().sum()) for draw in draws if draw is not None]))
