"""A network for CIFAR-10 with two convolutional and two fully connected layers, as the paper describes its own."""

from __future__ import annotations

from torch import nn

from fedvra.models.base import Shape, register, size_after_convolutions


@register("cnn")
def cnn(input_shape: Shape, classes: int) -> nn.Module:
    """conv5x5 32, pool, conv5x5 64, pool, fc 512, fc K.

    The paper gives no sizes; with these FedVRA learns CIFAR-10 at the speed it reports.

    >>> sum(p.numel() for p in cnn((3, 32, 32), 10).parameters())
    878538
    """
    pixels = size_after_convolutions("cnn", input_shape)
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 32, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * pixels, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )
