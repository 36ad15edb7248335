"""Which uploads are refused: selection rules as values, off unless asked for.

A rule looks at the uploads of a round, each divided by the work behind it, D_i/(eta_i*Q_i), so that a client that took twice as
many steps is not taken for an attacker. A refused upload is not counted: neither x0 nor lam moves by it, and its client's dual
is rolled back, so that lam = sum_i omega_i*lam_i stays exact whatever a rule decides.

Whole uploads only. Coordinate-wise rules (trimmed mean, median) are not offered: the server would count a vector that no client
sent, while each client moves its dual by the one it did send, and lam = sum_i omega_i*lam_i would be broken for good.

A rule sees the uploads a block of columns at a time: a server reads them from disk and need not have them in memory together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core.calls import Language
from fedvra.core.cohort import Floats
from fedvra.core.errors import require, unknown_name
from fedvra.core.objects import Value

Mask = NDArray[np.bool_]
BLOCK = 1 << 22
"""Numbers that are looked at together."""


class Refusal(Value, ABC):
    """A rule: which of these uploads do not count."""

    @abstractmethod
    def outliers(self, blocks: Iterable[Tensor]) -> Mask:
        """True for those to refuse, of finite uploads already divided by eta_i*Q_i: [M, C] after [M, C], at least one."""


@dataclass(frozen=True)
class MedianNorm(Refusal):
    """Refuse uploads longer than ``times`` the median length of the round.

    >>> refused(MedianNorm(3), torch.tensor([[1.0], [-1.2], [0.9], [50.0]]), np.array([0.1, 0.1, 0.1, 0.1])).tolist()
    [False, False, False, True]
    """

    times: float = 3.0

    def __post_init__(self) -> None:
        require(math.isfinite(self.times) and self.times >= 1, f"MedianNorm: times must be >= 1, got {self.times}.")

    def outliers(self, blocks: Iterable[Tensor]) -> Mask:
        norms = reduce(torch.hypot, (torch.linalg.vector_norm(block, dim=1) for block in blocks)).numpy()
        return np.asarray(norms > self.times * np.median(norms))


@dataclass(frozen=True)
class MultiKrum(Refusal):
    """Refuse the ``f`` uploads that lie farthest from the others.

    With m uploads, the score of each is the sum of its squared distances to its m - f - 2 nearest neighbours; the m - f of
    least score are kept. It needs m >= 2f + 3: where fewer came, nothing can be told apart and all are refused.

    Reference: Blanchard, El Mhamdi, Guerraoui, Stainer (2017), "Machine learning with adversaries". Departure: those kept are
    counted with their own weights, not averaged.

    >>> import fedvra as fv
    >>> fv.MultiKrum(f=2)  # simulate(..., refuse=fv.MultiKrum(2))
    MultiKrum(f=2)
    """

    f: int

    def __post_init__(self) -> None:
        require(isinstance(self.f, int) and self.f >= 1, f"MultiKrum: f must be a number >= 1, got {self.f}.")

    def outliers(self, blocks: Iterable[Tensor]) -> Mask:
        squares = reduce(torch.add, map(_squared_distances, blocks))
        m = len(squares)
        if m < 2 * self.f + 3:
            return np.ones(m, dtype=bool)
        near = squares.fill_diagonal_(math.inf).sort(dim=1).values[:, : m - self.f - 2]
        best = torch.argsort(near.sum(1), stable=True)[: m - self.f].numpy()
        return np.isin(np.arange(m), best, invert=True)


RULES: dict[str, type[MedianNorm] | type[MultiKrum]] = {"median-norm": MedianNorm, "multi-krum": MultiKrum}


def refused(rule: Refusal, moves_MP: Tensor, work_M: Floats) -> Mask:
    """Whose D_i a rule refuses, with eta_i*Q_i beside each. One that is not finite is refused by any rule."""
    return refused_in_blocks(rule, partial(_columns, moves_MP), work_M)


def refused_in_blocks(rule: Refusal, columns: Callable[[], Iterator[Tensor]], work_M: Floats) -> Mask:
    """The same of moves that are not at hand together.

    Args:
        columns: gives them from the first to the last column, [M, C] after [M, C], whenever it is called.
    """

    def scaled() -> Iterator[Tensor]:
        for block in columns():
            yield (
                block.double() / torch.as_tensor(work_M, dtype=torch.float64, device=block.device).unsqueeze(1)
            ).cpu()

    finite = reduce(torch.logical_and, (torch.isfinite(block).all(1) for block in scaled()))
    mask = ~finite.numpy()
    if finite.any():
        mask[finite.numpy()] = rule.outliers(block[finite] for block in scaled())
    return np.asarray(mask)


def width_of_blocks(rows: int) -> int:
    """Columns of a block of so many rows."""
    return max(1, BLOCK // rows)


def _columns(moves_MP: Tensor) -> Iterator[Tensor]:
    yield from torch.split(moves_MP, width_of_blocks(len(moves_MP)), dim=1)


def _squared_distances(block: Tensor) -> Tensor:
    """[M, M], between rows."""
    return torch.cdist(block, block, compute_mode="donot_use_mm_for_euclid_dist").square()


def parse_refusal(text: str) -> Refusal:
    """The rule a name stands for.

    >>> parse_refusal("median-norm:3"), parse_refusal("multi-krum:2")
    (MedianNorm(times=3.0), MultiKrum(f=2))
    """
    return Language("rule of refusal").make(text, _rule_of)


def _rule_of(name: str) -> type[MedianNorm] | type[MultiKrum]:
    if name not in RULES:
        raise unknown_name("rule of refusal", name, RULES)
    return RULES[name]
