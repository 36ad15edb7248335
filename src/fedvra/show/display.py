"""Words, tables and figures for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedvra.core.goals import Goal
from fedvra.runs.files import RunSummary


def make_console(stderr: bool = False) -> Console:
    """Where people read. Without a terminal lines are not cut at 80 columns: somebody may want to search them."""
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 200
    return console


def outcome(label: str, summary: RunSummary) -> str:
    """One line on a run that has ended."""
    reached = [f"{Goal.read(target).words} at round {r}" for target, r in summary.rounds_to.items() if r is not None]
    if summary.status == "diverged":
        return f"{label}, seed {summary.seed}: {summary.message}"
    rounds = "1 round" if summary.rounds == 1 else f"{summary.rounds} rounds"
    return (
        f"{label}, seed {summary.seed}: final {percent(summary.final_accuracy)}, best {percent(summary.best_accuracy)}"
        f"{', ' + ', '.join(reached) if reached else ''}; {rounds} in {summary.seconds:.1f} s"
        f"{'' if summary.stopped is None else '; stopped: ' + summary.stopped}"
    )


def table(header: list[str], rows: list[list[str]], title: str | None = None, wrap: tuple[int, ...] = ()) -> Table:
    """A table for a console; columns other than those in ``wrap`` are not broken."""
    made = Table(*header, title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for k, column in enumerate(made.columns):
        column.no_wrap = k not in wrap
        column.overflow = "fold"
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def markdown(header: list[str], rows: Iterable[list[str]]) -> str:
    """The same for a page.

    >>> markdown(["a", "b"], [["1", "x|y"]])
    '| a | b |\\n| --- | --- |\\n| 1 | x\\\\|y |\\n'
    """
    cells = ([cell.replace("|", r"\|") for cell in row] for row in rows)
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
