"""Memory that the processes of a run share: rows of client state by slot, vectors that are broadcast.

Sharing rows needs Linux (``memfd_create``, ``/proc``); a run that has one process keeps them in memory of its own, on any
system. What rows lie in is in ``segments.py``.
"""

from __future__ import annotations

import mmap
import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvra.state.segments import RowShape, Segment, SegmentAddress, open_segment

SEGMENT_BYTES = 64 << 20
SEGMENT_ROWS = 4096


@dataclass(frozen=True)
class AddressBook:
    """The addresses of all segments of a store, packed: it goes out with every task, and is mostly known already."""

    count: int
    packed: bytes

    @classmethod
    def of(cls, addresses: list[SegmentAddress]) -> AddressBook:
        return cls(len(addresses), pickle.dumps(addresses))

    def after(self, known: int) -> list[SegmentAddress]:
        """Those beyond the first so many."""
        return pickle.loads(self.packed)[known:] if self.count > known else []


class RowAccess(ABC):
    """Rows by slot number, as those who work on them see them."""

    dtype: torch.dtype

    @abstractmethod
    def attach(self, book: AddressBook) -> None:
        """Open what was made since the last call."""

    @abstractmethod
    def load(self, slot: int) -> Tensor:
        """The row in a slot, not to be written to."""

    @abstractmethod
    def save(self, slot: int, values: Tensor) -> None:
        """Put values into the row of a slot."""

    @abstractmethod
    def place(self, slot: int) -> Tensor:
        """Where the row of a slot is best computed before it is saved; good until the next call."""


class RowReader(RowAccess):
    """Rows in segments, on either side of a process boundary."""

    def __init__(self, width: int, dtype: torch.dtype, rows_per_segment: int) -> None:
        self.width, self.dtype, self.rows_per_segment = width, dtype, rows_per_segment
        self.shape = RowShape(width, dtype)
        self.segments: list[Segment] = []
        self._spare: Tensor | None = None

    def attach(self, book: AddressBook) -> None:
        self.segments += [open_segment(address, self.shape) for address in book.after(len(self.segments))]

    def load(self, slot: int) -> Tensor:
        segment, row = divmod(slot, self.rows_per_segment)
        return self.segments[segment].load(row)

    def save(self, slot: int, values: Tensor) -> None:
        segment, row = divmod(slot, self.rows_per_segment)
        self.segments[segment].save(row, values)

    def place(self, slot: int) -> Tensor:
        segment, row = divmod(slot, self.rows_per_segment)
        place = self.segments[segment].place(row)
        if place is not None:
            return place
        if self._spare is None:  # kept, since fresh memory would cost as much as the arithmetic
            self._spare = torch.empty(self.width, dtype=self.dtype)
        return self._spare


def allow_open_files(count: int) -> None:
    """Raise this process's own limit on open files, as far as it may, when segments become many."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        most = count * 2 if hard == resource.RLIM_INFINITY else min(hard, count * 2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def shared_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor in memory that forked processes share, zero at first."""
    count = int(np.prod(shape))
    buffer = mmap.mmap(-1, max(count * dtype.itemsize, 1))
    return torch.frombuffer(buffer, dtype=dtype, count=count).view(shape) if count else torch.zeros(shape, dtype=dtype)
