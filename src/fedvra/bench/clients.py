"""Seconds per round and memory over the number of clients: what a run costs must not depend on who stays at home."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedvra.algorithms.fedvra import FedVRA
from fedvra.bench.resident import memory_mb, processor_seconds
from fedvra.bench.workloads import WORKLOADS, Workload
from fedvra.core.cohort import Ints
from fedvra.data.dataset import Dataset, FederatedData
from fedvra.engines.federation import Federation


@dataclass(frozen=True)
class ClientsReport:
    """One number of clients."""

    clients: int
    cohort: int
    rounds: int
    startup_seconds: float
    """From data in memory to the end of the first round."""
    seconds_per_round: float
    """Median over the later rounds."""
    processor_seconds: float
    """Of the server and the busiest worker per round: what a round takes where each has a core to itself."""
    memory_mb: float
    """Of all processes at the end."""
    state_gb: float
    """Client state, in memory and on disk."""
    took_part: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Overlapping(FederatedData):
    """Any number of clients over one pool of samples: they share some, which matters to learning and not to speed."""

    def part(self, client: int) -> Ints:
        return np.arange(self.offsets[client], self.offsets[client + 1]) % len(self.dataset.targets)


def measure_clients(
    clients: list[int], workload: Workload, rounds: int, workers: int, memory_limit: int, folder: Path | None
) -> Iterator[ClientsReport]:
    """FedVRA on this workload, for each number of clients in turn."""
    images, labels = WORKLOADS["w1"].raw()
    dataset = Dataset("bench", images, labels, transform=workload.transform, classes=10)
    for count in clients:
        offsets = np.arange(count + 1, dtype=np.int64) * workload.samples
        data = Overlapping(dataset, offsets, np.empty(0, dtype=np.int64))
        changed = replace(workload, clients=count, cohort=min(workload.cohort, count))
        yield _measure(changed, data, rounds, workers, memory_limit, folder)


def _measure(
    workload: Workload, data: FederatedData, rounds: int, workers: int, memory_limit: int, folder: Path | None
) -> ClientsReport:
    started = time.perf_counter()
    federation = Federation(
        workload.experiment(FedVRA(gamma=0.1, a=10, d=10), data),
        workers,
        memory_limit=memory_limit,
        state_folder=folder,
    )
    try:
        seconds = []
        federation.round()
        startup = time.perf_counter() - started
        pids = [os.getpid(), *(p.pid for p in federation.processes() if p.pid)]
        before = [processor_seconds(pid) for pid in pids]
        for _ in range(rounds - 1):
            seconds.append(federation.round()["seconds"])
        server, *workers_took = [processor_seconds(pid) - at for pid, at in zip(pids, before, strict=True)]
        memory = memory_mb(*pids)
        duals = federation.clients.duals
        return ClientsReport(
            clients=workload.clients,
            cohort=workload.cohort,
            rounds=rounds,
            startup_seconds=startup,
            seconds_per_round=median(seconds[len(seconds) // 2 :]),
            processor_seconds=(server + max(workers_took, default=0.0)) / max(1, rounds - 1),
            memory_mb=memory,
            state_gb=duals.nbytes() / 1e9,
            took_part=len(duals),
        )
    finally:
        federation.close()
