"""CIFAR-10 as in the paper: a CNN on augmented photographs."""

from __future__ import annotations

from fedvra.tasks.base import TASKS, Task, classification

TASKS.add(
    "cifar10",
    Task(
        "photographs, 32 x 32; the paper's second experiment",
        classification("cifar10"),
        defaults={"model": "cnn", "rounds": 200, "targets": (50, 60, 70, 75)},
    ),
)
