"""The server's books: x0, lam and, for every client, the ticket counted last. On the disk before anything is sent on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from safetensors.torch import load_file
from torch import Tensor

from fedvra.core.adaptive import Memory
from fedvra.core.cohort import Ints
from fedvra.core.deploy import Deployed, Deploying
from fedvra.core.errors import FedvraError, UsageError, require
from fedvra.core.members import NEVER, Members
from fedvra.flower.client_ledger import new_ticket
from fedvra.flower.private import private_files
from fedvra.flower.protocol import Answer
from fedvra.flower.roster import fingerprint
from fedvra.runs.files import finite
from fedvra.state.durable import intact_snapshots, save_snapshot, snapshots


@dataclass
class Books(Deploying):
    """All that the server carries from round to round, and over a restart."""

    identity: dict[str, Any]
    """What must not change over a resume: algorithm, seed, N, P."""
    x0: Tensor
    lam: Tensor
    aux: Tensor | None
    counts: Ints
    """How often each client was asked to take part."""
    samples: Ints
    """n_i; zeros until everybody has said it."""
    members: Members
    """Who is there, over client numbers that never change."""
    memory: Memory = field(default_factory=Memory)
    """What an algorithm that adapts carries from round to round."""
    deployed: Deployed | None = None
    """The model that the run is for, where it is not x0; None before the first round."""
    round: int = 0
    voids: int = 0
    """How many rounds there were in which clients were asked and nobody counted."""
    record: dict[str, Any] = field(default_factory=dict)
    """Of the last round: should the server die before it is in metrics.jsonl."""
    experiment: str = field(default_factory=new_ticket)
    """Names this experiment in the clients' ledgers."""
    incarnation: int = 0
    """How often a server was started on these books."""
    version: int = 0
    tickets: dict[int, str] = field(default_factory=dict)
    """The ticket counted last for each client; none for those never counted."""
    keys: dict[int, str] = field(default_factory=dict)
    """Whose key each client number belongs to, by the fingerprint of the node that claimed it first."""
    restores: dict[int, Tensor] = field(default_factory=dict)
    """lam_i that goes along with the next message to a client that lost its own."""
    shadow: dict[int, Tensor] = field(default_factory=dict)
    """The server's copy of every lam_i, where it keeps one."""
    whole: Tensor | None = None
    """lam in grains, where sums are masked (``fedvra.core.whole``)."""
    outcomes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    """Of every round, 1 if it counted, where sums are masked: all clients are told alike."""
    reach: float = 0.0
    """How far moves went in the last masked sum, in any coordinate, on average; 0 before the first."""

    def introduce(self, answer: Answer, key: str | None, max_samples: int) -> str | None:
        """Write down what a client says of itself; returns why it is not believed, or None. ``key`` None binds nothing."""
        client = answer.client
        if not 0 <= client < len(self.samples):
            return f"there are clients 0 to {len(self.samples) - 1}, and max_clients makes room for no more"
        if self.members.left[client] != NEVER:
            return f"client {client} has left for good: to come back it needs a number that is still free"
        if not 1 <= answer.samples <= max_samples:
            return f"it holds {answer.samples} samples; 1 is the least and {max_samples} the most"
        if key is not None and (refusal := self.claim(client, key)) is not None:
            return refusal
        if self.members.present[client] and not self.samples[client]:
            self.samples[client] = answer.samples  # the first time; from then on see ``fedvra.flower.members``
        return None

    def keeps_pace(self, answer: Answer) -> bool:
        """Whether a client has the state that was counted last, or will be sent it."""
        counted = self.tickets.get(answer.client, "")
        return counted in (answer.committed, answer.pending) or answer.client in self.restores

    @classmethod
    def begin(cls, identity: dict[str, Any], x0: Tensor, aux: Tensor | None, members: Members) -> Books:
        """Before the first round."""
        counts, samples = (np.zeros(len(members.joined), dtype=np.int64) for _ in range(2))
        return cls(identity, x0, torch.zeros_like(x0), aux, counts, samples, members)

    def end_round(self, counted: bool) -> None:
        """One round more, in which somebody counted or not."""
        self.round += 1
        if self.identity.get("secure"):
            self.outcomes = torch.cat([self.outcomes, torch.tensor([counted], dtype=torch.uint8)])

    def claim(self, client: int, key: str) -> str | None:
        """Bind a client number to a node's key; returns why not, where it belongs to another or the key to another number."""
        if (holder := self.keys.get(client, key)) != key:
            return (
                f"client {client} belongs to the key {holder[:16]}, this node has {key[:16]}; to give it to another on "
                f"purpose, stop the run and say `fedvra federation rebind FOLDER {client}`"
            )
        others = [other for other, fingerprint in self.keys.items() if fingerprint == key and other != client]
        if key and others:
            return f"its key {key[:16]} belongs to client {others[0]}"
        if key:
            self.keys[client] = key
        return None

    def save(self, folder: Path, key: bytes | None = None) -> None:
        """Write everything; when this returns it will survive a crash. With a key it carries a MAC."""
        self.version += 1
        server = {"x0": self.x0, "lam": self.lam, "counts": torch.from_numpy(self.counts)}
        server |= self.memory.tensors()
        server |= {"samples": torch.from_numpy(self.samples), "joined": torch.from_numpy(self.members.joined)}
        server["left"] = torch.from_numpy(self.members.left)
        if self.aux is not None:
            server["aux"] = self.aux
        if self.deployed is not None:
            server |= self.deployed.tensors()
        if self.whole is not None:
            server["whole"] = self.whole
        if len(self.outcomes):
            server["outcomes"] = self.outcomes
        files = [("server.safetensors", server)]
        for name, rows in (("restores", self.restores), ("shadow", self.shadow)):
            if rows:
                files.append((f"{name}.safetensors", {str(client): row for client, row in rows.items()}))
        facts = {
            "identity": self.identity,
            "round": self.round,
            "voids": self.voids,
            "record": finite(self.record),
            "experiment": self.experiment,
            "incarnation": self.incarnation,
            "tickets": {str(client): ticket for client, ticket in self.tickets.items()},
            "keys": {str(client): fingerprint for client, fingerprint in self.keys.items()},
            "reach": self.reach,
        }
        try:
            with private_files(folder):
                save_snapshot(folder, self.version, files, facts, key)
        except OSError as error:
            raise FedvraError(
                f"the checkpoint of round {self.round} could not be written to {folder} ({error}): "
                "free some space and start the run again; it resumes from the round before."
            ) from error

    def resume(self, folder: Path, key: bytes | None = None) -> bool:
        """Resume from the folder's last checkpoint, if it has one; says whether it had."""
        found = Books.read(folder, key)
        if found is None:
            return False
        require(
            found.identity == self.identity,
            f"{folder} holds another experiment ({found.identity}, this one is {self.identity}): use another folder.",
        )
        found.make_room(len(self.counts))
        vars(self).update(vars(found))
        return True

    def make_room(self, numbers: int) -> None:
        """Have so many client numbers in all: ``max_clients`` may have grown since the books were written."""
        self.members = self.members.with_room(numbers)
        more = numbers - len(self.counts)
        self.counts, self.samples = (np.pad(each, (0, more)) for each in (self.counts, self.samples))

    @classmethod
    def read(cls, folder: Path, key: bytes | None = None) -> Books | None:
        """The books in a folder; None where there never were any."""
        found = next(intact_snapshots(folder, key), None)
        if found is None:
            if damaged := snapshots(folder):
                raise FedvraError(
                    f"none of the checkpoints in {folder} ({', '.join(path.name for path in damaged)}) is as it was "
                    f"written{' under this key' if key else ''}: put a copy back, or use another folder for a new experiment."
                )
            return None
        path, facts = found
        server = load_file(path / "server.safetensors")
        everybody = Members.founders(len(server["counts"]))  # as books had it before members could join or leave
        return cls(
            identity=facts["identity"],
            x0=server["x0"],
            lam=server["lam"],
            aux=server.get("aux"),
            counts=server["counts"].numpy(),
            samples=server["samples"].numpy(),
            members=Members(server["joined"].numpy(), server["left"].numpy()) if "left" in server else everybody,
            memory=Memory.of(server),
            deployed=Deployed.of(server),
            round=int(facts["round"]),
            voids=int(facts.get("voids", 0)),
            record=facts.get("record", {}),
            experiment=str(facts["experiment"]),
            incarnation=int(facts["incarnation"]),
            version=int(path.name),
            tickets={int(client): ticket for client, ticket in facts["tickets"].items()},
            keys={int(client): fingerprint for client, fingerprint in facts.get("keys", {}).items()},
            restores=_rows(path / "restores.safetensors"),
            shadow=_rows(path / "shadow.safetensors"),
            whole=server.get("whole"),
            outcomes=server.get("outcomes", torch.empty(0, dtype=torch.uint8)),
            reach=float(facts.get("reach", 0.0)),
        )


def rebind(folder: Path, client: int, public: Path | None, key: bytes | None = None) -> tuple[str, str]:
    """Give a client number to another key, or to whoever claims it next; the fingerprints before and after ("": nobody's)."""
    books = Books.read(folder, key)
    if books is None:
        raise UsageError(f"there are no books in {folder}.")
    require(client < len(books.counts), f"there are clients 0 to {len(books.counts) - 1}, not {client}.")
    was, now = books.keys.pop(client, ""), ""
    if public is not None:
        try:
            found = load_ssh_public_key(public.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise UsageError(f"{public} cannot be read as a public key ({error}).") from None
        require(isinstance(found, EllipticCurvePublicKey), f"{public} is not a SuperNode's key (ECDSA).")
        assert isinstance(found, EllipticCurvePublicKey)
        now = fingerprint(public_key_to_bytes(found))
        refusal = books.claim(client, now)
        require(refusal is None, f"{public} cannot have it: {refusal}.")
    books.save(folder, key)
    return was, now


def _rows(path: Path) -> dict[int, Tensor]:
    return {int(client): row for client, row in load_file(path).items()} if path.exists() else {}
