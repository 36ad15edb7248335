"""Runs, several at a time: in this process, in processes of their own, or wherever else there is a :class:`Place` for them.

Two runs with one worker each use two cores better than one run with two workers: nobody waits for anybody at the end of a
round. Processes are forked, so models and losses may be closures. Ctrl-C lets every run finish its round and save.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from fedvra.core import accelerators
from fedvra.core.errors import FedvraError, RunInterrupt, UsageError
from fedvra.studies.stopping import stop_on_signal

POLL = 0.05
"""Seconds between two looks at the runs under way."""

TOLD = 10_000
"""Characters of a failure that are told: what a pipe takes before anybody reads from it is limited."""


@dataclass(frozen=True)
class Job:
    """A run to be made: ``play(workers)`` makes it in whatever process it is called in."""

    name: str
    play: Callable[[int | str], object]


class Failure(NamedTuple):
    """Why a run came to nothing, on its way from the process that made it."""

    kind: str
    said: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        kind = "usage" if isinstance(error, UsageError) else "known" if isinstance(error, FedvraError) else "other"
        said = str(error) if kind != "other" else f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        return cls(kind, said[-TOLD:], trace[-TOLD:])

    def error(self, job: Job) -> FedvraError:
        """To be raised here."""
        if self.kind == "usage":
            return UsageError(self.said)
        if self.kind == "known":
            return FedvraError(self.said)
        error = FedvraError(f"{job.name} failed: {self.said}")
        error.add_note(self.trace)
        return error


class Underway(ABC):
    """A run that is being made."""

    @abstractmethod
    def over(self) -> bool:
        """Whether it has ended."""

    @abstractmethod
    def failure(self) -> FedvraError | None:
        """Why it came to nothing, once it has ended; a run that diverged did come to something."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Have it finish its round and save."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""


class Place(ABC):
    """Where runs are made."""

    @property
    @abstractmethod
    def at_once(self) -> int:
        """So many at a time."""

    @abstractmethod
    def start(self, job: Job) -> Underway:
        """Begin a run."""


def carry_out(
    jobs: Sequence[Job],
    place: Place,
    done: Callable[[Job], None] = lambda job: None,
    tick: Callable[[Sequence[Job]], None] = lambda running: None,
    failed: Callable[[Job, FedvraError], None] | None = None,
) -> None:
    """Make all of these runs.

    Args:
        done: called, here, when a run has ended.
        tick: called, here, now and then with what is under way.
        failed: called, here, when a run came to nothing. None: the first that does, for another reason than that it diverged,
            ends all of them.
    """
    waiting = list(jobs)
    with stop_on_signal() as stop, _underway() as running:
        while (waiting and not stop.asked) or running:
            while waiting and len(running) < place.at_once and not stop.asked:
                job = waiting.pop(0)
                running[job] = place.start(job)
            if stop.asked:
                for run in running.values():
                    run.ask_to_stop()
                while not all(run.over() for run in running.values()):
                    time.sleep(POLL)
                break
            for job, run in [(job, run) for job, run in running.items() if run.over()]:
                del running[job]
                failure = run.failure()
                if failure is None:
                    done(job)
                elif failed is None:
                    raise failure
                else:
                    failed(job, failure)
            tick(list(running))
            if running:
                time.sleep(POLL)
    if stop.asked:
        raise RunInterrupt("interrupted; make the same call again to resume.")


@contextmanager
def _underway() -> Iterator[dict[Job, Underway]]:
    """Runs under way; whatever goes wrong, none of them is left behind."""
    running: dict[Job, Underway] = {}
    try:
        yield running
    finally:
        for run in running.values():
            run.kill()


def cores() -> int:
    """Runs that are made at a time: one per core, one in all where processes cannot be forked safely."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def on_this_machine(jobs: int, at_once: int | None = None) -> Place:
    """The place for so many runs; ``at_once`` at a time, None: one per core. Where torch sees a GPU, one in any case."""
    most = 1 if accelerators.in_sight() else min(jobs, cores() if at_once is None else at_once)
    return Here() if most <= 1 else Processes(most, max(1, cores() // most))


class Here(Place):
    """This very process: one run after the other, each with all cores."""

    at_once = 1

    def start(self, job: Job) -> Underway:
        job.play("auto")
        return _Ended()


class _Ended(Underway):
    def over(self) -> bool:
        return True

    def failure(self) -> FedvraError | None:
        return None

    def ask_to_stop(self) -> None:
        pass

    def kill(self) -> None:
        pass


class Processes(Place):
    """Processes of this machine, one for each run."""

    at_once = 0

    def __init__(self, at_once: int, workers: int, quiet: bool = False) -> None:
        """
        Args:
            workers: of each run.
            quiet: whether what runs print is thrown away.
        """
        self.at_once, self.workers, self.quiet = at_once, workers, quiet
        self._context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")

    def start(self, job: Job) -> Underway:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_play, args=(job, self.workers, theirs, self.quiet, os.getpid()))
        with (
            warnings.catch_warnings()
        ):  # Python >= 3.12 warns of threads in the parent; ours hold no lock that a run takes
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _Process(job, process, ours)


class _Process(Underway):
    def __init__(self, job: Job, process: BaseProcess, pipe: Connection) -> None:
        self._job, self._process, self._pipe = job, process, pipe

    def over(self) -> bool:
        return not self._process.is_alive()

    def failure(self) -> FedvraError | None:
        self._process.join()
        with self._pipe as pipe, suppress(EOFError):
            if self._process.exitcode and pipe.poll():
                failure: Failure = pipe.recv()
                return failure.error(self._job)
        code = self._process.exitcode
        return FedvraError(f"{self._job.name} failed: its process ended with code {code}.") if code else None

    def ask_to_stop(self) -> None:
        self._process.terminate()  # SIGTERM because SIGINT is ignored in what a script started in the background

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _play(job: Job, workers: int, pipe: Connection, quiet: bool, parent: int) -> None:
    """In the process of one run; what goes wrong goes through the pipe."""
    from fedvra.engines.pool import die_with, own_streams

    if sys.platform != "win32":
        os.setsid()  # Ctrl-C is passed on by our parent, once: a second one would cut the round short
    die_with(parent)
    own_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if quiet:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    try:
        job.play(workers)
    except RunInterrupt:
        os._exit(1)
    except BaseException as error:
        pipe.send(Failure.of(error))
        os._exit(1)
