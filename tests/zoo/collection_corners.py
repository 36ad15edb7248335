"""Corners: odd ways to read a value, to hold state, to treat the batch, and targets that are easily misread."""

from __future__ import annotations

import copy
import threading

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import prune

from zoo.cases import Case, mlp, padded_words, vectors
from zoo.collection_losses import Named
from zoo.collection_python import Net


class AllClose(Net):
    def between(self, h: Tensor) -> Tensor:
        return h if torch.allclose(h.detach().mean(), h.new_zeros(()), atol=0.05) else h * 0.5


class ListIndex(Net):
    """A tensor as the index of a list and as the end of a range."""

    def between(self, h: Tensor) -> Tensor:
        place = (h.detach().sum(1) > 0).sum()
        return h * [0.5, 0.8, 1.1, 1.4, 1.7, 2.0, 2.3, 2.6, 2.9][place] + len(range(place))


class Unique(Net):
    def between(self, h: Tensor) -> Tensor:
        return h / len(torch.unique(h.detach().round()))


class DeepCopy(Net):
    """A momentum copy made in the forward pass."""

    def between(self, h: Tensor) -> Tensor:
        still = copy.deepcopy(self.a).requires_grad_(False)
        return h + still.weight.sum(1)


class ReadData(Net):
    """Through ``.data``, past autograd."""

    def between(self, h: Tensor) -> Tensor:
        return h * (1 + self.b.weight.data.norm())


class WrittenData(Net):
    """Weights clipped in the forward pass, as in the first Wasserstein GAN."""

    def forward(self, x: Tensor) -> Tensor:
        self.b.weight.data.clamp_(-0.2, 0.2)
        return super().forward(x)


class Cache(Net):
    """A table made with the first call and kept."""

    def setup(self) -> None:
        self.table: Tensor | None = None

    def between(self, h: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0.5, 1, 10, dtype=h.dtype)
        return h * self.table


class Locked(Net):
    """An attribute that cannot be copied."""

    def setup(self) -> None:
        self.lock = threading.Lock()

    def between(self, h: Tensor) -> Tensor:
        with self.lock:
            return h * 2


class ArrayState(Net):
    """State in a NumPy array, changed in place."""

    def setup(self) -> None:
        self.counts = np.zeros(3)

    def between(self, h: Tensor) -> Tensor:
        self.counts[1] += 1
        return h * float(1 + 0.3 * self.counts.sum())


class Helper:
    def __init__(self) -> None:
        self.calls = 0

    def scale(self) -> float:
        self.calls += 1
        return 1 + 0.3 * self.calls


class HelperState(Net):
    """State in an object that is no module."""

    def setup(self) -> None:
        self.helper = Helper()

    def between(self, h: Tensor) -> Tensor:
        return h * self.helper.scale()


class InputInPlace(Net):
    """The batch itself is written to."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.5).add_(0.1)
        return super().forward(x)


def targets_in_place(out: Tensor, y: Tensor) -> Tensor:
    y += 1
    y %= 3
    return F.cross_entropy(out, y)


def pruned() -> nn.Module:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", amount=0.4)
    return model


class Nones(Net):
    """Buffers and parameters that are None, and a constant that is frozen and whole."""

    def setup(self) -> None:
        self.register_buffer("nothing", None)
        self.register_parameter("bias", None)
        self.order = nn.Parameter(torch.arange(9, -1, -1), requires_grad=False)

    def between(self, h: Tensor) -> Tensor:
        return h[:, self.order]


class HalfFrozen(Net):
    """A frozen base in bfloat16 under a trained head: how large models are fine-tuned."""

    def setup(self) -> None:
        self.a.to(torch.bfloat16).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x.to(torch.bfloat16)).to(x.dtype)))


def frozen_affine() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))
    model[1].requires_grad_(False)
    return model


def some_ignored(n: int) -> tuple[Tensor, Tensor]:
    """One label for each sample, and a few of them -100."""
    inputs, labels = vectors(n)
    labels[[1, 9, 17]] = -100
    return inputs, labels


def column(n: int) -> tuple[Tensor, Tensor]:
    """A yes or no in a column [n, 1] of whole numbers, as the output of the model is."""
    inputs, _ = vectors(n)
    return inputs, (inputs[:, :1] > 0).long()


def truths(n: int) -> tuple[Tensor, Tensor]:
    inputs, _ = vectors(n)
    return inputs, inputs[:, :4] > 0.1


def short_labels(n: int) -> tuple[Tensor, Tensor]:
    inputs, labels = vectors(n)
    return inputs, labels.to(torch.int32)


def masked_words(n: int) -> tuple[dict[str, Tensor], Tensor]:
    inputs, targets = padded_words(n)
    return {**inputs, "attention_mask": inputs["attention_mask"].bool()}, targets


def each_sample(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none")


BCE = F.binary_cross_entropy_with_logits
CASES = [
    Case("allclose", AllClose, vectors, eager=True),
    Case("index-of-list", ListIndex, vectors, eager=True, lr=0.02),
    Case("unique", Unique, vectors, eager=True),
    Case("deepcopy-inside", DeepCopy, vectors),
    Case("data-read", ReadData, vectors),
    Case("data-written", WrittenData, vectors),
    Case("cache", Cache, vectors),
    Case("lock", Locked, vectors, may_refuse=r"lock|cop(y|ied)"),
    Case("array-state", ArrayState, vectors, eager=True),
    Case("helper-state", HelperState, vectors, eager=True),
    Case("input-in-place", InputInPlace, vectors),
    Case("targets-in-place", mlp, vectors, targets_in_place),
    Case("pruned", pruned, vectors),
    Case("none-and-integer", Nones, vectors),
    Case("frozen-in-bfloat16", HalfFrozen, vectors, may_refuse=r"dtype|bfloat16"),
    Case("batchnorm-frozen-affine", frozen_affine, vectors, buffers="average"),
    Case("labels-ignored", mlp, some_ignored),
    Case("bce-integer-column", lambda: nn.Linear(8, 1), column, BCE, float_targets=True),
    Case("bce-of-truths", lambda: nn.Linear(8, 4), truths, BCE, float_targets=True),
    Case("labels-int32", mlp, short_labels),
    Case("inputs-bool-mask", Named, masked_words),
    Case("loss-per-sample", mlp, vectors, each_sample, refused=r"one number|mean"),
]
