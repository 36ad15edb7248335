"""ResNet-18 with GroupNorm: no running statistics, which averaging of weights would not cover."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedvra.core.errors import require
from fedvra.models.base import Shape, register

GROUPS = 32
WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.GroupNorm(GROUPS, width))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


@register("resnet18-gn")
def resnet18_gn(input_shape: Shape, classes: int) -> nn.Module:
    """conv3x3 64, four times two blocks of 64, 128, 256, 512, mean over pixels, fc K; GroupNorm of 32 groups.

    He et al. (2016) as usual for small images: the first convolution is 3x3 and nothing is pooled after it. GroupNorm in the
    place of BatchNorm as in Hsieh et al. (2020), "The non-IID data quagmire of decentralized machine learning".

    >>> sum(p.numel() for p in resnet18_gn((3, 32, 32), 10).parameters())
    11173962
    """
    require(
        len(input_shape) == 3,
        f"the model 'resnet18-gn' needs images [channels, height, width], got inputs of shape {list(input_shape)}; "
        "use 'mlp' or 'linear'.",
    )
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[0], WIDTHS[0], 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, WIDTHS[0]),
        nn.ReLU(),
    ]
    before = WIDTHS[0]
    for width in WIDTHS:
        layers += [Block(before, width, 1 if width == before else 2), Block(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
