"""Small networks and their data, for tests of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import fedvra as fv


def small_data(clients: int = 12, dtype: torch.dtype = torch.float32) -> fv.FederatedData:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(360, 8))
    y = (x[:, 0] + 0.3 * x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 0.5)
    tensors = torch.as_tensor(x, dtype=dtype), torch.as_tensor(y)
    return fv.split(tensors, fv.Dirichlet(0.3), clients=clients, seed=1, test=tensors)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


SETTINGS: dict[str, Any] = {
    "sampler": fv.Uniform(5),
    "work": fv.RandomEpochs(1, 3),
    "lr": 0.05,
    "batch_size": 10,
    "seed": 3,
}
