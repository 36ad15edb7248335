"""Nodes in memory that have keys for masked sums."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fedvra as fv
from fedvra.flower import MaskedSum, Strategy
from fedvra.flower.mask_keys import make_key
from fedvra.flower.masked_node import MASK_KEY, PEERS
from flower_grid import FakeGrid, Node, make_nodes, quadratic

CLIENTS = 5


def pin(nodes: Iterable[Node], folder: Path) -> None:
    """Give every node a key, and the others' public ones."""
    nodes = list(nodes)
    made = {node.client: make_key(node.client, folder / "keys") for node in nodes}
    peers = folder / "peers.txt"
    peers.write_text("".join(public.read_text() for _, public, _ in made.values()))
    for node in nodes:
        node.config |= {MASK_KEY: str(made[node.client][0]), PEERS: str(peers)}


def unpin(grid: FakeGrid, client: int) -> None:
    """The nodes' administrators take a key out of their files of peers."""
    path = Path(next(iter(grid.nodes.values())).config[PEERS])
    lines = [line for line in path.read_text().splitlines(keepends=True) if not line.startswith(f"{client} ")]
    path.write_text("".join(lines))


def masked_grid(folder: Path, problem: fv.Quadratic | None = None) -> FakeGrid:
    nodes = make_nodes(problem or quadratic(CLIENTS), folder)
    pin(nodes.values(), folder)
    return FakeGrid(nodes)


def masked_strategy(folder: Path, algorithm: fv.Algorithm | None = None, **options: Any) -> Strategy:
    given: dict[str, Any] = {
        "problem": quadratic(CLIENTS),
        "clients": CLIENTS,
        "sampler": fv.Full(),
        "work": fv.Steps(3),
        "lr": 0.05,
        "folder": folder / "server",
        "wait": 0,
        "secure": MaskedSum(),
        **options,
    }
    return Strategy(algorithm or fv.FedVRA(gamma=0.5, a=2), **given)
