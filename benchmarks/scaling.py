"""How the engine scales over workers, cohort size and the number of clients: measures, keeps the JSON, draws the picture.

python benchmarks/scaling.py            # writes benchmarks/results/scaling.json and docs/images/scaling.png
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

import fedvra as fv
from fedvra.bench.clients import measure_clients
from fedvra.bench.workloads import WORKLOADS, Workload
from fedvra.engines.federation import Federation

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scaling.json"
PICTURE = HERE.parent / "docs" / "images" / "scaling.png"


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


def draw(found: dict[str, object]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (workers, cohort, clients) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for axes, key, label in ((workers, "workers", "worker processes"), (cohort, "cohort", "clients in a round (m)")):
        values = {int(k): v for k, v in found[key].items()}  # type: ignore[attr-defined]
        axes.plot(list(values), list(values.values()), "o-", color="#0072B2")
        axes.set(xlabel=label, ylabel="client-steps per second", ylim=(0, None))
    workers.set_title(f"w1 over workers ({found['cores']} cores)")
    cohort.set_title("w1 over cohort size")
    rows = found["clients"]
    totals = [row["clients"] for row in rows]  # type: ignore[attr-defined]
    clients.plot(totals, [1e3 * row["seconds_per_round"] for row in rows], "o-", color="#0072B2")  # type: ignore[attr-defined]
    clients.set(xlabel="clients (N)", ylabel="ms per round, m = 100", xscale="log", ylim=(0, None))
    clients.yaxis.label.set_color("#0072B2")
    memory = clients.twinx()
    memory.plot(totals, [row["memory_mb"] for row in rows], "s--", color="#D55E00")  # type: ignore[attr-defined]
    memory.set(ylabel="memory, MB", ylim=(0, None))
    memory.yaxis.label.set_color("#D55E00")
    clients.set_title("one-step rounds over N")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
    draw(json.loads(RESULTS.read_text()))
