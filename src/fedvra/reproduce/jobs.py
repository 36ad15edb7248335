"""The runs of a recipe, several at a time, each into an ordinary run folder.

Ctrl-C lets every run finish its round and save; the same command then resumes from there, as it does after a crash.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedvra.core.errors import FedvraError, RunInterrupt
from fedvra.reproduce.wanted import Wanted
from fedvra.runs.cache import folder_name
from fedvra.runs.files import RunFolder
from fedvra.runs.history import series
from fedvra.show.terminal import clock, outcome, percent
from fedvra.studies.execution import execute, resume
from fedvra.studies.parallel import Job, Place, carry_out

REDRAW = 0.3
"""Seconds between two drawings of the live display."""


@dataclass(frozen=True)
class Making:
    """A run to be made."""

    wanted: Wanted
    folder: RunFolder
    seconds: float
    """It is expected to take."""

    @property
    def name(self) -> str:
        return f"{self.wanted.title}, seed {self.wanted.config.seed}"

    def play(self, workers: int | str) -> None:
        """Start or resume it, in whatever process it is to be made."""
        config = replace(self.wanted.config, workers=workers)
        if self.folder.config_file.exists():
            resume(self.folder.path, rounds=config.rounds, workers=workers)
        else:
            execute(config, self.folder.path)


def make_runs(
    missing: Sequence[Wanted],
    expected: Sequence[float],
    out: Path,
    place: Place,
    console: Console,
    keep_checkpoints: bool = False,
) -> None:
    """Run everything that is missing into folders of ``out``.

    Args:
        expected: seconds, run by run, as estimated.
        keep_checkpoints: those of finished runs, which could then be extended; for 100 clients with the paper's CNN that is
            0.7 GB a run.

    A run that fails does not stop the others; that it did is raised at the end.
    """
    runs = [
        Making(wanted, RunFolder(out.resolve() / folder_name(wanted.config)), seconds)
        for wanted, seconds in zip(missing, expected, strict=True)
    ]
    by_name = {run.name: run for run in runs}
    failures: list[FedvraError] = []
    ended: list[Making] = []
    begun = latest = time.monotonic()

    def head(job: Job) -> str:
        nonlocal latest
        ended.append(by_name[job.name])
        latest = time.monotonic()
        return f"[{len(ended)}/{len(runs)}] "

    def done(job: Job) -> None:
        run = by_name[job.name]
        if not keep_checkpoints:
            shutil.rmtree(run.folder.checkpoints, ignore_errors=True)
        show.line(head(job) + outcome(run.wanted.title, run.folder.summary()))

    def failed(job: Job, error: FedvraError) -> None:
        failures.append(error)
        show.line(f"{head(job)}{job.name}: failed: {error}")

    def tick(running: Sequence[Job]) -> None:
        finished = sum(run.seconds for run in ended)
        pace = (latest - begun) / finished if finished else 1 / place.at_once
        left = max(0.0, begun + pace * sum(expected) - time.monotonic())
        show.state([by_name[job.name] for job in running], len(ended), len(runs), left)

    try:
        with _showing(console) as show:
            carry_out([Job(run.name, run.play) for run in runs], place, done, tick, failed)
    except RunInterrupt:
        raise RunInterrupt("interrupted; run the same command again to resume.") from None
    if failures:
        raise FedvraError(f"{len(failures)} of {len(runs)} runs failed, the last because {failures[-1]}")


class _Show:
    """Plain lines: one for every run that has ended."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def state(self, running: Sequence[Making], count: int, total: int, left: float) -> None:
        pass


class _LiveShow(_Show):
    """The same lines, and below them what is under way."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self.live, self.drawn = live, 0.0

    def state(self, running: Sequence[Making], count: int, total: int, left: float) -> None:
        if time.monotonic() - self.drawn < REDRAW:
            return
        self.drawn = time.monotonic()
        grid = Table.grid(padding=(0, 2))
        for run in running:
            config, curve = run.wanted.config, series(run.folder.metrics(), "test_accuracy")
            reached = curve[-1] if curve else (0, None)
            bar = ProgressBar(total=config.rounds, completed=reached[0], width=30)
            grid.add_row(run.name, bar, f"{reached[0]}/{config.rounds}", percent(reached[1]))
        self.live.update(Group(grid, f"{count} of {total} runs done, about {clock(left)} left"), refresh=True)


@contextmanager
def _showing(console: Console) -> Iterator[_Show]:
    if not console.is_terminal:
        yield _Show(console)
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield _LiveShow(console, live)
