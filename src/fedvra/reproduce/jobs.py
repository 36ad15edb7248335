"""Runs, several at a time, each into an ordinary run folder and in a process of its own.

Two runs with one worker each use two cores better than one run with two workers: nobody waits for anybody at the end of a
round. Processes are forked where that is safe, which spares each the import of torch. Ctrl-C lets every run finish its round
and save; the same command then resumes from there. Should this process be killed outright, the runs under way
finish on their own, and the next call finds them.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedvra.core.errors import FedvraError, RunInterrupt
from fedvra.reproduce.wanted import Wanted
from fedvra.runs.cache import folder_name
from fedvra.runs.config import configure
from fedvra.runs.files import RunFolder
from fedvra.runs.history import series
from fedvra.show.terminal import clock, outcome, percent
from fedvra.studies.execution import execute, resume
from fedvra.studies.stopping import stop_on_signal

POLL = 0.2
"""Seconds between two looks at the runs under way."""


@dataclass
class Job:
    """A run under way."""

    wanted: Wanted
    folder: RunFolder
    log: Path
    process: BaseProcess
    seconds: float
    """It was expected to take."""
    asked_to_stop: bool = False

    def failure(self) -> str | None:
        """Why it failed, once it has ended; a run that diverged has not failed."""
        if self.folder.summary_file.exists() and self.folder.summary().status in ("finished", "diverged"):
            return None
        said = self.log.read_text(errors="replace").strip().splitlines()
        return said[-1] if said else f"its process ended with code {self.process.exitcode}."


def carry_out(
    missing: Sequence[Wanted],
    expected: Sequence[float],
    out: Path,
    jobs: int,
    console: Console,
    keep_checkpoints: bool = False,
) -> None:
    """Run everything that is missing into folders of ``out``.

    Args:
        expected: seconds, run by run, as estimated.
        jobs: cores to use: so many runs at a time or, where fewer are missing, so many workers shared among them.
        keep_checkpoints: those of finished runs, which could then be extended; for 100 clients with the paper's CNN that is
            0.7 GB a run.

    A run that fails does not stop the others; that it did is raised at the end.
    """
    waiting = list(zip(missing, expected, strict=True))
    workers = max(1, jobs // max(1, len(waiting)))
    failures: list[str] = []
    done = elapsed_of_done = 0.0
    begun, count = time.monotonic(), 0
    with TemporaryDirectory() as scratch, stop_on_signal() as stop, _showing(console) as show, _running() as running:
        while (waiting and not stop.asked) or running:
            while waiting and len(running) < jobs and not stop.asked:
                wanted, seconds = waiting.pop(0)
                running.append(_start(wanted, seconds, out, workers, Path(scratch)))
            if stop.asked:
                _ask_to_stop(running)
            for job in [job for job in running if not job.process.is_alive()]:
                running.remove(job)
                if stop.asked:
                    continue
                count, done = count + 1, done + job.seconds
                elapsed_of_done = time.monotonic() - begun
                failure = job.failure()
                head = f"[{count}/{len(missing)}] "
                if failure is None:
                    if not keep_checkpoints:
                        shutil.rmtree(job.folder.checkpoints, ignore_errors=True)
                    show.line(head + outcome(job.wanted.title, job.folder.summary()))
                else:
                    failures.append(failure)
                    show.line(f"{head}{job.wanted.title}, seed {job.wanted.config.seed}: failed: {failure}")
            pace = elapsed_of_done / done if done else 1 / jobs
            show.state(running, count, len(missing), max(0.0, begun + pace * sum(expected) - time.monotonic()))
            time.sleep(POLL)
    if stop.asked:
        raise RunInterrupt("interrupted; run the same command again to resume.")
    if failures:
        raise FedvraError(f"{len(failures)} of {len(missing)} runs failed, the last because {failures[-1]}")


def _start(wanted: Wanted, seconds: float, out: Path, workers: int, scratch: Path) -> Job:
    folder = RunFolder(out / folder_name(wanted.config))
    log = scratch / f"{folder.path.name}.log"
    log.touch()
    options = replace(wanted.config, workers=workers).to_dict()
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    process = context.Process(target=_play, args=(options, folder.path, log))
    with warnings.catch_warnings():  # Python >= 3.12 warns of threads in the parent; ours hold no lock that a run takes
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return Job(wanted, folder, log, process, seconds)


def _play(options: Mapping[str, Any], path: Path, log: Path) -> None:
    """In the process of one run: start or resume it; what goes wrong is the last line of ``log``."""
    if sys.platform != "win32":
        os.setsid()  # Ctrl-C is passed on by our parent, once: a second one would cut the round short
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with log.open("wb", buffering=0) as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    config = configure(options)
    try:
        if RunFolder(path).config_file.exists():
            resume(path, rounds=config.rounds, workers=config.workers)
        else:
            execute(config, path)
    except (FedvraError, RunInterrupt) as error:
        os.write(2, f"{error}\n".encode())
        sys.exit(1)


def _ask_to_stop(running: list[Job]) -> None:
    """Once each; SIGTERM because SIGINT is ignored in what a script started in the background."""
    for job in running:
        if not job.asked_to_stop:
            job.asked_to_stop = True
            job.process.terminate()


@contextmanager
def _running() -> Iterator[list[Job]]:
    """Runs under way; whatever goes wrong, none of them is left behind."""
    running: list[Job] = []
    try:
        yield running
    finally:
        for job in running:
            job.process.kill()
            job.process.join()


class _Show:
    """Plain lines: one for every run that has ended."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def state(self, running: list[Job], count: int, total: int, left: float) -> None:
        pass


class _LiveShow(_Show):
    """The same lines, and below them what is under way."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self.live = live

    def state(self, running: list[Job], count: int, total: int, left: float) -> None:
        grid = Table.grid(padding=(0, 2))
        for job in running:
            config, curve = job.wanted.config, series(job.folder.metrics(), "test_accuracy")
            reached = curve[-1] if curve else (0, None)
            bar = ProgressBar(total=config.rounds, completed=reached[0], width=30)
            name = f"{job.wanted.title}, seed {config.seed}"
            grid.add_row(name, bar, f"{reached[0]}/{config.rounds}", percent(reached[1]))
        self.live.update(Group(grid, f"{count} of {total} runs done, about {clock(left)} left"), refresh=True)


@contextmanager
def _showing(console: Console) -> Iterator[_Show]:
    if not console.is_terminal:
        yield _Show(console)
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield _LiveShow(console, live)
