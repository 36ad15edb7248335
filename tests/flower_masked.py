"""Nodes in memory that have keys for masked sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

import fedvra as fv
from fedvra.flower import MaskedSum, Strategy
from fedvra.flower.mask_keys import make_key
from fedvra.flower.mask_table import Table
from fedvra.flower.masked_node import MASK_KEY, PEERS
from fedvra.flower.protocol import Order, pack, unpack_answer, unpack_order
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


def run(strategy: Strategy, grid: FakeGrid, rounds: int) -> None:
    """Rounds up to this number, void ones among them."""
    strategy.timeout = 0.01
    strategy.open(grid)
    while strategy.books.round < rounds:
        strategy.play(grid)


def orders_of_a_round(tmp_path: Path) -> tuple[dict[int, Order], FakeGrid]:
    """What an honest server would send in the second round; nobody has seen it yet."""
    grid = masked_grid(tmp_path)
    strategy = masked_strategy(tmp_path)
    run(strategy, grid, 1)
    messages = list(strategy.configure_train(2, None, None, grid))  # type: ignore[arg-type]
    orders = [unpack_order(message.content) for message in messages]
    return {order.client: order for order in orders}, grid


def say(grid: FakeGrid, order: Order) -> Any:
    message = Message(pack(order), 100 + order.client, "train")
    return unpack_answer(grid.nodes[100 + order.client].handle(message).content)


def without(order: Order, *clients: int) -> Order:
    table = Table.read(order.arrays["table"])
    kept = ~np.isin(table.clients, clients)
    fewer = Table(*(getattr(table, name)[kept] for name in table.__dataclass_fields__))
    return replace(order, arrays={**order.arrays, "table": fewer.tensor()})
