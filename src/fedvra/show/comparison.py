"""Runs of several algorithms over several seeds, side by side: a table with means and spreads, and a picture of the curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvra.core.files import replace_durably
from fedvra.core.goals import Goal, Target, smaller_is_better
from fedvra.runs.files import Record, RunSummary, Status, write_json
from fedvra.runs.history import accuracies, rounds_to, time_to
from fedvra.runs.inline import study_html
from fedvra.runs.options import RunConfig
from fedvra.show.curves import mean_curve
from fedvra.show.plots import Curve, curves_figure, draw_curves
from fedvra.show.spreads import Reached, Spread, best
from fedvra.show.terminal import Column, bold, markdown, split_of, table


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
            status, final, highest, len(metrics), rounds_to(metrics, targets), seconds, simulated, dict(names or {})
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
            rounds_to={
                key: Reached.of([each.rounds_to[key] for each in done], [each.rounds for each in done])
                for key in (str(Goal.read(target)) for target in targets)
            },
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
        reached = [None if each is None else each.spread for each in self.rounds_to.values()]
        times = [each if each is not None and each.runs == self.finished else None for each in self.time_to.values()]
        figures = [self.final_accuracy, self.best_accuracy, *self.metrics.values(), *reached, *times, self.seconds]
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


def same_metrics(rows: list[Row]) -> list[Row]:
    """The rows with the same metrics in each, so that they make a table."""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    return [dataclasses.replace(row, metrics={name: row.metrics.get(name) for name in names}) for row in rows]


def header(targets: Sequence[Target], timed: bool = False, metrics: Iterable[str] = ()) -> list[str]:
    """Of the table whose lines are the cells of rows; ``timed``: with simulated seconds to each target."""
    return [
        "algorithm",
        "final %",
        "best %",
        *metrics,
        *(f"rounds to {Goal.read(target).words}" for target in targets),
        *(f"simulated seconds to {Goal.read(target).words}" for target in targets if timed),
        "seconds",
    ]


def columns(targets: Sequence[Target], timed: bool = False, metrics: Sequence[str] = ()) -> list[Column]:
    """The same for a terminal: seconds are left out first, then the best accuracy, then targets, the easiest first."""
    name, final, *others = header(targets, timed, metrics)
    easier = list(range(len(targets), 0, -1))
    order = [len(targets) + 1, *(0 for _ in metrics), *easier, *(easier if timed else []), len(targets) + 2]
    return [
        Column(name, wrap=14),
        Column(final, number=True),
        *(Column(each, number=True, drop=k) for each, k in zip(others, order, strict=True)),
    ]


def winners(rows: Sequence[Row]) -> list[set[int]]:
    """By column of the figures, which rows are among the best; of seconds none: they depend on what else the machine did."""
    by_column = list(zip(*(row.figures() for row in rows), strict=True))
    names = ["accuracy", "accuracy", *(rows[0].metrics if rows else ())]
    upwards = [not smaller_is_better(name) for name in names] + [False] * len(by_column)
    marked = [best(values, highest=up) for values, up in zip(by_column, upwards, strict=False)]
    return [*marked[:-1], set()]


def rows_table(rows: Sequence[Row], targets: Sequence[Target], title: str | None = None) -> Any:
    """Rows for a terminal, the best of each column in bold."""
    marked = [set[int](), *winners(rows)]
    cells = [[bold(text, k in marked[c]) for c, text in enumerate(row.cells())] for k, row in enumerate(rows)]
    return table(columns(targets, any(row.time_to for row in rows), list(rows[0].metrics)), cells, title)


@dataclass(frozen=True)
class Comparison:
    """Renders itself: ``rich.print(comparison)``, ``comparison.markdown()``, ``comparison.to_dict()``."""

    config: RunConfig
    """Of one of the runs; the others differ in algorithm, hyper-parameters and seed."""
    runs: list[Run]
    out: Path

    @property
    def table_file(self) -> Path:
        return self.out / "table.md"

    @property
    def picture_file(self) -> Path:
        return self.out / "curves.png"

    @property
    def report_file(self) -> Path:
        return self.out / "report.html"

    def rows(self) -> list[Row]:
        return same_metrics([Row.of(runs, self.config.targets) for runs in self._by_label().values()])

    def header(self) -> list[str]:
        metrics = next((row.metrics for row in self.rows()), ())
        return header(self.config.targets, self.config.system is not None, metrics)

    def title(self) -> str:
        c = self.config
        return f"{c.task}: {c.clients} clients, {split_of(c)}, {c.sampler} cohort of {c.cohort}, {c.rounds} rounds"

    def __rich__(self) -> Any:
        return rows_table(self.rows(), self.config.targets, title=self.title())

    def markdown(self) -> str:
        return f"{self.title()}\n\n" + markdown(self.header(), [row.cells() for row in self.rows()])

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.config.task,
            "folder": str(self.out),
            "table": str(self.table_file),
            "picture": str(self.picture_file),
            "report": str(self.report_file),
            "rows": [dataclasses.asdict(row) for row in self.rows()],
            "runs": [{"label": run.label, "summary": run.summary.to_dict()} for run in self.runs],
        }

    def to_pandas(self) -> Any:
        """Every round of every run as a DataFrame, with columns ``label`` and ``seed`` (needs the extra ``fedvra[pandas]``)."""
        import pandas

        rows = [{"label": run.label, "seed": run.summary.seed, **record} for run in self.runs for record in run.metrics]
        return pandas.DataFrame(rows)

    def plot(self) -> Any:
        """The curves with their bands, as a matplotlib figure."""
        return curves_figure(self.curves(), self.title(), self._band(), self.config.targets)

    def report(self, path: str | Path | None = None) -> Path:
        """One self-contained page about all its runs; None: into the folder of the comparison."""
        from fedvra.show.page import write_report

        return write_report([self.out], self.report_file if path is None else path)

    def _repr_html_(self) -> str:
        cells, best_of = [row.cells() for row in self.rows()], [set[int](), *winners(self.rows())]
        return study_html(self.title(), self.header(), cells, self.plot(), best_of)

    def write(self) -> None:
        """The table (table.md, comparison.json) and the picture (curves.png) into the folder of the comparison."""
        replace_durably(self.table_file, self.markdown().encode())
        write_json(self.out / "comparison.json", self.to_dict())
        draw_curves(self.curves(), self.picture_file, self.title(), self._band(), self.config.targets)

    def _band(self) -> str:
        seeds = len({run.summary.seed for run in self.runs})
        return f"mean of {seeds} seeds; bands: one standard deviation" if seeds > 1 else f"seed {self.config.seed}"

    def curves(self) -> list[Curve]:
        """Per label the mean over its finished runs; where none finished, over what there is of them."""
        made = []
        for label, runs in self._by_label().items():
            finished = [run for run in runs if run.summary.status == "finished"]
            curve = mean_curve(
                label if finished else f"{label}, diverged",
                [run.metrics for run in finished or runs],
                algorithm=runs[0].summary.algorithm,
                whole=bool(finished),
            )
            if curve is not None:
                made.append(curve)
        return made

    def _by_label(self) -> dict[str, list[Run]]:
        grouped: dict[str, list[Run]] = {}
        for run in self.runs:
            grouped.setdefault(run.label, []).append(run)
        return grouped
