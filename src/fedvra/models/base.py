"""What a named model is: a function of the shape of one input and the number of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import nn

from fedvra.errors import require
from fedvra.registry import Registry

Shape: TypeAlias = tuple[int, ...]
MakeModel: TypeAlias = Callable[[Shape, int], nn.Module]
"""(shape of one input, number of classes) -> a fresh model with PyTorch's default initialisation."""

MODELS: Registry[MakeModel] = Registry("model", "fedvra.models")
"""Models the command line can name."""


def register(name: str) -> Callable[[MakeModel], MakeModel]:
    """Decorator: make a model known by ``name``."""
    return lambda make: MODELS.add(name, make)


def size_after_convolutions(name: str, input_shape: Shape) -> int:
    """Pixels per channel that two rounds of conv5x5 (no padding) and 2x2 pooling leave of an image [C, H, W].

    >>> size_after_convolutions("cnn", (3, 32, 32))
    25
    """
    require(
        len(input_shape) == 3 and min(input_shape[1:]) >= 16,
        f"the model {name!r} needs images [channels, height, width] of at least 16 x 16 pixels, "
        f"got inputs of shape {list(input_shape)}; use 'mlp' or 'linear'.",
    )
    height, width = ((((side - 4) // 2) - 4) // 2 for side in input_shape[1:])
    return height * width
