"""Fashion-MNIST under the settings of MNIST."""

from __future__ import annotations

from fedvra.tasks.base import TASKS, Task, classification

TASKS.add(
    "fashion-mnist",
    Task(
        "articles of clothing, 28 x 28, under the settings of MNIST",
        classification("fashion-mnist"),
        defaults={"targets": (70, 75, 80, 85)},
    ),
)
