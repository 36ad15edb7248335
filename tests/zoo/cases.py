"""What a case of the zoo is: a model, a loss, data for it, and what may rightly happen to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Tree = Any
"""A tensor, or a dict or tuple of trees, with one first dimension."""
Loss = Callable[[Any, Any], Tensor]
Subject = tuple[nn.Module, Loss]


@dataclass(frozen=True, eq=False)
class Case:
    """One model with its loss and data. Factories are called under a fixed seed and the default dtype of the test."""

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[int], tuple[Tree, Tree]]
    """So many samples: (inputs, targets); floats in float64."""
    loss: Loss = F.cross_entropy
    loss_of: Callable[[nn.Module], Loss] | None = None
    """For losses that hold on to the module, or keep something of their own: made anew with every module."""
    buffers: str | None = None
    """The policy that is asked for; None: nothing is said."""
    refused: str = ""
    """The pattern of the UsageError with which this must end."""
    may_refuse: str = ""
    """A refusal with this pattern is as good as right numbers."""
    eager: bool = False
    """No recording can be right: the path must be the eager one."""
    fast: bool = False
    """Nothing here is a reason to leave the recorded paths."""
    tolerance: float = 1e-9
    """In float64, of each tensor's scale."""
    single: float = 1.0
    """Factor on the tolerance in float32; 0: too sensitive to be compared there."""
    lr: float = 0.1
    shapes: tuple[str, ...] = ("even", "odd", "whole")
    float_targets: bool = False
    """Integer targets that the loss wants as floats."""
    lazy: bool = False
    """Its initial weights are only known to the run."""
    warns: tuple[str, ...] = ()
    """Warnings of other libraries that the model cannot help."""

    def build(self, dtype: torch.dtype) -> Subject:
        """The module and its loss, the same with every call."""
        with quiet_generators(0), default_dtype(dtype):
            module = self.make()
            return module, self.loss if self.loss_of is None else self.loss_of(module)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def quiet_generators(seed: int) -> Iterator[None]:
    """Seed the three global generators, and put them back as they were afterwards."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        seed_all(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


# -- data --------------------------------------------------------------------------------------------------------------


def vectors(n: int, width: int = 8, classes: int = 3) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.normal(size=(n, width))), torch.from_numpy(rng.integers(0, classes, n))


def images(n: int, channels: int = 3, side: int = 8, classes: int = 3) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(2)
    return torch.from_numpy(rng.normal(size=(n, channels, side, side))), torch.from_numpy(rng.integers(0, classes, n))


def grey(n: int) -> tuple[Tensor, Tensor]:
    return images(n, channels=1)


def pictures(n: int) -> tuple[Tensor, Tensor]:
    """Bytes, as photographs are stored."""
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, size=(n, 3, 8, 8), dtype=np.uint8)
    return torch.from_numpy(pixels), torch.from_numpy(rng.integers(0, 3, n))


def words(n: int, length: int = 6, vocabulary: int = 11, classes: int = 3) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(4)
    ids = rng.integers(1, vocabulary, size=(n, length))
    return torch.from_numpy(ids), torch.from_numpy(rng.integers(0, classes, n))


def sequences(n: int, length: int = 5, width: int = 6) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(5)
    return torch.from_numpy(rng.normal(size=(n, length, width))), torch.from_numpy(rng.integers(0, 3, n))


def padded(n: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Sequences with the length of each."""
    values, targets = sequences(n)
    lengths = torch.from_numpy(np.random.default_rng(6).integers(1, 6, n))
    return (values, lengths), targets


def padded_words(n: int) -> tuple[dict[str, Tensor], Tensor]:
    """Token numbers with a mask, as tokenizers give them."""
    ids, targets = words(n)
    lengths = torch.from_numpy(np.random.default_rng(7).integers(2, 7, n))
    mask = (torch.arange(6)[None] < lengths[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, targets


def next_words(n: int, ignored: bool = False) -> tuple[Tensor, Tensor]:
    """Token numbers, and for each position the next one; -100 where nothing is asked for."""
    ids, _ = words(n)
    targets = ids.roll(-1, 1).clone()
    targets[:, -1] = -100
    if ignored:
        targets[torch.from_numpy(np.random.default_rng(8).random((n, 6)) < 0.4)] = -100
        targets[:, 0] = ids[:, 1]  # nobody is without a target
    return ids, targets


def numbers(n: int, width: int = 8) -> tuple[Tensor, Tensor]:
    """A regression: float64 targets of shape [n, 1]."""
    inputs, _ = vectors(n, width)
    return inputs, (inputs[:, :1] * 0.7 - inputs[:, 1:2] + 0.1)


def bits(n: int) -> tuple[Tensor, Tensor]:
    """Several yes-or-no questions for each sample, answered in int64."""
    inputs, _ = vectors(n)
    return inputs, (inputs[:, :4] > 0.2).long()


def mlp(width: int = 8, hidden: int = 10, classes: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over positions, without those marked -100."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-100)
