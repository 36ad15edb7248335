"""What an algorithm that adapts sees of a finished round and carries to the next: a few numbers and one vector.

Nothing is sent for it. It is part of the server's state, so a run resumes to the same bits, and every engine fills it by
:func:`remember`, so that all of them adapt alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedvra.core.cohort import Cohort
from fedvra.core.errors import require

if TYPE_CHECKING:  # algorithms are named, and refused, without waiting for torch
    import torch
    from torch import Tensor

VERSION = 2
"""Of how a checkpoint holds the numbers: by name. In the first they were a vector without names."""
PREFIX = "memory."


@dataclass(frozen=True)
class Seen:
    """Scalars of a round whose replies were counted."""

    move: float
    """|S|^2, where S = sum_A omega_i*w_i*D_i is the sum of uploads in the server's step."""
    last: float | None
    """|S|^2 of the round before; None in the first."""
    product: float | None
    """Inner product of this S and the last."""
    dual: float
    """|lam|^2 after the round."""
    loss: float
    """The mean training loss of the round, which comes with the uploads."""

    @property
    def back(self) -> float:
        """-<S, last S>/|last S|^2: how much of the last S this one takes back, 1 being all of it; 0 where there is no last.

        Along a direction in which x0 is multiplied by -q from round to round, it is q.
        """
        if self.product is None or not self.last:
            return 0.0
        back = -self.product / self.last
        return back if math.isfinite(back) else 0.0


@dataclass(frozen=True)
class Memory:
    """Empty for algorithms that do not adapt, and before the first round."""

    numbers: Mapping[str, float] = field(default_factory=dict)
    move: Tensor | None = None
    """S of the last counted round."""

    def tensors(self) -> dict[str, Tensor]:
        """As a checkpoint holds it, each number under its own name; nothing where it is empty."""
        if self.move is None:
            return {}
        import torch

        named = {f"{PREFIX}{name}": torch.tensor(x, dtype=torch.float64) for name, x in self.numbers.items()}
        return {"memory_version": torch.tensor(VERSION), "memory_move": self.move, **named}

    def to(self, device: torch.device) -> Memory:
        return self if self.move is None else Memory(self.numbers, self.move.to(device))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Memory:
        """From what :meth:`tensors` gave."""
        _require_readable("memory" not in tensors, "numbers without names")
        if "memory_version" not in tensors:
            return cls()
        version = int(tensors["memory_version"])
        _require_readable(version == VERSION, f"version {version} of them")
        named = {key.removeprefix(PREFIX): float(x) for key, x in tensors.items() if key.startswith(PREFIX)}
        return cls(named, tensors["memory_move"])


def _require_readable(condition: bool, found: str) -> None:
    require(
        condition,
        f"the checkpoint holds {found} where this version of fedvra expects the numbers that adapt the stepsizes, version "
        f"{VERSION}: resume with the version that wrote it, or start over.",
    )


def look(move: Tensor, last: Tensor | None, lam: Tensor, loss: float) -> Seen:
    """The scalars of a round, in float64: they must not overflow where the model does not."""
    import torch

    return Seen(
        _square(move),
        None if last is None else _square(last),
        None if last is None else float(torch.dot(move.double(), last.double())),
        _square(lam),
        loss,
    )


def _square(x: Tensor) -> float:
    import torch

    norm = float(torch.linalg.vector_norm(x, dtype=torch.float64))
    return norm * norm


class Adaptive(ABC):
    """What an algorithm offers besides its coefficients if these depend on earlier rounds, by way of ``cohort.memory``."""

    @property
    @abstractmethod
    def adapts(self) -> bool:
        """False where the hyper-parameters given leave nothing to adapt."""

    @abstractmethod
    def chosen(self, cohort: Cohort) -> dict[str, float | str]:
        """What it chose for this cohort's round, and why, by name: for the record, and so for charts."""

    @abstractmethod
    def remember(self, cohort: Cohort, seen: Seen) -> dict[str, float]:
        """The numbers for the next round by name, from those in ``cohort.memory`` and what was seen of this cohort's round."""


def chosen(algorithm: object, cohort: Cohort) -> dict[str, float | str]:
    """What an algorithm that adapts chose for the round of ``cohort``; nothing for one that does not."""
    return algorithm.chosen(cohort) if isinstance(algorithm, Adaptive) and algorithm.adapts else {}


def remember(algorithm: object, memory: Memory, cohort: Cohort, move: Tensor, lam: Tensor, loss: float) -> Memory:
    """The memory after a round of ``cohort``, given S, the new lam and the loss; empty for algorithms that do not adapt."""
    if not isinstance(algorithm, Adaptive) or not algorithm.adapts:
        return Memory()
    return Memory(algorithm.remember(cohort, look(move, memory.move, lam, loss)), move)
