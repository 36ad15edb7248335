"""The kinds of problem, six small clients each: what ``fv.simulate`` is told about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import boxed
import fedvra as fv
from quadratics import quadratic

CLIENTS, CLASSES, FEATURES, SIDE = 6, 3, 6, 6
UNEQUAL = [1, 4, 2, 3, 5, 2]
"""Steps of each client where they differ."""

Options = dict[str, Any]


def points(dtype: torch.dtype, partition: fv.Partition | None = None, image: bool = False) -> fv.FederatedData:
    """Sixteen samples per client, so that a block of clients has batches of one shape, unless ``partition`` says otherwise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=16 * CLIENTS)
    shape = (1, SIDE, SIDE) if image else (FEATURES,)
    centres = rng.normal(size=(CLASSES, *shape))
    inputs = torch.as_tensor(centres[labels] + rng.normal(size=(len(labels), *shape)), dtype=dtype)
    pair = inputs, torch.as_tensor(labels)
    return fv.split(pair, partition or fv.IID(), clients=CLIENTS, seed=1, test=(pair[0][:40], pair[1][:40]))


def mlp(dtype: torch.dtype, *extra: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), *extra, nn.Linear(8, CLASSES)).to(dtype)


def convnet(dtype: torch.dtype, norm: bool = True) -> nn.Module:
    inner = [nn.BatchNorm2d(4)] if norm else []
    layers = [nn.Conv2d(1, 4, 3), *inner, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)]
    return nn.Sequential(*layers).to(dtype)


class Blocks(boxed.Boxed):
    """With a sixth client, any dtype, and noise in the gradient in x."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        for rows in (self.A, self.B, self.c):
            rows[:] = [row.to(dtype) for row in [*rows, rows[0] / 2]]
        # client 5 has the width of y that its number asks for
        self.B[5] = torch.cat((self.B[5], self.B[5][:, :1] / 3), 1)

    @property
    def clients(self) -> int:
        return CLIENTS

    def x_start(self) -> Tensor:
        return super().x_start().to(self.A[0].dtype)

    def y_start(self, client: int) -> Tensor:
        return super().y_start(client).to(self.A[0].dtype)

    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        exact = super().gradient_x(client, x, y, rng)
        return exact if rng is None else exact + torch.from_numpy(rng.normal(size=tuple(x.shape))).to(x.dtype)


def supervised(dtype: torch.dtype, path: str, **options: Any) -> Options:
    problem = fv.Supervised(lambda: mlp(dtype), **options)
    return {
        "problem": problem,
        "data": points(dtype),
        "batch_size": 8,
        "lr": 0.1,
        "solver": fv.SolverSettings(path=path),
    }


def pictures(dtype: torch.dtype, **options: Any) -> Options:
    problem = fv.Supervised(lambda: convnet(dtype), **{"buffers": "average", **options})
    return {"problem": problem, "data": points(dtype, image=True), "batch_size": 8, "lr": 0.05}


def quadratics(dtype: torch.dtype) -> Options:
    A, b = quadratic(CLIENTS)
    return {"problem": fv.Quadratic(torch.as_tensor(A, dtype=dtype), torch.as_tensor(b, dtype=dtype)), "lr": 0.05}


def semisupervised(dtype: torch.dtype, **options: Any) -> Options:
    problem = fv.SemiSupervised(lambda: mlp(dtype), hidden=0.5, **options)
    return {"problem": problem, "data": points(dtype), "batch_size": 8, "lr": 0.1}


def clusters(dtype: torch.dtype) -> Options:
    """It computes in float32 whatever the data is in."""
    return {"problem": fv.Clustering(points(dtype), CLASSES, steps_y=2, restarts=1), "lr": 0.1}


PROBLEMS = {
    "block": lambda dtype: supervised(dtype, "auto"),
    "traced": lambda dtype: supervised(dtype, "traced"),
    "eager": lambda dtype: supervised(dtype, "eager"),
    "pictures": pictures,
    "quadratic": quadratics,
    "two-block": lambda dtype: {"problem": Blocks(dtype), "lr": 0.02},
    "semisupervised": semisupervised,
    "clustering": clusters,
}
