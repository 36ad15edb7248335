"""Which uploads are refused: selection rules as values, off unless asked for.

A rule looks at the uploads of a round, each divided by the work behind it, D_i/(eta_i*Q_i), so that a client that took twice as
many steps is not taken for an attacker. A refused upload is not counted: neither x0 nor lam moves by it, and its client's dual
is rolled back, so that lam = sum_i omega_i*lam_i stays exact whatever a rule decides.

Whole uploads only. Coordinate-wise rules (trimmed mean, median) are not offered: the server would count a vector that no client
sent, while each client moves its dual by the one it did send, and lam = sum_i omega_i*lam_i would be broken for good.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core.calls import Language
from fedvra.core.cohort import Floats
from fedvra.core.errors import require, unknown_name
from fedvra.core.objects import Value

Mask = NDArray[np.bool_]


class Refusal(Value, ABC):
    """A rule: which of these uploads do not count."""

    @abstractmethod
    def outliers(self, uploads_MP: Tensor) -> Mask:
        """True for those to refuse, of finite uploads already divided by eta_i*Q_i."""


@dataclass(frozen=True)
class MedianNorm(Refusal):
    """Refuse uploads longer than ``times`` the median length of the round.

    >>> refused(MedianNorm(3), torch.tensor([[1.0], [-1.2], [0.9], [50.0]]), np.array([0.1, 0.1, 0.1, 0.1])).tolist()
    [False, False, False, True]
    """

    times: float = 3.0

    def __post_init__(self) -> None:
        require(math.isfinite(self.times) and self.times >= 1, f"MedianNorm: times must be >= 1, got {self.times}.")

    def outliers(self, uploads_MP: Tensor) -> Mask:
        norms = torch.linalg.vector_norm(uploads_MP, dim=1).numpy()
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

    def outliers(self, uploads_MP: Tensor) -> Mask:
        m = len(uploads_MP)
        if m < 2 * self.f + 3:
            return np.ones(m, dtype=bool)
        squares = torch.cdist(uploads_MP, uploads_MP, compute_mode="donot_use_mm_for_euclid_dist").square()
        near = squares.fill_diagonal_(math.inf).sort(dim=1).values[:, : m - self.f - 2]
        best = torch.argsort(near.sum(1), stable=True)[: m - self.f].numpy()
        return np.isin(np.arange(m), best, invert=True)


RULES: dict[str, type[MedianNorm] | type[MultiKrum]] = {"median-norm": MedianNorm, "multi-krum": MultiKrum}


def refused(rule: Refusal, moves_MP: Tensor, work_M: Floats) -> Mask:
    """Whose D_i a rule refuses, with eta_i*Q_i beside each. One that is not finite is refused by any rule."""
    scaled = moves_MP.double() / torch.as_tensor(work_M, dtype=torch.float64, device=moves_MP.device).unsqueeze(1)
    finite = torch.isfinite(scaled).all(1).cpu().numpy()
    mask = ~finite
    if finite.any():
        mask[finite] = rule.outliers(scaled.cpu()[torch.from_numpy(finite)])
    return np.asarray(mask)


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
