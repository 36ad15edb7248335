"""Points of three classes at a few clients, models for them, and the objective of semi-supervised learning written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedvra as fv

CLASSES, FEATURES = 3, 5


def small_data(clients: int = 4, dtype: torch.dtype = torch.float64, n: int = 96) -> fv.FederatedData:
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=n)
    points = rng.normal(size=(n, FEATURES)) + 1.5 * np.eye(CLASSES, FEATURES)[labels]
    pair = torch.as_tensor(points, dtype=dtype), torch.as_tensor(labels)
    return fv.split(pair, fv.Dirichlet(0.5), clients=clients, seed=1, test=pair)


def linear() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(FEATURES, CLASSES).double()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


SETTINGS: dict[str, Any] = {
    "sampler": fv.Uniform(3), "work": fv.Epochs(2), "lr": 0.1, "batch_size": 8, "seed": 3, "workers": 1,
}  # fmt: skip


def objective(problem: fv.SemiSupervised, data: fv.FederatedData, client: int, x: Tensor, y: Tensor) -> Tensor:
    """f_i(x, y_i) of a linear model, transcribed from the docstring term by term."""
    part, mask = data.part(client), problem.has_label(data)
    known, unknown = part[mask[part]], part[~mask[part]]
    counts = np.bincount(data.dataset.targets.numpy()[known], minlength=CLASSES) + 1
    log_prior = torch.tensor(np.log(counts / counts.sum()))
    W, b = x[: CLASSES * FEATURES].view(CLASSES, FEATURES), x[CLASSES * FEATURES :]
    log_q = torch.log_softmax(data.dataset.inputs @ W.T + b, 1)
    total = problem.decay / 2 * x @ x
    for j in known:
        total = total - log_q[j, data.dataset.targets[j]] / len(known)
    for j, row in zip(unknown, y, strict=True):
        inner = -row @ log_q[j] - problem.tau * row @ log_prior + problem.rho / 2 * row @ row
        total = total + problem.mu / len(unknown) * inner
    return total


def unknown_of(problem: fv.SemiSupervised, data: fv.FederatedData, client: int) -> np.ndarray:
    part = data.part(client)
    return part[~problem.has_label(data)[part]]


def slopes(*arguments: Any) -> tuple[Tensor, Tensor]:
    *rest, x, y = arguments
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    return torch.autograd.grad(objective(*rest, x, y), (x, y))


def project_rows(v: np.ndarray) -> np.ndarray:
    """Onto the simplex, by bisection on the threshold: nothing in common with sorting."""
    low, high = v.min(1) - 1, v.max(1)
    for _ in range(200):
        middle = (low + high) / 2
        too_much = np.maximum(v - middle[:, None], 0).sum(1) > 1
        low, high = np.where(too_much, middle, low), np.where(too_much, high, middle)
    return np.maximum(v - high[:, None], 0)
