"""How much each client does in a round: Q_i^r, the number of its local steps.

The rule needs the true Q_i^r (SCAFFOLD's and FedNova's coefficients contain it), so it is settled here, before the round
starts, for every member of the cohort. Heterogeneous local updates (the paper's HLU) are ``RandomEpochs(1, 5)``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_whole, frozen_array


class Work(Value, ABC):
    """Says Q_i^r. Shapes: N clients, M of them in the cohort.

    Like samplers, these are values that hold what was asked for. Call :meth:`check` once before the first round.

    >>> import numpy as np
    >>> Epochs(2).steps(0, np.array([0, 1]), np.array([100, 30]), batch_size=50, seed=0).tolist()
    [4, 2]
    """

    _read_only: ClassVar[bool] = True

    @abstractmethod
    def steps(
        self, round: int, clients: Ints, samples: Ints, batch_size: int | None, seed: int, drop_last: bool = False
    ) -> Ints:
        """Q_i^r >= 0 of each of ``clients`` [M], which hold ``samples`` [M] samples each.

        ``batch_size`` None means the full batch: one step is one epoch. With ``drop_last`` an epoch ends with its last full
        batch, where there is one.
        """

    @abstractmethod
    def check(self, total: int) -> None:
        """Raise a :class:`UsageError` if this cannot be done by ``total`` clients."""


@dataclass(frozen=True)
class Steps(Work):
    """The number of steps itself.

    Args:
        count: one number for all; a table [N], the same in every round; or a table [R, N], which runs out after R
            rounds. Whole numbers, at least 0: a client that takes part and does 0 steps leaves the model as it was.

    >>> Steps([[1, 2, 3], [4, 5, 6]]).steps(round=1, clients=np.array([0, 2]), samples=None, batch_size=None, seed=0)
    array([4, 6])
    """

    count: int | Sequence[int] | Sequence[Sequence[int]] | Ints

    def __post_init__(self) -> None:
        table = frozen_array(self.count, None, "Steps: the number of steps")
        object.__setattr__(self, "count", table if table.ndim else table.item())

    def steps(
        self, round: int, clients: Ints, samples: Ints, batch_size: int | None, seed: int, drop_last: bool = False
    ) -> Ints:
        table = np.asarray(self.count)
        if table.ndim == 0:
            return np.full(len(clients), int(table), dtype=np.int64)
        if table.ndim == 2:
            require(
                0 <= round < len(table),
                f"Steps: the table has {len(table)} rounds and round {round} was asked for (they count from 0); "
                "run fewer rounds or give a longer table.",
            )
            table = table[round]
        return table[clients].astype(np.int64)

    def check(self, total: int) -> None:
        table = np.asarray(self.count)
        require(
            table.ndim == 0 or (table.ndim <= 2 and table.shape[-1] == total),
            f"Steps: give one number, or a table of shape [N] or [R, N] with N = {total} clients, "
            f"got shape {list(table.shape)}.",
        )
        require(table.dtype.kind in "iuf", f"Steps: steps must be whole numbers, got {self.count!r}.")
        wrong = table[~(np.isfinite(table) & (table >= 0) & (np.rint(table) == table))]
        if wrong.size:
            raise UsageError(f"Steps: steps must be whole numbers, at least 0, got {wrong[0]}.")


@dataclass(frozen=True)
class Epochs(Work):
    r"""``count`` passes over the client's own samples, in batches of which the last may be smaller.

    .. math:: Q_i^r = count \cdot \lceil n_i / B \rceil

    or, with ``drop_last``, :math:`count \cdot \max(1, \lfloor n_i / B \rfloor)`.

    >>> Epochs(2).steps(round=0, clients=np.array([0, 1]), samples=np.array([600, 601]), batch_size=50, seed=0)
    array([24, 26])
    """

    count: int

    def steps(
        self, round: int, clients: Ints, samples: Ints, batch_size: int | None, seed: int, drop_last: bool = False
    ) -> Ints:
        return self.count * _steps_per_epoch(samples, batch_size, drop_last)

    def check(self, total: int) -> None:
        check_whole("Epochs: the number of epochs", self.count)


@dataclass(frozen=True)
class RandomEpochs(Work):
    """A whole number of epochs, uniform in low..high (both included), drawn anew per client and round: the paper's HLU.

    Each client draws from a stream of its own, so what it does depends neither on who else takes part nor on where it is
    run.

    >>> RandomEpochs(1, 5).steps(round=0, clients=np.arange(4), samples=np.full(4, 100), batch_size=50, seed=0)
    array([ 8,  6, 10,  2])
    """

    low: int
    high: int

    def steps(
        self, round: int, clients: Ints, samples: Ints, batch_size: int | None, seed: int, drop_last: bool = False
    ) -> Ints:
        epochs = [stream(seed, Purpose.WORK, round, i).integers(self.low, self.high + 1) for i in clients.tolist()]
        return np.array(epochs, dtype=np.int64) * _steps_per_epoch(samples, batch_size, drop_last)

    def check(self, total: int) -> None:
        check_whole("RandomEpochs: low", self.low)
        check_whole("RandomEpochs: high", self.high)
        require(
            self.low <= self.high,
            f"RandomEpochs: low must be at most high, got low = {self.low} and high = {self.high}.",
        )


@dataclass(frozen=True)
class Speeds(Work):
    r"""Fast and slow clients: each does its own multiple of what ``base`` would have it do, but at least one step.

    .. math:: Q_i^r = \max(1, round(factor_i \cdot Q_{base,i}^r))

    Halves are rounded to the even neighbour.

    Args:
        factors: table [N] of positive numbers, e.g. 0.5 for a client of half the usual speed.
        base: any other kind of work.

    >>> Speeds([0.1, 1, 2], base=Steps(4)).steps(0, np.arange(3), samples=None, batch_size=None, seed=0)
    array([1, 4, 8])
    """

    factors: Sequence[float] | Floats
    base: Work

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", frozen_array(self.factors, None, "Speeds: factors"))

    def steps(
        self, round: int, clients: Ints, samples: Ints, batch_size: int | None, seed: int, drop_last: bool = False
    ) -> Ints:
        base = self.base.steps(round, clients, samples, batch_size, seed, drop_last)
        scaled = np.rint(np.asarray(self.factors)[clients] * base).astype(np.int64)
        return scaled.clip(min=1)

    def check(self, total: int) -> None:
        factors = np.asarray(self.factors)
        require(
            factors.shape == (total,),
            f"Speeds: factors must be a table of {total} numbers (one per client), got shape {list(factors.shape)}.",
        )
        if factors.dtype.kind not in "iuf" or not ((factors > 0) & np.isfinite(factors)).all():
            raise UsageError("Speeds: factors must be positive, finite numbers.")
        require(isinstance(self.base, Work), f"Speeds: base must be Steps, Epochs or other work, got {self.base!r}.")
        self.base.check(total)


def parse_epochs(text: str) -> Work:
    """Epochs as the command line writes them: a number, or a range to draw from.

    >>> parse_epochs("2"), parse_epochs("1-5")
    (Epochs(count=2), RandomEpochs(low=1, high=5))
    """
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text, flags=re.ASCII)
    if match is None:
        raise UsageError(f"epochs must be a whole number such as 2, or a range such as 1-5, got {text!r}.")
    low, high = match.groups()
    work = Epochs(int(low)) if high is None else RandomEpochs(int(low), int(high))
    work.check(total=1)  # how many epochs are sensible does not depend on the number of clients
    return work


def _steps_per_epoch(samples: Ints, batch_size: int | None, drop_last: bool) -> Ints:
    if batch_size is None:
        return np.ones(len(samples), dtype=np.int64)
    require(batch_size >= 1, f"the batch size must be at least 1, got {batch_size}.")
    samples = np.asarray(samples, dtype=np.int64)
    every = -(-samples // batch_size)
    return np.where(samples >= batch_size, samples // batch_size, every) if drop_last else every
