"""A federation of real processes on loopback whose clients hold a shard each; its app is ``flower/flower_app``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fedvra.flower import server_books
from fedvra.flower.launcher import CONNECTION, LocalFederation

APP = Path(__file__).parent / "flower" / "flower_app"
sys.path.insert(0, str(APP))

from faulty.problem import CLIENTS as CLIENTS  # noqa: E402
from faulty.problem import algorithm as algorithm  # noqa: E402
from faulty.problem import all_data as all_data  # noqa: E402
from faulty.problem import problem as problem  # noqa: E402
from faulty.problem import settings as settings  # noqa: E402
from faulty.problem import write_shards  # noqa: E402

IMPOSTOR = CLIENTS
"""A node with a registered key of its own that says it is client 1."""
IDENTITY = {"algorithm": "fedvra", "seed": 7, "clients": CLIENTS, "parameters": 83}


class Shards(LocalFederation):
    """Node i is client i and holds ``shard<i>.npz``."""

    def node_config(self, i: int) -> str:
        return f'data-file="{self.folder}/shard{self.client(i)}.npz"'

    def client(self, i: int) -> int:
        return 1 if i == IMPOSTOR else i

    def play(self, **config: Any) -> str:
        """``flwr run`` to its end; returns the ServerApp's log."""
        with self._submit(config) as process:
            assert process.stdout is not None
            return process.stdout.read()

    def play_until_death(self, **config: Any) -> None:
        """``flwr run`` until the ServerApp has killed itself; Flower would notice about a minute later."""
        died = self.folder / "died"
        with self._submit(config) as process:
            while not died.exists():
                assert process.poll() is None
                time.sleep(0.2)
            process.terminate()
        died.unlink()

    def await_nodes(self, count: int) -> None:
        """Until so many are connected."""
        deadline = time.monotonic() + 300
        while self.flwr("supernode", "list", CONNECTION).stdout.count("online") < count:
            assert time.monotonic() < deadline
            time.sleep(1)

    def _submit(self, config: dict[str, Any]) -> subprocess.Popen[str]:
        given = {"folder": self.folder, "faults": self.folder / "faults", "bind-keys": self.secure}
        return self.submit(APP, {**given, **config})

    def records(self, books: str = "books") -> list[dict[str, Any]]:
        path = self.folder / f"{books}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def server_state(self, books: str = "books", **identity: Any) -> server_books.Books:
        state = server_books.Books.read(self.folder / books)
        assert state is not None
        assert state.identity == {**IDENTITY, **identity}
        return state


def start(folder: Path, secure: bool, kind: type[Shards] = Shards, **more: Any) -> Iterator[Any]:
    write_shards(folder)
    (folder / "faults").mkdir()
    with kind(CLIENTS, folder, secure=secure, **more) as federation:
        yield federation


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).norm() / right.norm())
