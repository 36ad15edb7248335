"""Stepsizes over rounds: a base times decay, warm-up and half a cosine."""

from __future__ import annotations

from dataclasses import dataclass

from fedvra.core.cohort import Cohort, Floats, Setting, resolve
from fedvra.core.errors import require
from fedvra.core.objects import Value
from fedvra.core.schedule import check_schedule, factor
from fedvra.core.validation import check_whole


@dataclass(frozen=True)
class Schedule(Value):
    r"""A stepsize that changes from round to round r = 0, 1, ...:

    .. math:: \eta^r = base\cdot decay^r\cdot
        \begin{cases} (r + 1)/warmup & r < warmup \\
        \tfrac12\big(1 + \cos\pi\tfrac{r - warmup}{cosine - warmup}\big) & \text{after that, where cosine is given} \end{cases}

    Args:
        base: a number, or any other setting, such as one per client.
        decay: by what it is multiplied in each round.
        warmup: rounds over which it rises to its full length.
        cosine: the number of rounds after which half a cosine would reach 0; a run may not be longer.

    >>> import numpy as np
    >>> lr = Schedule(0.1, warmup=2, cosine=6)
    >>> rounds = [Cohort(r, 4, *(np.zeros(1, int) for _ in range(6))) for r in range(6)]
    >>> [round(float(lr(cohort)[0]), 4) for cohort in rounds]
    [0.05, 0.1, 0.1, 0.0854, 0.05, 0.0146]
    """

    base: Setting
    decay: float = 1.0
    warmup: int = 0
    cosine: int | None = None

    def __post_init__(self) -> None:
        check_schedule(self.decay, self.warmup, "rounds")
        if self.cosine is not None:
            check_whole("cosine, in rounds,", self.cosine)
            require(
                self.warmup < self.cosine,
                f"the warm-up ({self.warmup} rounds) must end before the cosine does ({self.cosine} rounds).",
            )

    def __call__(self, cohort: Cohort) -> Floats:
        require(
            self.cosine is None or cohort.round < self.cosine,
            f"the stepsize falls to 0 along a cosine of {self.cosine} rounds: run no more of them, or make it longer.",
        )
        return resolve(self.base, cohort, "lr") * factor(cohort.round, self.decay, self.warmup, self.cosine)
