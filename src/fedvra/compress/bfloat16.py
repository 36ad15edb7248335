"""Half of every number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedvra.compress.base import register
from fedvra.core.compressor import Codes, Compressor, Layout, Shrunk


@register
@dataclass(frozen=True)
class BFloat16(Compressor):
    """Every number rounded to the nearest of eight significant bits.

    >>> BFloat16().apply(torch.tensor([1.0, 1.001, 3.14159]), np.random.default_rng(0))
    tensor([1.0000, 1.0000, 3.1406])
    """

    name: ClassVar[str] = "bfloat16"

    @property
    def unbiased(self) -> bool:
        return False

    def error(self, width: int) -> float:
        """(half a unit in the eighth bit)^2, of numbers that are not smaller than float32 can hold in full."""
        return 2.0**-16

    def layout(self, width: int) -> Layout:
        return Layout((Codes(width, 16),), 0)

    def shrink(self, values_P: Tensor, rng: np.random.Generator) -> Shrunk:
        codes = values_P.to(torch.bfloat16).view(torch.int16).to(torch.int64) & 0xFFFF
        return Shrunk((codes,), values_P[:0])

    def expand(self, shrunk: Shrunk, width: int) -> Tensor:
        (codes,), kept = shrunk
        return codes.to(torch.int16).view(torch.bfloat16).to(kept.dtype)
