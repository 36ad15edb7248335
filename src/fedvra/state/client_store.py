"""Per-client state (lambda_i, FedPD's anchors, y_i): stage, then commit.

A client that computed a new lambda_i but whose reply was lost must not keep it, or lam = sum_i omega_i*lam_i breaks for
good. So a round *stages* new rows beside the old ones, and only those whose reply was counted are *committed*: a commit
swaps which row is the client's and frees the other. No vector is copied, and a crash before the commit changes nothing.

Rows live in segments that are made when first needed, so memory grows with the clients that took part, not with N. Segments
are shared with worker processes as open files without a name: nothing is left behind, however a run ends. (Where one process
does all the work, they are its own memory.) Up to a budget of bytes they are memory that every process can map; past it they
are files on disk, read and written row by row (mapping those would cost a page fault per 4 KB: measured, 1 ms a row of the
MNIST model against 0.2 ms).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedvra.core.errors import require
from fedvra.core.memory import available_memory, available_on
from fedvra.state.row_books import RowBooks
from fedvra.state.segments import CPU, create_segment
from fedvra.state.shared_rows import SEGMENT_BYTES, SEGMENT_ROWS, AddressBook, RowReader, allow_open_files

STRETCH = 8
"""So many large rows in a row go into one segment, the next ones into another that is open."""
MAX_OPEN = 8
"""At most so many segments are filled at the same time."""


class MemoryBudget:
    """Bytes that the stores of a run may keep in memory together; None sets no limit."""

    def __init__(self, limit: int | None) -> None:
        require(limit is None or limit >= 0, f"a limit on memory must be at least 0 bytes, got {limit}.")
        self.limit, self.taken = limit, 0

    @classmethod
    def half_of_what_is_free(cls) -> MemoryBudget:
        """The default: half of the memory that the machine, or the container we are in, has available now."""
        return cls(available_memory() // 2)

    @classmethod
    def near(cls, device: torch.device) -> MemoryBudget:
        """Half of what an accelerator has free now; nothing where the device is the processor itself."""
        return cls(0 if device.type == "cpu" else available_on(device) // 2)

    def take(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes more, which are then taken."""
        fits = self.limit is None or self.taken + nbytes <= self.limit
        self.taken += nbytes if fits else 0
        return fits


class ClientStore(RowBooks, RowReader):
    """Rows on this machine: which slot is whose, and the slots.

    Args:
        width: numbers per row (P for lambda_i).
        dtype: of the rows. bfloat16 halves the memory; lam then drifts from sum omega_i*lam_i by the rounding.
        budget: how much of this and other stores is kept in memory; segments beyond it are files in ``folder``.
        clients: how many there may be; few clients get small segments, so that little memory is taken in advance.
        device: whose memory comes first, half of what it has free now; what does not fit there waits in the host's.
        near: the budget of that memory, where several stores share it.
        shared: whether other processes are to see the rows; that needs Linux.
        writers: how many of them will write at the same time. The kernel lets one at a time write to a file: large rows that
            are new go into several files in turn, or writers would wait for each other.
    """

    def __init__(
        self,
        width: int,
        dtype: torch.dtype,
        budget: MemoryBudget | None = None,
        folder: Path | None = None,
        clients: int = SEGMENT_ROWS * 8,
        device: torch.device = CPU,
        shared: bool = True,
        near: MemoryBudget | None = None,
        writers: int = 1,
    ) -> None:
        row_bytes = max(1, width * dtype.itemsize)
        RowBooks.__init__(self)
        RowReader.__init__(self, width, dtype, max(1, min(SEGMENT_ROWS, SEGMENT_BYTES // row_bytes, clients // 8)))
        self.budget = budget or MemoryBudget(None)
        self.folder = folder
        self.device, self.shared = device, shared
        self.near = near or MemoryBudget.near(device)
        self._free: list[int] = []
        spread = min(2 * writers, MAX_OPEN) if writers > 1 and self.shape.large else 1
        self._open: list[Iterator[int]] = [iter(())] * spread
        """Slots that nobody had yet, of each segment that is being filled."""
        self._taken = 0
        self._book = AddressBook.of([])

    def read(self, slots: Sequence[int]) -> Iterator[Tensor]:
        return map(self.load, slots)

    def write(self, slots: Sequence[int], rows: Sequence[Tensor]) -> None:
        for slot, row in zip(slots, rows, strict=True):
            self.save(slot, row)

    def release(self, slots: Iterable[int]) -> None:
        self._free.extend(slots)

    def addresses(self) -> AddressBook:
        """Where other processes find the segments."""
        if self._book.count != len(self.segments):
            self._book = AddressBook.of([segment.address for segment in self.segments])
        return self._book

    def nbytes(self) -> int:
        return sum(segment.address.nbytes for segment in self.segments)

    def take(self) -> int:
        if self._free:
            return self._free.pop()
        turn = self._taken // STRETCH % len(self._open)
        self._taken += 1
        slot = next(self._open[turn], None)
        if slot is None:
            self._open[turn] = self._grow()
            slot = next(self._open[turn])
        return slot

    def _grow(self) -> Iterator[int]:
        """One more segment; its slots."""
        nbytes = self.rows_per_segment * self.shape.stride
        near = self.near.take(nbytes)
        folder = None if near or self.budget.take(nbytes) else self.folder or Path(tempfile.gettempdir())
        allow_open_files(2 * len(self.segments) + 256)
        device = self.device if near else CPU
        pinned = device != self.device  # for copies to and from the device that nobody waits for
        self.segments.append(create_segment(self.rows_per_segment, self.shape, folder, device, self.shared, pinned))
        first = (len(self.segments) - 1) * self.rows_per_segment
        return iter(range(first, first + self.rows_per_segment))


def at_home(store: RowBooks) -> RowBooks:
    """The same rows on this machine, readable when whoever holds them is gone."""
    if isinstance(store, ClientStore):
        return store
    home = ClientStore(store.width, store.dtype, MemoryBudget.half_of_what_is_free(), clients=len(store), shared=False)
    for client, row in store.items():
        home.put([client], [row])
    return home
