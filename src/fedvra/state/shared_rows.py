"""Stretches of memory or disk that the processes of a run share: rows of client state, vectors that are broadcast.

What is shared, or on disk, is an open file without a name, so nothing is left behind, however a run ends. Sharing rows needs
Linux (``memfd_create``, ``/proc``); a run that has one process keeps them in memory of its own, on any system.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvra.core.errors import FedvraError

CPU = torch.device("cpu")
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


class Segment(ABC):
    """One stretch of rows, open in this process."""

    def __init__(self, address: SegmentAddress, file: io.FileIO | None, width: int, dtype: torch.dtype) -> None:
        self.address, self.file, self.width, self.dtype = address, file, width, dtype
        if file is not None:
            weakref.finalize(self, file.close)  # rows stay readable for as long as somebody holds their store

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
    """Rows in memory: shared by all processes of the run, or memory (an accelerator's too) that one process has to itself."""

    def __init__(
        self,
        address: SegmentAddress,
        file: io.FileIO | None,
        width: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(address, file, width, dtype)
        self.device = device

    @cached_property
    def rows(self) -> Tensor:
        """Mapped when first looked at: the server of a pool of workers never does."""
        if self.file is None:
            count = self.address.nbytes // (self.width * self.dtype.itemsize)
            return torch.zeros(count, self.width, dtype=self.dtype, device=self.device)
        populate = mmap.MAP_POPULATE if self.width * self.dtype.itemsize >= LARGE_ROW else 0
        mapped = mmap.mmap(self.file.fileno(), self.address.nbytes, mmap.MAP_SHARED | populate)
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
        assert self.file is not None
        self.file.seek(row * len(view))
        if self.file.readinto(view) != len(view):
            raise FedvraError("client state on disk could not be read back: is the disk full or failing?")
        return values

    def save(self, row: int, values: Tensor) -> None:
        view = _bytes_of(values.to(self.dtype).contiguous())
        assert self.file is not None
        self.file.seek(row * len(view))
        if self.file.write(view) != len(view):
            raise FedvraError("client state could not be written to disk: is it full?")

    def place(self, row: int) -> Tensor | None:
        return None


def _bytes_of(values: Tensor) -> memoryview:
    return values.view(torch.uint8).numpy().data


def create_segment(
    nbytes: int,
    width: int,
    dtype: torch.dtype,
    folder: Path | None,
    device: torch.device = CPU,
    shared: bool = True,
) -> Segment:
    """A new segment: in memory (that of ``device``), or in ``folder``; other processes see it where it is ``shared``."""
    if folder is None and (device.type != "cpu" or not shared):
        return MemorySegment(SegmentAddress(os.getpid(), -1, nbytes, on_disk=False), None, width, dtype, device)
    file: io.FileIO | None = None
    try:
        file = _shared_memory() if folder is None else _unnamed_file(folder)
        _make_room(file, nbytes, on_disk=folder is not None)
    except OSError as error:
        if file is not None:
            file.close()
        raise FedvraError(
            f"no room for {nbytes >> 20} MiB more of client state in {folder or 'memory'} ({error.strerror}): "
            "free some space or put the state elsewhere."
        ) from error
    return _open(SegmentAddress(os.getpid(), file.fileno(), nbytes, folder is not None), file, width, dtype)


def _open(address: SegmentAddress, file: io.FileIO, width: int, dtype: torch.dtype) -> Segment:
    return (FileSegment if address.on_disk else MemorySegment)(address, file, width, dtype)


def _shared_memory() -> io.FileIO:
    return io.FileIO(os.memfd_create("fedvra-state"), "r+")


def _unnamed_file(folder: Path) -> io.FileIO:
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(buffering=0, prefix="fedvra-state-", dir=folder)


def _make_room(file: io.FileIO, nbytes: int, on_disk: bool) -> None:
    if on_disk and sys.platform == "linux":
        os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk is an error here and now
    else:  # or when a row is written
        file.truncate(nbytes)


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
    def place(self, slot: int) -> Tensor | None:
        """Where the row of a slot can be computed in place; None where it has to be saved."""


class RowReader(RowAccess):
    """Rows in segments, on either side of a process boundary."""

    def __init__(self, width: int, dtype: torch.dtype, rows_per_segment: int) -> None:
        self.width, self.dtype, self.rows_per_segment = width, dtype, rows_per_segment
        self.segments: list[Segment] = []

    def attach(self, book: AddressBook) -> None:
        for address in book.after(len(self.segments)):
            file = io.FileIO(address.path(), "r+")
            self.segments.append(_open(address, file, self.width, self.dtype))

    def load(self, slot: int) -> Tensor:
        segment, row = divmod(slot, self.rows_per_segment)
        return self.segments[segment].load(row)

    def save(self, slot: int, values: Tensor) -> None:
        segment, row = divmod(slot, self.rows_per_segment)
        self.segments[segment].save(row, values)

    def place(self, slot: int) -> Tensor | None:
        segment, row = divmod(slot, self.rows_per_segment)
        return self.segments[segment].place(row)


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
