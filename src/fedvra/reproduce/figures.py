"""The curves of a recipe: one panel for each case."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvra.reproduce.recipe import Case, Recipe
from fedvra.reproduce.table import OF_X0
from fedvra.reproduce.wanted import Wanted
from fedvra.runs.cache import Stored
from fedvra.show.curves import mean_curve
from fedvra.show.plots import STYLE, Curve, plot_curves, write_figure

ACROSS = 2
"""Panels side by side."""
LEGEND_COLUMNS_FROM = 6
"""With this many curves the legend takes two columns, and covers less of them."""


def draw(recipe: Recipe, found: Sequence[tuple[Wanted, Stored]], path: Path, subtitle: str) -> Path | None:
    """Test accuracy over rounds, mean and band over seeds; None where there is no run to draw.

    Panels of one task are there to be compared, so they share their axes.
    """
    panels = [(case, curves) for case in recipe.cases if (curves := _curves(case, found))]
    if not panels:
        return None
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    with rc_context(STYLE):
        figure = Figure(figsize=(5.2 * across + 0.4, 3.6 * down + 0.5), layout="constrained")
        first: dict[str, Any] = {}
        together: dict[str, list[Curve]] = {}
        for k, (case, curves) in enumerate(panels):
            task = next(wanted.config.task for wanted, _ in found if wanted.case.name == case.name)
            axes = figure.add_subplot(down, across, k + 1, sharex=first.get(task), sharey=first.get(task))
            first.setdefault(task, axes)
            together.setdefault(task, []).extend(curves)
            plot_curves(axes, curves, case.targets)
            axes.set_title(case.title, loc="left", fontweight="bold")
            columns = 2 if len(curves) >= LEGEND_COLUMNS_FROM else 1
            axes.legend(loc="lower right", fontsize=8, ncols=columns, frameon=True, facecolor="white", edgecolor="none")
        for task, axes in first.items():
            axes.set_xlim(0, max(curve.rounds[-1] for curve in together[task]))
            axes.set_ylim(*_range(together[task]))
        figure.suptitle(f"{recipe.title}\n{subtitle}", x=0.01, ha="left", fontsize=11)
        return write_figure(figure, path)


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    """From where half of the curves are past their start to the highest, with as much again below."""
    top = 100 * max(max(curve.high) for curve in curves)
    return max(0.0, top - 1.5 * (top - _knee(curves)) - 1), min(100.0, top + 0.5)


def _knee(curves: Sequence[Curve]) -> float:
    """The accuracy (%) that half of the curves have after an eighth of their rounds: what lies further down is the start."""
    return 100 * statistics.median(curve.mean[len(curve.mean) // 8] for curve in curves)


def _curves(case: Case, found: Sequence[tuple[Wanted, Stored]]) -> list[Curve]:
    made = []
    for row in case.rows:
        theirs = [(w, run) for w, run in found if (w.case.name, w.row.name) == (case.name, row.name)]
        finished = [run.metrics for _, run in theirs if run.status != "diverged"]
        if theirs:
            label = theirs[0][0].label if finished else f"{theirs[0][0].label}, diverged"
            name = theirs[0][0].config.algorithm
            runs = finished or [run.metrics for _, run in theirs]
            curve = mean_curve(label, runs, OF_X0, name, bool(finished))
            made += [] if curve is None else [curve]
    return made
