"""MNIST as in the paper: 100 clients, 10 of them per round, an MLP."""

from __future__ import annotations

from fedvra.tasks.base import TASKS, Task, classification

TASKS.add("mnist", Task("handwritten digits, 28 x 28; the paper's first experiment", classification("mnist")))
