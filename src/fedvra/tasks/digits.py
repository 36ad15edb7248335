"""Digits of 8 x 8 pixels that come with scikit-learn: a federation that runs in seconds, with nothing to download."""

from __future__ import annotations

from fedvra.tasks.base import TASKS, Task, classification

TASKS.add(
    "digits",
    Task(
        "handwritten digits, 8 x 8; comes with scikit-learn and takes seconds",
        classification("digits"),
        # 50 clients hold 28 samples each, so batches are small and the step is longer than on MNIST.
        defaults={"rounds": 50, "clients": 50, "batch_size": 10, "lr": 0.05, "targets": (80, 90, 95, 97)},
    ),
)
