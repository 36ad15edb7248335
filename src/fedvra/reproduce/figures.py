"""The curves of a recipe: one panel for each case."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvra.core.files import replace_durably
from fedvra.reproduce.recipe import Case, Recipe
from fedvra.reproduce.table import OF_X0
from fedvra.reproduce.wanted import Wanted
from fedvra.runs.cache import Stored
from fedvra.show.curves import mean_curve
from fedvra.show.plots import Curve, plot_curves

ACROSS = 2
"""Panels side by side."""
LEGEND_COLUMNS_FROM = 6
"""With this many curves the legend takes two columns, and covers less of them."""
PALETTE = 96
"""Colours of the picture: enough for lines and bands, at a fourth of the size."""


def draw(recipe: Recipe, found: Sequence[tuple[Wanted, Stored]], path: Path, subtitle: str) -> Path | None:
    """Test accuracy over rounds, mean and band over seeds; None where there is no run to draw."""
    panels = [(case, curves) for case in recipe.cases if (curves := _curves(case, found))]
    if not panels:
        return None
    from matplotlib.figure import Figure

    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(6.4 * across + 0.4, 4.2 * down + 0.5), dpi=100, layout="constrained")
    for k, (case, curves) in enumerate(panels):
        axes = figure.add_subplot(down, across, k + 1)
        plot_curves(axes, curves, case.targets)
        top = 100 * max(max(curve.high) for curve in curves)
        axes.set_ylim(bottom=max(0.0, top - 1.5 * (top - _knee(curves)) - 1))
        axes.set_title(case.title, loc="left", fontsize=10, fontweight="bold")
        columns = 2 if len(curves) >= LEGEND_COLUMNS_FROM else 1
        axes.legend(loc="lower right", fontsize=8, ncols=columns, frameon=True, facecolor="white", edgecolor="none")
    figure.suptitle(f"{recipe.title}\n{subtitle}", x=0.01, ha="left", fontsize=11)
    _write(figure, path)
    return path


def _write(figure: Any, path: Path) -> None:
    from PIL import Image  # matplotlib writes its PNG files with it, so it is there

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png")
    with Image.open(full) as image:
        few = image.convert("RGB").quantize(PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(small, format="png", optimize=True)
    replace_durably(path, small.getvalue())


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
