"""``fv.Ray``: run clients on the machines of a Ray cluster. Needs the extra ``fedvra[ray]``; nothing else here imports Ray."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import socket
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value

if TYPE_CHECKING:
    from fedvra.engines.ray_crew import Connection
    from fedvra.engines.ray_pool import RayPool

PLACEMENTS = {"spread": "SPREAD", "pack": "DEFAULT"}
LOCAL = "local"
"""Ray's word for a Ray of our own on this machine."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""How a client of HTTP/2, which Ray speaks, begins: a fixed line and an empty frame of settings."""
FRAME, KIND, SETTINGS = 9, 3, 4
"""What it is answered with: the head of a frame, at whose place KIND is SETTINGS."""
PATIENCE = 30
"""Seconds in which Ray's port must answer that."""


@dataclass(frozen=True)
class Ray(Value):
    """Clients run in Ray's actors, on one machine or many, to the result of the local engine: to the bit on equal processors.

    Args:
        address: of a cluster, ``"auto"`` for the one this machine belongs to or ``"HOST:PORT"``. None: ``$RAY_ADDRESS``, and
            where that is not set a Ray of our own on this machine, stopped at the end. A Ray that the program has started is
            used as it is.
        workers: actors; None: as many as the cluster's CPUs (or GPUs, where they are asked for) have room for.
        cpus_per_worker, gpus_per_worker, resources: what an actor asks for. A fraction of a GPU is shared.
        placement: ``"spread"`` over the nodes, or ``"pack"`` onto few.
        runtime_env: as for ``ray.init``: packages, environment variables, a working directory for the actors.
        snapshot_every: rounds after which ``fv.simulate`` saves the state, to resume from when a node dies. Runs with a folder
            resume from their checkpoints.
        load: called in every worker to get the data there, in place of sending it.

    >>> Ray(workers=4, gpus_per_worker=0.25).placement
    'spread'
    """

    address: str | None = None
    workers: int | None = None
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    resources: Mapping[str, float] | None = None
    placement: str = "spread"
    runtime_env: Mapping[str, Any] | None = None
    snapshot_every: int = 20
    load: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        require(
            self.workers is None or (isinstance(self.workers, int) and self.workers >= 1),
            f"workers must be a number >= 1 or None, got {self.workers!r}.",
        )
        for name in ("cpus_per_worker", "gpus_per_worker"):
            require(getattr(self, name) >= 0, f"{name} must be at least 0, got {getattr(self, name)}.")
        require(self.cpus_per_worker + self.gpus_per_worker > 0, "a worker needs a share of a CPU or of a GPU.")
        require(self.placement in PLACEMENTS, f"placement must be 'spread' or 'pack', got {self.placement!r}.")
        require(self.snapshot_every >= 1, f"snapshot_every must be at least 1, got {self.snapshot_every}.")
        require(self.load is None or callable(self.load), "load must be a function without arguments, or None.")

    def open(self, workers: int | str = "auto") -> RayPool:
        """Workers on the cluster, still to be made. ``workers`` is a run's own word for it, where it is a number."""
        require_ray()
        from fedvra.engines.ray_pool import RayPool

        chosen = replace(self, workers=workers) if self.workers is None and isinstance(workers, int) else self
        return RayPool(chosen.connection, self.load)

    def options(self, workers: int | str) -> dict[str, Any]:
        """As options of a run in a folder, which has no words for all of it."""
        said = replace(self, address=None, workers=None, gpus_per_worker=0.0)
        require(
            said == Ray(),
            "a run with a folder takes address, workers and gpus_per_worker of fv.Ray(...), and checkpoints in place of "
            "snapshots: leave the rest out, or start Ray with it before.",
        )
        how = {"engine": "ray", "address": self.address, "gpus_per_worker": self.gpus_per_worker}
        return {**how, "workers": self.workers or workers}

    def connection(self) -> Connection:
        """Connect to the cluster, or start one."""
        from fedvra.engines.ray_crew import Connection

        cpus = None if self.workers is None else max(1, math.ceil(self.workers * self.cpus_per_worker))
        ours = connect(self.address, cpus, self.runtime_env)
        try:
            # A Ray of our own has what it has; a cluster may grow.
            alone = ours and where(self.address) == LOCAL
            room = self._room() if self.workers is None or alone else 0
        except BaseException:
            disconnect(ours)
            raise
        options: dict[str, Any] = {
            "num_cpus": self.cpus_per_worker,
            "num_gpus": self.gpus_per_worker,
            "scheduling_strategy": PLACEMENTS[self.placement],
            "max_restarts": 0,
        }
        if self.resources:
            options["resources"] = dict(self.resources)
        if self.runtime_env and not ours:
            options["runtime_env"] = dict(self.runtime_env)
        return Connection(options, self.workers or room, ours)

    def _room(self) -> int:
        """How many workers fit onto the cluster."""
        import ray

        there = ray.cluster_resources()
        asked = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker, **(self.resources or {})}
        for name, share in asked.items():
            require(
                there.get(name, 0) >= share,
                f"one worker asks for {share:g} {name}, and there is {there.get(name, 0):g} on the machines of Ray: ask for "
                "less, or name a cluster that has it.",
            )
        # The quotient of 1 and 0.1, cut to a whole number, would be 9 if it were taken with //.
        return min(int(there[name] / share + 1e-9) for name, share in asked.items() if share > 0)


def require_ray() -> None:
    """Say in one sentence what to install where Ray is missing."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError("the engine ray needs Ray, which is not installed: pip install 'fedvra[ray]'.")


def where(address: str | None) -> str:
    """What is said goes before the environment."""
    return address or os.environ.get("RAY_ADDRESS") or LOCAL


def connect(address: str | None, cpus: int | None, runtime_env: Mapping[str, Any] | None) -> bool:
    """Have Ray; whether it was we who connected, and are to disconnect. Its usage statistics are off unless asked for.

    Args:
        cpus: of a Ray that is started here; None: all.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return False
    place = where(address)
    if place == LOCAL:  # by default 15: on a busy machine workers would not even start
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        knock(place)
    except OSError as error:
        raise UsageError(f"there is no Ray cluster at {place} ({error}).") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # Ray's own plans
            ray.init(
                address=place,
                runtime_env=None if runtime_env is None else dict(runtime_env),
                log_to_driver=False,
                logging_level=logging.ERROR,
                num_cpus=cpus if place == LOCAL else None,
            )
    except (OSError, TypeError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:300]
        if place == LOCAL:
            raise UsageError(f"Ray cannot be started on this machine ({reason}).") from None
        token = "" if place == "auto" else " If it wants a token, set RAY_AUTH_MODE=token."
        raise UsageError(f"there is no Ray cluster at {place} that takes us in ({reason}).{token}") from None
    return True


def disconnect(ours: bool) -> None:
    """End what ``connect`` began, if it was we."""
    import ray

    if ours:
        ray.shutdown()


def knock(place: str) -> None:
    """Raise OSError where nobody listens at HOST:PORT, or somebody who is not Ray, which itself would try for minutes."""
    host, _, port = place.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    with socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE) as door:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return  # which expects another greeting
        door.sendall(GREETING)
        with door.makefile("rb") as answer:
            head = answer.read(FRAME)
    if len(head) < FRAME or head[KIND] != SETTINGS:
        raise OSError("what listens there is not Ray; its port is 6379 unless another was chosen")
