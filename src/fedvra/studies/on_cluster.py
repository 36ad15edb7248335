"""Independent runs on the machines of a Ray cluster: each is a task of its own, made there by the engine of one machine.

A run writes its own folder, so that has to be on a file system that all machines share. A task that dies with its machine is
begun again elsewhere, and continues from the run's last checkpoint.
"""

from __future__ import annotations

import os
import platform
import signal
from pathlib import Path
from types import TracebackType
from typing import Any

from fedvra.core import accelerators
from fedvra.core.errors import FedvraError, RunInterrupt, require
from fedvra.engines.ray_engine import PLACEMENTS, Ray, connect, disconnect, require_ray
from fedvra.studies.parallel import Failure, Job, Place, Underway


class Cluster(Place):
    """As many runs at a time as there is room for. A context: Ray is disconnected, or stopped, at its end.

    Args:
        engine: where the cluster is, and what share of a GPU a run gets.
        folder: the runs' folders are in it.
        runs: how many there are.
        workers: processes of each run; ``"auto"``: all CPUs, shared out among the runs, on one machine each.
    """

    def __init__(self, engine: Ray, folder: Path, runs: int, workers: int | str = "auto") -> None:
        self._engine, self._folder, self._runs, self._asked = engine, folder.resolve(), runs, workers

    def __enter__(self) -> Cluster:
        require_ray()
        import ray

        self._ray = ray
        self._ours = connect(self._engine.address, None, self._engine.runtime_env)
        try:
            self.workers = self._share()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        disconnect(self._ours)

    @property
    def at_once(self) -> int:
        there, gpus = self._ray.cluster_resources(), self._engine.gpus_per_worker
        room = there.get("CPU", 0) // self.workers
        return max(1, int(min(room, there.get("GPU", 0) / gpus + 1e-9) if gpus else room))

    def start(self, job: Job) -> Underway:
        task = self._ray.remote(_play).options(
            name=f"fedvra {job.name}",
            num_cpus=self.workers,
            num_gpus=self._engine.gpus_per_worker,
            scheduling_strategy=PLACEMENTS[self._engine.placement],
        )
        return _Task(self._ray, job, task.remote(job, self.workers, self._folder, os.getcwd()))

    def _share(self) -> int:
        """CPUs of one run."""
        found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        machines = [int(cpus) for each in found if (cpus := each.get("CPU", 0))]
        require(bool(machines), "the Ray cluster has no CPUs to run anything on: `ray status` tells.")
        gpus = self._engine.gpus_per_worker
        require(
            max(each.get("GPU", 0) for each in found) >= gpus,
            f"a run is to have {gpus:g} GPUs, and no machine of the cluster has them: ask for less with --gpus-per-worker.",
        )
        if isinstance(self._asked, int):
            require(
                self._asked <= max(machines),
                f"a run is to have {self._asked} workers, and no machine of the cluster has more than {max(machines)} CPUs: "
                "ask for fewer with --workers.",
            )
            return self._asked
        return max(1, min(sum(machines) // self._runs, *machines))


class _Task(Underway):
    def __init__(self, ray: Any, job: Job, ref: Any) -> None:
        self._ray, self._job, self._ref = ray, job, ref

    def over(self) -> bool:
        return bool(self._ray.wait([self._ref], timeout=0)[0])

    def failure(self) -> FedvraError | None:
        try:
            failure: Failure | None = self._ray.get(self._ref)
        except self._ray.exceptions.RayError as error:
            return FedvraError(f"{self._job.name} failed: {' '.join(str(error).split())[:300]}")
        return None if failure is None else failure.error(self._job)

    def ask_to_stop(self) -> None:
        self._ray.cancel(self._ref)

    def kill(self) -> None:
        self._ray.cancel(self._ref, force=True)


def _play(job: Job, workers: int, folder: Path, here: str) -> Failure | None:
    """On a machine of the cluster; what goes wrong is returned, since Ray would wrap it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a Ray that a script started in the background
    try:
        require(
            folder.is_dir(),
            f"{folder} is not there on {platform.node()}: runs write their folders where they are made, so --out has to be "
            "on a file system that all machines of the cluster share.",
        )
        if os.path.isdir(here):
            os.chdir(here)  # options may name files by relative paths
        with accelerators.own_process():
            job.play(workers)
    except RunInterrupt:
        return None
    except Exception as error:
        return Failure.of(error)
    return None
