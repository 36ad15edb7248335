"""The network that FedDyn, and FedAvg before it, used for CIFAR-10."""

from __future__ import annotations

from torch import nn

from fedvra.models.base import Shape, convolutions, register


@register("cnn-feddyn")
def cnn_feddyn(input_shape: Shape, classes: int) -> nn.Module:
    """conv5x5 64, pool, conv5x5 64, pool, fc 384, fc 192, fc K.

    >>> sum(p.numel() for p in cnn_feddyn((3, 32, 32), 10).parameters())
    797962
    """
    layers, features = convolutions("cnn-feddyn", input_shape, 64, 64)
    return nn.Sequential(
        *layers,
        nn.Linear(features, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    )
