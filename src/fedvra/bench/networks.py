"""Networks that are timed but not offered by name: each stands for a kind of model that people bring along.

Only torch is needed here, so that every checkout can be timed on the same networks.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import Tensor, nn

Shape = tuple[int, ...]


class Residual(nn.Module):
    """Two 3x3 convolutions with BatchNorm around a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if channels != out or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet(shape: Shape, classes: int) -> nn.Module:
    """conv3x3 16, residual blocks of 16, 32 and 64 channels, mean over the image, fc K.

    >>> sum(p.numel() for p in resnet((3, 32, 32), 10).parameters())
    78042
    """
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


class Recurrent(nn.Module):
    """An LSTM over [B, T, F] whose last output is classified."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(x)[0]
        scores: Tensor = self.head(outputs[:, -1])
        return scores


def lstm(shape: Shape, classes: int) -> nn.Module:
    """LSTM 64, fc K on the last output.

    >>> sum(p.numel() for p in lstm((30, 16), 10).parameters())
    21642
    """
    return Recurrent(shape[-1], 64, classes)


def cnn_groupnorm(shape: Shape, classes: int) -> nn.Module:
    """conv3x3 32, 64, 64, each with GroupNorm, the first two with a pool; mean over the image, fc K.

    >>> sum(p.numel() for p in cnn_groupnorm((3, 32, 32), 10).parameters())
    57290
    """
    layers: list[nn.Module] = []
    channels = shape[0]
    for out, last in ((32, nn.MaxPool2d(2)), (64, nn.MaxPool2d(2)), (64, nn.AdaptiveAvgPool2d(1))):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(8, out), nn.ReLU(), last]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, classes))


def mlp_dropout(shape: Shape, classes: int) -> nn.Module:
    """fc 200, fc 200, fc K, with dropout of a half after each hidden layer.

    >>> sum(p.numel() for p in mlp_dropout((1, 28, 28), 10).parameters())
    199210
    """
    hidden = [nn.Linear(200, 200), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), 200), nn.ReLU(), nn.Dropout(0.5), *hidden, nn.Linear(200, classes)
    )


NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "resnet": resnet,
    "lstm": lstm,
    "cnn-groupnorm": cnn_groupnorm,
    "mlp-dropout": mlp_dropout,
}
