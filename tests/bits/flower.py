"""Rounds of a federation without its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedvra as fv
from fedvra.flower import Strategy, client_app
from flower_grid import FakeGrid, Node


class Grid(FakeGrid):
    """For older strategies too, which know nodes by their number alone."""

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)


def play(algorithm: fv.Algorithm, options: dict[str, Any], folder: Path, rounds: int) -> Strategy:
    app = client_app(problem=options["problem"])
    nodes = {100 + i: Node(i, folder / f"node{i}", app) for i in range(options["clients"])}
    strategy = Strategy(algorithm, folder=folder / "server", wait=0, **options)
    strategy.start(Grid(nodes), num_rounds=rounds, timeout=1)
    return strategy
