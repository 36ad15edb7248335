"""How the uploads of a masked sum are counted: the unit, and the range that a client's numbers have.

A sum of B bits leaves each of m clients (2**(B - 1) - 1)/m levels above 0. A small unit makes them fine, and clips a move that
goes further than expected. Where to draw the line is a guess, made from how far the last round's moves went; moves that jump,
as those of ``auto`` do, go further. A wrong guess costs time and nothing else: what was clipped is missing from lam_i as well
(or is kept in the residual), so it comes with the client's next moves, and by then the unit has followed. Records say which
share of the numbers it was (``clipped``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedvra.core import rule
from fedvra.core.cohort import Cohort, Floats
from fedvra.core.errors import require
from fedvra.core.whole import GRAIN, WIDE, Ring
from fedvra.flower.mask_table import COLUMNS, MaskedSum

FINE = 2.0**-32
"""What 1 is worth among the few numbers that go along with a move."""
FOREMOST = 3
"""The first of these: the loss, how far the move went, which share of it was clipped. Float buffers follow."""
HEADROOM = 4.0
"""With 16 bits the range takes so many times what moves reached on average the last time; what exceeds it is clipped."""
BITS_PER_DOUBLING = 4
"""Of bits beyond 16, each so many double the headroom; the others make units finer."""
SHRINK = 0.5
"""What is expected of moves becomes no smaller than this share of itself in one round: cohorts differ."""
SAME = 1e-9
"""Numbers that differ by a smaller share are one and the same."""
LEVELS = 7
"""At least so many levels above 0, as with compression to four bits."""


@dataclass(frozen=True)
class Scheme:
    """How the uploads of a round are counted."""

    ring: Ring
    first: Floats
    """Weights of the moves in the first sum [M]."""
    unit: float
    grains: int
    ratio: float | None
    """The model's sum as a multiple of the first; None where it takes a second."""
    second: Floats
    second_unit: float
    reach: float

    @classmethod
    def of(cls, secure: MaskedSum, cohort: Cohort, row: rule.Coefficients, reach: float) -> Scheme:
        """For a cohort whose moves are expected to reach so far in any coordinate; 0: as far as gradients of 1 carry them."""
        ring, reach = Ring(secure.bits), reach or float(cohort.carry.max())
        most, far = ring.room(len(cohort)), headroom(secure.bits) * reach
        require(
            most >= LEVELS,
            f"{len(cohort)} clients in a sum of {secure.bits} bits leave each of them {most} levels: use more bits, or fewer "
            "clients.",
        )
        model, dual, nothing = cohort.omega * row.w, cohort.omega * row.alpha, np.zeros(len(cohort))
        if not row.alpha.any():
            return cls(ring, model, _unit(model, far, most), 0, 1.0, nothing, 0.0, reach)
        grains = max(1, round(_unit(dual, far, most) / GRAIN))
        ratios = row.w / np.where(row.alpha > 0, row.alpha, np.nan)
        if ratios.max() - ratios.min() <= SAME * ratios.max():  # false for NaN
            return cls(ring, dual, grains * GRAIN, grains, float(ratios[0]), nothing, 0.0, reach)
        return cls(ring, dual, grains * GRAIN, grains, None, model, _unit(model, far, most), reach)

    def upload_bytes(self, width: int, few: int) -> int:
        """Of one client's upload on the wire."""
        return self.ring.nbytes(width) * (1 if self.ratio is not None else 2) + Ring(WIDE).nbytes(few)

    @property
    def table_bytes(self) -> int:
        """Of the table of clients, which goes to each of them."""
        return len(self.first) * COLUMNS * 8


def headroom(bits: int) -> float:
    """What a range takes, as a multiple of what moves reached the last time.

    >>> headroom(8), headroom(16), headroom(32)
    (4.0, 4.0, 64.0)
    """
    return HEADROOM * 2.0 ** (max(0, bits - 16) // BITS_PER_DOUBLING)


def _unit(weights: Floats, far: float, most: int) -> float:
    return float(weights.max()) * far / most or 1.0
