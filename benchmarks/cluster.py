"""A round of w1 on Ray beside the local engine and Flower's simulation: whole rounds, in turn, by clock and processor time.

OMP_NUM_THREADS=1 python benchmarks/cluster.py --flower flwrsim/bin/python     # writes benchmarks/results/cluster.json

``--flower`` is an interpreter that has Flower's simulation, which wants a Ray of its own version, and the same torch as
here: ``python -m venv flwrsim && flwrsim/bin/pip install 'flwr[simulation]==1.41.0' torch==2.13.0``. Everybody runs FedAvg
with the same network, cohort and local steps, one thread per process. FedVRA is timed as well: its rows move between actors.

Also what a part of a cohort costs to move on this machine: a call of an actor without work, and vectors of 1 and 10 million
numbers from an actor to the driver. The calculation in docs/cluster.md is made of these.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedvra.bench.against import Checkout
from fedvra.bench.jobs import Simulation
from fedvra.bench.sides import Side, memory_of_one_side, take_turns
from fedvra.bench.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results" / "cluster.json"
W1 = WORKLOADS["w1"]
LR, DECAY = 0.01, 1e-3
"""Of the workload."""


def contenders(algorithms: list[str], flower: str | None) -> dict[str, Callable[[], Side]]:
    """By name, how each is started: one and two workers of the local engine, of Ray, of Flower's simulation."""
    source, memory, counts = Checkout.present().source, memory_of_one_side(6), (1, 2)
    found: dict[str, Callable[[], Side]] = {}
    for algorithm in algorithms:
        for engine in ("local", "ray"):
            for count in counts:
                name = f"{algorithm}, {engine}, {count}"
                job = Simulation(W1, algorithm, count, memory, actors=count if engine == "ray" else 0)
                found[name] = partial(Side, name, source, job)
    for count in counts if flower else ():
        name = f"fedavg, flower, {count}"
        found[name] = partial(
            Side, name, source, sizes(count), [str(flower), str(Path(__file__).with_name("flower_w1.py"))]
        )
    return found


def sizes(actors: int) -> dict[str, Any]:
    """The workload in numbers, as Flower's side is told."""
    return {
        "clients": W1.clients,
        "samples": W1.samples,
        "cohort": W1.cohort,
        "epochs": W1.epochs,
        "batch-size": W1.batch_size,
        "pixels": math.prod(W1.shape),
        "lr": LR,
        "weight-decay": DECAY,
        "actors": actors,
    }


def rounds_of_w1(starts: dict[str, Callable[[], Side]], passes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds per round, of the clock and of processors, and MB of all processes."""
    found = zip(starts, take_turns(list(starts.values()), W1, passes, rounds), strict=True)
    return {
        name: {
            "seconds": median(turn.seconds for turn in timed.turns),
            "processor_seconds": median(turn.processor for turn in timed.turns),
            "memory_mb": max(turn.memory_mb for turn in timed.turns),
            "startup_seconds": timed.startup_seconds,
        }
        for name, timed in found
    }


def what_moving_costs(times: int = 20) -> dict[str, float]:
    """Median seconds of a call that does nothing, and of vectors that are made by an actor and read here."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)

    class Giver:
        def give(self, count: int) -> Any:
            return np.ones(count, dtype=np.float32)

    giver = ray.remote(num_cpus=1)(Giver).remote()
    found = {}
    for name, count in (("nothing", 0), ("1e6 numbers", 10**6), ("1e7 numbers", 10**7)):
        seconds = []
        for _ in range(times):
            begun = time.perf_counter()
            ray.get(giver.give.remote(count)).sum()
            seconds.append(time.perf_counter() - begun)
        found[name] = median(seconds)
    ray.shutdown()
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    """As in docs/cluster.md."""
    lines = ["| | workers | s per round | of processors | memory, MB |", "| --- | --- | --- | --- | --- |"]
    for name, took in found.items():
        algorithm, engine, count = name.split(", ")
        numbers = f"{took['seconds']:.3f} | {took['processor_seconds']:.3f} | {took['memory_mb']:,.0f}"
        lines.append(f"| {algorithm}, {engine} | {count} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--algorithms", default="fedavg,fedvra")
    parser.add_argument("--flower", metavar="PYTHON", help="an interpreter that has flwr[simulation]")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.flower and shutil.which(given.flower) is None:
        parser.error(f"--flower: there is no interpreter {given.flower}.")
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    os.environ.update(quiet)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112, its name; 15 by default, which would not be a fair race
    made: dict[str, Any] = {"moving": what_moving_costs()}
    print(json.dumps(made, indent=1), flush=True)
    made["w1"] = rounds_of_w1(contenders(given.algorithms.split(","), given.flower), given.passes, given.rounds)
    given.out.write_text(json.dumps(made, indent=1) + "\n")
    print(table(made["w1"]))


if __name__ == "__main__":
    main()
