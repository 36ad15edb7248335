"""What is printed for people: a console, tables that fit its width without cutting anything, sentences that break at words."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from fedvra.core.deploy import parse_deploy
from fedvra.core.goals import Goal

if TYPE_CHECKING:
    from fedvra.runs.files import RunSummary
    from fedvra.runs.options import RunConfig

GAP = 2
"""Spaces between columns."""


def make_console(stderr: bool = False) -> Console:
    """Where people read. Without a terminal, tables are as wide as COLUMNS says, or wide enough to be searched by line."""
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = 200
    return console


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print sentences: on a terminal lines break between words, elsewhere they stay whole."""
    lines = broken(text, console.width) if console.is_terminal else text.split("\n")
    for line in lines:
        console.print(line, style=style, soft_wrap=True)


def broken(text: str, width: int) -> Iterable[str]:
    """Lines of at most ``width``, broken between words alone; what begins with a dash hangs from it.

    >>> list(broken("- the folder runs/a-long-name is in use", 20))
    ['- the folder', '  runs/a-long-name', '  is in use']
    """
    for line in text.split("\n"):
        lead = line[: len(line) - len(line.lstrip(" -"))]
        yield from textwrap.wrap(
            line,
            max(width, 20),
            subsequent_indent=" " * len(lead),
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        ) or [""]


@dataclass(frozen=True)
class Column:
    """A column of a table, and what may become of it where there is little room."""

    header: str
    number: bool = False
    """Right-aligned."""
    wrap: int = 0
    """Words, which may go over several lines of no less than this; 0 where lines are not broken."""
    drop: int = 0
    """Left out where the table does not fit, the greatest first; 0 never."""


def table(
    columns: Sequence[str | Column], rows: Sequence[Sequence[str | Text]], title: str | None = None
) -> FittedTable:
    """A table for a console. Names and numbers are never cut: see :class:`FittedTable`."""
    made = [Column(column) if isinstance(column, str) else column for column in columns]
    return FittedTable(made, [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows], title)


class FittedTable:
    """Fits the width it is given: first headers break, then prose, then columns are left out, then lines are stacked."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]], title: str | None) -> None:
        self.columns, self.rows, self.title = columns, rows, title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if self.title:
            yield Text("\n".join(broken(self.title, width)), style="bold")
        left = list(range(len(self.columns)))
        gone: list[int] = []
        while self._least(left) > width and any(self.columns[k].drop for k in left):
            gone.append(max(left, key=lambda k: self.columns[k].drop))
            left.remove(gone[-1])
        if self._least(left) > width:
            yield from self._stacked(width)
            return
        yield self._beside(left, width)
        if gone:
            names = ", ".join(self.columns[k].header for k in gone)
            yield Text("\n".join(broken(f"Not shown, for lack of width: {names}.", width)), style="dim")

    def _least(self, shown: Sequence[int]) -> int:
        """The width below which something would have to be cut."""
        return sum(self._narrowest(k) for k in shown) + GAP * (len(shown) - 1)

    def _narrowest(self, k: int) -> int:
        column = self.columns[k]
        if column.wrap:
            return max([min(column.wrap, self._widest(k)), *map(cell_len, self._words(k))])
        return max([*map(cell_len, column.header.split()), *self._cells(k), 1])

    def _widest(self, k: int) -> int:
        return max([cell_len(self.columns[k].header), *self._cells(k), 1])

    def _cells(self, k: int) -> list[int]:
        return [cell_len(line) for row in self.rows for line in row[k].plain.splitlines()]

    def _words(self, k: int) -> list[str]:
        return [word for row in self.rows for word in row[k].plain.split()] + self.columns[k].header.split()

    def _beside(self, shown: Sequence[int], width: int) -> Table:
        """Columns side by side. What room there is goes to headers first, if it is enough for all, then to prose."""
        widths = {k: self._narrowest(k) for k in shown}
        spare = width - self._least(shown)
        plain = {k: max(widths[k], cell_len(self.columns[k].header)) for k in shown}
        if sum(plain.values()) - sum(widths.values()) <= spare:
            spare -= sum(plain.values()) - sum(widths.values())
            widths = plain
        while spare > 0 and (short := [k for k in shown if self.columns[k].wrap and widths[k] < self._widest(k)]):
            widths[min(short, key=widths.__getitem__)] += 1  # the narrowest first: what is short fits on one line
            spare -= 1
        made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, GAP - 1, 0, 0), pad_edge=False)
        for k in shown:
            column = self.columns[k]
            made.add_column(
                Text("\n".join(textwrap.wrap(column.header, widths[k], break_long_words=False)), style="bold"),
                justify="right" if column.number else "left",
                no_wrap=not column.wrap,
                width=widths[k],
            )
        for row in self.rows:
            made.add_row(*(row[k] for k in shown))
        return made

    def _stacked(self, width: int) -> RenderResult:
        """One line per cell, for the narrowest of terminals."""
        side = max((cell_len(column.header) for column in self.columns[1:]), default=0) + GAP
        for row in self.rows:
            yield Text("\n".join(broken(row[0].plain, width)), style="bold")
            for column, cell in zip(self.columns[1:], row[1:], strict=True):
                lines = [line for part in cell.plain.splitlines() for line in broken(part, width - side - 2)] or [""]
                for k, line in enumerate(lines):
                    yield Text(f"  {column.header if k == 0 else '':<{side}}") + Text(line, style=cell.style)
            yield Text()


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], best_of: Sequence[set[int]] = ()) -> str:
    """The same for a page; ``best_of`` says by column which rows are in bold.

    >>> markdown(["a", "b"], [["1", "x|y"]], [{0}])
    '| a | b |\\n| --- | --- |\\n| **1** | x\\\\|y |\\n'
    """
    plain = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    cells = [
        [f"**{cell}**" if c < len(best_of) and k in best_of[c] else cell for c, cell in enumerate(row)]
        for k, row in enumerate(plain)
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *cells))


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}%"


def clock(seconds: float) -> str:
    """
    >>> clock(75), clock(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def outcome(label: str, summary: RunSummary) -> str:
    """One line on a run that has ended."""
    reached = [f"{Goal.read(target).words} at round {r}" for target, r in summary.rounds_to.items() if r is not None]
    if summary.status == "diverged":
        return f"{label}, seed {summary.seed}: {summary.message}"
    whose = "" if summary.deploy == "x0" else f" (of {parse_deploy(summary.deploy).words})"
    rounds = "1 round" if summary.rounds == 1 else f"{summary.rounds} rounds"
    accuracy = [f"final {percent(summary.final_accuracy)}", f"best {percent(summary.best_accuracy)}{whose}"]
    figures = [*(accuracy if summary.final_accuracy is not None else []), *reached]
    return (
        f"{label}, seed {summary.seed}: {', '.join(figures) + '; ' if figures else ''}{rounds} in {summary.seconds:.1f} s"
        f"{'' if summary.epsilon is None else f'; epsilon {summary.epsilon:.3g}'}"
        f"{'' if summary.stopped is None else '; stopped: ' + summary.stopped}"
    )


def split_of(config: RunConfig) -> str:
    """How the data are partitioned, in a title; a run of Python objects brought them partitioned."""
    return "own partition" if "split" in (config.python or ()) else config.split


def bold(text: str, yes: bool = True) -> Any:
    """A cell, in bold where it is among the best of its column."""
    return Text(text, style="bold" if yes else "")
