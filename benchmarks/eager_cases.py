"""Small networks of the kinds that people train, for `benchmarks/eager.py`; nothing of fedvra is used here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

CLASSES = 10
VOCABULARY = 200


@dataclass(frozen=True)
class Case:
    """A network with data for it."""

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy


def _labels(n: int, high: int = CLASSES) -> Tensor:
    return torch.randint(0, high, (n,))


def vectors(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 64), _labels(n)


def numbers(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 64), torch.randn(n, 1)


def colour(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 16, 16), _labels(n)


def grey(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, 28, 28), _labels(n)


def same_image(n: int) -> tuple[Tensor, Tensor]:
    images = torch.randn(n, 3, 16, 16)
    return images, images.clone()


def masks(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 16, 16), torch.randint(0, 4, (n, 16, 16))


def sequences(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 24, 16), _labels(n)


def words(n: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, VOCABULARY, (n, 24)), _labels(n)


def next_words(n: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, VOCABULARY, (n, 25))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class Around(nn.Module):
    """x + body(x), or body(x) beside x."""

    def __init__(self, *body: nn.Module, beside: bool = False) -> None:
        super().__init__()
        self.body, self.beside = nn.Sequential(*body), beside

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1) if self.beside else F.relu(x + self.body(x))


class Excite(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x.mean((2, 3)))[:, :, None, None]


class Recurrent(nn.Module):
    """An optional embedding, a recurrent layer, a head on the last output or on all."""

    def __init__(self, kind: type[nn.RNNBase], words: bool = False, every: bool = False, **more: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16) if words else nn.Identity()
        self.layer, self.every = kind(16, 48, batch_first=True, **more), every
        self.head = nn.Linear(96 if more.get("bidirectional") else 48, VOCABULARY if every else CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.layer(self.embed(x))[0]
        return self.head(outputs if self.every else outputs[:, -1])


class Attention(nn.Module):
    """Tokens (words, vectors or patches of an image) through a transformer's encoder."""

    def __init__(self, tokens: nn.Module, length: int, dropout: float = 0.0, every: bool = False) -> None:
        super().__init__()
        self.tokens, self.place, self.every = tokens, nn.Parameter(torch.zeros(length, 32)), every
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, VOCABULARY if every else CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens(x) + self.place
        if not self.every:
            return self.head(self.layers(tokens).mean(1))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(tokens, mask, is_causal=True))


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Bag(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 32, sparse=sparse), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x).mean(1))


class Remembering(nn.Module):
    """Gradient checkpointing around the hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*dense(64, 128), *dense(128, 128)), nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


class Branching(nn.Module):
    """Looks at its data in Python, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, CLASSES)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(F.relu(self.one(x) if x.mean().item() > 0 else self.two(x)))


def dense(i: int, o: int, *more: nn.Module) -> list[nn.Module]:
    return [nn.Linear(i, o), *more, nn.ReLU()]


def conv(i: int, o: int, *more: nn.Module, stride: int = 1, size: int = 3, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(i, o, size, stride, size // 2, groups=groups), *more, nn.ReLU()]


def net(*layers: nn.Module | list[nn.Module]) -> nn.Sequential:
    return nn.Sequential(*(part for layer in layers for part in (layer if isinstance(layer, list) else [layer])))


def pooled(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]


def flat(features: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, CLASSES)]


def patches() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 4, 4), nn.Flatten(2), Apply(lambda t: t.transpose(1, 2)))


def hooked() -> nn.Module:
    module = net(dense(64, 128), nn.Linear(128, CLASSES))
    module[0].weight.register_hook(lambda g: g.clamp(-1, 1))
    return module


def frozen() -> nn.Module:
    module = net(conv(3, 16), conv(16, 32, stride=2), pooled(32))
    for p in module[:2].parameters():
        p.requires_grad = False
    return module


def bottleneck(i: int) -> Around:
    return Around(nn.Conv2d(i, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, i, 3, padding=1), nn.BatchNorm2d(i))


B2, POOL = nn.BatchNorm2d, nn.MaxPool2d(2)
SN, WN = parametrizations.spectral_norm, parametrizations.weight_norm

CASES: list[Case] = [
    Case("mlp", lambda: net(dense(64, 128), dense(128, 128), nn.Linear(128, CLASSES)), vectors),
    Case("mlp, regression", lambda: net(dense(64, 128), nn.Linear(128, 1)), numbers, F.mse_loss),
    Case("mlp, dropout", lambda: net(dense(64, 128), nn.Dropout(), nn.Linear(128, CLASSES)), vectors),
    Case("mlp, BatchNorm", lambda: net(dense(64, 128, nn.BatchNorm1d(128)), nn.Linear(128, CLASSES)), vectors),
    Case("mlp, LayerNorm", lambda: net(dense(64, 128, nn.LayerNorm(128)), nn.Linear(128, CLASSES)), vectors),
    Case("mlp, residual", lambda: net(dense(64, 64), Around(nn.Linear(64, 64)), nn.Linear(64, CLASSES)), vectors),
    Case("mlp, six layers", lambda: net(*(dense(64, 64) for _ in range(6)), nn.Linear(64, CLASSES)), vectors),
    Case("mlp, weight_norm", lambda: net(WN(nn.Linear(64, 128)), nn.ReLU(), nn.Linear(128, CLASSES)), vectors),
    Case("mlp, spectral_norm", lambda: net(SN(nn.Linear(64, 128)), nn.ReLU(), nn.Linear(128, CLASSES)), vectors),
    Case("mlp, checkpointed", Remembering, vectors),
    Case("mlp, branches and counts", Branching, vectors),
    Case("mlp, gradient hook", hooked, vectors),
    Case("cnn", lambda: net(conv(3, 16), POOL, conv(16, 32), POOL, flat(512)), colour),
    Case("cnn, BatchNorm", lambda: net(conv(3, 16, B2(16)), POOL, conv(16, 32, B2(32)), POOL, flat(512)), colour),
    Case("cnn, GroupNorm", lambda: net(conv(3, 16, nn.GroupNorm(4, 16)), POOL, conv(16, 32), pooled(32)), colour),
    Case("cnn, InstanceNorm", lambda: net(conv(3, 16, nn.InstanceNorm2d(16)), POOL, flat(1024)), colour),
    Case("cnn, dropout", lambda: net(conv(3, 16), POOL, nn.Dropout2d(0.2), conv(16, 32), POOL, flat(512)), colour),
    Case("cnn, global pooling", lambda: net(conv(3, 16), conv(16, 32, stride=2), pooled(32)), colour),
    Case("cnn, strides", lambda: net(conv(3, 16, stride=2), conv(16, 32, stride=2), flat(512)), colour),
    Case("cnn, depthwise", lambda: net(conv(3, 16), conv(16, 16, groups=16), conv(16, 32, size=1), pooled(32)), colour),
    Case("cnn, squeeze-excite", lambda: net(conv(3, 16), Excite(16), POOL, flat(1024)), colour),
    Case("cnn, dense blocks", lambda: net(conv(3, 16), Around(*conv(16, 16), beside=True), pooled(32)), colour),
    Case("cnn, 5x5", lambda: net(conv(3, 32, size=5), POOL, conv(32, 32, size=5), POOL, flat(512)), colour),
    Case("cnn, frozen below", frozen, colour),
    Case(
        "residual cnn, BatchNorm", lambda: net(conv(3, 16, B2(16)), *(bottleneck(16) for _ in "ab"), pooled(16)), colour
    ),
    Case(
        "residual cnn, GroupNorm",
        lambda: net(conv(3, 16), Around(*conv(16, 16, nn.GroupNorm(4, 16))), pooled(16)),
        colour,
    ),
    Case("autoencoder", lambda: net(conv(3, 16, stride=2), nn.ConvTranspose2d(16, 3, 2, 2)), same_image, F.mse_loss),
    Case("segmentation", lambda: net(conv(3, 16, B2(16)), conv(16, 16), nn.Conv2d(16, 4, 1)), masks),
    Case("grey cnn", lambda: net(conv(1, 16), POOL, conv(16, 16), POOL, flat(784)), grey),
    Case("grey cnn, BatchNorm", lambda: net(conv(1, 16, B2(16)), POOL, conv(16, 16, B2(16)), POOL, flat(784)), grey),
    Case("grey cnn, dropout", lambda: net(conv(1, 16), POOL, nn.Dropout(0.25), flat(3136)), grey),
    Case("vision transformer", lambda: Attention(patches(), 16), colour),
    Case("RNN", lambda: Recurrent(nn.RNN), sequences),
    Case("LSTM", lambda: Recurrent(nn.LSTM), sequences),
    Case("LSTM, both ways", lambda: Recurrent(nn.LSTM, bidirectional=True), sequences),
    Case("LSTM, two layers, dropout", lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.2), sequences),
    Case("GRU", lambda: Recurrent(nn.GRU), sequences),
    Case("GRU, both ways", lambda: Recurrent(nn.GRU, bidirectional=True), sequences),
    Case("GRU, two layers, dropout", lambda: Recurrent(nn.GRU, num_layers=2, dropout=0.2), sequences),
    Case("conv1d", lambda: net(nn.Conv1d(24, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(448, CLASSES)), sequences),
    Case("conv1d, BatchNorm", lambda: net(nn.Conv1d(24, 32, 3), nn.BatchNorm1d(32), nn.ReLU(), flat(448)), sequences),
    Case("transformer", lambda: Attention(nn.Linear(16, 32), 24), sequences),
    Case("transformer, dropout", lambda: Attention(nn.Linear(16, 32), 24, 0.1), sequences),
    Case("words, mean", Bag, words),
    Case("words, sparse gradients", lambda: Bag(sparse=True), words),
    Case("words, LSTM", lambda: Recurrent(nn.LSTM, words=True), words),
    Case("language model, GRU", lambda: Recurrent(nn.GRU, words=True, every=True), next_words, token_loss),
    Case(
        "language model, transformer",
        lambda: Attention(nn.Embedding(VOCABULARY, 32), 24, 0.1, True),
        next_words,
        token_loss,
    ),
]
