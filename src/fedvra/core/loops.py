"""A training loop of the user's own in place of a local optimiser, and what it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.optimisers import PLAIN, LocalOptimiser


class Done(NamedTuple):
    """What clients did of their own accord, [M]."""

    steps: Ints
    """Q_i, as counted."""
    carried: Floats
    """T_i, how far a constant unit gradient would have carried them; NaN where their optimiser has no such number."""


@dataclass(frozen=True)
class Loop(LocalOptimiser):
    """The user's own training loop takes the local steps; what it did is counted, and coefficients follow from that.

    Args:
        function: from a :class:`~fedvra.local.own_loop.LocalWork` to the move x_i - x0, ``return work.move()``. On a federation
            the clients have theirs, and the server says ``Loop()``.

    >>> Loop(lambda work: work.solve()).text()
    'loop'
    """

    function: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.function is None or callable(self.function),
            f"Loop needs a function that trains one client, got {self.function!r}.",
        )
        plain = (self.clip, self.lr_decay, self.warmup, self.cosine)
        require(
            plain == (PLAIN.clip, PLAIN.lr_decay, PLAIN.warmup, PLAIN.cosine),
            "a loop of one's own clips, and changes its stepsize, by itself: leave clip, lr_decay, warmup and cosine out.",
        )

    def amounts(self, steps: Ints) -> Floats:
        return steps.astype(np.float64)  # as far as is known before

    def text(self) -> str:
        return "loop"
