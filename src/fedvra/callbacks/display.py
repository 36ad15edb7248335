"""What a person sees during runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedvra.callbacks.base import Callback, Run
from fedvra.core.goals import ACCURACY, Goal, figure, goals
from fedvra.local.protocol import DIRECT, StepPath
from fedvra.runs.files import Record, RunSummary
from fedvra.runs.options import RunConfig
from fedvra.show.comparison import rows_table
from fedvra.show.study import Study
from fedvra.show.terminal import clock, outcome, percent, say

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
TAKEN = 12
"""Lines of a terminal that are not for the table of finished runs."""
REDRAW = 0.1
"""Seconds between two drawings of the live display; more often costs time that clients could use."""


class Standing:
    """How a run stands, worked out from its records."""

    def __init__(
        self, label: str, rounds: int, targets: Iterable[Any] = (), past: Iterable[Record] = (), seed: int = 0
    ) -> None:
        self.label, self.rounds, self.goals, self.seed = label, rounds, goals(targets), seed
        self.round = 0
        self.accuracy: float | None = None
        self.best: float | None = None
        self.loss: float | None = None
        self.reached: dict[Goal, int] = {}
        self.diagnosed: Record | None = None
        self.path: Record | None = None
        """The last record that had diagnostics."""
        self._recent: deque[Record] = deque(maxlen=RECENT)
        for record in past:
            self.take(record)

    def take(self, record: Record) -> None:
        self.round = record["round"]
        loss = figure(record, "model_loss")
        self.loss = record["train_loss"] if loss is None else loss
        self._recent.append(record)
        if record.get("diagnostics"):
            self.diagnosed = record
        if "path_reason" in record:
            self.path = record
        if (accuracy := figure(record, ACCURACY)) is not None:
            self.accuracy = accuracy
            self.best = max(self.accuracy, self.best or 0.0)
        for goal in self.goals:
            if goal.reached(record):
                self.reached.setdefault(goal, self.round)

    def seconds_per_round(self) -> float:
        return float(sum(record["seconds"] for record in self._recent)) / max(1, len(self._recent))

    def clients_per_second(self) -> float:
        per_round = sum(len(record["cohort"]) for record in self._recent) / max(1, len(self._recent))
        return per_round / max(self.seconds_per_round(), 1e-9)

    def time_left(self) -> float:
        return self.seconds_per_round() * (self.rounds - self.round)

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
            f"{goal.words} {f'at round {self.reached[goal]}' if goal in self.reached else '-'}" for goal in self.goals
        )


class View(Callback):
    """Shows one run after another. One that was resumed begins with its earlier records.

    Several runs are announced by ``study``; one of them that had ended earlier is ``passed``.
    """

    afterwards: ClassVar[bool] = True
    _forgets: ClassVar[tuple[str, ...]] = ("standing", "live", "drawn", "every", "told", "several")

    def __init__(self, console: Console) -> None:
        self.console = console
        self.several = Study([])

    def study(self, plan: Sequence[tuple[str, RunConfig]], later: int = 0) -> None:
        """These runs follow, by label, and after them ``later`` rounds of runs that are not known yet."""
        self.several = Study(plan, later, ended=self.several.ended)

    def passed(self, label: str, summary: RunSummary) -> None:
        self.several.begin()
        self.several.end(label, summary)

    def on_start(self, run: Run) -> None:
        self.standing = Standing(run.title, run.rounds, run.targets, run.records, run.seed)
        self.several.begin()
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """The standing is that before the first round."""

    def on_end(self, run: Run) -> None:
        self.close()
        if run.summary is not None and run.status in ("finished", "diverged"):
            self.several.end(self.standing.label, run.summary)
            say(self.console, self._last_word(run.summary))

    def _last_word(self, summary: RunSummary) -> str:
        said, several = outcome(self.standing.label, summary), self.several
        if len(several.plan) < 2:
            return said
        left = several.time_left(self.standing.label, self.standing.seconds_per_round())
        rest = f"; {clock(left)} left for the rest" if several.begun < len(several.plan) else ""
        return f"{several.begun:>{len(str(len(several.plan)))}}/{len(several.plan)}  {said.rstrip('.')}{rest}"

    def close(self) -> None:
        """Before the last word."""


class LiveView(View):
    """A bar, the figures and the targets, redrawn in place; one line stays when the run has ended.

    Of several runs, a table of those that have ended grows above the bar.
    """

    def begin(self) -> None:
        # No refreshing thread: worker processes are forked, and must not inherit a lock that a thread was holding.
        self.live = Live(self._picture(), console=self.console, transient=True, auto_refresh=False)
        self.live.start(refresh=True)
        self.drawn = time.monotonic()

    def on_round(self, run: Run, record: Record) -> None:
        self.standing.take(record)
        if time.monotonic() - self.drawn >= REDRAW:
            self.live.update(self._picture(), refresh=True)
            self.drawn = time.monotonic()

    def close(self) -> None:
        self.live.stop()

    def _picture(self) -> Group:
        standing, several = self.standing, self.several
        shown: list[Any] = []
        if several.ended and several.plan:
            rows = several.rows(max(3, self.console.height - TAKEN))
            shown.append(rows_table(rows, several.plan[0][1].targets))
        who, rounds = f"{standing.label}, seed {standing.seed}", f"round {standing.round}/{standing.rounds}"
        room = self.console.width - len(who) - len(rounds) - 4
        bar = ProgressBar(total=max(1, standing.rounds), completed=standing.round, width=min(40, room))
        head = Table.grid(padding=(0, 2))
        head.add_row(Text(who, style="bold"), *([bar] if room >= 8 else []), rounds)
        shown.append(head)
        if len(several.plan) > 1:
            left = standing.time_left() + several.time_left(standing.label, standing.seconds_per_round())
            known = f"  {clock(left)} left for all of them" if standing.round else ""  # before a round, nobody can tell
            shown.append(Text(several.place() + known))
        lines = [Text(standing.figures()), Text(standing.targets(), style="dim")]
        if standing.steps_taken():
            lines.append(Text(standing.steps_taken(), style="dim"))
        if standing.diagnosed is not None:
            lines.append(Text(standing.diagnostics(), style="dim"))
        return Group(*shown, *lines)


class PlainView(View):
    """A line for every round, or for about ``lines`` of them in a long run; 0 leaves only the last word on each run."""

    def __init__(self, console: Console, lines: int = 20) -> None:
        super().__init__(console)
        self.lines = lines

    def begin(self) -> None:
        self.every = -(-self.standing.rounds // self.lines) if self.lines else 0
        self.told = self.standing.diagnosed

    def on_round(self, run: Run, record: Record) -> None:
        self.standing.take(record)
        if self.every and self.standing.path is record and self.standing.steps_taken():
            self.console.print(f"{self.standing.label}  {self.standing.steps_taken()}", soft_wrap=True)
        if self.every and (record["round"] % self.every == 0 or record["round"] == self.standing.rounds):
            width = len(str(self.standing.rounds))
            reached = [f"{goal.words} at {r}" for goal, r in self.standing.reached.items()]
            self.console.print(
                f"{self.standing.label}  round {record['round']:>{width}}/{self.standing.rounds}  "
                f"{self.standing.figures()}{'  reached ' + ', '.join(reached) if reached else ''}",
                soft_wrap=True,
            )
            if self.standing.diagnosed is not None and self.standing.diagnosed is not self.told:
                self.told = self.standing.diagnosed
                self.console.print(f"{self.standing.label}  {self.standing.diagnostics()}", soft_wrap=True)


def make_view(console: Console, lines: int = 20) -> View:
    return LiveView(console) if console.is_terminal else PlainView(console, lines)
