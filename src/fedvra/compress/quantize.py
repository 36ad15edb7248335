"""Whole numbers of a few bits, and a scale for every block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedvra.compress.base import COMPRESSORS, register
from fedvra.core.compressor import Codes, Compressor, Layout, Shrunk
from fedvra.core.errors import require
from fedvra.core.validation import check_whole


@register
@dataclass(frozen=True)
class Quantize(Compressor):
    r"""Multiples of a block's scale, from -L to L with :math:`L = 2^{bits-1} - 1`.

    .. math:: C(v)_j = s_b\,\mathrm{round}(v_j / s_b), \qquad s_b = \max_{j \in b} |v_j| / L

    Rounded at random, up with the probability that makes it right on average, C is unbiased, and the errors of clients average
    out. Rounded to the nearest it is not, but never is the error longer than the vector. With two bits there are three levels:
    zero is one of them, so that what did not move is not moved.

    Args:
        bits: per number, 2 to 8.
        block: numbers that share a scale, which takes as much as one number of the model.
        rounding: "stochastic" or "nearest".

    >>> v = torch.tensor([0.1, -2.0, 0.9, 7.0])
    >>> Quantize(bits=4, rounding="nearest").apply(v, np.random.default_rng(0))
    tensor([ 0., -2.,  1.,  7.])
    >>> Quantize(bits=2).nbytes(width=1024, itemsize=4)
    272

    Reference: Alistarh et al., QSGD: communication-efficient SGD via gradient quantization and encoding, NeurIPS 2017 (with
    the greatest number of a block in place of a vector's norm).
    """

    bits: int = 4
    block: int = 256
    rounding: str = "stochastic"

    name: ClassVar[str] = "quantize"

    def __post_init__(self) -> None:
        check_whole("Quantize: bits", self.bits)
        check_whole("Quantize: block", self.block)
        require(2 <= self.bits <= 8, f"Quantize: bits must be 2 to 8, got {self.bits}.")
        require(
            self.rounding in ("stochastic", "nearest"),
            f"Quantize: rounding must be 'stochastic' or 'nearest', got {self.rounding!r}.",
        )

    @property
    def most(self) -> int:
        """L."""
        return (1 << (self.bits - 1)) - 1

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic"

    def error(self, width: int) -> float:
        """Of the worst block: one number is its greatest and exact, the others all t = 1/2 of a step (nearest), or where
        t(1 - t) is most beside L^2 + (block - 1)*t^2 (stochastic).
        """
        others, most = min(self.block, width) - 1, self.most
        if self.unbiased:
            return (math.sqrt(1 + others / most**2) - 1) / 2
        return others / (others + 4 * most**2)

    def contractive(self) -> Compressor:
        return self if self.error(self.block) < 1 else replace(self, rounding="nearest")

    def layout(self, width: int) -> Layout:
        return Layout((Codes(width, self.bits),), -(-width // self.block))

    def shrink(self, values_P: Tensor, rng: np.random.Generator) -> Shrunk:
        width, blocks = len(values_P), -(-len(values_P) // self.block)
        grid = values_P.new_zeros(blocks * self.block)
        grid[:width] = values_P
        grid = grid.view(blocks, self.block)
        scales = grid.abs().amax(1) / self.most if width else grid.new_zeros(0)
        grid.div_(torch.where(scales > 0, scales, 1.0).unsqueeze(1))
        levels = grid.view(-1)[:width]
        if self.unbiased:
            kind = np.float64 if levels.dtype == torch.float64 else np.float32
            levels.add_(torch.from_numpy(rng.random(width, dtype=kind)).to(levels)).floor_()
        else:
            levels.round_()
        levels.clamp_(-self.most, self.most).add_(self.most)
        return Shrunk((levels.to(torch.uint8),), scales)

    def expand(self, shrunk: Shrunk, width: int) -> Tensor:
        (codes,), scales = shrunk
        blocks = len(scales)
        grid = scales.new_zeros(blocks * self.block)
        grid[:width] = codes
        grid[:width] -= self.most
        return grid.view(blocks, self.block).mul_(scales.unsqueeze(1)).view(-1)[:width]


def int8(block: int = 256) -> Quantize:
    """Eight bits to the nearest: for downloads, of which every client is sent the same."""
    return Quantize(8, block, "nearest")


COMPRESSORS.add("int8", int8)
