"""What a person sees while runs go on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedvra.local.protocol import DIRECT, StepPath
from fedvra.runs.files import Record, RunSummary
from fedvra.runs.options import RunConfig

RECENT = 20
"""Rounds over which speed is averaged."""
DIAGNOSTICS = {
    "grad_norm2": "|grad f|^2",
    "xi": "Xi",
    "potential": "P",
    "variance_before": "variance",
    "variance_after": "corrected",
    "drift": "drift",
    "momentum": "momentum",
}
"""What diagnostics are called on a line."""
REDRAW = 0.1
"""Seconds between two drawings of the live display; more often costs time that clients could use."""


def make_console(stderr: bool = False) -> Console:
    """Where people read. Without a terminal lines are not cut at 80 columns: somebody may want to search them."""
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 200
    return console


class Standing:
    """How a run stands, worked out from its records."""

    def __init__(self, label: str, config: RunConfig, past: Iterable[Record] = ()) -> None:
        self.label, self.config = label, config
        self.round = 0
        self.accuracy: float | None = None
        self.best: float | None = None
        self.loss: float | None = None
        self.reached: dict[float, int] = {}
        self.diagnosed: Record | None = None
        self.path: Record | None = None
        """The last record that had diagnostics."""
        self._recent: deque[Record] = deque(maxlen=RECENT)
        for record in past:
            self.take(record)

    def take(self, record: Record) -> None:
        self.round = record["round"]
        self.loss = record["test_loss"] if record["test_loss"] is not None else record["train_loss"]
        self._recent.append(record)
        if record.get("diagnostics"):
            self.diagnosed = record
        if "path_reason" in record:
            self.path = record
        if record["test_accuracy"] is not None:
            self.accuracy = record["test_accuracy"]
            self.best = max(self.accuracy, self.best or 0.0)
            for target in self.config.targets:
                if 100 * self.accuracy >= target:
                    self.reached.setdefault(target, self.round)

    def seconds_per_round(self) -> float:
        return float(sum(record["seconds"] for record in self._recent)) / max(1, len(self._recent))

    def clients_per_second(self) -> float:
        per_round = sum(len(record["cohort"]) for record in self._recent) / max(1, len(self._recent))
        return per_round / max(self.seconds_per_round(), 1e-9)

    def time_left(self) -> float:
        return self.seconds_per_round() * (self.config.rounds - self.round)

    def figures(self) -> str:
        if self.round == 0:
            return "starting"
        parts = [
            f"accuracy {percent(self.accuracy)}",
            f"best {percent(self.best)}",
            "loss -" if self.loss is None else f"loss {self.loss:.4g}",
            f"{self.clients_per_second():.0f} clients/s",
            f"{clock(self.time_left())} left",
        ]
        return "  ".join(parts)

    def diagnostics(self) -> str:
        """What the last diagnostics said; nothing where there are none."""
        if self.diagnosed is None:
            return ""
        found = self.diagnosed["diagnostics"]
        parts = [f"{words} {found[name]:.3g}" for name, words in DIAGNOSTICS.items() if found.get(name) is not None]
        return "  ".join([f"after round {self.diagnosed['round']}:", *parts])

    def steps_taken(self) -> str:
        """Which way local steps are taken, and why not a faster one; nothing where there is one way."""
        if self.path is None or self.path["path"] == DIRECT.name:
            return ""
        reason = self.path["path_reason"]
        return f"local steps: {StepPath(self.path['path'], reason)}"

    def targets(self) -> str:
        return "  ".join(
            f"{target:g}% {f'at round {self.reached[target]}' if target in self.reached else '-'}"
            for target in self.config.targets
        )


class View(ABC):
    """Shows one run after another: ``begin``, a ``record`` per round, ``end`` with what it came to (None: cut short).

    A run that goes on after a stop begins with the records of its ``past``.
    """

    @abstractmethod
    def begin(self, label: str, config: RunConfig, past: Iterable[Record] = ()) -> None: ...

    @abstractmethod
    def record(self, record: Record) -> None: ...

    @abstractmethod
    def end(self, summary: RunSummary | None) -> None: ...


class Silent(View):
    """Shows nothing: for programs."""

    def begin(self, label: str, config: RunConfig, past: Iterable[Record] = ()) -> None:
        pass

    def record(self, record: Record) -> None:
        pass

    def end(self, summary: RunSummary | None) -> None:
        pass


class LiveView(View):
    """A bar, the figures and the targets, redrawn in place; one line stays when the run has ended."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, label: str, config: RunConfig, past: Iterable[Record] = ()) -> None:
        self.standing = Standing(label, config, past)
        # No refreshing thread: worker processes are forked, and must not inherit a lock that a thread was holding.
        self.live = Live(self._picture(), console=self.console, transient=True, auto_refresh=False)
        self.live.start(refresh=True)
        self.drawn = time.monotonic()

    def record(self, record: Record) -> None:
        self.standing.take(record)
        if time.monotonic() - self.drawn >= REDRAW:
            self.live.update(self._picture(), refresh=True)
            self.drawn = time.monotonic()

    def end(self, summary: RunSummary | None) -> None:
        self.live.stop()
        if summary is not None:
            self.console.print(outcome(self.standing.label, summary), soft_wrap=True)

    def _picture(self) -> Group:
        standing = self.standing
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(standing.label, style="bold"),
            ProgressBar(total=max(1, standing.config.rounds), completed=standing.round, width=40),
            f"round {standing.round}/{standing.config.rounds}",
        )
        lines = [Text(standing.figures()), Text(standing.targets(), style="dim")]
        if standing.steps_taken():
            lines.append(Text(standing.steps_taken(), style="dim"))
        if standing.diagnosed is not None:
            lines.append(Text(standing.diagnostics(), style="dim"))
        return Group(head, *lines)


class PlainView(View):
    """A line for every round, or for about ``lines`` of them in a long run; 0 leaves only the last word on each run."""

    def __init__(self, console: Console, lines: int = 20) -> None:
        self.console, self.lines = console, lines

    def begin(self, label: str, config: RunConfig, past: Iterable[Record] = ()) -> None:
        self.standing = Standing(label, config, past)
        self.every = -(-config.rounds // self.lines) if self.lines else 0
        self.told = self.standing.diagnosed

    def record(self, record: Record) -> None:
        self.standing.take(record)
        if self.every and self.standing.path is record and self.standing.steps_taken():
            self.console.print(f"{self.standing.label}  {self.standing.steps_taken()}", soft_wrap=True)
        if self.every and (record["round"] % self.every == 0 or record["round"] == self.standing.config.rounds):
            width = len(str(self.standing.config.rounds))
            reached = [f"{t:g}% at {r}" for t, r in self.standing.reached.items()]
            self.console.print(
                f"{self.standing.label}  round {record['round']:>{width}}/{self.standing.config.rounds}  "
                f"{self.standing.figures()}{'  reached ' + ', '.join(reached) if reached else ''}",
                soft_wrap=True,
            )
            if self.standing.diagnosed is not None and self.standing.diagnosed is not self.told:
                self.told = self.standing.diagnosed
                self.console.print(f"{self.standing.label}  {self.standing.diagnostics()}", soft_wrap=True)

    def end(self, summary: RunSummary | None) -> None:
        if summary is not None:
            self.console.print(outcome(self.standing.label, summary), soft_wrap=True)


def make_view(console: Console, lines: int = 20) -> View:
    return LiveView(console) if console.is_terminal else PlainView(console, lines)


def watch(
    view: View,
    label: str,
    config: RunConfig,
    run: Callable[[Callable[[Record], None]], RunSummary],
    past: Iterable[Record] = (),
) -> RunSummary:
    """What ``run`` does (it is given what to call with each record), shown by ``view``."""
    view.begin(label, config, past)
    summary = None
    try:
        summary = run(view.record)
    finally:
        view.end(summary)
    return summary


def outcome(label: str, summary: RunSummary) -> str:
    """One line on a run that has ended."""
    reached = [f"{target}% at round {r}" for target, r in summary.rounds_to.items() if r is not None]
    if summary.status == "diverged":
        return f"{label}, seed {summary.seed}: {summary.message}"
    rounds = "1 round" if summary.rounds == 1 else f"{summary.rounds} rounds"
    return (
        f"{label}, seed {summary.seed}: final {percent(summary.final_accuracy)}, best {percent(summary.best_accuracy)}"
        f"{', ' + ', '.join(reached) if reached else ''}; {rounds} in {summary.seconds:.1f} s"
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
