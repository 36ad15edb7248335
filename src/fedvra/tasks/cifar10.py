"""CIFAR-10 as in the paper: a CNN on augmented photographs."""

from __future__ import annotations

from fedvra.tasks.base import TASKS, Task, classification

PAPERS = "0.5/0.5"
"""With these the paper's speed comes out; with the data's own mean and deviation FedVRA is at 50% in two thirds of the rounds
(docs/reproduce.md)."""

TASKS.add(
    "cifar10-resnet",
    Task(
        "CIFAR-10 with ResNet-18, GroupNorm in the place of BatchNorm",
        classification("cifar10"),
        defaults={"model": "resnet18-gn", "rounds": 200, "lr": 0.03, "targets": (50, 60, 70, 80)},
    ),
)
TASKS.add(
    "cifar10",
    Task(
        "photographs, 32 x 32; the paper's second experiment",
        classification("cifar10"),
        defaults={"model": "cnn", "normalize": PAPERS, "rounds": 200, "targets": (50, 60, 70, 75)},
    ),
)
