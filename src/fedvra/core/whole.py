r"""Numbers in whole units: sums that are exact, and the same whatever the order of their terms.

Sums of floats round, and what many clients add up differs from what each of them keeps. Whole numbers do not: where a client
moves its dual by a whole number of *grains*, and the server moves lam by the sum of these numbers, the gap
lam - sum_i omega_i*lam_i is exactly 0 (:func:`fedvra.core.rule.whole_dual_step`). Masked sums need whole numbers anyway, for
masks that hide everything exist only modulo something.

A dual is kept as :math:`L_i = \omega_i\lambda_i / g` in 64 bits, with the grain :math:`g = 2^{-40}`: from 9e-13 to 4e6. A move
is sent as

.. math:: q_i = \mathrm{clip}_{\pm M}\ \mathrm{round}(v_i D_i / u), \qquad M = \lfloor (2^{B-1} - 1)/m \rfloor

for a weight :math:`v_i` and a unit u that all m clients of the sum have in common, rounded at random so that it is right on
average. M is such that no sum over m clients leaves the range of B bits, so its remainder modulo :math:`2^B` tells it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core.bits import Bytes, packed, packed_bytes, unpacked
from fedvra.core.errors import FedvraError, require

GRAIN = 2.0**-40
"""What 1 is worth in a dual that is kept in whole units."""
LARGEST = 1 << 62
"""No dual may be of more grains."""
WIDE = 64
"""Bits of numbers that are sent whole: duals, and the few that go along with a move."""

Words = NDArray[np.uint64]
"""Remainders modulo 2**bits."""


class OutOfRangeError(FedvraError):
    """A number that is not finite, or too great to be written in whole units."""


def to_whole(values: Tensor, grain: float = GRAIN) -> Tensor:
    """The nearest whole numbers of grains, in 64 bits.

    >>> to_whole(torch.tensor([1.0, -0.25, 0.3]), grain=0.25).tolist()
    [4, -1, 1]
    """
    counted = values.double() / grain
    if not bool((counted.abs() < LARGEST).all()):  # false for NaN too
        raise OutOfRangeError(
            f"a number is not finite, or greater than {LARGEST * grain:.3g}, and cannot be written in whole units."
        )
    return counted.round().long()


def to_real(whole: Tensor, dtype: torch.dtype, grain: float = GRAIN) -> Tensor:
    """What so many grains are worth."""
    return (whole.double() * grain).to(dtype)


def check_range(whole: Tensor) -> Tensor:
    """Give it back, unless it is about to leave the range of 64 bits."""
    if whole.numel() and not bool(((whole < LARGEST) & (whole > -LARGEST)).all()):
        raise OutOfRangeError(
            "a dual in whole units has left the range of 64 bits: the run diverged, lower its stepsizes."
        )
    return whole


@dataclass(frozen=True)
class Units:
    """How one client's vector D becomes whole numbers q, which stand for q*unit = weight*D."""

    weight: float
    unit: float
    most: int
    """M: \\|q\\| is no more."""

    def count(self, move: Tensor, rng: np.random.Generator) -> Tensor:
        """q, rounded at random so that it is right on average, and clipped.

        >>> rng = np.random.default_rng(0)
        >>> Units(weight=0.5, unit=0.25, most=7).count(torch.tensor([1.0, -0.5, 9.0]), rng).tolist()
        [2, -1, 7]
        """
        scaled = move.double() * (self.weight / self.unit)
        scaled += torch.from_numpy(rng.random(len(move))).to(scaled.device)
        if not bool(torch.isfinite(scaled).all()):
            raise OutOfRangeError("the move is not finite, and cannot be written in whole units: lower the stepsizes.")
        return scaled.floor_().clamp_(-self.most, self.most).long()

    def clipped(self, move: Tensor) -> float:
        """The share of a move's numbers that are out of range.

        >>> Units(weight=0.5, unit=0.25, most=7).clipped(torch.tensor([1.0, -0.5, 9.0, 3.5]))
        0.25
        """
        out = move.double().abs() * (self.weight / self.unit) > self.most
        return float(out.double().mean()) if len(move) else 0.0

    def worth(self, counted: Tensor, dtype: torch.dtype) -> Tensor:
        """The move that so many units stand for; nothing where the client has no weight."""
        return (counted.double() * (self.unit / self.weight if self.weight else 0.0)).to(dtype)


@dataclass(frozen=True)
class Counting:
    """What a client counts in whole units in one round."""

    omega: float
    units: Units
    """Of the vector that its dual moves by, and from which the server has its step as well where it can."""
    grains: int = 0
    """What one of these units is worth in its dual; 0 where the round leaves duals alone."""
    held: Tensor | None = None
    """Its dual [P], in grains; None stands for zero."""
    second: Units | None = None
    """Of the server's step, where alpha_i/w_i is not the same for all and one sum does not do for both."""


@dataclass(frozen=True)
class Ring:
    """Whole numbers modulo 2**bits: sums of masked numbers are formed here.

    >>> ring = Ring(8)
    >>> total = ring.add(ring.wrap(torch.tensor([-3, 100])), ring.wrap(torch.tensor([1, 27])))
    >>> total.tolist(), ring.signed(total).tolist()
    ([254, 127], [-2, 127])
    """

    bits: int

    def __post_init__(self) -> None:
        require(self.bits == WIDE or 8 <= self.bits <= 32, f"bits must be 8 to 32, or {WIDE}, got {self.bits}.")

    @property
    def mask(self) -> np.uint64:
        return np.uint64((1 << self.bits) - 1)

    def room(self, clients: int) -> int:
        """M: how far from 0 each of so many clients' numbers may be, so that their sum does not wrap around."""
        return ((1 << (self.bits - 1)) - 1) // clients

    def wrap(self, whole: Tensor) -> Words:
        return whole.numpy().view(np.uint64) & self.mask

    def add(self, left: Words, right: Words) -> Words:
        return (left + right) & self.mask

    def subtract(self, left: Words, right: Words) -> Words:
        return (left - right) & self.mask

    def signed(self, words: Words) -> Tensor:
        """The numbers nearest to 0 with these remainders."""
        if self.bits == WIDE:
            return torch.from_numpy(words.view(np.int64).copy())
        half, whole = 1 << (self.bits - 1), words.astype(np.int64)
        return torch.from_numpy(np.where(whole >= half, whole - (1 << self.bits), whole))

    def nbytes(self, count: int) -> int:
        """How long so many remainders are on the wire."""
        return packed_bytes(count, self.bits)

    def encode(self, words: Words) -> Bytes:
        """On the wire: the lowest bit first, whatever the machine."""
        if self.bits == WIDE:
            return np.frombuffer(words.astype("<u8").tobytes(), np.uint8)
        return packed(torch.from_numpy(words.view(np.int64)), self.bits)

    def decode(self, data: Bytes, count: int) -> Words:
        """From the wire; ``data`` is as long as :meth:`nbytes` says."""
        if self.bits == WIDE:
            return np.frombuffer(data.tobytes(), "<u8").astype(np.uint64)
        return np.asarray(unpacked(data, count, self.bits)).astype(np.uint64)

    def words(self, stream: bytes) -> Words:
        """Remainders from uniform random bytes, ``word_bytes`` of them each."""
        kind: Any = np.dtype(f"<u{self.word_bytes}")
        return np.frombuffer(stream, kind).astype(np.uint64) & self.mask

    @property
    def word_bytes(self) -> int:
        return next(size for size in (1, 2, 4, 8) if self.bits <= 8 * size)
