"""What a recording does not see: values read into Python, aliases, random numbers and state kept in Python."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from zoo.cases import Case, vectors


class Net(nn.Module):
    """Two layers and a place in between where something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 10), nn.Linear(10, 3)
        self.setup()

    def setup(self) -> None:
        """What else the module holds."""

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(torch.tanh(self.a(x))))


class ToList(Net):
    def between(self, h: Tensor) -> Tensor:
        scales = [2.0 if value > 0 else 0.5 for value in h.sum(1).tolist()]
        return h * torch.tensor(scales, dtype=h.dtype)[:, None]


class Ragged(Net):
    """Lengths that follow from the data, and a loop over samples."""

    def forward(self, x: Tensor) -> Tensor:
        lengths = ((x[:, 0] > 0).long() * 3 + 4).tolist()
        return torch.stack(
            [self.b(torch.tanh(self.a(F.pad(row[:n], (0, 8 - n))))) for row, n in zip(x, lengths, strict=True)]
        )


class ToNumpy(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * float(np.abs(h.detach().numpy()).mean() + 0.5)


class AsArray(Net):
    def between(self, h: Tensor) -> Tensor:
        return h + torch.from_numpy(np.sin(np.asarray(h.detach())))


class ArrayFunction(Net):
    """NumPy called on a tensor, without any method of the tensor being named."""

    def between(self, h: Tensor) -> Tensor:
        return h * float(np.tanh(h.detach().mean(0)).sum() + 1)


class Item(Net):
    def between(self, h: Tensor) -> Tensor:
        return h / max(h.norm().item(), 1.0)


class Branch(Net):
    def between(self, h: Tensor) -> Tensor:
        return h if h.sum() > 0 else -0.5 * h


class FloatOf(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * (1 + float(h.detach().max())) + int(h.shape[0] > int(h.detach().abs().sum()))


class Formatted(Net):
    """A choice by the text of a number."""

    def between(self, h: Tensor) -> Tensor:
        return h * (1.5 if f"{h.detach().mean():.3f}".endswith(("1", "3", "5", "7", "9")) else 0.5)


class DataPointer(Net):
    """Straight to the memory, past every interface of the tensor."""

    def between(self, h: Tensor) -> Tensor:
        first = np.from_dlpack(h.detach())[0, 0]
        return h * (1 + abs(float(first)))


class PythonRandom(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * random.uniform(0.5, 1.5)


class LayerDrop(Net):
    def between(self, h: Tensor) -> Tensor:
        return h if random.random() < 0.5 else torch.zeros_like(h) + self.a.bias


class NumpyRandom(Net):
    def between(self, h: Tensor) -> Tensor:
        return h + torch.as_tensor(np.random.normal(size=h.shape), dtype=h.dtype)  # noqa: NPY002


class TorchNoise(Net):
    def between(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn_like(h) if torch.rand(()) < 0.7 else h


class StochasticDepth(Net):
    def between(self, h: Tensor) -> Tensor:
        keep = torch.bernoulli(torch.full((len(h), 1), 0.7, dtype=h.dtype))
        return h * keep / 0.7


class Shuffled(Net):
    def between(self, h: Tensor) -> Tensor:
        mixed = h[torch.randperm(len(h))]
        return 0.7 * h + 0.3 * mixed


class OwnGenerator(Net):
    def setup(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def between(self, h: Tensor) -> Tensor:
        return h * torch.rand(h.shape[1], generator=self.generator, dtype=h.dtype)


class OwnNumpyGenerator(Net):
    def setup(self) -> None:
        self.rng, self.dice = np.random.default_rng(5), random.Random(6)

    def between(self, h: Tensor) -> Tensor:
        return h * float(self.rng.uniform(0.5, 1.5)) + self.dice.random()


class Counter(Net):
    """A schedule by the number of calls."""

    def setup(self) -> None:
        self.calls = 0

    def between(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * (1 + 0.5 * self.calls)


class Memory(Net):
    """A list that grows, inside a dict."""

    def setup(self) -> None:
        self.state: dict[str, Any] = {"means": []}

    def between(self, h: Tensor) -> Tensor:
        self.state["means"].append(h.detach().mean(0))
        return h - torch.stack(self.state["means"]).mean(0)


class MovingAverage(Net):
    """A plain tensor, changed in place; no buffer."""

    def setup(self) -> None:
        self.average = torch.zeros(10)

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h - self.average


class Replaced(MovingAverage):
    """A plain tensor, replaced by another."""

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.average = 0.9 * self.average + 0.1 * h.detach().mean(0)
        return h - self.average


class Aliased(Net):
    """Parameters also held by a plain list and a plain dict, through which they are used."""

    def setup(self) -> None:
        self.plain = [self.a.weight, self.a.bias]
        self.table = {"out": self.b}

    def forward(self, x: Tensor) -> Tensor:
        return self.table["out"](torch.tanh(F.linear(x, self.plain[0], self.plain[1])))


class Outside(Net):
    """A leaf that is no parameter of the module, and is not trained."""

    def setup(self) -> None:
        self.hidden = [torch.ones(10, requires_grad=True)]

    def between(self, h: Tensor) -> Tensor:
        return h * self.hidden[0]


CASES = [
    Case("tolist", ToList, vectors, eager=True),
    Case("ragged", Ragged, vectors, eager=True),
    Case("numpy", ToNumpy, vectors, eager=True),
    Case("asarray", AsArray, vectors, eager=True),
    Case("array-function", ArrayFunction, vectors, eager=True, warns=("__array_wrap__",)),
    Case("item", Item, vectors, eager=True),
    Case("bool", Branch, vectors, eager=True),
    Case("float-of-tensor", FloatOf, vectors, eager=True),
    Case("formatted", Formatted, vectors, eager=True),
    Case("dlpack", DataPointer, vectors, eager=True),
    Case("python-random", PythonRandom, vectors, eager=True),
    Case("layer-drop", LayerDrop, vectors, eager=True),
    Case("numpy-random", NumpyRandom, vectors, eager=True),
    Case("torch-noise", TorchNoise, vectors, eager=True),
    Case("stochastic-depth", StochasticDepth, vectors),
    Case("randperm", Shuffled, vectors),
    Case("own-generator", OwnGenerator, vectors, eager=True),
    Case("own-numpy-generator", OwnNumpyGenerator, vectors, eager=True),
    Case("counter", Counter, vectors, eager=True, lr=0.02),
    Case("growing-list", Memory, vectors, eager=True),
    Case("moving-average", MovingAverage, vectors, eager=True),
    Case("moving-average-replaced", Replaced, vectors, eager=True),
    Case("aliased-parameters", Aliased, vectors),
    Case("leaf-outside", Outside, vectors),
]
