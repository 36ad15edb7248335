"""Whose row is where: slots are staged, then committed or rolled back; what a slot is, is for the kind of store to say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.state.shared_rows import AddressBook


class RowBooks(ABC):
    """The server's side of a store of one row per client: which slot is whose."""

    width: int
    dtype: torch.dtype

    def __init__(self) -> None:
        self._slot: dict[int, int] = {}
        self._staged: dict[int, int] = {}

    # -- what a slot is --------------------------------------------------------------------------------------------------

    @abstractmethod
    def take(self) -> int:
        """A slot that nobody has."""

    @abstractmethod
    def release(self, slots: Iterable[int]) -> None:
        """Nobody has these slots any more."""

    @abstractmethod
    def read(self, slots: Sequence[int]) -> Iterator[Tensor]:
        """The rows in these slots, not to be written to."""

    @abstractmethod
    def write(self, slots: Sequence[int], rows: Sequence[Tensor]) -> None:
        """Put rows into these slots."""

    @abstractmethod
    def addresses(self) -> AddressBook:
        """Where other processes of this machine find the rows."""

    @abstractmethod
    def nbytes(self) -> int:
        """Memory and disk taken, wherever."""

    # -- whose it is -----------------------------------------------------------------------------------------------------

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
        clients = self.clients()
        yield from zip(clients, self.rows(clients), strict=True)

    def rows(self, clients: Sequence[int]) -> Iterator[Tensor]:
        """The committed rows of clients that have one."""
        return self.read([self._slot[client] for client in clients])

    def get(self, client: int) -> Tensor:
        """The committed row of a client (zeros if it never took part)."""
        if int(client) not in self._slot:
            return torch.zeros(self.width, dtype=self.dtype)
        return next(iter(self.rows([int(client)])))

    def put(self, clients: Sequence[int], rows: Sequence[Tensor]) -> None:
        """Stage and commit at once: for restoring a checkpoint."""
        _, write = self.stage(np.array(clients, dtype=np.int64))
        self.write(write.tolist(), rows)
        self.commit(clients)

    def stage(self, clients: Ints) -> tuple[Ints, Ints]:
        """For each client the slot to read its old row from (-1: it has none, so zero) and the slot to write the new one to."""
        read = np.array([self._slot.get(int(c), -1) for c in clients], dtype=np.int64)
        for client in clients:
            if int(client) not in self._staged:
                self._staged[int(client)] = self.take()
        return read, np.array([self._staged[int(c)] for c in clients], dtype=np.int64)

    def commit(self, clients: Iterable[int]) -> None:
        """Make the staged rows of these clients theirs."""
        old = []
        for client in map(int, clients):
            if client in self._slot:
                old.append(self._slot[client])
            self._slot[client] = self._staged.pop(client)
        self.release(old)

    def rollback(self) -> None:
        """Forget whatever is staged and was not committed."""
        self.release(self._staged.values())
        self._staged.clear()

    def clear(self) -> None:
        """Forget everybody's row, committed or staged."""
        self.rollback()
        self.release(self._slot.values())
        self._slot.clear()
