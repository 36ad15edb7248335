"""Pictures. matplotlib is imported when one is drawn: it takes longer to import than a small run takes."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvra.core.files import replace_durably
from fedvra.core.goals import Target
from fedvra.show.style import looks, order

FEW = 6
"""Lines that one can tell apart with their bands, and with a legend inside the plot."""
LETTERS = 9.0
"""Of a title that fit into an inch."""
PATH = re.compile(rb' d="[^"]*"')
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedvra",  # the same figure, the same bytes
}
"""Of figures in the documentation; those for papers have their own type, in ``fedvra.show.figures``."""


@dataclass(frozen=True)
class Curve:
    """One line with its band; accuracies as fractions."""

    label: str
    rounds: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    algorithm: str = ""
    """By name: it decides the colour. The label does where there is none."""
    whole: bool = True
    """False of one that diverged: it is drawn, but axes are not stretched to hold it."""


def draw_curves(curves: Sequence[Curve], path: Path, title: str, subtitle: str, targets: Sequence[Target] = ()) -> Path:
    """The figure of these curves into a file."""
    return write_figure(curves_figure(curves, title, subtitle, targets), path)


def curves_figure(curves: Sequence[Curve], title: str, subtitle: str = "", targets: Sequence[Target] = ()) -> Any:
    """Accuracy over rounds: a line per curve, a band where there are several seeds, a thin rule at every target.

    Beyond a few curves bands are mud and a legend hides lines: none are drawn, and the legend stands beside the plot.
    """
    from fedvra.runs.drawing import Drawing

    crowded = len(curves) > FEW
    width = 11.0 if crowded else 8.6
    figure = Drawing(figsize=(width, 5.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    plot_curves(axes, curves, targets, crowded)
    lines = textwrap.fill(title, int(LETTERS * width), break_long_words=False, break_on_hyphens=False)
    figure.suptitle(lines, x=0.01, ha="left", fontsize=13, fontweight="bold")
    axes.set_title(subtitle, loc="left", fontsize=9, color="#555555")
    return figure


def plot_curves(axes: Any, curves: Sequence[Curve], targets: Sequence[Target] = (), crowded: bool = False) -> None:
    """The same on axes of a figure that has more of them; ``crowded`` leaves out bands and sets the legend beside them."""
    draw_lines(axes, curves, scale=100, bands=not crowded)
    low, high = _accuracy_range(curves)
    axes.set_ylim(low, high)
    for target in targets:
        if not isinstance(target, str) and low < target < high:
            axes.axhline(target, color="#999999", linewidth=0.6, linestyle=(0, (1, 3)), zorder=0)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    if curves:
        axes.set_xlim(0, max(max(curve.rounds) for curve in curves))
        axes.xaxis.get_major_locator().set_params(integer=True)
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)} if crowded else {"loc": "lower right"}
        axes.legend(frameon=True, facecolor="white", edgecolor="none", framealpha=0.9, **place)


def draw_lines(axes: Any, curves: Sequence[Curve], scale: float = 1.0, width: float = 1.8, bands: bool = True) -> None:
    """Each curve in its algorithm's colour and dash, with its band; FedVRA on top."""
    names = [curve.algorithm or curve.label for curve in curves]
    drawn = order(names)
    for k, (curve, look) in enumerate(zip(curves, looks(names), strict=True)):
        mean, low, high = ([scale * each for each in values] for values in (curve.mean, curve.low, curve.high))
        lone = len(curve.rounds) == 1
        top = drawn.index(k) + 2
        axes.plot(
            curve.rounds,
            mean,
            color=look.light,
            linestyle=look.linestyle,
            linewidth=1.2 * width if drawn[-1] == k else width,
            marker="o" if lone else None,
            label=curve.label,
            zorder=top + len(curves),
        )
        if low != high and bands:
            axes.fill_between(curve.rounds, low, high, color=look.light, alpha=0.15, linewidth=0, zorder=top)


@contextmanager
def svg_figure(width: float, height: float, across: int = 1) -> Iterator[tuple[Any, Any]]:
    """A figure for a page, in the style of all of them: inches, and panels side by side that share their axes.

    Write it within the block. Letters stay letters, so a browser can set and search them.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = figure.subplots(1, across, sharex=True, sharey=True, squeeze=False)[0]
        yield figure, panels[0] if across == 1 else panels


def write_figure(figure: Any, path: Path) -> Path:
    """In the format of the file's ending; readers see it whole or not at all. The same figure gives the same bytes."""
    buffer, kind = io.BytesIO(), path.suffix[1:]
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    figure.savefig(buffer, format=kind, metadata=undated)
    content = buffer.getvalue()
    replace_durably(path, PATH.sub(_rounded, content) if kind == "svg" else content)
    return path


def _rounded(path: re.Match[bytes]) -> bytes:
    """A path on one line with coordinates to a hundredth of a point: half the bytes."""
    return re.sub(rb"(\.\d\d)\d+", rb"\1", path[0]).replace(b"\n", b"")


def _accuracy_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """From a little below the lowest value to a little above the highest, in per cent, so that the top is not squeezed."""
    if not curves:
        return 0.0, 100.0
    shown = [curve for curve in curves if curve.whole] or curves
    low = 100 * min(min(curve.low) for curve in shown)
    high = 100 * max(max(curve.high) for curve in shown)
    margin = max(1.0, 0.04 * (high - low))
    return max(0.0, low - margin), min(100.5, high + margin)
