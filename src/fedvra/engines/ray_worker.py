"""What one of Ray's workers is: a solver of its own, rows of the clients it worked for last, and what the server sent."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.engines.experiment import Experiment
from fedvra.engines.parcel import Parcel, as_array, as_tensor
from fedvra.engines.worker import LocalTask, Places, Task, Vectors, Worked, Worker
from fedvra.local.protocol import SolverSettings
from fedvra.state.client_state import Readers
from fedvra.state.client_store import ClientStore, MemoryBudget
from fedvra.state.shared_rows import AddressBook, RowAccess, shared_tensor

Bytes: TypeAlias = NDArray[np.uint8]
ALIGNMENT = 64


class Kind(NamedTuple):
    """Rows of one kind: lam_i, a client's own x0, its buffers, y_i."""

    width: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Recipe:
    """All that a worker is made of, but for the data."""

    experiment: Experiment
    """Without its data."""
    settings: SolverSettings
    width: int
    dtype: torch.dtype
    aux_width: int
    kinds: tuple[Kind | None, ...]
    clients: int
    memory_limit: int | None
    state_folder: Path | None


class Sent(NamedTuple):
    """What the server broadcasts, with a number that changes when it does."""

    number: int
    vectors: list[Bytes]


class Rows(NamedTuple):
    """Some rows of one kind on their way."""

    kind: int
    slots: list[int]
    content: list[Bytes]


class Answer(NamedTuple):
    """What became of a task."""

    failure: Exception | None
    result: Any = None
    sums: Bytes | None = None
    aux_sums: Bytes | None = None
    mean_sum: Bytes | None = None


class OneBoard(Vectors):
    """What was sent, and room for the sums of one part, aligned as on the server's board: products must not notice."""

    def __init__(
        self, width: int, aux_width: int, dtype: torch.dtype, device: torch.device, mean: bool = False
    ) -> None:
        def room(count: int) -> Tensor:
            return shared_tensor((count,), dtype).to(device)

        self.x0, self.lam = room(width), room(width)
        self.aux = room(aux_width) if aux_width else None
        spare = ALIGNMENT // dtype.itemsize
        self._sums = room(2 * width + spare)
        self._aux_sums = room(aux_width + spare)
        self._mean_sum = room(width + spare) if mean else None

    def part(self, k: int) -> Places:
        sums = _at(self._sums, k, 2 * len(self.x0)).view(2, -1)
        aux = None if self.aux is None else _at(self._aux_sums, k, len(self.aux))
        return Places(sums, aux, None if self._mean_sum is None else _at(self._mean_sum, k, len(self.x0)))


def _at(room: Tensor, k: int, width: int) -> Tensor:
    start = k * width % (ALIGNMENT // room.itemsize)
    return room[start : start + width]


class HeldRows(RowAccess):
    """Rows in this worker's memory or on its disk, by the server's numbers; and some that others lent for one task."""

    def __init__(self, kind: Kind, recipe: Recipe, budget: MemoryBudget) -> None:
        self.dtype = kind.dtype
        device = torch.device(recipe.settings.device)
        self._store = ClientStore(
            kind.width, kind.dtype, budget, recipe.state_folder, recipe.clients, device, shared=False
        )
        self._own: dict[int, int] = {}
        self._lent: dict[int, Tensor] = {}
        self._lock = threading.Lock()
        """Others ask for rows while we work: a file has one position."""

    def attach(self, book: AddressBook) -> None:
        pass

    def load(self, slot: int) -> Tensor:
        if slot in self._lent:
            return self._lent[slot]
        with self._lock:
            return self._store.load(self._own[slot])

    def save(self, slot: int, values: Tensor) -> None:
        with self._lock:
            self._store.save(self._place_of(slot), values)

    def place(self, slot: int) -> Tensor:
        with self._lock:
            return self._store.place(self._place_of(slot))

    def lend(self, slots: Iterable[int], rows: Iterable[Tensor]) -> None:
        self._lent.update(zip(slots, rows, strict=True))

    def give_back(self) -> None:
        self._lent.clear()

    def forget(self, slots: Iterable[int]) -> None:
        with self._lock:
            self._store.release([self._own.pop(slot) for slot in slots if slot in self._own])

    def _place_of(self, slot: int) -> int:
        if slot not in self._own:
            self._own[slot] = self._store.take()
        return self._own[slot]


class RayWorker:
    """An actor. Calls come one after the other, but for ``give``, which others wait for and which has a thread of its own."""

    def __init__(self, recipe: Parcel, data: Parcel, load: bool) -> None:
        """``data`` are the run's, or a function to ``load`` them with."""
        self._failure: Exception | None = None
        try:
            self._make(recipe, data, load)
        except Exception as error:  # told by ``ready``: Ray would have us die of it
            self._failure = error

    def _make(self, recipe: Parcel, data: Parcel, load: bool) -> None:
        torch.set_num_threads(1)
        made: Recipe = recipe.open()
        limit = MemoryBudget.half_of_what_is_free().limit if made.memory_limit is None else made.memory_limit
        budget = MemoryBudget((limit or 0) // (os.cpu_count() or 1))  # there may be a worker for every core
        self._held = [None if kind is None else HeldRows(kind, made, budget) for kind in made.kinds]
        device, mean = torch.device(made.settings.device), made.experiment.deployment.needs_mean
        self._board = OneBoard(made.width, made.aux_width, made.dtype, device, mean)
        opened = data.open()
        experiment = replace(made.experiment, data=opened() if load else opened)
        solver = experiment.problem.solver(experiment.data, made.settings)
        self._worker = Worker(solver, self._board, Readers(*self._held), experiment)
        self._number = -1

    def ready(self) -> Exception | None:
        """Answers once it can work, or with the reason why it never will."""
        return self._failure

    def process(self) -> int:
        """The number of its process."""
        return os.getpid()

    def do(self, task: Task, sent: Sent, forget: Sequence[int], *lent: list[Rows]) -> Answer:
        """Do a task with the rows we have and those that others lend for it."""
        torch.set_num_threads(1)  # Ray may call from another thread than it made us in
        self.forget(forget)
        self._receive(sent)
        for rows in (each for some in lent for each in some):
            held = self._held[rows.kind]
            assert held is not None
            held.lend(rows.slots, (as_tensor(row, held.dtype) for row in rows.content))
        try:
            result = self._worker.do(task)
            if isinstance(result, Worked):
                result = Worked(result.read(), result.done)
        except Exception as error:  # handed to the server, which raises it
            return Answer(error)
        finally:
            for held in self._held:
                if held is not None:
                    held.give_back()
        if not isinstance(task, LocalTask):
            return Answer(None, result)
        sums, aux, mean = self._board.part(task.part)
        return Answer(
            None,
            result,
            _copied(sums[: 1 if task.one_sum else 2]),
            None if aux is None else _copied(aux),
            None if mean is None or task.mean_weight is None else _copied(mean),
        )

    def give(self, kind: int, slots: Sequence[int]) -> Rows:
        """Copies of rows that we hold."""
        held = self._held[kind]
        assert held is not None
        return Rows(kind, list(slots), [_copied(held.load(slot)) for slot in slots])

    def lend(self, wanted: Sequence[tuple[int, Sequence[int]]]) -> list[Rows]:
        """Rows for a task of another worker."""
        return [self.give(kind, slots) for kind, slots in wanted]

    def keep(self, rows: Rows) -> None:
        """Hold these from now on."""
        held = self._held[rows.kind]
        assert held is not None
        for slot, row in zip(rows.slots, rows.content, strict=True):
            held.save(slot, as_tensor(row, held.dtype))

    def forget(self, slots: Sequence[int]) -> None:
        for held in self._held:
            if held is not None:
                held.forget(slots)

    def _receive(self, sent: Sent) -> None:
        if sent.number == self._number:
            return
        board = self._board
        for target, vector in zip((board.x0, board.lam, board.aux), sent.vectors, strict=False):
            if target is not None:
                target.copy_(as_tensor(vector, target.dtype))
        self._number = sent.number


def _copied(values: Tensor) -> Bytes:
    return as_array(values.to("cpu", copy=True))


def slots_of(task: Task) -> tuple[list[tuple[int, Ints]], list[tuple[int, Ints]]]:
    """(kind, slots) that a task reads and writes."""
    if not isinstance(task, LocalTask):
        return [], []
    kinds = [(k, slots) for k, slots in enumerate(task.staged) if slots is not None]
    return [(k, slots.read[slots.read >= 0]) for k, slots in kinds], [(k, slots.write) for k, slots in kinds]
