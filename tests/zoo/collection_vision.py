"""Networks for vectors and images: what most people train first."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from zoo.cases import Case, grey, images, mlp, numbers, pictures, vectors


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3)]


def small_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(45, 3))


def pooled_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, stride=2), nn.ReLU(), *head(6))


class Basic(nn.Module):
    """A residual block as torchvision has it: in-place activations, a projection where the shape changes."""

    def __init__(self, inward: int, outward: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inward, outward, 3, stride, 1, bias=False), norm(outward)
        self.conv2, self.bn2 = nn.Conv2d(outward, outward, 3, 1, 1, bias=False), norm(outward)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inward != outward:
            self.downsample = nn.Sequential(nn.Conv2d(inward, outward, 1, stride, bias=False), norm(outward))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1, bias=False), norm(4), nn.ReLU(inplace=True))
        self.layer1, self.layer2 = Basic(4, 4, 1, norm), Basic(4, 8, 2, norm)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.layer2(self.layer1(self.stem(x))))
        return self.fc(torch.flatten(x, 1))


def groups(width: int) -> nn.Module:
    return nn.GroupNorm(2, width)


class Depthwise(nn.Module):
    """MobileNet's block with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depth = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.project, self.head = nn.Conv2d(8, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.hardswish(self.depth(F.silu(self.expand(x))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3), keepdim=True)))))
        return self.head(self.project(h * gate).mean((2, 3)))


class ConvNeXt(nn.Module):
    """Channels last by permutation, LayerNorm over them, a layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 6, 2, 2), nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)
        self.scale, self.head = nn.Parameter(torch.full((6,), 0.1)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.down(F.gelu(self.up(self.norm(self.mix(x).permute(0, 2, 3, 1))))) * self.scale
        return self.head((x + h.permute(0, 3, 1, 2)).mean((-2, -1)))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.tokens, self.channels = nn.Conv2d(3, 6, 4, 4), nn.Linear(4, 4), nn.Linear(6, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(self.norm(x))).mean(1))


class UNet(nn.Module):
    """Down and up again, with a skip: the answer is an image."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(5, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.down(x))
        h = F.interpolate(F.relu(self.middle(h)), scale_factor=2.0, mode="nearest")[:, :, ::2, ::2] + h
        return self.out(torch.cat([self.up(h), x], 1))


def denoising(n: int) -> tuple[Tensor, Tensor]:
    clean, _ = grey(n)
    return clean + 0.1 * clean.flip(2), clean


def channels_last() -> nn.Module:
    return pooled_cnn().to(memory_format=torch.channels_last)


def batchnorm_mlp(**options: object) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 10), nn.BatchNorm1d(10, **options), nn.ReLU(), nn.Linear(10, 3))


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 3))


def deep_activations() -> nn.Module:
    kinds = [nn.Tanh(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.LeakyReLU(), nn.Softplus(), nn.Mish(), nn.PReLU()]
    return nn.Sequential(*[layer for act in kinds for layer in (nn.Linear(8, 8), act)], nn.Linear(8, 3))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 6), nn.RMSNorm(6), nn.Linear(6, 3))


def convolutions_3d() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 3)
    )


def convolutions_1d() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


def instance_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), *head(4))


CASES = [
    Case("linear", lambda: nn.Linear(8, 3), vectors, fast=True),
    Case("mlp", mlp, vectors, fast=True),
    Case("mlp-without-bias", lambda: nn.Sequential(nn.Linear(8, 3, bias=False)), vectors, fast=True),
    Case("mlp-regression", lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)), numbers, F.mse_loss),
    Case("activations", deep_activations, vectors),
    Case("layer-and-rms-norm", normalised, vectors, fast=True),
    Case("dropout", dropout_mlp, vectors),
    Case("cnn", small_cnn, images, fast=True),
    Case("cnn-of-bytes", small_cnn, pictures, fast=True),
    Case("cnn-global-pooling", pooled_cnn, images, fast=True),
    Case("cnn-channels-last", channels_last, images),
    Case("cnn-1d", convolutions_1d, vectors, fast=True),
    Case("cnn-3d", convolutions_3d, images),
    Case("cnn-instance-norm", instance_norm, images),
    Case("depthwise", Depthwise, images),
    Case("convnext", ConvNeXt, images, fast=True),
    Case("mixer", Mixer, images, fast=True),
    Case("unet", UNet, denoising, F.mse_loss),
    Case("dropout-2d", lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.Dropout2d(0.3), nn.ReLU(), *head(6)), images),
    Case("resnet-groupnorm", lambda: ResNet(groups), images, fast=True),
    Case("resnet-batchnorm-average", lambda: ResNet(nn.BatchNorm2d), images, buffers="average", single=8),
    Case("resnet-batchnorm-local", lambda: ResNet(nn.BatchNorm2d), images, buffers="local", single=8),
    Case("batchnorm-average", batchnorm_mlp, vectors, buffers="average"),
    Case("batchnorm-local", batchnorm_mlp, vectors, buffers="local"),
    Case("batchnorm-cumulative", lambda: batchnorm_mlp(momentum=None), vectors, buffers="average"),
    Case("batchnorm-without-statistics", lambda: batchnorm_mlp(track_running_stats=False), vectors),
    Case("batchnorm-unsaid", batchnorm_mlp, vectors, refused=r"'?1'?.*BatchNorm1d.*buffers="),
]
