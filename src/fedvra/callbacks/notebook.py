"""Progress in a notebook: one output of the cell, drawn anew as rounds go by. Needs nothing but IPython itself."""

from __future__ import annotations

import html
import importlib
import sys
import time
from typing import Any

from rich.console import Console

from fedvra.callbacks.base import Run
from fedvra.callbacks.display import LiveView, PlainView, View
from fedvra.runs.files import Record
from fedvra.show.terminal import make_console, outcome

REDRAW = 0.3
"""Seconds between two drawings: each is a message to a browser."""


def notebook() -> Any:
    """What a notebook displays with."""
    return importlib.import_module("IPython.display")  # where this is asked for, a notebook has it


def in_notebook() -> bool:
    """Whether output goes to a notebook's cells."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookView(View):
    """A bar and the figures below it; one line stays when the run has ended."""

    _forgets = (*View._forgets, "handle")

    def begin(self) -> None:
        self.handle: Any = notebook().display(notebook().HTML(self._picture()), display_id=True)
        self.drawn = time.monotonic()

    def on_round(self, run: Run, record: Record) -> None:
        self.standing.take(record)
        if time.monotonic() - self.drawn >= REDRAW:
            self._draw(self._picture())
            self.drawn = time.monotonic()

    def on_end(self, run: Run) -> None:
        said = None if run.summary is None else outcome(self.standing.label, run.summary)
        self._draw(f"<div>{html.escape(said)}</div>" if said else self._picture())

    def _draw(self, page: str) -> None:
        self.handle.update(notebook().HTML(page))

    def _picture(self) -> str:
        s = self.standing
        bar = f'<progress max="{max(1, s.rounds)}" value="{s.round}" style="width:20em"></progress>'
        lines = [s.figures(), s.targets(), s.steps_taken(), s.diagnostics()]
        small = "".join(f"<div><small>{html.escape(line)}</small></div>" for line in lines if line)
        return f"<div><b>{html.escape(s.label)}</b> {bar} round {s.round}/{s.rounds}</div>{small}"


def view_of(progress: bool | None, lines: int = 20) -> View | None:
    """What shows a run: ``None`` is a bar on a terminal and in a notebook and nothing elsewhere; True lines there."""
    if progress is False:
        return None
    if in_notebook():
        return NotebookView(Console(file=sys.stdout))
    console = make_console()
    if console.is_terminal:
        return LiveView(console)
    return PlainView(console, lines) if progress else None
