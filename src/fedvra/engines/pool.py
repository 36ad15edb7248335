"""Local work on this machine: in this process, or in a small pool of long-lived worker processes.

Workers are forked, so that data, model and loss (lambdas included) are theirs without pickling, scripts need no
``if __name__ == "__main__"``, and a worker that died can be replaced at any moment. Each runs torch with one thread.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch

from fedvra.core import accelerators
from fedvra.core.errors import FedvraError, UsageError, require
from fedvra.engines.worker import Task, Worker
from fedvra.local.randomness import kept_generators
from fedvra.state.segments import CPU

log = logging.getLogger("fedvra")
PR_SET_PDEATHSIG = 1
MAX_REPLACEMENTS = 10
"""Workers replaced in one run before giving up: more than bad luck, a job that kills them."""


def resolve_workers(workers: int | str, device: torch.device = CPU) -> int:
    """ "auto" is one process per core; one in all on an accelerator. Where there is no pool of processes: one, and a word."""
    require(
        workers == "auto" or (isinstance(workers, int) and workers >= 1),
        f"workers must be 'auto' or a number >= 1, got {workers!r}.",
    )
    if device.type != "cpu":
        require(workers in ("auto", 1), f"on {device} all clients are run by one process: leave workers out.")
        return 1
    if not processes_share():
        if workers != 1 and os.cpu_count() != 1:
            log.warning("one process does all the work here, at the speed of one core: a pool of workers needs Linux.")
        return 1
    wanted = len(os.sched_getaffinity(0)) if workers == "auto" else int(workers)
    if wanted > 1 and accelerators.in_sight():
        log.warning(
            "one process does all the work here, at the speed of one core: torch sees a GPU, and then cannot compute in forked "
            "workers. Start Python with CUDA_VISIBLE_DEVICES= (empty) for a pool of them, or use the GPU."
        )
        return 1
    return wanted


def processes_share() -> bool:
    """Whether a pool of workers can be had: they are forked, and open what the server made after that through /proc."""
    return sys.platform == "linux" and os.path.isdir("/proc/self/fd")


def resolve_device(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"device {name!r} cannot be used here ({reason}): try cpu, or cuda where torch has it."
        ) from error
    return device


class WorkerDiedError(FedvraError):
    """A worker died with rows of clients: the round has to be run again."""


class Engine(ABC):
    """Has tasks done: sums of local work are on the run's board when ``map`` returns, results in the order of the tasks."""

    @abstractmethod
    def map(self, tasks: Sequence[Task]) -> list[Any]:
        """Have all of them done."""

    @abstractmethod
    def close(self) -> None:
        """Stop whoever worked."""

    @abstractmethod
    def processes(self) -> list[BaseProcess]:
        """Worker processes of this machine, where the engine started any."""

    @abstractmethod
    def rows_lost(self) -> bool:
        """Whether committed rows went with workers that died."""


class InProcess(Engine):
    """Runs every task here, one after the other. Also the way to a GPU, which one process should own."""

    def __init__(self, make_worker: Callable[[], Worker]) -> None:
        self.worker = make_worker()

    def map(self, tasks: Sequence[Task]) -> list[Any]:
        with kept_generators():  # dropout and the like are seeded per client: leave the user's streams alone
            return [self.worker.do(task) for task in tasks]

    def processes(self) -> list[BaseProcess]:
        return []

    def rows_lost(self) -> bool:
        return False

    def close(self) -> None:
        del self.worker  # it refers to the run's state, and the run to us


class ProcessPool(Engine):
    """Hands tasks to worker processes as they become free; results come back in the order of the tasks."""

    def __init__(self, make_worker: Callable[[], Worker], workers: int) -> None:
        self._make_worker = make_worker
        self._context = multiprocessing.get_context("fork")
        self._replaced = 0
        self._workers: dict[Connection, BaseProcess] = {}
        # Workers ignore SIGTERM, which multiprocessing would send at exit and wait: hang up on them before it does.
        Finalize(self, _hang_up, [self._workers], exitpriority=1)
        for _ in range(workers):
            self._start()

    def processes(self) -> list[BaseProcess]:
        return list(self._workers.values())

    def rows_lost(self) -> bool:
        return False  # they are in memory that the server holds too

    def map(self, tasks: Sequence[Task]) -> list[Any]:
        results: list[Any] = [None] * len(tasks)
        waiting = deque(range(len(tasks)))
        at: dict[Connection, deque[int]] = {connection: deque() for connection in self._workers}
        failed: Exception | None = None
        while waiting or any(at.values()):
            self._hand_out(tasks, waiting, at)
            for ready in wait([connection for connection, queue in at.items() if queue]):
                connection = next(c for c in at if c is ready)
                try:
                    failure, result = connection.recv()
                except (EOFError, ConnectionResetError):  # died mid-task: staged state is simply written again
                    self._replace(connection, waiting, at)
                    continue
                results[at[connection].popleft()] = result
                if (
                    failure is not None
                ):  # raised when nobody is at work any more: the next call must not meet old answers
                    failed = failed or failure
                    waiting.clear()
        if failed is not None:
            raise failed
        return results

    def _hand_out(self, tasks: Sequence[Task], waiting: deque[int], at: dict[Connection, deque[int]]) -> None:
        """A task to every idle worker, and while there is plenty a second one to each, so that it need not wait for us."""
        for most in (1, 2):
            for connection in list(at):
                if len(at[connection]) >= most or not waiting or (most == 2 and len(waiting) < len(at)):
                    continue
                at[connection].append(waiting.popleft())
                try:
                    connection.send(tasks[at[connection][-1]])
                except (BrokenPipeError, ConnectionResetError):
                    self._replace(connection, waiting, at)

    def close(self) -> None:
        for connection, process in self._workers.items():
            connection.close()
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers.clear()
        del self._make_worker  # it refers to the run's state, and the run to us

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, [*self._workers, ours], self._make_worker, os.getpid()), daemon=True
        )
        with warnings.catch_warnings():  # Python >= 3.12 warns of threads; the child never touches theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self._workers[ours] = process
        return ours

    def _replace(self, connection: Connection, waiting: deque[int], at: dict[Connection, deque[int]]) -> None:
        """Start another worker in place of one that died; what it had to do goes back to the head of the queue."""
        waiting.extendleft(reversed(at.pop(connection)))
        process = self._workers.pop(connection)
        connection.close()
        process.join(timeout=1)
        self._replaced += 1
        if self._replaced > MAX_REPLACEMENTS:
            raise FedvraError(
                f"worker processes died {self._replaced} times (last exit code {process.exitcode}): "
                "is memory short? Try fewer workers."
            )
        at[self._start()] = deque()


def _hang_up(workers: dict[Connection, BaseProcess]) -> None:
    for connection in workers:
        connection.close()


def _serve(connection: Connection, inherited: list[Connection], make_worker: Callable[[], Worker], server: int) -> None:
    die_with(server)
    own_streams()
    for other in inherited:  # or the server's death would go unnoticed: we would hold its end of the pipes open
        other.close()
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and the like are the server's to handle
        signal.signal(number, signal.SIG_IGN)
    _let_the_server_go_on()
    torch.set_num_threads(1)
    worker = make_worker()
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[Exception | None, Any] = (None, worker.do(task))
        except Exception as error:  # handed to the server, which raises it
            answer = (error, None)
        try:
            connection.send(answer)
        except BrokenPipeError:
            return


def die_with(server: int) -> None:
    """Have the kernel end this process with the server's, even in the middle of a long task: its locks would live on in us."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # it died before we asked
            os._exit(1)


def own_streams() -> None:
    """Print to this process's own output: a notebook's streams need threads of the kernel, which a fork does not have."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def _let_the_server_go_on() -> None:
    """Batch scheduling: a worker that is handed a task must not push the server off its core before the others have theirs."""
    if sys.platform == "linux":
        with suppress(OSError):  # some containers forbid it; it costs milliseconds a round, nothing else
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def make_engine(make_worker: Callable[[], Worker], workers: int) -> Engine:
    return InProcess(make_worker) if workers == 1 else ProcessPool(make_worker, workers)
