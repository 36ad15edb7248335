"""A client's key for masked sums, the keys it has pinned of the others, and what its own was used for.

Masks come from static keys, so they are only as good as the rule that no mask hides two vectors. The key file therefore holds,
beside the key, the last order that it was used for, and is replaced before anything is masked. That is not kept in the ledger,
which may be wiped.

A client answers once to each order of an experiment, and in each round to one cohort, one x0 and one table of work only. A
server that was restarted in the middle of a round, or says so, gets the same sum again under other masks, or nothing; the
difference of two sums over cohorts that differ in one client would be that client's upload.

So would that of two sums of duals, where one client was told in between that its last upload counted and the others that theirs
did not. So every order tells all alike which rounds counted, and a client goes by it: see ``Use.agrees``.

Duals are summed over all who may hold any. Only those are left out whose keys are no longer pinned: that somebody left is known
to the clients' administrators, not to the server alone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from filelock import FileLock

from fedvra.core.errors import FedvraError, UsageError, require
from fedvra.core.files import replace_durably
from fedvra.flower.client_ledger import Stamp
from fedvra.flower.private import private_files


class RosterError(FedvraError):
    """A masked sum that this client takes no part in, and why."""


@dataclass(frozen=True)
class Used:
    """What a key was used for last, in one experiment."""

    stamp: Stamp = (0, 0)
    round: int = -1
    told: str = ""
    """The digest of what the clients of that round were told."""
    met: list[int] = field(default_factory=list)
    """Everybody who was in a sum with this client."""
    rounds: int = 0
    outcomes: str = ""
    """Of how many rounds it was told whether they counted, and the SHA-256 of what it was told."""


@dataclass(frozen=True)
class Use:
    """A sum that a client is asked to take part in."""

    experiment: str
    stamp: Stamp
    round: int
    told: str
    clients: Sequence[int]
    report: bool = False
    """A sum of duals, not of moves."""
    outcomes: bytes = b""
    """Of each round so far, 1 if it counted, as all clients of the sum are told."""

    def agrees(self, last: Used, pending: str, counted: str) -> None:
        """What this client is told of its own upload that is pending is what all are told of its round; raises RosterError."""
        told = self.outcomes[last.round : last.round + 1] == b"\1"  # a round that is asked for again is not among them
        if pending and last.round >= 0 and told != (pending == counted):
            raise RosterError(
                f"of round {last.round + 1} it is told otherwise than the others whether its upload counted: the difference of "
                "two sums would show it."
            )

    def after(self, last: Used, pinned: Mapping[int, Any]) -> Used:
        """What is to be written down; raises RosterError where it may not be."""
        if self.stamp <= last.stamp:
            raise RosterError(f"order {self.stamp} came after {last.stamp} had been answered: its masks were used.")
        if len(self.outcomes) < last.rounds or (last.rounds and _digest(self.outcomes[: last.rounds]) != last.outcomes):
            raise RosterError("it is told otherwise than before which rounds counted.")
        last = replace(last, rounds=len(self.outcomes), outcomes=_digest(self.outcomes))
        met = sorted({*last.met, *self.clients})
        if self.report:
            missing = sorted(set(last.met) & set(pinned) - set(self.clients))
            if missing:
                raise RosterError(
                    f"the sum of duals leaves out clients {missing}, who took part before and whose keys are pinned: take "
                    "these out of the file of peers if they left."
                )
            return replace(last, stamp=self.stamp, met=met)
        if self.round < last.round or (self.round == last.round and self.told != last.told):
            raise RosterError(
                f"round {self.round + 1} was answered before, with other clients, another model or other work: the difference "
                "of two such sums would tell about single clients."
            )
        return replace(last, stamp=self.stamp, round=self.round, told=self.told, met=met)


class MaskKey:
    """A client's X25519 key in its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.client, self.private, self._used = self._read()

    def last(self, experiment: str) -> Used:
        """What it was used for last in an experiment."""
        return self._used.get(experiment, Used())

    def spend(self, use: Use, pinned: Mapping[int, Any]) -> None:
        """Write down that the key is about to be used, durably; raises RosterError where it may not be."""
        with FileLock(f"{self.path}.lock", mode=0o600):
            _, _, self._used = self._read()
            self._used[use.experiment] = use.after(self.last(use.experiment), pinned)
            _write(self.path, self.client, self.private, self._used)

    def _read(self) -> tuple[int, X25519PrivateKey, dict[str, Used]]:
        try:
            found = json.loads(self.path.read_bytes())
            private = X25519PrivateKey.from_private_bytes(base64.b64decode(found["private"], validate=True))
            used = {
                experiment: Used(**{**each, "stamp": tuple(map(int, each["stamp"]))})
                for experiment, each in found["used"].items()
            }
            return int(found["client"]), private, used
        except OSError as error:
            raise UsageError(f"the key for masked sums {self.path} cannot be read ({error.strerror}).") from None
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
            raise UsageError(
                f"{self.path} is not a key for masked sums, or is damaged: make one with `fedvra federation keys`, and have "
                "the other clients pin it."
            ) from None


def _digest(outcomes: bytes) -> str:
    return hashlib.sha256(outcomes).hexdigest()


def make_key(client: int, folder: Path) -> tuple[Path, Path, str]:
    """A new key for a client; its files, the private one and the one for the others, and the public key itself."""
    path, public = folder / f"client-{client}.key", folder / f"client-{client}.pub"
    require(not path.exists(), f"{path} is there already: take another folder, or remove it if nobody has pinned it.")
    key = X25519PrivateKey.generate()
    with private_files(folder):
        _write(path, client, key, {})
    text = base64.b64encode(key.public_key().public_bytes_raw()).decode("ascii")
    public.write_text(f"{client} {text}\n")
    return path, public, text


def read_peers(path: Path) -> dict[int, X25519PublicKey]:
    """The pinned keys by client, from a file with a line ``client key`` for each: the ``.pub`` files one after the other."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file of peers {path} cannot be read ({error}).") from None
    peers: dict[int, X25519PublicKey] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        try:
            client, text = words
            peer, key = int(client), X25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error):
            raise UsageError(
                f"{path}, line {number}: expected a client number and its key, got {line[:80]!r}."
            ) from None
        known = {each.public_bytes_raw() for each in peers.values()}
        require(
            peer not in peers and key.public_bytes_raw() not in known,
            f"{path}, line {number}: client {peer} or its key is there twice.",
        )
        peers[peer] = key
    return peers


def _write(path: Path, client: int, key: X25519PrivateKey, used: Mapping[str, Used]) -> None:
    held = {
        "client": client,
        "private": base64.b64encode(key.private_bytes_raw()).decode("ascii"),
        "used": {experiment: asdict(each) for experiment, each in used.items()},
    }
    with private_files(path.parent):
        replace_durably(path, json.dumps(held, indent=1).encode())
