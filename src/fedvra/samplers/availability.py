"""Clients that are there at some times and not at others, around any other sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_whole, frozen_array
from fedvra.samplers.base import SAMPLERS, Losses, Participation, Sampler

Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Availability(Sampler):
    r"""The cohort is the inner sampler's draw, less those who are not available in this round.

    There are three ways to say who is available:

    * ``period`` and ``duty``: client i is available in round r if (r + phase_i) mod period < duty * period. The phases
      are drawn once, per client, from the seed: everyone is there for the same number of rounds of every period
      (duty * period rounded, at least 1), at times of their own.
    * ``table`` [R, N] of booleans, which begins again after R rounds (so that a day's log serves for every day).
    * ``function`` (round, clients) -> one boolean for each of those clients. It must depend on its arguments alone.

    Whether a client is available is settled before anyone is drawn, so p_i^r is the *inner* sampler's probability: that
    of taking part in a round in which the client is available, and exact if that is. It is asked for no other round.
    Over all rounds a client takes part less often, by the share of rounds in which it is available; 1/p does not make
    up for that, and a study of bias under availability wants exactly this. (An inner sampler that estimates p from past
    rounds, :class:`PowerOfChoice`, sees the absences in them, and its estimate is the frequency over all rounds.)

    Args:
        inner: any sampler. Its cohort shrinks by those absent, perhaps to nobody; nobody is drawn in their place.
        period: rounds after which the windows repeat.
        duty: the share of each period in which a client is available, in (0, 1].
        table, function: see above.

    >>> from fedvra.samplers import Full
    >>> odd_even = Availability(Full(), function=lambda round, clients: clients % 2 == round % 2)
    >>> odd_even.draw(round=1, seed=0, total=6, losses=None)
    array([1, 3, 5])
    """

    inner: Sampler
    period: int | None = None
    duty: float | None = None
    table: Sequence[Sequence[bool]] | Bools | None = None
    function: Callable[[int, Ints], Any] | None = None

    def __post_init__(self) -> None:
        if self.table is not None:
            object.__setattr__(self, "table", frozen_array(self.table, None, "Availability: the table"))

    @property
    def exact(self) -> bool:
        return self.inner.exact

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        clients = self.inner.draw(round, seed, total, losses)
        return clients[self.available(round, clients, seed, total)]

    def available(self, round: int, clients: Ints, seed: int, total: int) -> Bools:
        """Which of ``clients`` are there in this round."""
        if self.table is not None:
            row = self.table[round % len(self.table)]
            return np.asarray(row, dtype=np.bool_)[clients]
        if self.function is not None:
            answer = np.asarray(self.function(round, clients))
            require(
                answer.shape == clients.shape and answer.dtype == np.bool_,
                f"Availability: the function must return one boolean for each of the {len(clients)} clients asked "
                f"about, got {answer.dtype} of shape {list(answer.shape)} in round {round}.",
            )
            return answer
        assert self.period is not None
        assert self.duty is not None
        rounds_open = max(1, int(np.rint(self.duty * self.period)))
        return (round + _phases(seed, self.period, total)[clients]) % self.period < rounds_open

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        return self.inner.probabilities(round, clients, total, history)

    def check(self, total: int) -> None:
        require(isinstance(self.inner, Sampler), f"Availability: inner must be a sampler, got {self.inner!r}.")
        windows = self.period is not None or self.duty is not None
        given = windows + (self.table is not None) + (self.function is not None)
        require(given == 1, "Availability: give either period and duty, or a table, or a function.")
        if windows:
            require(
                self.period is not None and self.duty is not None,
                "Availability: period and duty go together; give both.",
            )
            assert self.duty is not None
            check_whole("Availability: period", self.period)
            require(0 < self.duty <= 1, f"Availability: duty must be in (0, 1], got {self.duty}.")
        if self.table is not None:
            table = np.asarray(self.table)
            require(
                table.ndim == 2 and len(table) > 0 and table.shape[1] == total,
                f"Availability: the table must have shape [R, N] with N = {total} clients, got {list(table.shape)}.",
            )
            require(
                table.dtype.kind in "biuf" and bool(np.isin(table, (0, 1)).all()),
                "Availability: the table must hold nothing but True and False.",
            )
        require(
            self.function is None or callable(self.function),
            f"Availability: function must be callable as function(round, clients), got {self.function!r}.",
        )
        self.inner.check(total)


@lru_cache(maxsize=4)
def _phases(seed: int, period: int, total: int) -> Ints:
    """Where in its period each client stands in round 0; kept, since every round asks for the same ones."""
    # A round before the first keeps this stream apart from those of cohorts; -period keeps it apart from that of a
    # window of another length around or inside this one.
    phases = stream(seed, Purpose.COHORT, round=-period).integers(period, size=total)
    phases.flags.writeable = False
    return phases


SAMPLERS.add("availability", Availability)
