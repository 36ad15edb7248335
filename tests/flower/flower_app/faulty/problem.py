"""What the test, the server and the clients agree on."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedvra as fv

CLIENTS = 3
problem = fv.Supervised(lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)))


def settings(cohort: int = CLIENTS) -> dict[str, Any]:
    """Arguments shared by ``simulate`` and ``Strategy``."""
    return {
        "problem": problem,
        "sampler": fv.Full() if cohort == CLIENTS else fv.Uniform(cohort),
        "work": fv.Steps(4),
        "lr": 0.1,
        "batch_size": 5,
        "weights": "samples",
        "seed": 7,
    }


def algorithm() -> fv.Algorithm:
    return fv.FedVRA(gamma=0.5, a=2)


def all_data() -> fv.FederatedData:
    rng = np.random.default_rng(3)
    targets = rng.integers(3, size=90)
    inputs = (rng.normal(size=(3, 6))[targets] + rng.normal(size=(90, 6))).astype(np.float32)
    return fv.split((inputs, targets), fv.DirichletByClass(0.5, min_size=8), clients=CLIENTS, seed=1)


def write_shards(folder: Path) -> None:
    """One file per client, which is all that its node sees."""
    data = all_data()
    for i in range(CLIENTS):
        rows = data.part(i)
        np.savez(folder / f"shard{i}.npz", inputs=data.dataset.inputs[rows], targets=data.dataset.targets[rows])
