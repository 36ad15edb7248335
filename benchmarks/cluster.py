"""A round of w1 on Ray beside the local engine: whole rounds of ``fv.simulate``, in turn, by the clock and by processor time.

OMP_NUM_THREADS=1 python benchmarks/cluster.py --passes 7 --rounds 3     # writes benchmarks/results/cluster.json

Also what a part of a cohort costs to move on this machine: a call of an actor without work, and vectors of 1 and 10 million
numbers from an actor to the driver. The calculation in docs/cluster.md is made of these.
"""

from __future__ import annotations

import argparse
import json
import os
import time
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
CONTENDERS = {"local, 2 workers": (2, 0), "ray, 1 actor": (1, 1), "ray, 2 actors": (2, 2)}
"""Workers and, where it is not the local engine, actors."""


def rounds_of_w1(passes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds per round of FedVRA, of the clock and of processors."""
    workload, source, memory = WORKLOADS["w1"], Checkout.present().source, memory_of_one_side()
    starts = [
        partial(Side, name, source, Simulation(workload, "fedvra", workers, memory, actors=actors))
        for name, (workers, actors) in CONTENDERS.items()
    ]
    found = zip(CONTENDERS, take_turns(starts, workload, passes, rounds), strict=True)
    return {
        name: {
            "seconds": median(turn.seconds for turn in timed.turns),
            "processor_seconds": median(turn.processor for turn in timed.turns),
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112, its name; 15 by default, which would not be a fair race
    made: dict[str, Any] = {"moving": what_moving_costs()}
    print(json.dumps(made, indent=1), flush=True)
    made["w1"] = rounds_of_w1(given.passes, given.rounds)
    RESULTS.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(made["w1"], indent=1))
