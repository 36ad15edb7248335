"""How a federation stands, from the files in its server's folder alone: the run may be under way, or over."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedvra.core.errors import UsageError
from fedvra.core.members import NEVER
from fedvra.flower.members import requests
from fedvra.flower.run_files import MODEL
from fedvra.flower.server_books import Books
from fedvra.runs.files import Record, RunFolder


@dataclass(frozen=True)
class Member:
    """One client, there or gone."""

    client: int
    state: str
    """"there", "leaving" (before the next round), "being restored" (with the next message) or "left"."""
    samples: int
    joined: int
    """After which round; 0: there from the start."""
    left: int | None
    """After which round."""
    asked: int
    """How many rounds drew it."""
    counted_last: int | None
    """The last round that counted its upload."""
    key: str
    """The first digits of the fingerprint of its node's key; "" where it has none."""

    def cells(self) -> list[str]:
        """A row of a table."""
        return ["" if value is None else str(value) for value in asdict(self).values()]


@dataclass(frozen=True)
class FederationStatus:
    """What ``fedvra federation status`` says."""

    folder: str
    algorithm: str
    seed: int
    parameters: int
    round: int
    """The number of the last round, void ones included."""
    void_rounds: int
    run: str
    """How the last run on the folder ended; "under way" where it has not, or was killed."""
    reason: str | None
    """Why it ended before its last round."""
    updated: str | None
    """When the last record was written."""
    train_loss: float | None
    test_accuracy: float | None
    lost: dict[str, str]
    """Who did not count in the last round, and why."""
    audit: dict[str, Any] | None
    """The last one, with its round."""
    model: str | None
    """The file of the global model."""
    members: list[Member]

    @classmethod
    def of(cls, folder: Path, key: bytes | None = None) -> FederationStatus:
        books = Books.read(folder, key)
        if books is None:
            raise UsageError(f"there are no books in {folder}.")
        files = RunFolder(folder)
        records = files.metrics()
        last = records[-1] if records else books.record
        summary = files.summary() if files.summary_file.is_file() else None
        audits = [{"round": record["round"], **record["audit"]} for record in records if "audit" in record]
        written = files.metrics_file.stat().st_mtime if records else None
        return cls(
            folder=str(folder),
            algorithm=str(books.identity["algorithm"]),
            seed=int(books.identity["seed"]),
            parameters=books.x0.numel(),
            round=books.round,
            void_rounds=books.voids,
            run="under way" if summary is None else summary.status,
            reason=None if summary is None else summary.message or summary.stopped,
            updated=None if written is None else datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds"),
            train_loss=last.get("train_loss"),
            test_accuracy=last.get("test_accuracy"),
            lost={str(client): why for client, why in last.get("lost", {}).items()},
            audit=audits[-1] if audits else None,
            model=str(folder / MODEL) if (folder / MODEL).is_file() else None,
            members=_members(books, records, requests(folder, books, key)),
        )

    def lines(self) -> list[str]:
        """The same in sentences, but for the members."""
        void = f" ({self.void_rounds} void)" if self.void_rounds else ""
        reason = f": {self.reason}" if self.reason else ""
        said = [
            f"{self.algorithm}, seed {self.seed}, {self.parameters} parameters, books in {self.folder}",
            f"after round {self.round}{void}; the run is {self.run}{reason}",
        ]
        if self.updated is not None:
            figures = {"train loss": self.train_loss, "test accuracy": self.test_accuracy}
            known = [f"{name} {value:.4f}" for name, value in figures.items() if value is not None]
            said.append(", ".join([f"last record {self.updated}", *known]))
        said += [f"not counted in the last round: client {client} {why}" for client, why in self.lost.items()]
        if self.audit is not None:
            gap, scale = (float(self.audit[name] or 0.0) for name in ("gap", "scale"))
            missing = f", no dual from clients {', '.join(self.audit['missing'])}" if self.audit["missing"] else ""
            said.append(
                f"audit after round {self.audit['round']}: |lam - sum omega_i lam_i| {gap:.1e} of {scale:.1e}{missing}"
            )
        return said + ([f"model: {self.model}"] if self.model is not None else [])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _members(books: Books, records: list[Record], leaving: set[int]) -> list[Member]:
    last = {client: record["round"] for record in records for client in record.get("counted", [])}
    found = []
    for client in (books.members.joined != NEVER).nonzero()[0].tolist():
        gone = int(books.members.left[client])
        states = {"left": gone != NEVER, "leaving": client in leaving, "being restored": client in books.restores}
        found.append(
            Member(
                client=client,
                state=next((name for name, holds in states.items() if holds), "there"),
                samples=int(books.samples[client]),
                joined=int(books.members.joined[client]),
                left=None if gone == NEVER else gone,
                asked=int(books.counts[client]),
                counted_last=last.get(client),
                key=books.keys.get(client, "")[:16],
            )
        )
    return found
