"""How far the runs of a study are: read from their folders, since each is in a process of its own."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedvra.callbacks.notebook import in_notebook, notebook
from fedvra.runs.files import RunFolder
from fedvra.show.terminal import make_console, outcome
from fedvra.studies.parallel import Job, Place, carry_out

REDRAW = 0.3
"""Seconds between two drawings."""


class Progress:
    """Shows nothing: for programs."""

    def __init__(self, folders: Mapping[str, RunFolder], rounds: int) -> None:
        self.folders, self.rounds = folders, rounds
        self.count, self.drawn = 0, 0.0

    @classmethod
    def of(
        cls, progress: bool | None, folders: Mapping[str, RunFolder], rounds: int, console: Console | None = None
    ) -> Progress:
        """None is a display on a terminal and in a notebook and nothing elsewhere; True a line per run there."""
        if progress is False:
            return Progress(folders, rounds)
        if in_notebook():
            return _Notebook(folders, rounds)
        console = console or make_console()
        if console.is_terminal:
            return _Terminal(folders, rounds, console)
        return _Lines(folders, rounds, console) if progress else Progress(folders, rounds)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def ended(self, name: str) -> None:
        """A run has come to its end."""
        self.count += 1
        self.line(
            f"[{self.count}/{len(self.folders)}] {outcome(name.rpartition(', seed ')[0], self.folders[name].summary())}"
        )

    def draw(self, running: Sequence[str]) -> None:
        """Called often; draws now and then."""
        if time.monotonic() - self.drawn >= REDRAW:
            self.drawn = time.monotonic()
            self.show([(name, self.folders[name].rounds_done()) for name in running])

    def line(self, text: str) -> None:
        """One that stays."""

    def show(self, running: Sequence[tuple[str, int]]) -> None:
        """What is under way, and how far it is."""


class _Lines(Progress):
    def __init__(self, folders: Mapping[str, RunFolder], rounds: int, console: Console) -> None:
        super().__init__(folders, rounds)
        self.console = console

    def line(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)


class _Terminal(_Lines):
    def __enter__(self) -> Progress:
        self.live = Live(console=self.console, transient=True, auto_refresh=False)
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def show(self, running: Sequence[tuple[str, int]]) -> None:
        grid = Table.grid(padding=(0, 2))
        for name, done in running:
            grid.add_row(
                name, ProgressBar(total=max(1, self.rounds), completed=done, width=30), f"{done}/{self.rounds}"
            )
        self.live.update(Group(grid, f"{self.count} of {len(self.folders)} runs done"), refresh=True)


class _Notebook(Progress):
    def __enter__(self) -> Progress:
        self.said: list[str] = []
        self.handle: Any = notebook().display(notebook().HTML("starting"), display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.show([])

    def line(self, text: str) -> None:
        self.said.append(html.escape(text))
        self.show([])

    def show(self, running: Sequence[tuple[str, int]]) -> None:
        bars = [
            f'{html.escape(name)} <progress max="{max(1, self.rounds)}" value="{done}"></progress> {done}/{self.rounds}'
            for name, done in running
        ]
        lines = [f"<div><small>{line}</small></div>" for line in [*self.said, *bars]]
        self.handle.update(notebook().HTML("".join(lines) or "starting"))


def follow(jobs: Sequence[Job], place: Place, display: Progress) -> None:
    """Make these runs there, and show how far they are."""
    with display:
        carry_out(
            jobs, place, lambda job: display.ended(job.name), lambda running: display.draw([j.name for j in running])
        )
