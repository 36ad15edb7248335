"""``examples/study.py`` by ``fedvra compare examples/study_task.py:task --algorithms fedvra,fedavg,scaffold --seeds 0-2``."""

import numpy as np
import torch

import fedvra as fv

x = np.random.default_rng(0).normal(size=(2000, 12)).astype(np.float32)
y = x[:, :3].argmax(1)  # your two arrays go here
problem = fv.Supervised(lambda: torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)))


def worst_class(outputs, targets):
    return min(float((outputs.argmax(1) == targets)[targets == k].float().mean()) for k in range(3))


def make(options):
    parts = {"test": (x[:400], y[:400]), "validation": 0.1, "clients": options.clients, "seed": options.seed}
    return problem, fv.split((x[400:], y[400:]), options.split, **parts)


usual = {"clients": 20, "cohort": 5, "lr": 0.1, "batch_size": 20, "rounds": 40, "patience": 5, "checkpoint_every": 5}
task = fv.Task("three classes of points", make, usual, metrics={"worst_class": worst_class})
