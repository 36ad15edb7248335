"""Per-client state (lambda_i, FedPD's anchors, y_i): stage, then commit.

A client that computed a new lambda_i but whose reply was lost must not keep it, or lam = sum_i omega_i*lam_i breaks for
good. So a round *stages* new rows beside the old ones, and only those whose reply was counted are *committed*: a commit
swaps which row is the client's and frees the other. No vector is copied, and a crash before the commit changes nothing.

Rows live in segments that are made when first needed, so memory grows with the clients that took part, not with N. Segments
are shared with worker processes; past ``memory_limit`` bytes they are files on disk, mapped into memory, whose pages are
given back after use.
"""

from __future__ import annotations

import mmap
import os
import resource
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvra.cohort import Ints
from fedvra.errors import FedvraError

SEGMENT_BYTES = 64 << 20
SEGMENT_ROWS = 4096
LARGE_ROW = 256 << 10
"""Rows of so many bytes are mapped page tables and all: faults one page at a time would cost more than the arithmetic."""
PAGE = mmap.PAGESIZE


@dataclass(frozen=True)
class SegmentAddress:
    """Where a segment can be mapped by another process of this run: an open file of the process that made it."""

    pid: int
    fd: int
    nbytes: int
    on_disk: bool

    def path(self) -> str:
        return f"/proc/{self.pid}/fd/{self.fd}"


class Segment:
    """One stretch of rows in shared memory or in a file. The file has no name: nothing is left behind, however a run ends."""

    def __init__(self, address: SegmentAddress, fd: int, width: int, dtype: torch.dtype) -> None:
        self.address = address
        self._fd = fd
        large = width * dtype.itemsize >= LARGE_ROW and not address.on_disk
        self._map = mmap.mmap(fd, address.nbytes, mmap.MAP_SHARED | (mmap.MAP_POPULATE if large else 0))
        self.rows = torch.frombuffer(self._map, dtype=dtype).view(-1, width)

    @classmethod
    def create(cls, nbytes: int, width: int, dtype: torch.dtype, folder: Path | None) -> Segment:
        on_disk = folder is not None
        fd = _unnamed_file(folder) if folder is not None else os.memfd_create("fedvra-state")
        try:
            if on_disk:
                os.posix_fallocate(fd, 0, nbytes)  # a full disk is an error here, not a SIGBUS later
            else:
                os.ftruncate(fd, nbytes)
        except OSError as error:
            os.close(fd)
            raise FedvraError(
                f"no room for {nbytes >> 20} MiB more of client state in {folder or 'memory'} ({error.strerror}): "
                "free some space or point state_folder elsewhere."
            ) from error
        return cls(SegmentAddress(os.getpid(), fd, nbytes, on_disk), fd, width, dtype)

    @classmethod
    def attach(cls, address: SegmentAddress, width: int, dtype: torch.dtype) -> Segment:
        return cls(address, os.open(address.path(), os.O_RDWR), width, dtype)

    def release(self, row: int) -> None:
        """Give a row's pages back to the system; on disk they stay in the file. Pages shared with neighbours are kept."""
        size = self.rows.stride(0) * self.rows.element_size()
        start, stop = -(-row * size // PAGE) * PAGE, (row + 1) * size // PAGE * PAGE
        if stop > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def close(self) -> None:
        os.close(self._fd)  # the mapping itself goes with the last tensor that refers to it


class RowReader:
    """Rows by slot number, on either side of a process boundary."""

    def __init__(self, width: int, dtype: torch.dtype, rows_per_segment: int) -> None:
        self.width, self.dtype, self.rows_per_segment = width, dtype, rows_per_segment
        self.segments: list[Segment] = []

    def attach(self, addresses: Iterable[SegmentAddress]) -> None:
        """Map the segments that were made since the last call."""
        for address in list(addresses)[len(self.segments) :]:
            self.segments.append(Segment.attach(address, self.width, self.dtype))

    def row(self, slot: int) -> Tensor:
        segment, row = divmod(slot, self.rows_per_segment)
        return self.segments[segment].rows[row]

    def release(self, slot: int) -> None:
        segment, row = divmod(slot, self.rows_per_segment)
        if self.segments[segment].address.on_disk:
            self.segments[segment].release(row)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
        self.segments.clear()


class ClientStore(RowReader):
    """The server's side: which slot is whose.

    Args:
        width: numbers per row (P for lambda_i).
        dtype: of the rows. bfloat16 halves the memory; lam then drifts from sum omega_i*lam_i by the rounding.
        memory_limit: bytes of rows to keep in memory; segments beyond it are files in ``folder``.
    """

    def __init__(
        self, width: int, dtype: torch.dtype, memory_limit: int | None = None, folder: Path | None = None
    ) -> None:
        row_bytes = width * dtype.itemsize
        super().__init__(width, dtype, min(SEGMENT_ROWS, max(1, SEGMENT_BYTES // max(row_bytes, 1))))
        self.memory_limit = memory_limit
        self.folder = folder
        self._slot: dict[int, int] = {}
        self._staged: dict[int, int] = {}
        self._free: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._slot)

    def __contains__(self, client: int) -> bool:
        return client in self._slot

    def clients(self) -> list[int]:
        """Those who have committed state, ascending."""
        return sorted(self._slot)

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """Committed rows; a client not listed is at zero."""
        for client in self.clients():
            yield client, self.row(self._slot[client])

    def get(self, client: int) -> Tensor:
        """The committed row of a client (zeros if it never took part)."""
        slot = self._slot.get(int(client))
        return torch.zeros(self.width, dtype=self.dtype) if slot is None else self.row(slot)

    def put(self, client: int, row: Tensor) -> None:
        """Stage and commit at once: for restoring a checkpoint."""
        _, write = self.stage(np.array([client]))
        self.row(int(write[0])).copy_(row)
        self.release(int(write[0]))
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

    def addresses(self) -> list[SegmentAddress]:
        return [segment.address for segment in self.segments]

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
        spill = self.memory_limit is not None and self.nbytes() + nbytes > self.memory_limit
        folder = (self.folder or Path(tempfile.gettempdir())) if spill else None
        _allow_open_files(2 * len(self.segments) + 256)
        self.segments.append(Segment.create(nbytes, self.width, self.dtype, folder))


def _allow_open_files(count: int) -> None:
    """Raise this process's own limit on open files, as far as it may, when segments become many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        most = count * 2 if hard == resource.RLIM_INFINITY else min(hard, count * 2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _unnamed_file(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix="fedvra-state-", dir=folder)
    os.unlink(name)
    return fd


def shared_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor in memory that forked processes share, zero at first."""
    count = int(np.prod(shape))
    buffer = mmap.mmap(-1, max(count * dtype.itemsize, 1))
    return torch.frombuffer(buffer, dtype=dtype, count=count).view(shape) if count else torch.zeros(shape, dtype=dtype)
