"""The network that FedDyn, and FedAvg before it, used for CIFAR-10."""

from __future__ import annotations

from torch import nn

from fedvra.models.base import Shape, register, size_after_convolutions


@register("cnn-feddyn")
def cnn_feddyn(input_shape: Shape, classes: int) -> nn.Module:
    """conv5x5 64, pool, conv5x5 64, pool, fc 384, fc 192, fc K.

    >>> sum(p.numel() for p in cnn_feddyn((3, 32, 32), 10).parameters())
    797962
    """
    pixels = size_after_convolutions("cnn-feddyn", input_shape)
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 64, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * pixels, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    )
