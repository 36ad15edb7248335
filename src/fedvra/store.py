"""Per-client state (lambda_i, FedPD's anchors, y_i): stage, then commit.

A client that computed a new lambda_i but whose reply was lost must not keep it, or lam = sum_i omega_i*lam_i breaks for
good. So a round *stages* new rows beside the old ones, and only those whose reply was counted are *committed*: a commit
swaps which row is the client's and frees the other. No vector is copied, and a crash before the commit changes nothing.

Rows live in segments that are made when first needed, so memory grows with the clients that took part, not with N. Segments
are shared with worker processes as open files without a name: nothing is left behind, however a run ends. Up to
a budget of bytes they are memory, mapped into every process; past it they are files on disk, read and written row by row
(mapping those would cost a page fault per 4 KB: measured, 1 ms a row of the MNIST model against 0.2 ms).
"""

from __future__ import annotations

import mmap
import os
import resource
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvra.cohort import Ints
from fedvra.errors import FedvraError, require

SEGMENT_BYTES = 64 << 20
SEGMENT_ROWS = 4096
LARGE_ROW = 256 << 10
"""Rows of so many bytes are mapped page tables and all: faults one page at a time would cost more than the arithmetic."""


@dataclass(frozen=True)
class SegmentAddress:
    """Where a segment can be mapped by another process of this run: an open file of the process that made it."""

    pid: int
    fd: int
    nbytes: int
    on_disk: bool

    def path(self) -> str:
        return f"/proc/{self.pid}/fd/{self.fd}"


class Segment(ABC):
    """One stretch of rows, open in this process."""

    def __init__(self, address: SegmentAddress, fd: int, width: int, dtype: torch.dtype) -> None:
        self.address, self.fd, self.width, self.dtype = address, fd, width, dtype
        weakref.finalize(self, os.close, fd)  # rows stay readable for as long as somebody holds their store

    @abstractmethod
    def load(self, row: int) -> Tensor:
        """A row, not to be written to."""

    @abstractmethod
    def save(self, row: int, values: Tensor) -> None:
        """Put values into a row (they may be there already)."""

    @abstractmethod
    def place(self, row: int) -> Tensor | None:
        """Where a row can be computed in place; None where it must be saved from elsewhere."""


class MemorySegment(Segment):
    """Rows in memory that all processes of the run share."""

    @cached_property
    def rows(self) -> Tensor:
        """Mapped when first looked at: the server of a pool of workers never does."""
        populate = mmap.MAP_POPULATE if self.width * self.dtype.itemsize >= LARGE_ROW else 0
        mapped = mmap.mmap(self.fd, self.address.nbytes, mmap.MAP_SHARED | populate)
        return torch.frombuffer(mapped, dtype=self.dtype).view(-1, self.width)

    def load(self, row: int) -> Tensor:
        return self.rows[row]

    def save(self, row: int, values: Tensor) -> None:
        target = self.rows[row]
        if target.data_ptr() != values.data_ptr():
            target.copy_(values)

    def place(self, row: int) -> Tensor | None:
        return self.rows[row]


class FileSegment(Segment):
    """Rows in a file on disk."""

    def load(self, row: int) -> Tensor:
        values = torch.empty(self.width, dtype=self.dtype)
        view = _bytes_of(values)
        if os.preadv(self.fd, [view], row * len(view)) != len(view):
            raise FedvraError("client state on disk could not be read back: is the disk full or failing?")
        return values

    def save(self, row: int, values: Tensor) -> None:
        view = _bytes_of(values.to(self.dtype).contiguous())
        if os.pwrite(self.fd, view, row * len(view)) != len(view):
            raise FedvraError("client state could not be written to disk: is it full?")

    def place(self, row: int) -> Tensor | None:
        return None


def _bytes_of(values: Tensor) -> memoryview:
    return values.view(torch.uint8).numpy().data


def _create(nbytes: int, width: int, dtype: torch.dtype, folder: Path | None) -> Segment:
    """A new segment: in memory, or in ``folder``."""
    fd = -1
    try:
        if folder is None:
            fd = os.memfd_create("fedvra-state")
            os.ftruncate(fd, nbytes)
        else:
            fd = _unnamed_file(folder)
            os.posix_fallocate(fd, 0, nbytes)  # a full disk is an error here and now
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise FedvraError(
            f"no room for {nbytes >> 20} MiB more of client state in {folder or 'memory'} ({error.strerror}): "
            "free some space or put the state elsewhere."
        ) from error
    return _open(SegmentAddress(os.getpid(), fd, nbytes, folder is not None), fd, width, dtype)


def _open(address: SegmentAddress, fd: int, width: int, dtype: torch.dtype) -> Segment:
    return (FileSegment if address.on_disk else MemorySegment)(address, fd, width, dtype)


class RowReader:
    """Rows by slot number, on either side of a process boundary."""

    def __init__(self, width: int, dtype: torch.dtype, rows_per_segment: int) -> None:
        self.width, self.dtype, self.rows_per_segment = width, dtype, rows_per_segment
        self.segments: list[Segment] = []

    def attach(self, addresses: Iterable[SegmentAddress]) -> None:
        """Open the segments that were made since the last call."""
        for address in list(addresses)[len(self.segments) :]:
            fd = os.open(address.path(), os.O_RDWR)
            self.segments.append(_open(address, fd, self.width, self.dtype))

    def load(self, slot: int) -> Tensor:
        """The row in a slot, not to be written to."""
        segment, row = divmod(slot, self.rows_per_segment)
        return self.segments[segment].load(row)

    def save(self, slot: int, values: Tensor) -> None:
        segment, row = divmod(slot, self.rows_per_segment)
        self.segments[segment].save(row, values)

    def place(self, slot: int) -> Tensor | None:
        """Where the row of a slot can be computed in place; None where it has to be saved."""
        segment, row = divmod(slot, self.rows_per_segment)
        return self.segments[segment].place(row)


class MemoryBudget:
    """Bytes that the stores of a run may keep in memory together; None sets no limit."""

    def __init__(self, limit: int | None) -> None:
        require(limit is None or limit >= 0, f"a limit on memory must be at least 0 bytes, got {limit}.")
        self.limit, self.taken = limit, 0

    @classmethod
    def half_of_what_is_free(cls) -> MemoryBudget:
        """The default: half of the memory that the machine, or the container we are in, has available now."""
        return cls(_available_memory() // 2)

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
    """

    def __init__(
        self,
        width: int,
        dtype: torch.dtype,
        budget: MemoryBudget | None = None,
        folder: Path | None = None,
        clients: int = SEGMENT_ROWS * 8,
    ) -> None:
        row_bytes = max(1, width * dtype.itemsize)
        super().__init__(width, dtype, max(1, min(SEGMENT_ROWS, SEGMENT_BYTES // row_bytes, clients // 8)))
        self.budget = budget or MemoryBudget(None)
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
        folder = None if self.budget.take(nbytes) else self.folder or Path(tempfile.gettempdir())
        _allow_open_files(2 * len(self.segments) + 256)
        self.segments.append(_create(nbytes, self.width, self.dtype, folder))


def _available_memory() -> int:
    """Bytes: MemAvailable, or a container's limit where that is less; all there is where neither can be read."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # "max" where there is no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


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
