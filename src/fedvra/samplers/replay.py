"""Cohorts that are known beforehand: another run's, a log's, or those of a worked example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import UsageError, require
from fedvra.core.validation import frozen_array
from fedvra.samplers.base import (
    SAMPLERS,
    ByNumber,
    Losses,
    Participation,
    Sampler,
    as_clients,
    check_clients,
)

Probabilities: TypeAlias = float | Sequence[float] | Sequence[Sequence[float]] | Floats


@dataclass(frozen=True, init=False)
class Replay(Sampler, ByNumber):
    r"""Round r has exactly the cohort ``cohorts[r]``, in whatever order it is listed and perhaps empty.

    How such cohorts came about is not known here, so p_i^r is what is given; without it ``p_i^r = |A^r| / N``, which would
    hold had they been drawn uniformly: an assumption, hence not ``exact``.

    Args:
        cohorts: one list of client numbers per round. To run for more rounds than there are lists is an error.
        probabilities: None (see above); a number; a table [N]; or one row per round, each a number, N numbers (one per
            client), or as many as the round has clients (one each, in the order in which ``cohorts[r]`` lists them;
            with N clients in the round, the first reading of the two holds).

    >>> replay = Replay([[2, 0], [], [1]], probabilities=[[0.9, 0.1], [], [0.5]])
    >>> replay.draw(round=0, seed=0, total=3, losses=None)
    array([0, 2])
    >>> replay.probabilities(0, np.array([0, 2]), 3, Participation.none(3))
    array([0.1, 0.9])
    """

    cohorts: tuple[Ints, ...]
    by_number = True
    given: Floats | tuple[Floats, ...] | None
    """``probabilities`` as read: one array (a number or [N]) for all rounds, or one for each."""

    # Written by hand because the argument bears the name of the method that answers from it.
    def __init__(self, cohorts: Sequence[Sequence[int]], probabilities: Probabilities | None = None) -> None:
        read = tuple(as_clients(cohort, f"Replay: the cohort of round {r}") for r, cohort in enumerate(cohorts))
        object.__setattr__(self, "cohorts", read)
        object.__setattr__(self, "given", _read(probabilities))

    @property
    def exact(self) -> bool:
        return self.given is not None

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        return np.sort(self._cohort(round))

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        cohort = self._cohort(round)
        if self.given is None:
            return np.full(len(clients), len(cohort) / total)
        row = self.given[round] if isinstance(self.given, tuple) else self.given
        if row.ndim == 0:
            return np.full(len(clients), float(row))
        if len(row) == total:
            return row[clients]
        order = np.argsort(cohort)
        p = np.full(len(clients), np.nan)  # of those who took no part, nothing was said
        members = np.isin(clients, cohort)
        p[members] = row[order[np.searchsorted(cohort, clients[members], sorter=order)]]
        return p

    def check(self, total: int) -> None:
        for r, cohort in enumerate(self.cohorts):
            check_clients(f"Replay: the cohort of round {r}", cohort, total)
        if isinstance(self.given, tuple):
            self._check_rows(self.given, total)
        elif self.given is not None:
            require(
                self.given.shape in ((), (total,)),
                f"Replay: probabilities for all rounds must be one number or {total} (one per client), "
                f"got {self.given.size}; for one row per round give a list of lists.",
            )
        # Only those who take part need a probability: a table may well hold 0 for a client that was away.
        unused = Participation.none(total)
        for r, cohort in enumerate(self.cohorts):
            p = self.probabilities(r, cohort, total, unused)
            wrong = cohort[~((p > 0) & (p <= 1))]
            if wrong.size:
                raise UsageError(
                    f"Replay: probabilities must be in (0, 1] for those who take part, which that of client "
                    f"{wrong[0]} in round {r} is not."
                )

    def _check_rows(self, rows: tuple[Floats, ...], total: int) -> None:
        require(
            len(rows) == len(self.cohorts),
            f"Replay: there are {len(self.cohorts)} cohorts but probabilities for {len(rows)} rounds.",
        )
        for r, (row, cohort) in enumerate(zip(rows, self.cohorts, strict=True)):
            require(
                row.ndim == 0 or row.shape in ((total,), cohort.shape),
                f"Replay: the probabilities of round {r} must be one number, {total} (one per client) or "
                f"{len(cohort)} (one per member of the cohort), got shape {list(row.shape)}.",
            )

    def _cohort(self, round: int) -> Ints:
        require(
            0 <= round < len(self.cohorts),
            f"Replay: there are cohorts for {len(self.cohorts)} rounds (0 to {len(self.cohorts) - 1}) and round {round} "
            "was asked for; run fewer rounds or give more cohorts.",
        )
        return self.cohorts[round]


def _read(probabilities: Probabilities | None) -> Floats | tuple[Floats, ...] | None:
    if probabilities is None:
        return None
    if np.iterable(probabilities) and any(np.iterable(row) for row in probabilities):
        return tuple(
            frozen_array(row, np.float64, f"Replay: the probabilities of round {r}")
            for r, row in enumerate(probabilities)
        )
    return frozen_array(probabilities, np.float64, "Replay: probabilities")


SAMPLERS.add("replay", Replay)
