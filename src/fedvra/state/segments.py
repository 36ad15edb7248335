"""Stretches of rows: in memory that all processes of a run share, in memory of one process alone, or on disk.

What is shared, or on disk, is an open file without a name, so nothing is left behind, however a run ends.

A row's first visit is the dear one, since its pages are fresh. Shared memory that is mapped pays for a page fault per 4 KB
and process, for zeros that are then written over, and cannot have huge pages on most systems. So a large row that is new is
computed in memory that was used before and handed to the kernel in one call (``pwrite``), which takes pages and fills them at
once; only a row that is met again is mapped, and then costs what private memory does. Memory that one process has to itself
is asked for in huge pages. docs/performance.md has the measurements.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from fedvra.core.errors import FedvraError

CPU = torch.device("cpu")
LARGE_ROW = 256 << 10
"""Rows of so many bytes start on a page of their own, and are not mapped before they are met again."""
PAGE = 4096
FAULT_AROUND = 64 << 10
"""A read of a page that is there maps its neighbours too, in stretches of so many bytes."""


@dataclass(frozen=True)
class RowShape:
    """What a row is: so many numbers of a kind."""

    width: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def large(self) -> bool:
        return self.nbytes >= LARGE_ROW

    @property
    def stride(self) -> int:
        """Bytes from a row to the next."""
        return -(-self.nbytes // PAGE) * PAGE if self.large else max(1, self.nbytes)

    def view(self, memory: Tensor) -> Tensor:
        """Bytes as rows [count, width]."""
        return memory.view(self.dtype).view(-1, self.stride // self.dtype.itemsize)[:, : self.width]


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

    def __init__(self, address: SegmentAddress, file: io.FileIO | None, shape: RowShape) -> None:
        self.address, self.file, self.shape = address, file, shape
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


class OwnMemory(Segment):
    """Rows in memory that this process has to itself; perhaps an accelerator's, or ``pinned``, which it reads by itself."""

    def __init__(self, address: SegmentAddress, shape: RowShape, device: torch.device, pinned: bool = False) -> None:
        super().__init__(address, None, shape)
        zeros = partial(torch.zeros, address.nbytes, dtype=torch.uint8)
        own = zeros(pin_memory=True) if pinned else zeros(device=device) if device != CPU else _huge(address.nbytes)
        self.rows = shape.view(own)

    def load(self, row: int) -> Tensor:
        return self.rows[row]

    def save(self, row: int, values: Tensor) -> None:
        target = self.rows[row]
        if target.data_ptr() != values.data_ptr():
            target.copy_(values, non_blocking=True)  # from an accelerator: it is there before the round's losses are

    def place(self, row: int) -> Tensor | None:
        return self.rows[row]


class SharedMemory(Segment):
    """Rows in memory that all processes of the run share. Large ones are mapped, by each process, when it meets them again."""

    def __init__(self, address: SegmentAddress, file: io.FileIO, shape: RowShape) -> None:
        super().__init__(address, file, shape)
        self._mapped = bytearray(address.nbytes // shape.stride) if shape.large else None

    @cached_property
    def rows(self) -> Tensor:
        """Addresses only, until somebody looks: the server of a pool of workers never does."""
        assert self.file is not None
        mapped = mmap.mmap(self.file.fileno(), self.address.nbytes, mmap.MAP_SHARED)
        return self.shape.view(torch.frombuffer(mapped, dtype=torch.uint8))

    def load(self, row: int) -> Tensor:
        if self._mapped is not None:
            self._mapped[row] = 1  # reading maps what is there
        return self.rows[row]

    def save(self, row: int, values: Tensor) -> None:
        if self._mapped is not None and not self._mapped[row]:
            assert self.file is not None
            _write(self.file.fileno(), _bytes_of(values.to("cpu", self.shape.dtype)), row * self.shape.stride)
            return
        target = self.rows[row]
        if target.data_ptr() != values.data_ptr():
            target.copy_(values)

    def place(self, row: int) -> Tensor | None:
        if self._mapped is None or self._mapped[row]:
            return self.rows[row]
        if not self._written(row):
            return None
        self._mapped[row] = 1
        there = self.rows[row]
        there[:: FAULT_AROUND // there.itemsize].sum()  # reads map many pages at once, writes one
        return there

    def _written(self, row: int) -> bool:
        """Whether the row's first page is there: somebody has written it before."""
        assert self.file is not None
        start = row * self.shape.stride
        try:
            return os.lseek(self.file.fileno(), start, os.SEEK_DATA) == start
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing behind it either
                return False
            raise


class DiskFile(Segment):
    """Rows in a file on disk."""

    def load(self, row: int) -> Tensor:
        values = torch.empty(self.shape.width, dtype=self.shape.dtype)
        view = _bytes_of(values)
        assert self.file is not None
        self.file.seek(row * self.shape.stride)
        if self.file.readinto(view) != len(view):
            raise FedvraError("client state on disk could not be read back: is the disk full or failing?")
        return values

    def save(self, row: int, values: Tensor) -> None:
        view = _bytes_of(values.to("cpu", self.shape.dtype).contiguous())
        assert self.file is not None
        self.file.seek(row * self.shape.stride)
        if self.file.write(view) != len(view):
            raise FedvraError("client state could not be written to disk: is it full?")

    def place(self, row: int) -> Tensor | None:
        return None


def _bytes_of(values: Tensor) -> memoryview:
    return values.view(torch.uint8).numpy().data


def _write(fd: int, view: memoryview, start: int) -> None:
    try:
        while len(view):
            done = os.pwrite(fd, view, start)
            view, start = view[done:], start + done
    except OSError as error:
        raise _no_room(len(view), None, error) from error


def create_segment(
    count: int,
    shape: RowShape,
    folder: Path | None,
    device: torch.device = CPU,
    shared: bool = True,
    pinned: bool = False,
) -> Segment:
    """So many new rows: in memory (that of ``device``) or in ``folder``, seen by other processes where they are ``shared``."""
    nbytes = count * shape.stride
    if folder is None and (device.type != "cpu" or pinned or not shared):
        return OwnMemory(SegmentAddress(os.getpid(), -1, nbytes, on_disk=False), shape, device, pinned)
    file: io.FileIO | None = None
    try:
        file = _shared_memory() if folder is None else _unnamed_file(folder)
        _make_room(file, nbytes, on_disk=folder is not None)
    except OSError as error:
        if file is not None:
            file.close()
        raise _no_room(nbytes, folder, error) from error
    return open_segment(SegmentAddress(os.getpid(), file.fileno(), nbytes, folder is not None), shape, file)


def open_segment(address: SegmentAddress, shape: RowShape, file: io.FileIO | None = None) -> Segment:
    """A segment that is there, in this process or another."""
    file = file or io.FileIO(address.path(), "r+")
    return (DiskFile if address.on_disk else SharedMemory)(address, file, shape)


def _no_room(nbytes: int, folder: Path | None, error: OSError) -> FedvraError:
    return FedvraError(
        f"no room for {nbytes >> 20} MiB more of client state in {folder or 'memory'} ({error.strerror}): "
        "free some space or put the state elsewhere."
    )


def _huge(nbytes: int) -> Tensor:
    """Zeros of this process, in huge pages where the system has them: one fault for 2 MB in place of 512."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return torch.zeros(nbytes, dtype=torch.uint8)
    room = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        room.madvise(advice)
    return torch.frombuffer(room, dtype=torch.uint8)


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
