"""The server's books: x0, lam and, for every client, the ticket counted last. On the disk before anything is sent on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedvra.cohort import Ints
from fedvra.durable import intact_snapshots, save_snapshot
from fedvra.errors import FedvraError, require
from fedvra.flower.ledger import new_ticket
from fedvra.memory import Memory


@dataclass
class Books:
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
    memory: Memory = field(default_factory=Memory)
    """What an algorithm that adapts carries from round to round."""
    round: int = 0
    experiment: str = field(default_factory=new_ticket)
    """Names this experiment in the clients' ledgers."""
    incarnation: int = 0
    """How often a server was started on these books."""
    version: int = 0
    tickets: dict[int, str] = field(default_factory=dict)
    """The ticket counted last for each client; none for those never counted."""
    restores: dict[int, Tensor] = field(default_factory=dict)
    """lam_i that goes along with the next message to a client that lost its own."""
    shadow: dict[int, Tensor] = field(default_factory=dict)
    """The server's copy of every lam_i, where it keeps one."""

    def save(self, folder: Path) -> None:
        """Write everything; when this returns it will survive a crash."""
        self.version += 1
        server = {"x0": self.x0, "lam": self.lam, "counts": torch.from_numpy(self.counts)}
        server |= self.memory.tensors()
        server["samples"] = torch.from_numpy(self.samples)
        if self.aux is not None:
            server["aux"] = self.aux
        files = [("server.safetensors", server)]
        for name, rows in (("restores", self.restores), ("shadow", self.shadow)):
            if rows:
                files.append((f"{name}.safetensors", {str(client): row for client, row in rows.items()}))
        facts = {
            "identity": self.identity,
            "round": self.round,
            "experiment": self.experiment,
            "incarnation": self.incarnation,
            "tickets": {str(client): ticket for client, ticket in self.tickets.items()},
        }
        try:
            save_snapshot(folder, self.version, files, facts)
        except OSError as error:
            raise FedvraError(
                f"the checkpoint of round {self.round} could not be written to {folder} ({error}): "
                "free some space and start the run again; it goes on from the round before."
            ) from error

    def resume(self, folder: Path) -> bool:
        """Go on from what is in the folder, if anything; says whether there was."""
        found = next(intact_snapshots(folder), None)
        if found is None:
            return False
        path, facts = found
        require(
            facts["identity"] == self.identity,
            f"{folder} holds another experiment ({facts['identity']}, this one is {self.identity}): use another folder.",
        )
        server = load_file(path / "server.safetensors")
        self.x0, self.lam, self.aux = server["x0"], server["lam"], server.get("aux")
        self.memory = Memory.of(server)
        self.counts, self.samples = server["counts"].numpy(), server["samples"].numpy()
        self.round, self.experiment = int(facts["round"]), str(facts["experiment"])
        self.incarnation, self.version = int(facts["incarnation"]), int(path.name)
        self.tickets = {int(client): ticket for client, ticket in facts["tickets"].items()}
        self.restores, self.shadow = _rows(path / "restores.safetensors"), _rows(path / "shadow.safetensors")
        return True


def _rows(path: Path) -> dict[int, Tensor]:
    return {int(client): row for client, row in load_file(path).items()} if path.exists() else {}
