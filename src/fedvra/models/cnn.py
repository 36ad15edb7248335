"""A network for CIFAR-10 with two convolutional and two fully connected layers, as the paper describes its own."""

from __future__ import annotations

from torch import nn

from fedvra.models.base import Shape, convolutions, register


@register("cnn")
def cnn(input_shape: Shape, classes: int) -> nn.Module:
    """conv5x5 32, pool, conv5x5 64, pool, fc 512, fc K.

    The paper gives no sizes; with these FedVRA learns CIFAR-10 at the speed it reports.

    >>> sum(p.numel() for p in cnn((3, 32, 32), 10).parameters())
    878538
    """
    layers, features = convolutions("cnn", input_shape, 32, 64)
    return nn.Sequential(*layers, nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, classes))
