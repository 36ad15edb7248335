"""Runs, several at a time, each in a process of its own, where that is faster.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from fedvra.core.errors import FedvraError, RunInterrupt, UsageError
from fedvra.studies.stopping import stop_on_signal

POLL = 0.02
"""Seconds between two looks at the runs under way."""


@dataclass(frozen=True)
class Job:
    """A run to be made: ``play(workers)`` makes it in whatever process it is called in."""

    name: str
    play: Callable[[int | str], object]


def cores() -> int:
    """Runs that are made at a time: one per core, one in all where processes cannot be forked safely."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def carry_out(
    jobs: Sequence[Job],
    done: Callable[[Job], None] = lambda job: None,
    tick: Callable[[Sequence[Job]], None] = lambda running: None,
    at_once: int | None = None,
) -> None:
    """Make all of these runs. The first that fails, for another reason than that it diverged, ends all of them.

    Args:
        done: called, here, when a run has ended.
        tick: called, here, now and then with what is under way.
        at_once: runs at a time; None: one per core.
    """
    most = min(len(jobs), cores() if at_once is None else at_once)
    if most <= 1:
        for job in jobs:
            job.play("auto")
            done(job)
        return
    waiting = list(jobs)
    workers = max(1, cores() // most)
    with TemporaryDirectory() as scratch, stop_on_signal() as stop, _running() as running:
        while (waiting and not stop.asked) or running:
            while waiting and len(running) < most and not stop.asked:
                job = waiting.pop(0)
                running[job] = _start(job, workers, Path(scratch) / f"{len(waiting)}")
            if stop.asked:
                for process, _ in running.values():
                    process.terminate()
                for process, _ in running.values():
                    process.join()
                running.clear()
                break
            for job, (process, log) in list(running.items()):
                if not process.is_alive():
                    process.join()
                    del running[job]
                    if process.exitcode:
                        _fail(job, process, log)
                    done(job)
            tick(list(running))
            time.sleep(POLL)
    if stop.asked:
        raise RunInterrupt("interrupted; make the same call again to resume.")


def _start(job: Job, workers: int, log: Path) -> tuple[BaseProcess, Path]:
    process = multiprocessing.get_context("fork").Process(target=_play, args=(job, workers, log, os.getpid()))
    with warnings.catch_warnings():  # Python >= 3.12 warns of threads in the parent; ours hold no lock that a run takes
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process, log


def _play(job: Job, workers: int, log: Path, parent: int) -> None:
    """In the process of one run; what goes wrong is in ``log``: the kind of failure, its sentence, and where it was."""
    from fedvra.engines.pool import die_with

    os.setsid()  # Ctrl-C is passed on by our parent, once: a second one would cut the round short
    die_with(parent)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        job.play(workers)
    except RunInterrupt:
        os._exit(1)
    except BaseException as error:
        kind = "usage" if isinstance(error, UsageError) else "known" if isinstance(error, FedvraError) else "other"
        said = str(error) if kind != "other" else f"{type(error).__name__}: {error}"
        log.write_text(f"{kind}\n{said}\n{traceback.format_exc()}", encoding="utf-8")
        os._exit(1)


def _fail(job: Job, process: BaseProcess, log: Path) -> None:
    if not log.exists():
        raise FedvraError(f"{job.name} failed: its process ended with code {process.exitcode}.")
    kind, said, trace = log.read_text(encoding="utf-8").split("\n", 2)
    error = (
        UsageError(said) if kind == "usage" else FedvraError(said if kind == "known" else f"{job.name} failed: {said}")
    )
    if kind == "other":
        error.add_note(trace)
    raise error


@contextmanager
def _running() -> Iterator[dict[Job, tuple[BaseProcess, Path]]]:
    """Runs under way; whatever goes wrong, none of them is left behind."""
    running: dict[Job, tuple[BaseProcess, Path]] = {}
    try:
        yield running
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()
