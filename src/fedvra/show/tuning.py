"""The result of a search over settings: a table with the best first, and what to type to use it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedvra.core.files import replace_durably
from fedvra.core.goals import ACCURACY, VALIDATION, Goal, Target, name_in, smaller_is_better
from fedvra.runs import option_text
from fedvra.runs.algorithm_text import label_of, make_algorithm, settings_of
from fedvra.runs.described import described
from fedvra.runs.files import write_json
from fedvra.runs.history import series
from fedvra.runs.inline import study_html
from fedvra.runs.options import OPTIONS, RunConfig
from fedvra.show.comparison import Run
from fedvra.show.curves import mean_curve
from fedvra.show.plots import curves_figure
from fedvra.show.searches import FILE
from fedvra.show.spreads import Reached, Spread, best
from fedvra.show.terminal import Column, bold, markdown, table

TAIL = 10
"""A setting is judged by the mean of the last tenth of its rounds: single ones swing."""


@dataclass(frozen=True)
class Trial:
    """One setting, with every seed, as far as it was run."""

    given: Mapping[str, Any]
    """What was varied."""
    folder: str
    """Within the search's own; the runs are in it, by seed."""
    runs: Sequence[Run]

    @property
    def rounds(self) -> int:
        return max(len(run.metrics) for run in self.runs)

    @property
    def diverged(self) -> int:
        return sum(run.summary.status == "diverged" for run in self.runs)

    def score(self, metric: str) -> Spread | None:
        """A figure over the seeds, each the mean of its last tenth of rounds."""
        return Spread.of(_tail(run, metric) for run in self.runs)

    def judged_by(self, metric: str | None) -> str:
        """By what a setting is judged: what was asked for, else accuracy on the validation data, else on the test data."""
        own = any(VALIDATION in record for run in self.runs for record in run.metrics[-1:])
        return metric or (VALIDATION if own else ACCURACY)

    @property
    def accuracy(self) -> Spread | None:
        """Over the seeds, each the mean of its last tenth of rounds; None where nothing was evaluated."""
        return Spread.of(_tail(run, ACCURACY) for run in self.runs)

    @property
    def loss(self) -> Spread | None:
        """The same of the test loss or, where there is none, of the training loss."""
        losses = [_tail(run, "model_loss") for run in self.runs]
        return Spread.of(
            _tail(run, "train_loss") if loss is None else loss for run, loss in zip(self.runs, losses, strict=True)
        )

    def reached(self, target: Target) -> Reached | None:
        """Rounds to a target, a lower bound where some seeds did not get there; accuracy is that on validation data, if any."""
        goal = Goal.read(target)
        goal = goal.on(self.judged_by(None)) if goal.metric == ACCURACY else goal
        firsts = [next((m["round"] for m in run.metrics if goal.reached(m)), None) for run in self.runs]
        return Reached.of(firsts, [len(run.metrics) for run in self.runs])

    def until(self, rounds: int) -> Trial:
        """As it stood after that round: a run that diverged later was whole then."""
        runs = []
        for run in self.runs:
            later = len(run.metrics) >= rounds
            summary = replace(run.summary, status="finished") if later else run.summary
            runs.append(Run(run.label, summary, run.metrics[:rounds]))
        return replace(self, runs=runs)

    def rank(self, target: Target | None, metric: str | None = None) -> tuple[float, ...]:
        """Smaller is better: whole before diverged, more seeds at the target, sooner, then what it is judged by, then loss."""
        there = None if target is None else self.reached(target)
        sooner = (0.0, 0.0) if there is None else (-there.runs, there.mean)
        name = self.judged_by(metric)
        found, sign = self.score(name), 1 if smaller_is_better(name) else -1
        missing = 0.0 if metric is None else math.inf
        return (
            self.diverged,
            *sooner,
            missing if found is None else sign * found.mean,
            0.0 if self.loss is None else self.loss.mean,
        )


@dataclass(frozen=True, repr=False)
class Tuning:
    """The result of a search. It renders itself: ``print``, ``rich.print``, ``tuning.markdown()``, ``tuning.to_dict()``."""

    config: RunConfig
    over: Mapping[str, Sequence[Any]]
    trials: Sequence[Trial]
    """The best first."""
    target: Target | None
    out: Path
    metric: str | None = None
    """What settings are judged by; None: accuracy."""

    @property
    def best(self) -> Trial:
        return self.trials[0]

    @property
    def table_file(self) -> Path:
        return self.out / "table.md"

    @property
    def report_file(self) -> Path:
        return self.out / "report.html"

    def options(self, trial: Trial) -> str:
        """A setting as options of the command line; of a search over objects as arguments."""
        if self.config.python:
            return ", ".join(f"{name}={value}" for name, value in trial.given.items())
        fields = settings_of(make_algorithm(self.config.algorithm, {}))
        return " ".join(f"--set {k}={v}" if k in fields else _typed(k, v) for k, v in trial.given.items())

    def at_the_edge(self) -> list[str]:
        """What of the best setting is the least or the largest number tried, so that one farther might be better."""
        found = []
        for name, tried in self.over.items():
            try:
                numbers = sorted(float(value) for value in tried)
                best = float(self.best.given[name])
            except (TypeError, ValueError):  # a policy, a range, a table: nothing lies beyond it
                continue
            if len(numbers) > 1 and best in (numbers[0], numbers[-1]):
                least = best == numbers[0]
                tip = "smallest value tried: try smaller ones" if least else "largest value tried: try larger ones"
                found.append(f"{name}={self.best.given[name]} is the {tip}")
        return found

    def title(self) -> str:
        c = self.config
        return f"{label_of(c.algorithm)} on {c.task}, {c.rounds} rounds: {len(self.trials)} settings"

    def __repr__(self) -> str:
        return f"<Search over {', '.join(self.over)}. {self.title()}>"

    def header(self) -> list[str]:
        targets = [] if self.target is None else [f"rounds to {Goal.read(self.target).words}"]
        return [*self.over, "rounds", *self._judge(), "accuracy %", "loss", *targets]

    def _judge(self) -> list[str]:
        """The column of what decides, where that is not the accuracy on the test data."""
        name = self.best.judged_by(self.metric)
        return [] if name == ACCURACY else ["validation %" if name == VALIDATION else name]

    def columns(self) -> list[Column]:
        """For a terminal: what was varied stays; the loss is left out first, then the rounds."""
        drops = {"loss": 2, "rounds": 1}
        return [
            Column(name, wrap=16 if k < len(self.over) else 0, number=k >= len(self.over), drop=drops.get(name, 0))
            for k, name in enumerate(self.header())
        ]

    def cells(self, trial: Trial) -> list[str]:
        accuracy, loss = trial.accuracy, trial.loss
        name = self.best.judged_by(self.metric)
        judged = trial.score(name)
        shown = "-" if judged is None else judged.text(2, 100) if name == VALIDATION else judged.text(4)
        cells = [
            *(str(trial.given[name]) for name in self.over),
            f"{trial.rounds}{' diverged' if trial.diverged else ''}",
            *([shown] if self._judge() else []),
            accuracy.text(2, scale=100) if accuracy else "-",
            loss.text(4) if loss else "-",
        ]
        if self.target is not None:
            reached = trial.reached(self.target)
            cells.append("-" if reached is None else reached.text())
        return cells

    def winners(self) -> list[set[int]]:
        """By column of the table, which trials are among the best; those that diverged or stopped early are not."""
        whole = [None if t.diverged or t.rounds < self.config.rounds else t for t in self.trials]
        figures: list[list[Spread | None]] = [
            [None if t is None else t.accuracy for t in whole],
            [None if t is None else t.loss for t in whole],
        ]
        marked = [best(figures[0], highest=True), best(figures[1])]
        if self._judge():
            name = self.best.judged_by(self.metric)
            judged = [None if t is None else t.score(name) for t in whole]
            marked.insert(0, best(judged, highest=not smaller_is_better(name)))
        if self.target is not None:
            reached = [None if t is None else t.reached(self.target) for t in whole]
            marked.append(best([None if each is None else each.ranked for each in reached]))
        return [*(set[int]() for _ in (*self.over, "rounds")), *marked]

    def __rich__(self) -> Any:
        marked = self.winners()
        rows = [
            [bold(text, k in marked[c]) for c, text in enumerate(self.cells(trial))]
            for k, trial in enumerate(self.trials)
        ]
        return table(self.columns(), rows, title=self.title())

    def markdown(self) -> str:
        return f"{self.title()}\n\n" + markdown(self.header(), map(self.cells, self.trials), self.winners())

    __str__ = markdown

    def to_pandas(self) -> Any:
        """The settings as a DataFrame, the best first (needs the extra ``fedvra[pandas]``)."""
        import pandas

        rows = self.to_dict()["settings"]
        return pandas.DataFrame([{**row.pop("given"), **row} for row in rows])

    def plot(self) -> Any:
        """Mean accuracy over rounds of every setting, as a matplotlib figure."""
        curves = [
            mean_curve(", ".join(f"{k}={v}" for k, v in trial.given.items()), [run.metrics for run in trial.runs])
            for trial in self.trials
        ]
        return curves_figure([curve for curve in curves if curve is not None], self.title(), "the best first")

    def report(self, path: str | Path = "report.html") -> Path:
        """One self-contained page: a heat map or parallel axes of the settings, and all their runs."""
        from fedvra.show.page import write_report

        return write_report([self.out], path)

    def _repr_html_(self) -> str:
        cells = [self.cells(trial) for trial in self.trials]
        return study_html(self.title(), self.header(), cells, self.plot(), self.winners())

    def write(self, plan: Mapping[str, Any], report: bool = True) -> None:
        """Table, result and, unless nothing was run, the report into the folder of the search."""
        replace_durably(self.table_file, self.markdown().encode())
        write_json(self.out / FILE, {"plan": dict(plan), "result": self.to_dict()})
        if report and any(trial.rounds or trial.diverged for trial in self.trials):
            self.report(self.report_file)

    def _plain(self, trial: Trial) -> dict[str, Any]:
        """A setting as JSON can hold it."""
        return {name: described(value) if self.config.python else value for name, value in trial.given.items()}

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.config.task,
            "algorithm": self.config.algorithm,
            "folder": str(self.out),
            "best": self._plain(self.best),
            "judged_by": self.best.judged_by(self.metric),
            "target": None if self.target is None else str(Goal.read(self.target)),
            "options": self.options(self.best),
            "at_the_edge": self.at_the_edge(),
            "settings": [
                {
                    "given": self._plain(trial),
                    "rounds": trial.rounds,
                    "diverged": trial.diverged,
                    "accuracy": None if trial.accuracy is None else trial.accuracy.mean,
                    "judged": getattr(trial.score(self.best.judged_by(self.metric)), "mean", None),
                    "loss": None if trial.loss is None else trial.loss.mean,
                    "rounds_to": None if self.target is None else _mean(trial.reached(self.target)),
                    "folder": trial.folder,
                }
                for trial in self.trials
            ],
        }


def _mean(reached: Reached | None) -> float | None:
    """None where some seed did not get there."""
    return reached.mean if reached is not None and reached.complete else None


def _tail(run: Run, name: str) -> float | None:
    """Of the model that the run is for."""
    name = name_in(run.metrics[-1], name) if run.metrics else name
    values = [value for _, value in series(run.metrics, name)]
    return statistics.fmean(values[-max(1, len(values) // TAIL) :]) if values else None


def _typed(name: str, value: Any) -> str:
    """An option as one types it."""
    words = name.replace("_", "-")
    if isinstance(OPTIONS[name].metadata["default"], bool):
        return f"--{words}" if option_text.truth(name, value) else f"--no-{words}"
    return f"--{words} {value}"
