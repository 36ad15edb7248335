"""Per-client state (lambda_i, FedPD's anchors, y_i): stage, then commit.

A client that computed a new lambda_i but whose reply was lost must not keep it, or lam = sum_i omega_i*lam_i breaks for
good. So a round *stages* new rows beside the old ones, and only those whose reply was counted are *committed*: a commit
swaps which row is the client's and frees the other. No vector is copied, and a crash before the commit changes nothing.

Rows live in segments that are made when first needed, so memory grows with the clients that took part, not with N. Segments
are shared with worker processes as open files without a name: nothing is left behind, however a run ends. (Where one process
does all the work, they are its own memory.) Up to a budget of bytes they are memory, mapped into every process; past it they
are files on disk, read and written row by row (mapping those would cost a page fault per 4 KB: measured, 1 ms a row of the
MNIST model against 0.2 ms).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import require
from fedvra.core.memory import available_memory
from fedvra.state.shared_rows import (
    CPU,
    SEGMENT_BYTES,
    SEGMENT_ROWS,
    AddressBook,
    RowReader,
    allow_open_files,
    create_segment,
)


class MemoryBudget:
    """Bytes that the stores of a run may keep in memory together; None sets no limit."""

    def __init__(self, limit: int | None) -> None:
        require(limit is None or limit >= 0, f"a limit on memory must be at least 0 bytes, got {limit}.")
        self.limit, self.taken = limit, 0

    @classmethod
    def half_of_what_is_free(cls) -> MemoryBudget:
        """The default: half of the memory that the machine, or the container we are in, has available now."""
        return cls(available_memory() // 2)

    def take(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes more, which are then taken."""
        fits = self.limit is None or self.taken + nbytes <= self.limit
        self.taken += nbytes if fits else 0
        return fits


class ClientStore(RowReader):
    """The server's side: which slot is whose.

    Args:
        width: numbers per row (P for lambda_i).
        dtype: of the rows. bfloat16 halves the memory; lam then drifts from sum omega_i*lam_i by the rounding.
        budget: how much of this and other stores is kept in memory; segments beyond it are files in ``folder``.
        clients: how many there may be; few clients get small segments, so that little memory is taken in advance.
        device: whose memory.
        shared: whether other processes are to see the rows; that needs Linux.
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
    ) -> None:
        row_bytes = max(1, width * dtype.itemsize)
        super().__init__(width, dtype, max(1, min(SEGMENT_ROWS, SEGMENT_BYTES // row_bytes, clients // 8)))
        self.budget = budget or MemoryBudget(None)
        self.folder = folder
        self.device, self.shared = device, shared
        self._slot: dict[int, int] = {}
        self._staged: dict[int, int] = {}
        self._free: list[int] = []
        self._next = 0
        self._book = AddressBook.of([])

    def __len__(self) -> int:
        return len(self._slot)

    def __contains__(self, client: int) -> bool:
        return client in self._slot

    @property
    def staging(self) -> bool:
        """Whether anything is staged."""
        return bool(self._staged)

    def clients(self) -> list[int]:
        """Those who have committed state, ascending."""
        return sorted(self._slot)

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """Committed rows; a client not listed is at zero."""
        for client in self.clients():
            yield client, self.load(self._slot[client])

    def get(self, client: int) -> Tensor:
        """The committed row of a client (zeros if it never took part)."""
        slot = self._slot.get(int(client))
        return torch.zeros(self.width, dtype=self.dtype) if slot is None else self.load(slot)

    def put(self, client: int, row: Tensor) -> None:
        """Stage and commit at once: for restoring a checkpoint."""
        _, write = self.stage(np.array([client]))
        self.save(int(write[0]), row)
        self.commit([client])

    def stage(self, clients: Ints) -> tuple[Ints, Ints]:
        """For each client the slot to read its old row from (-1: it has none, so zero) and the slot to write the new one to."""
        read = np.array([self._slot.get(int(c), -1) for c in clients], dtype=np.int64)
        for client in clients:
            if int(client) not in self._staged:
                self._staged[int(client)] = self._take()
        return read, np.array([self._staged[int(c)] for c in clients], dtype=np.int64)

    def commit(self, clients: Iterable[int]) -> None:
        """Make the staged rows of these clients theirs."""
        for client in map(int, clients):
            old = self._slot.get(client)
            self._slot[client] = self._staged.pop(client)
            if old is not None:
                self._free.append(old)

    def rollback(self) -> None:
        """Forget whatever is staged and was not committed."""
        self._free.extend(self._staged.values())
        self._staged.clear()

    def clear(self) -> None:
        """Forget everybody's row, committed or staged."""
        self.rollback()
        self._free.extend(self._slot.values())
        self._slot.clear()

    def addresses(self) -> AddressBook:
        """Where other processes find the segments."""
        if self._book.count != len(self.segments):
            self._book = AddressBook.of([segment.address for segment in self.segments])
        return self._book

    def nbytes(self) -> int:
        return sum(segment.address.nbytes for segment in self.segments)

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        slot = self._next
        if slot // self.rows_per_segment >= len(self.segments):
            self._grow()
        self._next += 1
        return slot

    def _grow(self) -> None:
        nbytes = self.rows_per_segment * self.width * self.dtype.itemsize
        folder = None if self.budget.take(nbytes) else self.folder or Path(tempfile.gettempdir())
        allow_open_files(2 * len(self.segments) + 256)
        self.segments.append(create_segment(nbytes, self.width, self.dtype, folder, self.device, self.shared))
