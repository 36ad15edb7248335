"""Ray's workers as the server sees them: which rows each holds, who does which part of a cohort, what happens when one dies.

A row lives in the memory of the worker that computed it. A worker that is free takes the part of a cohort of which it has most
rows; the others are lent to it, from worker to worker. What a part added up comes back to the server, which adds up the parts
in their order, as it does with workers of its own: so the sums are the same to the bit.

When a worker dies, the round is run again. Rows that were committed and died with it are brought back by ``recovery``.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import ray
import torch
from torch import Tensor

from fedvra.engines.experiment import Experiment
from fedvra.engines.parcel import Parcel, as_array, as_tensor
from fedvra.engines.pool import Engine, WorkerDiedError
from fedvra.engines.ray_crew import DEAD, READER, Connection, Crew
from fedvra.engines.ray_rows import ClusterStore
from fedvra.engines.ray_worker import Answer, Kind, Recipe, Rows, Sent, slots_of
from fedvra.engines.worker import Board, LocalTask, Task
from fedvra.local.protocol import SolverSettings
from fedvra.state.client_state import Staged

T = TypeVar("T")
DIED = "a worker of the Ray cluster died with rows of clients: resume the run, or start it again."


class RayPool(Engine):
    """Workers on the machines of a Ray cluster."""

    def __init__(self, connect: Callable[[], Connection], load: Callable[[], Any] | None) -> None:
        """
        Args:
            connect: called when the workers are to be made.
            load: gives a worker its data; None: they are sent.
        """
        self._connect, self._load = connect, load
        self._slots = itertools.count()
        self._holder: dict[int, int] = {}
        """Which worker has the row of a slot."""
        self._forget: dict[int, list[int]] = defaultdict(list)
        """Slots that a worker may forget, until it is told."""
        self._kinds: list[Kind | None] = [None] * len(Staged._fields)
        self._sent: tuple[int, Any] = (-1, None)

    def store(self, kind: int, width: int, dtype: torch.dtype) -> ClusterStore:
        """A store with its rows at the workers, of the kind with this place in ``Staged``; made before ``pack``."""
        self._kinds[kind] = Kind(width, dtype)
        return ClusterStore(self, kind, width, dtype)

    def pack(
        self,
        experiment: Experiment,
        settings: SolverSettings,
        board: Board,
        clients: int,
        memory_limit: int | None,
        state_folder: Path | None,
    ) -> None:
        """Write down what workers are made of."""
        e, self._board = experiment, board
        aux_width = 0 if board.aux is None else len(board.aux)
        recipe = Recipe(
            replace(e, data=None),
            settings,
            len(board.x0),
            board.x0.dtype,
            aux_width,
            tuple(self._kinds),
            clients,
            memory_limit,
            state_folder,
        )
        data = Parcel.of(self._load) if self._load is not None else Parcel.of(e.data, apart=True)
        self._packed = Parcel.of(recipe), data

    def start(self, bring_back: Callable[[], None]) -> None:
        """Connect, and have the workers made; returns when one of them is ready.

        Args:
            bring_back: has the rows as they were after the last round, where some died with a worker.
        """
        self._bring_back = bring_back
        self._crew = Crew(self._connect(), self._packed, self._load is not None)
        del self._packed

    # -- workers ---------------------------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """The workers' processes, each on its own machine."""
        return self._crew.pids()

    def processes(self) -> list[BaseProcess]:
        return []  # they are Ray's

    def close(self) -> None:
        self._sent = (-1, None)
        self._crew.close()
        del self._bring_back  # it refers to the run, and the run to us

    # -- tasks -----------------------------------------------------------------------------------------------------------

    def map(self, tasks: Sequence[Task]) -> list[Any]:
        with_rows = any(isinstance(task, LocalTask) for task in tasks)
        if with_rows and self.rows_lost():
            raise WorkerDiedError(DIED)
        while True:
            try:
                results = self._map(tasks)
            except WorkerDiedError:
                if with_rows:
                    raise
                continue  # nothing was staged: just once more
            self._crew.all_is_well()
            return results

    def _map(self, tasks: Sequence[Task]) -> list[Any]:
        self._crew.adopt()
        sent = self._broadcast()
        results: list[Any] = [None] * len(tasks)
        waiting = list(range(len(tasks)))
        near = [Counter(self._holder[s] for _, some in slots_of(task)[0] for s in some.tolist()) for task in tasks]
        running: dict[Any, tuple[int, int]] = {}
        at: Counter[int] = Counter()
        failed: Exception | None = None
        while waiting or running:
            for most in (1, 2):  # a second one while there is plenty, so that a worker need not wait for us
                for number in list(self._crew.actors):
                    if not waiting or at[number] >= most or (most == 2 and len(waiting) < len(self._crew.actors)):
                        continue
                    k = max(waiting, key=lambda k: (near[k][number], -k))
                    waiting.remove(k)
                    running[self._submit(number, tasks[k], sent)] = (number, k)
                    at[number] += 1
            ready, _ = ray.wait(list(running))
            number, k = running.pop(ready[0])
            at[number] -= 1
            answer = self._get(ready[0])
            if answer.failure is not None:  # raised when nobody is at work any more
                failed = failed or answer.failure
                waiting.clear()
            else:
                results[k] = answer.result
                self._take(tasks[k], answer)
        if failed is not None:
            raise failed
        return results

    def _submit(self, number: int, task: Task, sent: Any) -> Any:
        wanted: dict[int, list[tuple[int, list[int]]]] = {}
        for kind, slots in slots_of(task)[0]:
            elsewhere: dict[int, list[int]] = {}
            for slot in slots.tolist():
                if self._holder[slot] != number:
                    elsewhere.setdefault(self._holder[slot], []).append(slot)
            for holder, some in elsewhere.items():
                wanted.setdefault(holder, []).append((kind, some))
        lent = [
            self._crew.actors[holder].lend.options(concurrency_group=READER).remote(some)
            for holder, some in wanted.items()
        ]
        # From now on, whether we hear of it or not: a row that nobody wants after all has to be forgotten there.
        for _, slots in slots_of(task)[1]:
            self._holder.update(dict.fromkeys(slots.tolist(), number))
        forget = self._forget.pop(number, [])
        return self._crew.actors[number].do.remote(task, sent, forget, *lent)

    def _get(self, ref: Any) -> Answer:
        try:
            answer: Answer = ray.get(ref)
        except DEAD as error:  # the worker itself, or one that lent it rows
            self._crew.bury_the_dead(error)
            raise WorkerDiedError(DIED) from error
        return answer

    def _take(self, task: Task, answer: Answer) -> None:
        """Put what a part added up on the board."""
        if not isinstance(task, LocalTask):
            return
        contents = (answer.sums, answer.aux_sums, answer.mean_sum)
        for target, content in zip(self._board.part(task.part), contents, strict=True):
            if target is not None and content is not None:
                flat = target.view(-1)
                values = as_tensor(content, target.dtype)
                flat[: len(values)].copy_(values)

    def _broadcast(self) -> Any:
        """What was sent last, where nothing is new: nodes that have it need not be sent it again."""
        board = self._board
        if self._sent[0] != board.shown:
            vectors = [as_array(v) for v in (board.x0, board.lam, board.aux) if v is not None]
            self._sent = (board.shown, ray.put(Sent(board.shown, vectors)))
        return self._sent[1]

    # -- rows ------------------------------------------------------------------------------------------------------------

    def insist(self, act: Callable[[], T]) -> T:
        """Do something with the clients' rows between rounds; where workers die meanwhile, bring them back and do it again."""
        while True:
            try:
                return act()
            except WorkerDiedError:
                self._bring_back()

    def rows_lost(self) -> bool:
        return not self._crew.actors.keys() >= set(self._holder.values())

    def new_slot(self) -> int:
        return next(self._slots)

    def release(self, slots: Iterable[int]) -> None:
        for slot in slots:
            holder = self._holder.pop(slot, None)
            if holder is not None and holder in self._crew.actors:
                self._forget[holder].append(slot)

    def fetch(self, kind: int, slots: Sequence[int]) -> dict[int, Tensor]:
        """These rows, brought to the server."""
        by: dict[int, list[int]] = {}
        for slot in slots:
            by.setdefault(self._holder[slot], []).append(slot)
        if not by.keys() <= self._crew.actors.keys():
            raise WorkerDiedError(DIED)
        spec = self._kinds[kind]
        assert spec is not None
        found: dict[int, Tensor] = {}
        asked = [
            (h, self._crew.actors[h].give.options(concurrency_group=READER).remote(kind, some))
            for h, some in by.items()
        ]
        for holder, ref in asked:
            try:
                rows: Rows = ray.get(ref)
            except DEAD as error:
                self._crew.bury(holder, error)
                raise WorkerDiedError(DIED) from error
            found.update({s: as_tensor(row, spec.dtype) for s, row in zip(rows.slots, rows.content, strict=True)})
        return found

    def keep(self, kind: int, slots: Sequence[int], rows: Sequence[Tensor]) -> None:
        """Give the workers these rows to hold, the same number to each."""
        self._crew.adopt()
        numbers = list(self._crew.actors)
        asked = []
        for k, number in enumerate(numbers):
            some = list(slots[k :: len(numbers)])
            if some:
                content = [as_array(row.contiguous()) for row in rows[k :: len(numbers)]]
                asked.append((number, some, self._crew.actors[number].keep.remote(Rows(kind, some, content))))
        for number, some, ref in asked:
            try:
                ray.get(ref)
            except DEAD as error:
                self._crew.bury(number, error)
                raise WorkerDiedError(DIED) from error
            self._holder.update(dict.fromkeys(some, number))
