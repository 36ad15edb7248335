"""The actors of a run: asked for, taken in when they are ready, replaced when they die."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RayError

from fedvra.core.errors import FedvraError
from fedvra.engines.parcel import Parcel
from fedvra.engines.ray_engine import disconnect
from fedvra.engines.ray_worker import RayWorker

DEAD = (RayActorError, ObjectLostError, NodeDiedError, OutOfMemoryError)
"""How Ray says that a worker, or the node with its answer, is gone; the last where it killed one itself to free memory."""
MAX_DEATHS = 10
"""Workers that may die in a row before giving up: more than bad luck, a job that kills them."""
START_SECONDS = 120
"""How long to wait for a first worker."""
READER = "rows"
"""The thread of a worker that gives rows to others."""


class Connection(NamedTuple):
    """To a cluster."""

    options: dict[str, Any]
    """Of every actor: resources, placement, runtime environment."""
    workers: int
    ours: bool
    """Whether it was we who connected, and are to disconnect."""


class Crew:
    """Actors by number; a number is never used twice."""

    def __init__(self, connection: Connection, parcels: Iterable[Parcel], load: bool) -> None:
        """
        Args:
            parcels: what a worker is made of, and its data.
            load: whether the data are a function to get them with.
        """
        self.actors: dict[int, Any] = {}
        self._options, wanted, self._ours = connection
        self._name = f"fedvra-{uuid.uuid4().hex[:6]}"
        self._coming: dict[Any, tuple[int, Any]] = {}
        """Workers that have been asked for, by what they answer when they are ready."""
        self._numbers = itertools.count()
        self._deaths = 0
        self._met = False
        """Whether any of them has ever answered."""
        try:
            self._arguments = [*map(ray.put, parcels), load]
            self._class = ray.remote(concurrency_groups={READER: 1})(RayWorker)
            for _ in range(wanted):
                self._ask_for_one()
            self.adopt()
        except BaseException:
            self.close()
            raise

    def adopt(self) -> None:
        """Take in those who are ready; wait for one where there is none."""
        while self._coming:
            patience = 0 if self.actors else START_SECONDS
            ready, _ = ray.wait(list(self._coming), timeout=patience)
            if not ready:
                break
            number, actor = self._coming.pop(ready[0])
            try:
                failure: Exception | None = ray.get(ready[0])
            except DEAD as error:
                if isinstance(error, RayActorError) and error.actor_init_failed:  # the next one would fare no better
                    raise FedvraError(
                        f"Ray cannot make a worker ({_in_short(error, last_line=True)}): are fedvra, Python and torch of the "
                        "same versions on all machines?"
                    ) from error
                self._count_death(error)
                self._ask_for_one()
                continue
            except RayError as error:
                raise FedvraError(f"Ray cannot start a worker: {_in_short(error)}") from error
            self.actors[number], self._met = actor, True
            if failure is not None:
                raise failure
        if not self.actors:
            raise FedvraError(
                f"no worker could be started on the Ray cluster within {START_SECONDS} s: are there as many CPUs and GPUs "
                "free as one worker asks for? `ray status` tells."
            )

    def bury(self, number: int, error: Exception) -> None:
        """A worker died: another one is asked for, and until it comes the others do its part."""
        if self.actors.pop(number, None) is not None:
            self._count_death(error)
            self._ask_for_one()

    def bury_the_dead(self, error: Exception) -> None:
        """See who is still there. If all are, this counts as a death nevertheless, or it might go on for ever."""
        before = len(self.actors)
        for number, actor in list(self.actors.items()):
            try:
                ray.get(actor.process.options(concurrency_group=READER).remote(), timeout=10)
            except DEAD:
                self.bury(number, error)
            except GetTimeoutError:
                continue  # slow, as far as we know
        if len(self.actors) == before:
            self._count_death(error)

    def all_is_well(self) -> None:
        """Deaths so far were bad luck."""
        self._deaths = 0

    def pids(self) -> list[int]:
        """The workers' processes, each on its own machine."""
        self.adopt()
        return list(ray.get([actor.process.remote() for actor in self.actors.values()]))

    def close(self) -> None:
        try:
            for actor in [*self.actors.values(), *(actor for _, actor in self._coming.values())]:
                ray.kill(actor)
        finally:
            self.actors.clear()
            self._coming.clear()
            self._arguments = []
            disconnect(self._ours)

    def _ask_for_one(self) -> None:
        number = next(self._numbers)
        options = {"name": f"{self._name}-{number}", **self._options}
        actor = self._class.options(**options).remote(*self._arguments)
        self._coming[actor.ready.remote()] = (number, actor)

    def _count_death(self, error: Exception) -> None:
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            raise FedvraError(
                f"Ray's workers died {self._deaths} times in a row: {_in_short(error)}"
                + ("" if self._met else " (None has ever answered: have all machines the same token, or none?)")
            ) from error


def _in_short(error: Exception, last_line: bool = False) -> str:
    said = str(error).strip()
    return " ".join(said.splitlines()[-1:] if last_line else said.split())[:300]
