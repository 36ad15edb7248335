"""What an algorithm that adapts sees of a finished round and carries to the next: a few numbers.

Nothing is sent for it. It is part of the server's state, so a run resumes to the same bits, and every engine fills it by
:func:`remember`, so that all of them adapt alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedvra.core.cohort import Cohort
from fedvra.core.errors import require

if TYPE_CHECKING:  # algorithms are named, and refused, without waiting for torch
    from torch import Tensor

VERSION = 3
"""Of what a checkpoint holds: numbers by name. In the first they had no names, in the second there was a vector beside them."""
PREFIX = "memory."


@dataclass(frozen=True)
class Seen:
    """Scalars of a round whose replies were counted."""

    move: float
    """|S|^2, where S = sum_A omega_i*w_i*D_i is the sum of uploads in the server's step."""
    loss: float
    """The mean training loss of the round, which comes with the uploads."""


@dataclass(frozen=True)
class Memory:
    """Empty for algorithms that do not adapt, and before the first round."""

    numbers: Mapping[str, float] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """As a checkpoint holds it, each number under its own name; nothing where it is empty."""
        if not self.numbers:
            return {}
        import torch

        named = {f"{PREFIX}{name}": torch.tensor(x, dtype=torch.float64) for name, x in self.numbers.items()}
        return {"memory_version": torch.tensor(VERSION), **named}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Memory:
        """From what :meth:`tensors` gave."""
        _require_readable("memory" not in tensors, "numbers without names")
        if "memory_version" not in tensors:
            return cls()
        version = int(tensors["memory_version"])
        _require_readable(version == VERSION, f"version {version} of them")
        return cls({key.removeprefix(PREFIX): float(x) for key, x in tensors.items() if key.startswith(PREFIX)})


def _require_readable(condition: bool, found: str) -> None:
    require(
        condition,
        f"the checkpoint holds {found} where this version of fedvra expects the numbers that adapt the stepsizes, version "
        f"{VERSION}: resume with the version that wrote it, or start over.",
    )


def look(move: Tensor, loss: float) -> Seen:
    """The scalars of a round, in float64: they must not overflow where the model does not."""
    import torch

    norm = float(torch.linalg.vector_norm(move, dtype=torch.float64))
    return Seen(norm * norm, loss)


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


def remember(algorithm: object, cohort: Cohort, move: Tensor, loss: float) -> Memory:
    """The memory after a round of ``cohort``, given S and the loss; empty for algorithms that do not adapt."""
    if not isinstance(algorithm, Adaptive) or not algorithm.adapts:
        return Memory()
    return Memory(algorithm.remember(cohort, look(move, loss)))
