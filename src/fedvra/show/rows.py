"""Lines of a table of runs: what the runs of one label come to, over their seeds, and which of them are best."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvra.core.deploy import parse_deploy
from fedvra.core.goals import Goal, Target, smaller_is_better
from fedvra.runs.files import Record, RunSummary, Status
from fedvra.runs.history import accuracies, rounds_to, rounds_to_stay, time_to, worst_fall
from fedvra.show.spreads import BEYOND, Reached, Spread, best
from fedvra.show.terminal import Column, bold, table


@dataclass(frozen=True)
class Run:
    """A run that has ended; runs of one label differ in their seed alone."""

    label: str
    summary: RunSummary
    metrics: list[Record]


@dataclass(frozen=True)
class Outcome:
    """What a run adds to a line of the table, where there is no summary of it."""

    status: Status
    final_accuracy: float | None
    best_accuracy: float | None
    rounds: int
    rounds_to: dict[str, int | None]
    seconds: float
    time_to: dict[str, float | None] | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    rounds_to_stay: dict[str, int | None] = dataclasses.field(default_factory=dict)
    worst_fall: float | None = None

    @classmethod
    def of(
        cls,
        status: Status,
        metrics: list[Record],
        seconds: float,
        targets: Iterable[Target],
        names: Mapping[str, float] | None = None,
    ) -> Outcome:
        curve = [accuracy for _, accuracy in accuracies(metrics)]
        final, highest = (curve[-1], max(curve)) if curve else (None, None)
        timed = bool(metrics) and "simulated_time" in metrics[-1]
        simulated = time_to(metrics, targets) if timed else None
        return cls(
            status,
            final,
            highest,
            len(metrics),
            rounds_to(metrics, targets),
            seconds,
            simulated,
            dict(names or {}),
            rounds_to_stay(metrics, targets),
            worst_fall(metrics),
        )


@dataclass(frozen=True)
class Row:
    """One line of the table. Accuracies, rounds and seconds are those of the runs that finished, if any did."""

    label: str
    finished: int
    diverged: int
    final_accuracy: Spread | None
    best_accuracy: Spread | None
    rounds_to: dict[str, Reached | None]
    """A lower bound where some runs did not get there; None where there is no run to speak of."""
    seconds: Spread | None
    metrics: dict[str, Spread | None] = dataclasses.field(default_factory=dict)
    """The run's own metrics at the end, by name."""
    unfinished: int = 0
    """Runs that are still going on or were stopped; they count where no other has finished."""
    time_to: dict[str, Spread | None] = dataclasses.field(default_factory=dict)
    """Simulated seconds, likewise; empty where no system tells the time."""
    rounds_to_stay: dict[str, Reached | None] = dataclasses.field(default_factory=dict)
    """First rounds from which on targets are held to the end, likewise."""
    worst_fall: Spread | None = None
    """The largest fall of accuracy from one evaluated round to the next, from round 20 on."""
    falls: bool = False
    """Whether the table has a column of them."""

    @classmethod
    def of(cls, runs: list[Run], targets: Sequence[Target]) -> Row:
        return cls.of_outcomes(runs[0].label, [run.summary for run in runs], targets)

    @classmethod
    def of_outcomes(
        cls, label: str, outcomes: Sequence[RunSummary | Outcome], targets: Sequence[Target], partial: bool = False
    ) -> Row:
        """``partial`` lets runs that have not finished speak where none has."""
        finished = [each for each in outcomes if each.status == "finished"]
        diverged = sum(each.status == "diverged" for each in outcomes)
        done = finished or [each for each in outcomes if partial and each.status != "diverged"]
        keys, spent = [str(Goal.read(target)) for target in targets], [each.rounds for each in done]
        return cls(
            label=label,
            metrics={
                name: Spread.of(each.metrics.get(name) for each in done)
                for name in dict.fromkeys(name for each in outcomes for name in each.metrics)
            },
            finished=len(finished),
            diverged=diverged,
            unfinished=len(outcomes) - len(finished) - diverged,
            final_accuracy=Spread.of(summary.final_accuracy for summary in done),
            best_accuracy=Spread.of(summary.best_accuracy for summary in done),
            rounds_to={key: Reached.of([each.rounds_to[key] for each in done], spent) for key in keys},
            rounds_to_stay={key: Reached.of([each.rounds_to_stay.get(key) for each in done], spent) for key in keys},
            worst_fall=Spread.of(summary.worst_fall for summary in done),
            seconds=Spread.of(summary.seconds for summary in done),
            time_to={
                str(Goal.read(t)): Spread.of((each.time_to or {}).get(str(Goal.read(t))) for each in done)
                for t in (targets if any(each.time_to is not None for each in outcomes) else ())
            },
        )

    def cells(self) -> list[str]:
        missing = "diverged" if self.diverged else "-"
        return [
            self.label + self._note(),
            self.final_accuracy.text(2, scale=100) if self.final_accuracy else missing,
            self.best_accuracy.text(2, scale=100) if self.best_accuracy else missing,
            *([self.worst_fall.text(1, scale=100) if self.worst_fall else "-"] if self.falls else []),
            *(spread.text(4) if spread else missing for spread in self.metrics.values()),
            *("-" if reached is None else reached.text() for reached in self.rounds_to.values()),
            *(self._time_text(reached) for reached in self.time_to.values()),
            self.seconds.text(1) if self.seconds else missing,
        ]

    @property
    def may_win(self) -> bool:
        """Whether it can be among the best: what diverged or has not finished is not."""
        return self.finished > 0 and not self.diverged and not self.unfinished

    def figures(self) -> list[Spread | None]:
        """What the cells after the label say, where it can be compared."""
        reached = [None if each is None else each.ranked for each in self.rounds_to.values()]
        times = [each if each is not None and each.runs == self.finished else BEYOND for each in self.time_to.values()]
        accuracy = [self.final_accuracy, self.best_accuracy, *([self.worst_fall] if self.falls else [])]
        figures = [*accuracy, *self.metrics.values(), *reached, *times, self.seconds]
        return figures if self.may_win else [None] * len(figures)

    def _time_text(self, taken: Spread | None) -> str:
        """Simulated seconds to a target: a mean only where every run got there."""
        counted = self.finished or self.unfinished
        if taken is None or taken.runs == counted:
            return "-" if taken is None else taken.text(1)
        return f"- ({taken.runs} of {counted})"

    def _note(self) -> str:
        total = self.finished + self.diverged + self.unfinished
        said = [(self.diverged, "diverged"), (self.unfinished, "unfinished")]
        notes = [what if total == 1 else f"{number} of {total} {what}" for number, what in said if number]
        return f" [{', '.join(notes)}]" if notes else ""


def same_metrics(rows: Sequence[Row]) -> list[Row]:
    """The rows with the same metrics in each, and falls in all or none, so that they make a table."""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    falls = any(row.worst_fall is not None for row in rows)
    return [
        dataclasses.replace(row, metrics={name: row.metrics.get(name) for name in names}, falls=falls) for row in rows
    ]


def models_said(models: Mapping[str, str]) -> str:
    """Which models accuracies are of, as the end of a title: nothing where all are of x0.

    >>> models_said({"FedAvg": "x0"}), models_said({"FedVRA": "mean", "FedAvg": "x0"})
    ('', "; accuracies are of the mean of the clients' models (FedVRA), x0 (FedAvg)")
    """
    kinds = list(dict.fromkeys(models.values()))
    if kinds in ([], ["x0"]):
        return ""
    if len(kinds) == 1:
        return f"; accuracies are of {parse_deploy(kinds[0]).words}"
    whose = [
        f"{parse_deploy(kind).words} ({', '.join(label for label, each in models.items() if each == kind)})"
        for kind in kinds
    ]
    return f"; accuracies are of {', '.join(whose)}"


def header(targets: Sequence[Target], rows: Sequence[Row] = ()) -> list[str]:
    """Of the table whose lines are the cells of these rows, which are alike."""
    timed = any(row.time_to for row in rows)
    return [
        "algorithm",
        "final %",
        "best %",
        *(["worst fall"] if rows and rows[0].falls else []),
        *(rows[0].metrics if rows else ()),
        *(f"rounds to {Goal.read(target).words}" for target in targets),
        *(f"simulated seconds to {Goal.read(target).words}" for target in targets if timed),
        "seconds",
    ]


def columns(targets: Sequence[Target], rows: Sequence[Row] = ()) -> list[Column]:
    """The same for a terminal: seconds are left out first, then falls, the best accuracy, and targets, the easiest first."""
    name, final, *others = header(targets, rows)
    easier = list(range(len(targets), 0, -1))
    falls, timed = bool(rows) and rows[0].falls, any(row.time_to for row in rows)
    metrics = rows[0].metrics if rows else ()
    order = [len(targets) + 1, *([len(targets) + 2] if falls else []), *(0 for _ in metrics), *easier]
    order += [*(easier if timed else []), len(targets) + 3]
    return [
        Column(name, wrap=14),
        Column(final, number=True),
        *(Column(each, number=True, drop=k) for each, k in zip(others, order, strict=True)),
    ]


def winners(rows: Sequence[Row]) -> list[set[int]]:
    """By column of the figures, which rows are among the best; of seconds none: they depend on what else the machine did."""
    by_column = zip(*(row.figures() for row in rows), strict=True)
    marked = [best(values, highest=up) for values, up in zip(by_column, upwards(rows), strict=True)]
    return [*marked[:-1], set()]


def upwards(rows: Sequence[Row]) -> list[bool]:
    """By column of the figures, whether more is better."""
    falls = [False] if rows and rows[0].falls else []
    known = [True, True, *falls, *(not smaller_is_better(name) for name in (rows[0].metrics if rows else ()))]
    return known + [False] * (len(rows[0].figures()) - len(known) if rows else 0)


def rows_table(rows: Sequence[Row], targets: Sequence[Target], title: str | None = None) -> Any:
    """Rows for a terminal, the best of each column in bold."""
    rows = same_metrics(rows)
    marked = [set[int](), *winners(rows)]
    cells = [[bold(text, k in marked[c]) for c, text in enumerate(row.cells())] for k, row in enumerate(rows)]
    return table(columns(targets, rows), cells, title)
