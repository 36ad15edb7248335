"""The greatest numbers of a vector, and where they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedvra.compress.base import register
from fedvra.core.compressor import BadCodeError, Codes, Compressor, Layout, Shrunk
from fedvra.core.errors import require


@register
@dataclass(frozen=True)
class TopK(Compressor):
    r"""The share of the numbers that are greatest in magnitude; the others are taken for zero.

    .. math:: C(v)_j = v_j \text{ for the } k = \lceil share \cdot P \rceil \text{ greatest } |v_j|, \text{ else } 0

    Places are sent as one bit for every number, or as their numbers where that is shorter.

    Args:
        share: in (0, 1].

    >>> TopK(0.5).apply(torch.tensor([0.1, -2.0, 0.9, 7.0]), np.random.default_rng(0))
    tensor([ 0., -2.,  0.,  7.])

    Reference: Stich, Cordonnier, Jaggi, Sparsified SGD with memory, NeurIPS 2018.
    """

    share: float

    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        require(
            isinstance(self.share, int | float) and 0 < self.share <= 1,
            f"TopK: share must be in (0, 1], such as 0.1, got {self.share!r}.",
        )

    @property
    def dense(self) -> bool:
        return False

    @property
    def unbiased(self) -> bool:
        return False

    def error(self, width: int) -> float:
        return 1 - self._count(width) / width if width else 0.0

    def _count(self, width: int) -> int:
        return min(width, math.ceil(self.share * width))

    def layout(self, width: int) -> Layout:
        count = self._count(width)
        return Layout((Codes(width, 1) if self._as_mask(width) else Codes(count, _bits(width)),), count)

    def _as_mask(self, width: int) -> bool:
        """Whether one bit for every number is no longer than the numbers of the places."""
        return width <= self._count(width) * _bits(width)

    def shrink(self, values_P: Tensor, rng: np.random.Generator) -> Shrunk:
        width = len(values_P)
        places = torch.topk(values_P.abs(), self._count(width), sorted=False).indices.sort().values
        if not self._as_mask(width):
            return Shrunk((places,), values_P[places])
        mask = torch.zeros(width, dtype=torch.uint8, device=values_P.device)
        mask[places] = 1
        return Shrunk((mask,), values_P[places])

    def expand(self, shrunk: Shrunk, width: int) -> Tensor:
        (codes,), kept = shrunk
        places = codes.nonzero().view(-1) if self._as_mask(width) else codes.long()
        right = len(places) == len(kept) and bool(torch.all(places[1:] > places[:-1]))
        if not right or (len(places) and not 0 <= int(places[-1]) < width):
            raise BadCodeError(f"its places are not {len(kept)} of {width} in ascending order")
        found = kept.new_zeros(width)
        found[places] = kept
        return found


def _bits(width: int) -> int:
    """Of a place among so many."""
    return max(1, (width - 1).bit_length())
