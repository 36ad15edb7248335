"""Arrays in files, read row by row."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value


@dataclass(frozen=True)
class FileArray(Value):
    """An array in a file, row after row: what ``np.load(..., mmap_mode="r")`` and ``np.memmap`` stand for.

    Rows are read, not mapped: mapped pages would count as this process's memory until somebody else is short of it.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    _forgets: ClassVar[tuple[str, ...]] = ("_file",)

    @classmethod
    def of(cls, array: np.memmap[Any, Any], where: str) -> FileArray:
        root: Any = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        require(
            isinstance(root, np.memmap) and root.filename is not None and array.flags.c_contiguous,
            f"{where}: a memory-mapped array is read row by row, so it must be rows of a file in C order; "
            "give the np.memmap itself or a slice of rows of it.",
        )
        start = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        path = os.path.abspath(os.fspath(root.filename))
        return cls(path, array.dtype.str, tuple(array.shape), int(root.offset + start))

    def rows(self, numbers: Ints) -> Tensor:
        """These rows, as a tensor of their own."""
        found = np.empty((len(numbers), *self.shape[1:]), dtype=np.dtype(self.dtype))
        if found.size:
            width = found[0].nbytes
            content = found.reshape(-1).view(np.uint8).data
            breaks = np.flatnonzero(np.diff(numbers) != 1) + 1  # neighbours in the file are read together
            for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(numbers)], strict=True):
                self._fill(content[start * width : stop * width], self.offset + int(numbers[start]) * width)
        native = found.astype(found.dtype.newbyteorder("="), copy=False)
        return torch.from_numpy(native)

    def _fill(self, place: memoryview, position: int) -> None:
        while place:
            count = _read_at(self._file, place, position)
            require(count > 0, f"{self.path} ends before its last row: it has become shorter since it was opened.")
            place, position = place[count:], position + count

    @cached_property
    def _file(self) -> int:
        try:
            opened = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read ({error.strerror}): is the file still there?") from error
        weakref.finalize(self, os.close, opened)
        return opened


def _read_at(file: int, place: memoryview, position: int) -> int:
    """Fill ``place`` from there on; how many bytes there were. Threads and forked processes may share the file."""
    at: Callable[[int, list[memoryview], int], int] | None = getattr(os, "preadv", None)
    if at is not None:
        return at(file, [place], position)
    with _seeking:  # Windows has no such call, and no forks either
        os.lseek(file, position, os.SEEK_SET)
        content = os.read(file, len(place))
    place[: len(content)] = content
    return len(content)


_seeking = Lock()
