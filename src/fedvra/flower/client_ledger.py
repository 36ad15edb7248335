"""A client's own books: its state as the server last counted it, and what it uploaded since, each under a ticket.

A reply may be lost, come too late, be refused, or be counted by a server that dies before it can say so. The client cannot
know which, so it keeps both states: *committed*, which the server is known to have counted, and *pending*, which belongs to
the upload under way. Every upload carries a new random ticket, and every message of the server names the ticket it counted
last for this client. That settles the matter:

    ticket = pending's     the upload was counted: pending becomes committed
    ticket = committed's   it was not: pending is dropped
    any other              the books do not belong together (a lost or restored disk): nothing is changed, repair is asked for

so that lam = sum_i omega_i*lam_i holds between what the server has and what it has counted, whatever happened in between.

Messages may also arrive out of order, and an old one would settle against a ticket long superseded. Each carries the server's
stamp (its incarnation, and a number that grows within it), and one that is not newer than the last is refused.

On disk: one file of tensors per ticket, written once and never changed, and ``ledger.json``, replaced in one step. Nobody but
their owner can read them. Where a key is given, the page carries an HMAC, and one that was changed counts as lost.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock
from safetensors.torch import load_file
from torch import Tensor

from fedvra.core.errors import FedvraError, require
from fedvra.core.files import replace_durably, sync_folder
from fedvra.flower.private import private_files
from fedvra.state.durable import digest, seal, write_tensors

Stamp = tuple[int, int]
"""(incarnation of the server, number of the message within it)."""

Rows = dict[str, Tensor]
"""A client's state by name: "lam", and "y" or "aux" where the problem has them. What is missing is at its start."""


class LostStateError(FedvraError):
    """The server counted an upload this ledger knows nothing of: the client's state has to be restored."""


class StaleMessageError(FedvraError):
    """A message older than one that was already answered."""


@dataclass(frozen=True)
class Entry:
    """A state on disk: the ticket it goes by, and the SHA-256 of its file ("" where there is nothing but zeros)."""

    ticket: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class Page:
    """What ``ledger.json`` holds."""

    committed: Entry = Entry()
    pending: Entry | None = None
    stamp: Stamp = (0, 0)


def new_ticket() -> str:
    """A name no other upload ever had. Not from the run's streams: a repeated round must not repeat its ticket."""
    return secrets.token_hex(16)


def check_ticket(ticket: str) -> None:
    """Tickets become file names: anything but the 32 hexadecimal digits of one (or none at all) is refused."""
    require(re.fullmatch(r"([0-9a-f]{32})?", ticket) is not None, f"{ticket[:40]!r} is not a ticket.")


class Ledger:
    """The books of one client in one experiment, in a folder of their own.

    >>> import tempfile, torch
    >>> books = Ledger(Path(tempfile.mkdtemp()))
    >>> books.settle("", (1, 1))                         # the server has counted nothing so far
    >>> ticket = books.stage({"lam": torch.ones(2)})     # written before the upload leaves
    >>> books.settle(ticket, (1, 2))                     # the next message says that it was counted
    >>> books.rows()["lam"]
    tensor([1., 1.])
    """

    def __init__(self, folder: Path, key: bytes | None = None) -> None:
        self.folder, self._key = folder, key
        self.page = self._read()

    @classmethod
    def of(cls, root: Path, experiment: str, client: int, key: bytes | None = None) -> Ledger:
        """The ledger of a client in an experiment, under ``root``."""
        check_ticket(experiment)
        return cls(root / experiment / f"client-{client:06d}", key)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out meanwhile: a straggler may still be at work when the next message is handled."""
        with private_files(self.folder):
            lock = FileLock(self.folder / "lock", mode=0o600)
        with lock:
            self.page = self._read()
            yield

    def settle(self, counted: str, stamp: Stamp, restore: Mapping[str, Tensor] | None = None) -> None:
        """Bring the books in line with the ticket the server counted last; ``restore`` is the state that goes with it.

        Raises:
            StaleMessageError: the message is not newer than one already answered.
            LostStateError: the state that was counted is not here, or is damaged, and was not sent along.
        """
        check_ticket(counted)
        if stamp <= self.page.stamp:
            raise StaleMessageError(f"message {stamp} came after {self.page.stamp} had been answered: it is ignored.")
        held = next(
            (e for e in (self.page.committed, self.page.pending) if e is not None and e.ticket == counted), None
        )
        if held is None or not self._intact(held):
            if restore is None:
                raise LostStateError(f"the state under ticket {counted or '(none)'} is not in {self.folder}.")
            held = self._write_rows(counted, restore)
        self._turn_to(Page(held, None, stamp))

    def rows(self) -> Rows:
        """The committed state; empty for a client that was never counted."""
        entry = self.page.committed
        return load_file(self._path(entry.ticket)) if entry.sha256 else {}

    def stage(self, rows: Mapping[str, Tensor]) -> str:
        """Keep a new state beside the committed one, durably; returns the ticket its upload is to carry."""
        ticket = new_ticket()
        self._turn_to(replace(self.page, pending=self._write_rows(ticket, rows)))
        return ticket

    def _path(self, ticket: str) -> Path:
        return self.folder / f"{ticket}.safetensors"

    def _intact(self, entry: Entry) -> bool:
        if not entry.sha256:
            return True
        path = self._path(entry.ticket)
        return path.is_file() and digest(path) == entry.sha256

    def _write_rows(self, ticket: str, rows: Mapping[str, Tensor]) -> Entry:
        if not rows:
            return Entry(ticket)
        with private_files(self.folder):
            return Entry(ticket, write_tensors(self._path(ticket), dict(rows)))

    def _turn_to(self, page: Page) -> None:
        written = asdict(page)
        if self._key is not None:
            written["mac"] = seal(written, self._key)
        with private_files(self.folder):
            sync_folder(self.folder)  # the file of tensors must be there before the page that names it
            replace_durably(self.folder / "ledger.json", json.dumps(written).encode())
        self.page = page
        named = {entry.ticket for entry in (page.committed, page.pending) if entry is not None}
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in named:
                path.unlink()

    def _read(self) -> Page:
        try:
            found = json.loads((self.folder / "ledger.json").read_bytes())
            mac = found.pop("mac", "")
            if self._key is not None and not hmac.compare_digest(mac, seal(found, self._key)):
                return Page()
            committed, pending = Entry(**found["committed"]), found["pending"]
            incarnation, number = map(int, found["stamp"])
            return Page(committed, None if pending is None else Entry(**pending), (incarnation, number))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Page()  # new, wiped or damaged: the tickets will tell


class LedgerRows:
    """One kind of this client's rows: as committed in its ledger, and as they will be staged there."""

    def __init__(self, name: str, rows: Rows, new: Rows) -> None:
        self._name, self._rows, self._new = name, rows, new

    def old(self, k: int) -> Tensor | None:
        return self._rows.get(self._name)

    def place(self, k: int) -> Tensor | None:
        return None

    def stage(self, k: int, row: Tensor) -> None:
        self._new[self._name] = row
