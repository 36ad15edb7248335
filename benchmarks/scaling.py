"""How the engine scales over workers, cohort size and the number of clients: measures, keeps the JSON, draws the picture.

python benchmarks/scaling.py            # writes benchmarks/results/scaling.json and docs/images/scaling.svg
python benchmarks/scaling.py --draw     # draws again from the JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import fedvra as fv
from fedvra.bench.clients import measure_clients
from fedvra.bench.workloads import WORKLOADS, Workload
from fedvra.engines.federation import Federation
from fedvra.show.plots import STYLE, write_figure
from fedvra.show.style import ALGORITHMS

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scaling.json"
PICTURE = HERE.parent / "docs" / "images" / "scaling.svg"
TIME, MEMORY = ALGORITHMS["fedvra"][0], ALGORITHMS["scaffold"][0]


def steps_per_second(workload: Workload, workers: int, rounds: int = 6) -> float:
    """Client-steps per second of FedVRA, the median over some rounds."""
    federation = Federation(workload.experiment(fv.FedVRA(gamma=0.1, a=10, d=10), workload.data()), workers)
    try:
        federation.round()
        seconds = []
        for _ in range(rounds):
            begun = time.perf_counter()
            federation.round()
            seconds.append(time.perf_counter() - begun)
        return workload.client_steps / median(seconds)
    finally:
        federation.close()


def measure() -> dict[str, object]:
    w1 = WORKLOADS["w1"]
    cores = len(os.sched_getaffinity(0))
    return {
        "cores": cores,
        "workers": {w: steps_per_second(w1, w) for w in range(1, 2 * cores + 1)},
        "cohort": {m: steps_per_second(replace(w1, cohort=m), cores) for m in (2, 5, 10, 20, 50, 100)},
        "clients": [
            report.to_json()
            for report in measure_clients(
                [1_000, 10_000, 100_000, 1_000_000], replace(WORKLOADS["w3"], cohort=100), 20, cores, 1 << 30, None
            )
        ],
    }


def draw(found: dict[str, Any]) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(11, 3.2), layout="constrained")
        workers, cohort, clients = figure.subplots(1, 3)
        for axes, key, label in (
            (workers, "workers", "worker processes"),
            (cohort, "cohort", "clients in a round (m)"),
        ):
            values = {int(k): v for k, v in found[key].items()}
            axes.plot(list(values), list(values.values()), "o-", color=TIME)
            axes.set_xlabel(label)
        workers.set_ylabel("client-steps per second")
        workers.set_title(f"w1 over workers ({found['cores']} cores)", loc="left")
        cohort.set_title("w1 over cohort size", loc="left")
        cohort.sharey(workers)
        fastest = max(*found["workers"].values(), *found["cohort"].values())
        workers.set_ylim(0, 1.08 * fastest)
        rows, room = found["clients"], 1.08
        totals = [row["clients"] for row in rows]
        milliseconds = [1e3 * row["seconds_per_round"] for row in rows]
        clients.plot(totals, milliseconds, "o-", color=TIME)
        clients.set(xlabel="clients (N)", xscale="log", ylim=(0, room * max(milliseconds)))
        clients.set_ylabel("ms per round, m = 100", color=TIME)
        clients.set_title("One-step rounds over N", loc="left")
        memory = clients.twinx()
        memory.spines["right"].set_visible(True)
        memory.plot(totals, [row["memory_mb"] for row in rows], "s--", color=MEMORY)
        memory.set_ylim(0, room * max(row["memory_mb"] for row in rows))
        memory.set_ylabel("memory, MB", color=MEMORY)
        write_figure(figure, PICTURE)


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
    draw(json.loads(RESULTS.read_text()))
