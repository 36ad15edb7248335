"""Clients' rows at the workers of a cluster: whose they are is known to the server, and they come when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedvra.state.row_books import RowBooks
from fedvra.state.shared_rows import AddressBook

if TYPE_CHECKING:
    from fedvra.engines.ray_pool import RayPool

FETCH_BYTES = 64 << 20
"""Rows are brought to the server so many bytes at a time."""
NOWHERE = AddressBook.of([])


class ClusterStore(RowBooks):
    """Rows at the workers of a cluster: whose they are is known here."""

    def __init__(self, pool: RayPool, kind: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._pool, self._kind = pool, kind
        self.width, self.dtype = width, dtype

    def take(self) -> int:
        return self._pool.new_slot()

    def release(self, slots: Iterable[int]) -> None:
        self._pool.release(slots)

    def rows(self, clients: Sequence[int]) -> Iterator[Tensor]:
        """Whoever looks on need not know that workers die: what went with them is brought back, and read again."""
        at_once = max(1, FETCH_BYTES // max(1, self.width * self.dtype.itemsize))
        for start in range(0, len(clients), at_once):
            yield from self._pool.insist(partial(self._some, clients[start : start + at_once]))

    def _some(self, clients: Sequence[int]) -> list[Tensor]:
        return list(super().rows(clients))

    def read(self, slots: Sequence[int]) -> Iterator[Tensor]:
        found = self._pool.fetch(self._kind, slots)
        for slot in slots:
            yield found[slot].clone()

    def write(self, slots: Sequence[int], rows: Sequence[Tensor]) -> None:
        self._pool.keep(self._kind, slots, rows)

    def addresses(self) -> AddressBook:
        return NOWHERE

    def nbytes(self) -> int:
        return len(self) * self.width * self.dtype.itemsize
