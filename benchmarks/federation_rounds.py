"""What a round takes over Flower's processes, with what can be had against it: the demo's federation, in each way in turn.

    python benchmarks/federation_rounds.py --nodes 2 --rounds 6 --passes 3

plain: as Flower comes. poll: its SuperExecs look for work every 0.1 s in place of every second. worker: a warm worker beside
each SuperNode. gate: SuperNodes behind the gate, which holds their requests until there is a message. all: the three.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from fedvra.flower.demo import run

WAYS = {
    "plain": ("1.0", False, False),
    "poll": ("0.1", False, False),
    "worker": ("1.0", True, False),
    "gate": ("1.0", False, True),
    "all": ("0.1", True, True),
}
"""Name -> poll interval of SuperExecs, workers, gate."""


def seconds(way: str, nodes: int, rounds: int) -> list[float]:
    """Of each round but the first, which waits for what starts with the run."""
    interval, workers, gate = WAYS[way]
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = interval
    with tempfile.TemporaryDirectory() as folder:
        return later_rounds(run(nodes, rounds, gate, Path(folder), workers))


def later_rounds(lines: Iterable[str]) -> list[float]:
    """What the demo says that each round but the first took."""
    found = [re.search(r"^round (\d+) of .*, ([\d.]+) s(; about|$)", line) for line in lines]
    return [float(match[2]) for match in found if match and int(match[1]) > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    found: dict[str, list[float]] = {way: [] for way in given.ways}
    for _ in range(given.passes):
        for way in given.ways:
            found[way] += seconds(way, given.nodes, given.rounds)
            print(f"{way}: {median(found[way]):.1f} s a round (median of {len(found[way])})", flush=True)


if __name__ == "__main__":
    main()
