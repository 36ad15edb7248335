"""All that the clients of a run keep, as one: staged together, committed or rolled back together."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fedvra.core.block import Kept
from fedvra.core.cohort import Ints
from fedvra.state.row_books import RowBooks
from fedvra.state.shared_rows import AddressBook, RowAccess, RowReader


class Slots(NamedTuple):
    """Where in a store each client's old row is (-1: none, so zero) and its new one goes."""

    read: Ints
    write: Ints
    segments: AddressBook

    def cut(self, part: slice | Ints) -> Slots:
        """Those of some of the clients."""
        return Slots(self.read[part], self.write[part], self.segments)


class Staged(NamedTuple):
    """The places of a cohort's rows, of each kind that is kept."""

    duals: Slots | None = None
    anchors: Slots | None = None
    aux: Slots | None = None
    y: Slots | None = None
    residuals: Slots | None = None

    def cut(self, part: slice | Ints) -> Staged:
        """Those of some of the clients."""
        return Staged(*(None if slots is None else slots.cut(part) for slots in self))


class SlotRows:
    """Rows of some clients by their slots; see ``core.block.Rows``."""

    def __init__(self, reader: RowAccess, slots: Slots, like: Tensor) -> None:
        reader.attach(slots.segments)
        self._reader, self._like = reader, like
        self._read, self._write = slots.read.tolist(), slots.write.tolist()

    def old(self, k: int) -> Tensor | None:
        slot = self._read[k]
        return None if slot < 0 else self._reader.load(slot).to(self._like, non_blocking=True)

    def place(self, k: int) -> Tensor | None:
        if self._reader.dtype != self._like.dtype:
            return None
        place = self._reader.place(self._write[k])
        return place if place.device == self._like.device else None

    def stage(self, k: int, row: Tensor) -> None:
        self._reader.save(self._write[k], row)


class Readers(NamedTuple):
    """The clients' rows as a worker process sees them."""

    duals: RowAccess | None = None
    anchors: RowAccess | None = None
    aux: RowAccess | None = None
    y: RowAccess | None = None
    residuals: RowAccess | None = None

    def kept(self, staged: Staged, like: Tensor) -> Kept:
        """The rows of some clients, in the dtype and on the device of ``like``."""
        pairs = zip(self, staged, strict=True)
        return Kept(*(None if slots is None or r is None else SlotRows(r, slots, like) for r, slots in pairs))


class CommittedRows:
    """Rows of some clients as they are committed; what is staged is thrown away. For those who look on."""

    def __init__(self, store: RowBooks, clients: Ints, like: Tensor) -> None:
        self._store, self._clients, self._like = store, clients.tolist(), like

    def old(self, k: int) -> Tensor | None:
        client = self._clients[k]
        return self._store.get(client).to(self._like) if client in self._store else None

    def place(self, k: int) -> Tensor | None:
        return None

    def stage(self, k: int, row: Tensor) -> None:
        pass


class ClientState:
    """The server's side: one store of each kind that the algorithm and the problem need."""

    def __init__(
        self,
        duals: RowBooks,
        anchors: RowBooks | None = None,
        aux: RowBooks | None = None,
        y: RowBooks | None = None,
        residuals: RowBooks | None = None,
    ) -> None:
        self.duals = duals
        """lam_i."""
        self.anchors = anchors
        """A client's own x0, where it continues without communication."""
        self.aux = aux
        """Float buffers that stay with their client."""
        self.y = y
        """The second block y_i."""
        self.residuals = residuals
        """What compression has left unsent, where there are no duals to take it up."""

    def _all(self) -> tuple[RowBooks | None, ...]:
        """In the order of :class:`Staged`."""
        return self.duals, self.anchors, self.aux, self.y, self.residuals

    def kinds(self) -> dict[str, RowBooks]:
        """The stores there are, by name."""
        return {name: store for name, store in zip(Staged._fields, self._all(), strict=True) if store is not None}

    def stage(self, clients: Ints, duals: bool = True) -> Staged:
        """Places for the new rows of these clients; without ``duals`` only where somebody has one, and with residuals."""

        def slots(store: RowBooks | None) -> Slots | None:
            return None if store is None else Slots(*store.stage(clients), store.addresses())

        kept = self.duals if duals or len(self.duals) else None
        residuals = None if duals else self.residuals
        return Staged(slots(kept), slots(self.anchors), slots(self.aux), slots(self.y), slots(residuals))

    def commit(self, clients: Ints) -> None:
        """Make the staged rows of these clients theirs, and forget the others."""
        for store in self.kinds().values():
            if store.staging:
                store.commit(clients)
        self.rollback()

    def rollback(self) -> None:
        """Forget whatever is staged and was not committed."""
        for store in self.kinds().values():
            store.rollback()

    def committed(self, clients: Ints, like: Tensor) -> Kept:
        """The committed rows of these clients, with nowhere to put new ones."""
        return Kept(*(None if store is None else CommittedRows(store, clients, like) for store in self._all()))

    def readers(self, own_process: bool) -> Readers:
        """For the workers: in this process the stores themselves."""
        return Readers(*(_reader(store, own_process) for store in self._all()))


def _reader(store: RowBooks | None, own_process: bool) -> RowReader | None:
    if store is None:
        return None
    assert isinstance(store, RowReader), "rows on other machines have readers there"
    return store if own_process else RowReader(store.width, store.dtype, store.rows_per_segment)
