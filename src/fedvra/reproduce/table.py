"""What was measured beside what the paper printed, and which cells differ.

Rounds to a target are the mean over seeds of the first round at or above it. A seed that never gets there has taken more than
the rounds it was run for: it enters the mean with one round more than that, and the mean is then written with ">", as a bound
from below. The paper's ">500" is the same kind of bound. A cell is marked where the two differ by more than 15% of the
paper's figure (0.5 points, for accuracies) whatever the bounds may hide; where they hide too much to tell, it is open:

    paper 60,   measured 71      off: 18% more
    paper >500, measured 480     within: 501 is less than 15% away
    paper >500, measured 300     off
    paper >500, measured >500    within
    paper 485,  measured >500    open: it may be 510 or 900
    paper 300,  measured >500    off
    paper >500, measured >200    open: not run for as long as the paper's were

Accuracies are those after the rounds that all runs of the row have, and compared where these are as many as the paper's.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedvra.core.goals import Goal
from fedvra.reproduce.recipe import READINGS, Printed, Reading, Recipe
from fedvra.reproduce.wanted import Wanted
from fedvra.runs.cache import Stored
from fedvra.runs.history import rounds_to, series
from fedvra.show.spreads import Spread
from fedvra.show.terminal import Column, FittedTable, markdown, table

ROUNDS_APART = 0.15
POINTS_APART = 0.5
MARK = " *"
ACCURACY = "accuracy"
OF_X0, DEPLOYED = "test_accuracy", "model_accuracy"
"""The paper's tables are of x0, whichever model a run is for; where that is another, a line of its own is beneath."""
READ_AS: dict[Reading, str] = {"final": "last round %", "best": "best round %", "last10": "last ten rounds %"}
"""Heads of the columns of accuracies."""

Verdict = Literal["within", "off", "open"]


@dataclass(frozen=True)
class Cell:
    """One figure with its counterpart."""

    measured: Spread | None
    beyond: bool = False
    """The mean is a bound from below: some seed never got there."""
    reached: int = 0
    """Seeds that did."""
    paper: Printed | None = None
    verdict: Verdict | None = None
    """None where the paper has no figure or nothing was measured."""

    def text(self, digits: int) -> str:
        if self.measured is None:
            return "-"
        if not self.beyond:
            text = self.measured.text(digits)
        elif self.reached == 0:
            text = f">{self.measured.mean - 1:.0f}"
        else:
            text = f">{self.measured.mean:.0f} ({self.reached} of {self.measured.runs})"
        return text + (MARK if self.verdict == "off" else "")

    def to_dict(self) -> dict[str, Any]:
        paper = self.paper
        return {
            "mean": None if self.measured is None else self.measured.mean,
            "std": None if self.measured is None else self.measured.std,
            "more_than": self.beyond,
            "paper": None if paper is None else {"value": paper.value, "std": paper.std, "more_than": paper.beyond},
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Line:
    """One row of a table."""

    case: str
    case_title: str
    row: str
    label: str
    seeds: int
    rounds: int
    """Of the shortest of its runs."""
    diverged: int
    cells: dict[str, Cell]
    """By column: "accuracy" and the targets, such as "90"."""
    readings: dict[str, float | None]
    """The mean accuracy, in per cent, each way it can be read."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "row": self.row,
            "label": self.label,
            "seeds": self.seeds,
            "rounds": self.rounds,
            "diverged": self.diverged,
            "cells": {name: cell.to_dict() for name, cell in self.cells.items()},
            "accuracy_read_as": self.readings,
        }


@dataclass(frozen=True)
class ResultTable:
    """Renders itself: ``rich.print(table)``, ``table.markdown()``."""

    recipe: Recipe
    lines: list[Line]

    @classmethod
    def of(cls, recipe: Recipe, found: Sequence[tuple[Wanted, Stored]]) -> ResultTable:
        """In the order of the recipe; rows of which there is no run are left out."""
        lines = []
        for case in recipe.cases:
            for row in case.rows:
                theirs = [(w, s) for w, s in found if (w.case.name, w.row.name) == (case.name, row.name)]
                if theirs:
                    lines.append(_line(recipe, theirs))
                    if any(DEPLOYED in record for _, run in theirs for record in run.metrics[-1:]):
                        lines.append(_line(recipe, theirs, DEPLOYED))
        return cls(recipe, lines)

    def verdicts(self) -> dict[Verdict, int]:
        found = [cell.verdict for line in self.lines for cell in line.cells.values()]
        return {verdict: found.count(verdict) for verdict in ("within", "off", "open")}

    def score(self) -> str | None:
        """How far it agrees with the paper; None where the paper has no figures."""
        count = self.verdicts()
        decided = count["within"] + count["off"]
        if not decided + count["open"]:
            return None
        marked = (
            f"{count['off']} differ ({MARK.strip()}) by more than {ROUNDS_APART:.0%} in rounds or {POINTS_APART} points"
        )
        too_short = f"; {count['open']} cannot be told from runs of this length" if count["open"] else ""
        return f"{count['within']} of {decided} cells agree with the paper's, {marked}{too_short}."

    def blocks(self) -> list[tuple[list[str], list[list[str]]]]:
        """Header and rows, one block for each set of targets, since those are its columns."""
        blocks: dict[tuple[str, ...], list[Line]] = {}
        for line in self.lines:
            blocks.setdefault(tuple(line.cells), []).append(line)
        return [self._block(columns, lines) for columns, lines in blocks.items()]

    def markdown(self) -> str:
        return "\n".join(markdown(header, rows) for header, rows in self.blocks())

    def readings_markdown(self) -> str:
        """Accuracy read in three ways beside the paper's, with the mean distance of each; empty where it printed none."""
        lines = [line for line in self.lines if line.cells[ACCURACY].paper and line.rounds >= self.recipe.rounds]
        if not lines:
            return ""
        far: dict[str, list[float]] = {reading: [] for reading in READINGS}
        rows = []
        for line in lines:
            paper = line.cells[ACCURACY].paper
            assert paper is not None
            for reading, value in line.readings.items():
                far[reading] += [] if value is None else [abs(value - paper.value)]
            shown = ["-" if value is None else f"{value:.2f}" for value in line.readings.values()]
            rows.append([line.case_title, line.label, *shown, paper.text(2)])
        rows.append(["mean distance", "", *(f"{statistics.fmean(each):.3f}" for each in far.values() if each), ""])
        return markdown(["case", "algorithm", *READ_AS.values(), "paper"], rows)

    def rich(self) -> list[FittedTable]:
        words = ("case", "algorithm")
        return [
            table([Column(name, wrap=12) if name in words else Column(name, number=True) for name in header], rows)
            for header, rows in self.blocks()
        ]

    def _block(self, columns: tuple[str, ...], lines: list[Line]) -> tuple[list[str], list[list[str]]]:
        beside = any(cell.paper for line in lines for cell in line.cells.values())
        header = ["case", "algorithm", "seeds", "rounds"]
        for column in columns:
            header += [READ_AS[self.recipe.accuracy] if column == ACCURACY else f"to {column}%"]
            header += ["paper"] if beside else []
        rows = []
        for line in lines:
            note = f" [{line.diverged} diverged]" if line.diverged else ""
            cells = [line.case_title, line.label + note, str(line.seeds), str(line.rounds)]
            for column in columns:
                cell = line.cells[column]
                digits = 2 if column == ACCURACY else 1
                cells.append(cell.text(digits))
                if beside:
                    shorter = column == ACCURACY and line.rounds < self.recipe.rounds  # not to be set side by side
                    paper = None if shorter else cell.paper
                    cells.append("" if paper is None else paper.text(digits if column == ACCURACY else 0))
            rows.append(cells)
        return header, rows


def compare_rounds(measured: float, beyond: bool, paper: Printed, played: int) -> Verdict:
    """
    Args:
        measured: the mean; a bound from below where ``beyond``.
        played: rounds of the runs.

    >>> [compare_rounds(m, False, Printed(500, beyond=True), 500) for m in (480, 300)]
    ['within', 'off']
    """
    if not paper.beyond:
        if abs(measured - paper.value) <= ROUNDS_APART * paper.value:
            return "open" if beyond else "within"
        return "open" if beyond and measured < paper.value else "off"
    if beyond:
        return "within" if played >= paper.value else "open"
    return "off" if measured < (1 - ROUNDS_APART) * (paper.value + 1) else "within"


def read_accuracy(run: Stored, reading: Reading, rounds: int | None = None, name: str = OF_X0) -> float | None:
    """As a fraction, after so many rounds or all of them; None for a run that diverged."""
    curve = [accuracy for _, accuracy in series(run.metrics[:rounds], name)]
    if not curve or run.status == "diverged":
        return None
    if reading == "best":
        return max(curve)
    return curve[-1] if reading == "final" else statistics.fmean(curve[-10:])


def _line(recipe: Recipe, theirs: list[tuple[Wanted, Stored]], name: str = OF_X0) -> Line:
    """Of x0, beside the paper's; or of the model that the runs were for."""
    wanted, runs = theirs[0][0], [run for _, run in theirs]
    paper = wanted.case.paper.get(wanted.row.name, {}) if name == OF_X0 else {}
    rounds = min((run.rounds for run in runs if run.status != "diverged"), default=0)
    readings = {each: Spread.of(_percent(read_accuracy(run, each, rounds, name)) for run in runs) for each in READINGS}
    cells = {ACCURACY: _accuracy_cell(readings[recipe.accuracy], paper.get(ACCURACY), rounds >= recipe.rounds)}
    for target in wanted.case.targets:
        cells[f"{target:g}"] = _rounds_cell(runs, target, paper.get(f"{target:g}"), name)
    return Line(
        case=wanted.case.name,
        case_title=wanted.case.title,
        row=wanted.row.name,
        label=wanted.label + ("" if name == OF_X0 else f", deploy {wanted.config.deploy}"),
        seeds=len(runs),
        rounds=rounds,
        diverged=sum(run.status == "diverged" for run in runs),
        cells=cells,
        readings={each: None if spread is None else spread.mean for each, spread in readings.items()},
    )


def _accuracy_cell(measured: Spread | None, paper: Printed | None, long_enough: bool) -> Cell:
    if measured is None or paper is None:
        return Cell(measured, paper=paper)
    apart = abs(measured.mean - paper.value) > POINTS_APART
    return Cell(measured, paper=paper, verdict=("off" if apart else "within") if long_enough else "open")


def _rounds_cell(runs: list[Stored], target: float, paper: Printed | None, name: str) -> Cell:
    """A run that diverged before it reached the target is taken to have needed more rounds than any other was run for."""
    longest = max(run.rounds for run in runs)
    goal = Goal(name, target, smaller=False)
    firsts = [rounds_to(run.metrics, [goal])[str(goal)] for run in runs]
    least = [
        first if first is not None else (longest if run.status == "diverged" else run.rounds) + 1
        for first, run in zip(firsts, runs, strict=True)
    ]
    measured, reached = Spread.of(least), sum(first is not None for first in firsts)
    assert measured is not None
    beyond = reached < len(runs)
    if paper is None:
        return Cell(measured, beyond, reached)
    played = min(run.rounds for run in runs)
    return Cell(measured, beyond, reached, paper, compare_rounds(measured.mean, beyond, paper, played))


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
