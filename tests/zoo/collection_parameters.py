"""What becomes of parameters: frozen, tied, derived from others, of odd shapes, or of kinds that are refused."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from zoo.cases import Case, images, mlp, vectors


def frozen_first() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)
    return model


def frozen_biases() -> nn.Module:
    model = mlp()
    for name, p in model.named_parameters():
        p.requires_grad_(not name.endswith("bias"))
    return model


def only_biases() -> nn.Module:
    """BitFit."""
    model = nn.Sequential(nn.Linear(8, 10), nn.LayerNorm(10), nn.ReLU(), nn.Linear(10, 3))
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    return model


class Backbone(nn.Module):
    """A frozen feature extractor under ``no_grad``, whose BatchNorm stays in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.backbone.requires_grad_(False)
        self.backbone[1].running_mean.normal_()
        self.head = nn.Linear(16, 3)

    def train(self, mode: bool = True) -> Backbone:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.backbone(x).flatten(1)
        return self.head(features)


class LoRA(nn.Module):
    """A low-rank update of a frozen layer."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 3)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * F.linear(F.linear(x, self.down), self.up)


def lora_mlp() -> nn.Module:
    return nn.Sequential(LoRA(nn.Linear(8, 10)), nn.Tanh(), LoRA(nn.Linear(10, 3)))


class Prompt(nn.Module):
    """A learnt prompt before a frozen attention layer, in half of whose parameters nothing may move."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).requires_grad_(False)
        self.prompt, self.head = nn.Parameter(torch.randn(2, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.prompt.expand(len(x), 2, 4), x.view(-1, 2, 4)], 1)
        return self.head(self.layer(h).mean(1))


class Autoencoder(nn.Module):
    """One matrix for the way there and the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.back = nn.Linear(8, 4), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.inward(x)), self.inward.weight.t(), self.back)


def itself(n: int) -> tuple[Tensor, Tensor]:
    inputs, _ = vectors(n)
    return inputs, inputs.clone()


def same_layer_twice() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(8, 3))


def old_weight_norm() -> nn.Module:
    return nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(8, 10)), nn.ReLU(), nn.Linear(10, 3))


def new_weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 10)), nn.ReLU(), nn.Linear(10, 3))


def orthogonal() -> nn.Module:
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


def symmetric() -> nn.Module:
    layer = nn.Linear(8, 8)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 3))


def spectral(old: bool) -> nn.Module:
    wrap = torch.nn.utils.spectral_norm if old else parametrizations.spectral_norm
    return nn.Sequential(wrap(nn.Linear(8, 10)), nn.ReLU(), nn.Linear(10, 3))


class Temperature(nn.Module):
    """A parameter without dimensions, as CLIP's."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 5), nn.Linear(4, 5)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.normalize(self.left(x[:, :4]), dim=1), F.normalize(self.right(x[:, 4:]), dim=1)
        return self.logit_scale.exp() * a @ b.t()


class Scalars(nn.Module):
    """Two of them, one frozen, beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(8, 3), nn.Parameter(torch.tensor(1.5))
        self.offset = nn.Parameter(torch.tensor(0.3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.layer(x) + self.offset * self.gain


def contrastive(outputs: Tensor, _: Tensor) -> Tensor:
    wanted = torch.arange(len(outputs))
    return (F.cross_entropy(outputs, wanted) + F.cross_entropy(outputs.t(), wanted)) / 2


class Containers(nn.Module):
    """Parameters in lists and dicts of torch's own, one of them empty."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8) / 3) for _ in range(2)])
        self.named = nn.ParameterDict({"out": nn.Parameter(torch.randn(8, 3)), "none": nn.Parameter(torch.empty(0, 4))})

    def forward(self, x: Tensor) -> Tensor:
        for w in self.weights:
            x = torch.tanh(x @ w)
        return x @ self.named["out"]


class Unused(nn.Module):
    """Parameters that the loss never meets; those still decay and are still pulled."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.unused(x)
        return self.used(x)


class Strided(nn.Module):
    """A parameter that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8).t())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))


def mixed() -> nn.Module:
    model = mlp()
    model[0].to(torch.bfloat16)
    return nn.Sequential(model[0], Cast(), model[2])


class Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.cfloat))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.filter, 8))


def nothing_to_train() -> nn.Module:
    return mlp().requires_grad_(False)


CASES = [
    Case("frozen-layer", frozen_first, vectors, fast=True),
    Case("frozen-biases", frozen_biases, vectors, fast=True),
    Case("only-biases", only_biases, vectors, fast=True),
    Case("frozen-backbone", Backbone, images),
    Case("frozen-backbone-average", Backbone, images, buffers="average"),
    Case("lora-by-hand", lora_mlp, vectors, fast=True),
    Case("prompt-tuning", Prompt, vectors),
    Case("autoencoder-tied", Autoencoder, itself, F.mse_loss),
    Case("same-layer-twice", same_layer_twice, vectors, fast=True),
    Case("weight-norm-old", old_weight_norm, vectors, warns=(".*weight_norm.* is deprecated",)),
    Case("weight-norm-new", new_weight_norm, vectors),
    Case("orthogonal", orthogonal, vectors),
    Case("symmetric", symmetric, vectors),
    Case("spectral-norm-old", lambda: spectral(True), vectors, buffers="average", may_refuse=r"weight_u|weight_v"),
    Case("spectral-norm-new", lambda: spectral(False), vectors, buffers="average"),
    Case("temperature", Temperature, vectors, contrastive, lr=0.05),
    Case("scalar-parameters", Scalars, vectors),
    Case("parameter-containers", Containers, vectors),
    Case("unused-parameters", Unused, vectors),
    Case("strided-parameter", Strided, vectors),
    Case("lazy", lazy, images, lazy=True, warns=("Lazy modules",)),
    Case("mixed-dtypes", mixed, vectors, refused=r"dtypes|bfloat16"),
    Case("complex-parameters", Complex, vectors, refused=r"complex|filter"),
    Case("nothing-to-train", nothing_to_train, vectors, refused=r"no parameters|frozen|requires_grad"),
]
