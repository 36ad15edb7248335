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
from fedvra.flower.launcher import LocalFederation

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

    def bring(self, *nodes: int) -> None:
        """Start nodes, and wait until they are connected: a run that is begun before them would be played without them."""
        before = {i: self._connections(i) for i in nodes}
        for i in nodes:
            self.start_node(i)
        deadline = time.monotonic() + 300
        while any(self._connections(i) == before[i] for i in nodes):
            assert time.monotonic() < deadline, [self.log(f"node{i}")[-500:] for i in nodes]
            time.sleep(0.2)

    def _connections(self, i: int) -> int:
        """How often a node has been let in by the SuperLink."""
        return self.log(f"node{i}").count("SuperNode ID:") if (self.folder / f"node{i}.log").exists() else 0

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
