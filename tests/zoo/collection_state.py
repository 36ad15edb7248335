"""State, wherever a module may keep it: containers, iterators, closures, classes, buffers of odd shapes and dtypes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from zoo.cases import Case, mlp, sequences, vectors, words
from zoo.collection_parameters import itself
from zoo.collection_python import Net


class Queue(Net):
    """The last two means, in a deque, and the sizes met so far, in a set."""

    def setup(self) -> None:
        self.recent, self.sizes = deque(maxlen=2), set()

    def between(self, h: Tensor) -> Tensor:
        self.recent.append(h.detach().mean(0))
        self.sizes.add(round(float(h.detach().norm()), 3))
        return h - sum(self.recent) / len(self.recent) + 0.1 * len(self.sizes)


class Cycle(Net):
    def setup(self) -> None:
        self.gains, self.count = itertools.cycle([0.5, 1.0, 2.0]), itertools.count(1)

    def between(self, h: Tensor) -> Tensor:
        return h * next(self.gains) / next(self.count)


class FromGenerator(Net):
    """A generator cannot be copied: restored it cannot be, so it must be refused."""

    def setup(self) -> None:
        self.gains = self.schedule()

    def schedule(self) -> Iterator[float]:
        yield from itertools.count(1)

    def between(self, h: Tensor) -> Tensor:
        return h / next(self.gains)


class OfClass(Net):
    """A counter that all instances share."""

    calls: ClassVar[int] = 0

    def setup(self) -> None:
        type(self).calls = 0

    def between(self, h: Tensor) -> Tensor:
        type(self).calls += 1
        return h * (1 + 0.3 * type(self).calls)


def closure_counter() -> nn.Module:
    """A forward hook that counts in its own closure."""
    model, seen = mlp(), {"calls": 0}

    def hook(_module: nn.Module, _args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        seen["calls"] += 1
        return out * (1 + 0.3 * seen["calls"])

    model[0].register_forward_hook(hook)
    return model


class Nested(Net):
    """A tensor changed in place, deep inside of plain containers."""

    def setup(self) -> None:
        self.memory = {"layers": [{"mean": torch.zeros(10)}]}

    def between(self, h: Tensor) -> Tensor:
        mean = self.memory["layers"][0]["mean"]
        if self.training:
            mean.mul_(0.5).add_(0.5 * h.detach().mean(0))
        return h - mean


class Carried(nn.Module):
    """A recurrent state that is carried from batch to batch, cut off from the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.hidden = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3), None

    def forward(self, x: Tensor) -> Tensor:
        start = None if self.hidden is None else self.hidden.mean(1, keepdim=True).expand(1, len(x), 5).contiguous()
        out, hidden = self.body(x, start)
        self.hidden = hidden.detach()
        return self.head(out[:, -1])


class Extent(Net):
    """Statistics without dimensions, as observers of quantisation keep them."""

    def setup(self) -> None:
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("high", torch.tensor(0.1))

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.low.copy_(torch.minimum(self.low, h.detach().min()))
            self.high.copy_(torch.maximum(self.high, h.detach().max()))
        return (h - self.low) / (self.high - self.low)


class Precise(Net):
    """A statistic in float64, whatever the model has."""

    def setup(self) -> None:
        self.register_buffer("total", torch.zeros(10, dtype=torch.float64))

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.total += h.detach().double().mean(0)
        return h - 0.1 * self.total.to(h.dtype)


class Codebook(nn.Module):
    """VQ-VAE: codes that follow the data by moving averages, and a straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)
        self.register_buffer("codes", torch.randn(6, 4))
        self.register_buffer("sizes", torch.ones(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        nearest = torch.cdist(z.detach(), self.codes).argmin(1)
        chosen = self.codes[nearest]
        if self.training:
            hits = F.one_hot(nearest, 6).to(z.dtype)
            self.sizes.data.mul_(0.9).add_(hits.sum(0), alpha=0.1)
            self.codes.data.lerp_(hits.t() @ z.detach() / hits.sum(0).clamp(min=1)[:, None], 0.1)
        return self.decoder(z + (chosen - z).detach()), (z - chosen.detach()).pow(2).mean()


class ComplexRotary(nn.Module):
    """LLaMA's first way: rotations as a complex constant."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 3)
        angles = torch.outer(torch.arange(6), 1 / 10 ** torch.linspace(0, 1, 4))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        turned = torch.view_as_complex(h.unflatten(-1, (4, 2))) * self.turns.to(
            torch.complex128 if h.dtype == torch.float64 else torch.complex64
        )
        h = torch.view_as_real(turned).flatten(2)
        return self.head((h @ h.transpose(1, 2)).softmax(-1).matmul(h).mean(1))


class Spectrogram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.head = nn.Parameter(torch.ones(30)), nn.Linear(5, 3)
        self.register_buffer("window", torch.hann_window(8))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.stft(x.flatten(1) * self.gain, 8, 4, window=self.window, return_complex=True)
        return self.head(spectrum.abs().pow(2).mean(2).log1p())


class Autocast(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).to(x.dtype)


class Scalar(nn.Module):
    """One number per sample, without a second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.level = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * x + self.level


def line(n: int) -> tuple[Tensor, Tensor]:
    inputs, _ = vectors(n)
    return inputs[:, 0], inputs[:, 0] * 2 - 0.3


def reconstruction(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    return F.mse_loss(out[0], y) + 0.25 * out[1]


CASES = [
    Case("deque-and-set", Queue, vectors, eager=True),
    Case("iterators", Cycle, vectors, eager=True),
    Case("generator-object", FromGenerator, vectors, eager=True, may_refuse=r"gains|generator"),
    Case("class-counter", OfClass, vectors, eager=True, may_refuse=r"calls|state"),
    Case("closure-counter", closure_counter, vectors, eager=True, may_refuse=r"hook|state"),
    Case("nested-tensor", Nested, vectors, eager=True),
    Case("carried-hidden", Carried, sequences, eager=True),
    Case("scalar-statistics", Extent, vectors, buffers="average"),
    Case("scalar-statistics-local", Extent, vectors, buffers="local"),
    Case("statistic-float64", Precise, vectors, buffers="average", may_refuse=r"total"),
    Case("vq-vae", Codebook, itself, reconstruction, buffers="average"),
    Case("complex-buffer", ComplexRotary, words),
    Case("spectrogram", Spectrogram, sequences),
    Case("autocast", Autocast, vectors, single=300),
    Case("inputs-flat", Scalar, line, F.mse_loss),
]
