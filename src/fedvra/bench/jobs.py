"""What a contender's process is told to run: an algorithm through ``fv.simulate``, or the bare loop.

Written in the public names of ``fedvra`` alone, as the workloads are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import fedvra as fv
from fedvra.bench.bare import Bare
from fedvra.bench.workloads import ALGORITHMS, Workload

Progress = Callable[[dict[str, Any]], None]
Run = Callable[[int, Progress], None]
"""Runs so many rounds; the function is called with the record of each, and may raise to end them."""


class Job(ABC):
    """Rounds of a workload, to be run by a process of its own."""

    @abstractmethod
    def prepare(self) -> Run:
        """Have the data in memory; the clock starts after that."""


@dataclass(frozen=True)
class Simulation(Job):
    """One algorithm, whole rounds as users run them."""

    workload: Workload
    algorithm: str
    workers: int
    memory_limit: int
    """Bytes of client state in memory: given, so that processes that share a machine get the same."""
    path: str = "auto"
    precision: str = "float32"
    actors: int = 0
    """Of Ray, on this machine, in place of the local engine's workers; 0: none."""

    def prepare(self) -> Run:
        """Clients take turns, so that all of them have a dual after N/m rounds, and nobody is met twice before."""
        settings = self.workload.settings(self.workload.data())
        settings["sampler"] = fv.Cyclic(self.workload.cohort, reshuffle=True)
        if (self.path, self.precision) != ("auto", "float32"):
            settings["solver"] = fv.SolverSettings(path=self.path, precision=self.precision)
        if self.actors:
            settings["engine"] = fv.Ray(workers=self.actors)

        def run(rounds: int, progress: Progress) -> None:
            fv.simulate(
                ALGORITHMS[self.algorithm](),
                rounds=rounds,
                workers=self.workers,
                memory_limit=self.memory_limit,
                progress=progress,
                **settings,
            )

        return run


@dataclass(frozen=True)
class BareLoop(Job):
    """The bare loop in as many processes; ``stateful``: with a dictionary of SCAFFOLD's control variates."""

    workload: Workload
    workers: int
    stateful: bool = False

    def prepare(self) -> Run:
        w = self.workload
        raw, labels = w.raw()
        inputs = w.transform(raw, None, torch.float32)

        def run(rounds: int, progress: Progress) -> None:
            sizes = {"clients": w.clients, "cohort": w.cohort, "epochs": w.epochs, "batch_size": w.batch_size}
            bare = Bare(w.make_model, inputs, labels, **sizes, processes=self.workers, stateful=self.stateful)
            try:
                for _ in range(rounds):
                    bare.round()
                    progress({})
            finally:
                bare.close()

        return run
