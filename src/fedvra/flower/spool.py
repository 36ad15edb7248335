"""Vectors that wait on the disk: what a round's clients send is added in the order of the cohort, not of arrival.

Sums of floating-point numbers depend on their order, so everything that came has to be at hand until all is there. In memory
that would be m*P numbers. Here it is a file without a name in the server's folder: nobody else can open it, and it is gone when
the process is, however it ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from fedvra.core.errors import FedvraError

IN_MEMORY = 32 << 20
"""Bytes that are kept in memory before the disk is used: small models never touch it."""


class Spool:
    """Vectors put away as they come, and read one at a time; use it in a ``with``.

    >>> with Spool(Path(tempfile.gettempdir())) as spool:
    ...     late, early = spool.add(torch.tensor([3.0, 4.0])), spool.add(torch.tensor([1.0, 2.0]))
    ...     early.read(), late.read()
    (tensor([1., 2.]), tensor([3., 4.]))
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, dir=str(folder))  # noqa: SIM115 - closed on leaving
        self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, vector: Tensor) -> Stored:
        """Put a vector away."""
        numbers = np.ascontiguousarray(vector.numpy())
        try:
            self._file.seek(self._end)
            self._file.write(numbers.view(np.uint8).data)
        except OSError as error:
            raise FedvraError(
                f"an upload could not be put away in {self._folder} ({error}): free some space and start the run again; "
                "it continues from the round before."
            ) from error
        stored = Stored(self, self._end, len(numbers), numbers.dtype)
        self._end += numbers.nbytes
        return stored

    def read(self, start: int, count: int, dtype: np.dtype[np.generic]) -> Tensor:
        """So many numbers from a place in the file."""
        self._file.seek(start)
        return torch.from_numpy(np.frombuffer(bytearray(self._file.read(count * dtype.itemsize)), dtype))


@dataclass(frozen=True)
class Stored:
    """A vector in a spool."""

    spool: Spool
    start: int
    count: int
    dtype: np.dtype[np.generic]

    def read(self, begin: int = 0, end: int | None = None) -> Tensor:
        """It, or its numbers from ``begin`` up to ``end``."""
        end = self.count if end is None else min(end, self.count)
        return self.spool.read(self.start + begin * self.dtype.itemsize, end - begin, self.dtype)


def columns(rows: Sequence[Stored], width: int) -> Iterator[Tensor]:
    """Vectors of one length side by side, [M, width] at a time.

    >>> with Spool(Path(tempfile.gettempdir())) as spool:
    ...     rows = [spool.add(torch.arange(3.0)), spool.add(torch.ones(3))]
    ...     [block.tolist() for block in columns(rows, 2)]
    [[[0.0, 1.0], [1.0, 1.0]], [[2.0], [1.0]]]
    """
    for begin in range(0, rows[0].count, width):
        yield torch.stack([row.read(begin, begin + width) for row in rows])
