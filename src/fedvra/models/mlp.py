"""The paper's network for MNIST."""

from __future__ import annotations

from math import prod

from torch import nn

from fedvra.models.base import Shape, register


@register("mlp")
def mlp(input_shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 200 rectified units; 784-200-200-10 on MNIST.

    >>> sum(p.numel() for p in mlp((1, 28, 28), 10).parameters())
    199210
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )
