"""What a named model is: a function of the shape of one input and the number of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import nn

from fedvra.core.errors import require
from fedvra.core.registry import Registry

Shape: TypeAlias = tuple[int, ...]
MakeModel: TypeAlias = Callable[[Shape, int], nn.Module]
"""(shape of one input, number of classes) -> a fresh model with PyTorch's default initialisation."""

MODELS: Registry[MakeModel] = Registry("model", "fedvra.models", group="fedvra.models")
"""Models the command line can name."""


def register(name: str) -> Callable[[MakeModel], MakeModel]:
    """Decorator: make a model known by ``name``."""
    return lambda make: MODELS.add(name, make)


def convolutions(name: str, input_shape: Shape, first: int, second: int) -> tuple[list[nn.Module], int]:
    """Layers conv5x5 (no padding), 2x2 pooling and ReLU, twice, then flat; and how many features they leave of an image.

    ReLU comes after the pooling, of which it then sees a quarter: max(relu(x)) = relu(max(x)), to the bit, gradients
    included (an eighth less time for a step of ``cnn`` on CIFAR-10).

    >>> layers, features = convolutions("cnn", (3, 32, 32), 32, 64)
    >>> features
    1600
    """
    require(
        len(input_shape) == 3 and min(input_shape[1:]) >= 16,
        f"the model {name!r} needs images [channels, height, width] of at least 16 x 16 pixels, "
        f"got inputs of shape {list(input_shape)}; use 'mlp' or 'linear'.",
    )
    height, width = ((((side - 4) // 2) - 4) // 2 for side in input_shape[1:])
    layers = [
        nn.Conv2d(input_shape[0], first, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    ]
    return layers, second * height * width
